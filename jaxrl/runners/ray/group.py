"""Group of env runners that are Ray actors."""

import dataclasses
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, cast

import jax
import numpy as np

from jaxrl.assembly.assemble import Assembly
from jaxrl.config.multi_agent import LIVE_SETTINGS
from jaxrl.core.types import PyTree
from jaxrl.envs.multi.host_made import MadeMultiHostEnv
from jaxrl.errors import EnvRunnerError
from jaxrl.runners.fragment import Fragment, Weights
from jaxrl.runners.hooks import RunnerHooks
from jaxrl.runners.multi.counts import AgentCounts
from jaxrl.runners.multi.state import count_pending_rows
from jaxrl.runners.protocols import FormerGroupNames, ReadsPolicies, call_runner
from jaxrl.runners.ray.actors import RayBackend
from jaxrl.runners.ray.env_runner import (
    ActorJob,
    change_modules_by_job,
    pack_job,
    start_new_episodes,
)
from jaxrl.runners.ray.fleet import Fleet
from jaxrl.runners.ray.health import FaultPolicy
from jaxrl.runners.ray.kept_params import KeptParamsSplitter, find_frozen_modules
from jaxrl.runners.ray.rounds import EvaluationRound, call_all, close_envs
from jaxrl.runners.ray.sampling import AsyncSampler, SyncSampler
from jaxrl.runners.ray.start import (
    ResourceRequest,
    ensure_ray,
    make_actor_options,
    make_runner_bundle,
    reserve_bundles,
)
from jaxrl.runners.step_ledger import StepLedger
from jaxrl.runtime.env_vars import make_actor_env_vars
from jaxrl.runtime.program import Program

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

