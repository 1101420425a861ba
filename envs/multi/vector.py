"""Vectorization of a multi-agent environment: who is present, ends, auto-reset and statistics.

Keys, auto-reset and the treatment of faults are those of `jaxrl.envs.vector`: an environment of one
agent does the same in both, to the bit.
"""

import dataclasses
import functools
import operator
from collections.abc import Mapping
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from jaxrl.core.struct import pytree, replace, where_rows
from jaxrl.core.types import Key, Keys, PyTree
from jaxrl.envs.multi.base import ALL, Acting, MultiAgentJaxEnv, MultiStart, MultiStep
from jaxrl.envs.vector import (
    CROWD,
    CUT_AND_ACTS,
    NO_CHOICE,
    NO_FAULT,
    NOT_ZERO_SUM,
    OBS_FAULT,
    REWARD_FAULT,
    WAITING,
    AutoReset,
    StepInputs,
    choices_fit,
    derive_env_keys,
    finite_rows,
    zero_non_finite,
)

_RTOL = 1e-3
"""Part of all rewards' size by which those of a game may differ from a sum of 0."""

Flags = dict[str, Bool[Array, " B *members"]]
Numbers = dict[str, Float[Array, " B *members"]]


@pytree
class MultiVectorState:
    """State of `B` running copies; dictionaries have the environment's entries.

    `acts` says who acts on `obs`. `agent_return` and `agent_length` (its own actions) count the
    current agent-episode, `episode_return` (the sum over agents) and `episode_length` (steps) the
    copy's episode. `global_state` is None if it is not kept. `index` and `faulty` are those of
    `VectorState`.
    """

    env: PyTree
    obs: dict[str, PyTree]
    acts: Flags
    global_state: PyTree
    key: Keys
    index: Int[Array, " B"]
    count: UInt32[Array, " B"]
    faulty: Bool[Array, " B"]
    agent_return: Numbers
    agent_length: dict[str, Int[Array, " B *members"]]
    episode_return: Float[Array, " B"]
    episode_length: Int[Array, " B"]

    @property
    def is_first(self) -> Flags:
        """Return who is not present yet: one that acts begins an agent-episode, to its end."""
        return {name: length == 0 for name, length in self.agent_length.items()}


@pytree
class MultiVectorStep:
    """One step of each copy; whether the agents acted before it is in the state before it.

    Attributes:
        present: Whether an agent takes part in the step: it acts, or it acted before and waits.
        reward: Rewards of the agents present, 0 for others.
        terminated: Whether the step ends an agent that is present, by itself or with the episode.
        truncated: The same for cuts; both may be set, as by a time limit at a termination.
        final_obs: Observation after the step and before any reset, an agent's successor.
        final_global_state: Global state after the step and before any reset, None if not kept.
        acts: Whether an agent acts next in the same episode.
        mask: Whether the step is a transition; a copy with a fault is reset instead.
        agent_ended: Whether an agent-episode ended that counts.
        agent_return: Return of the agent-episode so far, this step included.
        agent_length: Number of its actions.
        ended: Whether the episode ended that counts.
        episode_return: Sum of all agents' rewards in the episode so far.
        episode_length: Number of steps of the episode so far.
        fault: Cause of a reset, or number of a breach of the contract; see `jaxrl.envs.vector`.
    """

    present: Flags
    reward: Numbers
    terminated: Flags
    truncated: Flags
    final_obs: dict[str, PyTree]
    final_global_state: PyTree
    acts: Flags
    mask: Bool[Array, " B"]
    agent_ended: Flags
    agent_return: Numbers
    agent_length: dict[str, Int[Array, " B *members"]]
    ended: Bool[Array, " B"]
    episode_return: Float[Array, " B"]
    episode_length: Int[Array, " B"]
    fault: Int[Array, " B"]


@pytree
class _Ends:
    """Ends of the agents that are present, and of the episodes."""

    terminated: Flags
    truncated: Flags
    over: Bool[Array, " B"]


