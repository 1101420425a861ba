"""Check of an environment, of one agent or of several, against all that its runners assume."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool
from numpy.typing import ArrayLike

from jaxrl.buffers.hindsight import ACHIEVED_GOAL, DESIRED_GOAL
from jaxrl.core.keys import make_key
from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, Keys, PyTree
from jaxrl.envs.contract import check_signatures, find_acting
from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.multi.base import (
    ALL,
    Entry,
    MultiStep,
    get_entries,
)
from jaxrl.envs.multi.host_made import MadeMultiHostEnv
from jaxrl.envs.multi.made import ONLY_AGENT, MadeMultiEnv, OneAgentEnv
from jaxrl.envs.registry import EnvSpec, Made, MadeEnv, make_any
from jaxrl.envs.space_checks import check_values
from jaxrl.envs.wrappers import TimeLimitState, find_compute_reward
from jaxrl.errors import EnvError
from jaxrl.runtime.devices import claim_cpu_devices
from jaxrl.testing.check_host_env import check_host_env

# Compilation dominates, since the programs run for a few steps only.
_COMPILER_OPTIONS = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
_NUM_RESETS = 64
_RTOL = 1e-3
"""Differences, of the largest value, by which a batch may differ from single environments: programs
round differently, and a simulation of many steps within a reset or a step amplifies that."""
_STATE_RTOL = 1e-2
"""The same of states, which hold forces and accelerations of a solver that stops at a tolerance."""

ArrayT = TypeVar("ArrayT", Array, np.ndarray)
ResultT = TypeVar("ResultT")


def check_env(
    env: EnvSpec | Made,
    env_config: Mapping[str, Any] | None = None,
    *,
    num_steps: int = 24,
    num_envs: int = 3,
    seed: int = 0,
    check_auto_reset: bool = True,
) -> None:
    """Check an environment with random actions and raise at the first violation.

    The check covers: spaces are gymnasium's; observations match their space in structure, dtype,
    shape and range, after resets and steps; rewards are float32 scalars, `terminated` and
    `truncated` bool scalars; nothing is weakly typed; the state has the same structure and dtypes
    after a reset and after a step; `params` are traced, not baked in; equal keys give equal
    results; an environment behaves under `vmap` as it does alone; the last observation of an
    episode is the final one, not that of a reset; `compute_reward`, if there is one, gives what the
    steps do. A warning is given if the environment does not use its key, or if it neither ends nor
    has a time limit.

    With several agents: dictionaries have every agent's entry; actions of agents that do not act
    are ignored; observations lie in their spaces while an agent is present, and global states in
    theirs; whoever is present acts where all act, and at most `max_acting` act otherwise; an agent
    that was truncated does not act on its last observation. A warning is given if nobody is left
    and the episode goes on.

    An environment written in Python is checked against the needs of host runners: equal seeds and
    actions give equal steps, even beside other copies in the same process, and no episode exceeds
    the time limit. A warning is given if it does not depend on its seed, neither ends nor has a time
    limit, always terminates after the same number of steps, or cannot be sent to another process;
    with several agents also if one never acted, or got a reward without an action.

    Args:
        env: Any argument of `jaxrl.envs.make_any`, or its result.
        env_config: Environment config, as in `make_any`.
        num_steps: Steps per environment; enough for some episodes to end.
        num_envs: Number of vectorized environments.
        seed: Seed of keys and actions.
        check_auto_reset: Whether to check that an end does not look like a reset; False for an
            environment whose episodes may end in an initial state.

    Raises:
        EnvError: If the environment violates the contract.
    """
    claim_cpu_devices()  # so that algorithms built after the check have them
    is_made = isinstance(env, MadeEnv | MadeHostEnv | MadeMultiEnv | MadeMultiHostEnv)
    made = env if is_made else make_any(env, env_config)
    if isinstance(made, MadeHostEnv | MadeMultiHostEnv):
        check_host_env(made, num_steps=num_steps, num_envs=num_envs, seed=seed)
        return
    check_signatures(made)
    check = _Check(made, num_envs=num_envs, num_steps=num_steps, seed=seed)
    trajectory = check.run(check.acting)
    check.check_values(trajectory)
    check.check_keys(trajectory)
    check.check_vmap(trajectory)
    if check_auto_reset:
        check.check_final_state(trajectory)
    check.warn_about_endless(trajectory)
    if isinstance(made, MadeMultiEnv):
        check.check_presence(trajectory, acts_always=find_acting(made) == "all")
        check.check_idle_actions(trajectory)
    else:
        _check_compute_reward(made, trajectory)


@pytree
class _Trajectory:
    """Trajectories of `num_envs` environments; axes `[B]` at the reset, `[B, T]` afterwards.

    Dictionaries have the environment's entries; `ended` marks the ends of episodes.
    """

    first_state: PyTree
    first_obs: dict[str, PyTree]
    first_acts: dict[str, Bool[Array, "*batch"]]
    states: PyTree
    steps: MultiStep
    ended: Bool[Array, "*batch"]


@pytree
class _Actions:
    """Actions of the agents that act, and of those that do not."""

    acting: dict[str, PyTree]
    idle: dict[str, PyTree]


class _Check:
    """Short runs of an environment, without resets, and what has to hold of them.

    Every method raises an EnvError at the first violation.
    """

    def __init__(
        self, made: MadeEnv | MadeMultiEnv, *, num_envs: int, num_steps: int, seed: int
    ) -> None:
        self.name, self.params = made.id, made.params
        self.env = made.env if isinstance(made, MadeMultiEnv) else OneAgentEnv(made.env, made.id)
        self.entries = get_entries(self.env)
        self.has_limit = made.max_episode_steps is not None
        self.num_envs, self.num_steps, self.seed = num_envs, num_steps, seed
        self.acting = self._sample_actions(seed)
        self._vmapped = jit_quickly(jax.vmap(self._unroll, in_axes=(0, 0, None)))

    def run(self, idle: dict[str, PyTree], seed: int | None = None) -> _Trajectory:
        """Step the environments, given the actions of agents that do not act."""
        actions = _Actions(acting=self.acting, idle=idle)
        seed = self.seed if seed is None else seed
        return self._call(self._vmapped, _make_keys(seed, self.num_envs), actions)

    def check_values(self, trajectory: _Trajectory) -> None:
        """Check observations and rewards of the agents present, and global states."""
        live, steps = _get_live_mask(trajectory), trajectory.steps
        for entry in self.entries:
            key = entry.key
            space = self.env.observation_space(entry.agents[0], self.params)
            is_only = key == ONLY_AGENT
            what, at = ("observation", "") if is_only else (f"obs[{key!r}]", f"[{key!r}]")
            first = _pick(trajectory.first_obs[key], trajectory.first_acts[key])
            check_values(f"{self.name}: reset's {what}", space, first)
            walk = _walk(entry, trajectory)
            alive = live.reshape(live.shape + (1,) * (walk["acts"].ndim - 2))
            seen = (walk["present"] | walk["acts_next"]) & alive
            check_values(f"{self.name}: step's {what}", space, _pick(steps.obs[key], seen))
            reward = np.asarray(steps.reward[key])[walk["present"] & alive]
            if not np.all(np.isfinite(reward)):
                label = "the reward" if is_only else f"reward{at}"
                bad = reward[~np.isfinite(reward)][0]
                raise EnvError(f"{self.name}: {label} is {bad} at some step.")
        space = self.env.state_space(self.params)
        if space is not None:
            show = jax.vmap(jax.vmap(self.env.global_state, (0, None)), (0, None))
            states = jit_quickly(show)(trajectory.states, self.params)
            check_values(f"{self.name}: global_state", space, _pick(states, live))

    def check_keys(self, trajectory: _Trajectory) -> None:
        """Check that equal keys give equal results; warn if others do so, too."""
        path = _find_difference(trajectory, self.run(self.acting), rtol=0.0)
        if path is not None:
            raise EnvError(
                f"{self.name}: two runs from the same keys and actions differ in {path[1:]}; an "
                f"environment must draw random numbers only from its key."
            )
        other = self.run(self.acting, self.seed + 1)
        if _find_difference(trajectory, other, rtol=0.0) is None:
            _warn(f"{self.name} does not depend on the key: all episodes start identically.")

    def check_vmap(self, trajectory: _Trajectory) -> None:
        """Compare each environment alone (a loop over environments in one program) with the batch."""

        def one_by_one(keys: Keys, actions: _Actions, params: PyTree) -> _Trajectory:
            return jax.lax.map(
                lambda inputs: self._unroll(inputs["key"], inputs["actions"], params),
                {"key": keys, "actions": actions},
            )

        actions = _Actions(acting=self.acting, idle=self.acting)
        keys = _make_keys(self.seed, self.num_envs)
        looped = self._call(jit_quickly(one_by_one), keys, actions)
        live = _get_live_mask(trajectory)
        for rtol, read in (
            (_RTOL, lambda t: {"first_obs": t.first_obs, "steps": _pick(t.steps, live)}),
            (_STATE_RTOL, lambda t: {"first": t.first_state, "states": _pick(t.states, live)}),
        ):
            path = _find_difference(read(trajectory), read(looped), rtol=rtol)
            if path is not None:
                raise EnvError(
                    f"{self.name}: a vmapped environment differs from the same environment alone, in "
                    f"{path}."
                )

    def check_final_state(self, trajectory: _Trajectory) -> None:
        """Raise if ends look like resets.

        That is the case if after every end, state and observation lie entirely within the range of
        initial ones, which they rarely do after other steps.
        """
        keys = _make_keys(self.seed + 2, _NUM_RESETS)
        state, start = jit_quickly(jax.vmap(self.env.reset, in_axes=(0, None)))(keys, self.params)
        first = _to_numpy((_unwrap_time_limit(state), start.obs))
        rows = _to_numpy((_unwrap_time_limit(trajectory.states), trajectory.steps.obs))
        live = _get_live_mask(trajectory)
        ended = np.asarray(trajectory.ended) & live
        inside = np.ones_like(live)
        for initial, leaf in zip(jax.tree.leaves(first), jax.tree.leaves(rows), strict=True):
            if leaf.dtype == np.uint32:  # keys, whose data has no meaningful range
                continue
            within = (leaf >= initial.min(axis=0)) & (leaf <= initial.max(axis=0))
            inside &= within.reshape(*live.shape, -1).all(axis=-1)
        others = inside[live & ~ended]
        if ended.any() and inside[ended].all() and others.size and np.mean(others) < 0.1:
            raise EnvError(
                f"{self.name}: the state after an end looks like a reset's; step must return the "
                f"final observation and state and leave the reset to jaxrl (or pass "
                f"check_auto_reset=False if episodes may end where they start)."
            )

    def warn_about_endless(self, trajectory: _Trajectory) -> None:
        """Warn if no episode ended, and none has to."""
        if not self.has_limit and not np.asarray(trajectory.ended).any():
            _warn(
                f"{self.name} did not end within {self.num_steps} steps and has no time limit; set "
                f"max_episode_steps, or episodes may never end."
            )

    def check_presence(self, trajectory: _Trajectory, *, acts_always: bool) -> None:
        """Check which agents act and when they end."""
        name, live = self.name, _get_live_mask(trajectory)
        goes_on = live & ~np.asarray(trajectory.ended)
        acting, present = np.zeros(live.shape, int), np.zeros(live.shape, int)
        for entry in self.entries:
            walk = _walk(entry, trajectory)
            alive = goes_on.reshape(live.shape + (1,) * (walk["acts"].ndim - 2))
            if acts_always and (walk["stays"] & ~walk["acts_next"] & alive).any():
                raise EnvError(
                    f"{name}: {entry.key!r} is present and does not act; set acting='some', or end "
                    "it."
                )
            if (walk["truncated"] & walk["acts_next"] & alive).any():
                raise EnvError(
                    f"{name}: {entry.key!r} was truncated and acts on its last observation; it may "
                    "come again one step later."
                )
            acting += walk["acts"].reshape(*live.shape, -1).sum(axis=2)
            present += walk["present"].reshape(*live.shape, -1).sum(axis=2)
        most, allowed = acting[live].max(), self.env.max_acting
        if allowed is not None and most > allowed:
            raise EnvError(f"{name}: {most} agents act at one step, and max_acting={allowed}.")
        if ((present == 0) & goes_on).any():
            _warn(
                f"{name}: nobody is present at some steps, and the episode goes on; set "
                f"terminated['{ALL}'] with the last agent's end, unless others come."
            )

    def check_idle_actions(self, trajectory: _Trajectory) -> None:
        """Check that other actions of agents that do not act change nothing that can be observed."""
        other = self.run(self._sample_actions(self.seed + 1))
        live = _get_live_mask(trajectory)
        first, second = (_pick(_get_visible(self.entries, t), live) for t in (trajectory, other))
        path = _find_difference(first, second, rtol=0.0)
        if path is not None:
            raise EnvError(
                f"{self.name}: the action of an agent that does not act changes {path}; step must "
                "ignore it."
            )

    def _sample_actions(self, seed: int) -> dict[str, PyTree]:
        """Sample actions `[B, T, *members, ...]` of every entry, with integers as int32."""
        return {
            entry.key: _sample(
                self.env.action_space(entry.agents[0], self.params),
                (self.num_envs, self.num_steps, *entry.shape),
                seed + 97 * index,
            )
            for index, entry in enumerate(self.entries)
        }

    def _unroll(self, key: Key, actions: _Actions, params: PyTree) -> _Trajectory:
        """Reset one environment, and step it without further resets."""
        key_reset, key_steps = jax.random.split(key)
        first_state, start = self.env.reset(key_reset, params)

        def step(
            carry: dict[str, PyTree], inputs: dict[str, PyTree]
        ) -> tuple[dict[str, PyTree], dict[str, PyTree]]:
            key = jax.random.fold_in(key_steps, inputs["index"])
            chosen = _choose(carry["acts"], inputs["actions"])
            state, step = self.env.step(key, carry["state"], chosen, params)
            return {"state": state, "acts": step.acts}, {"state": state, "step": step}

        indices = jnp.arange(self.num_steps, dtype=jnp.int32)
        first = {"state": first_state, "acts": start.acts}
        _, rows = jax.lax.scan(step, first, {"index": indices, "actions": actions})
        steps: MultiStep = rows["step"]
        return _Trajectory(
            first_state=first_state,
            first_obs=start.obs,
            first_acts=start.acts,
            states=rows["state"],
            steps=steps,
            ended=steps.terminated[ALL] | steps.truncated[ALL],
        )

    def _call(self, function: Callable[..., _Trajectory], *arguments: PyTree) -> _Trajectory:
        """Call a function of arguments and parameters."""
        try:
            return function(*arguments, self.params)
        except (TypeError, ValueError, IndexError) as error:
            reason = str(error).strip().splitlines()[0]
            raise EnvError(
                f"{self.name} does not run under jit(vmap(scan)) ({type(error).__name__}: {reason})."
            ) from error


def _check_compute_reward(made: MadeEnv, trajectory: _Trajectory) -> None:
    """Check that an environment with goals recomputes the rewards and ends of its steps."""
    compute, space = find_compute_reward(made.env), made.spaces[0]
    has_goals = isinstance(space, spaces.Dict) and {ACHIEVED_GOAL, DESIRED_GOAL} <= set(space)
    if compute is None or not has_goals:
        return
    steps, live = trajectory.steps, _get_live_mask(trajectory)
    recompute = jax.vmap(jax.vmap(compute, (0, 0, None)), (0, 0, None))
    obs = steps.obs[ONLY_AGENT]
    found = recompute(obs[ACHIEVED_GOAL], obs[DESIRED_GOAL], made.params)
    for name, again in zip(("reward", "terminated"), found, strict=True):
        before, after = (np.asarray(x)[live] for x in (getattr(steps, name)[ONLY_AGENT], again))
        differs = ~np.isclose(before, after, rtol=1e-5, atol=1e-6)
        if differs.any():
            raise EnvError(
                f"{made.id}: compute_reward gives {name}={after[differs][0]} for the goals of a step "
                f"whose {name} is {before[differs][0]}; both must be the same."
            )


def jit_quickly(function: Callable[..., ResultT]) -> Callable[..., ResultT]:
    """Return the compiled function; little is optimized."""
    return jax.jit(function, compiler_options=_COMPILER_OPTIONS)


def _make_keys(seed: int, count: int) -> Keys:
    """Create new keys for each use, since a key may be consumed only once."""
    return jax.random.split(make_key(seed), count)


def _sample(space: gymnasium.Space[Any], shape: tuple[int, ...], seed: int) -> PyTree:
    space.seed(seed)
    samples = [space.sample() for _ in range(int(np.prod(shape)))]

    def stack(*leaves: ArrayLike) -> np.ndarray:
        stacked = np.stack(leaves)
        dtype = np.int32 if stacked.dtype == np.int64 else stacked.dtype
        return stacked.astype(dtype).reshape(*shape, *stacked.shape[1:])

    return jax.tree.map(stack, *samples)


def _choose(acts: dict[str, Any], actions: _Actions) -> dict[str, PyTree]:
    """Return the actions of the agents that act, and the idle ones of all others."""
    return {
        name: jax.tree.map(
            lambda x, y, flag=flag: jnp.where(_expand(flag, x), x, y),
            actions.acting[name],
            actions.idle[name],
        )
        for name, flag in acts.items()
    }


def _expand(flag: ArrayT, like: ArrayT) -> ArrayT:
    """Return a flag with further axes, to broadcast with an array."""
    return flag.reshape(flag.shape + (1,) * (like.ndim - flag.ndim))


def _get_live_mask(trajectory: _Trajectory) -> np.ndarray:
    """Return the mask `[B, T]` of steps up to the first end; later steps are undefined."""
    ended = np.asarray(trajectory.ended)
    return np.cumsum(ended, axis=1) - ended == 0


def _walk(entry: Entry, trajectory: _Trajectory) -> dict[str, np.ndarray]:
    """Return which agents act, are present, and end at each step, `[B, T, *members]`."""
    steps = trajectory.steps
    first, later = np.asarray(trajectory.first_acts[entry.key]), np.asarray(steps.acts[entry.key])
    acts = np.concatenate([first[:, None], later[:, :-1]], axis=1)
    all_ends = np.asarray(trajectory.ended).reshape(acts.shape[:2] + (1,) * (acts.ndim - 2))
    truncated = np.asarray(steps.truncated[entry.key])
    ends = np.asarray(steps.terminated[entry.key]) | truncated | all_ends
    present, stays = np.zeros_like(acts), np.zeros_like(acts[:, 0])
    for t in range(acts.shape[1]):
        present[:, t] = stays | acts[:, t]
        stays = present[:, t] & ~ends[:, t]
    return {
        "acts": acts,
        "acts_next": later,
        "present": present,
        "truncated": present & truncated,
        "stays": present & ~ends,
    }


def _get_visible(entries: tuple[Entry, ...], trajectory: _Trajectory) -> dict[str, Any]:
    """Return what can be observed of steps, with zeros for absent agents."""
    steps = trajectory.steps
    visible: dict[str, dict[str, PyTree]] = {"acts": steps.acts, "over": {ALL: trajectory.ended}}
    for entry in entries:
        walk = _walk(entry, trajectory)
        for what in ("obs", "reward", "terminated", "truncated"):
            at = walk["present"] | walk["acts_next"] if what == "obs" else walk["present"]
            visible.setdefault(what, {})[entry.key] = jax.tree.map(
                lambda x, at=at: np.where(_expand(at, x), x, 0), getattr(steps, what)[entry.key]
            )
    return visible


def _pick(tree: PyTree, mask: ArrayLike) -> PyTree:
    """Return the rows of every leaf at which a mask holds, with one leading axis."""
    return jax.tree.map(lambda x: x[np.asarray(mask)], _to_numpy(tree))


def _to_numpy(tree: PyTree) -> PyTree:
    """Convert leaves to NumPy arrays, and keys to their key data."""

    def convert(leaf: Array | np.ndarray) -> np.ndarray:
        is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if is_key else leaf)

    return jax.tree.map(convert, tree)


def _find_difference(a: PyTree, b: PyTree, *, rtol: float) -> str | None:
    """Return the path of the first leaf in which two trees of equal structure differ."""
    pairs = zip(
        jax.tree_util.tree_leaves_with_path(_to_numpy(a)),
        jax.tree.leaves(_to_numpy(b)),
        strict=True,
    )
    for (path, x), y in pairs:
        if x.dtype.kind == "f" and rtol:
            scale = np.max(np.abs(x), initial=1e-6, where=np.isfinite(x))
            is_same = np.allclose(x, y, rtol=rtol, atol=rtol * scale, equal_nan=True)
        else:
            is_same = np.array_equal(x, y, equal_nan=x.dtype.kind == "f")
        if not is_same:
            return jax.tree_util.keystr(path).replace(f"[{ONLY_AGENT!r}]", "")
    return None


def _unwrap_time_limit(state: PyTree) -> PyTree:
    return state.inner if isinstance(state, TimeLimitState) else state


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=4)
