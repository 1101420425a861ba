"""Rollouts of several modules in environments of several agents, as one scan."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from jaxrl.config.agent_mapping import DRAWN
from jaxrl.core.struct import pytree, replace, where_rows
from jaxrl.core.types import Columns, Progress, PyTree, Rollout
from jaxrl.envs.multi.vector import MultiVectorEnv, MultiVectorState, MultiVectorStep
from jaxrl.envs.vector import NO_FAULT, StepInputs
from jaxrl.modules.rl_module import make_zeros
from jaxrl.training.agent_rows import (
    AgentRows,
    AgentStep,
    AgentView,
    BegunRow,
    PendingRows,
    Scene,
    complete_rows,
    make_no_rows,
    pack_rows,
)
from jaxrl.training.episode_stats import AgentReturns, EpisodeRecord
from jaxrl.training.opponents import (
    OpponentCarry,
    OpponentInputs,
    OpponentPool,
    OpponentRows,
    take,
)
from jaxrl.training.rollout import ActorCarry, ActorState, PolicyStep, select_recorded
from jaxrl.training.train_state import RolloutBatch, TrainState

Actors = dict[str, Any]
"""ActorState by module; OpponentState of those that are drawn, if there are any."""


@pytree
class MultiCarry:
    """State of acting between steps, by module; `pending` is None where rows complete at once."""

    acting: dict[str, ActorCarry]
    pending: dict[str, PendingRows] | None
    opponents: OpponentCarry | None = None


@pytree
class MultiInputs:
    """Random inputs of steps, for the environments, each module and the opponents, if any."""

    env: StepInputs
    draws: dict[str, PyTree]
    opponents: OpponentInputs | None = None


@pytree
class MultiRollout:
    """Recorded rollout of every module.

    `rollouts` are `[T, R, ...]`; `record` `[T, B]` has the environments' episodes, and `agents`
    `[T, B, A]` those of each agent. `mask` `[T, B]` is whether a step of an environment counts.
    `plays` `[T, R]` is whether a row's agent was played by the module, None if that never changes.
    `completed` `[T, R]` is whether a step completed a row; None in a Fragment, which has it itself.
    """

    rollouts: dict[str, Rollout]
    record: EpisodeRecord
    agents: EpisodeRecord
    mask: Bool[Array, "T B"]
    plays: dict[str, Bool[Array, "T R"]] | None = None
    completed: dict[str, Bool[Array, "T R"]] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MultiPolicyStep:
    """Modules with their connectors, and the agents that they play.

    Attributes:
        policies: Module and connectors by id.
        rows: Agents and the module of each.
        views: What the agents of each module observe, and what its critic sees.
        sharing: Matrix that shares rewards between agents; None where each has its own.
        pool: Opponents that are drawn; None without.
    """

    policies: Mapping[str, PolicyStep]
    rows: AgentRows
    views: Mapping[str, AgentView]
    sharing: np.ndarray | None = None
    pool: OpponentPool | None = None

    @property
    def reads_state(self) -> bool:
        """Return whether a critic sees the environment's global state."""
        critics = (view.critic for view in self.views.values())
        return any(critic is not None and critic.reads_state for critic in critics)

    def with_envs(self, env: MultiVectorEnv, *, for_training: bool = False) -> "MultiRolloutWorker":
        """Return the policies together with environments that they act in.

        Args:
            env: Environments.
            for_training: Whether rollouts have what critics see, too.
        """
        views = {m: v if for_training else v.without_critic() for m, v in self.views.items()}
        reads_state = any(v.critic is not None and v.critic.reads_state for v in views.values())
        return MultiRolloutWorker(
            env=dataclasses.replace(env, keeps_global_state=reads_state),
            policies=self.policies,
            rows=self.rows,
            views=views,
            sharing=self.sharing,
            pool=self.pool,
        )


@pytree
class _ScanCarry:
    env: MultiVectorState
    carry: MultiCarry


