"""State carried between train batches, and the reports of train batches."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, UInt32

from jaxrl.buffers.replay import ReplayState
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Counter, Key, Metrics, Progress, PyTree, Rollout
from jaxrl.learners.learner import LearnerState
from jaxrl.training.episode_stats import (
    AgentSums,
    EpisodeRecord,
    EpisodeStatsBuffer,
    EpisodeSums,
    FaultLog,
)
from jaxrl.training.nonfinite import NONFINITE_PREFIX, drop_counts


@pytree
class ConnectorState:
    """Connector statistics; `per_env` has a leading axis B."""

    obs: PyTree
    learner: PyTree
    per_env: PyTree


@pytree
class GuardState:
    """State of the divergence guard; `snapshot` is the last learner state known to be good."""

    snapshot: PyTree
    in_a_row: Int[Array, ""]
    num_rollbacks: Int[Array, ""]
    num_nonfinite: UInt32[Array, ""]


@pytree
class TrainState:
    """Complete state of a run.

    Saving it is exact, and a population is a leading axis on every leaf.

    With runners on the host, which own the environments, `env`, `env_params` and `carry` are empty
    during training; a checkpoint holds them as far as the runners can export them.

    `behaviour` holds the parameters that the compiled program acts with if they lag behind the
    learner's (`broadcast_interval`), else None; in a checkpoint of a run with runners on the host
    it holds everything that they act with. `buffer` holds the replay buffer, or the latest train
    batches if these are reused, else it is empty.

    In a run of several agents, `modules` has the state of each module, which is that of a run with
    environments elsewhere; its `ring` has agent-episodes. `agents` has those of each agent.
    The state around them has the environments, their episodes and what is common to all.
    `opponents` has the modules that are drawn and not trained, if there are any.
    """

    learner: LearnerState
    env: PyTree
    env_params: PyTree
    connectors: ConnectorState
    carry: PyTree
    ring: EpisodeStatsBuffer
    faults: FaultLog
    guard: GuardState
    progress: Progress
    key: Key
    behaviour: PyTree = None
    buffer: PyTree = ()
    modules: "dict[str, TrainState]" = dataclasses.field(default_factory=dict[str, Any])
    agents: PyTree = ()
    opponents: PyTree = ()


@pytree
class LearnerProgress:
    """Learner state that a batch updates; `updates` counts the gradient steps of the run."""

    learner: LearnerState
    guard: GuardState
    updates: Counter


@pytree
class Summary:
    """Totals over several train batches, transferred to the host at once.

    `metrics` are sums over the `learned_batches`, the batches with at least one update that was not
    skipped; the counts of `training.nonfinite` are sums over all batches. `updates` counts all
    gradient steps, `env_steps` the rows that are transitions. In a run of several agents, `modules`
    has the totals of each module, and `agents` those of each agent.
    """

    metrics: Metrics
    learned_batches: Int[Array, ""]
    episodes: EpisodeSums
    train_batches: Int[Array, ""]
    updates: UInt32[Array, ""]
    env_steps: UInt32[Array, ""]
    modules: "dict[str, Summary]" = dataclasses.field(default_factory=dict[str, Any])
    agents: AgentSums | None = None

    def merge(self, other: "Summary") -> "Summary":
        """Return the totals of both; metrics may be of different names."""
        both = {name: x + self.metrics.get(name, 0.0) for name, x in other.metrics.items()}
        agents = self.agents
        if agents is not None and other.agents is not None:
            episodes = agents.episodes.merge(other.agents.episodes)
            agents = AgentSums(episodes=episodes, steps=agents.steps + other.agents.steps)
        return Summary(
            metrics=self.metrics | both,
            learned_batches=self.learned_batches + other.learned_batches,
            episodes=self.episodes.merge(other.episodes),
            train_batches=self.train_batches + other.train_batches,
            updates=self.updates + other.updates,
            env_steps=self.env_steps + other.env_steps,
            modules={m: own.merge(other.modules[m]) for m, own in self.modules.items()},
            agents=agents,
        )

    def compute_means(self) -> Metrics:
        """Return the means of the metrics over the train batches that were learned from."""
        return {n: x / self.learned_batches for n, x in drop_counts(self.metrics).items()}

    def add_train_batch(self) -> "Summary":
        """Return the totals with one more train batch counted, of every module, too."""
        modules = {m: own.add_train_batch() for m, own in self.modules.items()}
        return replace(self, train_batches=self.train_batches + 1, modules=modules)

    def make_zeros(self) -> "Summary":
        """Return the totals of nothing, with the names and shapes of these metrics."""
        empty = empty_summary(self.episodes.count.shape[-1], self.metrics)
        agents = self.agents
        if agents is not None:
            num_agents, num_shards = agents.episodes.count.shape
            agents = make_agent_sums(num_agents, num_shards)
        modules = {m: own.make_zeros() for m, own in self.modules.items()}
        return replace(empty, modules=modules, agents=agents)


@pytree
class ReportRow:
    """Report to the host after some train batches.

    `summary` covers these train batches; everything else is a snapshot after the last of them.
    `buffer_position` is the write position of the replay buffer and whether the buffer is full (or
    the rows on each device and None, where columns have positions of their own); None
    without one.
    """

    summary: Summary
    ring: EpisodeStatsBuffer
    faults: FaultLog
    in_a_row: Int[Array, ""]
    num_rollbacks: Int[Array, ""]
    num_nonfinite: UInt32[Array, ""]
    env_steps: Counter
    updates: Counter
    buffer_position: PyTree
    modules: "dict[str, ReportRow]" = dataclasses.field(default_factory=dict[str, Any])
    agents: PyTree = ()


@pytree
class RolloutBatch:
    """Recorded train batch, `[T, B, ...]`, from any kind of runner.

    `rollout` has the environments' own observations. `env_index` is the index within the run of the
    environment that each column comes from: on the host, a column may hold a different environment
    than in the previous batch. `num_env_steps` counts the rows that are transitions.
    `fragment_carries` `[k, B, ...]` are the carries at the start of each of k consecutive fragments
    of T / k rows, if they are to be learned from as columns of their own.
    """

    rollout: Rollout
    record: EpisodeRecord
    env_index: Int[Array, " B"]
    num_env_steps: UInt32[Array, ""]
    fragment_carries: PyTree = None


def get_learner_progress(state: TrainState) -> LearnerProgress:
    """Return the part of a state that updates change."""
    return LearnerProgress(learner=state.learner, guard=state.guard, updates=state.progress.updates)


def apply_update(state: TrainState, learner_progress: LearnerProgress) -> TrainState:
    """Return the state after a train batch."""
    progress = replace(
        state.progress,
        updates=learner_progress.updates,
        train_batches=state.progress.train_batches.add(1),
    )
    return replace(
        state, learner=learner_progress.learner, guard=learner_progress.guard, progress=progress
    )


@pytree
class RecordedRollouts:
    """Rollouts of consecutive train batches, `[n, T, B, ...]`; a `MultiRollout` of several agents.

    `first_version` is the number of train batches before the first of them.
    """

    rollouts: PyTree
    first_version: UInt32[Array, ""]


def make_report_row(state: TrainState, summary: Summary) -> ReportRow:
    """Build the host's report from a state and the summary of the train batches before it."""
    guard: GuardState = state.guard
    replayed = None
    if isinstance(state.buffer, ReplayState):
        replayed = _locate(state.buffer)
    return ReportRow(
        summary=summary,
        ring=state.ring,
        faults=state.faults,
        in_a_row=guard.in_a_row,
        num_rollbacks=guard.num_rollbacks,
        num_nonfinite=guard.num_nonfinite,
        env_steps=state.progress.env_steps,
        updates=state.progress.updates,
        buffer_position=replayed,
        modules={
            name: make_report_row(module, summary.modules[name])
            for name, module in state.modules.items()
        },
        agents=state.agents,
    )


