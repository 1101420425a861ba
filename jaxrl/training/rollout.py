"""Rollouts of a module in vectorized environments, as one scan for every algorithm."""

import dataclasses
import functools
from collections.abc import Collection
from functools import partial
from typing import Any, Self, TypeVar, cast

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Float, Int

from jaxrl.connectors.base import Before
from jaxrl.connectors.pipelines import ActionPipeline, ObservationPipeline, PreprocessedRollout
from jaxrl.core.dependence import find_dependence
from jaxrl.core.spaces import without_parts
from jaxrl.core.struct import pytree, replace, where_rows
from jaxrl.core.types import Columns, Key, Params, Progress, PyTree, Rollout
from jaxrl.distributions.from_space import describe_space
from jaxrl.envs.vector import StepInputs, VectorEnv, VectorState, VectorStep
from jaxrl.errors import SpaceError
from jaxrl.modules.rl_module import Moment, RLModule, make_zeros
from jaxrl.training.episode_stats import EpisodeRecord

RECORDED_COLUMNS = (Columns.ACTION_LOGP, Columns.ACTION_DIST_INPUTS, Columns.SEARCH_VALUE)
"""Columns that a rollout records in addition to the action, if the module's output has them."""


def select_recorded(out: dict[str, Any]) -> dict[str, PyTree]:
    """Return the columns of a module's output that a rollout records."""
    return {name: out[name] for name in RECORDED_COLUMNS if name in out}


StateT = TypeVar("StateT")


@pytree
class ActorState:
    """Inputs of acting that are constant during a rollout."""

    params: Params
    obs_state: PyTree
    hparams: dict[str, Array]
    progress: Progress


@pytree
class ActorCarry:
    """State of acting that each environment carries from step to step, `[B, ...]`.

    `module` is the module's recurrent state, None for a stateless module; `connectors` is the state
    of each observation connector. `action` (the module's) and `reward` belong to the previous step;
    they are None if no connector is temporal.
    """

    module: PyTree
    connectors: tuple[PyTree, ...]
    action: PyTree
    reward: Float[Array, " B"] | None


@pytree
class RolloutInputs:
    """Random inputs of steps, for the environments and for the module."""

    env: StepInputs
    draws: PyTree


@pytree
class _ScanCarry:
    env: VectorState
    acting: ActorCarry


@dataclasses.dataclass(frozen=True)
class AbsentParts:
    """Parts of the environment's Dict observation that no action depends on, and are not given.

    Attributes:
        names: Names of the parts.
        is_kept: Whether each leaf of the carry is kept; those that depend on the parts are not.
    """

    names: tuple[str, ...]
    is_kept: PyTree

    def drop(self, carry: PyTree) -> PyTree:
        """Return a carry with None for the leaves that are not kept."""
        return jax.tree.map(lambda keep, leaf: leaf if keep else None, self.is_kept, carry)

    def fill(self, carry: PyTree, blank: PyTree) -> PyTree:
        """Return a carry with the leaves of another one for those that are not kept."""
        return jax.tree.map(
            lambda keep, leaf, other: leaf if keep else other, self.is_kept, carry, blank
        )


