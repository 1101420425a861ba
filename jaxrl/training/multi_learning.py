"""Training of several modules on recorded rollouts, wherever their environments are stepped.

A module's state is a TrainState without environments, and what follows a rollout is the same
`TrainStep` as for a single agent, on rows that are agents in environments.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, UInt32

from jaxrl.config.agent_mapping import DRAWN
from jaxrl.core.keys import RunKeys, split_run_key
from jaxrl.core.struct import replace
from jaxrl.core.types import Counter, Key, Metrics, Progress, PyTree, strip_weak_types
from jaxrl.learners.gradients import select
from jaxrl.training.agent_rows import AgentRows
from jaxrl.training.data_flow import BatchUse
from jaxrl.training.episode_stats import (
    AgentStats,
    AgentSums,
    EpisodeRecord,
    EpisodeStatsBuffer,
    EpisodeSums,
    init_episode_stats,
    init_fault_log,
    push_episodes,
    push_faults,
)
from jaxrl.training.guard import DivergenceGuard
from jaxrl.training.multi_rollout import Actors, MultiRollout
from jaxrl.training.nonfinite import NONFINITE_PREFIX
from jaxrl.training.opponents import OpponentPool
from jaxrl.training.train_state import (
    ConnectorState,
    GuardState,
    RolloutBatch,
    Summary,
    TrainState,
    add_sampled,
    add_updates,
    count_updates_between,
    empty_summary,
    make_agent_sums,
)
from jaxrl.training.train_step import TrainStep

ModuleMetrics = dict[str, Metrics]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MultiLearning:
    """Training of several modules on what was recorded in environments of several agents.

    Attributes:
        steps: Training step of each module, on as many columns as it has rows.
        rows: Agents in the rows of modules.
        trained: Modules that are trained; others play with the parameters that they have.
        num_envs: Number of environments of a train batch.
        num_steps: Number of steps of each environment in a train batch.
        num_shards: Number of logical shards.
        ring_size: Number of latest episodes kept in each shard.
        pool: Opponents that are drawn; None without.
        axis_name: Mesh axis that the environments are sharded over, or None.
        replay: None: each module has a buffer of its own, if any.
        host_replay: None: buffers of several modules are in the memory of the device.
    """

    takes_dataset: ClassVar[bool] = False
    replay: ClassVar[None] = None
    host_replay: ClassVar[None] = None
    steps: Mapping[str, TrainStep]
    rows: AgentRows
    trained: frozenset[str]
    num_envs: int
    num_steps: int
    num_shards: int
    ring_size: int
    pool: OpponentPool | None = None
    axis_name: str | None = None

    @property
    def guard(self) -> DivergenceGuard:
        """Guard of the first module; all have the same settings."""
        return next(iter(self.steps.values())).guard

    def bind(self, state: TrainState, *inputs: PyTree) -> Self:
        """Return the functions with their inputs, of which they have none."""
        del state
        assert not inputs
        return self

    def map_steps(self, change: Callable[[str, TrainStep], TrainStep]) -> Self:
        """Return the functions with a changed training step of each module."""
        return dataclasses.replace(self, steps={m: change(m, x) for m, x in self.steps.items()})

    def with_axis(self, axis_name: str) -> Self:
        """Return the functions of one device's part of a mesh."""
        changed = self.map_steps(lambda _, step: step.with_axis(axis_name))
        return dataclasses.replace(changed, axis_name=axis_name)

    def map_batches(
        self, change: Callable[..., TrainState], data: RolloutBatch, *states: TrainState
    ) -> TrainState:
        """Return the first state with each module's changed by its training step, its batch and its states."""
        modules = {
            m: change(step, self.make_batch(m, data), *(state.modules[m] for state in states))
            for m, step in self.steps.items()
        }
        return replace(states[0], modules=modules)

    @property
    def batch_steps(self) -> int:
        """Environment steps of one train batch, over all devices."""
        return self.num_envs * self.num_steps

    def init_without_envs(self, key: Key, total_envs: int) -> TrainState:
        """Return the initial state for runners on the host; see `TrainStep`. Consumes the key."""
        return strip_weak_types(self.init_from_keys(split_run_key(key), total_envs))

    def init_from_keys(self, keys: RunKeys, total_envs: int) -> TrainState:
        """Return the initial state of all modules, with what is common to them around it.

        Args:
            keys: Keys of the run.
            total_envs: Number of environments of the run.
        """
        rows = self.rows
        modules = {m: self._init_module(m, keys, total_envs) for m in self.steps}
        ring = init_episode_stats(self.num_shards, self.ring_size)
        num_agents = len(rows.agents)
        state = TrainState(
            learner=(),  # pyright: ignore[reportArgumentType]
            env=(),
            env_params=(),
            connectors=ConnectorState(obs=(), learner=(), per_env=()),
            carry=(),
            ring=ring,
            faults=init_fault_log(self.num_shards),
            guard=_merge_guards(modules),
            progress=Progress.zeros(),
            key=jax.random.clone(keys.run),
            modules=modules,
            agents=AgentStats(
                ring=_repeat(ring, num_agents),
                steps=_repeat(Counter.zeros(), num_agents),
                module_steps={}
                if rows.steps_follow
                else dict.fromkeys(self.steps, Counter.zeros()),
            ),
        )
        if self.pool is None:
            return state
        opponents = self.pool.init(
            jax.random.fold_in(keys.learner, len(self.steps)),
            self._make_module_actors(state),
            modules,
        )
        return replace(state, opponents=strip_weak_types(opponents))

    def _init_module(self, m: str, keys: RunKeys, total_envs: int) -> TrainState:
        own = _derive_module_keys(keys, list(self.steps).index(m))
        return self.steps[m].init_from_keys(own, self.rows.count_rows(m, total_envs))

    def init_module(self, m: str, key: Key, total_envs: int) -> TrainState:
        """Return the initial state of one module, given the key of the run. Consumes the key."""
        return strip_weak_types(self._init_module(m, split_run_key(key), total_envs))

    def _make_module_actors(self, state: TrainState) -> Actors:
        return {m: step.make_actor_state(state.modules[m]) for m, step in self.steps.items()}

    def make_actor_state(self, state: TrainState) -> Actors:
        """Return the inputs of acting of every module, and of opponents that are drawn."""
        actors = self._make_module_actors(state)
        if self.pool is not None:
            actors[DRAWN] = self.pool.place_learners(state.opponents, actors)
        return actors

    def make_behaviour_actor(self, state: TrainState) -> Actors:
        """Return the inputs of acting with the weights of the behavior policies."""
        actors = self.make_actor_state(state)
        for m, module in state.modules.items():
            if module.behaviour is not None:
                actors[m] = replace(actors[m], params=module.behaviour)
        return actors

    @property
    def batch_use(self) -> BatchUse:
        """Use of the sampled batch in an update; with it, modules without rows are not updated."""
        has_buffers = all(self.steps[m].has_buffer for m in self.trained)
        return "optional" if has_buffers else "required"

    @property
    def has_buffer(self) -> bool:
        """True if updates of a module that is trained draw from a buffer."""
        return any(self.steps[m].has_buffer for m in self.trained)

    @property
    def has_replay(self) -> bool:
        """True if gradient steps of every module that is trained draw rows from a replay buffer."""
        return all(self.steps[m].replay is not None for m in self.trained)

    @property
    def learner_name(self) -> str:
        """Name of the learner of a module that is trained, in messages."""
        return self.steps[min(self.trained)].learner_name

    def receive(
        self, state: TrainState, data: RolloutBatch
    ) -> tuple[TrainState, dict[str, RolloutBatch]]:
        """Add a train batch to the counters, episodes and statistics of all modules and around them.

        Args:
            state: State of the run.
            data: Train batch whose rollout is a `MultiRollout`.

        Returns:
            The new state, and the batch of each module to learn from.
        """
        modules: dict[str, TrainState] = {}
        batches: dict[str, RolloutBatch] = {}
        for m, step in self.steps.items():
            batches[m] = self.make_batch(m, data)
            if m in self.trained:
                modules[m], batches[m] = step.receive(state.modules[m], batches[m])
            else:
                modules[m] = _observe(state.modules[m], batches[m])
        return self._count(replace(state, modules=modules), data), batches

    def add_to_buffer(self, state: TrainState, batch: Mapping[str, RolloutBatch]) -> TrainState:
        """Add a received batch to the buffers of the modules that have one."""
        modules = dict(state.modules)
        for m in self.trained:
            if not self.steps[m].has_buffer:
                continue
            before = state.modules[m]
            after = self.steps[m].add_to_buffer(before, batch[m])
            if self.steps[m].circular is not None:
                # What an empty batch has written is in a slot without uses, which the next one takes.
                unused = replace(before.buffer, batches=after.buffer.batches)
                has_rows = self._count_steps(batch[m].rollout.mask) > 0
                after = replace(after, buffer=select(has_rows, after.buffer, unused))
            modules[m] = after
        return replace(state, modules=modules)

    def update(
        self,
        state: TrainState,
        batch: Mapping[str, RolloutBatch] | None,
        num_updates: int | None = None,
    ) -> tuple[TrainState, ModuleMetrics]:
        """Update every module that is trained.

        Args:
            state: State that has received the batch.
            batch: Received batch of each module, of which those without rows are not updated; None updates
                all from their buffers.
            num_updates: Number of gradient steps on rows of replay buffers; None for the configured
                number.

        Returns:
            The next state, and the metrics of the modules that are trained.
        """
        modules: dict[str, TrainState] = {}
        metrics: ModuleMetrics = {}
        for m, before in state.modules.items():
            if m in self.trained:
                modules[m], metrics[m] = self._update_module(
                    m, before, None if batch is None else batch[m], num_updates
                )
            else:
                batches = before.progress.train_batches.add(1)
                modules[m] = replace(
                    before, progress=replace(before.progress, train_batches=batches)
                )
        updates = sum(
            (count_updates_between(state.modules[m], modules[m]) for m in self.steps),
            jnp.zeros((), jnp.uint32),
        )
        progress = replace(
            state.progress,
            updates=state.progress.updates.add(updates),
            train_batches=state.progress.train_batches.add(1),
        )
        guard = _merge_guards(modules)
        return replace(state, modules=modules, guard=guard, progress=progress), metrics

    def _update_module(
        self, m: str, state: TrainState, batch: RolloutBatch | None, num_updates: int | None
    ) -> tuple[TrainState, Metrics]:
        """Update a module; one without a row in the batch is not.

        A gradient of zero would still move the parameters of Adam, and a KL of zero the penalty.
        """
        step = self.steps[m]
        if batch is None:
            return step.update(state, None, num_updates)
        has_rows = self._count_steps(batch.rollout.mask) > 0
        if step.replay is not None:
            return step.update(state, None, num_updates, should_update=has_rows)
        after, metrics = step.update(state, None if step.has_buffer else batch)
        learner, guard, updates, buffer = select(
            has_rows,
            (after.learner, after.guard, after.progress.updates, after.buffer),
            (state.learner, state.guard, state.progress.updates, state.buffer),
        )
        progress = replace(after.progress, updates=updates)
        missing = {name: 0.0 if name.startswith(NONFINITE_PREFIX) else jnp.nan for name in metrics}
        metrics = {name: jnp.where(has_rows, x, missing[name]) for name, x in metrics.items()}
        after = replace(after, learner=learner, guard=guard, progress=progress, buffer=buffer)
        return after, metrics

    def make_batch(self, m: str, data: RolloutBatch) -> RolloutBatch:
        """Return a module's part of a train batch, whose record has agent-episodes."""
        rows, recorded = self.rows, get_multi_rollout(data)
        record = jax.tree.map(lambda x: rows.select(x, m), recorded.agents)
        if recorded.plays is not None:
            record = replace(record, ended=record.ended & recorded.plays[m])
        return RolloutBatch(
            rollout=recorded.rollouts[m],
            record=record,
            env_index=rows.number(data.env_index, m),
            num_env_steps=self._count_steps(recorded.mask),
        )

    def _count_steps(self, mask: Bool[Array, "T B"]) -> UInt32[Array, ""]:
        steps = mask.sum(dtype=jnp.uint32)
        return steps if self.axis_name is None else jax.lax.psum(steps, self.axis_name)

    def _count_agent_steps(self, recorded: MultiRollout) -> UInt32[Array, " A"]:
        """Return the number of rows of each agent."""
        rows = self.rows
        steps = jnp.zeros((len(rows.agents),), jnp.uint32)
        for m, rollout in recorded.rollouts.items():
            counts = rollout.mask.sum(axis=0, dtype=jnp.uint32)
            steps += rows.sum_by_agent(counts, m, recorded.mask.shape[1])
        return steps if self.axis_name is None else jax.lax.psum(steps, self.axis_name)

    def _count(self, state: TrainState, data: RolloutBatch) -> TrainState:
        """Add a train batch to the counters, episodes and faults that are common to all modules."""
        recorded, index, progress = get_multi_rollout(data), data.env_index, state.progress

        def push(ring: EpisodeStatsBuffer, record: EpisodeRecord) -> EpisodeStatsBuffer:
            return push_episodes(ring, record, index, progress.env_steps.low)

        module_steps = {
            m: steps.add(self._count_steps(recorded.rollouts[m].mask))
            for m, steps in state.agents.module_steps.items()
        }
        env_steps = progress.env_steps.add(self._count_steps(recorded.mask))
        return replace(
            state,
            ring=push(state.ring, recorded.record),
            agents=AgentStats(
                ring=jax.vmap(push, (0, 2))(state.agents.ring, recorded.agents),
                steps=state.agents.steps.add(self._count_agent_steps(recorded)),
                module_steps=module_steps,
            ),
            faults=push_faults(state.faults, recorded.record, index),
            progress=replace(progress, env_steps=env_steps),
        )

    def make_empty_summary(self, state: TrainState) -> Summary:
        """Return the summary of nothing, without metrics."""
        shards = state.ring.count.shape[0]
        return replace(
            empty_summary(shards, {}),
            modules={m: empty_summary(shards, {}) for m in self.steps},
            agents=make_agent_sums(len(self.rows.agents), shards),
        )

    def add_sampled(self, summary: Summary, data: RolloutBatch) -> Summary:
        """Return a summary with the episodes and steps of one more batch; steps of modules are rows."""
        assert summary.agents is not None
        recorded = get_multi_rollout(data)
        add_episodes = jax.vmap(EpisodeSums.add, (0, 2))
        agents = AgentSums(
            episodes=add_episodes(summary.agents.episodes, recorded.agents),
            steps=summary.agents.steps + self._count_agent_steps(recorded),
        )
        modules: dict[str, Summary] = {}
        for m, own in summary.modules.items():
            batch = self.make_batch(m, data)
            num_rows = self._count_steps(batch.rollout.mask)
            modules[m] = add_sampled(own, replace(batch, num_env_steps=num_rows))
        return replace(
            summary,
            episodes=summary.episodes.add(recorded.record),
            env_steps=summary.env_steps + self._count_steps(recorded.mask),
            modules=modules,
            agents=agents,
        )

    def add_updates(
        self, summary: Summary, before: TrainState, after: TrainState, metrics: ModuleMetrics
    ) -> Summary:
        """Return a summary with the metrics of the updates between two states."""
        modules = {
            m: add_updates(
                own, metrics[m], count_updates_between(before.modules[m], after.modules[m])
            )
            if m in metrics
            else own
            for m, own in summary.modules.items()
        }
        return replace(
            summary,
            learned_batches=summary.learned_batches + 1,
            updates=summary.updates + count_updates_between(before, after),
            modules=modules,
        )


def get_multi_rollout(data: RolloutBatch) -> MultiRollout:
    """Return the rollout of a train batch of several agents."""
    rollout: object = data.rollout
    assert isinstance(rollout, MultiRollout)
    return rollout


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
        num_rollbacks=jnp.stack([guard.num_rollbacks for guard in guards]).sum(dtype=jnp.int32),
        num_nonfinite=jnp.stack([guard.num_nonfinite for guard in guards]).sum(dtype=jnp.uint32),
    )


def _observe(state: TrainState, data: RolloutBatch) -> TrainState:
    """Return the state of a module that is not trained after a train batch."""
    progress = replace(
        state.progress,
        env_steps=state.progress.env_steps.add(data.num_env_steps),
        train_batches=state.progress.train_batches.add(1),
    )
    ring = push_episodes(state.ring, data.record, data.env_index, state.progress.env_steps.low)
    return replace(state, progress=progress, ring=ring)
