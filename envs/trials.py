"""Trials: several episodes of one task as one, for policies that learn a task by memory (RL²)."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax.core import Tracer
from jaxtyping import Array, Bool, Int

from jaxrl.core.spaces import is_same_space
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Key, PyTree, TimeStep
from jaxrl.envs.base import JaxEnv
from jaxrl.envs.params import check_count, get_param, override_params, param_names
from jaxrl.envs.registry import MadeEnv, make_any
from jaxrl.envs.wrappers import HasTimeLimit
from jaxrl.errors import TRACING_ERRORS, EnvError, UnknownNameError, summarize_exception

if TYPE_CHECKING:
    from jaxrl.envs.registry import EnvSpec

IS_FIRST, OBSERVATION = "is_first", "observation"
"""Parts of the observation: whether an episode begins, and the environment's own unless a Dict."""

Task: TypeAlias = Mapping[str, Any]
"""Values of parameters by name."""
Tasks: TypeAlias = Mapping[str, Sequence[Any]] | Sequence[Task] | Callable[[Key], Task]
"""Ranges of parameters by name, a list of tasks, or a function of a key that draws one."""


@pytree
class TrialsState:
    """State of the episode, values of the task's parameters, and how many episodes have ended."""

    inner: PyTree
    task: dict[str, PyTree]
    num_ended: Int[Array, "*batch"]


