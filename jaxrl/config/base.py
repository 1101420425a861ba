"""AlgorithmConfig: RLlib's builder. A call changes it and returns it; values live in groups."""

from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

from jaxrl.config import groups as g
from jaxrl.config import run_groups as r
from jaxrl.config.builder import ConfigBuilder
from jaxrl.config.explain import explain
from jaxrl.config.fields import fluent
from jaxrl.config.modules import resolve_module_spec
from jaxrl.config.names import refuse_group
from jaxrl.config.plan import BatchPlan, BatchRequest, make_plan
from jaxrl.config.validate import validate
from jaxrl.errors import ConfigError

if TYPE_CHECKING:
    from jaxrl.algorithm import Algorithm
    from jaxrl.core.rl_module import RLModuleSpec


class AlgorithmConfig(ConfigBuilder):
    """All settings of a run.

    Every group is a frozen dataclass in `<group>_settings`, changed by the method `<group>()`. A
    setting can also be read and set flat: `config.lr`, `config["lr"]`, `config.lr = 3e-4`.
    """

    algo_name: ClassVar[str] = ""

    environment_settings: g.Environment = g.Environment()
    env_runners_settings: g.EnvRunners = g.EnvRunners()
    training_settings: Any = g.Training()
    learners_settings: g.Learners = g.Learners()
    rl_module_settings: g.RLModules = g.RLModules()
    evaluation_settings: r.Evaluation = r.Evaluation()
    fault_tolerance_settings: r.FaultTolerance = r.FaultTolerance()
    reporting_settings: r.Reporting = r.Reporting()
    checkpointing_settings: r.Checkpointing = r.Checkpointing()
    debugging_settings: r.Debugging = r.Debugging()
    callbacks_settings: r.Callbacks = r.Callbacks()

    environment = fluent("environment_settings", g.Environment)
    env_runners = fluent("env_runners_settings", g.EnvRunners)
    training = fluent("training_settings", g.Training)
    learners = fluent("learners_settings", g.Learners)
    rl_module = fluent("rl_module_settings", g.RLModules)
    evaluation = fluent("evaluation_settings", r.Evaluation)
    fault_tolerance = fluent("fault_tolerance_settings", r.FaultTolerance)
    reporting = fluent("reporting_settings", r.Reporting)
    checkpointing = fluent("checkpointing_settings", r.Checkpointing)
    debugging = fluent("debugging_settings", r.Debugging)
    callbacks = fluent("callbacks_settings", r.Callbacks)

    def resources(self, **settings: Any) -> NoReturn:
        """Refused: devices are chosen by learners(num_devices=...)."""
        refuse_group("resources", settings)

    def python_environment(self, **settings: Any) -> NoReturn:
        """Refused: there are no actor processes."""
        refuse_group("python_environment", settings)

    def multi_agent(self, **settings: Any) -> NoReturn:
        """Refused: there is one module."""
        refuse_group("multi_agent", settings)

    def offline_data(self, **settings: Any) -> NoReturn:
        """Refused: experience comes from an environment."""
        refuse_group("offline_data", settings)

    # --- what the settings mean together ---

    def validate(self) -> None:
        """Checks what depends on several settings; changes nothing.

        Raises:
            ConfigError: Two settings do not fit together.
        """
        validate(self)

    @property
    def is_multi_agent(self) -> bool:
        """Always False in this version."""
        return False

    @property
    def total_train_batch_size(self) -> int:
        """Environment steps of one training step, after the defaults have adapted."""
        return self.plan().train_batch_size

    def plan(self) -> BatchPlan:
        """The exact arithmetic of the train batch.

        Raises:
            BatchSizeError: Explicit values do not divide; names the values that would.
        """
        return make_plan(_batch_request(self))

    def explain(self, **facts: Any) -> str:
        """The effective settings, the batch arithmetic, the placement and why, as text.

        Args:
            **facts: What only a built Algorithm knows, see `jaxrl.config.explain.explain`.
        """
        return explain(self, **facts)

    def get_rollout_fragment_length(self, worker_index: int = 0) -> int:
        """Steps of each environment per train batch, "auto" resolved."""
        del worker_index  # all workers are alike here
        return self.plan().rollout_fragment_length

    def validate_train_batch_size_vs_rollout_fragment_length(self) -> None:
        """Raises unless environments times steps is exactly the train batch."""
        self.plan()

    def get_evaluation_config_object(self) -> "Self | None":
        """This config with `evaluation_config` applied; None if this already is one."""
        if self.in_evaluation:
            return None
        config = self.copy(copy_frozen=False)
        config.update_from_dict(self.evaluation_settings.evaluation_config or {})
        config.evaluation(evaluation_config=None)
        config.in_evaluation = True
        return config

    def get_default_rl_module_spec(self) -> "RLModuleSpec":
        """The algorithm's module: its class and the model settings that differ from the defaults."""
        from jaxrl.core.rl_module import RLModuleSpec

        return RLModuleSpec()

    def get_rl_module_spec(
        self, observation_space: Any = None, action_space: Any = None
    ) -> "RLModuleSpec":
        """The module to build: the user's or the algorithm's, with `model_config` merged in."""
        return resolve_module_spec(self, observation_space, action_space)

    def get_multi_rl_module_spec(self, **arguments: Any) -> NoReturn:
        """Refused: there is one module."""
        refuse_group("get_multi_rl_module_spec", arguments)

    def get_marl_module_spec(self, **arguments: Any) -> NoReturn:
        """Refused: there is one module."""
        refuse_group("get_marl_module_spec", arguments)

    def get_multi_agent_setup(self, **arguments: Any) -> NoReturn:
        """Refused: there is one module."""
        refuse_group("get_multi_agent_setup", arguments)

    def get_default_learner_class(self) -> type[Any]:
        """The algorithm's Learner; subclasses say which."""
        raise ConfigError(
            f"{type(self).__name__} belongs to no algorithm; use one that does, e.g. PPOConfig."
        )

    def get_learner_class(self) -> type[Any]:
        """The Learner to use."""
        return self.learners_settings.learner_class or self.get_default_learner_class()

    def build(
        self, env: Any = None, logger_creator: None = None, use_copy: bool = True
    ) -> "Algorithm":
        """The Algorithm of this config.

        Args:
            env: In place of `environment(env=...)`.
            logger_creator: RLlib's; refused, `debugging(loggers=[...])` says where results go.
            use_copy: Whether this config stays as it is; else it is the one that gets frozen.
        """
        from jaxrl.algorithm import Algorithm

        if logger_creator is not None:
            self._apply({"logger_creator": logger_creator})
        config = self.copy(copy_frozen=False) if use_copy else self
        if env is not None:
            config.environment(env)
        return (config.algo_class or Algorithm)(config)

    build_algo = build
    """RLlib's newer name."""


def _batch_request(config: AlgorithmConfig) -> BatchRequest:
    training, runners = config.training_settings, config.env_runners_settings
    explicit = config.explicit
    on_policy = isinstance(training, g.OnPolicyTraining)
    size = training.minibatch_size if on_policy else None
    shards = config.learners_settings.num_shards
    envs, steps = runners.num_envs_per_env_runner, runners.rollout_fragment_length
    return BatchRequest(
        train_batch_size=training.train_batch_size if "train_batch_size" in explicit else None,
        num_envs=None if envs == "auto" else envs,
        rollout_fragment_length=None if steps == "auto" else steps,
        minibatch_size=size if "minibatch_size" in explicit else None,
        num_shards=None if shards == "auto" else shards,
        num_epochs=training.num_epochs if on_policy else 1,
        whole_batch=size is None,
        default_train_batch_size=training.train_batch_size,
        default_minibatch_size=size or training.train_batch_size,
    )
