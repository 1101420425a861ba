"""A wall around one copy of a host environment: what fails inside comes out as information.

It stands inside the vector environment, also in the processes of an asynchronous one, so that the
other copies never notice. Nothing here imports JAX: those processes do without it.
"""

import dataclasses
import dis
import time
import traceback
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from jaxrl.core.seeds import entropy_of
from jaxrl.core.spaces import children, map_leaves
from jaxrl.envs.adapters.host_spaces import Fit, make_fit, notice, zeros
from jaxrl.envs.adapters.host_state import copy_state, restore_copy
from jaxrl.envs.context import EnvContext
from jaxrl.errors import EnvError, in_one_line

FAULT = "jaxrl_fault"
"""Under this key of an info comes a `CopyFault`."""

MAX_ATTEMPTS = 5
"""So often in a row a copy is made and reset before the run ends."""

MAX_RESTARTS_IN_A_ROW = 10
"""So often a copy is restarted without one step in between before the run ends."""

_FIRST_PAUSE_S = 0.05
_NUMBERS = frozenset({float, int, np.float32, np.float64})


class StepFailedRecreateEnvError(Exception):
    """What an environment raises to be closed and made anew without a fuss (RLlib's name)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CopyFault:
    """A copy was restarted, or (`fatal`) it cannot go on, with `detail` as the sentence why.

    `trace` is the original traceback as text; `error` the exception itself, which does not leave
    its process.
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
class CopyPlan:
    """How one copy is made, and what its faults lead to.

    `index` is the copy's place among all copies of the run, which its seeds derive from, so that
    data do not depend on how copies are spread over runners.
    """

    id: str
    create: Callable[[EnvContext], gymnasium.Env[Any, Any]]
    context: EnvContext
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    seed: int
    index: int
    restart: bool

    @property
    def name(self) -> str:
        """For messages: which environment, worker and copy."""
        context = self.context
        return (
            f"{self.id} (worker_index={context.worker_index}, vector_index={context.vector_index})"
        )


def derived_seed(seed: int, index: int, restarts: int = 0) -> int:
    """The seed of a copy's first reset, another one after each restart; 31 bits."""
    places = (index,) if restarts == 0 else (index, restarts)
    return int(entropy_of(seed, *places).generate_state(1)[0] >> 1)


