"""Checks of constraints between settings; single values are checked when they are set."""

from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from jaxrl.config.agent_mapping import AgentMapping
from jaxrl.config.batch_plan import divisors, find_nearest, refuse_markers
from jaxrl.config.curriculum import check_curriculum
from jaxrl.config.modules import check_model_config
from jaxrl.config.multi_agent import (
    check_module_ids,
    make_agents_env,
    resolve_agents,
)
from jaxrl.config.offline import check_offline, check_offline_evaluation
from jaxrl.config.placement import check_placement
from jaxrl.config.settings.actor_critic import check_critics
from jaxrl.config.settings.multi_agent import MultiAgentSettings, PopulationPlay
from jaxrl.config.settings.run import DebuggingSettings, EvaluationSettings, FaultToleranceSettings
from jaxrl.config.settings.runners import EnvRunnersSettings, LearnersSettings
from jaxrl.envs.multi.made import MadeMultiEnv
from jaxrl.errors import ConfigError, JaxrlError
from jaxrl.metrics import DEFAULT_MODULE, check_key

if TYPE_CHECKING:
    from jaxrl.config.config import Config


EVALUATION_OVERRIDES = (
    "env",
    "env_config",
    "max_episode_steps",
    "explore",
    "evaluation_duration",
    "evaluation_duration_unit",
    "evaluation_num_envs",
)
"""Settings that `evaluation_config` may change; all others belong to the trained policy."""


def validate(config: "Config") -> None:
    """Check the constraints between settings.

    Raises:
        ConfigError: If settings contradict each other.
    """
    refuse_markers(config)
    evaluation = config.evaluation_settings
    if config.is_multi_agent:
        _check_agents(config)
    check_placement(config)
    check_offline(config)
    check_offline_evaluation(config)
    _check_num_envs_tuning(
        config.env_runners_settings, config.learners_settings, config.debugging_settings
    )
    _check_failures(
        config.fault_tolerance_settings,
        is_restart_explicit="restart_failed_env_runners" in config.explicit,
    )
    _check_devices(config.learners_settings)
    _check_intrinsic_reward(config)
    _check_clipping(config.environment_settings.clip_rewards)
    check_curriculum(config.environment_settings, evaluation.evaluation_interval)
    _check_evaluation(config)
    _check_score(config.checkpointing_settings.score_key, evaluation.evaluation_interval)
    if not config.is_multi_agent:
        check_critics(config.training_settings, type(config).training_settings)
        _check_single_agent(config.multi_agent_settings)
        check_model_config(config)
    config.plan()


def _check_num_envs_tuning(
    runners: EnvRunnersSettings, learners: LearnersSettings, debugging: DebuggingSettings
) -> None:
    """Raise if num_envs is to be tuned without a compiled program in this process."""
    if runners.num_envs_per_env_runner != "auto":
        return
    for name, value, allowed in (
        ("num_env_runners", runners.num_env_runners, (0,)),
        ("placement", runners.placement, ("auto", "in_graph")),
        ("num_learners", learners.num_learners, (0,)),
        ("jit", debugging.compiles, (True,)),
    ):
        if value not in allowed:
            raise ConfigError(
                "num_envs_per_env_runner='auto' measures the compiled program of this process, "
                f"got {name}={value!r}: set a number, or leave it out for the one nearest to 16."
            )


def check_sweep(num_envs: object) -> None:
    """Raise if a sweep is to tune its number of environments.

    All lanes must have the same shapes, which a measurement of a single run cannot determine.
    """
    if num_envs == "auto":
        raise ConfigError(
            "num_envs_per_env_runner='auto' is measured for a single run, but this config is a "
            "sweep: set a number, or leave it out for the one nearest to 16."
        )


def _check_failures(faults: FaultToleranceSettings, *, is_restart_explicit: bool) -> None:
    is_restarted = faults.restart_failed_env_runners and is_restart_explicit
    if faults.ignore_env_runner_failures and is_restarted:
        raise ConfigError(
            "ignore_env_runner_failures and restart_failed_env_runners are mutually exclusive, got "
            "True for both; set one of them to False."
        )


