"""Check of a multi-agent environment against everything that the compiled loop assumes about it."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, PyTree
from jaxrl.envs.multi.base import ALL, Entry, MultiAgentJaxEnv, get_entries
from jaxrl.envs.multi.contract import check_multi_signatures, find_acting
from jaxrl.envs.multi.made import MadeMultiEnv
from jaxrl.envs.space_checks import check_values
from jaxrl.errors import EnvError
from jaxrl.testing.short_runs import (
    Trajectory,
    Unroll,
    check_runs,
    find_difference,
    get_live_mask,
    jit_quickly,
    make_keys,
    run_checked,
    sample_actions,
)


@pytree
class _Actions:
    """Actions of those that act, and of those that do not."""

    acting: dict[str, PyTree]
    idle: dict[str, PyTree]


def check_multi_env(
    made: MadeMultiEnv, *, num_steps: int, num_envs: int, seed: int, check_auto_reset: bool
) -> None:
    """Check an environment of several agents with random actions and raise at the first violation.

    Beyond what is checked of every environment: dictionaries have every agent's entry; actions of
    agents that do not act are ignored; observations lie in their spaces while an agent is present,
    and global states in theirs; whoever is present acts where all act, and at most `max_acting` act
    otherwise; an agent that was truncated does not act on its last observation. A warning is given
    if nobody is left and the episode goes on.

    Args:
        made: The environment.
        num_steps: Steps per environment.
        num_envs: Number of vectorized environments.
        seed: Seed of keys and actions.
        check_auto_reset: Whether to check that an end does not look like a reset.

    Raises:
        EnvError: If the environment violates the contract.
    """
    check_multi_signatures(made)
    entries = get_entries(made.env)

    def sample(seed: int) -> dict[str, PyTree]:
        return {
            entry.key: _sample_entry(made, entry, num_envs, num_steps, seed + 97 * index)
            for index, entry in enumerate(entries)
        }

    acting, unroll = sample(seed), _unroll(made.env)
    trajectory = check_runs(
        made,
        unroll,
        _Actions(acting=acting, idle=acting),
        lambda trajectory: _check_values(made, entries, trajectory),
        seed=seed,
        check_auto_reset=check_auto_reset,
    )
    _check_presence(made, entries, trajectory)
    other = run_checked(
        made.id,
        jit_quickly(jax.vmap(unroll, in_axes=(0, 0, None))),
        make_keys(seed, num_envs),
        _Actions(acting=acting, idle=sample(seed + 1)),
        made.params,
    )
    _check_idle_actions(made.id, entries, trajectory, other)


def _sample_entry(
    made: MadeMultiEnv, entry: Entry, num_envs: int, num_steps: int, seed: int
) -> PyTree:
    """Sample actions `[B, T, ...]` of an entry."""
    space = made.env.action_space(entry.agents[0], made.params)
    if not entry.is_kind:
        return sample_actions(space, num_envs, num_steps, seed)
    members = len(entry.agents)
    sampled = sample_actions(space, num_envs, num_steps * members, seed)
    return jax.tree.map(lambda x: x.reshape(num_envs, num_steps, members, *x.shape[2:]), sampled)


def _unroll(env: MultiAgentJaxEnv[Any, Any]) -> Unroll:
    """Return a function that resets one environment and steps it without further resets."""

    def unroll(key: Key, actions: _Actions, params: PyTree) -> Trajectory:
        key_reset, key_steps = jax.random.split(key)
        first_state, start = env.reset(key_reset, params)

        def step(carry: dict[str, Any], inputs: dict[str, Any]) -> Any:
            key = jax.random.fold_in(key_steps, inputs["index"])
            chosen = _choose(carry["acts"], inputs["actions"])
            state, step = env.step(key, carry["state"], chosen, params)
            return {"state": state, "acts": step.acts}, {"state": state, "step": step}

        indices = jnp.arange(len(jax.tree.leaves(actions)[0]), dtype=jnp.int32)
        _, rows = jax.lax.scan(
            step,
            {"state": first_state, "acts": start.acts},
            {"index": indices, "actions": actions},
        )
        steps = rows["step"]
        return Trajectory(
            first_state=first_state,
            first_obs=start.obs,
            states=rows["state"],
            steps=steps,
            ended=steps.terminated[ALL] | steps.truncated[ALL],
            first_acts=start.acts,
        )

    return unroll


def _choose(acts: dict[str, Any], actions: _Actions) -> dict[str, PyTree]:
    """Return the actions for those that act and the idle ones for all others."""

    def choose(name: str) -> PyTree:
        flag = acts[name]
        return jax.tree.map(
            lambda x, y: jnp.where(flag.reshape(flag.shape + (1,) * (x.ndim - flag.ndim)), x, y),
            actions.acting[name],
            actions.idle[name],
        )

    return {name: choose(name) for name in acts}


def _check_idle_actions(
    name: str, entries: tuple[Entry, ...], first: Trajectory, second: Trajectory
) -> None:
    """Compare what is seen of two runs that differ in the actions of agents that do not act."""
    live = get_live_mask(first)
    path = find_difference(
        _get_visible(entries, first, live), _get_visible(entries, second, live), rtol=0.0
    )
    if path is not None:
        raise EnvError(
            f"{name}: the action of an agent that does not act changes {path}; step must ignore it."
        )


def _get_visible(entries: tuple[Entry, ...], trajectory: Trajectory, live: np.ndarray) -> PyTree:
    """Return what steps up to the first end show, with zeros for absent agents."""
    steps = trajectory.steps
    visible: dict[str, dict[str, PyTree]] = {"acts": steps.acts, "over": {ALL: trajectory.ended}}
    for entry in entries:
        walk = _walk(entry, trajectory)
        present, seen = walk["present"], walk["present"] | walk["acts_next"]
        for what, at in (
            ("obs", seen),
            ("reward", present),
            ("terminated", present),
            ("truncated", present),
        ):
            value = getattr(steps, what)[entry.key]
            visible.setdefault(what, {})[entry.key] = jax.tree.map(
                lambda x, at=at: np.where(at.reshape(at.shape + (1,) * (x.ndim - at.ndim)), x, 0),
                value,
            )
    return jax.tree.map(lambda x: np.asarray(x)[live], visible)


def _walk(entry: Entry, trajectory: Trajectory) -> dict[str, np.ndarray]:
    """Return who acts, is present, and ends at each step, `[B, T, *members]`."""
    steps = trajectory.steps
    first, later = np.asarray(trajectory.first_acts[entry.key]), np.asarray(steps.acts[entry.key])
    acts = np.concatenate([first[:, None], later[:, :-1]], axis=1)
    all_ends = np.asarray(trajectory.ended).reshape(acts.shape[:2] + (1,) * (acts.ndim - 2))
    truncated = np.asarray(steps.truncated[entry.key])
    ends = np.asarray(steps.terminated[entry.key]) | truncated | all_ends
    present, begun = np.zeros_like(acts), np.zeros_like(acts[:, 0])
    for t in range(acts.shape[1]):
        present[:, t] = begun | acts[:, t]
        begun = present[:, t] & ~ends[:, t]
    return {
        "acts": acts,
        "acts_next": later,
        "present": present,
        "ends": present & ends,
        "truncated": present & truncated,
        "stays": present & ~ends,
    }


def _check_values(made: MadeMultiEnv, entries: tuple[Entry, ...], trajectory: Trajectory) -> None:
    """Check observations and rewards of whoever is present, and global states."""
    name, params, live = made.id, made.params, get_live_mask(trajectory)
    for entry in entries:
        space = made.env.observation_space(entry.agents[0], params)
        at = f"[{entry.key!r}]"
        acts = np.asarray(trajectory.first_acts[entry.key])
        first = jax.tree.map(lambda x, at=acts: np.asarray(x)[at], trajectory.first_obs[entry.key])
        check_values(f"{name}: reset's obs{at}", space, first)
        walk = _walk(entry, trajectory)
        alive = live.reshape(live.shape + (1,) * (walk["acts"].ndim - 2))
        seen = (walk["present"] | walk["acts_next"]) & alive
        obs = jax.tree.map(lambda x, at=seen: np.asarray(x)[at], trajectory.steps.obs[entry.key])
        check_values(f"{name}: step's obs{at}", space, obs)
        reward = np.asarray(trajectory.steps.reward[entry.key])[walk["present"] & alive]
        if not np.all(np.isfinite(reward)):
            raise EnvError(f"{name}: reward{at} is {reward[~np.isfinite(reward)][0]} at some step.")
    space = made.env.state_space(params)
    if space is not None:
        show = jax.vmap(jax.vmap(made.env.global_state, (0, None)), (0, None))
        states = jit_quickly(show)(trajectory.states, params)
        live_states = jax.tree.map(lambda x: np.asarray(x)[live], states)
        check_values(f"{name}: global_state", space, live_states)


def _check_presence(made: MadeMultiEnv, entries: tuple[Entry, ...], trajectory: Trajectory) -> None:
    """Check who acts and when agents end."""
    name, env, live = made.id, made.env, get_live_mask(trajectory)
    goes_on = live & ~np.asarray(trajectory.ended)
    acting, present = np.zeros(live.shape, int), np.zeros(live.shape, int)
    acting_at_once = find_acting(made) == "all"
    for entry in entries:
        walk = _walk(entry, trajectory)
        alive = goes_on.reshape(live.shape + (1,) * (walk["acts"].ndim - 2))
        if acting_at_once and (walk["stays"] & ~walk["acts_next"] & alive).any():
            raise EnvError(
                f"{name}: {entry.key!r} is present and does not act; set acting='some', or end it."
            )
        if (walk["truncated"] & walk["acts_next"] & alive).any():
            raise EnvError(
                f"{name}: {entry.key!r} was truncated and acts on its last observation; it may "
                "come again one step later."
            )
        acting += walk["acts"].reshape(*live.shape, -1).sum(axis=2)
        present += walk["present"].reshape(*live.shape, -1).sum(axis=2)
    most = acting[live].max()
    if env.max_acting is not None and most > env.max_acting:
        raise EnvError(f"{name}: {most} agents act at one step, and max_acting={env.max_acting}.")
    if ((present == 0) & goes_on).any():
        warnings.warn(
            f"{name}: nobody is present at some steps, and the episode goes on; set "
            f"terminated['{ALL}'] with the last agent's end, unless others come.",
            stacklevel=4,
        )
