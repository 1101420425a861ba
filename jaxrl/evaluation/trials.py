"""Evaluation of trials by episode, which shows what a policy learns of a task by memory (RL²)."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxrl.assembly.assemble import make_env
from jaxrl.core.keys import make_key
from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, PyTree
from jaxrl.envs.base import JaxEnv
from jaxrl.envs.registry import MadeEnv
from jaxrl.envs.trials import Trials
from jaxrl.envs.vector import VectorEnv, VectorState
from jaxrl.envs.wrappers import TimeLimit
from jaxrl.errors import ConfigError
from jaxrl.runners.compiled_runner import CompiledRunnerGroup
from jaxrl.training.evaluate import DEFAULT_MAX_EPISODE_STEPS
from jaxrl.training.report import to_host
from jaxrl.training.rollout import ActorCarry, ActorState, PolicyStep, make_env_index

if TYPE_CHECKING:
    from jaxrl.algorithm import Algorithm
    from jaxrl.config.config import Config

NORMAL_95 = 1.96
"""Half the width of a 95 % interval of a mean, in standard errors."""


@pytree
class PlayedTrials:
    """One trial of each environment.

    `returns` are those of its episodes. `is_complete` is False where its last episode did not end, or
    a value was not finite.
    """

    returns: Float[Array, "n k"]
    length: Int[Array, " n"]
    is_complete: Bool[Array, " n"]


def evaluate_trials(
    algorithm: "Algorithm", *, num_trials: int | None = None, explore: bool | None = None
) -> dict[str, Any]:
    """Play trials with the current policy, without affecting training; return the returns by episode.

    It is also a `custom_evaluation_function`. The result has, under `custom_metrics`,
    `episode_1_return_mean` to that of the last episode of a trial, and `gain_mean`, by how much the last
    episode's return exceeds the first one's, with its 95 % interval over trials, `gain_low` and
    `gain_high`. Under `env_runners`, episodes are whole trials, as everywhere.

    Args:
        algorithm: Run in `Trials`, or with an `evaluation_config` that is.
        num_trials: Number of trials; None for `evaluation_duration`.
        explore: Whether the policy explores; None is as configured for evaluations.

    Raises:
        ConfigError: If the environment is no `Trials`, or no trial was complete.
    """
    config = algorithm.config.get_evaluation_config_object()
    assert config is not None
    made = make_env(config)
    if not isinstance(made, MadeEnv) or _find_trials(made.env) is None:
        raise ConfigError(
            f"evaluate_trials plays trials, and {made.id} is no jaxrl.envs.Trials: evaluate it with "
            "evaluate()."
        )
    if explore is None:
        explore = config.env_runners_settings.explore
    policy, number = algorithm.get_policy(explore=explore), _get_number(config, num_trials)
    limit = made.max_episode_steps or DEFAULT_MAX_EPISODE_STEPS
    play = _make_program(policy.inference.policy_step, made.env, limit, number, explore)
    key = jax.random.fold_in(make_key(config.debugging_settings.run_seed), algorithm.iteration)
    played = to_host(play(policy.actor, _get_params(algorithm, made), key))
    return _summarize(made.id, played)


def _find_trials(env: JaxEnv[Any, Any]) -> Trials | None:
    inner = env.env if isinstance(env, TimeLimit) else env
    return inner if isinstance(inner, Trials) else None


def _get_number(config: "Config", num_trials: int | None) -> int:
    settings = config.evaluation_settings
    number, unit = settings.evaluation_duration, settings.evaluation_duration_unit
    if num_trials is None and (number == "auto" or unit != "episodes"):
        raise ConfigError(
            f"evaluation_duration={number!r} with evaluation_duration_unit={unit!r} is no number of "
            "trials: set a number of episodes, or give num_trials."
        )
    number = number if num_trials is None else num_trials
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ConfigError(f"num_trials={number!r} must be an integer of at least 1.")
    return number


def _get_params(algorithm: "Algorithm", made: MadeEnv) -> PyTree:
    """Return the current parameters of the run's environment, or those of an evaluation's own."""
    changed = algorithm.config.evaluation_settings.evaluation_config or {}
    if {"env", "env_config"} & changed.keys():
        return made.params
    runners = algorithm.env_runner_group
    if isinstance(runners, CompiledRunnerGroup):
        return algorithm.env_params
    return made.params if runners.task is None else runners.task


def _summarize(env_id: str, played: PlayedTrials) -> dict[str, Any]:
    """Return the result of an evaluation."""
    returns = played.returns[played.is_complete].astype(np.float64)
    lengths, number = played.length[played.is_complete], len(returns)
    if not number:
        raise ConfigError(
            f"No trial of {env_id} reached the end of its last episode: raise max_episode_steps, which "
            "limits whole trials, or check that observations and rewards are finite."
        )
    gain, total = returns[:, -1] - returns[:, 0], returns.sum(axis=1)
    error = NORMAL_95 * gain.std(ddof=1) / np.sqrt(number) if number > 1 else np.nan
    by_episode = {
        f"episode_{i}_return_mean": float(mean) for i, mean in enumerate(returns.mean(axis=0), 1)
    }
    return {
        "env_runners": {
            "num_episodes": number,
            "num_episodes_cut": len(played.is_complete) - number,
            "num_env_steps_sampled": int(played.length.sum()),
            "episode_return_mean": float(total.mean()),
            "episode_return_min": float(total.min()),
            "episode_return_max": float(total.max()),
            "episode_return_std": float(total.std()),
            "episode_len_mean": float(lengths.mean()),
            "episode_len_min": int(lengths.min()),
            "episode_len_max": int(lengths.max()),
        },
        "custom_metrics": {
            **by_episode,
            "gain_mean": float(gain.mean()),
            "gain_low": float(gain.mean() - error),
            "gain_high": float(gain.mean() + error),
        },
    }


@pytree
class _Loop:
    env: VectorState
    acting: ActorCarry
    played: PlayedTrials
    is_over: Bool[Array, " n"]
    num_steps: Int[Array, ""]


@functools.lru_cache(maxsize=4)
def _make_program(
    policy_step: PolicyStep, env: JaxEnv[Any, Any], limit: int, number: int, explore: bool
) -> Callable[[ActorState, PyTree, Key], PlayedTrials]:
    """Return the compiled function that plays one trial in each of several environments.

    Args:
        policy_step: Module and connectors.
        env: Trials, with their time limit if they have one.
        limit: Maximum number of steps of a trial.
        number: Number of environments.
        explore: Whether the policy explores.
    """
    trials = _find_trials(env)
    assert trials is not None
    last = trials.num_episodes - 1
    worker = policy_step.with_envs(VectorEnv(env, env.reset_mode))

    def step(actor: ActorState, params: PyTree, loop: _Loop) -> _Loop:
        state = loop.env.env.inner if isinstance(env, TimeLimit) else loop.env.env
        row = jax.tree.map(lambda x: x[0], worker.sample_inputs(loop.env, 1, params))
        vector, acting, out, _ = worker.step(actor, loop.env, loop.acting, row, params, explore)
        episode = jax.nn.one_hot(state.num_ended, last + 1, dtype=jnp.float32)
        reward = jnp.where(loop.is_over, 0.0, out.reward)
        is_complete = out.ended & ~loop.is_over & (state.num_ended == last)
        return _Loop(
            env=vector,
            acting=acting,
            played=PlayedTrials(
                returns=loop.played.returns + episode * reward[:, None],
                length=loop.played.length + ~loop.is_over,
                is_complete=loop.played.is_complete | is_complete,
            ),
            is_over=loop.is_over | out.ended | ~out.mask,
            num_steps=loop.num_steps + 1,
        )

    @jax.jit
    def play(actor: ActorState, params: PyTree, key: Key) -> PlayedTrials:
        none = jnp.zeros((number,), bool)
        start = _Loop(
            env=worker.env.reset(key, make_env_index(number), params),
            acting=worker.initial_carry(number),
            played=PlayedTrials(
                returns=jnp.zeros((number, last + 1), jnp.float32),
                length=jnp.zeros((number,), jnp.int32),
                is_complete=none,
            ),
            is_over=none,
            num_steps=jnp.zeros((), jnp.int32),
        )

        def is_running(loop: _Loop) -> Bool[Array, ""]:
            return (loop.num_steps < limit) & ~loop.is_over.all()

        return jax.lax.while_loop(is_running, lambda loop: step(actor, params, loop), start).played

    return play