@dataclasses.dataclass(frozen=True, eq=False)
class MultiVectorEnv(AutoReset):
    """Pure `reset` and `step` of many copies of a multi-agent environment.

    A copy in which the reward or observation of an agent that is present is not finite is reset;
    that step is no transition (`mask` False) of any agent, its episode is dropped, and `fault`
    holds the cause. Values of absent agents are ignored.

    Attributes:
        keeps_global_state: Whether states and steps hold the environment's global state.
        acting: Which agents act at a step, see `find_acting`.
        obs_spaces: Observation spaces by entry, if their choices are checked.
        is_zero_sum: Whether rewards have to sum to 0 where all agents are present.
    """

    env: MultiAgentJaxEnv[Any, Any]
    keeps_global_state: bool = False
    acting: Acting = "some"
    obs_spaces: Mapping[str, gymnasium.Space[Any]] = dataclasses.field(
        default_factory=dict[str, gymnasium.Space[Any]]
    )
    is_zero_sum: bool = False

    def reset(self, key: Key, index: Int[Array, " B"], params: PyTree) -> MultiVectorState:
        """Return first states of the copies with indices `index`. Consumes the key."""
        reset_keys, streams = derive_env_keys(key, index)
        env_state, start = jax.vmap(self.env.reset, (0, None))(reset_keys, params)
        rows = index.shape[0]
        global_state = self._global_state(env_state, params)
        return MultiVectorState(
            env=env_state,
            obs=zero_non_finite(start.obs),
            acts=start.acts,
            global_state=zero_non_finite(global_state),
            faulty=~_all_finite(start.obs, start.acts, global_state),
            key=streams,
            index=index.astype(jnp.int32),
            count=jnp.zeros((rows,), jnp.uint32),
            agent_return=_zeros(start.acts, jnp.float32),
            agent_length=_zeros(start.acts, jnp.int32),
            episode_return=jnp.zeros((rows,), jnp.float32),
            episode_length=jnp.zeros((rows,), jnp.int32),
        )

    def step(
        self,
        state: MultiVectorState,
        actions: dict[str, PyTree],
        inputs: StepInputs,
        params: PyTree,
    ) -> tuple[MultiVectorState, MultiVectorStep]:
        """Step every copy, and reset those whose episode ended."""
        env_state, out = jax.vmap(self.env.step, (0, 0, 0, None))(
            inputs.step_key, state.env, actions, params
        )
        names = list(state.acts)
        is_first = state.is_first
        present = {name: ~is_first[name] | state.acts[name] for name in names}
        global_state = self._global_state(env_state, params)
        # Rewards may be integers, or weakly typed.
        reward = {name: jnp.asarray(out.reward[name]).astype(jnp.float32) for name in names}
        finite_reward = _all_finite(reward, present, None)
        seen = {name: present[name] | out.acts[name] for name in names}
        finite_obs = _all_finite(out.obs, seen, global_state) & ~state.faulty
        mask = finite_reward & finite_obs
        counts = {name: present[name] & _expand(mask, present[name]) for name in names}
        reward = {name: jnp.where(counts[name], reward[name], 0.0) for name in names}
        ends = _find_ends(out, present, mask)
        step = MultiVectorStep(
            present=present,
            reward=reward,
            terminated=ends.terminated,
            truncated=ends.truncated,
            final_obs=zero_non_finite(where_rows(mask, out.obs, state.obs)),
            final_global_state=where_rows(mask, global_state, state.global_state),
            acts={name: out.acts[name] & ~_expand(ends.over, out.acts[name]) for name in names},
            mask=mask,
            agent_ended={
                name: (ends.terminated[name] | ends.truncated[name]) & counts[name]
                for name in names
            },
            agent_return={name: state.agent_return[name] + reward[name] for name in names},
            agent_length={
                name: state.agent_length[name] + (state.acts[name] & counts[name]) for name in names
            },
            ended=ends.over & mask,
            episode_return=state.episode_return + _sum_over_agents(reward),
            episode_length=state.episode_length + mask,
            fault=jnp.where(
                mask,
                self._find_breach(state, out, ends, present, reward),
                jnp.where(finite_obs, REWARD_FAULT, OBS_FAULT),
            ),
        )
        after = MultiStart(obs=out.obs, acts=out.acts)
        env_state, after = self.reset_ended(inputs, ends.over, env_state, after, params)
        return self._advance(state, step, ends, env_state, after, params), step

    def _find_breach(
        self,
        state: MultiVectorState,
        out: MultiStep,
        ends: _Ends,
        present: Flags,
        reward: Numbers,
    ) -> Int[Array, " B"]:
        """Return the number of what a step shows to be declared wrongly, by copy."""
        breach = jnp.full(ends.over.shape, NO_FAULT, jnp.int32)
        if self.env.max_acting is not None:
            number = sum(_per_copy(flag).sum(axis=1) for flag in state.acts.values())
            breach = jnp.where(number > self.env.max_acting, CROWD, breach)
        if self.is_zero_sum:
            everybody = functools.reduce(operator.and_, map(_all_members, present.values()))
            size = _sum_over_agents({name: jnp.abs(each) for name, each in reward.items()})
            is_off = jnp.abs(_sum_over_agents(reward)) > _RTOL * size
            breach = jnp.where(everybody & is_off, NOT_ZERO_SUM, breach)
        for name, here in present.items():
            terminated, truncated = ends.terminated[name], ends.truncated[name]
            goes_on, acts = _expand(~ends.over, here), out.acts[name]
            space = self.obs_spaces.get(name)
            acted_on = ~state.acts[name] | choices_fit(space, state.obs[name], here.ndim)
            last = terminated | ~truncated | choices_fit(space, out.obs[name], here.ndim)
            breach = jnp.where(_all_members(acted_on & last), breach, NO_CHOICE)
            again = _per_copy(truncated & ~terminated & acts & goes_on).any(axis=1)
            breach = jnp.where(again, CUT_AND_ACTS, breach)
            if self.acting == "all":
                waits = _per_copy(here & ~(terminated | truncated) & ~acts & goes_on).any(axis=1)
                breach = jnp.where(waits, WAITING, breach)
        return breach

    def _advance(
        self,
        state: MultiVectorState,
        step: MultiVectorStep,
        ends: _Ends,
        env_state: PyTree,
        after: MultiStart,
        params: PyTree,
    ) -> MultiVectorState:
        """Return the state after a step, with what is observed and who acts after any reset."""
        names = list(state.acts)
        gone = {name: ends.terminated[name] | ends.truncated[name] for name in names}
        global_state = self._global_state(env_state, params)
        return replace(
            state,
            env=env_state,
            obs=zero_non_finite(after.obs),
            acts=after.acts,
            global_state=zero_non_finite(global_state),
            faulty=~_all_finite(after.obs, after.acts, global_state),
            count=state.count + 1,
            agent_return={
                name: jnp.where(gone[name], 0.0, step.agent_return[name]) for name in names
            },
            agent_length={
                name: jnp.where(gone[name], 0, step.agent_length[name]) for name in names
            },
            episode_return=jnp.where(ends.over, 0.0, step.episode_return),
            episode_length=jnp.where(ends.over, 0, step.episode_length),
        )

    def _global_state(self, env_state: PyTree, params: PyTree) -> PyTree:
        if not self.keeps_global_state:
            return None
        return jax.vmap(self.env.global_state, (0, None))(env_state, params)


