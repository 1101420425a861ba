"""Learning from replay: so many gradient steps after each rollout, each on rows drawn anew."""

import dataclasses
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxrl.buffers.replay import Drawn, Priorities, ReplayState
from jaxrl.buffers.sequence import AnyReplay
from jaxrl.core.hparams import current_values
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import (
    Columns,
    Counter,
    Key,
    Metrics,
    Params,
    Progress,
    PyTree,
    Rollout,
    Transition,
    map_obs,
)
from jaxrl.learners.learner import NONFINITE, check_scalars
from jaxrl.modules.sequences import with_carries
from jaxrl.training.guard import Guard
from jaxrl.training.nonfinite import counted, nonfinite_rows
from jaxrl.training.rollout import Acting
from jaxrl.training.train_state import Lesson


def stored(
    acting: Acting, params: Params, raw: Rollout, received: Rollout, *, zero_carry: bool
) -> Rollout:
    """What a buffer keeps: the environment's own observations, and rewards as they are learned.

    Where a connector remembers earlier steps, observations are kept as the module saw them. With a
    module that remembers, the carry before each row is kept, unless sequences shall begin without.
    """
    kept = replace(received, extras={})
    if acting.module.is_stateful and not zero_carry:
        kept = with_carries(acting.module, params, kept)
    kept = replace(kept, carry_in=None)
    if acting.obs_pipeline.temporal:
        return kept
    return replace(kept, obs=raw.obs, final_obs=raw.final_obs)


