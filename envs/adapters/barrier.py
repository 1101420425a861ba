"""Fault barrier around one copy of a host environment: failures inside are returned as infos.

It is part of the vector environment, also in the processes of an asynchronous one, so that the
other copies are unaffected.
"""

import copy
import dataclasses
import dis
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeGuard, TypeVar

import gymnasium
import numpy as np

from jaxrl.core.seeds import make_seed_sequence
from jaxrl.core.spaces import get_children, map_leaves
from jaxrl.envs.adapters.host_spaces import Converter, make_converter, warn_once, zeros
from jaxrl.envs.adapters.host_state import get_env_state, set_env_state
from jaxrl.envs.context import EnvContext
from jaxrl.envs.task_settable import find_task_layer
from jaxrl.errors import EnvError, summarize_exception

if TYPE_CHECKING:
    from jaxrl.core.types import PyTree
    from jaxrl.envs.host import MadeHostEnv
    from jaxrl.envs.multi.host_made import MadeMultiHostEnv

MadeHostT = TypeVar("MadeHostT", bound="MadeHostEnv | MadeMultiHostEnv")
ResultT = TypeVar("ResultT")

FAULT_KEY = "jaxrl_fault"
"""Key of a fault report in an info."""

MAX_ATTEMPTS = 5
"""Number of consecutive attempts to make and reset a copy before the run ends."""

MAX_CONSECUTIVE_RESTARTS = 10
"""Number of restarts of a copy without a step in between before the run ends."""

FIRST_PAUSE_S = 0.05
_NUMBERS = frozenset({float, int, np.float32, np.float64})


class StepFailedRecreateEnvError(Exception):
    """Exception that an environment raises to be recreated silently (RLlib's name)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubEnvFault:
    """Report that a copy was restarted, or (`fatal`) that it cannot continue.

    `detail` is a sentence with the cause, `trace` the original traceback as text, `error` the
    exception, which is not pickled.
    """

    detail: str
    trace: str = ""
    fatal: bool = False
    silent: bool = False
    error: BaseException | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "error": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubEnvSpec(Generic[MadeHostT]):
    """Recipe of one copy of an environment of one agent or of several.

    Attributes:
        made: The environment.
        context: Context of the copy, whose `vector_index` is its row.
        seed: Seed of the run.
        index: Index of the copy among all copies of the run, which its seeds derive from, so that
            data do not depend on how copies are distributed over runners.
        restart_failed: Whether to restart a copy that raises, instead of raising.
        reads_state: Whether steps of several agents have the global state.
    """

    made: MadeHostT
    context: EnvContext
    seed: int
    index: int
    restart_failed: bool
    reads_state: bool = False

    @property
    def name(self) -> str:
        """Environment, worker and copy, for messages."""
        context = self.context
        return (
            f"{self.made.id} (worker_index={context.worker_index}, "
            f"vector_index={context.vector_index})"
        )

    @property
    def first_seed(self) -> int:
        """Seed of the first reset."""
        return derive_seed(self.seed, self.index)


def make_specs(
    made: MadeHostT, context: EnvContext, num_envs: int, first_index: int, **fields: Any
) -> list[SubEnvSpec[MadeHostT]]:
    """Return the recipes of copies side by side, given further fields of each."""
    return [
        SubEnvSpec(
            made=made,
            context=context.copy_with_overrides(vector_index=row),
            index=first_index + row,
            **fields,
        )
        for row in range(num_envs)
    ]


def derive_seed(seed: int, index: int, restarts: int = 0) -> int:
    """Return the 31-bit seed of a copy's first reset, another one after each restart."""
    places = (index,) if restarts == 0 else (index, restarts)
    return int(make_seed_sequence(seed, *places).generate_state(1)[0] >> 1)