def _check_devices(learners: LearnersSettings) -> None:
    index = learners.local_device_idx
    if index is None:
        return
    if learners.num_devices not in ("auto", 1):
        raise ConfigError(
            f"local_device_idx={index} selects one device, got num_devices={learners.num_devices} "
            "as well; set only one of them."
        )
    if learners.num_learners > 0:
        raise ConfigError(
            f"local_device_idx={index} requires a learner in this process, got num_learners="
            f"{learners.num_learners}, whose devices Ray chooses; leave it out or set "
            "num_learners=0."
        )


def _check_intrinsic_reward(config: "Config") -> None:
    """Check the setting of a bonus, and that there is exploration for it to change."""
    training = config.training_settings
    name, coeff = "intrinsic_reward", "intrinsic_reward_coeff"
    if training.intrinsic_reward is None:
        if training.intrinsic_reward_coeff is not None:
            raise ConfigError(
                f"{coeff}={training.intrinsic_reward_coeff!r} scales a bonus, and {name}=None has none: "
                "set one, such as 'rnd', or leave it out."
            )
        return
    if config.is_offline:
        raise ConfigError(
            f"{name}={training.intrinsic_reward!r} pays for what is new to the policy, and recorded rows "
            "(input_) explore nothing: leave it out."
        )
    if config.is_multi_agent:
        raise ConfigError(
            f"{name}={training.intrinsic_reward!r} is for a single agent: leave it out, or give several "
            "agents a learner_connector of your own."
        )


def _check_clipping(clip: object) -> None:
    if isinstance(clip, tuple) and clip[0] >= clip[1]:
        raise ConfigError(
            f"clip_rewards must be a pair (low, high) with low below high, got {clip!r}; "
            f"did you mean {(clip[1], clip[0])!r}?"
        )


def _check_evaluation(config: "Config") -> None:
    evaluation = config.evaluation_settings
    envs, duration = evaluation.evaluation_num_envs, evaluation.evaluation_duration
    if duration == "auto":
        _check_auto_duration(evaluation)
    elif envs != "auto" and duration % envs:
        raise ConfigError(
            f"evaluation_num_envs must divide evaluation_duration={duration}, so that every "
            f"environment gets an equal share, got {envs}; use "
            f"{find_nearest(divisors(duration), envs)} or 'auto'."
        )
    if evaluation.evaluation_parallel_to_training:
        _check_parallel(evaluation)
    if evaluation.evaluation_config and not config.in_evaluation:
        _check_overrides(config, evaluation.evaluation_config)


def _check_parallel(evaluation: EvaluationSettings) -> None:
    if evaluation.evaluation_num_env_runners == 0:
        raise ConfigError(
            "evaluation_parallel_to_training=True evaluates in separate actors while this "
            "process trains, got evaluation_num_env_runners=0; set it to 1 or more, or "
            "evaluation_parallel_to_training=False."
        )
    if evaluation.custom_evaluation_function is not None:
        raise ConfigError(
            "evaluation_parallel_to_training=True cannot be combined with a "
            "custom_evaluation_function, which would access the Algorithm during training; leave "
            "one of them out."
        )


def _check_auto_duration(evaluation: EvaluationSettings) -> None:
    if not evaluation.evaluation_parallel_to_training:
        raise ConfigError(
            "evaluation_duration='auto' lasts as long as the concurrent training, got "
            "evaluation_parallel_to_training=False; set it to True, or a number of "
            f"{evaluation.evaluation_duration_unit} as evaluation_duration."
        )
    min_steps = evaluation.evaluation_auto_duration_min_env_steps_per_sample
    max_steps = evaluation.evaluation_auto_duration_max_env_steps_per_sample
    if min_steps > max_steps:
        raise ConfigError(
            f"evaluation_auto_duration_min_env_steps_per_sample={min_steps} must be at most "
            f"evaluation_auto_duration_max_env_steps_per_sample, got {max_steps}; lower the first "
            "or raise the second."
        )


_SEARCH_HINT = (
    "; explore=False searches without noise, and evaluate(planner={'num_simulations': 64}) by as many "
    "steps as that."
)


def _check_overrides(config: "Config", overrides: dict[str, object]) -> None:
    try:
        for name, value in config.resolve(overrides).items():
            if name not in EVALUATION_OVERRIDES:
                searches = name in ("num_simulations", "search")
                raise ConfigError(
                    f"evaluation does not read {name} (got {value!r}); it can override "
                    f"{', '.join(EVALUATION_OVERRIDES)}{_SEARCH_HINT if searches else '.'}"
                )
        evaluation_config = config.get_evaluation_config_object()
        if evaluation_config is not None:
            _check_evaluation(evaluation_config)
    except JaxrlError as error:
        raise type(error)(f"evaluation_config: {error}") from error


