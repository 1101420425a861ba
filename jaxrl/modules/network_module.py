"""Networks of a user's as modules, without a subclass of RLModule: linen, nnx or two functions."""

import copy
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

import flax.linen as nn
import jax

from jaxrl.core.types import Columns, Key, Params, PyTree
from jaxrl.errors import TRACING_ERRORS, ModuleError, in_one_line, where_raised
from jaxrl.modules.rl_module import RLModule, zeros_of

WANTED = (
    "it must be a flax linen module (an object or its class), an nnx.Module class that takes rngs, a "
    "function that makes one of them, or two functions (init, apply)"
)
FORGETFUL = (
    "a network sees one observation at a time; one that remembers is set by model_config (use_lstm), "
    "or is an RLModule with _forward_step(params, obs, carry)"
)


class NetworkModule(RLModule):
    """A module around `source`, which gives `(action_dist_inputs, value)` for observations.

    `source` is a linen module, or what makes a linen or an nnx module of those of these arguments
    that it names: `num_outputs` (how many numbers an action's distribution needs),
    `observation_space`, `action_space`, `rngs` (nnx) and the entries of `model_config`. Or it is
    `(init, apply)`: `init(key, obs)` gives parameters, `apply(params, obs)` the outputs.
    """

    source: Any

    def setup(self) -> None:
        source = self.source
        if not isinstance(self.model_config, Mapping):
            raise ModuleError(
                f"model_config must be a dictionary for {self._name}, got {self.model_config!r}."
            )
        if isinstance(source, tuple):
            self._refuse_unread(())
            _check_takes(f"{self._name} (apply)", cast(tuple[Any, Any], source)[1], 2)
        elif not self._is_nnx:
            self.network = self._linen()

    @property
    def _name(self) -> str:
        return type(self).__name__

    @functools.cached_property
    def _is_nnx(self) -> bool:
        made = callable(self.source) and not isinstance(self.source, nn.Module)
        return made and "rngs" in _arguments(self.source)

    def _linen(self) -> nn.Module:
        if isinstance(self.source, nn.Module):
            self._refuse_unread(())
            network: Any = self.source
        else:
            network = self._made()
        if not isinstance(network, nn.Module):
            raise ModuleError(f"{self._name} makes a {type(network).__name__}; {WANTED}.")
        if isinstance(network, nn.RNNCellBase):
            raise ModuleError(f"{self._name} is a recurrent cell: {FORGETFUL}.")
        _check_takes(self._name, cast(Any, network).__call__, 1)
        return network

    def init(self, key: Key) -> Params:
        obs = zeros_of(self.observation_space, (1,))
        if isinstance(self.source, tuple):
            return self.source[0](key, obs)
        if self._is_nnx:
            nnx = _nnx()
            return nnx.to_pure_dict(nnx.state(self._drawn(key), nnx.Param))
        variables = self.network.init(key, obs)
        self._refuse_state([name for name in variables if name != "params"])
        return cast(Params, variables.get("params", {}))

    def _forward(self, params: Params, obs: PyTree) -> dict[str, Any]:
        if isinstance(self.source, tuple):
            return self._named(self.source[1](params, obs))
        if self._is_nnx:
            nnx = _nnx()
            graph, shapes = self._structure
            state = copy.deepcopy(shapes)
            nnx.replace_by_pure_dict(state, params)
            return self._named(nnx.merge(graph, state)(obs))
        return self._named(self.network.apply({"params": params}, obs))

    @functools.cached_property
    def _structure(self) -> tuple[Any, Any]:
        """An nnx module without its numbers: its graph, and the shapes of its parameters."""
        nnx = _nnx()
        module = nnx.eval_shape(lambda: self._drawn(jax.random.key(0)))
        _check_takes(self._name, module.__call__, 1)
        graph, params, rest = nnx.split(module, nnx.Param, ...)
        kept = jax.tree.leaves(rest, is_leaf=lambda x: isinstance(x, nnx.Variable))
        self._refuse_state(sorted({type(leaf).__name__ for leaf in kept}))
        return graph, params

    def _drawn(self, key: Key) -> Any:
        """An nnx module with fresh parameters. Consumes the key."""
        nnx = _nnx()
        module = self._made(rngs=nnx.Rngs(key))
        if not isinstance(module, nnx.Module):
            raise ModuleError(f"{self._name} makes a {type(module).__name__}; {WANTED}.")
        return module

    def _named(self, out: Any) -> dict[str, Any]:
        """The outputs by RLlib's names; without a value where there is none."""
        if isinstance(out, dict):
            return cast(dict[str, Any], out)
        if isinstance(out, jax.Array):
            return {Columns.ACTION_DIST_INPUTS: out}
        parts: tuple[Any, ...] = cast(Any, out) if isinstance(out, tuple) else ()
        if len(parts) == 2 and all(isinstance(part, jax.Array) for part in parts):
            return {Columns.ACTION_DIST_INPUTS: parts[0], Columns.VF_PREDS: parts[1]}
        got = ", ".join(type(part).__name__ for part in parts) if parts else type(out).__name__
        raise ModuleError(
            f"{self._name} must give (action_dist_inputs, value), two arrays, got ({got}); "
            f"{FORGETFUL}."
        )

    def _made(self, **more: Any) -> Any:
        """What a class or a function makes of the arguments that it names."""
        names = _arguments(self.source)
        self._refuse_unread(names)
        given = {
            "num_outputs": self.distribution.input_dim,
            "observation_space": self.observation_space,
            "action_space": self.action_space,
            **self.model_config,
            **more,
        }
        try:
            return self.source(**{n: value for n, value in given.items() if n in names})
        except TRACING_ERRORS as error:
            raise ModuleError(
                f"{self._name} cannot be made ({in_one_line(error)}){where_raised(error)}; what it "
                f"is given by name: {', '.join(given)}."
            ) from error

    def _refuse_unread(self, names: Collection[str]) -> None:
        for name in cast(Mapping[str, Any], self.model_config):
            if name not in names:
                raise ModuleError(
                    f"model_config has {name!r}, which {self._name} does not take; it takes "
                    f"{', '.join(names) or 'nothing'}."
                )

    def _refuse_state(self, names: Sequence[str]) -> None:
        if names:
            raise ModuleError(
                f"{self._name} keeps more than parameters ({', '.join(names)}), which nothing here "
                "updates: leave out batch statistics, dropout and caches."
            )


