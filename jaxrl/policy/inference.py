"""Compiled inference for external observations: all connectors and the module, on NumPy arrays."""

import dataclasses
import functools
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, cast

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax.typing import ArrayLike
from jaxtyping import Array, UInt32

from jaxrl.connectors.actions import ClipActions, RoundActions, UnsquashActions, has_box
from jaxrl.connectors.base import ActionConnector
from jaxrl.connectors.pipelines import ActionPipeline
from jaxrl.connectors.temporal import TemporalConnector
from jaxrl.core.jit import is_jit_disabled
from jaxrl.core.space_arrays import get_leaf_dtype
from jaxrl.core.spaces import map_spaces
from jaxrl.core.struct import pytree, replace, where_rows
from jaxrl.core.types import Columns, Key, Keys, PyTree
from jaxrl.errors import ConfigError, SpaceError, did_you_mean
from jaxrl.modules.rl_module import RLModule
from jaxrl.runtime.program import Program
from jaxrl.training.rollout import ActorCarry, ActorState, PolicyStep, make_env_index

BOUNDS_TOLERANCE = 1e-4
"""Tolerance for values outside a Box's bounds, relative to the bound, to allow for rounding."""


Conformer = Callable[[object], PyTree]
"""Function that validates an observation and converts it to the types of its space."""


def conform(space: gymnasium.Space[Any], obs: object, path: str = "obs") -> PyTree:
    """Validate an observation and convert it to the types of its space.

    Args:
        space: Space of the observation.
        obs: Observation.
        path: Name of the observation in error messages.

    Raises:
        SpaceError: If the observation is not in the space; names the invalid part, with the
            expected and the actual value.
    """
    return make_conformer(space, path)(obs)


def make_conformer(
    space: gymnasium.Space[Any], path: str, ignored: Collection[str] = ()
) -> Conformer:
    """Return `conform` for a fixed space, with the space-dependent work done once.

    Args:
        space: Space of the observations.
        path: Name of the observation in error messages.
        ignored: Names of parts of a Dict that are dropped where an observation has them.
    """
    match space:
        case spaces.Dict():
            return _conform_dict(space, path, frozenset(ignored))
        case spaces.Tuple():
            return _conform_tuple(space, path)
        case spaces.Box():
            return _conform_box(space, path)
        case _:
            return _conform_integers(space, path)


def _conform_dict(space: spaces.Dict, path: str, ignored: frozenset[str]) -> Conformer:
    parts = {name: make_conformer(sub, f"{path}.{name}") for name, sub in space.items()}
    names = parts.keys()

    def check(obs: object) -> PyTree:
        if not isinstance(obs, dict) or obs.keys() - ignored != names:
            raise SpaceError(f"{path} must be a dict with the keys {list(names)}, got {obs!r}.")
        return {name: part(obs[name]) for name, part in parts.items()}

    return check


def _conform_tuple(space: spaces.Tuple, path: str) -> Conformer:
    parts = [make_conformer(sub, f"{path}[{i}]") for i, sub in enumerate(space.spaces)]

    def check(obs: object) -> PyTree:
        if not isinstance(obs, (tuple, list)) or len(obs) != len(parts):
            raise SpaceError(f"{path} must be a tuple of length {len(parts)}, got {obs!r}.")
        return tuple(part(value) for part, value in zip(parts, obs, strict=True))

    return check


def _to_numeric_array(space: gymnasium.Space[Any], obs: object, path: str) -> np.ndarray:
    try:
        array = np.asarray(obs)
    except (TypeError, ValueError):
        raise SpaceError(f"{path} must be an array for {space}, got {_describe(obs)}.") from None
    if array.shape != (space.shape or ()):
        raise SpaceError(
            f"{path} has shape {array.shape}, but the observation space {space} has {space.shape}."
        )
    if array.dtype.kind not in "biuf":
        raise SpaceError(f"{path} must be numeric, got dtype {array.dtype}.")
    return array


