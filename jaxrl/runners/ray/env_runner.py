"""Ray actor of an EnvRunner, and the job from which it is created in its process."""

import dataclasses
import functools
import logging
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, cast

import numpy as np
from ray import cloudpickle

from jaxrl.assembly.env import set_first_task
from jaxrl.core.types import PyTree
from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.registry import MadeEnv
from jaxrl.errors import ConfigError, JaxrlError
from jaxrl.runners.fragment import Fragment, Weights
from jaxrl.runners.ray.kept_params import KeptParams, join_kept_params
from jaxrl.runners.ray.start import ExceptionInfo
from jaxrl.runtime.compilation_cache import enable_compilation_cache
from jaxrl.runtime.devices import disable_async_dispatch

if TYPE_CHECKING:
    from jaxrl.config.config import Config
    from jaxrl.envs.multi.host_made import MadeMultiHostEnv
    from jaxrl.runners.env_runner import EnvRunner
    from jaxrl.runners.multi.env_runner import MultiEnvRunner

P = ParamSpec("P")
R = TypeVar("R")

_DRIVER_ONLY_SETTINGS = (
    "loggers",
    "custom_evaluation_function",
    "on_algorithm_init",
    "on_train_result",
    "on_evaluate_start",
    "on_evaluate_end",
    "on_evaluate_offline_start",
    "on_evaluate_offline_end",
    "on_env_runners_recreated",
    "on_checkpoint_loaded",
)
"""Settings that are only read by the driver and need not be picklable."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActorJob:
    """Data from which an actor creates its runner or learner."""

    config: "Config"
    made: MadeEnv | MadeHostEnv
    num_workers: int
    num_envs: int
    fragment_length: int
    seed: int


def pack_job(job: ActorJob) -> bytes:
    """Pickle a job, with the functions and classes of the main module by value.

    Raises:
        ConfigError: If a setting cannot be pickled; the message names it.
    """
    config = job.config.copy(copy_frozen=False)
    defaults = type(config)()
    config.update_from_dict({name: defaults[name] for name in _DRIVER_ONLY_SETTINGS})
    try:
        return _pickle(dataclasses.replace(job, config=config))
    except Exception as error:
        name = next((name for name, value in config.items() if not _is_picklable(value)), "env")
        if not _is_picklable(job.made):
            name = "env"
        raise ConfigError(
            f"{name} cannot be sent to Ray actors, because it cannot be pickled "
            f"({type(error).__name__}: {str(error).splitlines()[0]}): create the objects that "
            "cannot be pickled inside the function, or set num_env_runners=0."
        ) from error


def unpack_job(packed: bytes) -> ActorJob:
    """Unpickle a job in its actor's process, and apply its log level and compilation cache."""
    job: ActorJob = cloudpickle.loads(packed)
    debugging = job.config.debugging_settings
    logging.getLogger("jaxrl").setLevel(debugging.log_level)
    enable_compilation_cache(debugging.compilation_cache_dir)
    return job


def _pickle(value: object) -> bytes:
    return cloudpickle.dumps(value)  # pyright: ignore[reportPrivateImportUsage]


def _is_picklable(value: object) -> bool:
    try:
        _pickle(value)
    except Exception:  # noqa: BLE001  (an object may raise anything when it is pickled)
        return False
    return True


def _return_exceptions(
    method: "Callable[Concatenate[RayEnvRunner, P], R]",
) -> "Callable[Concatenate[RayEnvRunner, P], R | ExceptionInfo]":
    """Wrap a method to return its exceptions as plain data, since they may not be picklable."""

    @functools.wraps(method)
    def wrapper(self: "RayEnvRunner", *args: P.args, **kwargs: P.kwargs) -> R | ExceptionInfo:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001  (the driver handles it)
            return to_exception_info(error)

    return wrapper