class Restarts:
    """Restarts of one copy: their number, and that since its last step.

    Args:
        spec: Recipe of the copy.
    """

    def __init__(self, spec: SubEnvSpec[Any]) -> None:
        self._spec = spec
        self._number = self._num_consecutive = 0

    def note_step(self) -> None:
        """Note that the copy took a step."""
        self._num_consecutive = 0

    def count_fault(self, sentence: str, error: BaseException) -> None:
        """Count a fault, after which a new episode begins.

        Raises:
            EnvError: If there were too many without a step.
        """
        self._num_consecutive += 1
        if self._num_consecutive > MAX_CONSECUTIVE_RESTARTS:
            raise EnvError(
                f"{sentence} It was restarted {MAX_CONSECUTIVE_RESTARTS} times without a single step."
            ) from error

    def restart(
        self,
        what: str,
        error: BaseException,
        recreate: Callable[[int], ResultT],
        *,
        final: type[BaseException] | tuple[()] = (),
    ) -> tuple[ResultT, SubEnvFault]:
        """Make the copy again after an exception.

        Args:
            what: Call that raised.
            error: What it raised.
            recreate: Function of a seed that makes the copy again and resets it.
            final: Exceptions of `recreate` after which it is not called again.

        Returns:
            The result of `recreate`, and the report of the fault.

        Raises:
            EnvError: If the copy may not be restarted, or cannot be.
        """
        spec = self._spec
        sentence = f"{spec.name}: {what} raised {summarize_exception(error)}."
        if not spec.restart_failed:
            raise EnvError(sentence) from error
        self.count_fault(sentence, error)
        fault = SubEnvFault(
            detail=sentence,
            trace=_format_traceback(error),
            silent=isinstance(error, StepFailedRecreateEnvError),
            error=error,
        )
        last = error
        for attempt in range(MAX_ATTEMPTS):
            if attempt:
                time.sleep(FIRST_PAUSE_S * 2**attempt)
            self._number += 1
            try:
                return recreate(derive_seed(spec.seed, spec.index, self._number)), fault
            except final:
                raise
            except BaseException as again:  # noqa: BLE001  (reported after the last attempt)
                reraise_interrupts(again)
                last = again
        raise EnvError(
            f"{sentence} It could not be restarted in {MAX_ATTEMPTS} attempts, the last of which "
            f"raised {summarize_exception(last)}."
        ) from last

    def get_state(self) -> np.ndarray:
        """Return the numbers as an array."""
        return np.asarray([self._number, self._num_consecutive], np.int32)

    def set_state(self, state: np.ndarray) -> None:
        """Restore the numbers that `get_state` returned."""
        self._number, self._num_consecutive = (int(count) for count in state)


class Closable(Protocol):
    """Object that holds resources until it is closed."""

    def close(self) -> object: ...