def _describe(obs: object) -> str:
    if isinstance(obs, tuple) and len(obs) == 2 and isinstance(obs[1], dict):
        return "a tuple of an array and a dict: that is reset()'s (observation, info), of which the first is the observation"
    return f"a {type(obs).__name__} of unequal parts"


def _conform_box(space: spaces.Box, path: str) -> Conformer:
    dtype = get_leaf_dtype(space)
    is_integral = np.dtype(space.dtype).kind in "iu"
    low, high = space.low, space.high
    if is_integral and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        low, high = np.clip(low, limits.min, None), np.clip(high, None, limits.max)
    else:
        low = low - BOUNDS_TOLERANCE * np.maximum(1.0, np.abs(low))
        high = high + BOUNDS_TOLERANCE * np.maximum(1.0, np.abs(high))

    def check(obs: object) -> np.ndarray:
        array = _to_numeric_array(space, obs, path)
        is_inside = (array >= low) & (array <= high)  # False for NaN
        if not is_inside.all():
            _raise_out_of_bounds(space, array, is_inside, path)
        if is_integral and array.dtype.kind == "f" and (is_cut := array != np.floor(array)).any():
            index = _find_first(is_cut)
            raise SpaceError(
                f"{path}{list(index)} is {array[index]!s}, and {space} has whole numbers alone: pass "
                "the observation as the environment returns it."
            )
        return array.astype(dtype, copy=False)

    return check


def _conform_integers(space: gymnasium.Space[Any], path: str) -> Conformer:
    dtype = get_leaf_dtype(space)

    def check(obs: object) -> np.ndarray:
        array = _to_numeric_array(space, obs, path)
        integers = array.astype(np.int64)
        if not (np.all(integers == array) and space.contains(_to_native(space, integers))):
            raise SpaceError(f"{path} is {obs!r}, which is not in {space}.")
        return integers.astype(dtype)

    return check


def _to_native(space: gymnasium.Space[Any], value: np.ndarray) -> np.ndarray | int:
    return value.astype(space.dtype) if space.shape else int(value)


def _raise_out_of_bounds(
    space: spaces.Box, array: np.ndarray, is_inside: np.ndarray, path: str
) -> NoReturn:
    if np.any(np.isnan(array)):
        raise SpaceError(f"{path} has NaN at {_find_first(np.isnan(array))}.")
    index = _find_first(~is_inside)
    raise SpaceError(
        f"{path}{list(index)} is {array[index]:g}, outside its space's bounds "
        f"[{space.low[index]:g}, {space.high[index]:g}]."
    )


def _find_first(condition: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(condition)[0])


IGNORED_INPUTS = ("info", "timestep", "episode", "episodes")
"""Arguments of RLlib's methods that nothing reads, as in most of RLlib's policies."""
OPTIONS = (
    *("clip_action", "explore", "full_fetch", "input_dict", "policy_id", "prev_action"),
    *("prev_reward", "state", "unsquash_action"),
)
"""Other arguments of these methods, for suggestions."""

