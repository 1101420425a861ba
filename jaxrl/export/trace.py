"""Tracing of acting, as every call for an action runs it, into operations for any batch size."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import core as jax_core
from jax import export as jax_export
from jax.extend import core as jex_core

from jaxrl.core.types import Array, Columns, Keys, PyTree
from jaxrl.errors import (
    TRACING_ERRORS,
    ExportError,
    JaxrlError,
    locate_in_user_code,
    summarize_exception,
)
from jaxrl.export.program import ExportedProgram, Operand, ProgramBuilder, get_aval, is_known, lower
from jaxrl.modules.rl_module import make_zeros
from jaxrl.policy.inference import ActInputs, act, set_previous_action
from jaxrl.training.rollout import ActorCarry, ActorState, PolicyStep

Specs: TypeAlias = "list[tuple[str, jax.ShapeDtypeStruct]]"
"""Names, types and shapes of arrays, in the order of a tree's leaves."""
BATCH = "b"


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
    """Return the body that an equation calls, None if it is no plain call."""
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
    aval = get_aval(equation.outvars[0])
    numbers = operands[1 : 1 + len(_PARAMETERS[kind])]
    constants = [np.unique(x) for x in numbers if isinstance(x, np.ndarray)]
    if len(constants) != len(_PARAMETERS[kind]) or any(len(x) != 1 for x in constants):
        return None
    keys = get_aval(equation.invars[0])
    has_symbol = bool(keys.shape) and not isinstance(keys.shape[0], int)  # any number of keys
    if not aval.shape or isinstance(aval.shape[0], int) == has_symbol:
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


def is_key(variable: jex_core.Var | jex_core.Literal) -> bool:
    """Return whether a variable holds typed keys."""
    aval = get_aval(variable)
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class TracedFunction:
    """Function of lists of arrays, traced for any batch size.

    Attributes:
        closed: The traced function; its arguments are the inputs in order.
        inputs: Names and shapes of the inputs; the keys, if any, come last and have no name.
        outputs: Names of the outputs.
        owner: Name of the module's class, for error messages.
    """

    closed: jex_core.ClosedJaxpr
    inputs: Specs
    outputs: list[str]
    owner: str

    @property
    def batch(self) -> int:
        """Symbol of the batch size."""
        return next(x.shape[0] for name, x in self.inputs if not name.startswith("weights/"))

    @property
    def has_keys(self) -> bool:
        """Presence of keys, which are the last argument."""
        return len(self.closed.jaxpr.invars) > len(self.inputs)

    def find_used(self) -> list[bool]:
        """Return for each argument whether the outputs depend on it."""
        jaxpr = self.closed.jaxpr
        needed = {id(atom) for atom in jaxpr.outvars}
        for equation in reversed(jaxpr.eqns):
            if any(id(out) in needed for out in equation.outvars):
                needed.update(id(atom) for atom in equation.invars)
        return [id(variable) in needed for variable in jaxpr.invars]

    def find_used_inputs(self) -> list[str]:
        """Return the names of the inputs that the outputs depend on."""
        pairs = zip(self.inputs, self.find_used(), strict=False)
        return [name for (name, _), is_used in pairs if is_used]

    def to_program(self) -> tuple[ExportedProgram, list[DrawSpec]]:
        """Return the function as operations, and its random inputs.

        Raises:
            ExportError: If an operation has no counterpart.
        """
        flattener = _Flattener(self.owner)
        operands: list[_Atom] = [
            flattener.builder.add_input(name, spec.dtype, spec.shape) for name, spec in self.inputs
        ]
        if self.has_keys:
            operands.append(_FROM_KEYS)
        results = flattener.flatten(self.closed.jaxpr, self.closed.consts, operands)
        outputs = [
            (name, flattener.require(result))
            for name, result in zip(self.outputs, results, strict=True)
        ]
        program = flattener.builder.finish(outputs)
        return program, [spec for spec in flattener.draws if spec.name in program.input_names]


