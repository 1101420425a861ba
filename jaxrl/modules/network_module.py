"""User networks as modules, without a subclass of RLModule: linen, nnx or two functions."""

import copy
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, cast

import flax.errors
import flax.linen as nn
import jax

from jaxrl.core.types import Columns, Key, Params, PyTree
from jaxrl.errors import TRACING_ERRORS, ModuleError, locate_in_user_code, summarize_exception
from jaxrl.modules.rl_module import RLModule, make_zeros

if TYPE_CHECKING:
    from flax import nnx

NETWORK_REQUIREMENTS = (
    "it must be a flax linen module (an object or its class), an nnx.Module class that takes rngs, "
    "a function that returns one of them, or two functions (init, apply)"
)
STATELESS_NETWORK_HINT = (
    "a network sees one observation at a time; recurrence is set by model_config (use_lstm), or "
    "needs an RLModule with _forward_step(params, obs, carry)"
)


class NetworkModule(RLModule):
    """Module around `source`, which maps observations to `(action_dist_inputs, value)`.

    `source` is a linen module, or a class or function that returns a linen or an nnx module. It is
    called with those of the following that it names as arguments: `num_outputs` (number of inputs
    of the action distribution), `observation_space`, `action_space`, `rngs` (nnx) and the entries
    of `model_config`. Or it is `(init, apply)`: `init(key, obs)` returns parameters, `apply(params,
    obs)` the outputs.
    """

    source: Any
    advice_on_missing: ClassVar[Mapping[str, str]] = {
        Columns.VF_PREDS: "must return (action_dist_inputs, value), and returns no value, which "
        "this algorithm needs: one number per observation"
    }

    def setup(self) -> None:
        source = self.source
        if not isinstance(self.model_config, Mapping):
            raise ModuleError(
                f"model_config must be a dictionary for {self._name}, got {self.model_config!r}."
            )
        if isinstance(source, tuple):
            self._check_model_config(())
            _check_takes(f"{self._name} (apply)", cast(tuple[Any, Any], source)[1], 2)
        elif not self._is_nnx:
            self.network = self._make_linen()

    @property
    def _name(self) -> str:
        return type(self).__name__

    @functools.cached_property
    def _is_nnx(self) -> bool:
        is_factory = callable(self.source) and not isinstance(self.source, nn.Module)
        return is_factory and "rngs" in _get_argument_names(self.source)

    def _make_linen(self) -> nn.Module:
        if isinstance(self.source, nn.Module):
            self._check_model_config(())
            network: object = self.source
        else:
            network = self._call_source()
        if not isinstance(network, nn.Module):
            raise ModuleError(
                f"{self._name} makes a {type(network).__name__}; {NETWORK_REQUIREMENTS}."
            )
        if isinstance(network, nn.RNNCellBase):
            raise ModuleError(f"{self._name} is a recurrent cell: {STATELESS_NETWORK_HINT}.")
        _check_takes(self._name, cast(Any, network).__call__, 1)
        return network

    def init(self, key: Key) -> Params:
        obs = make_zeros(self.observation_space, (1,))
        if isinstance(self.source, tuple):
            return self.source[0](key, obs)
        if self._is_nnx:
            nnx = _import_nnx()
            return nnx.to_pure_dict(nnx.state(self._make_nnx(key), nnx.Param))
        variables = self.network.init(key, obs)
        self._refuse_variables([name for name in variables if name != "params"])
        return cast(Params, variables.get("params", {}))

    def _forward(self, params: Params, obs: PyTree) -> dict[str, Any]:
        if isinstance(self.source, tuple):
            return self._name_outputs(self.source[1](params, obs))
        if self._is_nnx:
            nnx = _import_nnx()
            graph, shapes = self._nnx_structure
            state = copy.deepcopy(shapes)
            nnx.replace_by_pure_dict(state, params)
            return self._name_outputs(nnx.merge(graph, state)(obs))
        try:
            return self._name_outputs(self.network.apply({"params": params}, obs))
        except flax.errors.InvalidRngError as error:
            raise ModuleError(
                f"{self._name} draws random numbers in its forward pass, which gets no key: leave "
                "out dropout and other noise."
            ) from error

    @functools.cached_property
    def _nnx_structure(self) -> tuple[Any, Any]:
        """Graph of an nnx module without its values, and the shapes of its parameters."""
        nnx = _import_nnx()
        module = nnx.eval_shape(lambda: self._make_nnx(jax.random.key(0)))
        _check_takes(self._name, module.__call__, 1)
        graph, params, rest = nnx.split(module, nnx.Param, ...)
        other_variables = jax.tree.leaves(rest, is_leaf=lambda x: isinstance(x, nnx.Variable))
        self._refuse_variables(sorted({type(leaf).__name__ for leaf in other_variables}))
        return graph, params

    def _make_nnx(self, key: Key) -> "nnx.Module":
        """Make an nnx module with fresh parameters. Consumes the key."""
        nnx = _import_nnx()
        module = self._call_source(rngs=nnx.Rngs(key))
        if not isinstance(module, nnx.Module):
            raise ModuleError(
                f"{self._name} makes a {type(module).__name__}; {NETWORK_REQUIREMENTS}."
            )
        return module

    def _name_outputs(self, out: object) -> dict[str, Any]:
        """Name the outputs as RLlib does; the value may be missing."""
        if isinstance(out, dict):
            return cast(dict[str, Any], out)
        if isinstance(out, jax.Array):
            return {Columns.ACTION_DIST_INPUTS: out}
        parts: tuple[Any, ...] = cast(Any, out) if isinstance(out, tuple) else ()
        if len(parts) == 2 and all(isinstance(part, jax.Array) for part in parts):
            return {Columns.ACTION_DIST_INPUTS: parts[0], Columns.VF_PREDS: parts[1]}
        got = ", ".join(type(part).__name__ for part in parts) if parts else type(out).__name__
        raise ModuleError(
            f"{self._name} must return (action_dist_inputs, value), two arrays, got ({got}); "
            f"{STATELESS_NETWORK_HINT}."
        )

    def _call_source(self, **extra: object) -> Any:
        """Call a class or a function with the arguments that it names."""
        names = _get_argument_names(self.source)
        self._check_model_config(names)
        available = {
            "num_outputs": self.distribution.input_dim,
            "observation_space": self.observation_space,
            "action_space": self.action_space,
            **self.model_config,
            **extra,
        }
        try:
            return self.source(**{n: value for n, value in available.items() if n in names})
        except TRACING_ERRORS as error:
            raise ModuleError(
                f"{self._name} cannot be constructed ({summarize_exception(error)}){locate_in_user_code(error)}; "
                f"arguments available by name: {', '.join(available)}."
            ) from error

    def _check_model_config(self, names: Collection[str]) -> None:
        for name in cast(Mapping[str, Any], self.model_config):
            if name not in names:
                raise ModuleError(
                    f"model_config has {name!r}, which {self._name} does not take; it takes "
                    f"{', '.join(names) or 'nothing'}: rl_module(model_config={{}}) clears what was set."
                )

    def _refuse_variables(self, names: Sequence[str]) -> None:
        if names:
            raise ModuleError(
                f"{self._name} has variables other than parameters ({', '.join(names)}), which "
                "are never updated: leave out batch statistics, dropout and caches."
            )


