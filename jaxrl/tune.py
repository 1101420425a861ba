"""Every algorithm as a Trainable of Ray Tune: `tune.Tuner(PPO, param_space=config).fit()`.

Importing this module, or `from jaxrl import PPO`, also makes the name "PPO" mean jaxrl's PPO to
Tune in this process and its trials. `import jaxrl` alone does not import Ray, so there Tune knows
no such name, or takes RLlib's.
"""

import dataclasses
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, cast

import jax

import jaxrl
from jaxrl.algorithm import Algorithm
from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.registry import get_algorithm_config_class
from jaxrl.config.serialize import describable_dict, restorable_dict
from jaxrl.envs.registry import register_env, registered_env
from jaxrl.errors import ConfigError
from jaxrl.loggers.recorder import SaveTimes
from jaxrl.metrics import lookup
from jaxrl.runs.checkpoint import find_checkpoint, read_metadata
from jaxrl.runs.run_folder import RunFolder, is_run_folder
from jaxrl.runtime.env_vars import set_driver_environs
from jaxrl.runtime.exclusive import Exclusive, one_thread

try:
    import ray.tune
    from ray.tune import PlacementGroupFactory, Trainable
    from ray.tune.registry import (
        ENV_CREATOR,
        _global_registry,  # pyright: ignore[reportPrivateUsage]
    )
    from ray.tune.result import SHOULD_CHECKPOINT, TIMESTEPS_TOTAL
    from ray.tune.tune import _Config  # pyright: ignore[reportPrivateUsage]

    from jaxrl.runners.ray.start import learner_bundle, runner_bundle
except ImportError as error:
    raise ConfigError(
        "jaxrl.PPO and its like are Trainables of Ray Tune, which needs packages that Ray itself does "
        f"not: install them with \"pip install 'jaxrl[tune]'\" ({error}). To train without Tune, "
        "build a config: PPOConfig().environment('CartPole-v1').build()."
    ) from error

RUN_FOLDER = "jaxrl"
"""Name of the run folder in the folder of a trial."""

_STEPS = "num_env_steps_sampled_lifetime"

# Tuner(param_space=config) takes what is a _Config by its to_dict(); it has no public protocol.
_Config.register(AlgorithmConfig)


