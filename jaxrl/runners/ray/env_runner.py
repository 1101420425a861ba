"""The actor around an EnvRunner, and what it is made of when it arrives in its process."""

import dataclasses
import functools
import logging
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from ray import cloudpickle

from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.registry import MadeEnv
from jaxrl.errors import ConfigError, JaxrlError
from jaxrl.runners.fragment import Fragment, Weights
from jaxrl.runners.ray.backend import Raised
from jaxrl.runtime.compilation_cache import enable_compilation_cache
from jaxrl.runtime.devices import compute_where_called

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig
    from jaxrl.runners.env_runner import EnvRunner

P = ParamSpec("P")
R = TypeVar("R")

_NOT_SENT = (
    "loggers",
    "custom_evaluation_function",
    "on_algorithm_init",
    "on_train_result",
    "on_evaluate_start",
    "on_evaluate_end",
    "on_env_runners_recreated",
    "on_checkpoint_loaded",
)
"""Settings that only the driver reads, and that need not be picklable."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """What an actor makes its runner of."""

    config: "AlgorithmConfig"
    made: MadeEnv | MadeHostEnv
    num_workers: int
    num_envs: int
    fragment_length: int
    seed: int


def pack_job(job: Job) -> bytes:
    """A job as bytes, functions and classes of the main module by value.

    Raises:
        ConfigError: Names the setting that cannot be pickled.
    """
    config = job.config.copy(copy_frozen=False)
    defaults = type(config)()
    config.update_from_dict({name: defaults[name] for name in _NOT_SENT})
    try:
        return _pickled(dataclasses.replace(job, config=config))
    except Exception as error:
        name = next((name for name, value in config.items() if not _can_be_sent(value)), "env")
        if not _can_be_sent(job.made):
            name = "env"
        raise ConfigError(
            f"{name} cannot be sent to Ray actors, because it cannot be pickled "
            f"({type(error).__name__}: {str(error).splitlines()[0]}): make what cannot inside of "
            "the function rather than outside, or set num_env_runners=0."
        ) from error


def open_job(packed: bytes) -> Job:
    """A job in its actor's process, which from now on logs and keeps programs as the job says."""
    job: Job = cloudpickle.loads(packed)
    debugging = job.config.debugging_settings
    logging.getLogger("jaxrl").setLevel(debugging.log_level)
    enable_compilation_cache(debugging.compilation_cache_dir)
    return job


def _pickled(value: Any) -> bytes:
    return cloudpickle.dumps(value)  # pyright: ignore[reportPrivateImportUsage]


def _can_be_sent(value: Any) -> bool:
    try:
        _pickled(value)
    except Exception:  # noqa: BLE001  (an object may raise anything when it is pickled)
        return False
    return True


def _guarded(
    method: "Callable[Concatenate[RayEnvRunner, P], R]",
) -> "Callable[Concatenate[RayEnvRunner, P], R | Raised]":
    """Returns what a method raises as plain data: the exception may not be picklable."""

    @functools.wraps(method)
    def guarded(self: "RayEnvRunner", *args: P.args, **kwargs: P.kwargs) -> R | Raised:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001  (it is the driver's to judge)
            return as_raised(error)

    return guarded


def as_raised(error: Exception) -> Raised:
    """An exception as plain data.

    A JaxrlError that has no other exception as its cause is a refusal: the same would happen again.
    """
    is_ours = isinstance(error, JaxrlError)
    text = str(error) if is_ours else f"{type(error).__name__}: {error}"
    return Raised(
        sentence=text.strip() or type(error).__name__,
        traceback="".join(traceback.format_exception(error)),
        refused=type(error) if is_ours and error.__cause__ is None else None,
    )


def start_new_episodes(runner: "EnvRunner", env_steps: int) -> None:
    """Start all environments anew, with draws that none has made in so many steps."""
    count = np.full(runner.num_envs, env_steps, np.uint32)
    runner.set_state({**runner.get_state(), "count": count, "env": None})


class RayEnvRunner:
    """Lives in a process of its own, does one thing after another, and raises nothing."""

    def __init__(self) -> None:
        self._made: EnvRunner | None = None
        self._fragment_length = 0

    @property
    def _runner(self) -> "EnvRunner":
        if self._made is None:
            raise RuntimeError("The EnvRunner was asked before it was started.")
        return self._made

    @_guarded
    def start(self, job: bytes, worker_index: int, incarnation: int, env_steps: int) -> None:
        """Make the runner and its environments, and reset them, so that what fails fails here.

        In the place of an actor that failed, its environments start new episodes and draw from
        where those could have come to, so that nothing is sampled twice.
        """
        from jaxrl.runners.env_runner import make_env_runner

        compute_where_called()
        opened = open_job(job)
        self._made = make_env_runner(
            opened.config,
            made=opened.made,
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

    @_guarded
    def sample(self, weights: Weights | None) -> Fragment:
        """One fragment, with new weights if there are."""
        runner = self._with(weights)
        if runner.config.env_runners_settings.batch_mode == "complete_episodes":
            return runner.sample_complete(self._fragment_length)
        return runner.sample(self._fragment_length)

    @_guarded
    def evaluate(self, weights: Weights | None, method: str, kwargs: dict[str, Any]) -> Any:
        """What a method of the runner returns, with new weights if there are."""
        return getattr(self._with(weights), method)(**kwargs)

    def _with(self, weights: Weights | None) -> "EnvRunner":
        if weights is not None:
            self._runner.set_weights(weights)
        return self._runner

    @_guarded
    def apply(self, fn: Callable[..., Any], *args: Any) -> Any:
        """What a function of the runner returns."""
        return fn(self._runner, *args)

    @_guarded
    def close(self) -> None:
        """Close the environments, before the process is ended."""
        self._runner.close()
