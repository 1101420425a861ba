"""Group of several learners: a Ray process each, joined to one program by `jax.distributed`.

The driver is not a member, because a dead peer can take the others with it, and the driver has to
report that. Gradients and moments are reduced by XLA's collectives between the learners, as between
the devices of one.
"""

import logging
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import jax
import ray
import ray.exceptions
from ray import cloudpickle
from ray.util.placement_group import PlacementGroup, remove_placement_group

from jaxrl.assembly.assemble import Assembly
from jaxrl.core.types import PyTree
from jaxrl.errors import ConfigError, LearnerError
from jaxrl.runners.fragment import Fragment, Weights, slice_fragment_columns
from jaxrl.runners.learner_steps import LearnerSteps
from jaxrl.runners.ray.env_runner import ActorJob, pack_job
from jaxrl.runners.ray.fleet import append_traceback
from jaxrl.runners.ray.learner import PROBE_GROUP, RayLearner, init_state, unwrap_keys, wrap_keys
from jaxrl.runners.ray.start import (
    ExceptionInfo,
    ResourceRequest,
    ensure_ray,
    make_actor_options,
    make_learner_bundle,
    reserve_bundles,
    with_placement,
)
from jaxrl.runtime.env_vars import make_actor_env_vars, make_learner_env_vars
from jaxrl.runtime.program import Program
from jaxrl.training.report import TrainReport, to_host
from jaxrl.training.train_state import TrainState

if TYPE_CHECKING:
    from jaxrl.config.config import Config


class StepCalls(Protocol):
    """Calls of all learners at the same time."""

    def call_step(self, method: str, *args: object) -> Any:
        """Call a method that changes the state; return the first learner's result."""
        ...

    def call_with_columns(
        self, method: str, fragments: Sequence[Fragment], *args: object
    ) -> TrainReport:
        """Call a method with each learner's columns of a batch."""
        ...


class RemoteBatch:
    """Batch that the learners hold under a number, until this object is gone."""

    def __init__(self, number: int) -> None:
        self.number = number


class RemoteLearnerSteps:
    """Steps of remote learners; a batch stays with them.

    Args:
        calls: Calls of the learners.
    """

    def __init__(self, calls: StepCalls) -> None:
        self._calls: weakref.ref[StepCalls] = weakref.ref(calls)
        self._num_batches = 0
        self._unused: list[int] = []
        """Numbers of batches that are gone here; the learners forget them with the next one."""

    @property
    def programs(self) -> list[Program]:
        """Empty; the learners compile in their own processes."""
        return []

    def sample(self) -> tuple[RemoteBatch, TrainReport]:
        batch = self._make_batch()
        return batch, self._get_calls().call_step("step_sample", batch.number)

    def receive(self, fragments: Sequence[Fragment]) -> tuple[RemoteBatch, TrainReport]:
        batch = self._make_batch()
        return batch, self._get_calls().call_with_columns("step_receive", fragments, batch.number)

    def add_to_buffer(self, batch: RemoteBatch) -> None:
        self._get_calls().call_step("step_add_to_buffer", batch.number)

    def update(self, batch: RemoteBatch | None, num_updates: int | None) -> TrainReport:
        number = None if batch is None else batch.number
        return self._get_calls().call_step("step_update", number, num_updates)

    def release_behaviour(self) -> None:
        self._release(behaviour=True)

    def _get_calls(self) -> StepCalls:
        calls = self._calls()
        assert calls is not None
        return calls

    def _make_batch(self) -> RemoteBatch:
        if self._unused:
            self._release(behaviour=False)
        self._num_batches += 1
        batch = RemoteBatch(self._num_batches)
        weakref.finalize(batch, self._unused.append, batch.number).atexit = False
        return batch

    def _release(self, *, behaviour: bool) -> None:
        numbers = list(self._unused)
        del self._unused[: len(numbers)]
        self._get_calls().call_step("step_release", numbers, behaviour)


logger = logging.getLogger("jaxrl")

JOIN_TIMEOUT_S = 120
STEP_TIMEOUT_S = 3600.0
"""Maximum duration of a dispatch whose learners all answer their health probes, as those that compute or
compile do: a frozen one is found within `learner_health_probe_timeout_s`."""