ActionResult = tuple[PyTree, PyTree, dict[str, Any]]
"""Environment actions, module state after them, and module outputs.

The last two are None and empty, respectively, unless requested.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActionRequest:
    """Request for the actions of one or more environments.

    Args:
        observations: Observations, unbatched.
        state: State returned for the previous observations, batched; None at episode starts.
        is_first: Whether each observation starts an episode, so that its state is not read; None
            if all do or, with a state, if none does.
        is_conformed: Whether the observations were returned by `Inference.conform`.
        prev_action: Environment actions of the previous step; None for those of `state`.
        prev_reward: Rewards of the previous step.
        explore: Whether to sample actions; False takes the mode of the distribution.
        unsquash: Whether to unsquash actions, see `adjust_pipeline`.
        clip: Whether to clip actions, see `adjust_pipeline`.
        should_return_state: Whether to return the state.
        should_return_outputs: Whether to return the module's outputs.
    """

    observations: list[Any]
    state: PyTree = None
    is_first: np.ndarray | None = None
    is_conformed: bool = False
    prev_action: Sequence[Any] | None = None
    prev_reward: Sequence[Any] | None = None
    explore: bool | None = None
    unsquash: bool | None = None
    clip: bool | None = None
    should_return_state: bool = False
    should_return_outputs: bool = False

    @staticmethod
    def from_single(
        obs: object, state: PyTree, past: Mapping[str, Any], **options: Any
    ) -> "ActionRequest":
        """Return the request for one observation.

        Args:
            obs: Observation.
            state: State returned for the previous observation, unbatched.
            past: Previous action and reward, unbatched.
            **options: Other fields of the request.
        """
        past = {name: None if value is None else [value] for name, value in past.items()}
        batch = None if state is None else stack_trees([state])
        return ActionRequest(observations=[obs], state=batch, **past, **options)

    @staticmethod
    def from_batch(
        observations: Sequence[Any] | Mapping[Any, Any],
        state: PyTree,
        past: Mapping[str, Any],
        **options: Any,
    ) -> "ActionRequest":
        """Return the request for several observations.

        Args:
            observations: Sequence of observations, or a mapping by name.
            state: State returned for the previous observations, by name if the observations are,
                else batched.
            past: Previous actions and rewards, likewise.
            **options: Other fields of the request.
        """
        if not isinstance(observations, Mapping):
            if not isinstance(observations, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigError(
                    "compute_actions needs a sequence of observations, or a mapping from names to "
                    f"them, got {observations!r}."
                )
            return ActionRequest(observations=list(observations), state=state, **past, **options)
        names = list(observations)
        for argument, value in {"state": state, **past}.items():
            _check_names(argument, value, names)
        batch = None if state is None else stack_trees([state[name] for name in names])
        past = {
            argument: None if value is None else [value[name] for name in names]
            for argument, value in past.items()
        }
        rows = [observations[name] for name in names]
        return ActionRequest(observations=rows, state=batch, **past, **options)


def _check_names(argument: str, value: object, names: Sequence[Hashable]) -> None:
    """Raise ConfigError unless a value by name, if there is one, has all names of observations."""
    if value is None:
        return
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"compute_actions got observations by name ({', '.join(map(repr, names))}), and "
            f"{argument} of type {type(value).__name__}: give {argument} by the same names."
        )
    given = cast("Mapping[object, object]", value)
    missing = next((name for name in names if name not in given), None)
    if missing is not None:
        raise ConfigError(
            f"compute_actions got an observation of {missing!r}, for which {argument} has nothing: give "
            f"it one, or leave {argument} out where all episodes begin."
        )


def check_inputs(method: str, inputs: Mapping[str, Any], read_inputs: Collection[str] = ()) -> None:
    """Raise if an input of RLlib's has a value but no connector reads it.

    Args:
        method: Name of the called method, for the error message.
        inputs: Inputs by name.
        read_inputs: Names of the inputs that a connector of this run reads.

    Raises:
        ConfigError: If an unread input is not None.
    """
    for name, value in inputs.items():
        if value is not None and name not in read_inputs:
            raise ConfigError(
                f"{method}({name}={value!r}) has no effect here: a module reads the observation "
                f"and its state; leave {name} out."
            )


def check_names(method: str, ignored: Collection[str]) -> None:
    """Raise ConfigError if one of the names is no argument that RLlib's methods ignore, too."""
    for name in ignored:
        if name not in IGNORED_INPUTS:
            hint = did_you_mean(name, (*IGNORED_INPUTS, *OPTIONS))
            raise ConfigError(f"{method}() has no argument '{name}'.{hint}")


_INPUTS = {
    "prev_action": ("prev_actions", "prev_action"),
    "prev_reward": ("prev_rewards", "prev_reward"),
    "state": ("state_in", "state"),
}
"""Names of inputs in the dictionaries that RLlib's methods take."""