@dataclasses.dataclass(frozen=True, eq=False)
class PolicyStep:
    """Module with its observation and action connectors, as pure functions of any environment.

    With `absent`, observations are acted on without these parts, whose place zeros take.
    """

    module: RLModule
    obs_pipeline: ObservationPipeline
    action_pipeline: ActionPipeline
    absent: AbsentParts | None = dataclasses.field(default=None, kw_only=True)

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """Space of the observations to act on."""
        return without_parts(self.obs_pipeline.space, self.absent_names)

    @property
    def absent_names(self) -> tuple[str, ...]:
        """Names of the parts that the environment's observations have and acting is not given."""
        return () if self.absent is None else self.absent.names

    def without_unread(self, given: Collection[str] = ()) -> Self:
        """Return the policy for observations without parts that are for a critic alone.

        A part that a connector makes something of for the policy stays.

        Args:
            given: Names of parts that observations have nevertheless.
        """
        if self.absent is not None:
            return dataclasses.replace(self, absent=None).without_unread(given)
        space, hidden = self.obs_pipeline.space, self.module.critic_only_observations
        if not hidden or not isinstance(space, spaces.Dict):
            return self
        is_read, carry_depends = self._find_dependence()
        names = (name for name in hidden if name in space.spaces and name not in given)
        absent = tuple(name for name in names if not any(jax.tree.leaves(is_read[name])))
        if not absent:
            return self
        flags = {
            name: jax.tree.map(lambda _, n=name: n in absent, is_read[name]) for name in is_read
        }
        lost = carry_depends & np.asarray(jax.tree.leaves(flags))
        structure = jax.tree.structure(jax.eval_shape(lambda: self.initial_carry(1)))
        kept = jax.tree.unflatten(structure, [not row.any() for row in lost])
        return dataclasses.replace(self, absent=AbsentParts(absent, kept))

    def fit(self, space: gymnasium.Space[Any]) -> Self:
        """Return the policy for observations of a space that may lack parts for a critic alone.

        Raises:
            SpaceError: If it differs otherwise from the space of the environment trained in.
        """
        if space == self.obs_pipeline.space:
            return self
        fitted = self.without_unread(space.spaces if isinstance(space, spaces.Dict) else ())
        if space != fitted.observation_space:
            raise SpaceError(
                f"Observations are {describe_space(space)}, but the module is trained for "
                f"{describe_space(self.obs_pipeline.space)}, and acts on "
                f"{describe_space(self.without_unread().observation_space)} at least: use an environment "
                "with the same spaces."
            )
        return fitted

    def _find_dependence(self) -> tuple[PyTree, Bool[np.ndarray, "c o"]]:
        """Return which leaves of observations decide the actions, and which the carry's leaves."""
        rows = 2

        def make_inputs(key: Key) -> tuple[PyTree, PyTree, PyTree]:
            params, statistics = self.module.init(key), self.obs_pipeline.init()
            obs = make_zeros(self.obs_pipeline.space, (rows,))
            is_first = jnp.zeros((rows,), jnp.bool_)
            return (params, statistics, is_first), obs, self.initial_carry(rows)

        def decide(constants: PyTree, obs: PyTree, carry: ActorCarry) -> tuple[PyTree, PyTree]:
            params, statistics, is_first = constants
            actor = ActorState(
                params=params, obs_state=statistics, hparams={}, progress=Progress.zeros()
            )
            index = make_env_index(rows)
            out = self.act(actor, obs, carry, is_first, index, None, explore=False)
            return (out[Columns.ACTIONS], select_recorded(out)), out[Columns.STATE_OUT]

        return find_dependence(decide, *jax.eval_shape(make_inputs, jax.random.key(0)))

    @functools.cached_property
    def param_shapes(self) -> Params:
        """Shapes and types of the module's parameters."""
        return jax.eval_shape(self.module.init, jax.random.key(0))

    def initial_carry(self, num_envs: int) -> ActorCarry:
        """Return the carry at the start of an episode in every environment."""
        carry = self._make_whole_carry(num_envs)
        return carry if self.absent is None else self.absent.drop(carry)

    def _make_whole_carry(self, num_envs: int) -> ActorCarry:
        has_memory = bool(self.obs_pipeline.temporal)
        return ActorCarry(
            module=self.module.initial_carry(num_envs),
            connectors=self.obs_pipeline.init_carry(num_envs),
            action=make_zeros(self.module.action_space, (num_envs,)) if has_memory else None,
            reward=jnp.zeros((num_envs,), jnp.float32) if has_memory else None,
        )

    def begin_rollout(self, actor: ActorState, env_index: Int[Array, " B"]) -> ActorState:
        """Return the inputs of acting for a rollout that explores.

        Args:
            actor: Parameters, connector statistics and hyperparameters.
            env_index: Index of each environment within the run.
        """
        moment = Moment(hparams=actor.hparams, progress=actor.progress, env_index=env_index)
        return replace(actor, params=self.module.make_acting_params(actor.params, moment))

    def act(
        self,
        actor: ActorState,
        obs: PyTree,
        carry: ActorCarry,
        is_first: Bool[Array, " B"],
        env_index: Int[Array, " B"],
        draws: PyTree,
        explore: bool,
    ) -> dict[str, Any]:
        """Compute the module's output for raw observations.

        Args:
            actor: Parameters, connector statistics and hyperparameters.
            obs: Observations of the environments, `[B, ...]`.
            carry: Carry before this step.
            is_first: Whether each observation starts an episode.
            env_index: Index of each environment within the run.
            draws: The module's random inputs.
            explore: Whether to explore.

        Returns:
            The module's output. `STATE_OUT` is the Carry after acting, which `advance` completes
            after the environments' step.
        """
        module = self._bind_module(actor)
        forward = module.forward_exploration if explore else module.forward_inference
        if self.absent is not None:
            space = cast(spaces.Dict, self.obs_pipeline.space).spaces
            zeros = {name: make_zeros(space[name], is_first.shape) for name in self.absent.names}
            obs = {**obs, **zeros}
            carry = self.absent.fill(carry, self._make_whole_carry(is_first.shape[0]))
        connectors, processed = self._preprocess(actor.obs_state, obs, carry, is_first)
        out = forward(
            actor.params,
            processed,
            carry.module,
            actor.hparams,
            actor.progress,
            env_index,
            draws,
        )
        if Columns.ACTION_LOGP not in out:
            dist = self.module.action_dist(out[Columns.ACTION_DIST_INPUTS], processed)
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
        after = after if self.absent is None else self.absent.drop(after)
        return {**out, Columns.STATE_OUT: after}

    def follow(
        self,
        actor: ActorState,
        obs: PyTree,
        carry: ActorCarry,
        is_first: Bool[Array, " B"],
        action: PyTree,
    ) -> tuple[dict[str, Any], PyTree]:
        """Compute the module's output without exploration, where another policy acted.

        Args:
            actor: Parameters, connector statistics and hyperparameters.
            obs: Observations of the environments, `[B, ...]`.
            carry: Carry before this step.
            is_first: Whether each observation starts an episode.
            action: The module's actions that were taken.

        Returns:
            The module's output, with the Carry after the action taken as `STATE_OUT`, which
            `advance` completes; and the observations as the module sees them.
        """
        connectors, processed = self._preprocess(actor.obs_state, obs, carry, is_first)
        out = self._bind_module(actor).forward_inference(
            actor.params, processed, carry.module, actor.hparams, actor.progress
        )
        taken = None
        if carry.reward is not None:
            taken = jax.tree.map(lambda old, new: new.astype(old.dtype), carry.action, action)
        after = replace(
            carry, module=out.get(Columns.STATE_OUT), connectors=connectors, action=taken
        )
        return {**out, Columns.STATE_OUT: after}, processed

    def _bind_module(self, actor: ActorState) -> RLModule:
        return self.module.bind(partial(self.obs_pipeline, actor.obs_state), self.action_pipeline)

    def _preprocess(
        self, obs_state: PyTree, obs: PyTree, carry: ActorCarry, is_first: Bool[Array, " B"]
    ) -> tuple[tuple[PyTree, ...], PyTree]:
        if carry.reward is None:
            return carry.connectors, self.obs_pipeline(obs_state, obs)
        before = Before(is_first=is_first, action=carry.action, reward=carry.reward)
        return self.obs_pipeline.step(obs_state, carry.connectors, obs, before)

    def advance(
        self, carry: ActorCarry, reward: Float[Array, " B"], is_first: Bool[Array, " B"]
    ) -> ActorCarry:
        """Return the carry after the environment step that followed `act`.

        Args:
            carry: `STATE_OUT` of `act`.
            reward: Rewards of the step.
            is_first: Whether each environment begins a new episode next.
        """
        module = carry.module
        if module is not None:
            blank = self.initial_carry(is_first.shape[0]).module
            module = where_rows(is_first, blank, module)
        last = None if carry.reward is None else jnp.asarray(reward, jnp.float32)
        return replace(carry, module=module, reward=last)

    def preprocess_rollout(self, obs_state: PyTree, rollout: Rollout) -> Rollout:
        """Return the rollout as the module saw it, with only the module's own carry."""
        return self._replace_obs(rollout, self._recompute(obs_state, rollout))

    def update_statistics(
        self, obs_state: PyTree, rollout: Rollout, axis_name: str | None
    ) -> tuple[PyTree, Rollout]:
        """Update the connector statistics with a rollout.

        Returns:
            The updated statistics, and the rollout as the module saw it.
        """
        seen = self._recompute(obs_state, rollout)
        updated = self.obs_pipeline.update(obs_state, seen.received, rollout.mask, axis_name)
        return updated, self._replace_obs(rollout, seen)

    def _replace_obs(self, rollout: Rollout, seen: PreprocessedRollout) -> Rollout:
        return replace(
            rollout,
            obs=seen.obs,
            final_obs=seen.final_obs,
            carry_in=self.get_recurrent_carry(rollout.carry_in),
        )

    def get_recurrent_carry(self, carry: ActorCarry | None) -> PyTree:
        """Return the part of a carry that matters to the loss; None if there is none."""
        if carry is None or not self.module.is_stateful:
            return None
        return self.module.get_recurrent_carry(carry.module)

    def with_envs(self, env: VectorEnv) -> "RolloutWorker":
        """Return the policy together with environments that it acts in."""
        return RolloutWorker(
            env=env,
            module=self.module,
            obs_pipeline=self.obs_pipeline,
            action_pipeline=self.action_pipeline,
            absent=self.absent,
        )

    def _recompute(self, obs_state: PyTree, rollout: Rollout) -> PreprocessedRollout:
        """Recompute the module's observations from the carry at the rollout's start."""
        start: ActorCarry | None = rollout.carry_in
        if start is None or start.reward is None:
            return self.obs_pipeline.preprocess_rollout(obs_state, (), rollout, None)
        before = Before(
            is_first=rollout.is_first,
            action=jax.tree.map(_shift_by_one, start.action, rollout.action),
            reward=_shift_by_one(start.reward, rollout.reward),
        )
        return self.obs_pipeline.preprocess_rollout(obs_state, start.connectors, rollout, before)


