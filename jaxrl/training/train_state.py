"""What a run carries from one train batch to the next, and what a train batch reports."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, UInt32

from jaxrl.buffers.replay import ReplayState
from jaxrl.core.struct import pytree
from jaxrl.core.types import Counter, Key, Metrics, Progress, PyTree, Rollout
from jaxrl.training.episode_stats import EpisodeRecord, EpisodeRing, EpisodeSums, FaultLog
from jaxrl.training.nonfinite import PREFIX


@pytree
class ConnectorState:
    """Statistics of the connectors; `per_env` has a leading axis B."""

    obs: PyTree
    learner: PyTree
    per_env: PyTree


@pytree
class GuardState:
    """What the divergence guard remembers; `snapshot` is the last learner state known good."""

    snapshot: PyTree
    in_a_row: Int[Array, ""]
    num_rollbacks: Int[Array, ""]
    num_nonfinite: UInt32[Array, ""]


@pytree
class TrainState:
    """The whole of a run. Saving it is exact, and a leading axis makes a population of it.

    Where runners on the host keep the environments, `env`, `env_params` and `carry` are empty while
    the run goes on; a checkpoint gets from the runners what they can tell.

    `behaviour` holds the parameters that the compiled program acts with where those lag behind the
    learner's (`broadcast_interval`), else None; a checkpoint of a run with runners on the host gets
    there all that they act with. `buffer` holds the latest train batches where they
    are learned from again, else it is empty.
    """

    learner: Any
    env: PyTree
    env_params: PyTree
    connectors: ConnectorState
    carry: PyTree
    ring: EpisodeRing
    faults: FaultLog
    guard: GuardState
    progress: Progress
    key: Key
    behaviour: PyTree = None
    buffer: PyTree = ()


@pytree
class Lesson:
    """What a batch that is learned from changes; `updates` counts the run's gradient steps."""

    learner: Any
    guard: GuardState
    updates: Counter


@pytree
class Learned:
    """What the updates of a train batch report: means over those that were not skipped.

    NaN where all were. `every` counts the skipped ones too, see `runners.nonfinite`.
    """

    every: Metrics
    last_epoch: Metrics
    skipped: Bool[Array, " U"]


@pytree
class Summary:
    """What a run of several train batches reports: one transfer to the host.

    `metrics` are sums over the `learned_batches`, those with an update that was not skipped, and the
    counts of `runners.nonfinite` sums over all; `updates` counts all of them, `env_steps` the rows
    that are transitions.
    """

    metrics: Metrics
    learned_batches: Int[Array, ""]
    episodes: EpisodeSums
    train_batches: Int[Array, ""]
    updates: UInt32[Array, ""]
    env_steps: UInt32[Array, ""]


@pytree
class Row:
    """What the host looks at after some train batches.

    `summary` is theirs; all else is as it is after the last of them. `replayed` says where the next
    row of a replay buffer goes and whether it is full; None without one.
    """

    summary: Summary
    ring: EpisodeRing
    faults: FaultLog
    in_a_row: Int[Array, ""]
    num_rollbacks: Int[Array, ""]
    num_nonfinite: UInt32[Array, ""]
    env_steps: Counter
    updates: Counter
    replayed: PyTree


@pytree
class Sampled:
    """A train batch as it was recorded, `[T, B, ...]`, in whatever runner.

    `rollout` has the environments' own observations. `env_index` says which of the run's
    environments each column comes from: on the host a column may hold another environment's steps
    than in the batch before. `num_env_steps` counts the rows that are transitions.
    """

    rollout: Rollout
    record: EpisodeRecord
    env_index: Int[Array, " B"]
    num_env_steps: UInt32[Array, ""]


def observed(state: TrainState, summary: Summary) -> Row:
    """Take from a state what the host looks at after the train batches of a summary."""
    guard: GuardState = state.guard
    replayed = None
    if isinstance(state.buffer, ReplayState):
        replayed = state.buffer.rows.current_index, state.buffer.rows.is_full
    return Row(
        summary=summary,
        ring=state.ring,
        faults=state.faults,
        in_a_row=guard.in_a_row,
        num_rollbacks=guard.num_rollbacks,
        num_nonfinite=guard.num_nonfinite,
        env_steps=state.progress.env_steps,
        updates=state.progress.updates,
        replayed=replayed,
    )


def updates_between(before: TrainState, after: TrainState) -> UInt32[Array, ""]:
    """The gradient steps that lie between two states, fewer than 2**32."""
    return after.progress.updates.low - before.progress.updates.low


def summed(before: Summary, data: Sampled, metrics: Metrics, updates: UInt32[Array, ""]) -> Summary:
    """The summary with one more train batch of so many updates."""
    learned = ~jnp.isnan(metrics["grad_norm"])
    return Summary(
        metrics={
            name: total + jnp.where(learned | name.startswith(PREFIX), metrics[name], 0.0)
            for name, total in before.metrics.items()
        },
        episodes=before.episodes.add(data.record),
        train_batches=before.train_batches + 1,
        learned_batches=before.learned_batches + learned,
        updates=before.updates + updates,
        env_steps=before.env_steps + data.num_env_steps,
    )
