"""Algorithms as Trainables of Ray Tune: `tune.Tuner(PPO, param_space=config).fit()`.

Importing this module, or `from jaxrl import PPO`, also registers jaxrl's PPO under the name "PPO"
with Tune, in this process and its trials. So does a config, if Ray Tune has been imported
(`jaxrl.compat.imports`). `import jaxrl` alone does not import Ray, so Tune then has no
such name, or resolves it to RLlib's.
"""

import dataclasses
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import jax

from jaxrl.algorithm import TRAINABLE_METHODS, Algorithm
from jaxrl.config.base import AlgorithmConfig, get_algorithm_config_class
from jaxrl.config.config import Config
from jaxrl.config.serialize import find_missing, serialize_for_display, serialize_restorable
from jaxrl.core.algorithms import TRAINABLES
from jaxrl.envs.registry import get_registered_env, register_env
from jaxrl.errors import ConfigError
from jaxrl.loggers.recorder import SaveSchedule
from jaxrl.metrics import lookup
from jaxrl.runs.checkpoint import find_checkpoint, read_metadata
from jaxrl.runs.results import add_old_keys
from jaxrl.runs.run_folder import RunFolder, is_run_folder
from jaxrl.runtime.env_vars import set_driver_env_vars
from jaxrl.runtime.lock import ExclusiveLock, single_threaded

try:
    import ray.tune
    from ray.tune import PlacementGroupFactory, Trainable
    from ray.tune.registry import (
        ENV_CREATOR,
        _global_registry,  # pyright: ignore[reportPrivateUsage]
    )
    from ray.tune.result import SHOULD_CHECKPOINT, TIMESTEPS_TOTAL
    from ray.tune.tune import _Config  # pyright: ignore[reportPrivateUsage]

    from jaxrl.runners.ray.start import make_learner_bundle, make_runner_bundle
except ImportError as error:
    raise ConfigError(
        "jaxrl.PPO and the other algorithms are Trainables of Ray Tune, which needs packages that "
        f"Ray alone does not install: run \"pip install 'jaxrl[tune]'\" ({error}). To train "
        "without Tune, build a config: PPOConfig().environment('CartPole-v1').build()."
    ) from error

if TYPE_CHECKING:
    from ray.train._internal.storage import StorageContext

RUN_FOLDER_NAME = "jaxrl"
"""Name of the run folder inside a trial's folder."""

_NUM_STEPS_KEY = "num_env_steps_sampled_lifetime"

# Tuner(param_space=config) calls to_dict() of a _Config; there is no public protocol for it.
_Config.register(AlgorithmConfig)


class ConfiguredAlgorithm(Algorithm):
    """Algorithm with a config class of its own, as RLlib's: `PPO(config, env=...)`.

    `class MyPPO(jaxrl.PPO)` derives from it if it overrides methods of Algorithm.

    Args:
        config: Config, or a dictionary of settings; None for the defaults.
        env: Environment, in place of the config's.
        **options: Further arguments of `Algorithm`.
    """

    config_class: ClassVar[type[AlgorithmConfig]]

    def __init__(
        self,
        config: Mapping[str, Any] | AlgorithmConfig | None = None,
        env: object = None,
        **options: Any,
    ) -> None:
        settings = (
            config
            if isinstance(config, AlgorithmConfig)
            else type(self).get_default_config().update_from_dict(config or {})
        )
        super().__init__(settings if env is None else settings.environment(env), **options)

    @classmethod
    def get_default_config(cls) -> AlgorithmConfig:
        """Return a config of the algorithm with its defaults."""
        return cls.config_class()


class _TrainableType(type):
    """Type of Trainables, whose subclasses with methods of Algorithm are Algorithms.

    RLlib's users override `training_step` of `PPO`, which is a Trainable here and builds an
    Algorithm; the override belongs to the latter.
    """

    def __new__(
        cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any
    ) -> type:
        own = [
            n
            for n in namespace
            if not n.startswith("__") and hasattr(Algorithm, n) and n not in TRAINABLE_METHODS
        ]
        registered = [base for base in bases if isinstance(base, _TrainableType)]
        if not own or not registered or not all(n not in vars(Trainable) for n in own):
            return super().__new__(cls, name, bases, namespace, **kwargs)
        return type(name, tuple(_get_algorithm_base(base) for base in bases), namespace, **kwargs)


