"""Check of an environment against everything that the compiled loop assumes about a `JaxEnv`."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike

from jaxrl.core.keys import make_key
from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, Keys, PyTree, TimeStep
from jaxrl.envs.base import JaxEnv
from jaxrl.envs.contract import check_signatures
from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.registry import AnyMadeEnv, EnvSpec, MadeEnv, make
from jaxrl.envs.space_checks import check_values
from jaxrl.envs.wrappers import TimeLimitState
from jaxrl.errors import EnvError
from jaxrl.runtime.devices import claim_cpu_devices
from jaxrl.testing.check_host_env import check_host_env

# Compilation dominates, since the programs run for a few steps only.
_COMPILER_OPTIONS = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
_NUM_RESETS = 64

ResultT = TypeVar("ResultT")


@pytree
class _Trajectory:
    """Trajectories of `num_envs` environments; axes `[B]` at the reset, `[B, T]` afterwards."""

    first_state: PyTree
    first_obs: PyTree
    states: PyTree
    steps: TimeStep


def check_env(
    env: EnvSpec | AnyMadeEnv,
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
    episode is the final one, not that of a reset. A warning is given if the environment does not
    use its key, or if it neither ends nor has a time limit.

    A gymnasium environment is checked against the needs of host runners, see `check_host_env`.

    Args:
        env: Any argument of `jaxrl.envs.make`, or its result.
        env_config: Environment config, as in `make`.
        num_steps: Steps per environment; enough for some episodes to end.
        num_envs: Number of vectorized environments.
        seed: Seed of keys and actions.
        check_auto_reset: Whether to check that an end does not look like a reset; False for an
            environment whose episodes may end in an initial state.

    Raises:
        EnvError: If the environment violates the contract.
    """
    claim_cpu_devices()  # so that algorithms built after the check have them
    made = env if isinstance(env, MadeEnv | MadeHostEnv) else make(env, env_config)
    if isinstance(made, MadeHostEnv):
        check_host_env(made, num_steps=num_steps, num_envs=num_envs, seed=seed)
        return
    name = made.id
    check_signatures(made)
    observation_space = made.env.observation_space(made.params)
    action_space = made.env.action_space(made.params)
    actions = _sample_actions(action_space, num_envs, num_steps, seed)

    vmapped = _jit(jax.vmap(_unroll(made.env), in_axes=(0, 0, None)))
    trajectory = _run(name, vmapped, _make_keys(seed, num_envs), actions, made.params)
    _check_observations(name, observation_space, trajectory)
    repeated = vmapped(_make_keys(seed, num_envs), actions, made.params)
    _check_determinism(name, trajectory, repeated)
    other = vmapped(_make_keys(seed + 1, num_envs), actions, made.params)
    _warn_about_constant_key(name, trajectory, other)
    _check_vmap(made, trajectory, _make_keys(seed, num_envs), actions)
    if check_auto_reset:
        _check_final_state(made, trajectory, _make_keys(seed + 2, _NUM_RESETS))
    _warn_about_endless(made, trajectory)


def _make_keys(seed: int, count: int) -> Keys:
    """Create new keys for each use, since a key may be consumed only once."""
    return jax.random.split(make_key(seed), count)


def _jit(function: Callable[..., ResultT]) -> Callable[..., ResultT]:
    return jax.jit(function, compiler_options=_COMPILER_OPTIONS)


def _unroll(env: JaxEnv[Any, Any]) -> Callable[[Key, PyTree, PyTree], _Trajectory]:
    """Return a function that resets one environment and steps it without further resets."""

    def unroll(key: Key, actions: PyTree, params: PyTree) -> _Trajectory:
        key_reset, key_steps = jax.random.split(key)
        first_state, first_obs = env.reset(key_reset, params)

        def step(state: PyTree, inputs: dict[str, Any]) -> tuple[PyTree, dict[str, Any]]:
            key = jax.random.fold_in(key_steps, inputs["index"])
            state, step = env.step(key, state, inputs["action"], params)
            return state, {"state": state, "step": step}

        indices = jnp.arange(len(jax.tree.leaves(actions)[0]))
        _, rows = jax.lax.scan(step, first_state, {"index": indices, "action": actions})
        return _Trajectory(
            first_state=first_state, first_obs=first_obs, states=rows["state"], steps=rows["step"]
        )

    return unroll


def _sample_actions(
    space: gymnasium.Space[Any], num_envs: int, num_steps: int, seed: int
) -> PyTree:
    """Sample actions `[B, T, ...]`, with integers as int32."""
    space.seed(seed)
    samples = [space.sample() for _ in range(num_envs * num_steps)]

    def stack(*leaves: ArrayLike) -> np.ndarray:
        stacked = np.stack(leaves)
        dtype = np.int32 if stacked.dtype == np.int64 else stacked.dtype
        return stacked.astype(dtype).reshape(num_envs, num_steps, *stacked.shape[1:])

    return jax.tree.map(stack, *samples)