def _shift_by_one(first: Array, rows: Array) -> Array:
    """Shift rows `[T, B, ...]` by one step in time, with `first` before the first."""
    return jnp.concatenate([first[None], rows[:-1].astype(first.dtype)])


@dataclasses.dataclass(frozen=True, eq=False)
class RolloutWorker(PolicyStep):
    """Environments that are pure functions, with the policy that acts in them."""

    env: VectorEnv

    def sample_inputs(self, state: VectorState, num_steps: int, params: PyTree) -> RolloutInputs:
        """Draw the random inputs of the next steps at once, `[num_steps, B]`."""
        env = self.env.make_step_inputs(state, num_steps, params)
        return RolloutInputs(env=env, draws=jax.vmap(self.module.draw)(env.action_key))

    def step(
        self,
        actor: ActorState,
        state: VectorState,
        carry: ActorCarry,
        row: RolloutInputs,
        params: PyTree,
        explore: bool,
    ) -> tuple[VectorState, ActorCarry, VectorStep, dict[str, Any]]:
        """Act once in every environment."""
        out = self.act(actor, state.obs, carry, state.is_first, state.index, row.draws, explore)
        action = self.action_pipeline(out[Columns.ACTIONS])
        new_state, step = self.env.step(state, action, row.env, params)
        new_carry = self.advance(out[Columns.STATE_OUT], step.reward, new_state.is_first)
        return new_state, new_carry, step, out

    def rollout(
        self,
        actor: ActorState,
        state: VectorState,
        carry: ActorCarry,
        params: PyTree,
        num_steps: int,
        explore: bool = True,
    ) -> tuple[VectorState, ActorCarry, Rollout, EpisodeRecord]:
        """Record `num_steps` transitions of every environment, with raw observations."""

        def body(
            c: _ScanCarry, now: RolloutInputs
        ) -> tuple[_ScanCarry, tuple[Rollout, EpisodeRecord]]:
            state = c.env
            new_state, new_carry, step, out = self.step(
                actor, state, c.acting, now, params, explore
            )
            row = Rollout(
                obs=state.obs,
                action=out[Columns.ACTIONS],
                reward=step.reward,
                terminated=step.terminated,
                truncated=step.truncated,
                final_obs=step.final_obs,
                is_first=state.is_first,
                mask=step.mask,
                extras=select_recorded(out),
            )
            record = EpisodeRecord(
                ended=step.ended,
                episode_return=step.episode_return,
                episode_length=step.episode_length,
                env_step=state.count,
                fault=step.fault,
            )
            return _ScanCarry(env=new_state, acting=new_carry), (row, record)

        if explore:
            actor = self.begin_rollout(actor, state.index)
        start = _ScanCarry(env=state, acting=carry)
        inputs = self.sample_inputs(state, num_steps, params)
        end, (rollout, record) = jax.lax.scan(body, start, inputs)
        return end.env, end.acting, dataclasses.replace(rollout, carry_in=carry), record

    def end_rollout(self, state: StateT, data: object, axis_name: str | None) -> StateT:
        """Return the state after a rollout, of which nothing else is counted."""
        del data, axis_name
        return state