class CopyBarrier(gymnasium.Env[Any, Any]):
    """One copy that is made at its first reset, restarted if it may be, and never raises.

    What it returns fits the observation space in structure, shape and dtype; rewards are numbers,
    flags are bools.
    """

    def __init__(self, plan: CopyPlan) -> None:
        self._plan = plan
        self._name = plan.name
        self.observation_space = plan.observation_space
        self.action_space = plan.action_space
        self.metadata = {}
        self.inner: gymnasium.Env[Any, Any] | None = None
        self._restarts = 0
        self._in_a_row = 0
        self.held = False
        self._latest_obs: Any = None
        self._acts_in_scalars = _has_scalar_box(plan.action_space)
        space = plan.observation_space
        is_array = isinstance(space, gymnasium.spaces.Box)
        self._shape = tuple(space.shape) if is_array else None
        self._dtype = np.dtype(space.dtype) if is_array else None
        self._fit_reset = make_fit(f"{self._name}: reset's observation", plan.observation_space)
        self._fit_step = make_fit(f"{self._name}: step's observation", plan.observation_space)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        del options
        try:
            if self.inner is None:
                self.inner = self._plan.create(self._plan.context)
            result = self.inner.reset() if seed is None else self.inner.reset(seed=seed)
        except BaseException as error:  # noqa: BLE001  (whatever a user's environment may raise)
            raise_if_users(error)
            what = "reset" if self.inner is not None else "the environment's creation"
            return self._failed(what, error)
        try:
            return self._checked_reset(result)
        except EnvError as error:
            return self._fatal(str(error))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.held:
            return self._latest_obs, 0.0, False, False, {}
        result: Any
        if self._acts_in_scalars:
            action = map_leaves(_scalar_as_array, self.action_space, action)
        try:
            result = self.inner.step(action)  # pyright: ignore[reportOptionalMemberAccess]
        except BaseException as error:  # noqa: BLE001  (whatever a user's environment may raise)
            raise_if_users(error)
            obs, info = self._failed("step", error)
            return obs, 0.0, False, False, info
        if self._is_plain(result):
            self._latest_obs, self._in_a_row = result[0], 0
            return result
        try:
            checked = checked_step(self._name, self._fit_step, result)
        except EnvError as error:
            obs, info = self._fatal(str(error))
            return obs, 0.0, False, False, info
        self._latest_obs, self._in_a_row = checked[0], 0
        return checked

    def close(self) -> None:
        """Close the copy; what its own `close` raises is logged and no more."""
        inner, self.inner = self.inner, None
        if inner is not None:
            close_quietly(self._name, inner)

    def render(self) -> Any:
        return None if self.inner is None else self.inner.render()

    @property
    def copy_state(self) -> Any:
        """The copy's state as arrays, None where it cannot be had."""
        state = None if self.inner is None else copy_state(self.inner)
        if state is None:
            return None
        return {**state, "restarts": np.asarray([self._restarts, self._in_a_row], np.int32)}

    @copy_state.setter
    def copy_state(self, state: Any) -> None:
        if self.inner is None:
            self.inner = self._plan.create(self._plan.context)
            self.inner.reset(seed=0)
        self._restarts, self._in_a_row = (int(count) for count in state["restarts"])
        restore_copy(self.inner, state)

    def _checked_reset(self, result: Any) -> tuple[Any, dict[str, Any]]:
        self._latest_obs, info = checked_reset(self._name, self._fit_reset, result)
        return self._latest_obs, info

    def _is_plain(self, result: Any) -> bool:
        """Whether a step's result is beyond doubt as it should be: in short what `checked_step` checks."""
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

    def _failed(self, what: str, error: BaseException) -> tuple[Any, dict[str, Any]]:
        """Restart the copy after an exception; the first observation, and the fault as info."""
        sentence = f"{self._name}: {what} raised {in_one_line(error)}."
        if not self._plan.restart:
            return self._fatal(sentence, error)
        self._in_a_row += 1
        if self._in_a_row > MAX_RESTARTS_IN_A_ROW:
            return self._fatal(
                f"{sentence} It was restarted {MAX_RESTARTS_IN_A_ROW} times without one step.",
                error,
            )
        silent = isinstance(error, StepFailedRecreateEnvError)
        fault = CopyFault(detail=sentence, trace=_trace(error), silent=silent, error=error)
        latest: BaseException = error
        for attempt in range(MAX_ATTEMPTS):
            if attempt:
                time.sleep(_FIRST_PAUSE_S * 2**attempt)
            try:
                result = self._recreate()
            except BaseException as again:  # noqa: BLE001  (reported if it lasts)
                raise_if_users(again)
                latest = again
                continue
            try:
                obs, info = self._checked_reset(result)
            except EnvError as broken:
                return self._fatal(str(broken))
            return obs, {**info, FAULT: fault}
        return self._fatal(
            f"{sentence} It could not be restarted in {MAX_ATTEMPTS} attempts, the last of which "
            f"raised {in_one_line(latest)}.",
            latest,
        )

    def _recreate(self) -> Any:
        self.close()
        self._restarts += 1
        self.inner = self._plan.create(self._plan.context)
        return self.inner.reset(
            seed=derived_seed(self._plan.seed, self._plan.index, self._restarts)
        )

    def _fatal(self, detail: str, error: BaseException | None = None) -> tuple[Any, dict[str, Any]]:
        trace = "" if error is None else _trace(error)
        fault = CopyFault(detail=detail, trace=trace, fatal=True, error=error)
        return zeros(self.observation_space), {FAULT: fault}