def name_leaves(prefix: str, tree: PyTree) -> Specs:
    """Return the names of a tree's leaves with their shapes and types."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [
        ("/".join([prefix, *(jax.tree_util.keystr((key,), simple=True) for key in path)]), leaf)
        for path, leaf in leaves
    ]


def make_batch_symbol() -> object:
    """Return the symbol of the batch size."""
    (symbol,) = jax_export.symbolic_shape(BATCH, constraints=[f"{BATCH} >= 1"])
    return symbol


def _with_batch(tree: PyTree, batch: object) -> PyTree:
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((batch, *leaf.shape[1:]), leaf.dtype), tree
    )


def get_input_shapes(policy_step: PolicyStep, batch: object) -> tuple[PyTree, PyTree]:
    """Return the shapes of observations and of the carry for a batch size."""
    obs = jax.eval_shape(lambda: make_zeros(policy_step.observation_space, (1,)))
    carry = jax.eval_shape(lambda: policy_step.initial_carry(1))
    return _with_batch(obs, batch), _with_batch(carry, batch)


def trace_act(policy_step: PolicyStep, actor: ActorState, *, explore: bool) -> TracedFunction:
    """Trace acting: from weights, observations, state and keys to actions and the next state.

    Args:
        policy_step: Module and connectors of the run.
        actor: Parameters and connector statistics.
        explore: Whether to sample actions.

    Raises:
        ExportError: If it cannot be traced for any batch size.
    """
    batch = make_batch_symbol()
    obs, carry = get_input_shapes(policy_step, batch)
    is_first = jax.ShapeDtypeStruct((batch,), np.bool_)
    keys = jax.ShapeDtypeStruct((batch,), jax.eval_shape(lambda: jax.random.key(0)).dtype)
    names: list[str] = []

    def compute(actor: ActorState, inputs: ActInputs, keys: Keys) -> list[Any]:
        pipeline = policy_step.action_pipeline
        actions, after, out = act(policy_step, pipeline, actor, inputs, keys, explore)
        named = [
            *name_leaves("actions", actions),
            *name_leaves("module_actions", out[Columns.ACTIONS]),
            ("log_prob", out[Columns.ACTION_LOGP]),
            ("dist_inputs", out[Columns.ACTION_DIST_INPUTS]),
            *name_leaves("next/state", after),
        ]
        names.extend(name for name, _ in named)
        return [leaf for _, leaf in named]

    inputs = ActInputs(obs=obs, carry=carry, is_first=is_first, prev_action=None)
    actor_shapes = jax.eval_shape(lambda x: x, actor)
    closed = _trace(policy_step, compute, actor_shapes, inputs, keys)
    arguments = [
        *name_leaves("weights", actor_shapes),
        *name_leaves("obs", obs),
        *name_leaves("state", carry),
        ("is_first", is_first),
    ]
    return TracedFunction(
        closed=closed, inputs=arguments, outputs=names, owner=type(policy_step.module).__name__
    )


def trace_set_previous_action(policy_step: PolicyStep) -> TracedFunction:
    """Trace the replacement of the previous action by the one that was executed.

    Raises:
        ExportError: If it cannot be traced for any batch size.
    """
    pipeline = policy_step.action_pipeline
    batch = make_batch_symbol()
    _, carry = get_input_shapes(policy_step, batch)
    action = _with_batch(jax.eval_shape(lambda: make_zeros(pipeline.space, (1,))), batch)

    def compute(carry: ActorCarry, action: PyTree) -> list[Any]:
        return jax.tree.leaves(set_previous_action(carry, action, pipeline).action)

    closed = _trace(policy_step, compute, carry, action)
    return TracedFunction(
        closed=closed,
        inputs=[*name_leaves("state", carry), *name_leaves("prev_action", action)],
        outputs=[name for name, _ in name_leaves("next/state/action", carry.action)],
        owner=type(policy_step.module).__name__,
    )


def _trace(
    policy_step: PolicyStep, function: Callable[..., list[Any]], *args: PyTree
) -> jex_core.ClosedJaxpr:
    name = type(policy_step.module).__name__
    try:
        # Slices of keys count as reuse if the number of keys is a symbol.
        with jax.debug_key_reuse(False):
            return jax.make_jaxpr(function)(*args)
    except JaxrlError:
        raise
    except TRACING_ERRORS as error:
        raise ExportError(
            f"{name} and its connectors cannot be traced for any batch size: "
            f"{summarize_exception(error)}{locate_in_user_code(error)}; write code that does not "
            "depend on the number of observations."
        ) from error


@dataclasses.dataclass(frozen=True)
class _Unavailable:
    """Value made of keys or of an operation without a counterpart; an error once it is needed."""

    reason: str


_FROM_KEYS = _Unavailable("the keys of jax.random themselves")
_Atom: TypeAlias = "Operand | _Unavailable"


class _Flattener:
    """Conversion of a jaxpr to operations, with calls inlined.

    Args:
        owner: Name of the module's class, for error messages.
    """

    def __init__(self, owner: str) -> None:
        self.builder = ProgramBuilder()
        self.draws: list[DrawSpec] = []
        self._owner = owner

    def require(self, atom: _Atom) -> Operand:
        """Return an operand.

        Raises:
            ExportError: If it is not available.
        """
        if isinstance(atom, _Unavailable):
            raise ExportError(
                f"{self._owner} cannot be exported to NumPy or ONNX: its actions depend on "
                f"{atom.reason}, "
                "which has no counterpart there; replace it, or export with "
                "formats=('stablehlo',)."
            )
        return atom

    def flatten(
        self, jaxpr: jex_core.Jaxpr, consts: Sequence[Any], operands: Sequence[_Atom]
    ) -> list[_Atom]:
        """Add the operations of a jaxpr and return its results."""
        env: dict[jex_core.Var, _Atom] = {}
        env.update(zip(jaxpr.constvars, (np.asarray(const) for const in consts), strict=True))
        env.update(zip(jaxpr.invars, operands, strict=True))

        def read(atom: jex_core.Var | jex_core.Literal) -> _Atom:
            if isinstance(atom, jex_core.Literal):
                aval = get_aval(atom)
                return np.asarray(atom.val, aval.dtype)
            return env[atom]

        for equation in jaxpr.eqns:
            atoms = [read(atom) for atom in equation.invars]
            results = self._flatten_equation(equation, atoms)
            env.update(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _flatten_equation(self, equation: Equation, atoms: list[_Atom]) -> Sequence[_Atom]:
        name, body = equation.primitive.name, get_body(equation)
        if equation.invars and is_key(equation.invars[0]):
            spec = find_draw(equation, atoms, len(self.draws))
            if spec is not None:
                self.draws.append(spec)
                aval = get_aval(equation.outvars[0])
                return [self.builder.add_input(spec.name, aval.dtype, aval.shape)]
        if body is not None:
            return self.flatten(body.jaxpr, body.consts, atoms)
        if name == "platform_index":
            return [_find_cpu(equation.params["platforms"])]
        if name == "cond" and isinstance(atoms[0], np.ndarray):
            branches = equation.params["branches"]
            branch = branches[min(max(int(atoms[0]), 0), len(branches) - 1)]
            return self.flatten(branch.jaxpr, branch.consts, atoms[1:])
        missing = next((atom for atom in atoms if isinstance(atom, _Unavailable)), None)
        if missing is not None:
            if missing is _FROM_KEYS and not all(is_key(out) for out in equation.outvars):
                missing = _Unavailable(f"the random operation '{name}'")
            return [missing] * len(equation.outvars)
        if not is_known(name):
            return [_Unavailable(f"the operation '{name}'")] * len(equation.outvars)
        operands = [atom for atom in atoms if not isinstance(atom, _Unavailable)]
        try:
            return lower(self.builder, equation, operands)
        except ExportError as error:
            raise ExportError(
                f"{self._owner} cannot be exported to NumPy or ONNX: {error}"
            ) from error


def _find_cpu(platforms: Sequence[Sequence[str] | None]) -> np.ndarray:
    """Return the index of the branch for the CPU, whose last one is for all other platforms."""
    for index, names in enumerate(platforms):
        if names is None or "cpu" in names:
            return np.asarray(index, np.int32)
    raise ExportError(f"An operation has no form for the CPU, only for {platforms}.")
