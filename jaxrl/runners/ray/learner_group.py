"""Several learners: a process each under Ray, joined by `jax.distributed` to one program.

The driver is not a member: a dead peer can take the others with it, and the driver is what tells of
it. Gradients and moments are reduced by XLA's collectives between the learners, as between the
devices of one.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import ray
import ray.exceptions
from ray import cloudpickle
from ray.util.placement_group import remove_placement_group

from jaxrl.assembly.assemble import Assembly
from jaxrl.core.types import PyTree
from jaxrl.errors import ConfigError, LearnerError
from jaxrl.runners.batches import columns_of
from jaxrl.runners.fragment import Fragment, Weights
from jaxrl.runners.ray.backend import Raised
from jaxrl.runners.ray.env_runner import Job, pack_job
from jaxrl.runners.ray.health import with_detail
from jaxrl.runners.ray.learner import (
    PROBES,
    RayLearner,
    data_as_keys,
    first_state,
    keys_as_data,
)
from jaxrl.runners.ray.start import (
    Wanted,
    actor_options,
    ensure_ray,
    learner_bundle,
    place,
    placed,
)
from jaxrl.runtime.env_vars import actor_environs, learner_environs
from jaxrl.runtime.program import Program
from jaxrl.training.report import Report, to_host
from jaxrl.training.train_state import TrainState

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

logger = logging.getLogger("jaxrl")

JOIN_TIMEOUT_S = 120
STEP_TIMEOUT_S = 3600.0
"""How long one dispatch may take before the learners count as hung."""


class RayLearnerGroup:
    """The learners of a run as Ray actors.

    Args:
        config: The run's.
        assembly: Its pure functions, which every learner makes for itself.

    Raises:
        ConfigError: They do not fit into the cluster, or do not divide the shards.
        LearnerError: One of them could not start.
    """

    is_remote = True

    def __init__(self, config: "AlgorithmConfig", assembly: Assembly) -> None:
        settings = config.learners_settings
        self._number = settings.num_learners
        self._assembly, self._config = assembly, config
        self._generation = 0
        self._cached: TrainState | None = None
        self._learners: list[Any] = []
        self._group: Any = None
        ensure_ray(config)
        bundle = learner_bundle(config)
        wanted = Wanted(
            count=self._number,
            bundle=bundle,
            strategy=config.resources_settings.placement_strategy,
            count_setting="num_learners",
            setting_of={
                "CPU": "num_cpus_per_learner",
                "GPU": "num_gpus_per_learner",
                **dict.fromkeys(
                    settings.custom_resources_per_learner, "custom_resources_per_learner"
                ),
            },
        )
        self._group = place(wanted)
        try:
            self._start(bundle)
        except BaseException:
            self.stop()
            raise

    def _start(self, bundle: dict[str, float]) -> None:
        extra = self._config.python_environment_settings.extra_python_environs_for_worker
        environs = (
            learner_environs(extra) if bundle["GPU"] > 0 else actor_environs(bundle["CPU"], extra)
        )
        as_actor: Any = ray.remote  # whose types do not know the argument
        actor = as_actor(concurrency_groups={PROBES: 1})(RayLearner)
        options = actor_options(bundle, environs)
        for rank in range(self._number):
            own = placed(options, self._group, rank)
            self._learners.append(actor.options(**own).remote())
        address = self._collect([self._learners[0].address.remote()], JOIN_TIMEOUT_S)[0]
        devices = self._collect(
            [
                learner.join.remote(address, rank, self._number, JOIN_TIMEOUT_S)
                for rank, learner in enumerate(self._learners)
            ],
            JOIN_TIMEOUT_S,
        )
        self._check_shards(sum(devices))
        plan = self._assembly.plan
        job = Job(
            config=self._config,
            made=self._assembly.made,
            num_workers=0,
            num_envs=plan.envs_per_runner,
            fragment_length=plan.rollout_fragment_length,
            seed=self._config.debugging_settings.seed,
        )
        packed = ray.put(pack_job(job))
        for answer in self._all("build", packed):
            if isinstance(answer, Raised):
                sentence = f"A learner of num_learners={self._number} could not start"
                raise LearnerError(with_detail(f"{sentence}: {answer.sentence}", answer.traceback))

    def _check_shards(self, num_devices: int) -> None:
        shards = self._assembly.plan.num_shards
        if shards % num_devices:
            raise ConfigError(
                f"num_learners={self._number} with {num_devices} devices between them must divide "
                f"num_shards={shards}, into which environments and minibatches are divided: set "
                f"num_shards to a multiple of {num_devices}, or another num_learners."
            )

    # --- calls ---

    def _all(self, method: str, *args: Any) -> list[Any]:
        """What a method returns in every learner, called in all of them at once."""
        futures = [learner.call.remote(method, *args) for learner in self._learners]
        return self._collect(futures, STEP_TIMEOUT_S)

    def _collect(self, futures: Sequence[Any], timeout_s: float) -> list[Any]:
        """All answers, or LearnerError as soon as one learner fails: the others wait for it."""
        waiting, deadline = list(futures), time.monotonic() + timeout_s
        half = self._config.fault_tolerance_settings.learner_health_probe_timeout_s / 2
        while waiting:
            left = deadline - time.monotonic()
            if left <= 0:
                self._kill()
                raise LearnerError(
                    f"The learners gave no answer within {timeout_s:g} seconds "
                    f"(num_learners={self._number}); all of them are stopped."
                )
            ready, waiting = ray.wait(waiting, num_returns=1, timeout=min(left, half))
            if ready:
                self._check(ready[0], futures)
            else:
                self._probe(half)
        return ray.get(list(futures))

    def _probe(self, timeout_s: float) -> None:
        """Ask each learner whether it is there, whatever it computes."""
        answers = [learner.is_there.remote() for learner in self._learners]
        _, missing = ray.wait(answers, num_returns=len(answers), timeout=timeout_s)
        if missing:
            rank = answers.index(missing[0])
            self._kill()
            raise LearnerError(
                f"Learner {rank} of num_learners={self._number} has not answered within "
                f"learner_health_probe_timeout_s={2 * timeout_s:g} seconds, so it is frozen or its "
                "machine is gone, and the others cannot go on without it."
            )

    def _check(self, future: Any, futures: Sequence[Any]) -> None:
        try:
            ray.get(future)
        except ray.exceptions.RayError as error:
            self._kill()
            rank = list(futures).index(future)
            raise LearnerError(
                f"Learner {rank} of num_learners={self._number} died or failed, and the others "
                f"cannot go on without it: {str(error).strip().splitlines()[-1]}"
            ) from error

    # --- what a group of learners is ---

    @property
    def state(self) -> TrainState:
        state = self._cached
        if state is None:
            plain = self._all("get_state")[0]
            state = self._cached = jax.device_put(data_as_keys(plain, self._shapes()))
        return state

    @state.setter
    def state(self, state: TrainState) -> None:
        self._all("set_state", ray.put(to_host(keys_as_data(state))))
        self._cached = state
        self._generation += 1

    def _shapes(self) -> PyTree:
        return jax.eval_shape(lambda: first_state(self._assembly, seed=0))

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def programs(self) -> list[Program]:
        """None: the learners compile in their own processes."""
        return []

    def run(
        self, batches: int, on_phase: Callable[[str], None], *, rows_at_most: int = 1
    ) -> Report:
        del rows_at_most  # the state is kept by the learners, which copy nothing of it
        on_phase("training")
        self._cached = None
        return self._all("run", batches)[0]

    def learn(self, fragments: Sequence[Fragment], on_phase: Callable[[str], None]) -> Report:
        on_phase("training")
        self._cached = None
        columns = self._assembly.plan.num_envs
        share = columns // self._number
        futures = [
            learner.call.remote("learn", columns_of(fragments, rank * share, (rank + 1) * share))
            for rank, learner in enumerate(self._learners)
        ]
        return self._collect(futures, STEP_TIMEOUT_S)[0]

    def wait(self, pending: Report) -> None:
        """It has been waited for."""
        del pending

    def report(self, pending: Sequence[Report]) -> Report:
        return Report.joined(pending)

    def weights(self, version: int) -> Weights:
        return self._all("weights", version)[0]

    def foreach_learner(self, fn: Callable[[Any], Any]) -> list[Any]:
        packed = ray.put(cloudpickle.dumps(fn))  # pyright: ignore[reportPrivateImportUsage]
        return self._all("apply", packed)

    def _kill(self) -> None:
        learners, self._learners = self._learners, []
        for learner in learners:
            ray.kill(learner)

    def stop(self) -> None:
        """End the learners; may be called twice."""
        if not ray.is_initialized():
            return
        self._kill()
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None
