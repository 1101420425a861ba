"""Replay buffer of a config."""

import dataclasses
import inspect
import logging
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
from jaxrl.buffers.host import HostBuffer
from jaxrl.buffers.replay import PackedReplayBuffer, Prioritization, ReplayBuffer
from jaxrl.buffers.sequence import AnyReplayBuffer, SequenceReplayBuffer
from jaxrl.config.batch_plan import BatchPlan, ReplayPlan, divisors
from jaxrl.config.settings.replay import (
    HOST,
    PRIORITIZED,
    BufferSettings,
    HindsightSettings,
    parse_n_step,
)
from jaxrl.config.settings.training import EnvironmentSettings, Training
from jaxrl.connectors.pipelines import LearnerPipeline
from jaxrl.core.types import PyTree
from jaxrl.envs.contract import check_flag, check_reward, describe_type, trace_abstractly
from jaxrl.envs.registry import AnyMadeEnv, MadeEnv
from jaxrl.envs.space_checks import abstract_value
from jaxrl.envs.wrappers import find_compute_reward
from jaxrl.errors import ConfigError, EnvError, summarize_exception
from jaxrl.modules.encoder_module import EncoderModule
from jaxrl.modules.rl_module import RLModule
from jaxrl.ops.schedules import Schedule
from jaxrl.training.rollout import PolicyStep

if TYPE_CHECKING:
    from jaxrl.config.config import Config


_TYPE = "replay_buffer_config['type']='hindsight'"
_SIGNATURE = "compute_reward(achieved_goal, desired_goal, params) -> (reward, terminated)"
_KEY = "replay_buffer_config['compute_reward']"


def make_hindsight(
    settings: HindsightSettings,
    made: AnyMadeEnv,
    env_params: PyTree,
    acting: PolicyStep,
    learner_pipeline: LearnerPipeline,
    n_step: int | tuple[int, int],
) -> Hindsight:
    """Make the replacement of goals.

    Args:
        settings: Settings of the replay buffer's type 'hindsight'.
        made: Environment, of a module's agents in a run of several.
        env_params: Parameters of its function that recomputes rewards; None without.
        acting: Module and connectors.
        learner_pipeline: Connectors of the learner.
        n_step: Setting of the same name.

    Raises:
        ConfigError: If a setting is incompatible with it.
        EnvError: If the environment has no goals, or no function that recomputes its rewards.
    """
    _check_single_steps(acting, learner_pipeline, n_step)
    goal = _find_goal(made.id, acting.obs_pipeline.space)
    function = settings.compute_reward or _get_method(made)
    _check_compute_reward(made.id, function, goal, env_params)
    horizon = settings.horizon or made.max_episode_steps
    if horizon is None:
        raise ConfigError(
            f"{_TYPE} searches goals in the rows up to the time limit, and {made.id} has none that is "
            "known: set replay_buffer_config['horizon'] to a number of rows."
        )
    return Hindsight(
        compute_reward=function,
        env_params=env_params,
        goal_fraction=settings.goal_fraction,
        horizon=horizon,
        strategy=settings.strategy,
    )


def _check_single_steps(
    acting: PolicyStep, learner_pipeline: LearnerPipeline, n_step: int | tuple[int, int]
) -> None:
    """Raise if rows are not single steps, or not stored as the environment gave them."""
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