def _get_algorithm_base(base: type) -> type:
    """Return the Algorithm that a Trainable builds, as a class; other classes as they are."""
    config_class = getattr(base, "config_class", None)
    if not isinstance(base, _TrainableType) or config_class is None:
        return base
    name = f"{base.__name__}Algorithm"
    return type(
        name, (ConfiguredAlgorithm,), {"config_class": config_class, "__module__": __name__}
    )


class AlgorithmTrainable(Trainable, metaclass=_TrainableType):
    """Trial of Ray Tune around the Algorithm that its config builds.

    Subclass it with a custom config class, or call `as_trainable`. `config` is a dictionary of
    settings, flat or nested under the names of their groups, or a config object.
    """

    config_class: ClassVar[type[AlgorithmConfig]]
    algorithm_class: ClassVar[type[ConfiguredAlgorithm] | None] = None
    has_checkpoint_limit: ClassVar[bool] = False
    """True if old checkpoints are removed; by default Tune keeps all of them."""
    replaced_loggers: ClassVar[tuple[str, ...]] = ("console", "tensorboard")
    """Default loggers that are left out: Tune itself prints results, and writes TensorBoard files."""

    if not TYPE_CHECKING:

        def __new__(
            cls,
            config: Mapping[str, Any] | AlgorithmConfig | None = None,
            storage: "StorageContext | None" = None,
            *,
            env: object = None,
            **unknown: object,
        ) -> "AlgorithmTrainable | Algorithm":
            """Build the Algorithm itself for RLlib's `PPO(config)` and `PPO(config, env=...)`.

            Tune makes trials from dictionaries.

            Raises:
                ConfigError: If the class overrides what Tune calls, which that Algorithm would not.
            """
            is_call_of_rllib = isinstance(config, Mapping | None) and env is not None
            if unknown or not (is_call_of_rllib or isinstance(config, AlgorithmConfig)):
                return super().__new__(cls)
            own = cls.__mro__[: cls.__mro__.index(AlgorithmTrainable)]
            for name in TRAINABLE_METHODS:
                if any(name in vars(base) for base in own):
                    raise ConfigError(
                        f"{cls.__name__} overrides {name}(), which Ray Tune calls; a run without "
                        f"Tune calls that of class {cls.__name__}(jaxrl.Algorithm), built by "
                        f"{cls.config_class.__name__}(algo_class={cls.__name__})."
                    )
            settings = cls._make_config({} if config is None else config)
            return (settings if env is None else settings.environment(env)).build()

    def __init__(
        self,
        config: Mapping[str, Any] | AlgorithmConfig | None = None,
        storage: "StorageContext | None" = None,
        **unknown: object,
    ) -> None:
        if unknown or not isinstance(config, Mapping | AlgorithmConfig | None):
            name = type(self).__name__
            got = [repr(config), *(f"{key}={value!r}" for key, value in unknown.items())]
            raise ConfigError(
                f"{name} is a Trainable of Ray Tune and takes a config, got {', '.join(got)}. To "
                "train by itself, build a config: "
                f"{name}Config().environment('CartPole-v1').build()."
            )
        settings = config.to_dict() if isinstance(config, AlgorithmConfig) else dict(config or {})
        self._algorithm: Algorithm | None = None
        self._use = ExclusiveLock(type(self).__name__)
        super().__init__(settings, storage)

    @classmethod
    def get_default_config(cls) -> AlgorithmConfig:
        """Return a config of the algorithm with its defaults."""
        own = cls.algorithm_class
        return cls.config_class() if own is None else own.get_default_config()

    @classmethod
    def default_resource_request(cls, config: Mapping[str, Any] | Config) -> PlacementGroupFactory:
        """Return the resources of a trial: its own, and those of every runner and every learner.

        Tune calls it before it starts a trial, so that settings that contradict each other end here.

        Raises:
            ConfigError: If settings contradict each other.
        """
        settings = cls._make_config(config)
        settings.validate()
        _share_env(settings.environment_settings.env)
        main, *others = get_resource_bundles(settings)
        strategy = settings.resources_settings.placement_strategy
        return PlacementGroupFactory([main, *(b for b in others if b)], strategy=strategy)

    @classmethod
    def resource_help(cls, config: Mapping[str, Any] | Config) -> Any:
        """Describe the settings that determine a trial's resources, and the resulting bundles."""
        request = cls.default_resource_request(config)
        return (
            "A trial reserves resources(num_cpus_for_main_process) for itself, "
            "env_runners(num_cpus_per_env_runner) for each of num_env_runners and "
            "evaluation_num_env_runners, and learners(num_cpus_per_learner, num_gpus_per_learner) "
            f"for each of num_learners: {request.bundles}."
        )

    @classmethod
    def _make_config(cls, config: Mapping[str, Any] | Config) -> Config:
        if isinstance(config, Config):
            settings = config.copy(copy_frozen=False)
        else:
            settings = cls.get_default_config().update_from_dict(config)
        if cls.algorithm_class is not None:
            settings.algo_class = cls.algorithm_class
        return settings

    def setup(self, config: Mapping[str, Any] | Config) -> None:
        """Check the trial's settings; the Algorithm is built on first use."""
        settings = self._make_config(config)
        env = settings.environment_settings.env
        if _is_shared(env):
            register_env(env, _global_registry.get(ENV_CREATOR, env))
        debugging = settings.debugging_settings
        replaced = ("console",) if "loggers" in settings.explicit else self.replaced_loggers
        loggers = [sink for sink in debugging.loggers if sink not in replaced]
        settings.debugging(loggers=loggers)
        settings.prepare()
        set_driver_env_vars(settings)
        _restrict_devices(self.trial_resources)
        self._settings = settings
        checkpointing = settings.checkpointing_settings
        if not self.has_checkpoint_limit and "checkpoint_interval_s" not in settings.explicit:
            checkpointing = dataclasses.replace(checkpointing, checkpoint_interval_s=None)
        self._save_times = SaveSchedule(checkpointing)
        self._folder = self._open_folder()

    def _open_folder(self) -> RunFolder:
        """Open the run folder in the trial's folder; create it unless the trial was restarted."""
        storage = self._storage
        trial = Path(cast(str, self.logdir))
        if storage is not None and storage.storage_filesystem.type_name == "local":
            trial = Path(storage.trial_fs_path)  # files in logdir are not kept
        if is_run_folder(trial / RUN_FOLDER_NAME):
            return RunFolder.open(trial / RUN_FOLDER_NAME)
        return RunFolder.make(
            RUN_FOLDER_NAME, serialize_for_display(self._settings), results_dir=trial
        )

    @property
    def algorithm(self) -> Algorithm:
        """The trial's Algorithm."""
        if self._algorithm is None:
            build = self._settings.algo_class or Algorithm
            algorithm: Algorithm = build(self._settings.copy(), run_folder=self._folder)
            algorithm.trial_id = self.trial_id
            self._algorithm = algorithm
        return self._algorithm

    @single_threaded
    def step(self) -> dict[str, Any]:
        """Train for one iteration."""
        result = self.algorithm.train()
        due = self._save_times.is_due(self.algorithm.iteration)
        return {
            **add_old_keys(result),
            TIMESTEPS_TOTAL: lookup(result, _NUM_STEPS_KEY),
            **({SHOULD_CHECKPOINT: True} if due else {}),
        }

    @single_threaded
    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Save a checkpoint that `Algorithm.from_checkpoint(checkpoint.path)` reads."""
        with self._save_times.time_save():
            self.algorithm.save(checkpoint_dir)

    @single_threaded
    def load_checkpoint(self, checkpoint: str | dict[str, Any] | None) -> None:
        """Restore a checkpoint of this trial or, in population based training, of another one.

        Settings of this trial that differ from those in the checkpoint keep their values.
        """
        self.cleanup()
        path = find_checkpoint(cast(str, checkpoint))
        config = read_metadata(path)["config"]
        of_script = find_missing(config)  # which a worker of Ray's does not run
        saved, nothing = config["settings"], object()
        current = serialize_restorable(self._settings)[0]["settings"]
        overrides = {
            name: value
            for name, value in self._settings.items()
            if name not in current or name in of_script or current[name] != saved.get(name, nothing)
        }
        if "algo_class" in of_script:
            overrides["algo_class"] = self._settings.algo_class
        overrides.pop("seed", None)  # random keys go on from the checkpoint
        # Tune stores pickles next to the checkpoint, so whoever can write there is trusted already.
        self._algorithm = Algorithm.from_checkpoint(
            path, run_folder=self._folder, trust=True, **overrides
        )
        self._algorithm.trial_id = self.trial_id

    def cleanup(self) -> None:
        """Stop the Algorithm."""
        if self._algorithm is not None:
            self._algorithm.stop()
            self._algorithm = None


def get_resource_bundles(config: Config) -> list[dict[str, float]]:
    """Return the resources of each process of a run under Ray's names, the main process first."""
    resources, learners = config.resources_settings, config.learners_settings
    runners, evaluation = config.env_runners_settings, config.evaluation_settings
    cpus, learner = learners.num_cpus_per_learner, make_learner_bundle(config)
    main = {
        "CPU": resources.num_cpus_for_main_process,
        **resources.custom_resources_for_main_process,
    }
    if learners.num_learners == 0:  # the main process is the learner
        main = {**learner, **main, "CPU": max(main["CPU"], 0.0 if cpus == "auto" else cpus)}
    evaluators = evaluation.evaluation_num_env_runners if evaluation.evaluation_interval else 0
    each = [
        main,
        *[make_runner_bundle(config)] * (runners.num_env_runners + evaluators),
        *[learner] * learners.num_learners,
    ]
    return [{name: amount for name, amount in bundle.items() if amount} for bundle in each]


