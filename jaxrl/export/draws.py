"""Random inputs of a policy: where a traced function draws, and of which distribution."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import core as jax_core
from jax.extend import core as jex_core

from jaxrl.core.types import Array, Keys, PyTree

Equation: TypeAlias = jex_core.JaxprEqn
Constants: TypeAlias = "dict[str, float]"
"""Parameters of a distribution by name."""

_PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "normal": (),
    "gumbel": (),
    "exponential": (),
    "uniform": ("low", "high"),
    "randint": ("low", "high"),
    "bernoulli": ("high",),
}
"""Names of the numbers that follow the key in the functions of `jax.random`, by their names."""
_KINDS: Mapping[str, str] = {
    **{f"_{kind}": kind for kind in _PARAMETERS},
    "_normal_real": "normal",
}
"""Distributions by the names of the compiled functions of `jax.random`."""
_CALLS = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call")
_BODIES = ("jaxpr", "call_jaxpr", "fun_jaxpr")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrawSpec:
    """Random input of a program.

    Args:
        name: Name of the input.
        kind: Distribution, as in `jax.random`.
        dtype: Type.
        shape: Shape of one row.
        parameters: Numbers of the distribution, such as the bounds of a uniform one.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    parameters: Constants

    def to_data(self) -> dict[str, Any]:
        """Return the specification as plain data."""
        fields = {"name": self.name, "kind": self.kind, "dtype": self.dtype}
        return {**fields, "shape": list(self.shape), **self.parameters}


def get_body(equation: Equation) -> jex_core.ClosedJaxpr | None:
    """Return what an equation calls, None if it is no plain call."""
    if equation.primitive.name not in _CALLS and equation.primitive.name not in (
        "remat2",
        "checkpoint",
    ):
        return None
    for name in _BODIES:
        body = equation.params.get(name)
        if isinstance(body, jex_core.ClosedJaxpr):
            return body
        if isinstance(body, jex_core.Jaxpr):
            return jex_core.ClosedJaxpr(body, ())
    return None


def find_draw(equation: Equation, operands: Sequence[object], number: int) -> DrawSpec | None:
    """Return the specification of an equation that draws, None if it is none that is known.

    Args:
        equation: Equation whose first operand is made of keys.
        operands: Its operands, constants as arrays.
        number: Number of the draws before it.
    """
    name = equation.params.get("name") if equation.primitive.name in _CALLS else None
    kind = _KINDS.get(str(name))
    if kind is None or len(equation.outvars) != 1:
        return None
    aval = cast(jax_core.ShapedArray, equation.outvars[0].aval)
    numbers = operands[1 : 1 + len(_PARAMETERS[kind])]
    constants = [np.unique(x) for x in numbers if isinstance(x, np.ndarray)]
    if len(constants) != len(_PARAMETERS[kind]) or any(len(x) != 1 for x in constants):
        return None
    if not aval.shape or isinstance(aval.shape[0], int) == _has_symbol(equation):
        return None
    return DrawSpec(
        name=f"draws/{number}",
        kind=kind,
        dtype=str(aval.dtype),
        shape=tuple(int(size) for size in aval.shape[1:]),
        parameters={
            parameter: x[0].item()
            for parameter, x in zip(_PARAMETERS[kind], constants, strict=True)
        },
    )


def _has_symbol(equation: Equation) -> bool:
    """Return whether the keys of an equation are those of any batch size."""
    keys = cast(jax_core.ShapedArray, equation.invars[0].aval)
    return bool(keys.shape) and not isinstance(keys.shape[0], int)


def is_key(variable: jex_core.Var | jex_core.Literal) -> bool:
    """Return whether a variable holds typed keys."""
    aval = cast(jax_core.ShapedArray, variable.aval)
    return jnp.issubdtype(aval.dtype, jax.dtypes.prng_key)


class DrawReplacer:
    """Evaluation of a traced function with its random inputs captured, or given.

    Args:
        given: Random inputs in the order of the draws; None captures them from the keys.

    Attributes:
        specs: Specifications of the draws that were met.
        captured: Their values.
    """

    def __init__(self, given: Sequence[Any] | None = None) -> None:
        self._given = given
        self.specs: list[DrawSpec] = []
        self.captured: list[Any] = []

    def evaluate(
        self, jaxpr: jex_core.Jaxpr, consts: Sequence[Any], args: Sequence[Any]
    ) -> list[Any]:
        """Return the outputs of a jaxpr."""
        env: dict[jex_core.Var, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        env.update(zip(jaxpr.invars, args, strict=True))

        def read(atom: jex_core.Var | jex_core.Literal) -> Array | np.ndarray:
            return np.asarray(atom.val) if isinstance(atom, jex_core.Literal) else env[atom]

        for equation in jaxpr.eqns:
            results = self._evaluate(equation, [read(atom) for atom in equation.invars])
            env.update(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _evaluate(self, equation: Equation, values: list[Any]) -> Sequence[Any]:
        body = get_body(equation)
        if equation.invars and is_key(equation.invars[0]):
            spec = find_draw(equation, values, len(self.specs))
            if spec is not None and body is not None:
                self.specs.append(spec)
                if self._given is None:
                    (value,) = jax_core.eval_jaxpr(body.jaxpr, body.consts, *values)
                else:
                    value = self._given[len(self.specs) - 1]
                self.captured.append(value)
                return [value]
        if body is not None:
            return self.evaluate(body.jaxpr, body.consts, values)
        bound: tuple[Sequence[object], dict[str, Any]] | dict[str, Any]
        bound = equation.primitive.get_bind_params(equation.params)
        functions, params = bound if isinstance(bound, tuple) else ((), bound)  # jax 0.10 or not
        results = equation.primitive.bind(*functions, *values, **params)
        return results if equation.primitive.multiple_results else [results]


def make_capture(draw: Callable[[Keys], PyTree]) -> Callable[[Keys], dict[str, Any]]:
    """Return the function from keys to the random inputs that a module draws from them, by name.

    Args:
        draw: `RLModule.draw` of the module.
    """

    @jax.jit
    def capture(keys: Keys) -> dict[str, Any]:
        closed = jax.make_jaxpr(draw)(keys)
        replacer = DrawReplacer()
        replacer.evaluate(closed.jaxpr, closed.consts, [keys])
        names = (spec.name for spec in replacer.specs)
        return dict(zip(names, replacer.captured, strict=True))

    return capture