def to_exception_info(error: Exception) -> ExceptionInfo:
    """Convert an exception to plain data.

    A JaxrlError without another exception as its cause is the user's to correct: a retry would fail
    in the same way.
    """
    is_jaxrl_error = isinstance(error, JaxrlError)
    text = str(error) if is_jaxrl_error else f"{type(error).__name__}: {error}"
    return ExceptionInfo(
        message=text.strip() or type(error).__name__,
        traceback="".join(traceback.format_exception(error)),
        user_error_class=type(error) if is_jaxrl_error and error.__cause__ is None else None,
    )


def start_new_episodes(runner: "EnvRunner", env_steps: int) -> None:
    """Restart all environments, with random keys from after `env_steps` transitions."""
    count = np.full(runner.num_envs, env_steps, np.uint32)
    runner.set_state({**runner.get_state(), "count": count, "env": None})


def change_modules_by_job(runner: "MultiEnvRunner", *, job: bytes, has_new_mapping: bool) -> None:
    """Let a runner act with the modules of another job's config."""
    opened = unpack_job(job)
    made = cast("MadeMultiHostEnv", opened.made)  # pyright: ignore[reportInvalidCast]
    runner.change_modules(opened.config, made, has_new_mapping=has_new_mapping)


class RayEnvRunner:
    """Actor that owns an EnvRunner, executes calls in order, and returns exceptions as data."""

    def __init__(self) -> None:
        self._env_runner: EnvRunner | None = None
        self._fragment_length = 0
        self._kept: KeptParams | None = None

    @property
    def _runner(self) -> "EnvRunner":
        if self._env_runner is None:
            raise RuntimeError("The EnvRunner was called before it was started.")
        return self._env_runner

    @_return_exceptions
    def start(
        self,
        job: bytes,
        worker_index: int,
        incarnation: int,
        env_steps: int,
        task: PyTree = None,
    ) -> None:
        """Create the runner and reset its environments, so that failures occur here.

        If it replaces a failed actor, its environments start new episodes with random keys that
        the failed actor cannot have used, so that nothing is sampled twice. They have the given
        task from the start.
        """
        from jaxrl.runners.env_runner import make_env_runner

        disable_async_dispatch()
        opened = unpack_job(job)
        self._env_runner = make_env_runner(
            opened.config,
            made=opened.made if task is None else set_first_task(opened.made, task),
            worker_index=worker_index,
            num_workers=opened.num_workers,
            num_envs=opened.num_envs,
            first_env_index=(worker_index - 1) * opened.num_envs,
            seed=opened.seed,
        )
        self._fragment_length = opened.fragment_length
        if incarnation > 0:
            start_new_episodes(self._runner, env_steps)
        else:
            self._runner.get_state()  # resets the environments

    @_return_exceptions
    def sample(self, weights: Weights | None, kept: KeptParams | None) -> Fragment:
        """Sample one fragment, with new weights, and parameters that are kept, if given."""
        runner = self._update_runner(weights, kept)
        if runner.config.env_runners_settings.batch_mode == "complete_episodes":
            return runner.sample_complete_episodes(self._fragment_length)
        return runner.sample_fragment(self._fragment_length)

    @_return_exceptions
    def evaluate(
        self,
        weights: Weights | None,
        kept: KeptParams | None,
        method: str,
        kwargs: dict[str, object],
    ) -> object:
        """Call a method of the runner, with new weights if given."""
        return getattr(self._update_runner(weights, kept), method)(**kwargs)

    def _update_runner(self, weights: Weights | None, kept: KeptParams | None) -> "EnvRunner":
        self._kept = self._kept if kept is None else kept
        if weights is not None:
            self._runner.set_weights(join_kept_params(weights, self._kept))
        return self._runner

    @_return_exceptions
    def apply(
        self,
        weights: Weights | None,
        kept: KeptParams | None,
        fn: Callable[..., object],
        *args: object,
    ) -> object:
        """Call a function with the runner, with new weights if given, and return its result."""
        return fn(self._update_runner(weights, kept), *args)

    @_return_exceptions
    def close(self) -> None:
        """Close the environments before the process is killed."""
        self._runner.close()