def as_trainable(
    algorithm: type[AlgorithmConfig] | type[ConfiguredAlgorithm], name: str | None = None
) -> type[AlgorithmTrainable]:
    """Make a Trainable of a custom algorithm and register its name with Tune.

    Args:
        algorithm: Config class of the trials, or a subclass of `jaxrl.PPO` or another algorithm
            with a `training_step` of its own.
        name: Name of the Trainable; the algorithm's name by default.

    Returns:
        The Trainable class.
    """
    if issubclass(algorithm, AlgorithmConfig):
        chosen = name or algorithm.algo_name or algorithm.__name__.removesuffix("Config")
        namespace: dict[str, Any] = {"config_class": algorithm}
    else:
        chosen = name or algorithm.__name__
        namespace = {"config_class": algorithm.config_class, "algorithm_class": algorithm}
    created = type.__new__(_TrainableType, chosen, (AlgorithmTrainable,), namespace)
    trainable = cast(type[AlgorithmTrainable], created)
    ray.tune.register_trainable(chosen, trainable)
    return trainable


def _restrict_devices(request: object) -> None:
    """Restrict JAX to the CPUs and accelerators that the trial has reserved.

    This has no effect once JAX's backend has started, as in a Trainable created outside of Tune.
    """
    if not isinstance(request, PlacementGroupFactory):
        return
    jax_config = jax.config.values
    on_accelerator = {"GPU", "TPU"} & request.required_resources.keys()
    if not on_accelerator and not jax_config["jax_platforms"]:
        jax.config.update("jax_platforms", "cpu")
    cpus = max(1, int(request.head_cpus))
    os.environ.setdefault("NPROC", str(cpus))  # number of XLA's threads
    is_count_set = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if not is_count_set and jax_config["jax_num_cpu_devices"] <= 0:
        jax.config.update("jax_num_cpu_devices", cpus)


