"""Rolling out a module in vectorised environments: one scan, for every algorithm."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxrl.connectors.base import Before
from jaxrl.connectors.pipelines import ActionPipeline, ObservationPipeline, Replay
from jaxrl.core.struct import pytree, replace, where_rows
from jaxrl.core.types import Columns, Params, Progress, PyTree, Rollout
from jaxrl.envs.vector import StepInputs, VectorEnv, VectorState, VectorStep
from jaxrl.modules.rl_module import RLModule, zeros_of
from jaxrl.training.episode_stats import EpisodeRecord

RECORDED = (Columns.ACTION_LOGP, Columns.ACTION_DIST_INPUTS)
"""What a rollout keeps of the module's output, beside the action."""


@pytree
class Actor:
    """What acting depends on and does not change while it lasts."""

    params: Params
    obs_state: PyTree
    hparams: dict[str, Array]
    progress: Progress


@pytree
class Carry:
    """What an environment's acting carries from step to step, `[B, ...]`.

    `module` is the module's memory and None for one without, `connectors` what each observation
    connector remembers. `action` (the module's) and `reward` are those of the step before; they are
    None where no connector remembers anything.
    """

    module: PyTree
    connectors: tuple[PyTree, ...]
    action: PyTree
    reward: Float[Array, " B"] | None


@pytree
class ActInputs:
    """What steps draw from: the environments' part and the module's."""

    env: StepInputs
    draws: PyTree


@pytree
class _Carry:
    env: VectorState
    acting: Carry


@dataclasses.dataclass(frozen=True, eq=False)
class Acting:
    """The module and the connectors on both its sides, as pure functions of any environment."""

    module: RLModule
    obs_pipeline: ObservationPipeline
    action_pipeline: ActionPipeline

    def initial_carry(self, num_envs: int) -> Carry:
        """The carry at the start of an episode in every environment."""
        remembers = bool(self.obs_pipeline.temporal)
        return Carry(
            module=self.module.initial_carry(num_envs),
            connectors=self.obs_pipeline.init_carry(num_envs),
            action=zeros_of(self.module.action_space, (num_envs,)) if remembers else None,
            reward=jnp.zeros((num_envs,), jnp.float32) if remembers else None,
        )

    def act(
        self,
        actor: Actor,
        obs: PyTree,
        carry: Carry,
        is_first: Bool[Array, " B"],
        env_index: Int[Array, " B"],
        draws: PyTree,
        explore: bool,
    ) -> dict[str, Any]:
        """The module's output for raw observations `[B, ...]`, of which `is_first` start episodes.

        `STATE_OUT` is the Carry after acting; `advance` completes it once the environments have
        made their step.
        """
        forward = self.module.forward_exploration if explore else self.module.forward_inference
        connectors, observed = self._observe(actor.obs_state, obs, carry, is_first)
        out = forward(
            actor.params,
            observed,
            carry.module,
            actor.hparams,
            actor.progress,
            env_index,
            draws,
        )
        if Columns.ACTION_LOGP not in out:
            dist = self.module.action_dist(out[Columns.ACTION_DIST_INPUTS], observed)
            out = {**out, Columns.ACTION_LOGP: dist.log_prob(out[Columns.ACTIONS])}
        after = replace(
            carry,
            module=out.get(Columns.STATE_OUT),
            connectors=connectors,
            action=jax.tree.map(
                lambda old, new: new.astype(old.dtype), carry.action, out[Columns.ACTIONS]
            )
            if carry.reward is not None
            else None,
        )
        return {**out, Columns.STATE_OUT: after}

    def _observe(
        self, obs_state: PyTree, obs: PyTree, carry: Carry, is_first: Bool[Array, " B"]
    ) -> tuple[tuple[PyTree, ...], PyTree]:
        if carry.reward is None:
            return carry.connectors, self.obs_pipeline(obs_state, obs)
        before = Before(is_first=is_first, action=carry.action, reward=carry.reward)
        return self.obs_pipeline.step(obs_state, carry.connectors, obs, before)

    def advance(self, carry: Carry, reward: Float[Array, " B"], starts: Bool[Array, " B"]) -> Carry:
        """The carry after the step that `act` chose; `starts` says whose episode begins anew."""
        module = carry.module
        if module is not None:
            blank = self.module.initial_carry(starts.shape[0])
            module = where_rows(starts, blank, module)
        last = None if carry.reward is None else jnp.asarray(reward, jnp.float32)
        return replace(carry, module=module, reward=last)

    def observed(self, obs_state: PyTree, rollout: Rollout) -> Rollout:
        """The rollout as the module saw it, with its own carry alone."""
        return self._with(rollout, self._replay(obs_state, rollout))

    def learned_from(
        self, obs_state: PyTree, rollout: Rollout, axis_name: str | None
    ) -> tuple[PyTree, Rollout]:
        """The statistics with a rollout added, and the rollout as the module saw it."""
        seen = self._replay(obs_state, rollout)
        updated = self.obs_pipeline.update(obs_state, seen.received, rollout.mask, axis_name)
        return updated, self._with(rollout, seen)

    def _with(self, rollout: Rollout, seen: Replay) -> Rollout:
        start: Carry | None = rollout.carry_in
        keeps = self.module.is_stateful and start is not None
        return replace(
            rollout,
            obs=seen.obs,
            final_obs=seen.final_obs,
            carry_in=self.module.memory_of(start.module) if keeps and start else None,
        )

    def _replay(self, obs_state: PyTree, rollout: Rollout) -> Replay:
        """What the module saw, from the carry at the rollout's start on."""
        start: Carry | None = rollout.carry_in
        if start is None or start.reward is None:
            return self.obs_pipeline.replay(obs_state, (), rollout, None)
        before = Before(
            is_first=rollout.is_first,
            action=jax.tree.map(_shifted, start.action, rollout.action),
            reward=_shifted(start.reward, rollout.reward),
        )
        return self.obs_pipeline.replay(obs_state, start.connectors, rollout, before)