@pytree
class _Ends:
    """Episodes of environments `[B]` or of agents `[B, A]` that a step ended.

    `episode_length` is 0 where none ended, and the return is valid where it is not.
    """

    episode_return: Float[Array, " B *agents"]
    episode_length: Int[Array, " B *agents"]


@pytree
class _Recorded:
    """Part of a `MultiRollout` that each step adds."""

    rollouts: dict[str, Rollout]
    episodes: _Ends
    agents: _Ends
    fault: Int[Array, " B"]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MultiRolloutWorker(MultiPolicyStep):
    """Environments of several agents, with the policies that act in them."""

    env: MultiVectorEnv

    @property
    def completes_at_once(self) -> bool:
        """True if every row is complete after the step at which its agent acted."""
        return self.env.acting == "all"

    def initial_carry(self, num_envs: int) -> MultiCarry:
        """Return the carry at the start of an episode in every environment, with no pending row."""
        sizes = {m: self.rows.count_rows(m, num_envs) for m in self.policies}
        acting = {m: policy.initial_carry(sizes[m]) for m, policy in self.policies.items()}
        at_once = self.completes_at_once
        opponents = None
        if self.pool is not None:
            opponents = self.pool.initial_carry(num_envs, completes_at_once=at_once)
        if at_once:
            return MultiCarry(acting=acting, pending=None, opponents=opponents)
        pending = {
            m: make_no_rows(self._make_blank_row(m, carry, sizes[m])) for m, carry in acting.items()
        }
        return MultiCarry(acting=acting, pending=pending, opponents=opponents)

    def _make_blank_row(self, m: str, carry: ActorCarry, num_rows: int) -> BegunRow:
        """Return all-zero rows of a module, shaped and typed as they are recorded."""
        policy = self.policies[m]
        is_first = jnp.zeros((num_rows,), bool)
        obs = make_zeros(policy.obs_pipeline.space, (num_rows,))

        def begin() -> BegunRow:
            out = act_on_zeros(policy, carry, num_rows)
            recorded = self.views[m].make_blank(obs, num_rows)
            return _make_begun(recorded, out, is_first, carry)

        shapes = jax.eval_shape(begin)
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    def sample_inputs(self, state: MultiVectorState, num_steps: int, params: PyTree) -> MultiInputs:
        """Draw the random inputs of the next steps at once, `[num_steps, B]`."""
        env = self.env.make_step_inputs(state, num_steps, params)
        draws = {
            m: jax.vmap(policy.module.draw)(self.rows.derive_keys(env.action_key, m))
            for m, policy in self.policies.items()
        }
        opponents = None if self.pool is None else self.pool.sample_inputs(env.action_key)
        return MultiInputs(env=env, draws=draws, opponents=opponents)

    def step(
        self,
        actor: Actors,
        state: MultiVectorState,
        carry: MultiCarry,
        row: MultiInputs,
        params: PyTree,
        explore: bool,
    ) -> tuple[MultiVectorState, MultiCarry, MultiVectorStep, dict[str, Rollout]]:
        """Act once in every environment.

        Returns:
            The environments and carries after it, the step, and each module's row of a rollout.
            That of opponents that are drawn has no observations and actions.
        """
        outs = self._act(actor, state, carry, row, explore)
        actions = {
            m: policy.action_pipeline(outs[m][Columns.ACTIONS])
            for m, policy in self.policies.items()
        }
        played = self._act_for_opponents(actor, state, carry, row, explore)
        if played is not None:
            actions[DRAWN] = played[0]
        new_state, step = self.env.step(
            state, self.rows.scatter(actions, state.index.shape[0]), row.env, params
        )
        rewards = self._share(step)
        now, after = Scene.before(state), Scene.after(step)
        rows: dict[str, Rollout] = {}
        acting: dict[str, ActorCarry] = {}
        pending: dict[str, PendingRows] | None = None if carry.pending is None else {}
        for m in self.policies:
            reward = self.rows.select(rewards, m)
            begun = self._begin(m, state, now, carry, outs[m])
            if carry.pending is None or pending is None:
                rows[m] = self._complete_at_once(m, state, step, after, begun, reward)
            else:
                final_obs = self._record_obs(m, after)
                agent_step = self._make_agent_step(m, step, final_obs, reward)
                acts = self.rows.gather(state.acts, m)
                pending[m], rows[m] = complete_rows(carry.pending[m], acts, begun, agent_step)
                before = carry.acting[m].reward
                if before is not None:
                    reward = jnp.where(rows[m].mask, rows[m].reward, before)
            acting[m] = self._advance(m, state, new_state, carry, outs[m], reward)
        new_carry = MultiCarry(acting=acting, pending=pending)
        if self.pool is not None and carry.opponents is not None:
            opponents = carry.opponents
            if played is not None:
                own = self._make_agent_step(DRAWN, step, (), self.rows.select(rewards, DRAWN))
                acts = self.rows.gather(state.acts, DRAWN)
                is_first = self.rows.gather(new_state.is_first, DRAWN)
                opponents, rows[DRAWN] = self.pool.advance(
                    played[1], carry.opponents, acts, own, is_first
                )
            opponents = self.pool.count_games(
                opponents,
                self.rows.gather_all(step.reward),
                step.ended,
                new_state.episode_length == 0,
            )
            new_carry = replace(new_carry, opponents=opponents)
        return new_state, new_carry, step, rows

    def rollout(
        self,
        actors: Actors,
        state: MultiVectorState,
        carry: MultiCarry,
        params: PyTree,
        num_steps: int,
        explore: bool = True,
    ) -> tuple[MultiVectorState, MultiCarry, MultiRollout, EpisodeRecord]:
        """Record `num_steps` steps of every environment, with raw observations."""

        def body(c: _ScanCarry, now: MultiInputs) -> tuple[_ScanCarry, _Recorded]:
            new_state, new_carry, step, rows = self.step(
                actors, c.env, c.carry, now, params, explore
            )
            recorded = _Recorded(
                rollouts=rows,
                episodes=_Ends(
                    episode_return=step.episode_return,
                    episode_length=jnp.where(step.ended, step.episode_length, 0),
                ),
                agents=self._record_agents(step),
                fault=step.fault,
            )
            return _ScanCarry(env=new_state, carry=new_carry), recorded

        inputs = self.sample_inputs(state, num_steps, params)
        end, recorded = jax.lax.scan(body, _ScanCarry(env=state, carry=carry), inputs)
        rollouts = {
            m: rows if m == DRAWN else self._finish(m, rows, carry)
            for m, rows in recorded.rollouts.items()
        }
        steps = state.count[None] + jnp.arange(num_steps, dtype=state.count.dtype)[:, None]
        agent_fault = jnp.full(recorded.agents.episode_length.shape, NO_FAULT, jnp.int32)
        complete = MultiRollout(
            rollouts=rollouts,
            record=_complete_record(recorded.episodes, steps, recorded.fault),
            agents=_complete_record(recorded.agents, steps[..., None], agent_fault),
            mask=recorded.fault == NO_FAULT,
            completed={m: rows.mask for m, rows in recorded.rollouts.items() if m != DRAWN},
        )
        return end.env, end.carry, complete, complete.record

    def end_rollout(
        self, state: TrainState, data: RolloutBatch, axis_name: str | None
    ) -> TrainState:
        """Return the state after a rollout, with the games of opponents that are drawn counted."""
        if self.pool is None or state.carry.opponents is None:
            return state
        opponents, own = self.pool.add_games(
            state.opponents,
            state.carry.opponents,
            data.num_env_steps,
            data.env_index.shape[0],
            axis_name,
        )
        return replace(state, opponents=opponents, carry=replace(state.carry, opponents=own))

    def make_agent_returns(self) -> AgentReturns:
        """Return the returns of no agent-episodes."""
        shape = (len(self.rows.patterns), len(self.rows.agents))
        return AgentReturns(total=jnp.zeros(shape, jnp.float32), count=jnp.zeros(shape, jnp.int32))

    def add_agents(
        self, returns: AgentReturns, step: MultiVectorStep, counts: Bool[Array, " B"]
    ) -> AgentReturns:
        """Add the agent-episodes that a step ended in the environments that count."""
        ended = self.rows.gather_all(step.agent_ended) & counts[:, None]
        ended &= self.rows.gather_all(step.agent_length) > 0
        total = jnp.where(ended, self.rows.gather_all(step.agent_return), 0.0)
        period = len(self.rows.patterns)

        def add_up(x: Array) -> Array:
            return jnp.stack([x[i::period].sum(axis=0, dtype=x.dtype) for i in range(period)])

        return AgentReturns(
            total=returns.total + add_up(total),
            count=returns.count + add_up(ended.astype(jnp.int32)),
        )

    def _act(
        self,
        actors: Actors,
        state: MultiVectorState,
        carry: MultiCarry,
        row: MultiInputs,
        explore: bool,
    ) -> dict[str, dict[str, Any]]:
        """Compute each module's output, in rows that do not act any row's of the environment.

        In games in turns only as many rows are computed as may act.
        """
        gather = self.rows.gather
        most, num_envs = self.env.env.max_acting, state.index.shape[0]
        outs: dict[str, dict[str, Any]] = {}
        for m, policy in self.policies.items():
            rows = (
                self.views[m].observe(gather(state.obs, m), self._get_places(m, state)),
                carry.acting[m],
                gather(state.is_first, m),
                self.rows.number(state.index, m),
                row.draws[m],
            )
            acting = None
            if most is not None:
                acting = self.rows.find_acting(gather(state.acts, m), m, num_envs, most)
            if acting is None:
                outs[m] = policy.act(actors[m], *rows, explore)
            else:
                out = policy.act(actors[m], *take(rows, acting.source), explore)
                outs[m] = take(out, acting.place)
        return outs

    def _act_for_opponents(
        self,
        actors: Actors,
        state: MultiVectorState,
        carry: MultiCarry,
        row: MultiInputs,
        explore: bool,
    ) -> tuple[PyTree, OpponentCarry] | None:
        """Return the actions of opponents that are drawn and their carry; None without any."""
        if self.pool is None or carry.opponents is None or row.opponents is None:
            return None
        gather = self.rows.gather
        rows = OpponentRows(
            obs=gather(state.obs, DRAWN),
            acts=gather(state.acts, DRAWN),
            is_first=gather(state.is_first, DRAWN),
            index=self.rows.number(state.index, DRAWN),
            begins=self.rows.repeat(state.episode_length == 0, DRAWN),
        )
        num_envs = state.index.shape[0]
        return self.pool.act(actors[DRAWN], carry.opponents, rows, row.opponents, num_envs, explore)

    def _share(self, step: MultiVectorStep) -> Float[Array, "B A"]:
        """Return the rewards that agents learn from."""
        reward = self.rows.gather_all(step.reward)
        return reward if self.sharing is None else reward @ self.sharing.T

    def _advance(
        self,
        m: str,
        state: MultiVectorState,
        new_state: MultiVectorState,
        carry: MultiCarry,
        out: dict[str, Any],
        reward: Float[Array, " R"],
    ) -> ActorCarry:
        """Return a module's carries after a step; only those of agents that acted advance."""
        after = out[Columns.STATE_OUT]
        if not self.completes_at_once:
            after = where_rows(self.rows.gather(state.acts, m), after, carry.acting[m])
        is_first = self.rows.gather(new_state.is_first, m)
        return self.policies[m].advance(after, reward, is_first)

    def _get_places(self, m: str, state: MultiVectorState) -> np.ndarray:
        return self.rows.get_places(m, state.index.shape[0])

    def _record_obs(self, m: str, scene: Scene) -> PyTree:
        """Return the observations of a module's rows, as it learns from them."""
        places = self.rows.get_places(m, scene.num_envs)
        return self.views[m].record(self.rows.gather(scene.obs, m), places, scene)

    def _begin(
        self,
        m: str,
        state: MultiVectorState,
        now: Scene,
        carry: MultiCarry,
        out: dict[str, Any],
    ) -> BegunRow:
        obs = self._record_obs(m, now)
        return _make_begun(obs, out, self.rows.gather(state.is_first, m), carry.acting[m])

    def _complete_at_once(
        self,
        m: str,
        state: MultiVectorState,
        step: MultiVectorStep,
        after: Scene,
        begun: BegunRow,
        reward: Float[Array, " R"],
    ) -> Rollout:
        """Return a module's row of the rollout where all agents that are present act."""
        gather = functools.partial(self.rows.gather, module=m)
        return Rollout(
            obs=begun.obs,
            action=begun.action,
            reward=reward,
            terminated=gather(step.terminated),
            truncated=gather(step.truncated),
            final_obs=self._record_obs(m, after),
            is_first=begun.is_first,
            mask=gather(state.acts) & self.rows.repeat(step.mask, m),
            extras=begun.extras,
        )

    def _make_agent_step(
        self, m: str, step: MultiVectorStep, final_obs: PyTree, reward: Float[Array, " R"]
    ) -> AgentStep:
        gather = functools.partial(self.rows.gather, module=m)
        terminated: Array = gather(step.terminated)
        truncated: Array = gather(step.truncated)
        return AgentStep(
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            ended=terminated | truncated,
            acts_next=gather(step.acts),
            final_obs=final_obs,
            is_valid=self.rows.repeat(step.mask, m),
        )

    def _record_agents(self, step: MultiVectorStep) -> _Ends:
        ended, lengths = step.agent_ended, step.agent_length
        return _Ends(
            episode_return=self.rows.gather_all(step.agent_return),
            episode_length=self.rows.gather_all(
                {name: jnp.where(ended[name], lengths[name], 0) for name in ended}
            ),
        )

    def _finish(self, m: str, rows: Rollout, carry: MultiCarry) -> Rollout:
        """Return a module's rollout with the carries before its first rows."""
        if carry.pending is None:
            return replace(rows, carry_in=carry.acting[m])
        pending = carry.pending[m]
        start = where_rows(pending.has_row, pending.begun.carry, carry.acting[m])
        return pack_rows(replace(rows, carry_in=start))