class RayLearnerGroup:
    """Learners of a run as Ray actors.

    Args:
        config: Config of the run.
        assembly: Pure functions of the run, which every learner also assembles in its process.

    Raises:
        ConfigError: If the learners do not fit into the cluster or do not divide the shards.
        LearnerError: If one of them could not start.
    """

    is_remote = True
    fingerprint: str | None = None
    learner_class = RayLearner

    def __init__(self, config: "Config", assembly: Assembly) -> None:
        settings = config.learners_settings
        self._num_learners = settings.num_learners
        self._assembly, self._config = assembly, config
        self._generation = 0
        self._cached_state: TrainState | None = None
        self._learners: list[Any] = []
        self._steps = RemoteLearnerSteps(self)
        self._placement_group: PlacementGroup | None = None
        ensure_ray(config)
        bundle = make_learner_bundle(config)
        wanted = ResourceRequest(
            count=self._num_learners,
            bundle=bundle,
            strategy=config.resources_settings.placement_strategy,
            count_setting="num_learners",
            setting_by_resource={
                "CPU": "num_cpus_per_learner",
                "GPU": "num_gpus_per_learner",
                **dict.fromkeys(
                    settings.custom_resources_per_learner, "custom_resources_per_learner"
                ),
            },
        )
        self._placement_group = reserve_bundles(wanted)
        try:
            self._start(bundle)
        except BaseException:
            self.stop()
            raise

    def _start(self, bundle: dict[str, float]) -> None:
        extra = self._config.python_environment_settings.extra_python_environs_for_worker
        environs = (
            make_learner_env_vars(extra)
            if bundle["GPU"] > 0
            else make_actor_env_vars(bundle["CPU"], extra)
        )
        as_actor: Any = ray.remote  # its type annotations lack the argument
        actor = as_actor(concurrency_groups={PROBE_GROUP: 1})(self.learner_class)
        options = make_actor_options(bundle, environs)
        for rank in range(self._num_learners):
            rank_options = with_placement(options, self._placement_group, rank)
            self._learners.append(actor.options(**rank_options).remote())
        address = self._collect([self._learners[0].address.remote()], JOIN_TIMEOUT_S)[0]
        devices = self._collect(
            [
                learner.join.remote(address, rank, self._num_learners, JOIN_TIMEOUT_S)
                for rank, learner in enumerate(self._learners)
            ],
            JOIN_TIMEOUT_S,
        )
        self._check_shards(sum(devices))
        plan = self._assembly.plan
        job = ActorJob(
            config=self._config,
            made=self._assembly.made,
            num_workers=0,
            num_envs=plan.envs_per_runner,
            fragment_length=plan.rollout_fragment_length,
            seed=self._config.debugging_settings.run_seed,
        )
        packed = ray.put(pack_job(job))
        for reply in self._call_all("build", packed):
            if isinstance(reply, ExceptionInfo):
                message = f"A learner of num_learners={self._num_learners} could not start"
                raise LearnerError(append_traceback(f"{message}: {reply.message}", reply.traceback))

    def _check_shards(self, num_devices: int) -> None:
        shards = self._assembly.plan.num_shards
        if shards % num_devices:
            raise ConfigError(
                f"num_learners={self._num_learners} with {num_devices} devices between them must "
                f"divide num_shards={shards}, into which environments and minibatches are divided: "
                f"set num_shards to a multiple of {num_devices}, or another num_learners."
            )

    # --- calls ---

    def _call_all(self, method: str, *args: object) -> list[Any]:
        """Call a method of all learners at the same time and return the results."""
        futures = [learner.call.remote(method, *args) for learner in self._learners]
        return self._collect(futures, STEP_TIMEOUT_S)

    def _collect(self, futures: Sequence[Any], timeout_s: float) -> list[Any]:
        """Wait for all results.

        Raises:
            LearnerError: As soon as one learner fails, since the others wait for it.
        """
        waiting, deadline = list(futures), time.monotonic() + timeout_s
        half = self._config.fault_tolerance_settings.learner_health_probe_timeout_s / 2
        while waiting:
            left = deadline - time.monotonic()
            if left <= 0:
                self._kill_learners()
                raise LearnerError(
                    f"The learners did not reply within {timeout_s:g} seconds "
                    f"(num_learners={self._num_learners}); all of them are stopped."
                )
            ready, waiting = ray.wait(waiting, num_returns=1, timeout=min(left, half))
            if ready:
                self._check_result(ready[0], futures)
            else:
                self._probe(half)
        return ray.get(list(futures))

    def _probe(self, timeout_s: float) -> None:
        """Check that every learner process replies, even while it computes."""
        replies = [learner.is_there.remote() for learner in self._learners]
        _, missing = ray.wait(replies, num_returns=len(replies), timeout=timeout_s)
        if missing:
            rank = replies.index(missing[0])
            self._kill_learners()
            raise LearnerError(
                f"Learner {rank} of num_learners={self._num_learners} has not replied within "
                f"learner_health_probe_timeout_s={2 * timeout_s:g} seconds, so it is frozen or its "
                "machine is gone, and the others cannot continue without it."
            )

    def _check_result(
        self, future: ray.ObjectRef[Any], futures: Sequence[ray.ObjectRef[Any]]
    ) -> None:
        try:
            ray.get(future)
        except ray.exceptions.RayError as error:
            self._kill_learners()
            rank = list(futures).index(future)
            raise LearnerError(
                f"Learner {rank} of num_learners={self._num_learners} died or failed, and the "
                f"others cannot continue without it: {str(error).strip().splitlines()[-1]}"
            ) from error

    # --- interface of LearnerGroup ---

    @property
    def state(self) -> TrainState:
        state = self._cached_state
        if state is None:
            plain = self._call_all("get_state")[0]
            state = self._cached_state = jax.device_put(wrap_keys(plain, self._make_shapes()))
        return state

    @state.setter
    def state(self, state: TrainState) -> None:
        self._call_all("set_state", ray.put(to_host(unwrap_keys(state))))
        self._cached_state = state
        self._generation += 1

    def _make_shapes(self) -> PyTree:
        return jax.eval_shape(lambda: init_state(self._assembly, seed=0))

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def programs(self) -> list[Program]:
        """Empty; the learners compile in their own processes."""
        return []

    def run_batches(
        self, num_batches: int, on_phase: Callable[[str], None], *, max_iterations: int = 1
    ) -> TrainReport:
        del max_iterations  # learners keep no copy of the state, so nothing is computed ahead
        on_phase("training")
        self._cached_state = None
        return self._call_all("run", num_batches)[0]

    def update(self, fragments: Sequence[Fragment], on_phase: Callable[[str], None]) -> TrainReport:
        on_phase("training")
        return self.call_with_columns("learn", fragments)

    def call_step(self, method: str, *args: object) -> Any:
        """Call a method that changes the state of all learners; return the first one's result."""
        self._cached_state = None
        return self._call_all(method, *args)[0]

    def call_with_columns(
        self, method: str, fragments: Sequence[Fragment], *args: object
    ) -> TrainReport:
        """Call a method of all learners, each with its columns of a batch as last argument."""
        self._cached_state = None
        futures = [
            learner.call.remote(
                method, *args, slice_fragment_columns(fragments, rank, self._num_learners)
            )
            for rank, learner in enumerate(self._learners)
        ]
        return self._collect(futures, STEP_TIMEOUT_S)[0]

    def wait(self, pending: TrainReport) -> None:
        """Do nothing; the update has completed already."""
        del pending

    def fetch_report(self, pending: Sequence[TrainReport]) -> TrainReport:
        return TrainReport.merge(pending)

    def get_weights(self, version: int) -> Weights:
        return self._call_all("weights", version)[0]

    @property
    def user_buffer(self) -> None:
        """None: a buffer of a user's own needs a learner of one run in this process."""

    @property
    def steps(self) -> LearnerSteps:
        return self._steps

    def foreach_learner(self, func: Callable[[Any], Any]) -> list[Any]:
        packed = ray.put(cloudpickle.dumps(func))  # pyright: ignore[reportPrivateImportUsage]
        return self._call_all("apply", packed)

    def _kill_learners(self) -> None:
        learners, self._learners = self._learners, []
        for learner in learners:
            ray.kill(learner)

    def stop(self) -> None:
        """Kill the learners; safe to call more than once."""
        if not ray.is_initialized():
            return
        self._kill_learners()
        if self._placement_group is not None:
            remove_placement_group(self._placement_group)
            self._placement_group = None