def _shifted(first: Array, rows: Array) -> Array:
    """The row before each, `[T, B, ...]`, of which `first` is before the first."""
    return jnp.concatenate([first[None], rows[:-1].astype(first.dtype)])


@dataclasses.dataclass(frozen=True, eq=False)
class Sampler(Acting):
    """An environment that is pure functions, and what acts in it."""

    env: VectorEnv

    def inputs(self, state: VectorState, num_steps: int, params: PyTree) -> ActInputs:
        """What the next steps draw from, `[num_steps, B]`, made all at once."""
        env = self.env.inputs(state, num_steps, params)
        return ActInputs(env=env, draws=jax.vmap(self.module.draw)(env.action_key))

    def step(
        self,
        actor: Actor,
        state: VectorState,
        carry: Carry,
        row: ActInputs,
        params: PyTree,
        explore: bool,
    ) -> tuple[VectorState, Carry, VectorStep, dict[str, Any]]:
        """Act once in every environment."""
        out = self.act(actor, state.obs, carry, state.is_first, state.index, row.draws, explore)
        action = self.action_pipeline(out[Columns.ACTIONS])
        new_state, step = self.env.step(state, action, row.env, params)
        new_carry = self.advance(out[Columns.STATE_OUT], step.reward, new_state.is_first)
        return new_state, new_carry, step, out

    def rollout(
        self,
        actor: Actor,
        state: VectorState,
        carry: Carry,
        params: PyTree,
        num_steps: int,
        explore: bool = True,
    ) -> tuple[VectorState, Carry, Rollout, EpisodeRecord]:
        """`num_steps` transitions of every environment, with the environment's own observations."""

        def body(c: _Carry, now: ActInputs) -> tuple[_Carry, tuple[Rollout, EpisodeRecord]]:
            state = c.env
            new_state, new_carry, step, out = self.step(
                actor, state, c.acting, now, params, explore
            )
            extras = {name: out[name] for name in RECORDED}
            row = Rollout(
                obs=state.obs,
                action=out[Columns.ACTIONS],
                reward=step.reward,
                terminated=step.terminated,
                truncated=step.truncated,
                final_obs=step.final_obs,
                is_first=state.is_first,
                mask=step.mask,
                extras=extras,
            )
            record = EpisodeRecord(
                ended=step.ended,
                episode_return=step.episode_return,
                episode_length=step.episode_length,
                env_step=state.count,
                fault=step.fault,
            )
            return _Carry(env=new_state, acting=new_carry), (row, record)

        start = _Carry(env=state, acting=carry)
        inputs = self.inputs(state, num_steps, params)
        end, (rollout, record) = jax.lax.scan(body, start, inputs)
        return end.env, end.acting, dataclasses.replace(rollout, carry_in=carry), record


def initial_env_index(num_envs: int) -> Int[Array, " B"]:
    """The places of all environments of a run."""
    return jnp.arange(num_envs, dtype=jnp.int32)


def blank_rollout(acting: Acting, actor: Actor, num_steps: int, num_envs: int) -> Rollout:
    """A rollout `[T, B, ...]` of nothing, shaped and typed as every runner records one.

    It comes from the spaces and from the module alone, so that it needs no environment.
    """
    obs = zeros_of(acting.obs_pipeline.space, (num_envs,))
    carry = acting.initial_carry(num_envs)
    flag, number = jnp.zeros((num_envs,), jnp.bool_), jnp.zeros((num_envs,), jnp.float32)
    keys = jax.random.split(jax.random.key(0), num_envs)
    index = jnp.arange(num_envs, dtype=jnp.int32)
    out = acting.act(actor, obs, carry, flag, index, acting.module.draw(keys), True)
    row = Rollout(
        obs=obs,
        action=out[Columns.ACTIONS],
        reward=number,
        terminated=flag,
        truncated=flag,
        final_obs=obs,
        is_first=flag,
        mask=flag,
        extras={name: out[name] for name in RECORDED},
    )
    rows = jax.tree.map(lambda x: jnp.broadcast_to(x[None], (num_steps, *x.shape)), row)
    return replace(rows, carry_in=carry)
