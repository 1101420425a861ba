"""AlgorithmConfig: RLlib's builder. A call changes it and returns it; values live in groups."""

from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

from jaxrl.config.batch_plan.arithmetic import BatchPlan
from jaxrl.config.batch_plan.on_policy import make_plan
from jaxrl.config.batch_plan.replay import replay_plan
from jaxrl.config.batch_plan.request import batch_request, refuse_markers
from jaxrl.config.builder import ConfigBuilder
from jaxrl.config.explain import explain
from jaxrl.config.fields import fluent
from jaxrl.config.modules import resolve_module_spec, rows_of_a_draw
from jaxrl.config.names import refuse_group
from jaxrl.config.settings import run as r
from jaxrl.config.settings import runners as w
from jaxrl.config.settings import training as g
from jaxrl.config.settings.replay import OffPolicyTraining
from jaxrl.config.sweep import is_sweep, lanes_of
from jaxrl.config.validate import refuse_measuring, validate
from jaxrl.errors import ConfigError, HostLanesError

if TYPE_CHECKING:
    from jaxrl.algorithm import Algorithm
    from jaxrl.modules.rl_module import RLModuleSpec


class AlgorithmConfig(ConfigBuilder):
    """All settings of a run.

    Every group is a frozen dataclass in `<group>_settings`, changed by the method `<group>()`. A
    setting can also be read and set flat: `config.lr`, `config["lr"]`, `config.lr = 3e-4`.
    """

    algo_name: ClassVar[str] = ""
    is_async: ClassVar[bool] = False
    """Whether runners go on sampling while the learner learns, as in IMPALA."""

    environment_settings: g.Environment = g.Environment()
    env_runners_settings: w.EnvRunners = w.EnvRunners()
    training_settings: Any = g.Training()
    learners_settings: w.Learners = w.Learners()
    rl_module_settings: g.RLModules = g.RLModules()
    evaluation_settings: r.Evaluation = r.Evaluation()
    fault_tolerance_settings: r.FaultTolerance = r.FaultTolerance()
    resources_settings: w.Resources = w.Resources()
    python_environment_settings: w.PythonEnvironment = w.PythonEnvironment()
    reporting_settings: r.Reporting = r.Reporting()
    checkpointing_settings: r.Checkpointing = r.Checkpointing()
    debugging_settings: r.Debugging = r.Debugging()
    callbacks_settings: r.Callbacks = r.Callbacks()
    sweep_settings: r.Sweep = r.Sweep()

    environment = fluent("environment_settings", g.Environment)
    env_runners = fluent("env_runners_settings", w.EnvRunners)
    training = fluent("training_settings", g.Training)
    learners = fluent("learners_settings", w.Learners)
    rl_module = fluent("rl_module_settings", g.RLModules)
    evaluation = fluent("evaluation_settings", r.Evaluation)
    fault_tolerance = fluent("fault_tolerance_settings", r.FaultTolerance)
    resources = fluent("resources_settings", w.Resources)
    python_environment = fluent("python_environment_settings", w.PythonEnvironment)
    reporting = fluent("reporting_settings", r.Reporting)
    checkpointing = fluent("checkpointing_settings", r.Checkpointing)
    debugging = fluent("debugging_settings", r.Debugging)
    callbacks = fluent("callbacks_settings", r.Callbacks)
    sweep = fluent("sweep_settings", r.Sweep)

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
        if isinstance(self.training_settings, OffPolicyTraining):
            refuse_markers(self)
            return replay_plan(self)
        return make_plan(batch_request(self), rows_of_a_draw(self))

    def explain(self, **facts: Any) -> str:
        """The effective settings, the batch arithmetic, the placement and why, as text.

        Of a sweep, the lanes and all this of the first.

        Args:
            **facts: What only a built Algorithm knows, see `jaxrl.config.explain.explain`.
        """
        if not is_sweep(self):
            return explain(self, **facts)
        lanes = lanes_of(self)
        return "\n".join([*map(str, lanes), explain(lanes[0].config, **facts)])

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
        from jaxrl.modules.rl_module import RLModuleSpec

        return RLModuleSpec()

    def get_rl_module_spec(
        self, observation_space: Any = None, action_space: Any = None
    ) -> "RLModuleSpec":
        """The module to build: the user's or the algorithm's, with `model_config` merged in."""
        return resolve_module_spec(self, observation_space, action_space)

    def module_settings(self) -> dict[str, Any]:
        """What of the algorithm's own settings shapes its module, its `algorithm_config`."""
        if not isinstance(self.training_settings, OffPolicyTraining):
            return {}
        return {"num_envs": self.plan().total_envs}

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
        """The Algorithm of this config; a `jaxrl.Population` where it describes a sweep.

        A sweep whose environments are stepped on the host becomes `jaxrl.Trials` of Ray Tune.

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
        if is_sweep(config):
            refuse_measuring(config)
            return _sweep_of(config)
        return (config.algo_class or Algorithm)(config)

    build_algo = build
    """RLlib's newer name."""


def _sweep_of(config: AlgorithmConfig) -> Any:
    """All runs as lanes of programs or, where they cannot be, as trials; the log says so."""
    from jaxrl.sweeps.population import Population
    from jaxrl.sweeps.trials import Trials

    try:
        return Population(config)
    except HostLanesError:
        return Trials(config)
