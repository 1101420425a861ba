"""Check of a Python environment before the first step, with errors of one sentence."""

import functools
import inspect
import traceback
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env as check_by_gymnasium

from jaxrl.core.spaces import map_leaves
from jaxrl.core.types import PyTree
from jaxrl.envs.adapters.barrier import check_reset, check_step, close_quietly, reraise_interrupts
from jaxrl.envs.adapters.gymnasium import create_env
from jaxrl.envs.adapters.host_spaces import Converter, log_warnings, make_converter, warn_once
from jaxrl.envs.adapters.host_state import unwrap_layers
from jaxrl.envs.context import EnvContext
from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.multi.checked import (
    CheckedMultiAgentEnv,
    HostMultiStart,
    HostMultiStep,
    NonFiniteValueError,
)
from jaxrl.envs.multi.host_made import MadeMultiHostEnv
from jaxrl.envs.space_checks import check_values
from jaxrl.errors import EnvError, JaxrlError, summarize_exception

ResultT = TypeVar("ResultT")
ValidateEnv = Callable[[Any, EnvContext], None]

_NUM_STEPS = 16
_MAX_STEPS = 1_000
"""Number of steps at most in which a time limit is looked for that agents in turns cannot have."""
_ATTEMPTS = 3
_checked: weakref.WeakSet[MadeHostEnv | MadeMultiHostEnv] = weakref.WeakSet()
"""Environments checked in this process; training, evaluation and recording share one check."""
_SEED_CHECKS = ("check_reset_seed", "check_step_determinism")
"""Prefixes of gymnasium's checks of reproducibility, which training does not require."""


class _EnvRaisedError(EnvError):
    """Error for an exception that the environment raised."""


def precheck_env(
    made: MadeHostEnv | MadeMultiHostEnv,
    context: EnvContext,
    *,
    check: bool = True,
    validate_env: ValidateEnv | None = None,
    may_fail: bool = False,
) -> None:
    """Make one environment, check its contract, and pass it to the user's `validate_env`.

    Args:
        made: Environment to check, of one agent or of several.
        context: Argument of its creator.
        check: Whether to run it, unless this process has already done so.
        validate_env: Function of the user's environment that raises to reject it.
        may_fail: Whether to make three attempts, for an environment that is known to raise at
            times.

    Raises:
        EnvError: If a check fails; the message names the fault and its place.
    """
    check = check and made not in _checked
    if not check and validate_env is None:
        return
    for attempt in range(_ATTEMPTS if may_fail else 1):
        try:
            _check_once(made, context, check=check, validate_env=validate_env)
        except (_EnvRaisedError, NonFiniteValueError) as error:
            if not may_fail or attempt == _ATTEMPTS - 1:
                raise EnvError(str(error.args[0])) from error.__cause__
            warn_once(f"{error.args[0]} The check is repeated.")
        else:
            if check:
                _checked.add(made)
            return


def _check_once(
    made: MadeHostEnv | MadeMultiHostEnv,
    context: EnvContext,
    *,
    check: bool,
    validate_env: ValidateEnv | None,
) -> None:
    if isinstance(made, MadeMultiHostEnv):
        opened = make_checked(made, context)
        env, run_check = opened.env, functools.partial(_check_agents, made, opened)
    else:
        opened = env = create_env(made.id, made.create, context)
        run_check = functools.partial(_check_one_agent, made, env)
    try:
        if check:
            run_check()
        if validate_env is not None:
            call_validate_env(made.id, env, context, validate_env)
    finally:
        close_quietly(made.id, opened)


def _check_one_agent(made: MadeHostEnv, env: gymnasium.Env[Any, Any]) -> None:
    # The innermost one of gymnasium: `unwrapped` may be an environment of another interface.
    _check_signature(made.id, unwrap_layers(env)[-1])
    _check_steps(made, env)
    if made.max_episode_steps != 1:  # gymnasium's checker rejects that
        _run_gymnasium_checker(made, env)