def _run(name: str, function: Callable[..., _Trajectory], *arguments: PyTree) -> _Trajectory:
    try:
        return function(*arguments)
    except (TypeError, ValueError, IndexError) as error:
        reason = str(error).strip().splitlines()[0]
        raise EnvError(
            f"{name} does not run under jit(vmap(scan)) ({type(error).__name__}: {reason})."
        ) from error


def _get_ends(trajectory: _Trajectory) -> np.ndarray:
    return np.asarray(trajectory.steps.terminated) | np.asarray(trajectory.steps.truncated)


def _get_live_mask(trajectory: _Trajectory) -> np.ndarray:
    """Return the mask `[B, T]` of steps up to the first end; later steps are undefined."""
    ended = _get_ends(trajectory)
    return np.cumsum(ended, axis=1) - ended == 0


def _check_observations(name: str, space: gymnasium.Space[Any], trajectory: _Trajectory) -> None:
    check_values(f"{name}: reset's observation", space, trajectory.first_obs)
    live = _get_live_mask(trajectory)
    obs = jax.tree.map(lambda x: np.asarray(x)[live], trajectory.steps.obs)
    check_values(f"{name}: step's observation", space, obs)
    reward = np.asarray(trajectory.steps.reward)[live]
    if not np.all(np.isfinite(reward)):
        raise EnvError(f"{name}: the reward is {reward[~np.isfinite(reward)][0]} at some step.")


def _to_numpy(tree: PyTree) -> PyTree:
    """Convert leaves to NumPy arrays, and keys to their key data."""

    def convert(leaf: Array) -> np.ndarray:
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
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
            return jax.tree_util.keystr(path)
    return None


def _check_determinism(name: str, first: _Trajectory, second: _Trajectory) -> None:
    path = _find_difference(first, second, rtol=0.0)
    if path is not None:
        raise EnvError(
            f"{name}: two runs from the same keys and actions differ in {path[1:]}; an "
            f"environment must draw random numbers only from its key."
        )


def _warn_about_constant_key(name: str, first: _Trajectory, second: _Trajectory) -> None:
    if _find_difference(first, second, rtol=0.0) is None:
        warnings.warn(
            f"{name} does not depend on the key: all episodes start identically.", stacklevel=3
        )


def _check_vmap(made: MadeEnv, trajectory: _Trajectory, keys: Keys, actions: PyTree) -> None:
    """Compare each environment alone (a loop over environments in one program) with the batch."""
    unroll = _unroll(made.env)

    def one_by_one(keys: Keys, actions: PyTree, params: PyTree) -> _Trajectory:
        return jax.lax.map(
            lambda inputs: unroll(inputs["key"], inputs["actions"], params),
            {"key": keys, "actions": actions},
        )

    looped = _run(made.id, _jit(one_by_one), keys, actions, made.params)
    live = _get_live_mask(trajectory)
    rows = [
        {
            "first": (t.first_state, t.first_obs),
            "rows": jax.tree.map(lambda x: x[live], _to_numpy((t.states, t.steps))),
        }
        for t in (trajectory, looped)
    ]
    path = _find_difference(rows[0], rows[1], rtol=1e-4)
    if path is not None:
        raise EnvError(
            f"{made.id}: a vmapped environment differs from the same environment alone, in {path}."
        )


def _unwrap_time_limit(state: PyTree) -> PyTree:
    return state.inner if isinstance(state, TimeLimitState) else state


def _check_final_state(made: MadeEnv, trajectory: _Trajectory, keys: Keys) -> None:
    """Raise if ends look like resets.

    That is the case if after every end, state and observation lie entirely within the range of
    initial ones, which they rarely do after other steps.
    """
    resets = _jit(jax.vmap(made.env.reset, in_axes=(0, None)))(keys, made.params)
    first = _to_numpy((_unwrap_time_limit(resets[0]), resets[1]))
    rows = _to_numpy((_unwrap_time_limit(trajectory.states), trajectory.steps.obs))
    live = _get_live_mask(trajectory)
    ended = _get_ends(trajectory) & live
    inside = np.ones_like(live)
    for initial, leaf in zip(jax.tree.leaves(first), jax.tree.leaves(rows), strict=True):
        if leaf.dtype == np.uint32:  # keys, whose data has no meaningful range
            continue
        within = (leaf >= initial.min(axis=0)) & (leaf <= initial.max(axis=0))
        inside &= within.reshape(*live.shape, -1).all(axis=-1)
    others = inside[live & ~ended]
    if ended.any() and inside[ended].all() and others.size and np.mean(others) < 0.1:
        raise EnvError(
            f"{made.id}: the state after an end looks like a reset's; step must return the final "
            f"observation and state and leave the reset to jaxrl (or pass "
            f"check_auto_reset=False if episodes may end where they start)."
        )


def _warn_about_endless(made: MadeEnv, trajectory: _Trajectory) -> None:
    ended = _get_ends(trajectory)
    if made.max_episode_steps is None and not ended.any():
        warnings.warn(
            f"{made.id} did not end within {ended.shape[1]} steps and has no time limit; set "
            f"max_episode_steps, or episodes may never end.",
            stacklevel=3,
        )
