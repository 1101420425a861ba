"""Trying a host environment out before the first step, so that what is wrong is one sentence."""

import inspect
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env as check_by_gymnasium

from jaxrl.core.spaces import map_leaves
from jaxrl.envs.adapters.barrier import checked_reset, checked_step, close_quietly, raise_if_users
from jaxrl.envs.adapters.gymnasium import create_env
from jaxrl.envs.adapters.host_spaces import Fit, advice, make_fit, notice
from jaxrl.envs.context import EnvContext
from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.space_checks import check_values
from jaxrl.errors import EnvError, JaxrlError, in_one_line

ValidateEnv = Callable[[Any, EnvContext], None]

NUM_STEPS = 16
_ATTEMPTS = 3
_checked: weakref.WeakSet[MadeHostEnv] = weakref.WeakSet()
"""Once in a process is enough, also where it trains, evaluates and films the same environment."""
_ABOUT_SEEDS = ("check_reset_seed", "check_step_determinism")
"""Gymnasium's checks of reproducibility begin so; an environment can be trained without it."""


def try_out(
    made: MadeHostEnv,
    context: EnvContext,
    *,
    check: bool,
    validate_env: ValidateEnv | None,
    may_fail: bool,
) -> None:
    """Make one environment, hold it to its contract and show it to the user's `validate_env`.

    Args:
        made: What is to be made.
        context: What its creator gets.
        check: Whether to run it, if this process has not done so yet.
        validate_env: Raises if it does not like the environment.
        may_fail: An environment that is known to raise at times gets three attempts.

    Raises:
        EnvError: Something is wrong; one sentence says what and where.
    """
    check = check and made not in _checked
    if not check and validate_env is None:
        return
    for attempt in range(_ATTEMPTS if may_fail else 1):
        try:
            _try_once(made, context, check=check, validate_env=validate_env)
        except _OwnError as error:
            if not may_fail or attempt == _ATTEMPTS - 1:
                raise EnvError(str(error)) from error.__cause__
            notice(f"{error} It is tried out again.")
        else:
            if check:
                _checked.add(made)
            return


class _OwnError(EnvError):
    """The environment raised an exception of its own."""


def _try_once(
    made: MadeHostEnv, context: EnvContext, *, check: bool, validate_env: ValidateEnv | None
) -> None:
    env = create_env(made.id, made.create, context)
    try:
        if check:
            _check_signature(made.id, env)
            _check_steps(made, env)
            if made.max_episode_steps != 1:  # gymnasium takes that for a mistake
                _check_by_gymnasium(made, env)
        if validate_env is not None:
            validate(made.id, env, context, validate_env)
    finally:
        close_quietly(made.id, env)


class _Fitted(gymnasium.ObservationWrapper[Any, Any, Any]):
    """The environment with observations as runners take them: gymnasium's checker casts nothing."""

    def __init__(self, env: gymnasium.Env[Any, Any], made: MadeHostEnv) -> None:
        super().__init__(env)
        self.observation_space = made.observation_space
        self._fit = make_fit(f"{made.id}: observation", made.observation_space)

    def observation(self, observation: Any) -> Any:
        return self._fit(observation)


def _check_signature(name: str, env: gymnasium.Env[Any, Any]) -> None:
    parameters = inspect.signature(env.unwrapped.reset).parameters
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    missing = [p for p in ("seed", "options") if p not in parameters and not anything]
    if missing:
        raise EnvError(
            f"{name}: reset must take the keyword arguments seed and options, but "
            f"{' and '.join(missing)} is missing: "
            f"`def reset(self, *, seed=None, options=None)`, beginning with "
            f"`super().reset(seed=seed)`."
        )


def _check_steps(made: MadeHostEnv, env: gymnasium.Env[Any, Any]) -> None:
    """A few random steps, each looked at closely."""
    name = made.id
    fit_reset = make_fit(f"{name}: reset's observation", made.observation_space)
    fit_step = make_fit(f"{name}: step's observation", made.observation_space)
    actions = env.action_space
    actions.seed(0)
    ended, seed = True, 0
    for _ in range(NUM_STEPS):
        if ended:
            result = _run(name, "reset", lambda seed=seed: env.reset(seed=seed))
            _check_obs(made, "reset", checked_reset(name, fit_reset, result)[0])
            seed += 1
        result = _run(name, "step", lambda: env.step(actions.sample()))
        ended = _check_step(made, fit_step, result)


def _check_step(made: MadeHostEnv, fit: Fit, result: Any) -> bool:
    """Whether the episode ended."""
    obs, reward, terminated, truncated, _ = checked_step(made.id, fit, result)
    _check_obs(made, "step", obs)
    if not np.isfinite(reward):
        raise EnvError(f"{made.id}: the reward must be finite, got {reward}.")
    return terminated or truncated


def _check_obs(made: MadeHostEnv, method: str, obs: Any) -> None:
    batch = map_leaves(lambda _, x: np.asarray(x)[None], made.observation_space, obs)
    check_values(f"{made.id}: {method}'s observation", made.observation_space, batch)


def _run(name: str, what: str, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except BaseException as error:
        raise_if_users(error)
        raise _OwnError(f"{name}: {what} raised {in_one_line(error)}.") from error


def _check_by_gymnasium(made: MadeHostEnv, env: gymnasium.Env[Any, Any]) -> None:
    """Gymnasium's own checker; what it says about seeds, and its warnings, are advice."""
    name, skipped = made.id, {"skip_render_check": True, "skip_close_check": True}
    try:
        with advice(name):
            try:
                check_by_gymnasium(env, **skipped)
            except AssertionError:  # perhaps of a dtype that runners cast
                check_by_gymnasium(_Fitted(env, made), **skipped)
    except JaxrlError:
        raise
    except BaseException as error:
        raise_if_users(error)
        reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        if isinstance(error, AssertionError):
            if any(frame.startswith(_ABOUT_SEEDS) for frame in frames):
                notice(f"{name} is not reproducible from a seed: {reason}.")
                return
            raise EnvError(
                f"{name}: gymnasium's checker says: {reason}; correct it, or set "
                f"disable_env_checking=True."
            ) from error
        raise _OwnError(
            f"{name} raised {type(error).__name__} under gymnasium's checker: {reason}."
        ) from error


def validate(name: str, env: Any, context: EnvContext, validate_env: ValidateEnv) -> None:
    """Show an environment to the user's `validate_env`.

    Raises:
        EnvError: It raised.
    """
    try:
        validate_env(env, context)
    except JaxrlError:
        raise
    except BaseException as error:
        raise_if_users(error)
        raise EnvError(f"validate_env refused {name}: {in_one_line(error)}.") from error