def make_network_module(network: object) -> type[NetworkModule]:
    """Return the module class around a network.

    Args:
        network: See `NetworkModule.source`; two functions may also be a list.

    Raises:
        ModuleError: If it is of no supported kind.
    """
    if isinstance(network, list | tuple):
        pair = tuple(cast(Sequence[Any], network))
        if len(pair) != 2 or not all(callable(function) for function in pair):
            raise ModuleError(f"network is {network!r}; {NETWORK_REQUIREMENTS}.")
        return _make_module_class(pair, pair[1])
    if isinstance(network, type) and issubclass(network, RLModule):
        raise ModuleError(
            f"network is {network.__name__}, an RLModule: pass it as rl_module_spec instead."
        )
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None and isinstance(network, nnx.Module):
        raise ModuleError(
            f"network is an object of {type(network).__name__}, whose parameters are already "
            "drawn: pass the class, which takes rngs, or a function of rngs that makes it."
        )
    if not callable(network):
        raise ModuleError(f"network is {network!r}; {NETWORK_REQUIREMENTS}.")
    return _make_module_class(network, network)


def _make_module_class(source: Any, name_source: object) -> type[NetworkModule]:
    name = getattr(name_source, "__name__", type(name_source).__name__)
    return type(
        name, (NetworkModule,), {"source": staticmethod(source), "__doc__": NetworkModule.__doc__}
    )


def _import_nnx() -> ModuleType:
    """Import flax.nnx, which is already imported if an nnx module exists."""
    from flax import nnx

    return nnx


def _get_argument_names(source: Callable[..., Any]) -> list[str]:
    """Return the argument names of a class or a function."""
    is_class = isinstance(source, type)  # an nnx class is called through its metaclass
    signature = inspect.signature(cast(Any, source).__init__ if is_class else source)
    parameters = list(signature.parameters.values())[1 if is_class else 0 :]
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.kind not in kinds and p.name not in ("parent", "name")]


def _check_takes(what: str, function: Callable[..., Any], number: int) -> None:
    """Raise if a function cannot be called with the given number of arguments."""
    try:
        inspect.signature(function).bind(*range(number))
    except TypeError as error:
        wanted = "the parameters and observations" if number == 2 else "observations alone"
        raise ModuleError(
            f"{what} must be callable with {wanted} ({summarize_exception(error)}): {STATELESS_NETWORK_HINT}."
        ) from error