def _share_env(env: Any) -> None:
    """Make an environment that was registered here with register_env available to trials."""
    creator = get_registered_env(env) if isinstance(env, str) else None
    if creator is None:
        return
    try:
        ray.tune.register_env(env, creator)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise ConfigError(
            f"The creator of '{env}' cannot be sent to the trials ({error}); define it at the top "
            "of a module, or pass its import path, env='module:function'."
        ) from error


def _is_shared(env: object) -> bool:
    return (
        isinstance(env, str)
        and get_registered_env(env) is None
        and _global_registry.contains(ENV_CREATOR, env)
    )


def _make_trainable(name: str) -> type[AlgorithmTrainable]:
    """Make the class of an algorithm, which other processes import from this module by its name."""
    return type(
        name,
        (AlgorithmTrainable,),
        {
            "__doc__": f"{name} as a Trainable.",
            "__module__": __name__,
            "config_class": get_algorithm_config_class(name),
        },
    )


globals().update({name: _make_trainable(name) for name in TRAINABLES})

# Inside a trial's process, the registrations of the process that called Tune stay unchanged.
if not (ray.is_initialized() and ray.get_runtime_context().worker.mode == ray.WORKER_MODE):
    for _name in TRAINABLES:
        ray.tune.register_trainable(_name, globals()[_name])
