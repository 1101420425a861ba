"""Learning from replay: so many gradient steps after each rollout, each on rows drawn anew."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxrl.buffers.replay import Priorities, Replay, ReplayState
from jaxrl.core.hparams import current_values
from jaxrl.core.learner import NONFINITE
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Columns, Key, Metrics, Progress, PyTree, Rollout, Transition
from jaxrl.runners.guard import Guard
from jaxrl.runners.rollout import Acting
from jaxrl.runners.train_state import Lesson


def stored(acting: Acting, raw: Rollout, received: Rollout) -> Rollout:
    """What a buffer keeps: the environment's own observations, and rewards as they are learned.

    Where a connector remembers earlier steps, observations are kept as the module saw them.
    """
    kept = replace(received, extras={}, carry_in=None)
    if acting.obs_pipeline.temporal:
        return kept
    return replace(kept, obs=raw.obs, final_obs=raw.final_obs)


@pytree
class _Updates:
    """Where a loop of gradient steps is; `sums` are over those of `skipped` that are not set."""

    learner: Any
    priorities: Priorities | None
    sums: Float[Array, " M"]
    skipped: Bool[Array, " U"]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Replaying:
    """The gradient steps of one train batch. `num_envs` are those that are on this device."""

    replay: Replay
    learner: Any
    acting: Acting
    num_envs: int
    guard: Guard
    axis_name: str | None

    def learn(
        self, buffer: ReplayState, obs_state: PyTree, before: Lesson, progress: Progress, key: Key
    ) -> tuple[ReplayState, Lesson, Metrics]:
        """Every gradient step, or none while the buffer holds too little; then metrics are NaN.

        Args:
            buffer: With the newest rollout.
            obs_state: Statistics of the observation connectors now.
            before: What was learned until now.
            progress: With the newest rollout's steps.
            key: The train batch's. Consumed.
        """
        ready = self.replay.can_learn(buffer)
        number = jnp.where(ready, self.replay.num_updates, 0)
        names = self._metric_names(buffer, obs_state, before, progress, key)

        def body(i: Int[Array, ""], carry: _Updates) -> _Updates:
            step_key = jax.random.fold_in(key, i)
            now = replace(progress, updates=before.updates.add(i))
            learner, priorities, metrics = self._update(
                buffer, obs_state, carry.learner, carry.priorities, now, step_key
            )
            row = jnp.stack([metrics[name].astype(jnp.float32) for name in names])
            skipped = metrics[NONFINITE] > 0.5
            return _Updates(
                learner=learner,
                priorities=priorities,
                sums=carry.sums + jnp.where(skipped, 0.0, row),
                skipped=carry.skipped.at[i].set(skipped),
            )

        start = _Updates(
            learner=before.learner,
            priorities=buffer.priorities,
            sums=jnp.zeros(len(names), jnp.float32),
            skipped=jnp.zeros(self.replay.num_updates, jnp.bool_),
        )
        # A loop of no turn instead of a branch: nothing that is passed through gets copied.
        end = jax.lax.fori_loop(0, number, body, start)
        means = end.sums / (number - end.skipped.sum(dtype=jnp.int32)).astype(jnp.float32)
        if self.axis_name is not None:
            means = jax.lax.pmean(means, self.axis_name)
        guard, learner = self.guard.after_replay(
            before.guard, end.learner, end.skipped, ready, progress
        )
        lesson = Lesson(
            learner=learner, guard=guard, updates=before.updates.add(number.astype(jnp.uint32))
        )
        metrics = {name: means[i] for i, name in enumerate(names) if name != NONFINITE}
        return replace(buffer, priorities=end.priorities), lesson, metrics

    def _update(
        self,
        buffer: ReplayState,
        obs_state: PyTree,
        learner_state: Any,
        priorities: Priorities | None,
        progress: Progress,
        key: Key,
    ) -> tuple[Any, Priorities | None, Metrics]:
        """Draw, learn, renew the priorities of what was drawn."""
        draw_key, fold_key, update_key = jax.random.split(key, 3)
        drawn = self.replay.draw(
            buffer,
            priorities,
            draw_key,
            self._shards(),
            progress.env_steps.as_float(),
            self.axis_name,
        )
        gamma = current_values(learner_state.hparams, progress)["gamma"]
        batch = self.replay.transitions(buffer, drawn, gamma, self._shards(), fold_key)
        learner_state, metrics = self.learner.update(
            learner_state, self._seen(obs_state, batch), progress, update_key
        )
        td_error = metrics[Columns.TD_ERROR]
        metrics = {name: value for name, value in metrics.items() if name != Columns.TD_ERROR}
        if priorities is not None:
            priorities = self.replay.prioritize(priorities, drawn, td_error, self.axis_name)
        return learner_state, priorities, metrics

    def _metric_names(self, *arguments: Any) -> list[str]:
        buffer, obs_state, before, progress, key = arguments
        shapes = jax.eval_shape(
            lambda: self._update(
                buffer, obs_state, before.learner, buffer.priorities, progress, key
            )[2]
        )
        return sorted(shapes)

    def _shards(self) -> Int[Array, " S"]:
        """The logical shards that are here."""
        here = self.num_envs * self.replay.num_shards // self.replay.num_envs
        device = 0 if self.axis_name is None else jax.lax.axis_index(self.axis_name)
        return device * here + jnp.arange(here, dtype=jnp.int32)

    def _seen(self, obs_state: PyTree, batch: Transition) -> Transition:
        """The batch as the module sees it, by the statistics of now."""
        pipeline = self.acting.obs_pipeline
        if pipeline.temporal:
            return batch
        return replace(
            batch,
            obs=pipeline(obs_state, batch.obs),
            next_obs=pipeline(obs_state, batch.next_obs),
        )