def raise_if_users(error: BaseException) -> None:
    """Raise again what is not the environment's own doing.

    That is KeyboardInterrupt where Ctrl-C raised it: it comes from between any two instructions,
    while what an environment raises itself comes from a raise statement.
    """
    if isinstance(error, GeneratorExit):
        raise error
    if not isinstance(error, KeyboardInterrupt):
        return
    latest = error.__traceback__
    while latest is not None and latest.tb_next is not None:
        latest = latest.tb_next
    if latest is None:
        raise error
    code, place = latest.tb_frame.f_code.co_code, latest.tb_lasti
    if dis.opname[code[place]] != "RAISE_VARARGS":
        raise error


def close_quietly(name: str, env: Any) -> None:
    """Close an environment; what its `close` raises is told of, and ends nothing."""
    try:
        env.close()
    except BaseException as error:  # noqa: BLE001  (it is on its way out anyhow)
        raise_if_users(error)
        notice(
            f"{name}: close raised {in_one_line(error)}; the environment is let go all the same."
        )


def checked_reset(name: str, fit: Fit, result: Any) -> tuple[Any, dict[str, Any]]:
    """What a reset returned, with the observation as it fits the space.

    Raises:
        EnvError: It is no observation with a dictionary.
    """
    if not isinstance(result, tuple) or len(result) != 2:
        raise EnvError(
            f"{name}: reset must return (observation, info), got {_shape(result)}; an environment "
            f"of the old gym API can be wrapped by shimmy."
        )
    obs, info = result
    if not isinstance(info, dict):
        raise EnvError(f"{name}: reset's info must be a dict, got {info!r}.")
    return fit(obs), info


def checked_step(name: str, fit: Fit, result: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    """What a step returned: the observation as it fits the space, a number, bools, a dictionary.

    Raises:
        EnvError: It is something else.
    """
    if not isinstance(result, tuple) or len(result) != 5:
        raise EnvError(
            f"{name}: step must return (observation, reward, terminated, truncated, info), got "
            f"{_shape(result)}; an environment of the old gym API can be wrapped by shimmy."
        )
    obs, reward, terminated, truncated, info = result
    if reward.__class__ not in _NUMBERS:
        reward = _number(f"{name}: the reward", reward)
    if terminated.__class__ is not bool or truncated.__class__ is not bool:
        terminated = _flag(f"{name}: terminated", terminated)
        truncated = _flag(f"{name}: truncated", truncated)
    if not isinstance(info, dict):
        raise EnvError(f"{name}: step's info must be a dict, got {info!r}.")
    return fit(obs), reward, terminated, truncated, info


def _number(what: str, value: Any) -> float:
    array = np.asarray(value)
    if array.shape != () or array.dtype.kind not in "fiub":
        raise EnvError(f"{what} must be one number, got {value!r}.")
    return float(array)


def _flag(what: str, value: Any) -> bool:
    if isinstance(value, np.ndarray) and value.shape == () and value.dtype == np.bool_:
        return bool(value)
    if not isinstance(value, bool | np.bool_):
        raise EnvError(f"{what} must be a bool, got {value!r}.")
    return bool(value)


def _shape(result: Any) -> str:
    if isinstance(result, tuple):
        return f"{len(result)} values"
    return f"a {type(result).__name__}"


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def _has_scalar_box(space: gymnasium.Space[Any]) -> bool:
    if isinstance(space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple):
        return any(_has_scalar_box(part) for _, part in children(space))
    return isinstance(space, gymnasium.spaces.Box) and space.shape == ()


def _scalar_as_array(space: gymnasium.Space[Any], value: Any) -> Any:
    """Gymnasium takes a batch of numbers apart to numbers, which a Box does not contain."""
    return np.asarray(value, space.dtype) if _has_scalar_box(space) else value
