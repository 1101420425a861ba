"""Replay in hindsight of a config: its goals and the function that recomputes rewards, checked."""

from typing import TYPE_CHECKING, Any

import gymnasium
import jax
from gymnasium import spaces

from jaxrl.buffers.hindsight import (
    ACHIEVED_GOAL,
    DESIRED_GOAL,
    OBSERVATION,
    ComputeReward,
    Hindsight,
)
from jaxrl.config.settings.replay import HindsightSettings, parse_n_step
from jaxrl.connectors.pipelines import LearnerPipeline
from jaxrl.core.types import PyTree
from jaxrl.envs.contract import check_flag, check_reward, describe_type, trace_abstractly
from jaxrl.envs.registry import AnyMadeEnv, MadeEnv
from jaxrl.envs.space_checks import abstract_value
from jaxrl.envs.wrappers import find_compute_reward
from jaxrl.errors import ConfigError, EnvError
from jaxrl.training.rollout import PolicyStep

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

_TYPE = "replay_buffer_config['type']='hindsight'"
_SIGNATURE = "compute_reward(achieved_goal, desired_goal, params) -> (reward, terminated)"
_KEY = "replay_buffer_config['compute_reward']"


def make_hindsight(
    config: "AlgorithmConfig",
    settings: HindsightSettings | None,
    made: AnyMadeEnv,
    acting: PolicyStep,
    learner_pipeline: LearnerPipeline,
    *,
    in_graph: bool,
) -> Hindsight | None:
    """Make the replacement of goals; None without, or where nothing is learned.

    Args:
        config: Config of the run.
        settings: Settings of the replay buffer's type 'hindsight'; None for other types.
        made: Environment, of a module's agents in a run of several.
        acting: Module and connectors.
        learner_pipeline: Connectors of the learner.
        in_graph: Whether the environments are in the compiled program.

    Raises:
        ConfigError: If a setting is incompatible with it.
        EnvError: If the environment has no goals, or no function that recomputes its rewards.
    """
    if settings is None or config.in_evaluation:
        return None
    _check_config(config, acting, learner_pipeline)
    if not in_graph and isinstance(made, MadeEnv):
        _check_no_tasks(config, made)
    goal = _find_goal(made.id, acting.obs_pipeline.space)
    function = settings.compute_reward or _get_method(made)
    params = made.params if isinstance(made, MadeEnv) and config.module_id is None else None
    _check_compute_reward(made.id, function, goal, params)
    horizon = settings.horizon or made.max_episode_steps
    if horizon is None:
        raise ConfigError(
            f"{_TYPE} searches goals in the rows up to the time limit, and {made.id} has none that is "
            "known: set replay_buffer_config['horizon'] to a number of rows."
        )
    return Hindsight(
        compute_reward=function,
        env_params=params,
        goal_fraction=settings.goal_fraction,
        horizon=horizon,
        strategy=settings.strategy,
    )


def _check_config(
    config: "AlgorithmConfig", acting: PolicyStep, learner_pipeline: LearnerPipeline
) -> None:
    """Raise if rows are not single steps, or not stored as the environment gave them."""
    n_step = config.training_settings.n_step
    if parse_n_step(n_step) != (1, 1):
        raise ConfigError(
            f"{_TYPE} recomputes the reward of single steps, got n_step={n_step!r}: set n_step=1."
        )
    if acting.module.is_stateful:
        raise ConfigError(
            f"{_TYPE} draws single transitions, and {type(acting.module).__name__} learns from "
            "sequences: use 'uniform' or 'prioritized', or a module without memory."
        )
    temporal = " and ".join(connector.name for connector in acting.obs_pipeline.temporal)
    if temporal:
        raise ConfigError(
            f"{_TYPE} replaces goals in observations of the environment, and those after {temporal} "
            "are stored instead: leave it out of env_to_module_connector and model_config."
        )
    if learner_pipeline.names:
        names = " and ".join(learner_pipeline.names)
        raise ConfigError(
            f"{_TYPE} recomputes rewards as the environment gives them, and {names} would change those "
            "that are stored: leave out clip_rewards, normalize_rewards and learner_connector."
        )


def _check_no_tasks(config: "AlgorithmConfig", made: MadeEnv) -> None:
    """Raise for tasks of environments whose parameters the learner does not have."""
    for name in ("curriculum", "env_task_fn"):
        if (value := config[name]) is not None:
            raise ConfigError(
                f"{_TYPE} recomputes rewards with the parameters of {made.id}, which {name}="
                f"{value!r} changes in the runners alone: set placement='in_graph'."
            )


def _find_goal(name: str, space: gymnasium.Space[Any]) -> PyTree:
    """Return the abstract value of a goal.

    Raises:
        EnvError: If observations have no goals, or two kinds of them.
    """
    parts = (OBSERVATION, ACHIEVED_GOAL, DESIRED_GOAL)
    own = space.spaces if isinstance(space, spaces.Dict) else {}
    missing = [part for part in parts if part not in own]
    if missing:
        observed = " ".join(str(space).split())
        raise EnvError(
            f"{_TYPE} needs observations that are a Dict with {', '.join(parts)}, but {name} has no "
            f"{' and no '.join(missing)}: it observes {observed}."
        )
    achieved, desired = (abstract_value(own[part]) for part in (ACHIEVED_GOAL, DESIRED_GOAL))
    if jax.tree.structure(achieved) != jax.tree.structure(desired) or any(
        (one.shape, one.dtype) != (other.shape, other.dtype)
        for one, other in zip(jax.tree.leaves(achieved), jax.tree.leaves(desired), strict=True)
    ):
        raise EnvError(
            f"{_TYPE} puts achieved goals in place of desired ones, but those of {name} differ: "
            f"{own[ACHIEVED_GOAL]} and {own[DESIRED_GOAL]}."
        )
    return achieved


def _get_method(made: AnyMadeEnv) -> ComputeReward:
    """Return the environment's function that recomputes rewards.

    Raises:
        EnvError: If it has none that can be compiled.
    """
    if not isinstance(made, MadeEnv):
        raise EnvError(
            f"{_TYPE} recomputes rewards in compiled functions, and {made.id} is not written in JAX: "
            f"set {_KEY} to a function {_SIGNATURE} that is."
        )
    function = find_compute_reward(made.env)
    if function is None:
        raise EnvError(
            f"{_TYPE} needs {_SIGNATURE}, which {made.id} does not define: add the method, or set "
            f"{_KEY} to such a function."
        )
    return function


def _check_compute_reward(name: str, function: ComputeReward, goal: PyTree, params: PyTree) -> None:
    """Raise EnvError if the function cannot be compiled, or does not return what it should."""
    label = f"{name}: compute_reward"
    result = trace_abstractly(label, function, goal, goal, params)
    if not (isinstance(result, tuple) and len(result) == 2):
        raise EnvError(f"{label} must return (reward, terminated), got {describe_type(result)}.")
    check_reward(f"{label}'s reward", result[0])
    check_flag(f"{label}'s terminated", result[1])
