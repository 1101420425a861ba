"""AlgorithmConfig, the config builder with the API of RLlib's class of the same name.

What plans, checks and explains a config, and knows environments, is imported by the methods that use
it, so that a config can be written soon after its import.
"""

from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from jaxrl.config.builder import ConfigBuilder
from jaxrl.config.fields import Flag, fluent
from jaxrl.config.modules import resolve_module_spec
from jaxrl.config.notes import announce_notes, describe_notes
from jaxrl.config.registry import load_run_class
from jaxrl.config.seed import draw_seed
from jaxrl.config.settings import multi_agent as multi_agent_groups
from jaxrl.config.settings import offline as offline_groups
from jaxrl.config.settings import run as run_groups
from jaxrl.config.settings import runners as runner_groups
from jaxrl.config.settings import training as training_groups
from jaxrl.config.settings.actor_critic import (
    ActorCriticTraining,
    BootstrappedTraining,
    EnsembleCritics,
    TwinCritics,
)
from jaxrl.config.settings.replay import OffPolicyTraining
from jaxrl.errors import ConfigError, HostLanesError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import gymnasium

    from jaxrl.algorithm import Algorithm
    from jaxrl.config.batch_plan import BatchPlan, MultiAgentPlan
    from jaxrl.config.settings.multi_agent import PolicySpec
    from jaxrl.envs.multi.groups import GroupReward
    from jaxrl.modules.rl_module import MultiRLModuleSpec, RLModuleSpec


