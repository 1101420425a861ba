"""In-graph runner of several agents: one rollout for all modules, then each module's training.

A module's state is a TrainState without environments, and what follows the rollout is the same
`TrainStep` as for a single agent, on rows that are agents in environments.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, UInt32

from jaxrl.config.agent_mapping import DRAWN
from jaxrl.core.keys import RunKeys, split_run_key
from jaxrl.core.struct import replace
from jaxrl.core.types import Counter, Key, Metrics, Progress, PyTree, strip_weak_types
from jaxrl.learners.learner import select
from jaxrl.training.agent_rows import any_rows
from jaxrl.training.batch_loop import CompiledLoop
from jaxrl.training.episode_stats import (
    AgentStats,
    AgentSums,
    EpisodeRecord,
    EpisodeStatsBuffer,
    EpisodeSums,
    compute_episode_means,
    init_episode_stats,
    init_fault_log,
    push_episodes,
    push_faults,
)
from jaxrl.training.guard import DivergenceGuard
from jaxrl.training.multi_rollout import Actors, MultiRollout, MultiRolloutWorker
from jaxrl.training.nonfinite import NONFINITE_PREFIX, drop_counts
from jaxrl.training.rollout import make_env_index
from jaxrl.training.train_state import (
    ConnectorState,
    GuardState,
    ReportRow,
    RolloutBatch,
    Summary,
    TrainState,
    add_sampled,
    add_to_summary,
    count_updates_between,
    empty_summary,
)
from jaxrl.training.train_step import TrainStep

ModuleMetrics = dict[str, Metrics]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MultiAgentRunner(CompiledLoop):
    """Run of several agents in environments that are pure functions.

    Attributes:
        steps: Training step of each module, on as many columns as it has rows.
        trained: Modules that are trained; others play with the parameters that they have.
        rollout_worker: Modules in the environments.
        num_envs: Number of environments.
        num_steps: Number of steps of each environment in a train batch.
        num_shards: Number of logical shards.
        ring_size: Number of latest episodes kept in each shard.
        explore: Whether modules explore.
        axis_name: Mesh axis that the environments are sharded over, or None.
    """

    steps: Mapping[str, TrainStep]
    trained: frozenset[str]
    rollout_worker: MultiRolloutWorker
    num_envs: int
    num_steps: int
    num_shards: int
    ring_size: int
    explore: bool = True
    axis_name: str | None = None
    max_recorded_batches: int = 0
    """Always 0: rollouts are not recorded."""

    @property
    def divergence_guard(self) -> DivergenceGuard:
        """Guard of the first module; all have the same settings."""
        return next(iter(self.steps.values())).guard

    @property
    def batch_steps(self) -> int:
        """Environment steps of one train batch, over all devices."""
        return self.num_envs * self.num_steps

    @property
    def program(self) -> Callable[..., tuple[TrainState, ReportRow]]:
        """Function of a dispatch."""
        return self.run_iterations

    def init(self, key: Key, env_params: PyTree) -> TrainState:
        """Return the initial state of a run, including all environments. Consumes the key."""
        keys = split_run_key(key)
        worker = self.rollout_worker
        module_keys = [_derive_module_keys(keys, i) for i in range(len(self.steps))]
        modules = {
            m: step.init_from_keys(own, step.num_envs)
            for own, (m, step) in zip(module_keys, self.steps.items(), strict=True)
        }
        ring = init_episode_stats(self.num_shards, self.ring_size)
        num_agents = len(worker.rows.agents)
        state = TrainState(
            learner=(),  # pyright: ignore[reportArgumentType]
            env=worker.env.reset(keys.env, make_env_index(self.num_envs), env_params),
            env_params=env_params,
            connectors=ConnectorState(obs=(), learner=(), per_env=()),
            carry=worker.initial_carry(self.num_envs),
            ring=ring,
            faults=init_fault_log(self.num_shards),
            guard=_merge_guards(modules),
            progress=Progress.zeros(),
            key=jax.random.clone(keys.run),
            modules=modules,
            agents=AgentStats(
                ring=_repeat(ring, num_agents),
                steps=_repeat(Counter.zeros(), num_agents),
                module_steps={m: Counter.zeros() for m in self._counted_modules},
            ),
        )
        if worker.pool is not None:
            key = jax.random.fold_in(keys.learner, len(self.steps))
            like = self.steps[min(self.trained)].make_actor_state(modules[min(self.trained)])
            state = replace(state, opponents=worker.pool.init(key, like))
        return strip_weak_types(state)

    @functools.cached_property
    def jitted_init(self) -> Callable[[Key, PyTree], TrainState]:
        """`init`, traced only once for its shapes, its size and its program."""
        return jax.jit(self.init, inline=True)

    def make_actor_state(self, state: TrainState) -> Actors:
        """Return the inputs of acting of every module."""
        actors: Actors = {
            m: step.make_actor_state(state.modules[m]) for m, step in self.steps.items()
        }
        if self.rollout_worker.pool is not None:
            actors[DRAWN] = state.opponents
        return actors

    def step(self, state: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """Train every module on one batch.

        Returns:
            The next state, and the statistics of the episodes that ended in the batch, with the
            metrics of each module under its id.
        """
        after, recorded, metrics = self.train_batch(state)
        episodes = EpisodeSums.empty(1).add(recorded.record)
        means = compute_episode_means(episodes, self.axis_name)
        return after, {**means, **{m: drop_counts(own) for m, own in metrics.items()}}

    def train_batch(self, state: TrainState) -> tuple[TrainState, MultiRollout, ModuleMetrics]:
        """Train on one batch as `step` does.

        Returns:
            The next state, what was recorded, and the metrics of the modules that are trained.
        """
        worker = self.rollout_worker
        actors = self.make_actor_state(state)
        env, carry, recorded = worker.rollout(
            actors, state.env, state.carry, state.env_params, self.num_steps, self.explore
        )
        modules: dict[str, TrainState] = {}
        metrics: ModuleMetrics = {}
        for m in self.steps:
            data = self._make_batch(m, recorded, env.index)
            if m in self.trained:
                modules[m], metrics[m] = self._train_module(m, state.modules[m], data)
            else:
                modules[m] = _observe(state.modules[m], data)
        after = replace(state, env=env, carry=carry, modules=modules, guard=_merge_guards(modules))
        return self._count(after, state, recorded), recorded, metrics

    def _train_module(
        self, m: str, state: TrainState, data: RolloutBatch
    ) -> tuple[TrainState, Metrics]:
        """Train a module; one without a row in the batch is not updated.

        A gradient of zero would still move the parameters of Adam, and a KL of zero the penalty.
        """
        step = self.steps[m]
        has_rows = any_rows(data.rollout.mask, self.axis_name)
        if step.replay is not None:
            received, batch = step.receive(state, data)
            received = step.add_to_buffer(received, batch)
            return step.update(received, None, should_update=has_rows)
        after, metrics = step.train_step(state, data)
        learner, guard, updates = select(
            has_rows,
            (after.learner, after.guard, after.progress.updates),
            (state.learner, state.guard, state.progress.updates),
        )
        progress = replace(after.progress, updates=updates)
        missing = {name: 0.0 if name.startswith(NONFINITE_PREFIX) else jnp.nan for name in metrics}
        metrics = {name: jnp.where(has_rows, x, missing[name]) for name, x in metrics.items()}
        return replace(after, learner=learner, guard=guard, progress=progress), metrics

    def _make_batch(
        self, m: str, recorded: MultiRollout, env_index: Int[Array, " B"]
    ) -> RolloutBatch:
        """Return a module's train batch, whose record has agent-episodes."""
        rows = self.rollout_worker.rows
        return RolloutBatch(
            rollout=recorded.rollouts[m],
            record=jax.tree.map(lambda x: rows.select(x, m), recorded.agents),
            env_index=rows.number(env_index, m),
            num_env_steps=self._count_steps(recorded.mask),
        )

    def _count_steps(self, mask: Bool[Array, "T B"]) -> UInt32[Array, ""]:
        steps = mask.sum(dtype=jnp.uint32)
        return steps if self.axis_name is None else jax.lax.psum(steps, self.axis_name)

    @property
    def _counted_modules(self) -> tuple[str, ...]:
        """Modules whose rows do not follow from those of agents, since mappings differ."""
        return tuple(self.steps) if len(self.rollout_worker.rows.patterns) > 1 else ()

    def _count_agent_steps(self, recorded: MultiRollout) -> UInt32[Array, " A"]:
        """Return the number of rows of each agent."""
        rows = self.rollout_worker.rows
        steps = jnp.zeros((len(rows.agents),), jnp.uint32)
        for m, rollout in recorded.rollouts.items():
            counts = rollout.mask.sum(axis=0, dtype=jnp.uint32)
            steps += rows.sum_by_agent(counts, m, recorded.mask.shape[1])
        return steps if self.axis_name is None else jax.lax.psum(steps, self.axis_name)

    def _count(self, after: TrainState, before: TrainState, recorded: MultiRollout) -> TrainState:
        """Add a train batch to the counters, episodes and faults that are common to all modules."""
        index, progress = after.env.index, before.progress
        updates = sum(
            (count_updates_between(before.modules[m], after.modules[m]) for m in self.steps),
            jnp.zeros((), jnp.uint32),
        )

        def push(ring: EpisodeStatsBuffer, record: EpisodeRecord) -> EpisodeStatsBuffer:
            return push_episodes(ring, record, index)

        return replace(
            after,
            ring=push(before.ring, recorded.record),
            agents=AgentStats(
                ring=jax.vmap(push, (0, 2))(before.agents.ring, recorded.agents),
                steps=before.agents.steps.add(self._count_agent_steps(recorded)),
                module_steps={
                    m: counter.add(self._count_steps(recorded.rollouts[m].mask))
                    for m, counter in before.agents.module_steps.items()
                },
            ),
            faults=push_faults(before.faults, recorded.record, index),
            progress=replace(
                progress,
                env_steps=progress.env_steps.add(self._count_steps(recorded.mask)),
                updates=progress.updates.add(updates),
                train_batches=progress.train_batches.add(1),
            ),
        )

    @functools.cached_property
    def _traced_batch(
        self,
    ) -> Callable[[TrainState], tuple[TrainState, MultiRollout, ModuleMetrics]]:
        """`train_batch`, traced only once for all its uses in a program."""
        return jax.jit(self.train_batch, inline=True)

    def init_summary(self, state: TrainState) -> Summary:
        """Return the summary of zero train batches of this run."""
        metrics = jax.eval_shape(self._traced_batch, state)[2]
        shards = state.ring.count.shape[0]
        empty = EpisodeSums.empty(shards)
        num_agents = len(self.rollout_worker.rows.agents)
        return replace(
            empty_summary(shards, {}),
            modules={m: empty_summary(shards, metrics.get(m, {})) for m in self.steps},
            agents=AgentSums(
                episodes=_repeat(empty, num_agents), steps=jnp.zeros((num_agents,), jnp.uint32)
            ),
        )

    def add_step(self, state: TrainState, summary: Summary) -> tuple[TrainState, Summary]:
        """Run one train batch, and add it to the summary."""
        after, recorded, metrics = self._traced_batch(state)
        assert summary.agents is not None
        add_episodes = jax.vmap(EpisodeSums.add, (0, 2))
        agents = AgentSums(
            episodes=add_episodes(summary.agents.episodes, recorded.agents),
            steps=summary.agents.steps + self._count_agent_steps(recorded),
        )
        modules = {
            m: self._add_module(m, own, (state, after), recorded, metrics)
            for m, own in summary.modules.items()
        }
        return after, replace(
            summary,
            episodes=summary.episodes.add(recorded.record),
            train_batches=summary.train_batches + 1,
            learned_batches=summary.learned_batches + 1,
            updates=summary.updates + count_updates_between(state, after),
            env_steps=summary.env_steps + self._count_steps(recorded.mask),
            modules=modules,
            agents=agents,
        )

    def _add_module(
        self,
        m: str,
        summary: Summary,
        states: tuple[TrainState, TrainState],
        recorded: MultiRollout,
        metrics: ModuleMetrics,
    ) -> Summary:
        """Return a module's summary with one more batch, whose steps are its rows."""
        data = self._make_batch(m, recorded, states[1].env.index)
        data = replace(data, num_env_steps=self._count_steps(data.rollout.mask))
        if m not in metrics:
            return replace(add_sampled(summary, data), train_batches=summary.train_batches + 1)
        before, after = (state.modules[m] for state in states)
        return add_to_summary(summary, data, metrics[m], count_updates_between(before, after))