def network_module(network: Any) -> type[NetworkModule]:
    """The module class around a network.

    Args:
        network: See `NetworkModule.source`; two functions may also come as a list.

    Raises:
        ModuleError: It is nothing of that kind.
    """
    if isinstance(network, list | tuple):
        pair = tuple(cast(Sequence[Any], network))
        if len(pair) != 2 or not all(callable(function) for function in pair):
            raise ModuleError(f"network is {network!r}; {WANTED}.")
        return _around(pair, pair[1])
    if isinstance(network, type) and issubclass(network, RLModule):
        raise ModuleError(
            f"network is {network.__name__}, an RLModule: give it as rl_module_spec instead."
        )
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None and isinstance(network, nnx.Module):
        raise ModuleError(
            f"network is an object of {type(network).__name__}, whose parameters are drawn already: "
            "give the class, which takes rngs, or a function of rngs that makes it."
        )
    if not callable(network):
        raise ModuleError(f"network is {network!r}; {WANTED}.")
    return _around(network, network)


def _around(source: Any, named: Any) -> type[NetworkModule]:
    name = getattr(named, "__name__", type(named).__name__)
    return type(
        name, (NetworkModule,), {"source": staticmethod(source), "__doc__": NetworkModule.__doc__}
    )


def _nnx() -> Any:
    """flax.nnx, which whoever made an nnx module has imported."""
    from flax import nnx

    return nnx


def _arguments(source: Callable[..., Any]) -> list[str]:
    """The names that a class or a function takes."""
    is_class = isinstance(source, type)  # a class of nnx is called through its metaclass
    taken = inspect.signature(cast(Any, source).__init__ if is_class else source)
    parameters = list(taken.parameters.values())[1 if is_class else 0 :]
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.kind not in kinds and p.name not in ("parent", "name")]


def _check_takes(what: str, function: Callable[..., Any], number: int) -> None:
    """Refuse a function that cannot be called with so many arguments."""
    try:
        inspect.signature(function).bind(*range(number))
    except TypeError as error:
        wanted = "the parameters and observations" if number == 2 else "observations alone"
        raise ModuleError(
            f"{what} must be callable with {wanted} ({in_one_line(error)}): {FORGETFUL}."
        ) from error