def read_input_dict(
    method: str, obs: object, inputs: Mapping[str, Any], input_dict: Mapping[str, Any] | None
) -> tuple[Any, dict[str, Any]]:
    """Return an observation and other inputs, those of RLlib's `input_dict` where none is given.

    Args:
        method: Name of the called method, for the error message.
        obs: Observation; None for that of the dictionary.
        inputs: `state`, `prev_action` and `prev_reward`.
        input_dict: Dictionary with "obs" and, by RLlib's names of columns, the other inputs.

    Raises:
        ConfigError: If there is no observation.
    """
    given = {} if input_dict is None else input_dict
    obs = given.get("obs") if obs is None else obs
    if obs is None:
        raise ConfigError(f"{method}() needs an observation, or an input_dict with 'obs'.")
    filled = dict(inputs)
    for name, columns in _INPUTS.items():
        if filled.get(name) is None:
            filled[name] = next((given[column] for column in columns if column in given), None)
    return obs, filled


def stack_trees(trees: Sequence[PyTree]) -> PyTree:
    """Stack trees of the same structure along a new leading axis."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def take_row(batch: PyTree, index: int) -> PyTree:
    """Return one entry of a batch."""
    return map_tree(lambda leaf: leaf[index], batch)


def map_tree(fn: Callable[[Any], Any], tree: PyTree) -> PyTree:
    """Map a tree like `jax.tree.map`, but in a tenth of the time if it is a single array."""
    return fn(tree) if isinstance(tree, np.ndarray | jax.Array) else jax.tree.map(fn, tree)


def split_by_name(result: ActionResult, names: Sequence[Hashable] | None) -> PyTree:
    """Convert each part of a result to a dictionary of its rows; return it as is without names."""
    if names is None:
        return result
    return tuple({name: take_row(part, i) for i, name in enumerate(names)} for part in result)


@pytree
class ActInputs:
    """Inputs of a forward pass that a caller has, `[B, ...]`.

    `prev_action` is the environment action that was executed, None for the computed one.
    """

    obs: PyTree
    carry: ActorCarry
    is_first: Any  # a NumPy array outside of the program
    prev_action: PyTree


def act(
    policy_step: PolicyStep,
    pipeline: ActionPipeline,
    actor: ActorState,
    inputs: ActInputs,
    keys: Keys,
    explore: bool,
) -> tuple[PyTree, ActorCarry, dict[str, Any]]:
    """Compute environment actions `[B, ...]`, the carry after them, and the module's outputs.

    The whole pipeline from observation to action, for compiled calls and for exports.

    Args:
        policy_step: Module and connectors of the run.
        pipeline: Conversion of the module's actions.
        actor: Parameters and connector statistics.
        inputs: Observations and what belongs to them.
        keys: Typed keys `[B]`, which are consumed.
        explore: Whether to sample actions.
    """
    index = make_env_index(inputs.is_first.shape[0])
    carry = set_previous_action(inputs.carry, inputs.prev_action, pipeline)
    draws = policy_step.module.draw(keys)
    out = dict(policy_step.act(actor, inputs.obs, carry, inputs.is_first, index, draws, explore))
    carry_out: ActorCarry = out.pop(Columns.STATE_OUT)
    return pipeline(out[Columns.ACTIONS]), carry_out, out


class Inference:
    """Compiled forward passes of a module, connectors included.

    Observations lack the parts that `policy_step` acts without, or have them in vain.

    Args:
        policy_step: Module and connectors of the run.
        max_retraces: Maximum number of retraces, see `Program`; another number of observations
            requires a retrace.
        jit: Whether to compile; False runs operation by operation.

    Attributes:
        module_calls: Compiled calls of the module alone, by its method.
    """

    def __init__(
        self,
        policy_step: PolicyStep,
        *,
        max_retraces: int | None = None,
        jit: bool = True,
    ) -> None:
        self._policy_step = policy_step
        self._conform = make_conformer(policy_step.observation_space, "obs", self.ignored_parts)
        self._max_retraces = max_retraces
        self._jit = jit
        self._programs: dict[tuple[bool, bool | None, bool | None, bool], Program] = {}
        self._executables: dict[
            tuple[Any, ...], tuple[weakref.ref[ActorState], Callable[..., ActionResult]]
        ] = {}
        """Latest actor and the executable for it, by program and shapes."""
        self._initial_carries: dict[int, ActorCarry] = {}
        self.module_calls: dict[str, Callable[..., dict[str, Any]]] = {}

    @property
    def module(self) -> RLModule:
        """Module of the run."""
        return self._policy_step.module

    @property
    def policy_step(self) -> PolicyStep:
        """Module and connectors of the run."""
        return self._policy_step

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """Space of the observations, without the parts that acting ignores."""
        return self._policy_step.observation_space

    @property
    def ignored_parts(self) -> tuple[str, ...]:
        """Names of the parts of the environment's Dict observation that acting ignores."""
        return self._policy_step.absent_names

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """Action space of the environment."""
        return self._policy_step.action_pipeline.space

    def conform(self, obs: object) -> PyTree:
        """Validate an observation and convert it to the types of its space.

        Raises:
            SpaceError: If it is not in the space.
        """
        return self._conform(obs)

    def conform_action(self, action: object) -> PyTree:
        """Validate an environment action of the past and convert it to the types of its space.

        Raises:
            SpaceError: If it does not fit the space; that of a Box may be out of bounds.
        """
        return self._conform_action(action)

    @property
    def programs(self) -> list[Program]:
        """Programs, one per requested combination of options."""
        return list(self._programs.values())

    def _get_program(self, request: ActionRequest) -> Program:
        options = _get_options(request)
        if options not in self._programs:
            pipeline = adjust_pipeline(
                self._policy_step.action_pipeline, request.unsquash, request.clip
            )
            name = f"compute_actions_{'sample' if request.explore else 'mode'}"
            name += "" if request.unsquash is None else f"_unsquash_{request.unsquash}"
            name += "" if request.clip is None else f"_clip_{request.clip}"
            name += "" if request.prev_action is None else "_after_action"
            self._programs[options] = Program(
                name,
                self._make_function(bool(request.explore), pipeline),
                max_retraces=self._max_retraces,
                low_latency=True,
                enabled=self._jit,
            )
        return self._programs[options]

    def _make_function(
        self, explore: bool, pipeline: ActionPipeline
    ) -> Callable[..., ActionResult]:
        policy_step = self._policy_step

        def compute(
            actor: ActorState, inputs: ActInputs, base_key: Key, number: UInt32[Array, ""]
        ) -> ActionResult:
            keys = make_row_keys(base_key, number, inputs.is_first.shape[0])
            actions, carry, out = act(policy_step, pipeline, actor, inputs, keys, explore)
            return actions, self._to_state(carry), out

        return compute

    def __call__(
        self,
        get_actor_state: Callable[[], ActorState],
        request: ActionRequest,
        base_key: Key,
        number: int,
    ) -> ActionResult:
        """Compute the requested actions, as NumPy arrays with a leading batch axis.

        Args:
            get_actor_state: Function that returns parameters and connector statistics, called after
                the observations were validated. Its result is never mutated; changed values are a
                new object.
            request: Request, whose observations are validated against the space.
            base_key: Base key from which the key of this call is folded.
            number: Number of this call, which must be unique for the base key.

        Raises:
            SpaceError: If an observation, or a previous action, is not in its space.
            ConfigError: If an input that a connector needs is missing, or one has no effect.
        """
        if not request.observations:
            raise SpaceError("The observations are empty; pass at least one.")
        inputs = self._make_inputs(request)
        args = (get_actor_state(), inputs, base_key, np.uint32(number))
        actions, state, out = self._get_executable(request, args)(*args)
        return (
            map_tree(np.asarray, actions),
            jax.tree.map(np.asarray, state) if request.should_return_state else None,
            jax.tree.map(np.asarray, out) if request.should_return_outputs else {},
        )

    def _get_executable(
        self, request: ActionRequest, args: tuple[Any, ...]
    ) -> Callable[..., ActionResult]:
        """Return the executable for a request, cached for the same actor and shapes.

        The cache key has the shapes of the state because, unlike the other shapes, they do not
        follow from the space and the number of observations.
        """
        leaves, structure = jax.tree.flatten(args[1].carry)
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        count, is_eager = len(request.observations), is_jit_disabled()
        cache_key = (*_get_options(request), count, structure, shapes, is_eager)
        cached = self._executables.get(cache_key)
        if cached is None or cached[0]() is not args[0]:
            cached = weakref.ref(args[0]), self._get_program(request).get_executable(*args)
            self._executables[cache_key] = cached
        return cached[1]

    def get_read_inputs(self) -> Collection[str]:
        """Return which of `prev_action` and `prev_reward` some connector reads."""
        return self._read_inputs

    def select_read(self, past: Mapping[str, Any]) -> dict[str, Any]:
        """Return the previous actions and rewards with None for those that no connector reads."""
        read = self._read_inputs
        return {name: value if name in read else None for name, value in past.items()}

    def can_read_prev_action(self) -> bool:
        """Return whether a connector reads previous actions, and other ones can be converted."""
        pipeline = self._policy_step.action_pipeline
        has_inverses = all(type(c).inverse is not ActionConnector.inverse for c in pipeline)
        return "prev_action" in self._read_inputs and has_inverses

    @functools.cached_property
    def _read_inputs(self) -> frozenset[str]:
        temporal = self._temporal
        read = {"prev_action"} if any(c.reads_action for c in temporal) else set[str]()
        return frozenset(
            read | ({"prev_reward"} if any(c.reads_reward for c in temporal) else set())
        )

    @functools.cached_property
    def _temporal(self) -> tuple[TemporalConnector, ...]:
        """Connectors with a state per episode."""
        return self._policy_step.obs_pipeline.temporal

    @functools.cached_property
    def _stateful_names(self) -> tuple[str, ...]:
        """Names of the connectors and the module with a state per episode."""
        module = self._policy_step.module
        names = [c.name for c in self._temporal]
        return (*names, type(module).__name__) if module.is_stateful else tuple(names)

    @functools.cached_property
    def _conform_action(self) -> Callable[[Any], PyTree]:
        """Validation of a previous action; that of a Box may be out of bounds."""
        unbounded = map_spaces(
            lambda leaf: (
                spaces.Box(-np.inf, np.inf, leaf.shape, leaf.dtype.type)
                if isinstance(leaf, spaces.Box)
                else leaf
            ),
            self._policy_step.action_pipeline.space,
        )
        return make_conformer(unbounded, "prev_action")

    def initial_state(self) -> PyTree:
        """Return the state at an episode's start, `[1, ...]`."""
        return self._to_state(self._policy_step.initial_carry(1))

    def _to_state(self, carry: ActorCarry) -> PyTree:
        """Return the part of a carry that callers keep from one observation to the next."""
        return carry if self._temporal else carry.module

    def _get_initial_carry(self, num: int) -> ActorCarry:
        """Return the carry at the start of `num` episodes, cached by `num`."""
        if num not in self._initial_carries:
            carry = self._policy_step.initial_carry(num)
            self._initial_carries[num] = jax.tree.map(np.asarray, carry)
        return self._initial_carries[num]

    def _make_inputs(self, request: ActionRequest) -> ActInputs:
        num = len(request.observations)
        rows = request.observations
        obs = _stack(rows if request.is_conformed else [self._conform(row) for row in rows])
        is_first = request.state is None
        carry = self._get_initial_carry(num)
        self._check_state_is_kept(request)
        if self._temporal:
            self._check_temporal_inputs(request)
            self._check_state_fits(request)
            carry = carry if is_first else jax.tree.map(_canonicalize, request.state)
            if request.prev_reward is not None:
                reward = np.asarray(list(request.prev_reward), np.float32)
                if reward.shape != (num,):
                    raise SpaceError(
                        f"prev_reward must be one number per observation, got shape {reward.shape} "
                        f"for {num}."
                    )
                carry = replace(carry, reward=reward)
        elif not is_first:
            self._check_state_fits(request)
            carry = replace(carry, module=jax.tree.map(_canonicalize, request.state))
        actions = None
        if request.prev_action is not None:
            actions = _stack([self._conform_action(action) for action in request.prev_action])
        starts = np.full(num, is_first) if request.is_first is None else request.is_first
        if request.is_first is not None and not is_first:
            carry = _where_rows(starts, self._get_initial_carry(num), carry)
        return ActInputs(obs=obs, carry=carry, is_first=starts, prev_action=actions)

    def _check_state_is_kept(self, request: ActionRequest) -> None:
        """Raise ConfigError if a stateful module or connector is called without its state."""
        names = self._stateful_names
        if names and request.state is None and not request.should_return_state:
            raise ConfigError(
                f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} stateful: use "
                "get_policy(), which keeps the state of the episode, or call with full_fetch=True "
                "and pass the returned state along with the next observation."
            )

    def _check_state_fits(self, request: ActionRequest) -> None:
        """Raise ConfigError if a state has another structure or other shapes than the module's."""
        if request.state is None:
            return
        expected = self._to_state(self._get_initial_carry(len(request.observations)))
        wanted, got = jax.tree.leaves(expected), jax.tree.leaves(request.state)
        same = not wanted or jax.tree.structure(request.state) == jax.tree.structure(expected)
        if same and [np.shape(leaf) for leaf in got] == [leaf.shape for leaf in wanted]:
            return
        name = type(self.module).__name__
        needs = (
            f"of {name} has shapes {_get_shapes(expected)}" if wanted else f"is not read by {name}"
        )
        raise ConfigError(
            f"state {needs}, got shapes {_get_shapes(request.state)!s:.200}: pass the one that "
            "full_fetch=True returned for the previous observation, or leave it out."
        )

    def _check_temporal_inputs(self, request: ActionRequest) -> None:
        """Raise ConfigError if the inputs of temporal connectors are missing or inconsistent."""
        names = ", ".join(c.name for c in self._temporal)
        if request.state is None:
            for name in ("prev_action", "prev_reward"):
                if vars(request)[name] is not None:
                    raise ConfigError(
                        f"{name} has no effect without a state, which means the start of an "
                        "episode: pass the state that full_fetch=True returned for the previous "
                        "observation."
                    )
            return
        if not isinstance(request.state, ActorCarry):
            raise ConfigError(
                f"state must be the one that full_fetch=True returned, with the state of {names}, "
                f"got {type(request.state).__name__}."
            )
        if "prev_reward" in self.get_read_inputs() and request.prev_reward is None:
            raise ConfigError(
                f"{names} reads the reward of the previous step: pass prev_reward along with state."
            )
        if request.prev_action is not None:
            for connector in self._policy_step.action_pipeline:
                if type(connector).inverse is ActionConnector.inverse:
                    raise ConfigError(
                        f"prev_action cannot be converted back by {connector.name}, which has no "
                        "inverse; leave prev_action out if it is the action that was computed, "
                        "which the state contains."
                    )