def act_on_zeros(policy: PolicyStep, carry: ActorCarry, num_rows: int) -> dict[str, Any]:
    """Return the output of new parameters for all-zero observations, for its shapes and types."""
    init_key, draw_key = jax.random.split(jax.random.key(0))
    actor = ActorState(
        params=policy.module.init(init_key),
        obs_state=policy.obs_pipeline.init(),
        hparams={},
        progress=Progress.zeros(),
    )
    obs = make_zeros(policy.obs_pipeline.space, (num_rows,))
    draws = policy.module.draw(jax.random.split(draw_key, num_rows))
    index, is_first = jnp.arange(num_rows, dtype=jnp.int32), jnp.zeros((num_rows,), bool)
    return policy.act(actor, obs, carry, is_first, index, draws, explore=False)


def _make_begun(
    obs: PyTree, out: dict[str, Any], is_first: Bool[Array, " R"], carry: ActorCarry
) -> BegunRow:
    return BegunRow(
        obs=obs,
        action=out[Columns.ACTIONS],
        extras=select_recorded(out),
        is_first=is_first,
        carry=carry,
    )


def _complete_record(
    ends: _Ends, env_step: UInt32[Array, " T B *_"], fault: Int[Array, " T B *agents"]
) -> EpisodeRecord:
    """Return the record of a rollout, given the count of its environments' steps before each."""
    return EpisodeRecord(
        ended=ends.episode_length > 0,
        episode_return=ends.episode_return,
        episode_length=ends.episode_length,
        env_step=jnp.broadcast_to(env_step, fault.shape),
        fault=fault,
    )