class Trials(JaxEnv[TrialsState, Any]):
    """Wrapper that plays several episodes of one task as a single episode, a trial.

    With a policy that has a memory and observes its previous actions and rewards, this is RL² (Duan
    et al. 2016, https://arxiv.org/abs/1611.02779): the memory outlasts the ends of a trial's episodes
    and is reset with the next trial, so that what is learned of the task in one episode pays in the
    next, by the memory alone and without a gradient. These trials are no runs of a sweep, which Ray
    Tune calls trials too.

    Each trial has a task, drawn when it begins: values of the environment's parameters. An episode
    that terminates or is truncated is followed by the next one of the same task, whose first
    observation is the successor's: nothing is bootstrapped there, and rewards of later episodes are
    credited to earlier ones. The last episode's end is the trial's, terminated or truncated as it is:
    after a time limit, values bootstrap from the final observation, as they do without trials, and a
    trial of one episode is the environment itself with another task in each.

    The observation says where an episode begins, by 1 instead of 0: as the last element of a vector,
    as the part `"is_first"` of a Dict, or in a Dict with it and `"observation"`.

    The parameters are the environment's own, with `[low, high]` or the values of all tasks in the place
    of those that vary. They may be changed by a curriculum, or `set_env_params`, to others of this shape.

        PPOConfig().environment(Trials, env_config={"env": "Pendulum-v1", "tasks": {"mass": [0.5, 2.0]}})
    """

    def __init__(
        self,
        env: "EnvSpec",
        tasks: Tasks,
        num_episodes: int = 2,
        env_config: Mapping[str, Any] | None = None,
        max_episode_steps: int | None = None,
    ) -> None:
        """Wrap an environment.

        Args:
            env: JAX environment: an id, a class path, a class, an instance or a creator.
            tasks: Distribution of the tasks: `{name: [low, high]}` draws each of these parameters
                uniformly (integers with both ends), `[{name: value, ...}, ...]` draws one of the
                tasks, and a function draws the values by name with the key that it is given. A
                parameter that a task does not name has its value from `env_config`. No task may
                change a space.
            num_episodes: Number of episodes of a trial.
            env_config: Parameters and arguments of the environment.
            max_episode_steps: Time limit of an episode, in steps; None for the environment's own.

        Raises:
            EnvError: If the environment is not written in JAX or has several agents, or the tasks do
                not fit its parameters, or change a space.
            UnknownNameError: If there is no such environment or parameter.
        """
        made = make_any(env, env_config, max_episode_steps=max_episode_steps)
        if not isinstance(made, MadeEnv):
            kind = "has several agents" if made.is_jax else "is stepped on the host"
            raise EnvError(
                f"Trials(env=...) takes an environment of one agent that is written in JAX, and {made.id} "
                f"{kind}."
            )
        self.env, self.num_episodes = made.env, check_count("num_episodes", num_episodes)
        self._id = made.id
        self._tasks = _parse_tasks(made, tasks)
        self._params = self._tasks.widen(made.params)
        self.name = f"Trials({made.env.name})"
        self.reset_mode = made.env.reset_mode
        self.render_fps = made.env.render_fps
        limit = made.max_episode_steps
        if limit is not None and not isinstance(made.env, HasTimeLimit):
            self.max_episode_steps = limit * self.num_episodes
        space = self._get_space("observation_space", self._params)
        self._is_vector = _is_vector(space)
        self.get_spaces(self._params)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trials) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash((Trials, self._identity))

    @property
    def _identity(self) -> tuple[object, ...]:
        return self.env, self._tasks, self.num_episodes, self._id

    @property
    def default_params(self) -> PyTree:
        return self._params

    def observation_space(self, params: PyTree) -> gymnasium.Space[Any]:
        space = self._get_space("observation_space", params)
        flag = spaces.Box(0.0, 1.0, (1,), np.float32)
        if isinstance(space, spaces.Dict):
            if IS_FIRST in space.spaces:
                raise EnvError(
                    f"Trials adds {IS_FIRST!r} to the observation, which {self._id} has."
                )
            return spaces.Dict({**space.spaces, IS_FIRST: flag})
        if not _is_vector(space):
            return spaces.Dict({OBSERVATION: space, IS_FIRST: flag})
        assert isinstance(space, spaces.Box)
        low, high = (
            np.append(x.astype(np.float32), y) for x, y in ((space.low, 0), (space.high, 1))
        )
        return spaces.Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)

    def action_space(self, params: PyTree) -> gymnasium.Space[Any]:
        return self._get_space("action_space", params)

    def reset(self, key: Key, params: PyTree) -> tuple[TrialsState, PyTree]:
        task_key, reset_key = jax.random.split(key)
        task = self._tasks.draw(task_key, params)
        inner, obs = self.env.reset(reset_key, _set_params(params, task))
        state = TrialsState(inner=inner, task=task, num_ended=jnp.zeros((), jnp.int32))
        return state, self._observe(obs, jnp.ones((), bool))

    def step(
        self, key: Key, state: TrialsState, action: PyTree, params: PyTree
    ) -> tuple[TrialsState, TimeStep]:
        """Take a step; where an episode ends before the last one, the next one begins."""
        step_key, reset_key = jax.random.split(key)
        own = _set_params(params, state.task)
        inner, step = self.env.step(step_key, state.inner, action, own)
        ended = jnp.asarray(step.terminated | step.truncated)
        num_ended = state.num_ended + ended.astype(jnp.int32)
        is_over = ended & (num_ended >= self.num_episodes)
        begins = ended & ~is_over
        inner, obs = self._begin_where(begins, reset_key, (inner, step.obs), own)
        return TrialsState(inner=inner, task=state.task, num_ended=num_ended), replace(
            step,
            obs=self._observe(obs, begins),
            terminated=is_over & step.terminated,
            truncated=is_over & step.truncated,
        )

    def render(self, state: TrialsState, params: PyTree) -> np.ndarray:
        return self.env.render(state.inner, _set_params(params, state.task))

    def _begin_where(
        self, begins: Bool[Array, ""], key: Key, current: tuple[PyTree, PyTree], params: PyTree
    ) -> tuple[PyTree, PyTree]:
        """Return the state and the observation, those of a new episode where one begins."""
        if self.reset_mode == "every_step":
            fresh = self.env.reset(key, params)
            return jax.tree.map(lambda new, old: jnp.where(begins, new, old), fresh, current)
        data, impl = jax.random.key_data(key), jax.random.key_impl(key)

        # Of many copies, a loop runs where one of them begins an episode, and a branch always.
        def body(loop: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
            del loop
            key = jax.random.wrap_key_data(data, impl=impl)
            return jnp.zeros((), bool), self.env.reset(key, params)

        return jax.lax.while_loop(lambda loop: loop[0], body, (begins, current))[1]

    def _observe(self, obs: PyTree, is_first: Bool[Array, ""]) -> PyTree:
        flag = is_first.astype(jnp.float32)[None]
        if isinstance(obs, dict):
            return {**obs, IS_FIRST: flag}
        if not self._is_vector:
            return {OBSERVATION: obs, IS_FIRST: flag}
        return jnp.concatenate([jnp.asarray(obs).astype(jnp.float32), flag])

    def _get_space(self, name: str, params: PyTree) -> gymnasium.Space[Any]:
        """Return a space, which must be the same for all tasks."""
        first: gymnasium.Space[Any] | None = None
        self._tasks.check(params)
        for one in self._tasks.list_params(params):
            space = getattr(self.env, name)(one)
            if first is not None and not is_same_space(space, first):
                names = ", ".join(self._tasks.names)
                raise EnvError(
                    f"tasks change the {name} of {self._id} ({names}): {first} and {space}; "
                    "vary parameters that no space depends on."
                )
            first = space
        assert first is not None
        return first


# --- distributions of tasks ---


@dataclasses.dataclass(frozen=True)
class _Ranges:
    """Ranges `[low, high]` of parameters; `bounds` are not part of the program."""

    names: tuple[str, ...]
    bounds: dict[str, np.ndarray] = dataclasses.field(compare=False)

    def widen(self, params: PyTree) -> PyTree:
        """Return the parameters with the ranges."""
        return _set_params(params, self.bounds)

    def check(self, params: PyTree) -> None:
        """Raise EnvError if a range is known and empty."""
        for name in self.names:
            value = get_param(params, name)
            if not isinstance(value, Tracer):
                low, high = np.asarray(value)
                _check_order(name, low, high)

    def list_params(self, params: PyTree) -> Iterable[PyTree]:
        """Yield the parameters of the corners at which one or all of the ranges are at their end."""
        ends = [[0] * len(self.names), [1] * len(self.names)]
        ends += [[int(i == j) for j in range(len(self.names))] for i in range(len(self.names))]
        for corner in ends:
            pairs = zip(self.names, corner, strict=True)
            yield _set_params(params, {name: get_param(params, name)[i] for name, i in pairs})

    def draw(self, key: Key, params: PyTree) -> dict[str, PyTree]:
        """Draw a task. Consumes the key."""
        keys = jax.random.split(key, len(self.names))
        drawn: dict[str, PyTree] = {}
        for name, own in zip(self.names, keys, strict=True):
            low, high = (jnp.asarray(x) for x in get_param(params, name))
            if jnp.issubdtype(low.dtype, jnp.integer):
                drawn[name] = jax.random.randint(own, low.shape, low, high + 1, low.dtype)
            else:
                drawn[name] = jax.random.uniform(own, low.shape, low.dtype, low, high)
        return drawn


@dataclasses.dataclass(frozen=True)
class _Choices:
    """A list of tasks; `values`, `[number, ...]` by name, are not part of the program."""

    names: tuple[str, ...]
    number: int
    values: dict[str, np.ndarray] = dataclasses.field(compare=False)

    def widen(self, params: PyTree) -> PyTree:
        """Return the parameters with the values of all tasks."""
        return _set_params(params, self.values)

    def check(self, params: PyTree) -> None:
        """Do nothing: any values are tasks."""

    def list_params(self, params: PyTree) -> Iterable[PyTree]:
        """Yield the parameters of each task."""
        for i in range(self.number):
            yield self._pick(params, i)

    def draw(self, key: Key, params: PyTree) -> dict[str, PyTree]:
        """Draw a task. Consumes the key."""
        index = jax.random.randint(key, (), 0, self.number, jnp.int32)
        return {name: jnp.asarray(get_param(params, name))[index] for name in self.names}

    def _pick(self, params: PyTree, i: int) -> PyTree:
        return _set_params(params, {name: get_param(params, name)[i] for name in self.names})


@dataclasses.dataclass(frozen=True)
class _Function:
    """A function of a key that draws a task."""

    names: tuple[str, ...]
    function: Callable[[Key], Task]

    def widen(self, params: PyTree) -> PyTree:
        """Return the parameters as they are."""
        return params

    def check(self, params: PyTree) -> None:
        """Do nothing: the tasks are the function's."""

    def list_params(self, params: PyTree) -> Iterable[PyTree]:
        """Yield the parameters without a task."""
        yield params

    def draw(self, key: Key, params: PyTree) -> dict[str, PyTree]:
        """Draw a task. Consumes the key."""
        values = self.function(key)
        return {
            name: jnp.asarray(values[name]).astype(jnp.asarray(get_param(params, name)).dtype)
            for name in self.names
        }


_AnyTasks: TypeAlias = _Ranges | _Choices | _Function
_FORMS = (
    "ranges by name, {'mass': [0.5, 2.0]}, a list of tasks, [{'mass': 0.5}, {'mass': 2.0}], or a "
    "function that draws a task with a key"
)


def _parse_tasks(made: MadeEnv, tasks: object) -> _AnyTasks:
    """Check a distribution of tasks against an environment's parameters.

    Raises:
        EnvError: If it has none of the forms, or a value does not fit.
        UnknownNameError: If there is no such parameter.
    """
    if callable(tasks):
        return _parse_function(made, cast("Callable[[Key], Task]", tasks))
    if isinstance(tasks, Mapping) and tasks:
        return _parse_ranges(made, cast("Mapping[str, Any]", tasks))
    listed = cast("Sequence[Task]", tasks) if isinstance(tasks, list | tuple) else ()
    if not listed or not all(isinstance(task, Mapping) and task for task in listed):
        raise EnvError(f"tasks={tasks!r} must be {_FORMS}.")
    return _parse_list(made, listed)


def _parse_ranges(made: MadeEnv, tasks: Mapping[str, Any]) -> _Ranges:
    bounds: dict[str, np.ndarray] = {}
    for name, pair in tasks.items():
        if not isinstance(pair, Sequence | np.ndarray) or isinstance(pair, str) or len(pair) != 2:
            raise EnvError(
                f"tasks={{{name!r}: {pair!r}}} must be a range [low, high]; one value of all tasks belongs "
                f"in env_config={{{name!r}: value}}, and several make a list of tasks, "
                f"[{{{name!r}: value}}, ...]."
            )
        low, high = (_cast_task(made, {name: value})[name] for value in pair)
        if low.dtype == np.bool_:
            raise EnvError(
                f"tasks={{{name!r}: {pair!r}}} is a range of True and False: list them, "
                f"[{{{name!r}: False}}, {{{name!r}: True}}]."
            )
        _check_order(name, low, high)
        bounds[name] = np.stack([low, high])
    return _Ranges(tuple(bounds), bounds)


def _check_order(name: str, low: np.ndarray, high: np.ndarray) -> None:
    if not (np.all(np.isfinite(low)) and np.all(np.isfinite(high)) and np.all(low <= high)):
        raise EnvError(
            f"tasks={{{name!r}: [{low.tolist()}, {high.tolist()}]}} must be finite, the lower bound first."
        )


def _parse_list(made: MadeEnv, tasks: Sequence[Task]) -> _Choices:
    names = tuple(dict.fromkeys(name for task in tasks for name in task))
    cast_tasks = [_cast_task(made, task) for task in tasks]
    default = {name: np.asarray(get_param(made.params, name)) for name in names}
    values = {
        name: np.stack([task.get(name, default[name]) for task in cast_tasks]) for name in names
    }
    return _Choices(names, len(tasks), values)


def _cast_task(made: MadeEnv, task: Task) -> dict[str, np.ndarray]:
    """Return a task with each value of its parameter's type."""
    params = override_params(made.id, made.params, task, given_in="tasks")
    for name in task:
        _check_is_array(made, name)
    return {name: np.asarray(get_param(params, name)) for name in task}


def _check_is_array(made: MadeEnv, name: str) -> None:
    if jax.tree.structure(get_param(made.params, name)) != jax.tree.structure(0):
        raise EnvError(
            f"tasks cannot vary {made.id}'s parameter {name!r}, which is no single array."
        )


def _parse_function(made: MadeEnv, function: Callable[[Key], Task]) -> _Function:
    label = f"tasks={getattr(function, '__name__', function)}"
    try:
        task = jax.eval_shape(function, jax.eval_shape(lambda: jax.random.key(0)))
    except TRACING_ERRORS as error:
        raise EnvError(
            f"{label} must be a function of a key that jax.jit can trace ({summarize_exception(error)})."
        ) from error
    if not isinstance(task, Mapping) or not task:
        raise EnvError(f"{label} must return values of parameters by name, got {task!r}.")
    known = param_names(made.params)
    for name, value in cast("Mapping[str, Any]", task).items():
        if name not in known:
            raise UnknownNameError(
                f"{made.id} has no parameter {name!r} (given in {label}). Known: "
                f"{', '.join(known) or 'none'}."
            )
        _check_is_array(made, name)
        expected = np.asarray(get_param(made.params, name))
        shape, kind = getattr(value, "shape", None), getattr(value, "dtype", np.dtype(object)).kind
        fits = kind == expected.dtype.kind or (expected.dtype.kind == "f" and kind in "iu")
        if shape != expected.shape or not fits:
            raise EnvError(
                f"{made.id}'s parameter {name!r} must be {expected.dtype} of shape {expected.shape}, got "
                f"{value} of {label}."
            )
    return _Function(tuple(task), function)


def _set_params(params: PyTree, values: Mapping[str, Any]) -> PyTree:
    if isinstance(params, dict):
        return {**params, **values}
    return dataclasses.replace(params, **values)


def _is_vector(space: gymnasium.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and len(space.shape) == 1
