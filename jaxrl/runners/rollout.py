"""Rolling out a module in vectorised environments: one scan, for every algorithm."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jaxrl.connectors.base import ActionPipeline, ObservationPipeline
from jaxrl.core.rl_module import RLModule
from jaxrl.core.struct import pytree
from jaxrl.core.types import Columns, Params, Progress, PyTree, Rollout
from jaxrl.envs.vector import StepInputs, VectorEnv, VectorState, VectorStep, where_rows
from jaxrl.runners.ring import EpisodeRecord

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
class ActInputs:
    """What steps draw from: the environments' part and the module's."""

    env: StepInputs
    draws: PyTree


@pytree
class _Carry:
    env: VectorState
    module: PyTree


@dataclasses.dataclass(frozen=True, eq=False)
class Acting:
    """The module and the connectors on both its sides, as pure functions of any environment."""

    module: RLModule
    obs_pipeline: ObservationPipeline
    action_pipeline: ActionPipeline

    def act(
        self,
        actor: Actor,
        obs: PyTree,
        carry: PyTree,
        env_index: Int[Array, " B"],
        draws: PyTree,
        explore: bool,
    ) -> dict[str, Any]:
        """The module's output for raw observations `[B, ...]`."""
        forward = self.module.forward_exploration if explore else self.module.forward_inference
        observed = self.obs_pipeline(actor.obs_state, obs)
        out = forward(
            actor.params,
            observed,
            carry,
            actor.hparams,
            actor.progress,
            env_index,
            draws,
        )
        if Columns.ACTION_LOGP not in out:
            dist = self.module.action_dist(out[Columns.ACTION_DIST_INPUTS], observed)
            out = {**out, Columns.ACTION_LOGP: dist.log_prob(out[Columns.ACTIONS])}
        return out

    def observed(self, obs_state: PyTree, rollout: Rollout) -> Rollout:
        """The rollout with the observations that the module saw."""
        return dataclasses.replace(
            rollout,
            obs=self.obs_pipeline(obs_state, rollout.obs),
            final_obs=self.obs_pipeline(obs_state, rollout.final_obs),
        )


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
        carry: PyTree,
        row: ActInputs,
        params: PyTree,
        explore: bool,
    ) -> tuple[VectorState, PyTree, VectorStep, dict[str, Any]]:
        """Act once in every environment; the module's carry starts anew where an episode ended."""
        out = self.act(actor, state.obs, carry, state.index, row.draws, explore)
        action = self.action_pipeline(out[Columns.ACTIONS])
        new_state, step = self.env.step(state, action, row.env, params)
        new_carry = out.get(Columns.STATE_OUT)
        if new_carry is not None:
            blank = self.module.initial_carry(state.index.shape[0])
            new_carry = where_rows(new_state.is_first, blank, new_carry)
        return new_state, new_carry, step, out

    def rollout(
        self,
        actor: Actor,
        state: VectorState,
        carry: PyTree,
        params: PyTree,
        num_steps: int,
        explore: bool = True,
    ) -> tuple[VectorState, PyTree, Rollout, EpisodeRecord]:
        """`num_steps` transitions of every environment, with the environment's own observations."""

        def body(c: _Carry, now: ActInputs) -> tuple[_Carry, tuple[Rollout, EpisodeRecord]]:
            state = c.env
            new_state, module_carry, step, out = self.step(
                actor, state, c.module, now, params, explore
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
            return _Carry(env=new_state, module=module_carry), (row, record)

        start = _Carry(env=state, module=carry)
        inputs = self.inputs(state, num_steps, params)
        end, (rollout, record) = jax.lax.scan(body, start, inputs)
        return end.env, end.module, dataclasses.replace(rollout, carry_in=carry), record


def initial_env_index(num_envs: int) -> Int[Array, " B"]:
    """The places of all environments of a run."""
    return jnp.arange(num_envs, dtype=jnp.int32)