class FaultBarrier(gymnasium.Env[Any, Any]):
    """One copy, which is made at its first reset, restarted if allowed, and never raises.

    Its observations fit the space in structure, shape and dtype; rewards are numbers, flags are
    bools.
    """

    def __init__(self, spec: "SubEnvSpec[MadeHostEnv]") -> None:
        self._spec, self._name, made = spec, spec.name, spec.made
        self.observation_space = made.observation_space
        self.action_space = made.action_space
        self.metadata = {}
        self.inner: gymnasium.Env[Any, Any] | None = None
        self._restarts = Restarts(spec)
        self._task = made.task
        self.paused = False
        self._latest_obs: PyTree = None
        self._has_scalar_actions = _has_scalar_box(made.action_space)
        space = made.observation_space
        is_array = isinstance(space, gymnasium.spaces.Box)
        self._shape = tuple(space.shape) if is_array else None
        self._dtype = np.dtype(space.dtype) if is_array else None
        self._convert_reset = make_converter(f"{self._name}: reset's observation", space)
        self._convert_step = make_converter(f"{self._name}: step's observation", space)

    def make(self) -> gymnasium.Env[Any, Any]:
        """Return the copy, made now if it does not exist yet.

        Raises:
            EnvError: If its creation raises.
        """
        if self.inner is None:
            try:
                self.inner = self._create()
            except Exception as error:
                raise EnvError(
                    f"{self._name}: the environment's creation raised {summarize_exception(error)}."
                ) from error
        return self.inner

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> "tuple[PyTree, dict[str, Any]]":
        del options
        try:
            if self.inner is None:
                self.inner = self._create()
            result = self.inner.reset() if seed is None else self.inner.reset(seed=seed)
        except BaseException as error:  # noqa: BLE001  (a user's environment may raise anything)
            reraise_interrupts(error)
            what = "reset" if self.inner is not None else "the environment's creation"
            return self._handle_failure(what, error)
        try:
            return self._check_reset(result)
        except EnvError as error:
            return self._fail(str(error))

    def step(self, action: "PyTree") -> "tuple[PyTree, float, bool, bool, dict[str, Any]]":
        if self.paused:
            return self._latest_obs, 0.0, False, False, {}
        if self._has_scalar_actions:
            action = map_leaves(_scalar_as_array, self.action_space, action)
        try:
            result = self.inner.step(action)  # pyright: ignore[reportOptionalMemberAccess]
        except BaseException as error:  # noqa: BLE001  (a user's environment may raise anything)
            reraise_interrupts(error)
            obs, info = self._handle_failure("step", error)
            return obs, 0.0, False, False, info
        if self._is_well_formed(result):
            self._latest_obs = result[0]
            self._restarts.note_step()
            return result
        try:
            checked = check_step(self._name, self._convert_step, result)
        except EnvError as error:
            obs, info = self._fail(str(error))
            return obs, 0.0, False, False, info
        self._latest_obs = checked[0]
        self._restarts.note_step()
        return checked

    def close(self) -> None:
        """Close the copy; exceptions of its own `close` are only logged."""
        inner, self.inner = self.inner, None
        if inner is not None:
            close_quietly(self._name, inner)

    def render(self) -> Any:
        return None if self.inner is None else self.inner.render()

    @property
    def copy_state(self) -> "dict[str, PyTree] | None":
        """State of the copy as arrays, None if unavailable."""
        state = None if self.inner is None else get_env_state(self.inner)
        if state is None:
            return None
        return {**state, "restarts": self._restarts.get_state()}

    @copy_state.setter
    def copy_state(self, state: "dict[str, PyTree]") -> None:
        if self.inner is None:
            self.inner = self._create()
            self.inner.reset(seed=0)
        self._restarts.set_state(state["restarts"])
        set_env_state(self.inner, state)

    def set_task(self, task: "PyTree") -> EnvError | None:
        """Set the task of the copy, now and whenever it is made again; return the error, if any.

        An exception would end the process of an asynchronous copy.
        """
        try:
            if self.inner is not None:
                _set_task(self._name, self.inner, task)
        except EnvError as error:
            return error
        self._task = task
        return None

    def call_task_method(self, name: str, *args: int) -> "PyTree":
        """Call `get_task` or `sample_tasks` of the copy; return the result, or an EnvError."""
        try:
            if self.inner is None:
                self.inner = self._create()
            layer = find_task_layer(self.inner, name)
            if layer is None:
                return EnvError(f"{self._spec.made.id} has no method {name}; define it there.")
            return getattr(layer, name)(*args)
        except Exception as error:  # noqa: BLE001  (a user's environment may raise anything)
            return EnvError(f"{self._name}: {name} raised {summarize_exception(error)}.")

    def _check_reset(self, result: object) -> "tuple[PyTree, dict[str, Any]]":
        self._latest_obs, info = check_reset(self._name, self._convert_reset, result)
        return self._latest_obs, info

    def _is_well_formed(
        self, result: Any
    ) -> "TypeGuard[tuple[PyTree, float, bool, bool, dict[str, Any]]]":
        """Return whether a step's result passes a fast check that implies validity."""
        if result.__class__ is not tuple or len(result) != 5:
            return False
        obs, reward, terminated, truncated, info = result
        return (
            obs.__class__ is np.ndarray
            and obs.dtype == self._dtype
            and obs.shape == self._shape
            and reward.__class__ in _NUMBERS
            and terminated.__class__ is bool
            and truncated.__class__ is bool
            and info.__class__ is dict
        )

    def _handle_failure(self, what: str, error: BaseException) -> "tuple[PyTree, dict[str, Any]]":
        """Restart the copy after an exception; return the observation, and the fault as info."""
        try:
            result, fault = self._restarts.restart(what, error, self._recreate)
            obs, info = self._check_reset(result)
        except EnvError as final:
            return self._fail(str(final), final.__cause__)
        return obs, {**info, FAULT_KEY: fault}

    def _create(self) -> gymnasium.Env[Any, Any]:
        """Make the copy, with the current task."""
        env = self._spec.made.create(self._spec.context)
        if self._task is not None:
            _set_task(self._name, env, self._task)
        return env

    def _recreate(self, seed: int) -> object:
        self.close()
        self.inner = self._create()
        return self.inner.reset(seed=seed)

    def _fail(
        self, detail: str, error: BaseException | None = None
    ) -> "tuple[PyTree, dict[str, Any]]":
        trace = "" if error is None else _format_traceback(error)
        fault = SubEnvFault(detail=detail, trace=trace, fatal=True, error=error)
        return zeros(self.observation_space), {FAULT_KEY: fault}