def _zeros(like: Flags, dtype: Any) -> dict[str, Any]:
    return {name: jnp.zeros(flag.shape, dtype) for name, flag in like.items()}


def _expand(rows: Bool[Array, " B"], like: Bool[Array, " B *members"]) -> Bool[Array, " B *_"]:
    """Return one flag a copy with the axes of an entry, for broadcasting."""
    return rows.reshape(rows.shape + (1,) * (like.ndim - 1))


def _per_copy(flag: Bool[Array, " B *members"]) -> Bool[Array, "B m"]:
    """Return the flags of an entry with one axis of members."""
    return flag.reshape(flag.shape[0], -1)


def _all_members(flag: Bool[Array, " B *members"]) -> Bool[Array, " B"]:
    return _per_copy(flag).all(axis=1)


def _all_finite(values: dict[str, PyTree], matters: Flags, whole: PyTree) -> Bool[Array, " B"]:
    """Return whether all values that matter, and those of the whole copy, are finite."""
    rows = [
        (finite_rows(values[name], flag.ndim) | ~flag).all(axis=tuple(range(1, flag.ndim)))
        for name, flag in matters.items()
    ]
    if whole is not None:
        rows.append(finite_rows(whole))
    return functools.reduce(operator.and_, rows)


def _find_ends(out: MultiStep, present: Flags, mask: Bool[Array, " B"]) -> _Ends:
    """Find who ends: by its own flag, else as the episode does; a fault truncates everybody."""
    all_terminated, all_truncated = out.terminated[ALL] & mask, out.truncated[ALL] | ~mask
    terminated: Flags = {}
    truncated: Flags = {}
    for name, here in present.items():
        by_itself = out.terminated[name] | out.truncated[name]
        with_all = _expand(all_terminated, here)
        ends = jnp.where(by_itself, out.terminated[name], with_all)
        terminated[name] = here & ends & _expand(mask, here)
        truncated[name] = here & (out.truncated[name] | _expand(all_truncated, here))
    return _Ends(terminated=terminated, truncated=truncated, over=all_terminated | all_truncated)


def _sum_over_agents(reward: Numbers) -> Float[Array, " B"]:
    sums = [value.sum(axis=tuple(range(1, value.ndim))) for value in reward.values()]
    return functools.reduce(operator.add, sums)