def _check_agents(made: MadeMultiHostEnv, env: CheckedMultiAgentEnv) -> None:
    _check_signature(made.id, env.env)
    play_randomly(env, _NUM_STEPS, seed=0)
    if made.max_episode_steps is not None and env.leaves_agents_waiting:
        play_randomly(env, min(made.max_episode_steps, _MAX_STEPS), seed=_NUM_STEPS)


class _CastObservation(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Wrapper that casts observations as runners do; gymnasium's checker casts nothing."""

    def __init__(self, env: gymnasium.Env[Any, Any], made: MadeHostEnv) -> None:
        super().__init__(env)
        self.observation_space = made.observation_space
        self._convert = make_converter(f"{made.id}: observation", made.observation_space)

    def observation(self, observation: object) -> PyTree:
        return self._convert(observation)


class _UsualReset(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wrapper whose `reset` has gymnasium's signature, and which unwraps to gymnasium's own.

    Gymnasium's checker asks for the names of the arguments, also where `reset` takes any, and for
    the generator of what is `unwrapped`, which is of another interface in some suites' wrappers.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._innermost = unwrap_layers(env)[-1]

    @property
    def unwrapped(self) -> gymnasium.Env[Any, Any]:
        return self._innermost


def _needs_usual_reset(env: gymnasium.Env[Any, Any]) -> bool:
    names = inspect.signature(env.reset).parameters
    innermost: object = env.unwrapped
    return not isinstance(innermost, gymnasium.Env) or not {"seed", "options"} <= names.keys()


def _check_signature(name: str, env: Any) -> None:
    parameters = inspect.signature(env.reset).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    missing = [p for p in ("seed", "options") if p not in parameters and not takes_any]
    if missing:
        raise EnvError(
            f"{name}: reset must take the keyword arguments seed and options, but "
            f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} missing: "
            f"`def reset(self, *, seed=None, options=None)`, beginning with "
            f"`super().reset(seed=seed)`."
        )


def _check_steps(made: MadeHostEnv, env: gymnasium.Env[Any, Any]) -> None:
    """Take a few random steps, and check each in detail."""
    name = made.id
    convert_reset = make_converter(f"{name}: reset's observation", made.observation_space)
    convert_step = make_converter(f"{name}: step's observation", made.observation_space)
    actions = env.action_space
    actions.seed(0)
    ended, seed = True, 0
    for _ in range(_NUM_STEPS):
        if ended:
            result = _call(name, "reset", lambda seed=seed: env.reset(seed=seed))
            _check_obs(made, "reset", check_reset(name, convert_reset, result)[0])
            seed += 1
        result = _call(name, "step", lambda: env.step(actions.sample()))
        ended = _check_step(made, convert_step, result)


def _check_step(made: MadeHostEnv, convert: Converter, result: object) -> bool:
    """Check a step; return whether the episode ended."""
    obs, reward, terminated, truncated, _ = check_step(made.id, convert, result)
    _check_obs(made, "step", obs)
    if not np.isfinite(reward):
        raise EnvError(f"{made.id}: the reward must be finite, got {reward}.")
    return terminated or truncated


def _check_obs(made: MadeHostEnv, method: str, obs: PyTree) -> None:
    batch = map_leaves(lambda _, x: np.asarray(x)[None], made.observation_space, obs)
    check_values(f"{made.id}: {method}'s observation", made.observation_space, batch)


def _call(name: str, what: str, function: Callable[[], ResultT]) -> ResultT:
    try:
        return function()
    except BaseException as error:
        reraise_interrupts(error)
        raise _EnvRaisedError(
            f"{name}: {what} raised {summarize_exception(error)}.{_get_install_hint(error)}"
        ) from error


def _get_install_hint(error: BaseException) -> str:
    """Return how to install a package that an environment imports only when it is stepped."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return ""
    return f" Install it with: pip install {error.name.partition('.')[0].replace('_', '-')}."


def _run_gymnasium_checker(made: MadeHostEnv, env: gymnasium.Env[Any, Any]) -> None:
    """Run gymnasium's checker; only log warnings, and failures about seeds."""
    name, skipped = made.id, {"skip_render_check": True, "skip_close_check": True}
    if _needs_usual_reset(env):
        env = _UsualReset(env)
    try:
        with log_warnings(name):
            try:
                check_by_gymnasium(env, **skipped)
            except AssertionError:  # possibly about a dtype that runners cast
                check_by_gymnasium(_CastObservation(env, made), **skipped)
    except JaxrlError:
        raise
    except BaseException as error:
        reraise_interrupts(error)
        reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        if isinstance(error, AssertionError):
            if any(frame.startswith(_SEED_CHECKS) for frame in frames):
                advice = "draw from self.np_random, not from np.random or a space's sample()"
                hint = f"; {advice}" if "eterministic" in reason else ""
                warn_once(f"{name} is not reproducible from a seed: {reason}{hint}.")
                return
            raise EnvError(
                f"{name}: gymnasium's checker reports: {reason}; correct it, or set "
                f"disable_env_checking=True."
            ) from error
        raise _EnvRaisedError(
            f"{name} raised {type(error).__name__} under gymnasium's checker: {reason}."
            f"{_get_install_hint(error)}"
        ) from error


def call_validate_env(
    name: str, env: object, context: EnvContext, validate_env: ValidateEnv
) -> None:
    """Call the user's `validate_env` with an environment.

    Raises:
        EnvError: If it raises.
    """
    try:
        validate_env(env, context)
    except JaxrlError:
        raise
    except BaseException as error:
        reraise_interrupts(error)
        raise EnvError(f"validate_env rejected {name}: {summarize_exception(error)}.") from error


def make_checked(made: MadeMultiHostEnv, context: EnvContext) -> CheckedMultiAgentEnv:
    """Make one environment.

    Raises:
        EnvError: If its creator raises.
    """
    try:
        return made.make_checked(context)
    except JaxrlError:
        raise
    except BaseException as error:
        reraise_interrupts(error)
        raise _EnvRaisedError(
            f"{made.id} cannot be made: its creation raised {summarize_exception(error)}."
        ) from error


def play_randomly(env: CheckedMultiAgentEnv, num_steps: int, seed: int) -> None:
    """Take steps with random actions of whoever acts, across episodes.

    Raises:
        EnvError: If the environment breaks the contract, or raises.
    """
    latest: HostMultiStart | HostMultiStep | None = None
    what, num_resets = "reset", 0
    try:
        for _ in range(num_steps):
            if latest is None or (isinstance(latest, HostMultiStep) and latest.is_over):
                what = "reset"
                latest = env.reset(seed=seed + num_resets)
                num_resets += 1
            actions = sample_actions(env, latest.obs, seed + num_resets)
            what = "step"
            latest = env.step(actions)
    except JaxrlError:
        raise
    except BaseException as error:
        reraise_interrupts(error)
        raise _EnvRaisedError(f"{env.name}: {what} raised {summarize_exception(error)}.") from error


def sample_actions(env: CheckedMultiAgentEnv, obs: dict[str, PyTree], seed: int) -> dict[str, Any]:
    """Sample an action of each agent that acts, a legal one where its observation has a mask."""
    actions: dict[str, Any] = {}
    for place, agent in enumerate(env.agents_to_act):
        space = env.get_action_space(agent)
        space.seed(1_000 * seed + 7 * env.num_steps + place)
        mask = obs[agent].get("action_mask") if isinstance(obs[agent], dict) else None
        if mask is not None and isinstance(space, spaces.Discrete) and np.any(mask):
            actions[agent] = space.sample(mask=np.asarray(mask, np.int8))
        else:
            actions[agent] = space.sample()
    return actions