class AlgorithmConfig(ConfigBuilder):
    """Settings of a run.

    Every group is a frozen dataclass in `<group>_settings`, changed by the method `<group>()`,
    which returns the config. A setting can also be read and set flat: `config.lr`,
    `config["lr"]`, `config.lr = 3e-4`.
    """

    algo_name: ClassVar[str] = ""
    learns: ClassVar[bool] = True
    requires_data: ClassVar[bool] = False
    """True if the algorithm learns from recorded data alone."""
    learns_in_epochs: ClassVar[bool] = False
    """True if recorded rows are learned from in epochs by default, as in supervised learning."""
    window_setting: ClassVar[str] = "window_length"
    """Setting that is the number of rows of `rows_per_window`."""
    is_async: ClassVar[bool] = False
    """True if runners continue to sample during updates of the learner, as in IMPALA."""
    groups_agents: ClassVar[bool] = False
    """True if the agents of an environment are learned as one agent, as in QMIX."""
    learns_member_rewards: ClassVar[bool] = False
    """True if these agents also learn from the rewards of each, as in MADDPG."""

    environment_settings: training_groups.EnvironmentSettings = (
        training_groups.EnvironmentSettings()
    )
    env_runners_settings: runner_groups.EnvRunnersSettings = runner_groups.EnvRunnersSettings()
    external_settings: runner_groups.ExternalSettings = runner_groups.ExternalSettings()
    offline_data_settings: offline_groups.OfflineDataSettings = offline_groups.OfflineDataSettings()
    training_settings: Any = training_groups.Training()
    learners_settings: runner_groups.LearnersSettings = runner_groups.LearnersSettings()
    rl_module_settings: training_groups.RLModuleSettings = training_groups.RLModuleSettings()
    multi_agent_settings: multi_agent_groups.MultiAgentSettings = (
        multi_agent_groups.MultiAgentSettings()
    )
    evaluation_settings: run_groups.EvaluationSettings = run_groups.EvaluationSettings()
    fault_tolerance_settings: run_groups.FaultToleranceSettings = (
        run_groups.FaultToleranceSettings()
    )
    resources_settings: runner_groups.ResourcesSettings = runner_groups.ResourcesSettings()
    python_environment_settings: runner_groups.PythonEnvironmentSettings = (
        runner_groups.PythonEnvironmentSettings()
    )
    reporting_settings: run_groups.ReportingSettings = run_groups.ReportingSettings()
    checkpointing_settings: run_groups.CheckpointingSettings = run_groups.CheckpointingSettings()
    debugging_settings: run_groups.DebuggingSettings = run_groups.DebuggingSettings()
    callbacks_settings: run_groups.CallbacksSettings = run_groups.CallbacksSettings()
    sweep_settings: run_groups.SweepSettings = run_groups.SweepSettings()

    environment = fluent("environment_settings", training_groups.EnvironmentSettings)
    env_runners = fluent("env_runners_settings", runner_groups.EnvRunnersSettings)
    external = fluent("external_settings", runner_groups.ExternalSettings)
    offline_data = fluent("offline_data_settings", offline_groups.OfflineDataSettings)
    training = fluent("training_settings", training_groups.Training)
    learners = fluent("learners_settings", runner_groups.LearnersSettings)
    rl_module = fluent("rl_module_settings", training_groups.RLModuleSettings)
    multi_agent = fluent("multi_agent_settings", multi_agent_groups.MultiAgentSettings)
    evaluation = fluent("evaluation_settings", run_groups.EvaluationSettings)
    fault_tolerance = fluent("fault_tolerance_settings", run_groups.FaultToleranceSettings)
    resources = fluent("resources_settings", runner_groups.ResourcesSettings)
    python_environment = fluent(
        "python_environment_settings", runner_groups.PythonEnvironmentSettings
    )
    reporting = fluent("reporting_settings", run_groups.ReportingSettings)
    checkpointing = fluent("checkpointing_settings", run_groups.CheckpointingSettings)
    debugging = fluent("debugging_settings", run_groups.DebuggingSettings)
    callbacks = fluent("callbacks_settings", run_groups.CallbacksSettings)
    sweep = fluent("sweep_settings", run_groups.SweepSettings)

    def rollouts(self, **settings: object) -> Self:
        """Change settings by the name that `env_runners()` once had in RLlib."""
        self._apply(settings)
        return self

    def exploration(self, **settings: object) -> Self:
        """Change settings of RLlib's former group: `explore` and `exploration_config`."""
        self._apply(settings)
        return self

    # --- derived values and checks ---

    @property
    def notes(self) -> list[str]:
        """Notes on old names and on values without effect, as in `explain()`."""
        return describe_notes(self)

    def validate(self) -> None:
        """Check the constraints between settings.

        Raises:
            ConfigError: If settings contradict each other.
        """
        from jaxrl.config.validate import validate

        validate(self)

    def prepare(self) -> None:
        """Check the constraints, draw the seed if it is None, and log the notes on the config.

        Paths of recorded data become absolute, so that a checkpoint finds them from anywhere.

        Raises:
            ConfigError: If settings contradict each other.
        """
        from jaxrl.config.multi_agent import prepare_agents
        from jaxrl.config.offline import resolve_data_paths

        if self.is_multi_agent:
            prepare_agents(self)
        self.validate()
        resolve_data_paths(self)
        draw_seed(self)
        announce_notes(self)

    @property
    def is_multi_agent(self) -> bool:
        """Return whether the config is for several agents, by its environment or its modules.

        It may also be called, as the method that it was in RLlib.
        """
        from jaxrl.config.multi_agent import has_several_agents

        several = not self.groups_agents and self.module_id is None and has_several_agents(self)
        return cast("bool", Flag(several))

    @property
    def is_offline(self) -> bool:
        """Return whether the run learns from recorded data and steps no environment."""
        return self.offline_data_settings.sampler_share == 0.0

    @property
    def is_mixed(self) -> bool:
        """Return whether the run learns from recorded data and from what it samples."""
        data = self.offline_data_settings
        return bool(data.sources) and not self.is_offline

    @property
    def has_evaluation_env(self) -> bool:
        """True if there is an environment to evaluate in, or a function that evaluates."""
        evaluation = self.evaluation_settings
        return (
            self.environment_settings.env is not None
            or evaluation.custom_evaluation_function is not None
            or "env" in (evaluation.evaluation_config or {})
        )

    @property
    def needs_returns(self) -> bool:
        """Return whether the learner needs the returns of recorded rows."""
        return bool(getattr(self.get_learner_class(), "needs_returns", False))

    @property
    def rows_per_window(self) -> int | None:
        """Number of successive recorded rows that are learned from together.

        None for single rows, and for the sequences of modules with memory.
        """
        return None

    @property
    def is_online(self) -> bool:
        """Return whether the run steps environments."""
        return not self.is_offline

    @property
    def total_train_batch_size(self) -> int:
        """Number of environment steps per training step, after defaults have adapted."""
        return self.plan().train_batch_size

    def plan(self) -> "BatchPlan":
        """Return the exact sizes of the train batch and its parts.

        Raises:
            BatchSizeError: If explicit sizes are not divisible; the message suggests others.
        """
        from jaxrl.config.batch_plan import plan_batches

        return plan_batches(self)

    def explain(self, **facts: Any) -> str:
        """Describe the effective settings, the batch arithmetic and the placement, with reasons.

        For a sweep, list the lanes and describe the first.

        Args:
            **facts: Facts that only a built Algorithm has, see `jaxrl.config.explain.explain`.
        """
        from jaxrl.config.explain import explain
        from jaxrl.config.sweep import is_sweep, make_lanes

        if not is_sweep(self):
            return explain(self, **facts)
        lanes = make_lanes(self)
        return "\n".join([*map(str, lanes), explain(lanes[0].config, **facts)])

    def resolve_team_reward(self) -> "GroupReward":
        """Return how the rewards of agents that are learned as one become one."""
        return "sum"

    @property
    def team_reads_state(self) -> bool:
        """Return whether agents that are learned as one are valued on the global state."""
        return True

    def get_rollout_fragment_length(self, worker_index: int = 0) -> int:
        """Return the number of steps of each environment per train batch, with "auto" resolved.

        It is the same for all runners: what does not divide is rounded, and the plan's
        `train_batch_size` is what they sample together.

        Args:
            worker_index: Index of the runner, as in RLlib.
        """
        del worker_index
        return self.plan().rollout_fragment_length

    def validate_train_batch_size_vs_rollout_fragment_length(self) -> None:
        """Raise BatchSizeError if the train batch is more than a tenth off what runners sample."""
        self.plan()

    def get_evaluation_config_object(self) -> "Self | None":
        """Return a copy with `evaluation_config` applied, or None if this is such a copy."""
        if self.in_evaluation:
            return None
        config = self.copy(copy_frozen=False)
        config.update_from_dict(self.evaluation_settings.evaluation_config or {})
        config.evaluation(evaluation_config=None)
        config.in_evaluation = True
        return config

    def get_default_rl_module_spec(self) -> "RLModuleSpec":
        """Return the algorithm's module class, and model settings that differ from the defaults."""
        from jaxrl.modules.rl_module import RLModuleSpec

        return RLModuleSpec()

    def get_rl_module_spec(
        self,
        observation_space: "gymnasium.Space[Any] | None" = None,
        action_space: "gymnasium.Space[Any] | None" = None,
    ) -> "RLModuleSpec":
        """Return the spec of the module, custom or default, with `model_config` merged in."""
        return resolve_module_spec(self, observation_space, action_space)

    def get_module_settings(self) -> dict[str, Any]:
        """Return settings that the module depends on, for its spec's `algorithm_config`."""
        training, settings = self.training_settings, dict[str, Any]()
        if isinstance(training, OffPolicyTraining):
            settings["num_envs"] = self.plan().total_envs
        if isinstance(training, ActorCriticTraining):
            settings["renorms_critics"] = training.renorms_critics
        if isinstance(training, BootstrappedTraining):
            settings["use_target_network"] = training.use_target_network
        if isinstance(training, TwinCritics):
            settings["num_critics"] = training.resolve_num_critics()
        if isinstance(training, EnsembleCritics):
            settings |= {name: vars(training)[name] for name in ("num_atoms", "v_min", "v_max")}
        return settings

    def get_module_config(self, module_id: str) -> "AlgorithmConfig":
        """Return the config of one module of several: its settings, and the sizes of its rows.

        Raises:
            ConfigError: If there is no such module, or the config is for a single agent.
        """
        from jaxrl.config.batch_plan import make_planned_config

        plan = self._find_multi_agent_plan()
        if plan is None:
            raise ConfigError(
                f"There is a single module, so none is {module_id!r}: its settings are the config's."
            )
        if module_id not in plan.modules:
            raise ConfigError(
                f"There is no module {module_id!r}; there are {', '.join(plan.modules)}."
                f"{did_you_mean(module_id, plan.modules)}"
            )
        return make_planned_config(self, plan, module_id)

    def get_training_by_module(self) -> "dict[str, Any]":
        """Return the training settings of each module; those of a single one are named ''."""
        if not self.is_multi_agent:
            return {"": self.training_settings}
        from jaxrl.config.batch_plan import make_planned_config

        plan = self._find_multi_agent_plan()
        assert plan is not None
        return {m: make_planned_config(self, plan, m).training_settings for m in plan.modules}

    def _find_multi_agent_plan(self) -> "MultiAgentPlan | None":
        """Return the plan of a config for several agents, None for a single one."""
        from jaxrl.config.batch_plan import MultiAgentPlan

        plan = self.plan()
        return plan if isinstance(plan, MultiAgentPlan) else None

    def get_multi_rl_module_spec(self, **arguments: object) -> "MultiRLModuleSpec":
        """Return the specification of every module, with its model settings merged in.

        Args:
            **arguments: RLlib's (env, spaces, inference_only), which have no effect: spaces are
                those of the environment.
        """
        from jaxrl.config.multi_agent import make_module_config, resolve_agents
        from jaxrl.modules.rl_module import MultiRLModuleSpec

        del arguments
        agents = resolve_agents(self)
        configs = {m: make_module_config(self, agents, m, {}) for m in agents.modules}
        return MultiRLModuleSpec(
            rl_module_specs={m: own.get_rl_module_spec() for m, own in configs.items()}
        )

    def get_multi_agent_setup(
        self,
        *,
        policies: object = None,
        env: object = None,
        spaces: "Mapping[str, tuple[gymnasium.Space[Any], gymnasium.Space[Any]]] | None" = None,
        default_policy_class: "type[Any] | None" = None,
    ) -> "tuple[dict[str, PolicySpec], Callable[..., bool]]":
        """Return the modules with their spaces, and a function of an id: whether it is trained.

        Args:
            policies: Modules in the place of the setting's.
            env: Environment in the place of the setting's, of which the spaces are.
            spaces: Observation and action space by module, in the place of the environment's.
            default_policy_class: Class of modules that have none of their own; None is the
                algorithm's.
        """
        from jaxrl.config.multi_agent import make_agent_setup

        config = self if env is None else self.copy(copy_frozen=False).environment(env)
        return make_agent_setup(config, policies, spaces or {}, default_policy_class)

    def get_default_learner_class(self) -> type[Any]:
        """Return the algorithm's Learner class; overridden by the config of each algorithm."""
        raise ConfigError(
            f"{type(self).__name__} belongs to no algorithm; use one that does, e.g. PPOConfig."
        )

    def get_learner_class(self) -> type[Any]:
        """Return the Learner class: the custom one, or the algorithm's default."""
        return self.learners_settings.learner_class or self.get_default_learner_class()

    def build(
        self, env: object = None, logger_creator: None = None, use_copy: bool = True
    ) -> "Algorithm":
        """Build the Algorithm of this config, or a `jaxrl.Population` if it describes a sweep.

        A sweep whose environments are stepped on the host becomes `jaxrl.Trials` of Ray Tune.

        Args:
            env: Environment that replaces `environment(env=...)`.
            logger_creator: Argument of RLlib's; must be None, use `debugging(loggers=[...])`.
            use_copy: Whether to build from a copy; otherwise this config itself is frozen.

        Returns:
            An Algorithm, Population or Trials.
        """
        from jaxrl.config.sweep import is_sweep
        from jaxrl.config.validate import check_sweep

        if logger_creator is not None:
            self._apply({"logger_creator": logger_creator})
        config = self.copy(copy_frozen=False) if use_copy else self
        if env is not None:
            config.environment(env)
        draw_seed(config)
        if is_sweep(config):
            check_sweep(config)
            return _build_sweep(config)
        return (config.algo_class or load_run_class("algorithm"))(config)

    build_algo = build
    """Alias of `build`, RLlib's newer name."""


def _build_sweep(config: AlgorithmConfig) -> Any:
    """Build the runs of a sweep as lanes of shared programs or, where impossible, as trials."""
    try:
        return load_run_class("population")(config)
    except HostLanesError:
        return load_run_class("trials")(config)