def _get_shapes(state: PyTree) -> PyTree:
    """Return the shape of each leaf of a state `[B, ...]`, without the batch axis."""
    return jax.tree.map(lambda leaf: np.shape(leaf)[1:], state)


def make_row_keys(base_key: Key, number: int | np.uint32 | UInt32[Array, ""], num: int) -> Keys:
    """Return the keys `[num]` of a call: one per row, none of which another call has.

    Args:
        base_key: Key that calls share.
        number: Number of the call.
        num: Number of rows.
    """
    return jax.random.split(jax.random.fold_in(base_key, number), num)


def set_previous_action(
    carry: ActorCarry, prev_action: PyTree, pipeline: ActionPipeline
) -> ActorCarry:
    """Set a carry's previous action to the one that the environment executed.

    Args:
        carry: Carry with the action that was computed.
        prev_action: Environment action that was executed; None for the computed one.
        pipeline: Action pipeline, whose inverse converts environment actions.
    """
    if prev_action is None:
        return carry
    computed = pipeline(carry.action)
    is_same = jnp.stack(
        [
            jnp.isclose(a, b, rtol=BOUNDS_TOLERANCE, atol=BOUNDS_TOLERANCE).all(
                axis=tuple(range(1, a.ndim))
            )
            for a, b in zip(jax.tree.leaves(computed), jax.tree.leaves(prev_action), strict=True)
        ]
    ).all(axis=0)
    other = jax.tree.map(
        lambda new, old: new.astype(old.dtype), pipeline.inverse(prev_action), carry.action
    )
    return replace(carry, action=where_rows(is_same, carry.action, other))


