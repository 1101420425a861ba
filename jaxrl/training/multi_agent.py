"""In-graph runner of several agents: one rollout for all modules, then each module's training."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Int

from jaxrl.config.agent_mapping import DRAWN
from jaxrl.core.keys import split_run_key
from jaxrl.core.struct import replace
from jaxrl.core.types import Key, PyTree, strip_weak_types
from jaxrl.training.agent_rows import AgentRows
from jaxrl.training.agent_views import without_critics
from jaxrl.training.batch_loop import CompiledLoop
from jaxrl.training.episode_stats import EpisodeSums, compute_episode_means
from jaxrl.training.multi_learning import ModuleMetrics, MultiLearning
from jaxrl.training.multi_rollout import (
    Actors,
    MultiRollout,
    MultiRolloutWorker,
)
from jaxrl.training.nonfinite import drop_counts
from jaxrl.training.rollout import make_env_index
from jaxrl.training.train_state import RecordedRollouts, ReportRow, Summary, TrainState


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MultiAgentRunner(MultiLearning, CompiledLoop):
    """Run of several agents in environments that are pure functions.

    Attributes:
        rollout_worker: Modules in the environments.
        explore: Whether modules explore.
    """

    rollout_worker: MultiRolloutWorker
    explore: bool = True
    max_recorded_batches: int = 0
    """Maximum number of train batches per dispatch of a run whose rollouts are returned; 0 if not."""

    @property
    def rows(self) -> AgentRows:
        return self.rollout_worker.rows

    @property
    def program(self) -> Callable[..., tuple[PyTree, ...]]:
        """Function of a dispatch: `run_iterations`, or `run_recorded` for a run with an output."""
        return self.run_recorded if self.max_recorded_batches else self.run_iterations

    def init(self, key: Key, env_params: PyTree) -> TrainState:
        """Return the initial state of a run, including all environments. Consumes the key."""
        keys, worker = split_run_key(key), self.rollout_worker
        state = self.init_around(
            keys,
            self.num_envs,
            env=worker.env.reset(keys.env, make_env_index(self.num_envs), env_params),
            env_params=env_params,
            carry=worker.initial_carry(self.num_envs),
        )
        if worker.pool is None:
            return state
        opponents = worker.pool.init(
            jax.random.fold_in(keys.learner, len(self.steps)),
            super().make_actor_state(state),
            state.modules,
        )
        return replace(state, opponents=strip_weak_types(opponents))

    def make_actor_state(self, state: TrainState) -> Actors:
        """Return the inputs of acting of every module, and of opponents that are drawn."""
        actors = super().make_actor_state(state)
        pool = self.rollout_worker.pool
        if pool is not None:
            actors[DRAWN] = pool.place_learners(state.opponents, actors)
        return actors

    @functools.cached_property
    def jitted_init(self) -> Callable[[Key, PyTree], TrainState]:
        """`init`, traced only once for its shapes, its size and its program."""
        return jax.jit(self.init, inline=True)

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
        after, metrics = self.learn(state, recorded, env.index)
        if worker.pool is not None and carry.opponents is not None:
            steps = after.progress.env_steps.low - state.progress.env_steps.low
            opponents, own = worker.pool.add_games(
                state.opponents, carry.opponents, steps, env.index.shape[0], self.axis_name
            )
            after, carry = replace(after, opponents=opponents), replace(carry, opponents=own)
        return replace(after, env=env, carry=carry), recorded, metrics

    @functools.cached_property
    def _traced_batch(
        self,
    ) -> Callable[[TrainState], tuple[TrainState, MultiRollout, ModuleMetrics]]:
        """`train_batch`, traced only once for all its uses in a program."""
        return jax.jit(self.train_batch, inline=True)

    def run_recorded(
        self, state: TrainState, num_iterations: Int[Array, ""], num_batches: Int[Array, ""]
    ) -> tuple[TrainState, ReportRow, RecordedRollouts]:
        """Run train batches and also return their rollouts; see `InGraphRunner.run_recorded`."""
        del num_iterations

        def add(state: TrainState, summary: Summary) -> tuple[TrainState, Summary, PyTree]:
            after, recorded, metrics = self._traced_batch(state)
            total = self.add_batch(summary, (state, after), recorded, after.env.index, metrics)
            return after, total, _select_rows(recorded)

        return self.run_and_record(state, num_batches, self.max_recorded_batches, add)

    def init_summary(self, state: TrainState) -> Summary:
        """Return the summary of zero train batches of this run."""
        return self.make_empty_summary(state, jax.eval_shape(self._traced_batch, state)[2])

    def add_step(self, state: TrainState, summary: Summary) -> tuple[TrainState, Summary]:
        """Run one train batch, and add it to the summary."""
        after, recorded, metrics = self._traced_batch(state)
        states = state, after
        return after, self.add_batch(summary, states, recorded, after.env.index, metrics)


def _select_rows(recorded: MultiRollout) -> MultiRollout:
    """Return what is recorded: rows of modules that act, without what critics see."""
    rollouts = {m: without_critics(rows) for m, rows in recorded.rollouts.items() if m != DRAWN}
    return replace(recorded, rollouts=rollouts)