def _check_score(attribute: str | None, evaluation_interval: int | None) -> None:
    if attribute is None:
        return
    check_key(attribute, "checkpoint_score_attribute")
    if attribute.startswith("evaluation/") and not evaluation_interval:
        raise ConfigError(
            f"checkpoint_score_attribute={attribute!r} requires evaluation, but "
            f"evaluation_interval is {evaluation_interval!r}; set "
            "evaluation_interval=1 or score by 'env_runners/episode_return_mean'."
        )


_RLLIB_CAPACITY = 100
"""RLlib's default of `policy_map_capacity`, which its saved configs have."""

Kind = Literal["compiled", "host", "compiled team", "host team"]
"""Kinds of runs of several agents, by place of the environment, and whether agents are one team."""


class _Support(NamedTuple):
    """Values of a setting that runs of several agents support, and the reason."""

    name: str
    values: tuple[object, ...]
    reason: str
    kinds: tuple[Kind, ...] = get_args(Kind)


_COMPILED: tuple[Kind, ...] = ("compiled", "compiled team")
_ON_HOST: tuple[Kind, ...] = ("host", "host team")
_TEAMS: tuple[Kind, ...] = ("compiled team", "host team")
_IN_PROGRAM = "agents are trained in the compiled program of this process"
_TEAM_IN_PROCESS = "a team in Python is stepped and trained in this process; set 0"
_SINGLE_TASKS = "tasks are chosen for environments of a single agent; leave it out"
_SUPPORTED = (
    _Support("num_env_runners", (0,), f"{_IN_PROGRAM}; set 0", _COMPILED),
    _Support("num_env_runners", (0,), _TEAM_IN_PROCESS, ("host team",)),
    _Support("placement", ("auto", "in_graph"), f"{_IN_PROGRAM}; leave it out", _COMPILED),
    _Support(
        "placement",
        ("auto", "host"),
        "the environment is written in Python, which runs on the host; leave it out",
        _ON_HOST,
    ),
    _Support("num_learners", (0,), f"{_IN_PROGRAM}; set 0", _COMPILED),
    _Support("num_learners", (0,), _TEAM_IN_PROCESS, ("host team",)),
    _Support(
        "evaluation_num_env_runners", (0,), "agents are evaluated in this process; set 0", _COMPILED
    ),
    _Support("evaluation_num_env_runners", (0,), _TEAM_IN_PROCESS, ("host team",)),
    _Support(
        "broadcast_interval",
        (1,),
        "agents act with the newest parameters; set 1",
        (*_COMPILED, "host team"),
    ),
    _Support("curriculum", (None,), _SINGLE_TASKS),
    _Support("env_task_fn", (None,), _SINGLE_TASKS),
    _Support(
        "record_video",
        (False, None),
        "only episodes of a single agent are recorded; leave it out",
    ),
    _Support(
        "input_",
        ("sampler",),
        "recorded rows are those of one module; learn from them without env, for example with BC",
    ),
    _Support(
        "output", (None,), "a team's steps are those of all its members; leave it out", _TEAMS
    ),
    _Support(
        "batch_mode",
        ("truncate_episodes",),
        "rows that are pending at the end of a train batch go on in the next one; leave it out",
        ("host",),
    ),
    _Support(
        "gym_env_vectorize_mode",
        ("auto", "sync", "async"),
        "each copy of an environment of several agents is stepped by itself; use 'sync' or 'async'",
        ("host",),
    ),
    _Support(
        "gym_env_vectorize_mode",
        ("auto", "sync"),
        "copies of a team's environment are stepped in one process; leave it out",
        ("host team",),
    ),
    _Support(
        "env_runner_cls",
        (None,),
        "agents have a runner of their own kind; leave it out",
        ("host",),
    ),
    _Support(
        "reset_mode",
        ("auto",),
        "a Python environment is reset where its episode ends; leave it out",
        ("host",),
    ),
)