_RECOVERY_TIMEOUT_S = 60.0
"""Maximum time to wait for restarting runners when their state is read or restored."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupShape:
    """Size, batch arithmetic and seed of a group of runners.

    Args:
        num_env_runners: Number of runners.
        num_envs: Number of environments per runner.
        fragment_length: Number of steps per environment in a fragment.
        fragments_per_batch: Number of fragments per train batch.
        seed: Seed of all random draws.
        count_setting: Name of the setting of the number of runners, for messages.
        sample_timeout_s: Seconds after which a reply is late; None for the config's value.
    """

    num_env_runners: int
    num_envs: int
    fragment_length: int = 1
    fragments_per_batch: int = 1
    seed: int
    count_setting: str = "num_env_runners"
    sample_timeout_s: float | None = None

    @staticmethod
    def from_config(config: "AlgorithmConfig") -> "GroupShape":
        plan = config.plan()
        return GroupShape(
            num_env_runners=plan.num_env_runners,
            num_envs=plan.envs_per_runner,
            fragment_length=plan.rollout_fragment_length,
            fragments_per_batch=plan.fragments_per_batch,
            seed=config.debugging_settings.run_seed,
        )


class RunnerStandIn(ReadsPolicies):
    """Stand-in for a runner of this process, where all are actors: it has a config, and no copies.

    Args:
        config: Config of the run.
    """

    worker_index, num_envs, env = 0, 0, None

    def __init__(self, config: "AlgorithmConfig") -> None:
        self.config = config.copy_live(*LIVE_SETTINGS) if config.is_multi_agent else config

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(
            f"the runner of this process stands in for actors, and has no {name!r}: pass "
            "local_env_runner=False to call actors alone."
        )


class RayEnvRunnerGroup(FormerGroupNames):
    """Env runners in processes of their own, restarted according to `fault_tolerance`.

    Runner i, from 1 on, has the environments (i - 1) * n to i * n - 1 of the run, so the data are
    the same as those of a single runner in this process with all environments.

    Args:
        config: Config of the run or of its evaluation.
        assembly: Assembled run, which provides the environment.
        hooks: Callbacks for restarted runners; the episode hooks are called in the actors.
        shape: Size of the group; None for that of training.

    Attributes:
        notes: Messages for `explain()`.

    Raises:
        ConfigError: If an object cannot be sent to actors, or Ray lacks the resources.
        EnvRunnerError: If a runner cannot start.
    """

    is_compiled: ClassVar[bool] = False

    def __init__(
        self,
        config: "AlgorithmConfig",
        assembly: Assembly,
        hooks: RunnerHooks,
        shape: GroupShape | None = None,
    ) -> None:
        shape = shape or GroupShape.from_config(config)
        self._shape, self._hooks = shape, hooks
        runners = config.env_runners_settings
        job = self._pack_job(config, assembly.made)
        self.stand_in = RunnerStandIn(config)
        self.notes = [ensure_ray(config)]
        policy = FaultPolicy.from_config(config)
        if shape.sample_timeout_s is not None:
            policy = dataclasses.replace(policy, sample_timeout_s=shape.sample_timeout_s)
        self._backend = _make_backend(config, shape, job)
        self._fleet = fleet = Fleet(
            self._backend,
            policy,
            shape.num_env_runners,
            assembly.made.id,
            shape.fragment_length,
            shape.num_envs,
        )
        fleet.agent_counts = AgentCounts.make_if(config.is_multi_agent)
        batch = shape.fragments_per_batch
        in_flight = runners.max_requests_in_flight_per_env_runner
        if config.is_async:
            queue_size = config.training_settings.learner_queue_size
            self._sampling = AsyncSampler(fleet, batch, in_flight, queue_size)
        else:
            self._sampling = SyncSampler(fleet, batch, in_flight)
        self._kept_params = KeptParamsSplitter(find_frozen_modules(assembly.plan))
        self._waited_s, self._metrics_since = 0.0, fleet.backend.now()
        # Not a bound method, which would keep this object from being garbage-collected.
        self._finalizer = weakref.finalize(self, _release, self._sampling, fleet)
        try:
            fleet.start()
            if runners.validate_env_runners_after_construction:
                fleet.wait_until_started()
        except BaseException:
            self.stop()
            raise

    def _pack_job(self, config: "AlgorithmConfig", made: object) -> bytes:
        shape = self._shape
        return pack_job(
            ActorJob(
                config=config,
                made=cast("Any", made),
                num_workers=shape.num_env_runners,
                num_envs=shape.num_envs,
                fragment_length=shape.fragment_length,
                seed=shape.seed,
            )
        )

    def set_policies(self, policies: Mapping[str, Any]) -> None:
        self.stand_in.run_policies = policies

    def local_worker(self) -> RunnerStandIn:
        """Return what stands in for a runner of this process, with the learner's weights."""
        return self.stand_in

    @property
    def local_config(self) -> "AlgorithmConfig":
        return self.stand_in.config

    def change_modules(
        self, config: "AlgorithmConfig", made: MadeMultiHostEnv, *, has_new_mapping: bool
    ) -> None:
        job = self._pack_job(config, made)
        self._backend.set_job(job)
        policies = self.stand_in.run_policies
        self.stand_in = RunnerStandIn(config)
        self.stand_in.run_policies = policies
        self._kept_params = KeptParamsSplitter(find_frozen_modules(config.plan()))
        self._sampling.wait_for_recovery(_RECOVERY_TIMEOUT_S)
        change = partial(change_modules_by_job, job=job, has_new_mapping=has_new_mapping)
        call_all(self._fleet, change)

    def keep_config(self, config: "AlgorithmConfig", made: MadeMultiHostEnv) -> None:
        self._backend.set_job(self._pack_job(config, made))

    @property
    def num_healthy_env_runners(self) -> int:
        """Number of runners that reply in time."""
        return len(self._fleet.get_healthy())

    @property
    def num_env_runners(self) -> int:
        """Number of configured runners."""
        return self._shape.num_env_runners

    @property
    def task(self) -> PyTree:
        """Latest task that was set; None for none."""
        return self._backend.task

    # --- training ---

    def sync_weights(
        self, weights: Weights | None = None, *, policies: Collection[str] | None = None
    ) -> None:
        """Publish the weights to act with; RLlib's call, without any, changes nothing.

        Runners receive the newest weights of all modules before they sample.
        """
        del policies
        if weights is None:
            return
        actor = jax.device_get(weights.actor)
        self._backend.task = weights.task
        self._fleet.publish(*self._kept_params.split(dataclasses.replace(weights, actor=actor)))

    def set_task(self, task: PyTree) -> None:
        self._backend.task = task
        call_all(self._fleet, lambda runner: runner.set_task(task))

    def next_batch(self) -> list[Fragment]:
        begin = self._fleet.backend.now()
        batch = self._sampling.next_batch()
        self._waited_s += self._fleet.backend.now() - begin
        self._call_recreated_hook()
        return batch

    def _call_recreated_hook(self) -> None:
        indices = self._fleet.pop_recreated()
        if indices:
            self._hooks.call(
                "on_env_runners_recreated",
                env_runner_group=self,
                env_runner_indices=indices,
                is_evaluation=self._shape.count_setting != "num_env_runners",
            )

    def get_metrics(self) -> dict[str, Any]:
        """Return wait fractions since the last call, and lifetime counts."""
        fleet, now = self._fleet, self._fleet.backend.now()
        elapsed = max(now - self._metrics_since, 1e-9)
        busy = fleet.pop_busy_seconds() / (elapsed * self._shape.num_env_runners)
        waited, self._waited_s, self._metrics_since = self._waited_s, 0.0, now
        return {
            "env_runners": {
                "learner_wait_fraction": min(1.0, waited / elapsed),
                "env_runners_wait_fraction": max(0.0, 1.0 - busy),
                **self._sampling.get_metrics(),
            },
            "fault_tolerance": {
                **fleet.ledger.get_metrics(),
                "num_healthy_env_runners": len(fleet.get_healthy()),
                "num_env_runner_restarts": fleet.num_restarts,
                "num_sub_env_restarts": fleet.num_sub_env_restarts,
                "restarts": fleet.log.get_messages(),
                **_describe(fleet.agent_counts),
            },
        }

    # --- evaluation ---

    def evaluate_async(
        self, weights: Weights, method: str, shares: Sequence[dict[str, Any]]
    ) -> EvaluationRound:
        """Start calls of a method on the runners without waiting for the results.

        Args:
            weights: Weights to act with.
            method: Name of the method of the runners.
            shares: Keyword arguments of each call. A runner may process several, one after another;
                those of a failed runner are reassigned.
        """
        self.sync_weights(weights)
        return EvaluationRound(self._fleet, method, shares, self._call_recreated_hook)

    # --- access to the runners and their state ---

    def foreach_env_runner(
        self,
        func: Callable[[Any], Any] | str,
        *,
        kwargs: dict[str, Any] | None = None,
        local_env_runner: bool | None = None,
    ) -> list[Any]:
        """Call a function on each healthy runner; return the results in order of their indices.

        Args:
            func: Function of a runner, or the name of its method.
            kwargs: Keyword arguments.
            local_env_runner: Whether to call it first on the stand-in for a runner of this process,
                which has a config: what is set there holds for runners that start later, too. None is
                True with several agents, where something may be set.
        """
        if local_env_runner is None:
            local_env_runner = self.local_config.is_multi_agent
        local = [call_runner(self.stand_in, func, kwargs)] if local_env_runner else []
        others = call_all(
            self._fleet, lambda runner: call_runner(runner, func, kwargs), sends_weights=True
        )
        return [*local, *others.values()]

    def foreach_env_runner_with_index(
        self, func: Callable[[int, Any], Any]
    ) -> list[tuple[int, Any]]:
        """Call a function of index and runner on healthy actors; return indices and results."""
        indices = list(range(1, self._shape.num_env_runners + 1))
        results = call_all(
            self._fleet, lambda runner, i: func(i, runner), indices, sends_weights=True
        )
        return list(results.items())

    def get_state(self) -> PyTree:
        """Return the state of all environments in order of their indices; None if one is missing.

        Restarting runners are waited for, up to a limit.
        """
        fleet = self._fleet
        for _ in range(2):  # the first call may detect a dead runner
            self._sampling.wait_for_recovery(_RECOVERY_TIMEOUT_S)
            states = call_all(fleet, lambda runner: runner.get_state())
            if len(states) == len(fleet.members):
                return _concatenate_states([states[index] for index in sorted(states)])
        return None

    def set_state(self, state: PyTree) -> None:
        """Restore a state returned by `get_state`.

        With None, all environments start new episodes, with random keys that were not used before
        according to the counts passed to `set_counts`.

        Raises:
            EnvRunnerError: If the state is for another number of environments.
        """
        self._sampling.wait_for_recovery(_RECOVERY_TIMEOUT_S)
        self._sampling.discard_pending()
        members = self._fleet.members
        if state is None:
            counts = [member.env_steps for member in members]
            for member in members:  # its runner counts the rows that it drops
                member.num_pending_rows = 0
            call_all(self._fleet, start_new_episodes, counts)
            return
        size, saved = self._shape.num_envs, len(state["count"])
        if saved != size * len(members):
            raise EnvRunnerError(
                f"The saved state has {saved} environments, and num_env_runners={len(members)} "
                f"with num_envs_per_env_runner={size} have {size * len(members)}: restore with the "
                "saved number."
            )
        rows = [slice(index * size, (index + 1) * size) for index in range(len(members))]
        parts = [jax.tree.map(lambda leaf, r=r: leaf[r], state) for r in rows]
        for member, part in zip(members, parts, strict=True):
            member.env_steps = int(np.max(part["count"]))
            member.num_pending_rows = _count_pending(part)
        call_all(self._fleet, lambda runner, part: runner.set_state(part), parts)

    @property
    def programs(self) -> list[Program]:
        """Empty; the actors compile in their own processes."""
        return []

    def get_counts(self) -> dict[str, Any]:
        return {
            "ledger": self._fleet.ledger.to_state(),
            "env_steps": [member.env_steps for member in self._fleet.members],
            "num_env_runner_restarts": self._fleet.num_restarts,
            "num_sub_env_restarts": self._fleet.num_sub_env_restarts,
            **_describe(self._fleet.agent_counts),
        }

    def set_counts(self, counts: dict[str, Any]) -> None:
        """Restore counts returned by `get_counts` of this group or of a local one."""
        fleet = self._fleet
        with fleet.lock:
            fleet.ledger = StepLedger.from_state(counts.get("ledger", {}))
            fleet.num_restarts = counts.get("num_env_runner_restarts", 0)
            fleet.num_sub_env_restarts = counts.get("num_sub_env_restarts", 0)
            if fleet.agent_counts is not None:
                fleet.agent_counts = AgentCounts.from_counts(counts)
            # The number of runners may differ, so all continue after the largest count.
            env_steps = max(counts.get("env_steps", []), default=0)
            for member in fleet.members:
                member.env_steps = env_steps

    def stop(self) -> None:
        """Close the environments and kill the actors; safe to call more than once."""
        if self._finalizer.alive:
            self._sampling.stop()
            close_envs(self._fleet)
            self._finalizer()