class AlgorithmTrainable(Trainable):
    """A trial: Tune calls `train`, `save` and `restore` of the Algorithm that its config builds.

    Subclass it with a config class of your own, or call `as_trainable`. `config` holds settings,
    flat or under the names of their groups; a config object will do as well.
    """

    config_class: ClassVar[type[AlgorithmConfig]]
    keeps_few: ClassVar[bool] = False
    """Whether old checkpoints are removed; Tune keeps all of them if nothing else is said."""

    def __init__(
        self,
        config: Mapping[str, Any] | AlgorithmConfig | None = None,
        storage: Any = None,
        **unknown: Any,
    ) -> None:
        if unknown or not isinstance(config, Mapping | AlgorithmConfig | None):
            name = type(self).__name__
            got = [repr(config), *(f"{key}={value!r}" for key, value in unknown.items())]
            raise ConfigError(
                f"{name} is a Trainable of Ray Tune and takes a config, got {', '.join(got)}. To train "
                f"by itself, build a config: {name}Config().environment('CartPole-v1').build()."
            )
        settings = config.to_dict() if isinstance(config, AlgorithmConfig) else dict(config or {})
        self._algorithm: Algorithm | None = None
        self._use = Exclusive(type(self).__name__)
        super().__init__(settings, storage)

    @classmethod
    def get_default_config(cls) -> AlgorithmConfig:
        """A config of the algorithm, with its defaults."""
        return cls.config_class()

    @classmethod
    def default_resource_request(
        cls, config: Mapping[str, Any] | AlgorithmConfig
    ) -> PlacementGroupFactory:
        """What a trial reserves: its own CPUs, those of every runner and of every learner."""
        settings = cls._config_of(config)
        _publish_env(settings.environment_settings.env)
        main, *others = bundles(settings)
        strategy = settings.resources_settings.placement_strategy
        return PlacementGroupFactory([main, *(b for b in others if b)], strategy=strategy)

    @classmethod
    def resource_help(cls, config: Mapping[str, Any] | AlgorithmConfig) -> Any:
        """Which settings say what a trial reserves, and what that comes to."""
        request = cls.default_resource_request(config)
        return (
            "A trial reserves resources(num_cpus_for_main_process) for itself, "
            "env_runners(num_cpus_per_env_runner) for each of num_env_runners and "
            "evaluation_num_env_runners, and learners(num_cpus_per_learner, num_gpus_per_learner) "
            f"for each of num_learners: {request.bundles}."
        )

    @classmethod
    def _config_of(cls, config: Mapping[str, Any] | AlgorithmConfig) -> AlgorithmConfig:
        if isinstance(config, AlgorithmConfig):
            return config.copy(copy_frozen=False)
        return cls.config_class().update_from_dict(config)

    def setup(self, config: Mapping[str, Any] | AlgorithmConfig) -> None:
        """Check the trial's settings; the Algorithm is built when it is first needed."""
        settings = self._config_of(config)
        env = settings.environment_settings.env
        if _is_published(env):
            register_env(env, _global_registry.get(ENV_CREATOR, env))
        debugging = settings.debugging_settings
        # Tune prints, and writes for TensorBoard, what the trials report.
        beside_tune = ("console",) if "loggers" in settings.explicit else ("console", "tensorboard")
        loggers = [sink for sink in debugging.loggers if sink not in beside_tune]
        settings.debugging(loggers=loggers)
        settings.validate()
        set_driver_environs(settings)
        _use_only(self.trial_resources)
        self._settings = settings
        checkpointing = settings.checkpointing_settings
        if not self.keeps_few and "checkpoint_interval_s" not in settings.explicit:
            checkpointing = dataclasses.replace(checkpointing, checkpoint_interval_s=None)
        self._times = SaveTimes(checkpointing)
        self._folder = self._open_folder()

    def _open_folder(self) -> RunFolder:
        """The run folder below the trial's; it is there already if the trial was restarted."""
        storage: Any = self._storage
        trial = Path(cast(str, self.logdir))
        if storage is not None and storage.storage_filesystem.type_name == "local":
            trial = Path(storage.trial_fs_path)  # what lies in the other is not kept
        if is_run_folder(trial / RUN_FOLDER):
            return RunFolder.open(trial / RUN_FOLDER)
        return RunFolder.make(RUN_FOLDER, describable_dict(self._settings), results_dir=trial)

    @property
    def algorithm(self) -> Algorithm:
        """The trial's Algorithm."""
        if self._algorithm is None:
            build = self._settings.algo_class or Algorithm
            self._algorithm = build(self._settings.copy(), run_folder=self._folder)
        return self._algorithm

    @one_thread
    def step(self) -> dict[str, Any]:
        """One iteration of training."""
        result = self.algorithm.train()
        due = self._times.is_due(self.algorithm.iteration)
        return {
            **result,
            TIMESTEPS_TOTAL: lookup(result, _STEPS),
            **({SHOULD_CHECKPOINT: True} if due else {}),
        }

    @one_thread
    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write what `Algorithm.from_checkpoint(checkpoint.path)` reads."""
        with self._times.saving():
            self.algorithm.save(checkpoint_dir)

    @one_thread
    def load_checkpoint(self, checkpoint: str | dict[str, Any] | None) -> None:
        """Go on from a checkpoint, of this trial or, as in population based training, of another.

        What this trial's settings say otherwise than the checkpoint's stays as it is here.
        """
        self.cleanup()
        path = find_checkpoint(cast(str, checkpoint))
        saved = read_metadata(path)["config"]["settings"]
        own = restorable_dict(self._settings)[0]["settings"]
        missing = object()
        different = {
            name: value
            for name, value in self._settings.items()
            if name not in own or own[name] != saved.get(name, missing)
        }
        # Tune keeps what it knows of a trial beside it as pickles: who can write there is trusted.
        self._algorithm = Algorithm.from_checkpoint(
            path, run_folder=self._folder, trust=True, **different
        )

    def cleanup(self) -> None:
        """Stop what the Algorithm runs."""
        if self._algorithm is not None:
            self._algorithm.stop()
            self._algorithm = None


def bundles(config: AlgorithmConfig) -> list[dict[str, float]]:
    """The resources of each process of a run by Ray's names: the main one's first."""
    resources, learners = config.resources_settings, config.learners_settings
    runners, evaluation = config.env_runners_settings, config.evaluation_settings
    cpus, learner = learners.num_cpus_per_learner, learner_bundle(config)
    main = {
        "CPU": resources.num_cpus_for_main_process,
        **resources.custom_resources_for_main_process,
    }
    if learners.num_learners == 0:  # the main process learns
        main = {**learner, **main, "CPU": max(main["CPU"], 0.0 if cpus == "auto" else cpus)}
    evaluators = evaluation.evaluation_num_env_runners if evaluation.evaluation_interval else 0
    each = [
        main,
        *[runner_bundle(config)] * (runners.num_env_runners + evaluators),
        *[learner] * learners.num_learners,
    ]
    return [{name: amount for name, amount in bundle.items() if amount} for bundle in each]


def as_trainable(
    config_class: type[AlgorithmConfig], name: str | None = None
) -> type[AlgorithmTrainable]:
    """A Trainable of an algorithm of your own, known to Tune by its name too.

    Args:
        config_class: What the trials' settings are of.
        name: What trials are called; the algorithm's name by default.
    """
    chosen = name or config_class.algo_name or config_class.__name__.removesuffix("Config")
    trainable = type(chosen, (AlgorithmTrainable,), {"config_class": config_class})
    ray.tune.register_trainable(chosen, trainable)
    return trainable


def _use_only(request: Any) -> None:
    """Keep JAX to the CPUs that the trial has, and off accelerators that it has not.

    Without effect on a JAX that has started, as in a Trainable made outside of Tune.
    """
    if not isinstance(request, PlacementGroupFactory):
        return
    set_so_far = jax.config.values
    on_accelerator = {"GPU", "TPU"} & request.required_resources.keys()
    if not on_accelerator and not set_so_far["jax_platforms"]:
        jax.config.update("jax_platforms", "cpu")
    cpus = max(1, int(request.head_cpus))
    os.environ.setdefault("NPROC", str(cpus))  # XLA's threads
    said = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if not said and set_so_far["jax_num_cpu_devices"] <= 0:
        jax.config.update("jax_num_cpu_devices", cpus)


def _publish_env(env: Any) -> None:
    """Tell the processes of trials what a name means that was given to register_env here."""
    creator = registered_env(env) if isinstance(env, str) else None
    if creator is None:
        return
    try:
        ray.tune.register_env(env, creator)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise ConfigError(
            f"The creator of '{env}' cannot be sent to the trials ({error}); define it at the top "
            "of a module, or name its import path, env='module:function'."
        ) from error


def _is_published(env: Any) -> bool:
    return (
        isinstance(env, str)
        and registered_env(env) is None
        and _global_registry.contains(ENV_CREATOR, env)
    )


def _trainable(name: str) -> type[AlgorithmTrainable]:
    """The class of an algorithm, which other processes import from here by its name."""
    return type(
        name,
        (AlgorithmTrainable,),
        {
            "__doc__": f"{name} as a Trainable.",
            "__module__": __name__,
            "config_class": get_algorithm_config_class(name),
        },
    )


globals().update({name: _trainable(name) for name in jaxrl.TRAINABLES})

# A trial's process finds what was registered where Tune was called, and changes nothing there.
if not (ray.is_initialized() and ray.get_runtime_context().worker.mode == ray.WORKER_MODE):
    for _name in jaxrl.TRAINABLES:
        ray.tune.register_trainable(_name, globals()[_name])
