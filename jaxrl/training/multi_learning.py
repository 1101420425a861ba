"""Training of several modules on recorded rollouts, wherever their environments are stepped.

A module's state is a TrainState without environments, and what follows a rollout is the same
`TrainStep` as for a single agent, on rows that are agents in environments.
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, UInt32

from jaxrl.core.keys import RunKeys, split_run_key
from jaxrl.core.struct import replace
from jaxrl.core.types import Counter, Key, Metrics, Progress, PyTree, strip_weak_types
from jaxrl.learners.gradients import select
from jaxrl.training.agent_rows import AgentRows
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
from jaxrl.training.train_state import (
    ConnectorState,
    GuardState,
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
class MultiLearning:
    """Training of several modules on what was recorded in environments of several agents.

    Attributes:
        steps: Training step of each module, on as many columns as it has rows.
        trained: Modules that are trained; others play with the parameters that they have.
        num_envs: Number of environments of a train batch.
        num_steps: Number of steps of each environment in a train batch.
        num_shards: Number of logical shards.
        ring_size: Number of latest episodes kept in each shard.
        axis_name: Mesh axis that the environments are sharded over, or None.
    """

    steps: Mapping[str, TrainStep]
    trained: frozenset[str]
    num_envs: int
    num_steps: int
    num_shards: int
    ring_size: int
    axis_name: str | None = None

    @property
    def rows(self) -> AgentRows:
        """Agents in the rows of modules."""
        raise NotImplementedError

    @property
    def divergence_guard(self) -> DivergenceGuard:
        """Guard of the first module; all have the same settings."""
        return next(iter(self.steps.values())).guard

    @property
    def batch_steps(self) -> int:
        """Environment steps of one train batch, over all devices."""
        return self.num_envs * self.num_steps

    def init_around(
        self, keys: RunKeys, total_envs: int, *, env: PyTree, env_params: PyTree, carry: PyTree
    ) -> TrainState:
        """Return the initial state of all modules, with what is common to them around it.

        Args:
            keys: Keys of the run.
            total_envs: Number of environments of the run.
            env: State of the environments, empty if runners have it.
            env_params: Their parameters.
            carry: Carries and pending rows, empty if runners have them.
        """
        rows = self.rows
        modules = {m: self._init_module(m, keys, total_envs) for m in self.steps}
        ring = init_episode_stats(self.num_shards, self.ring_size)
        num_agents = len(rows.agents)
        state = TrainState(
            learner=(),  # pyright: ignore[reportArgumentType]
            env=env,
            env_params=env_params,
            connectors=ConnectorState(obs=(), learner=(), per_env=()),
            carry=carry,
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
        return strip_weak_types(state)

    def _init_module(self, m: str, keys: RunKeys, total_envs: int) -> TrainState:
        own = _derive_module_keys(keys, list(self.steps).index(m))
        return self.steps[m].init_from_keys(own, self.rows.count_rows(m, total_envs))

    def init_module(self, m: str, key: Key, total_envs: int) -> TrainState:
        """Return the initial state of one module, given the key of the run. Consumes the key."""
        return strip_weak_types(self._init_module(m, split_run_key(key), total_envs))

    def make_actor_state(self, state: TrainState) -> Actors:
        """Return the inputs of acting of every module."""
        return {m: step.make_actor_state(state.modules[m]) for m, step in self.steps.items()}

    def learn(
        self, state: TrainState, recorded: MultiRollout, env_index: Int[Array, " B"]
    ) -> tuple[TrainState, ModuleMetrics]:
        """Train every module on its rows of a train batch.

        Returns:
            The next state, and the metrics of the modules that are trained.
        """
        modules: dict[str, TrainState] = {}
        metrics: ModuleMetrics = {}
        for m in self.steps:
            data = self.make_batch(m, recorded, env_index)
            if m in self.trained:
                modules[m], metrics[m] = self._train_module(m, state.modules[m], data)
            else:
                modules[m] = _observe(state.modules[m], data)
        after = replace(state, modules=modules, guard=_merge_guards(modules))
        return self._count(after, state, recorded, env_index), metrics

    def _train_module(
        self, m: str, state: TrainState, data: RolloutBatch
    ) -> tuple[TrainState, Metrics]:
        """Train a module; one without a row in the batch is not updated.

        A gradient of zero would still move the parameters of Adam, and a KL of zero the penalty.
        """
        step = self.steps[m]
        has_rows = self._count_steps(data.rollout.mask) > 0
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
        buffer = after.buffer
        if step.circular is not None:
            # What an empty batch has written is in a slot without uses, which the next one takes.
            buffer = select(has_rows, buffer, replace(state.buffer, batches=buffer.batches))
        after = replace(after, learner=learner, guard=guard, progress=progress, buffer=buffer)
        return after, metrics

    def make_batch(
        self, m: str, recorded: MultiRollout, env_index: Int[Array, " B"]
    ) -> RolloutBatch:
        """Return a module's train batch, whose record has agent-episodes."""
        rows = self.rows
        record = jax.tree.map(lambda x: rows.select(x, m), recorded.agents)
        if recorded.plays is not None:
            record = replace(record, ended=record.ended & recorded.plays[m])
        return RolloutBatch(
            rollout=recorded.rollouts[m],
            record=record,
            env_index=rows.number(env_index, m),
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

    def _count(
        self,
        after: TrainState,
        before: TrainState,
        recorded: MultiRollout,
        index: Int[Array, " B"],
    ) -> TrainState:
        """Add a train batch to the counters, episodes and faults that are common to all modules."""
        progress = before.progress
        updates = sum(
            (count_updates_between(before.modules[m], after.modules[m]) for m in self.steps),
            jnp.zeros((), jnp.uint32),
        )

        def push(ring: EpisodeStatsBuffer, record: EpisodeRecord) -> EpisodeStatsBuffer:
            return push_episodes(ring, record, index, progress.env_steps.low)

        module_steps = {
            m: steps.add(self._count_steps(recorded.rollouts[m].mask))
            for m, steps in before.agents.module_steps.items()
        }
        return replace(
            after,
            ring=push(before.ring, recorded.record),
            agents=AgentStats(
                ring=jax.vmap(push, (0, 2))(before.agents.ring, recorded.agents),
                steps=before.agents.steps.add(self._count_agent_steps(recorded)),
                module_steps=module_steps,
            ),
            faults=push_faults(before.faults, recorded.record, index),
            progress=replace(
                progress,
                env_steps=progress.env_steps.add(self._count_steps(recorded.mask)),
                updates=progress.updates.add(updates),
                train_batches=progress.train_batches.add(1),
            ),
        )

    def make_empty_summary(self, state: TrainState, metrics: ModuleMetrics) -> Summary:
        """Return the summary of zero train batches, given metrics of the shapes of one."""
        shards = state.ring.count.shape[0]
        empty = EpisodeSums.empty(shards)
        num_agents = len(self.rows.agents)
        return replace(
            empty_summary(shards, {}),
            modules={m: empty_summary(shards, metrics.get(m, {})) for m in self.steps},
            agents=AgentSums(
                episodes=_repeat(empty, num_agents), steps=jnp.zeros((num_agents,), jnp.uint32)
            ),
        )

    def add_batch(
        self,
        summary: Summary,
        states: tuple[TrainState, TrainState],
        recorded: MultiRollout,
        env_index: Int[Array, " B"],
        metrics: ModuleMetrics,
    ) -> Summary:
        """Return a summary with one more train batch.

        Args:
            summary: Summary of the train batches so far.
            states: State before the batch, and after it.
            recorded: What was recorded.
            env_index: Indices of its environments.
            metrics: Metrics of the modules that are trained.
        """
        assert summary.agents is not None
        add_episodes = jax.vmap(EpisodeSums.add, (0, 2))
        agents = AgentSums(
            episodes=add_episodes(summary.agents.episodes, recorded.agents),
            steps=summary.agents.steps + self._count_agent_steps(recorded),
        )
        modules = {
            m: self._add_module(own, states, self.make_batch(m, recorded, env_index), m, metrics)
            for m, own in summary.modules.items()
        }
        return replace(
            summary,
            episodes=summary.episodes.add(recorded.record),
            train_batches=summary.train_batches + 1,
            learned_batches=summary.learned_batches + 1,
            updates=summary.updates + count_updates_between(*states),
            env_steps=summary.env_steps + self._count_steps(recorded.mask),
            modules=modules,
            agents=agents,
        )

    def _add_module(
        self,
        summary: Summary,
        states: tuple[TrainState, TrainState],
        data: RolloutBatch,
        m: str,
        metrics: ModuleMetrics,
    ) -> Summary:
        """Return a module's summary with one more batch, whose steps are its rows."""
        data = replace(data, num_env_steps=self._count_steps(data.rollout.mask))
        if m not in metrics:
            return replace(add_sampled(summary, data), train_batches=summary.train_batches + 1)
        before, after = (state.modules[m] for state in states)
        return add_to_summary(summary, data, metrics[m], count_updates_between(before, after))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MultiTrainStep(MultiLearning):
    """Training of several modules on what runners on the host record.

    Attributes:
        agent_rows: Agents in the rows of modules.
    """

    agent_rows: AgentRows
    replay: None = None
    """None: each module has a buffer of its own, if any."""
    host_replay: None = None
    """None: buffers of several modules are in the memory of the device."""

    @property
    def rows(self) -> AgentRows:
        return self.agent_rows

    def init_without_envs(self, key: Key, total_envs: int) -> TrainState:
        """Return the initial state for runners on the host; see `TrainStep`. Consumes the key."""
        keys = split_run_key(key)
        return self.init_around(keys, total_envs, env=(), env_params=(), carry=())

    def train_step_with_summary(
        self, state: TrainState, data: RolloutBatch
    ) -> tuple[TrainState, Summary]:
        """Train on one batch, whose rollout is a `MultiRollout`, and return its summary."""
        recorded = get_multi_rollout(data)
        after, metrics = self.learn(state, recorded, data.env_index)
        empty = self.make_empty_summary(state, metrics)
        return after, self.add_batch(empty, (state, after), recorded, data.env_index, metrics)


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