def _locate(buffer: ReplayState) -> PyTree:
    """Return the write position of a buffer and whether it is full.

    Where columns have positions of their own, return the number of rows on this device and None.
    """
    rows = buffer.rows
    if not buffer.has_positions_by_column:
        return rows.current_index, rows.is_full
    stored = jnp.where(rows.is_full, rows.experience.mask.shape[-1], rows.current_index)
    return stored.sum(axis=-1, keepdims=True), None


def count_updates_between(before: TrainState, after: TrainState) -> UInt32[Array, ""]:
    """Return the number of gradient steps between two states; must be below 2**32."""
    return after.progress.updates.low - before.progress.updates.low


def empty_summary(num_shards: int, metrics: Metrics) -> Summary:
    """Return the summary of zero train batches, for metrics of these shapes."""
    return Summary(
        metrics=jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), metrics),
        episodes=EpisodeSums.empty(num_shards),
        train_batches=jnp.zeros((), jnp.int32),
        learned_batches=jnp.zeros((), jnp.int32),
        updates=jnp.zeros((), jnp.uint32),
        env_steps=jnp.zeros((), jnp.uint32),
    )


def make_agent_sums(num_agents: int, num_shards: int) -> AgentSums:
    """Return the sums of no agent-episodes."""
    empty = EpisodeSums.empty(num_shards)
    episodes = jax.tree.map(lambda x: jnp.broadcast_to(x[None], (num_agents, *x.shape)), empty)
    return AgentSums(episodes=episodes, steps=jnp.zeros((num_agents,), jnp.uint32))


def add_sampled(before: Summary, data: RolloutBatch) -> Summary:
    """Return the summary with the episodes and steps of one more recorded batch."""
    return replace(
        before,
        episodes=before.episodes.add(data.record),
        env_steps=before.env_steps + data.num_env_steps,
    )


def add_updates(before: Summary, metrics: Metrics, updates: UInt32[Array, ""]) -> Summary:
    """Return the summary with the metrics of one more batch's updates."""
    learned = ~jnp.isnan(metrics["grad_norm"])
    counted = {
        name: jnp.where(learned | name.startswith(NONFINITE_PREFIX), value, 0.0)
        for name, value in metrics.items()
    }
    return replace(
        before,
        metrics={
            **before.metrics,
            **{name: before.metrics.get(name, 0.0) + value for name, value in counted.items()},
        },
        learned_batches=before.learned_batches + learned,
        updates=before.updates + updates,
    )