def make_env_index(num_envs: int) -> Int[Array, " B"]:
    """Return the indices of all environments of a run."""
    return jnp.arange(num_envs, dtype=jnp.int32)


def make_blank_rollout(
    policy_step: PolicyStep, actor: ActorState, num_steps: int, num_envs: int
) -> Rollout:
    """Return an all-zero rollout `[T, B, ...]`, shaped and typed as every runner records it.

    It is derived from the spaces and the module alone, so it needs no environment.
    """
    obs = make_zeros(policy_step.obs_pipeline.space, (num_envs,))
    carry = policy_step.initial_carry(num_envs)
    flag, number = jnp.zeros((num_envs,), jnp.bool_), jnp.zeros((num_envs,), jnp.float32)
    keys = jax.random.split(jax.random.key(0), num_envs)
    index = jnp.arange(num_envs, dtype=jnp.int32)
    actor = policy_step.begin_rollout(actor, index)
    out = policy_step.act(actor, obs, carry, flag, index, policy_step.module.draw(keys), True)
    row = Rollout(
        obs=obs,
        action=out[Columns.ACTIONS],
        reward=number,
        terminated=flag,
        truncated=flag,
        final_obs=obs,
        is_first=flag,
        mask=flag,
        extras=select_recorded(out),
    )
    rows = jax.tree.map(lambda x: jnp.broadcast_to(x[None], (num_steps, *x.shape)), row)
    return replace(rows, carry_in=carry)