def _make_backend(config: "AlgorithmConfig", shape: GroupShape, job: bytes) -> RayBackend:
    """Create the backend with the actors' resources, environment variables and placement."""
    bundle = make_runner_bundle(config)
    custom = config.env_runners_settings.custom_resources_per_env_runner
    extra = config.python_environment_settings.extra_python_environs_for_worker
    wanted = ResourceRequest(
        count=shape.num_env_runners,
        bundle=bundle,
        strategy=config.resources_settings.placement_strategy,
        count_setting=shape.count_setting,
        setting_by_resource={
            "CPU": "num_cpus_per_env_runner",
            **dict.fromkeys(custom, "custom_resources_per_env_runner"),
        },
    )
    options = make_actor_options(bundle, make_actor_env_vars(bundle["CPU"], extra))
    return RayBackend(job, options, reserve_bundles(wanted))


def _count_pending(state: dict[str, PyTree]) -> int:
    """Return the number of agents' rows that go on where a runner's state is restored."""
    goes_on = "modules" in state and state["env"] is not None
    return count_pending_rows(state) if goes_on else 0


def _describe(counts: AgentCounts | None) -> dict[str, int]:
    return {} if counts is None else counts.describe()


def _concatenate_states(parts: list[dict[str, PyTree]]) -> dict[str, PyTree]:
    """Concatenate the states of all runners along the environments."""
    envs = [part.pop("env") for part in parts]
    joined = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    joined["env"] = None
    if all(env is not None for env in envs):
        joined["env"] = jax.tree.map(lambda *leaves: np.concatenate(leaves), *envs)
    return joined


def _release(sampling: SyncSampler | AsyncSampler, fleet: Fleet) -> None:
    sampling.stop()
    fleet.stop()