def _check_no_tasks(settings: EnvironmentSettings, env_id: str) -> None:
    """Raise for tasks of environments whose parameters the learner does not have."""
    for name in ("curriculum", "env_task_fn"):
        if (value := getattr(settings, name)) is not None:
            raise ConfigError(
                f"{_TYPE} recomputes rewards with the parameters of {env_id}, which {name}="
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


logger = logging.getLogger("jaxrl")

_PREFIX = "buffer."


def make_replay_buffer(
    config: "Config",
    plan: ReplayPlan,
    made: AnyMadeEnv,
    policy_step: PolicyStep,
    learner_pipeline: LearnerPipeline,
    *,
    in_graph: bool,
) -> AnyReplayBuffer:
    """Make the replay buffer according to its settings.

    Args:
        config: Config of the run.
        plan: Batch arithmetic.
        made: Environment.
        policy_step: Module and connectors.
        learner_pipeline: Connectors of the learner.
        in_graph: Whether the environments are in the compiled program.

    Raises:
        ConfigError: If a setting is incompatible with replay.
        EnvError: If the environment does not have what replay in hindsight needs.
    """
    check_temporal(policy_step, "Replay stores observations after")
    settings, training, module = (
        config.get_buffer_settings(),
        config.training_settings,
        policy_step.module,
    )
    is_one_of_several = config.module_id is not None
    buffer_class = _choose_buffer_class(
        settings, module, in_graph=in_graph, is_one_of_several=is_one_of_several
    )
    hindsight = None
    if settings.hindsight is not None and not config.in_evaluation:
        if made.is_jax and not in_graph:
            _check_no_tasks(config.environment_settings, made.id)
        params = made.params if isinstance(made, MadeEnv) and not is_one_of_several else None
        hindsight = make_hindsight(
            settings.hindsight, made, params, policy_step, learner_pipeline, training.n_step
        )
    prioritization = None
    if settings.kind == PRIORITIZED:
        beta = Schedule.from_setting(settings.beta, name="replay_buffer_config['beta']")
        prioritization = Prioritization(alpha=settings.alpha, beta=beta)
    length, length_name = 1, "max_seq_len"
    if module.is_stateful:
        length = config.rows_per_window or get_max_seq_len(module)
        length_name = config.window_setting if config.rows_per_window else length_name
    check_whole_sequences(
        training,
        plan.train_batch_size,
        plan.num_shards,
        length if module.is_stateful else None,
        length_name,
        has_memory=module.is_stateful,
    )
    rows = training.burn_in_len + 2 * length
    if module.is_stateful and rows > plan.buffer_length:
        raise ConfigError(
            f"burn_in_len={training.burn_in_len} + {length_name}={length} needs room for at least "
            f"{rows} rows of each environment, and the buffer holds {plan.buffer_length}; set "
            f"replay_buffer_config['capacity'] to at least {rows * plan.num_envs}."
        )
    replay = buffer_class(
        length=plan.buffer_length,
        num_envs=plan.num_envs,
        num_shards=plan.num_shards,
        batch_size=plan.train_batch_size // length,
        num_updates=plan.num_minibatches,
        n_step=parse_n_step(training.n_step),
        learning_starts=training.num_steps_sampled_before_learning_starts,
        prioritization=prioritization,
        allow_gaps=not in_graph,
        in_host_memory=settings.storage == HOST,
        hindsight=hindsight,
        **(settings.options if settings.host_class is None else {}),
    )
    if not module.is_stateful:
        return replay
    return SequenceReplayBuffer(
        replay=dataclasses.replace(replay, prioritization=None),
        prioritization=prioritization,
        sequence_length=length,
        burn_in=training.burn_in_len,
        period=1 if prioritization is None else _period(plan.buffer_length, length),
    )


def _choose_buffer_class(
    settings: BufferSettings, module: RLModule, *, in_graph: bool, is_one_of_several: bool
) -> type[ReplayBuffer]:
    """Return the class of the storage.

    Raises:
        ConfigError: If the storage, or a class of a user's, is incompatible with the run.
    """
    if settings.storage == HOST and is_one_of_several:
        raise ConfigError(
            f"{_describe_host_storage(settings)} is not supported with several agents, whose buffers are "
            "in the memory of the learner's device: set 'storage' to 'device' and 'type' to 'uniform' "
            "or 'prioritized'."
        )
    if settings.storage == HOST and in_graph:
        instead = "subclass jaxrl.ReplayBuffer" if settings.host_class else "'storage' to 'device'"
        raise ConfigError(
            f"{_describe_host_storage(settings)} keeps the buffer where the compiled program cannot "
            "reach it: set placement='host' to step the environment from Python, or "
            f"{instead}."
        )
    given = settings.host_class or settings.buffer_class
    if given is not ReplayBuffer and module.is_stateful:
        raise ConfigError(
            f"replay_buffer_config['type']={given.__name__} draws single transitions, and "
            f"{type(module).__name__} learns from sequences: use 'uniform' or 'prioritized', or a "
            "module without memory."
        )
    if not is_one_of_several:
        return settings.buffer_class
    if given is not ReplayBuffer:
        raise ConfigError(
            f"replay_buffer_config['type']={given.__name__} stores rows of a single agent, and agents "
            "come and go: use 'uniform' or 'prioritized'."
        )
    return ReplayBuffer if module.is_stateful else PackedReplayBuffer


def _describe_host_storage(settings: BufferSettings) -> str:
    if settings.host_class is None:
        return "replay_buffer_config['storage']='host'"
    return f"replay_buffer_config['type']={settings.host_class.__name__}"


def make_host_buffer(settings: BufferSettings, seed: int) -> HostBuffer | None:
    """Make the buffer of a user's class with RLlib's methods; None if there is none.

    Raises:
        ConfigError: If its constructor raises.
    """
    if settings.host_class is None:
        return None
    parameters = inspect.signature(settings.host_class).parameters
    given: dict[str, Any] = {"capacity": settings.capacity, **settings.options}
    if "seed" in parameters:
        given["seed"] = seed
    try:
        return settings.host_class(**given)
    except Exception as error:
        arguments = ", ".join(f"{name}={value!r}" for name, value in given.items())
        raise ConfigError(
            f"{settings.host_class.__name__}({arguments}) of replay_buffer_config raised "
            f"{summarize_exception(error)}."
        ) from error


def _period(rows: int, length: int) -> int:
    """Return half of a sequence, as in R2D2 (Kapturowski et al. 2019), or the divisor below."""
    return max(n for n in divisors(rows) if n <= max(1, length // 2))


def check_whole_sequences(
    training: Training,
    train_batch_size: int,
    num_shards: int,
    length: int | None,
    length_name: str = "max_seq_len",
    *,
    has_memory: bool,
) -> None:
    """Check that rows to learn from are whole sequences, if they are any.

    Args:
        training: Settings of the learner.
        train_batch_size: Number of rows per gradient step.
        num_shards: Number of logical shards.
        length: Number of rows of a sequence; None for single rows.
        length_name: Setting of that number.
        has_memory: Whether the module has memory.

    Raises:
        ConfigError: If they are not, or a setting for memory is set without it.
    """
    if not has_memory:
        for name in ("burn_in_len", "zero_init_states"):
            if value := getattr(training, name, False):
                raise ConfigError(
                    f"{name}={value} has no effect on a module without memory; set use_lstm "
                    "or use_attention in model_config, or leave it out."
                )
    if length is None:
        return
    unit = length * num_shards
    if train_batch_size % unit:
        raise ConfigError(
            f"train_batch_size={train_batch_size} must be whole sequences of {length_name}="
            f"{length} rows for each of num_shards={num_shards}; set it to "
            f"{max(1, round(train_batch_size / unit)) * unit}."
        )


def check_temporal(acting: PolicyStep, what: str) -> None:
    """Check that no running statistics apply before a temporal connector.

    Observations after temporal connectors are stored as the module saw them, so the statistics must
    not change afterwards.

    Args:
        acting: Policy with its connectors.
        what: Beginning of the message, before the connectors' names.

    Raises:
        ConfigError: If there are such statistics.
    """
    pipeline = acting.obs_pipeline
    if pipeline.temporal and pipeline.has_statistics:
        names = " and ".join(connector.name for connector in pipeline.temporal)
        raise ConfigError(
            f"{what} {names}, so their normalization would become stale "
            "under a running filter: use observation_filter='NoFilter' with it, or stack frames in "
            "the environment."
        )


DEFAULT_MAX_SEQ_LEN = 20


def get_max_seq_len(module: RLModule) -> int:
    """Return the setting for modules of the library, RLlib's default for others."""
    if isinstance(module, EncoderModule):
        return module.settings.max_seq_len
    return DEFAULT_MAX_SEQ_LEN


def resolve_sequence_length(plan: BatchPlan, module: RLModule) -> int | None:
    """Return the number of rows per sequence in minibatches; None without sequences.

    It is the largest number up to `max_seq_len` that divides the rollout, with whole sequences in
    every minibatch of each shard.

    Raises:
        ConfigError: If that is less than half of the requested length.
    """
    if isinstance(plan, ReplayPlan) or not module.is_stateful:
        return None
    if plan.sequence_length is not None:
        return plan.sequence_length
    steps, most = plan.rollout_fragment_length, get_max_seq_len(module)
    columns = plan.num_envs // plan.num_shards
    whole = [
        n
        for n in divisors(steps)
        if (steps // n * columns / plan.minibatches_per_epoch).denominator == 1
    ]
    length = max((n for n in whole if n <= most), default=0)
    if 2 * length < min(most, steps):
        longer = [n for n in whole if n > most]
        rows = min(most, steps) * plan.num_shards
        instead = f"max_seq_len to {longer[0]}, or " if longer else ""
        raise ConfigError(
            f"max_seq_len={most} must allow sequences that divide rollout_fragment_length={steps} "
            f"and leave each minibatch (minibatch_size={plan.minibatch_size}) whole ones of every "
            f"shard, but the longest that do have {length} rows; set {instead}minibatch_size to a "
            f"multiple of {rows}, and rollout_fragment_length to a multiple of {min(most, steps)}."
        )
    return length