def _get_options(request: ActionRequest) -> tuple[bool, bool | None, bool | None, bool]:
    """Return the options of a request that require a separate program."""
    has_action = request.prev_action is not None
    return bool(request.explore), request.unsquash, request.clip, has_action


def _stack(trees: Sequence[PyTree]) -> PyTree:
    if len(trees) == 1:
        return map_tree(lambda leaf: leaf[None], trees[0])
    return stack_trees(trees)


def _where_rows(condition: np.ndarray, yes: PyTree, no: PyTree) -> PyTree:
    """Select rows of NumPy arrays, as `where_rows` does in a program."""
    return jax.tree.map(
        lambda a, b: np.where(condition.reshape(-1, *[1] * (np.ndim(a) - 1)), a, b), yes, no
    )


def _canonicalize(leaf: ArrayLike) -> np.ndarray:
    """Convert a leaf of a caller's state to JAX's canonical dtype (at most 32 bits by default)."""
    array = np.asarray(leaf)
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def adjust_pipeline(
    pipeline: ActionPipeline, unsquash: bool | None, clip: bool | None
) -> ActionPipeline:
    """Return the pipeline with unsquashing and clipping of Box actions switched on or off.

    An action is unsquashed or else, if requested, clipped. User connectors are always kept.

    Args:
        pipeline: Action pipeline of the run.
        unsquash: Whether to unsquash; None is as configured.
        clip: Whether to clip actions that are not unsquashed; None is as configured.

    Raises:
        ConfigError: If `unsquash` is True but the module's actions are not squashed.
    """
    space = pipeline.space
    if not has_box(space) or (unsquash is None and clip is None):
        return pipeline
    is_squashed = any(isinstance(c, UnsquashActions) for c in pipeline.connectors)
    is_clipped = any(isinstance(c, ClipActions) for c in pipeline.connectors)
    if unsquash and not is_squashed:
        raise ConfigError(
            "unsquash_action=True has nothing to unsquash: this module acts in the environment's "
            "own range (normalize_actions=False, or no finite bound); leave it out."
        )
    kept: list[ActionConnector] = []
    for connector in pipeline.connectors:
        if isinstance(connector, UnsquashActions | ClipActions):
            unsquashes = isinstance(connector, UnsquashActions) and unsquash is not False
            if not unsquashes and not (clip or (clip is None and is_clipped)):
                continue
            connector = connector if unsquashes else ClipActions(connector.space)
        if isinstance(connector, RoundActions) and is_squashed and unsquash is False and not clip:
            continue
        kept.append(connector)
    if clip and not (is_squashed or is_clipped):
        kept.append(ClipActions(space))
    return ActionPipeline(tuple(kept), space)