def _repeat(tree: PyTree, number: int) -> PyTree:
    return jax.tree.map(lambda x: jnp.broadcast_to(x[None], (number, *x.shape)), tree)


def _derive_module_keys(keys: RunKeys, index: int) -> RunKeys:
    """Return the keys of a module; the first one has the run's own, as a single one would."""
    if index == 0:
        return keys
    return RunKeys(
        learner=jax.random.fold_in(keys.learner, index),
        env=keys.env,
        run=jax.random.fold_in(keys.run, index),
    )


def _merge_guards(modules: Mapping[str, TrainState]) -> GuardState:
    """Return the guard state of a run: the most consecutive failures, and the sums of counts."""
    guards = [module.guard for module in modules.values()]
    return GuardState(
        snapshot=None,
        in_a_row=jnp.stack([guard.in_a_row for guard in guards]).max(),
        num_rollbacks=jnp.stack([guard.num_rollbacks for guard in guards]).sum(),
        num_nonfinite=jnp.stack([guard.num_nonfinite for guard in guards]).sum(dtype=jnp.uint32),
    )


def _observe(state: TrainState, data: RolloutBatch) -> TrainState:
    """Return the state of a module that is not trained after a train batch."""
    progress = replace(
        state.progress,
        env_steps=state.progress.env_steps.add(data.num_env_steps),
        train_batches=state.progress.train_batches.add(1),
    )
    ring = push_episodes(state.ring, data.record, data.env_index)
    return replace(state, progress=progress, ring=ring)
