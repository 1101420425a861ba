"""The group of EnvRunners that are Ray actors."""

import dataclasses
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl.assembly.assemble import Assembly
from jaxrl.core.types import PyTree
from jaxrl.errors import EnvRunnerError
from jaxrl.runners.fragment import Fragment, Weights
from jaxrl.runners.hooks import RunnerHooks
from jaxrl.runners.ray.actors import RayBackend
from jaxrl.runners.ray.env_runner import Job, pack_job, start_new_episodes
from jaxrl.runners.ray.fleet import Fleet
from jaxrl.runners.ray.health import FaultPolicy
from jaxrl.runners.ray.rounds import EvaluationRound, ask_all, close_envs
from jaxrl.runners.ray.sampling import AsyncSampling, SyncSampling
from jaxrl.runners.ray.start import Wanted, actor_options, ensure_ray, place, runner_bundle
from jaxrl.runners.step_ledger import Ledger
from jaxrl.runtime.env_vars import actor_environs
from jaxrl.runtime.program import Program

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

_SETTLE_S = 60.0
"""So long at most is a runner waited for that comes back when states are taken or given."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupShape:
    """How many runners of how many environments, and what they draw from.

    Args:
        num_env_runners: How many.
        num_envs: Environments of each.
        fragment_length: Steps of each environment in a fragment.
        fragments_per_batch: Fragments of a train batch.
        seed: Of all draws.
        count_setting: The setting that says how many runners, for messages.
        sample_timeout_s: When one that owes an answer counts as late; None for the config's.
    """

    num_env_runners: int
    num_envs: int
    fragment_length: int = 1
    fragments_per_batch: int = 1
    seed: int
    count_setting: str = "num_env_runners"
    sample_timeout_s: float | None = None

    @staticmethod
    def of_training(config: "AlgorithmConfig") -> "GroupShape":
        plan = config.plan()
        return GroupShape(
            num_env_runners=plan.num_env_runners,
            num_envs=plan.envs_per_runner,
            fragment_length=plan.rollout_fragment_length,
            fragments_per_batch=plan.fragments_per_batch,
            seed=config.debugging_settings.seed,
        )


class RayEnvRunnerGroup:
    """Runners in processes of their own, kept going as `fault_tolerance` says.

    Runner i, from 1 on, has the environments (i - 1) * n to i * n - 1 of the run, so that data are
    those of one runner in this process with all of them.

    Args:
        config: The run's, or its evaluation's.
        assembly: The environment that was made of it.
        hooks: Told of runners that were started again; those of episodes are called in the actors.
        shape: How many runners; None for those of training.

    Attributes:
        notes: Sentences for `explain()`.

    Raises:
        ConfigError: Something cannot be sent to actors, or Ray has not the resources.
        EnvRunnerError: A runner cannot start.
    """

    def __init__(
        self,
        config: "AlgorithmConfig",
        assembly: Assembly,
        hooks: RunnerHooks,
        shape: GroupShape | None = None,
    ) -> None:
        shape = shape or GroupShape.of_training(config)
        self._shape, self._hooks = shape, hooks
        runners = config.env_runners_settings
        job = pack_job(
            Job(
                config=config,
                made=assembly.made,
                num_workers=shape.num_env_runners,
                num_envs=shape.num_envs,
                fragment_length=shape.fragment_length,
                seed=shape.seed,
            )
        )
        self.notes = [ensure_ray(config)]
        policy = FaultPolicy.from_config(config)
        if shape.sample_timeout_s is not None:
            policy = dataclasses.replace(policy, sample_timeout_s=shape.sample_timeout_s)
        self._fleet = fleet = Fleet(
            _backend(config, shape, job),
            policy,
            shape.num_env_runners,
            assembly.made.id,
            shape.fragment_length,
            shape.num_envs,
        )
        batch = shape.fragments_per_batch
        in_flight = runners.max_requests_in_flight_per_env_runner
        if config.is_async:
            waiting = config.training_settings.learner_queue_size
            self._sampling = AsyncSampling(fleet, batch, in_flight, waiting)
        else:
            self._sampling = SyncSampling(fleet, batch, in_flight)
        self._waited_s, self._since = 0.0, fleet.backend.now()
        # Not a method of this object, which would keep it from ever being garbage.
        self._finalizer = weakref.finalize(self, _let_go, self._sampling, fleet)
        try:
            fleet.start()
            if runners.validate_env_runners_after_construction:
                fleet.wait_until_started()
        except BaseException:
            self.stop()
            raise

    @property
    def num_healthy_env_runners(self) -> int:
        """Runners that answer in time."""
        return len(self._fleet.healthy())

    @property
    def num_env_runners(self) -> int:
        """Runners that were asked for."""
        return self._shape.num_env_runners

    # --- training ---

    def publish(self, weights: Weights) -> None:
        actor = jax.device_get(weights.actor)
        self._fleet.publish(dataclasses.replace(weights, actor=actor))

    def next_batch(self) -> list[Fragment]:
        begin = self._fleet.backend.now()
        batch = self._sampling.next_batch()
        self._waited_s += self._fleet.backend.now() - begin
        self._tell_of_recreated()
        return batch

    def _tell_of_recreated(self) -> None:
        indices = self._fleet.take_recreated()
        if indices:
            self._hooks.call(
                "on_env_runners_recreated",
                env_runner_group=self,
                env_runner_indices=indices,
                is_evaluation=self._shape.count_setting != "num_env_runners",
            )

    def metrics(self) -> dict[str, Any]:
        """What runners and learner did since the last call, and lifetime accounts."""
        fleet, now = self._fleet, self._fleet.backend.now()
        elapsed = max(now - self._since, 1e-9)
        busy = fleet.take_busy_s() / (elapsed * self._shape.num_env_runners)
        waited, self._waited_s, self._since = self._waited_s, 0.0, now
        return {
            "env_runners": {
                "learner_wait_fraction": min(1.0, waited / elapsed),
                "env_runners_wait_fraction": max(0.0, 1.0 - busy),
                **self._sampling.metrics(),
            },
            "fault_tolerance": {
                **fleet.ledger.metrics(),
                "num_healthy_env_runners": len(fleet.healthy()),
                "num_env_runner_restarts": fleet.num_restarts,
                "num_sub_env_restarts": fleet.num_sub_env_restarts,
                "restarts": fleet.log.sentences(),
            },
        }

    # --- evaluation ---

    def evaluate_async(
        self, weights: Weights, method: str, shares: Sequence[dict[str, Any]]
    ) -> EvaluationRound:
        """Begin to call a method of the runners, and go on with something else meanwhile.

        Args:
            weights: To act with.
            method: Of the runners.
            shares: The keyword arguments of each call; a runner may get several, one after
                another, and those of one that fails go to the others.
        """
        self.publish(weights)
        return EvaluationRound(self._fleet, method, shares, self._tell_of_recreated)

    # --- the runners themselves ---

    def foreach_env_runner(self, fn: Callable[[Any], Any]) -> list[Any]:
        """What a function of each runner returns, of the healthy ones in order of their indices."""
        return list(ask_all(self._fleet, fn).values())

    def foreach_env_runner_with_index(self, fn: Callable[[int, Any], Any]) -> list[tuple[int, Any]]:
        """The indices of healthy runners, and what a function of index and runner returns there."""
        indices = list(range(1, self._shape.num_env_runners + 1))
        return list(ask_all(self._fleet, lambda runner, i: fn(i, runner), indices).items())

    def get_state(self) -> PyTree:
        """Where all environments are, in order of their indices; None if a runner cannot tell.

        One that is being started again is waited for, but not for ever.
        """
        fleet = self._fleet
        for _ in range(2):  # asking may be what finds out that one has died
            self._sampling.settle(_SETTLE_S)
            states = ask_all(fleet, lambda runner: runner.get_state())
            if len(states) == len(fleet.members):
                return _joined([states[index] for index in sorted(states)])
        return None

    def set_state(self, state: PyTree) -> None:
        """Go on from what `get_state` returned.

        After None all environments start new episodes, which draw what was not drawn before as far
        as `set_counts` told.

        Raises:
            EnvRunnerError: The state is of another number of environments.
        """
        self._sampling.settle(_SETTLE_S)
        self._sampling.forget()
        members = self._fleet.members
        if state is None:
            counts = [member.env_steps for member in members]
            ask_all(self._fleet, start_new_episodes, counts)
            return
        size, saved = self._shape.num_envs, len(state["count"])
        if saved != size * len(members):
            raise EnvRunnerError(
                f"The saved state has {saved} environments, and num_env_runners={len(members)} "
                f"with num_envs_per_env_runner={size} have {size * len(members)}: restore with as "
                "many as were saved."
            )
        rows = [slice(place * size, (place + 1) * size) for place in range(len(members))]
        parts = [jax.tree.map(lambda leaf, r=r: leaf[r], state) for r in rows]
        for member, part in zip(members, parts, strict=True):
            member.env_steps = int(np.max(part["count"]))
        ask_all(self._fleet, lambda runner, part: runner.set_state(part), parts)

    @property
    def programs(self) -> list[Program]:
        """None: the actors compile in their own processes."""
        return []

    def get_counts(self) -> dict[str, Any]:
        return {
            "ledger": self._fleet.ledger.to_state(),
            "env_steps": [member.env_steps for member in self._fleet.members],
            "num_env_runner_restarts": self._fleet.num_restarts,
            "num_sub_env_restarts": self._fleet.num_sub_env_restarts,
        }

    def set_counts(self, counts: dict[str, Any]) -> None:
        """Go on counting from what `get_counts` returned, here or without actors."""
        fleet = self._fleet
        with fleet.lock:
            fleet.ledger = Ledger.from_state(counts.get("ledger", {}))
            fleet.num_restarts = counts.get("num_env_runner_restarts", 0)
            fleet.num_sub_env_restarts = counts.get("num_sub_env_restarts", 0)
            # A restored run may have another number of runners: none draws what any has drawn.
            env_steps = max(counts.get("env_steps", []), default=0)
            for member in fleet.members:
                member.env_steps = env_steps

    def stop(self) -> None:
        """Close the environments and end the actors; may be called twice."""
        if self._finalizer.alive:
            self._sampling.stop()
            close_envs(self._fleet)
            self._finalizer()


def _backend(config: "AlgorithmConfig", shape: GroupShape, job: bytes) -> RayBackend:
    """The actors' resources, environment variables and places, checked."""
    bundle = runner_bundle(config)
    custom = config.env_runners_settings.custom_resources_per_env_runner
    extra = config.python_environment_settings.extra_python_environs_for_worker
    wanted = Wanted(
        count=shape.num_env_runners,
        bundle=bundle,
        strategy=config.resources_settings.placement_strategy,
        count_setting=shape.count_setting,
        setting_of={
            "CPU": "num_cpus_per_env_runner",
            **dict.fromkeys(custom, "custom_resources_per_env_runner"),
        },
    )
    options = actor_options(bundle, actor_environs(bundle["CPU"], extra))
    return RayBackend(job, options, place(wanted))


def _joined(parts: list[dict[str, PyTree]]) -> dict[str, PyTree]:
    """The states of all runners as that of one with all their environments."""
    envs = [part.pop("env") for part in parts]
    joined = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    joined["env"] = None
    if all(env is not None for env in envs):
        joined["env"] = jax.tree.map(lambda *leaves: np.concatenate(leaves), *envs)
    return joined


def _let_go(sampling: SyncSampling | AsyncSampling, fleet: Fleet) -> None:
    sampling.stop()
    fleet.stop()