def _check_agents(config: "Config") -> None:
    """Check the constraints between the settings of several agents.

    Raises:
        ConfigError: If one is not supported with several agents, or a module's settings are wrong.
    """
    environment, settings = config.environment_settings, config.multi_agent_settings
    made = make_agents_env(environment, settings)
    check_supported(config, "compiled" if isinstance(made, MadeMultiEnv) else "host")
    agents = resolve_agents(environment, settings, made)
    check_module_ids(settings, config.rl_module_settings.rl_module_spec, agents)
    is_shared = any(
        sum(any(own[agent] == module for own in agents.players) for agent in agents.agents) > 1
        for module in agents.modules
    )
    if settings.observe_agent_id and not is_shared:
        raise ConfigError(
            "observe_agent_id=True has no effect: no module is shared, each plays a single agent; "
            "leave it out."
        )
    _check_evaluated(config.evaluation_settings.evaluation_num_envs, agents)
    if not agents.draws:
        if settings.self_play is not None:
            raise ConfigError(
                "league=SelfPlay(...) has no effect: the mapping draws no opponents; set one such as "
                "mapping=Seats('main', Draw()), with policies={'main': None, 'random': RandomRLModule}."
            )
        _check_capacity(settings, "the mapping draws no opponents")
    elif isinstance(settings.any_league, PopulationPlay):
        _check_capacity(settings, "learners of PopulationPlay(...) meet each other, not snapshots")
    for module in agents.modules:
        own = config.get_module_config(module)
        check_critics(own.training_settings, type(own).training_settings)
        check_model_config(own)


def _check_evaluated(number: object, agents: AgentMapping) -> None:
    """Raise ConfigError if a module plays in none of the environments of an evaluation."""
    if not isinstance(number, int):
        return
    playing = {module for own in agents.players[:number] for module in own.values()}
    absent = next((m for m in agents.modules if m not in playing and not agents.choices), None)
    if absent is not None:
        raise ConfigError(
            f"evaluation_num_envs={number} leaves no environment to {absent!r}, because the mapping "
            f"differs between {len(agents.patterns)} successive ones: set {len(agents.patterns)}, or "
            "leave it out."
        )


def check_supported(config: "Config", kind: Kind) -> None:
    """Raise ConfigError if a setting asks for what several agents do not have."""
    for setting in _SUPPORTED:
        is_own = config.get_name_table().find_current_name(setting.name) == setting.name
        if not is_own or kind not in setting.kinds:
            continue
        value = config[setting.name]
        if value not in setting.values:
            raise ConfigError(
                f"{setting.name}={value!r} is not supported with several agents: {setting.reason}."
            )
    number, runners = config.multi_agent_settings.max_agents, config.env_runners_settings
    if runners.num_envs_per_env_runner == "auto":
        raise ConfigError(
            "num_envs_per_env_runner='auto' is not supported with several agents: it measures a "
            "program with a single module; set a number, or leave it out."
        )
    if kind == "host" and number is not None and runners.gym_env_vectorize_mode == "async":
        raise ConfigError(
            f"gym_env_vectorize_mode='async' is not supported with max_agents={number!r}, because agents "
            "without known ids have their modules from the process that acts; use 'sync', or "
            "num_env_runners for actors."
        )


def _check_capacity(settings: MultiAgentSettings, reason: str) -> None:
    """Raise ConfigError if a number of opponents is set that has no effect."""
    capacity = settings.policy_map_capacity
    if capacity not in (MultiAgentSettings().policy_map_capacity, _RLLIB_CAPACITY):
        raise ConfigError(f"policy_map_capacity={capacity} has no effect: {reason}; leave it out.")


def _check_single_agent(settings: MultiAgentSettings) -> None:
    """Raise ConfigError if a setting of several agents has no effect, because there is one."""
    _check_capacity(settings, "the environment has a single agent")
    for name in (
        "policies",
        "policy_mapping_fn",
        "policies_to_train",
        "league",
        "algorithm_config_overrides_per_module",
        "observe_agent_id",
        "share_rewards",
        "max_agents",
    ):
        value = vars(settings)[name]
        if value and not (name == "policies_to_train" and value == [DEFAULT_MODULE]):
            raise ConfigError(
                f"{name}={value!r} has no effect: the environment has a single agent, whose settings "
                "are those of the config; leave it out."
            )
