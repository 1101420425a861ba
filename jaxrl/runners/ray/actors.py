"""The backend that runs a fleet's actors on Ray."""

import time
from collections.abc import Sequence
from typing import Any

import ray
import ray.exceptions
from ray.util.placement_group import PlacementGroup, remove_placement_group

from jaxrl.runners.fragment import Weights
from jaxrl.runners.ray.backend import Raised, RunnerDiedError
from jaxrl.runners.ray.env_runner import RayEnvRunner
from jaxrl.runners.ray.start import placed


class RayBackend:
    """Actors of Ray. Each is a fresh process: none is forked from one that has woken JAX.

    Args:
        job: Packed; written once where all actors can read it.
        options: Ray's options of each actor.
        group: Where they are placed, a bundle for each; None for wherever Ray puts them.
    """

    def __init__(
        self, job: bytes, options: dict[str, Any], group: PlacementGroup | None = None
    ) -> None:
        self._job, self._group = ray.put(job), group
        self._options = options
        self._actor_class: Any = ray.remote(RayEnvRunner)

    def now(self) -> float:
        return time.monotonic()

    def start(self, worker_index: int, incarnation: int, env_steps: int) -> tuple[Any, Any]:
        options = placed(self._options, self._group, worker_index - 1)
        handle = self._actor_class.options(**options).remote()
        return handle, handle.start.remote(self._job, worker_index, incarnation, env_steps)

    def call(self, handle: Any, method: str, *args: Any) -> Any:
        return getattr(handle, method).remote(*args)

    def put(self, weights: Weights) -> Any:
        return ray.put(weights)

    def wait(self, futures: Sequence[Any], timeout_s: float) -> list[Any]:
        if not futures:
            time.sleep(timeout_s)
            return []
        waiting = list(futures)
        timeout = None if timeout_s == float("inf") else timeout_s
        ready, others = ray.wait(waiting, num_returns=1, timeout=timeout)
        if ready and others:
            more, _ = ray.wait(others, num_returns=len(others), timeout=0)
            ready = [*ready, *more]
        return ready

    def get(self, future: Any) -> Any:
        try:
            return ray.get(future)
        except ray.exceptions.RayTaskError as error:  # outside of what the actor catches itself
            cause = f"{type(error.cause).__name__}: {error.cause}"
            return Raised(sentence=cause, traceback=str(error))
        except ray.exceptions.RayError as error:
            raise RunnerDiedError(" ".join(str(error).split())) from error

    def kill(self, handle: Any) -> None:
        if ray.is_initialized():
            ray.kill(handle)

    def close(self) -> None:
        group, self._group = self._group, None
        if group is not None and ray.is_initialized():
            remove_placement_group(group)
