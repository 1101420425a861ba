"""Backend that runs the actors of a fleet on Ray."""

import time
from collections.abc import Sequence
from typing import Any

import ray
import ray.exceptions
from ray import ObjectRef
from ray.actor import ActorHandle
from ray.util.placement_group import PlacementGroup, remove_placement_group

from jaxrl.core.types import PyTree
from jaxrl.runners.fragment import Weights
from jaxrl.runners.ray.backend import ExceptionInfo, RunnerDiedError
from jaxrl.runners.ray.env_runner import RayEnvRunner
from jaxrl.runners.ray.kept_params import KeptParams
from jaxrl.runners.ray.start import with_placement


class RayBackend:
    """Backend of Ray actors, each in a new process, never forked from one that has started JAX.

    Args:
        job: Packed job, stored once for all actors.
        options: Ray's options of each actor.
        group: Placement group with a bundle per actor; None for Ray's default placement.
    """

    def __init__(
        self, job: bytes, options: dict[str, Any], placement_group: PlacementGroup | None = None
    ) -> None:
        self._job_ref, self._group = ray.put(job), placement_group
        self._options = options
        self._actor_class: Any = ray.remote(RayEnvRunner)
        self.task: PyTree = None
        """Task that actors start with; None for the one of the job."""

    def set_job(self, job: bytes) -> None:
        """Replace the job of actors that start from now on."""
        self._job_ref = ray.put(job)

    def now(self) -> float:
        return time.monotonic()

    def start(self, worker_index: int, incarnation: int, env_steps: int) -> tuple[Any, Any]:
        options = with_placement(self._options, self._group, worker_index - 1)
        handle = self._actor_class.options(**options).remote()
        arguments = worker_index, incarnation, env_steps, self.task
        return handle, handle.start.remote(self._job_ref, *arguments)

    def call(
        self, handle: "ActorHandle[RayEnvRunner]", method: str, *args: object
    ) -> "ObjectRef[Any]":
        return getattr(handle, method).remote(*args)

    def put(self, value: Weights | KeptParams) -> "ObjectRef[Any]":
        return ray.put(value)

    def wait(self, futures: "Sequence[ObjectRef[Any]]", timeout_s: float) -> "list[ObjectRef[Any]]":
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

    def get(self, future: "ObjectRef[Any]") -> Any:
        try:
            return ray.get(future)
        except ray.exceptions.RayTaskError as error:  # raised outside of the actor's own handling
            cause = f"{type(error.cause).__name__}: {error.cause}"
            return ExceptionInfo(message=cause, traceback=str(error))
        except ray.exceptions.RayError as error:
            raise RunnerDiedError(" ".join(str(error).split())) from error

    def kill(self, handle: "ActorHandle[RayEnvRunner]") -> None:
        if ray.is_initialized():
            ray.kill(handle)

    def close(self) -> None:
        group, self._group = self._group, None
        if group is not None and ray.is_initialized():
            remove_placement_group(group)