def _set_task(name: str, env: gymnasium.Env[Any, Any], task: "PyTree") -> None:
    """Set the task of an environment, or of the layer of its wrappers that has one.

    Raises:
        EnvError: If it does not accept the task.
    """
    try:
        find_task_layer(env).set_task(copy.deepcopy(task))
    except Exception as error:
        raise EnvError(
            f"{name}: set_task({task!r}) raised {summarize_exception(error)}."
        ) from error


def reraise_interrupts(error: BaseException) -> None:
    """Raise an exception again if the environment is not its cause.

    That is KeyboardInterrupt by Ctrl-C, which occurs between any two instructions, and GeneratorExit
    at the yield of a generator that is closed, whereas an environment raises them by a raise
    statement.
    """
    if not isinstance(error, KeyboardInterrupt | GeneratorExit):
        return
    last_frame = error.__traceback__
    while last_frame is not None and last_frame.tb_next is not None:
        last_frame = last_frame.tb_next
    if last_frame is None:
        raise error
    code, place = last_frame.tb_frame.f_code.co_code, last_frame.tb_lasti
    if dis.opname[code[place]] != "RAISE_VARARGS":
        raise error


def close_quietly(name: str, env: Closable) -> None:
    """Close an environment; log what its `close` raises."""
    try:
        env.close()
    except BaseException as error:  # noqa: BLE001  (the environment is discarded)
        reraise_interrupts(error)
        warn_once(
            f"{name}: close raised {summarize_exception(error)}; the environment is discarded anyway."
        )


def check_reset(name: str, convert: Converter, result: object) -> "tuple[PyTree, dict[str, Any]]":
    """Check the result of a reset; convert the observation to its space.

    Raises:
        EnvError: If it is not an observation and a dictionary.
    """
    if not isinstance(result, tuple) or len(result) != 2:
        raise EnvError(
            f"{name}: reset must return (observation, info), got "
            f"{_describe_result(result)}; an environment of the old gym API can be wrapped by "
            f"shimmy."
        )
    obs, info = result
    if not isinstance(info, dict):
        raise EnvError(f"{name}: reset's info must be a dict, got {info!r}.")
    return convert(obs), info


def check_step(
    name: str, convert: Converter, result: object
) -> "tuple[PyTree, float, bool, bool, dict[str, Any]]":
    """Check the result of a step; convert observation, reward and flags to their types.

    Raises:
        EnvError: If an element is invalid.
    """
    if not isinstance(result, tuple) or len(result) != 5:
        raise EnvError(
            f"{name}: step must return (observation, reward, terminated, truncated, info), got "
            f"{_describe_result(result)}; an environment of the old gym API can be wrapped by "
            f"shimmy."
        )
    obs, reward, terminated, truncated, info = result
    if reward.__class__ not in _NUMBERS:
        reward = _to_float(f"{name}: the reward", reward)
    if terminated.__class__ is not bool or truncated.__class__ is not bool:
        terminated = _to_bool(f"{name}: terminated", terminated)
        truncated = _to_bool(f"{name}: truncated", truncated)
    if not isinstance(info, dict):
        raise EnvError(f"{name}: step's info must be a dict, got {info!r}.")
    return convert(obs), reward, terminated, truncated, info


def _to_float(label: str, value: object) -> float:
    array = np.asarray(value)
    if array.shape != () or array.dtype.kind not in "fiub":
        raise EnvError(f"{label} must be one number, got {value!r}.")
    return float(array)


def _to_bool(label: str, value: object) -> bool:
    if isinstance(value, np.ndarray) and value.shape == () and value.dtype == np.bool_:
        return bool(value)
    if not isinstance(value, bool | np.bool_):
        raise EnvError(f"{label} must be a bool, got {value!r}.")
    return bool(value)


def _describe_result(result: object) -> str:
    if isinstance(result, tuple):
        return f"{len(result)} values"
    return f"a {type(result).__name__}"


def _format_traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def _has_scalar_box(space: gymnasium.Space[Any]) -> bool:
    if isinstance(space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple):
        return any(_has_scalar_box(part) for _, part in get_children(space))
    return isinstance(space, gymnasium.spaces.Box) and space.shape == ()


def _scalar_as_array(space: gymnasium.Space[Any], value: object) -> object:
    """Convert an action to an array if its space is a scalar Box.

    Gymnasium splits a batch of scalars into numbers, which a Box does not contain.
    """
    return np.asarray(value, space.dtype) if _has_scalar_box(space) else value