class Source(Protocol):
    """Where the rows of gradient steps come from; `memory` is handed from step to step."""

    def first_memory(self) -> PyTree:
        """The memory before the first step."""
        ...

    def rows(
        self, memory: PyTree, number: Int[Array, ""], gamma: Float[Array, ""], key: Key
    ) -> tuple[Any, Transition]:
        """Where the rows of a step come from, and the rows. Consumes the key."""
        ...

    def learned_from(
        self, memory: PyTree, number: Int[Array, ""], drawn: Any, td_error: Float[Array, " N *L"]
    ) -> PyTree:
        """The memory after the step."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class FromBuffer:
    """Rows drawn anew for every step; the memory is the priorities, renewed by every step.

    `num_envs` are those that are on this device.
    """

    replay: AnyReplay
    buffer: ReplayState
    num_envs: int
    env_steps: Counter
    axis_name: str | None

    def first_memory(self) -> Priorities | None:
        return self.buffer.priorities

    def rows(
        self,
        memory: Priorities | None,
        number: Int[Array, ""],
        gamma: Float[Array, ""],
        key: Key,
    ) -> tuple[Drawn, Transition]:
        del number
        draw_key, fold_key = jax.random.split(key)
        shards, axis_name = self._shards(), self.axis_name
        drawn = self.replay.draw(self.buffer, memory, draw_key, shards, self.env_steps, axis_name)
        return drawn, self.replay.transitions(self.buffer, drawn, gamma, shards, fold_key)

    def learned_from(
        self,
        memory: Priorities | None,
        number: Int[Array, ""],
        drawn: Drawn,
        td_error: Float[Array, " N *L"],
    ) -> Priorities | None:
        del number
        if memory is None:
            return None
        return self.replay.prioritize(memory, drawn, td_error, self.axis_name)

    def _shards(self) -> Int[Array, " S"]:
        """The logical shards that are here."""
        here = self.num_envs * self.replay.num_shards // self.replay.num_envs
        device = 0 if self.axis_name is None else jax.lax.axis_index(self.axis_name)
        return device * here + jnp.arange(here, dtype=jnp.int32)


@pytree
class Dealt:
    """Rows of every step, drawn beforehand, `[U, N, ...]`; the memory is their TD errors `[U, N]`.

    `ready` says whether there is learning.
    """

    batches: Transition
    ready: Bool[Array, ""]

    def first_memory(self) -> Float[Array, "U N *L"]:
        return jnp.zeros_like(self.batches.weight)

    def rows(
        self,
        memory: Float[Array, "U N *L"],
        number: Int[Array, ""],
        gamma: Float[Array, ""],
        key: Key,
    ) -> tuple[None, Transition]:
        del memory, gamma, key
        return None, jax.tree.map(lambda x: x[number], self.batches)

    def learned_from(
        self,
        memory: Float[Array, "U N *L"],
        number: Int[Array, ""],
        drawn: None,
        td_error: Float[Array, " N *L"],
    ) -> Float[Array, "U N *L"]:
        del drawn
        return memory.at[number].set(td_error)


@pytree
class _Updates:
    """Where a loop of gradient steps is.

    `sums` are over those of `skipped` that are not set, the counts in `nonfinite` over the others.
    """

    learner: Any
    memory: PyTree
    sums: Float[Array, " M"]
    nonfinite: Float[Array, " M"]
    skipped: Bool[Array, " U"]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Replaying:
    """The gradient steps of one train batch, `num_updates` or none."""

    learner: Any
    acting: Acting
    guard: Guard
    num_updates: int
    axis_name: str | None

    def learn(
        self,
        source: Source,
        ready: Bool[Array, ""],
        obs_state: PyTree,
        before: Lesson,
        progress: Progress,
        key: Key,
    ) -> tuple[PyTree, Lesson, Metrics]:
        """Every gradient step, or none while it is too early; then metrics are NaN.

        Args:
            source: Of the rows.
            ready: Whether there is learning.
            obs_state: Statistics of the observation connectors now.
            before: What was learned until now.
            progress: With the newest rollout's steps.
            key: The train batch's. Consumed.

        Returns:
            The source's memory after the last step, what was learned, and the means of the metrics.
        """
        number = jnp.where(ready, self.num_updates, 0)
        names = self._metric_names(source, obs_state, before, progress, key)

        def body(i: Int[Array, ""], carry: _Updates) -> _Updates:
            now = replace(progress, updates=before.updates.add(i))
            learner, memory, metrics = self._update(
                source, obs_state, carry.learner, carry.memory, now, i, key
            )
            row = jnp.stack([metrics[name].astype(jnp.float32) for name in names])
            skipped = metrics[NONFINITE] > 0.5
            return _Updates(
                learner=learner,
                memory=memory,
                sums=carry.sums + jnp.where(skipped, 0.0, row),
                nonfinite=carry.nonfinite + nonfinite_rows(row, skipped),
                skipped=carry.skipped.at[i].set(skipped),
            )

        start = _Updates(
            learner=before.learner,
            memory=source.first_memory(),
            sums=jnp.zeros(len(names), jnp.float32),
            nonfinite=jnp.zeros(len(names), jnp.float32),
            skipped=jnp.zeros(self.num_updates, jnp.bool_),
        )
        # A loop of no turn instead of a branch: nothing that is passed through gets copied.
        end = jax.lax.fori_loop(0, number, body, start)
        means = end.sums / (number - end.skipped.sum(dtype=jnp.int32)).astype(jnp.float32)
        counts = end.nonfinite
        if self.axis_name is not None:
            means, counts = jax.lax.pmean((means, counts), self.axis_name)
        guard, learner = self.guard.after_replay(
            before.guard, end.learner, end.skipped, ready, progress
        )
        lesson = Lesson(
            learner=learner, guard=guard, updates=before.updates.add(number.astype(jnp.uint32))
        )
        metrics = {name: means[i] for i, name in enumerate(names) if name != NONFINITE}
        return end.memory, lesson, metrics | counted(names, counts)

    def _update(
        self,
        source: Source,
        obs_state: PyTree,
        learner_state: Any,
        memory: PyTree,
        progress: Progress,
        number: Int[Array, ""],
        key: Key,
    ) -> tuple[Any, PyTree, Metrics]:
        """Draw, learn, tell the source."""
        row_key, update_key = step_keys(key, number)
        gamma = current_values(learner_state.hparams, progress)["gamma"]
        drawn, batch = source.rows(memory, number, gamma, row_key)
        learner_state, metrics = self.learner.update(
            learner_state, self._seen(obs_state, batch), progress, update_key
        )
        memory = source.learned_from(memory, number, drawn, metrics[Columns.TD_ERROR])
        scalars = {name: value for name, value in metrics.items() if name != Columns.TD_ERROR}
        check_scalars(type(self.learner).__name__, scalars)
        return learner_state, memory, scalars

    def _metric_names(
        self, source: Source, obs_state: PyTree, before: Lesson, progress: Progress, key: Key
    ) -> list[str]:
        first, memory = jnp.zeros((), jnp.int32), source.first_memory()
        shapes = jax.eval_shape(
            lambda: self._update(source, obs_state, before.learner, memory, progress, first, key)[2]
        )
        return sorted(shapes)

    def _seen(self, obs_state: PyTree, batch: Transition) -> Transition:
        """The batch as the module sees it, by the statistics of now."""
        pipeline = self.acting.obs_pipeline
        if pipeline.temporal:
            return batch
        return replace(
            batch,
            obs=map_obs(partial(pipeline, obs_state), batch.obs),
            next_obs=map_obs(partial(pipeline, obs_state), batch.next_obs),
        )


def step_keys(key: Key, number: Int[Array, ""]) -> tuple[Key, Key]:
    """The keys of a train batch's gradient step: for its rows, and for its update."""
    row_key, update_key = jax.random.split(jax.random.fold_in(key, number))
    return row_key, update_key
