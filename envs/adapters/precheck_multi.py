"""Check of a Python environment of several agents before the first step."""

import inspect
import weakref
from typing import Any

import numpy as np
from gymnasium import spaces

from jaxrl.core.types import PyTree
from jaxrl.envs.adapters.barrier import close_quietly, reraise_interrupts
from jaxrl.envs.adapters.precheck import NUM_STEPS, ValidateEnv, call_validate_env
from jaxrl.envs.context import EnvContext
from jaxrl.envs.multi.host_made import AnyCheckedEnv, MadeMultiHostEnv
from jaxrl.envs.multi.host_steps import HostMultiStart, HostMultiStep
from jaxrl.errors import EnvError, JaxrlError, summarize_exception

_MAX_STEPS = 1_000
"""Number of steps at most in which a time limit is looked for that agents in turns cannot have."""

_checked: weakref.WeakSet[MadeMultiHostEnv] = weakref.WeakSet()
"""Environments checked in this process; training, evaluation and recording share one check."""


def precheck_multi_env(
    made: MadeMultiHostEnv,
    context: EnvContext,
    *,
    check: bool = True,
    validate_env: ValidateEnv | None = None,
) -> None:
    """Make one environment, take random steps, and pass it to the user's `validate_env`.

    Args:
        made: Environment to check.
        context: Argument of its creator.
        check: Whether to run it, unless this process has already done so.
        validate_env: Function of the user's environment that raises to reject it.

    Raises:
        EnvError: If a check fails; the message names agent and step, and what to return.
    """
    check = check and made not in _checked
    if not check and validate_env is None:
        return
    env = make_checked(made, context)
    try:
        if check:
            _check_signature(made.id, env.env)
            play_randomly(env, NUM_STEPS, seed=0)
            if made.max_episode_steps is not None and env.leaves_agents_waiting:
                play_randomly(env, min(made.max_episode_steps, _MAX_STEPS), seed=NUM_STEPS)
            _checked.add(made)
        if validate_env is not None:
            call_validate_env(made.id, env.env, context, validate_env)
    finally:
        close_quietly(made.id, env)


def make_checked(made: MadeMultiHostEnv, context: EnvContext) -> AnyCheckedEnv:
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
        raise EnvError(
            f"{made.id} cannot be made: its creation raised {summarize_exception(error)}."
        ) from error


def play_randomly(env: AnyCheckedEnv, num_steps: int, seed: int) -> None:
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
        raise EnvError(f"{env.name}: {what} raised {summarize_exception(error)}.") from error


def sample_actions(env: AnyCheckedEnv, obs: dict[str, PyTree], seed: int) -> dict[str, Any]:
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


def _check_signature(name: str, env: Any) -> None:
    parameters = inspect.signature(env.reset).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    missing = [p for p in ("seed", "options") if p not in parameters and not takes_any]
    if missing:
        raise EnvError(
            f"{name}: reset must take the keyword arguments seed and options, but "
            f"{' and '.join(missing)} is missing: "
            "`def reset(self, *, seed=None, options=None)`, beginning with "
            "`super().reset(seed=seed)`."
        )
