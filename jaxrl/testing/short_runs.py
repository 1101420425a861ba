"""Short runs of environments without resets, and what holds of one and of several agents."""

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool
from numpy.typing import ArrayLike

from jaxrl.core.keys import make_key
from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, Keys, PyTree
from jaxrl.envs.multi.base import MultiStart
from jaxrl.envs.multi.made import MadeMultiEnv
from jaxrl.envs.registry import MadeEnv
from jaxrl.envs.wrappers import TimeLimitState
from jaxrl.errors import EnvError

# Compilation dominates, since the programs run for a few steps only.
_COMPILER_OPTIONS = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
_NUM_RESETS = 64

ResultT = TypeVar("ResultT")


@pytree
class Trajectory:
    """Trajectories of `num_envs` environments; axes `[B]` at the reset, `[B, T]` afterwards.

    `steps` are what the steps return, and `ended` marks the ends of episodes. `first_acts` says who
    acts at first where there are several agents, else it is None.
    """

    first_state: PyTree
    first_obs: PyTree
    states: PyTree
    steps: PyTree
    ended: Bool[Array, "*batch"]
    first_acts: PyTree = None


Unroll = Callable[[Key, PyTree, PyTree], Trajectory]
"""Function of a key, actions and parameters that steps one environment without resets."""


def make_keys(seed: int, count: int) -> Keys:
    """Create new keys for each use, since a key may be consumed only once."""
    return jax.random.split(make_key(seed), count)


def jit_quickly(function: Callable[..., ResultT]) -> Callable[..., ResultT]:
    """Return the compiled function; little is optimized."""
    return jax.jit(function, compiler_options=_COMPILER_OPTIONS)


def sample_actions(space: gymnasium.Space[Any], num_envs: int, num_steps: int, seed: int) -> PyTree:
    """Sample actions `[B, T, ...]`, with integers as int32."""
    space.seed(seed)
    samples = [space.sample() for _ in range(num_envs * num_steps)]

    def stack(*leaves: ArrayLike) -> np.ndarray:
        stacked = np.stack(leaves)
        dtype = np.int32 if stacked.dtype == np.int64 else stacked.dtype
        return stacked.astype(dtype).reshape(num_envs, num_steps, *stacked.shape[1:])

    return jax.tree.map(stack, *samples)


def run_checked(name: str, function: Callable[..., Trajectory], *arguments: PyTree) -> Trajectory:
    """Run a function.

    Raises:
        EnvError: If it does not run.
    """
    try:
        return function(*arguments)
    except (TypeError, ValueError, IndexError) as error:
        reason = str(error).strip().splitlines()[0]
        raise EnvError(
            f"{name} does not run under jit(vmap(scan)) ({type(error).__name__}: {reason})."
        ) from error


def get_live_mask(trajectory: Trajectory) -> np.ndarray:
    """Return the mask `[B, T]` of steps up to the first end; later steps are undefined."""
    ended = np.asarray(trajectory.ended)
    return np.cumsum(ended, axis=1) - ended == 0


def to_numpy(tree: PyTree) -> PyTree:
    """Convert leaves to NumPy arrays, and keys to their key data."""

    def convert(leaf: Array) -> np.ndarray:
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if is_key else leaf)

    return jax.tree.map(convert, tree)


def find_difference(a: PyTree, b: PyTree, *, rtol: float) -> str | None:
    """Return the path of the first leaf in which two trees of equal structure differ."""
    pairs = zip(
        jax.tree_util.tree_leaves_with_path(to_numpy(a)),
        jax.tree.leaves(to_numpy(b)),
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


def check_runs(
    made: MadeEnv | MadeMultiEnv,
    unroll: Unroll,
    actions: PyTree,
    check_observations: Callable[[Trajectory], None],
    *,
    seed: int,
    check_auto_reset: bool,
) -> Trajectory:
    """Check what holds of every environment, run with actions `[B, T, ...]`.

    Returns:
        The trajectories.

    Raises:
        EnvError: If the environment violates the contract.
    """
    num_envs = len(jax.tree.leaves(actions)[0])
    vmapped = jit_quickly(jax.vmap(unroll, in_axes=(0, 0, None)))
    trajectory = run_checked(made.id, vmapped, make_keys(seed, num_envs), actions, made.params)
    check_observations(trajectory)
    repeated = vmapped(make_keys(seed, num_envs), actions, made.params)
    _check_determinism(made.id, trajectory, repeated)
    other = vmapped(make_keys(seed + 1, num_envs), actions, made.params)
    _warn_about_constant_key(made.id, trajectory, other)
    _check_vmap(made, unroll, trajectory, make_keys(seed, num_envs), actions)
    if check_auto_reset:
        _check_final_state(made, trajectory, make_keys(seed + 2, _NUM_RESETS))
    _warn_about_endless(made, trajectory)
    return trajectory


def _check_determinism(name: str, first: Trajectory, second: Trajectory) -> None:
    path = find_difference(first, second, rtol=0.0)
    if path is not None:
        raise EnvError(
            f"{name}: two runs from the same keys and actions differ in {path[1:]}; an "
            f"environment must draw random numbers only from its key."
        )


def _warn_about_constant_key(name: str, first: Trajectory, second: Trajectory) -> None:
    if find_difference(first, second, rtol=0.0) is None:
        warnings.warn(
            f"{name} does not depend on the key: all episodes start identically.", stacklevel=4
        )


def _check_vmap(
    made: MadeEnv | MadeMultiEnv,
    unroll: Unroll,
    trajectory: Trajectory,
    keys: Keys,
    actions: PyTree,
) -> None:
    """Compare each environment alone (a loop over environments in one program) with the batch."""

    def one_by_one(keys: Keys, actions: PyTree, params: PyTree) -> Trajectory:
        return jax.lax.map(
            lambda inputs: unroll(inputs["key"], inputs["actions"], params),
            {"key": keys, "actions": actions},
        )

    looped = run_checked(made.id, jit_quickly(one_by_one), keys, actions, made.params)
    live = get_live_mask(trajectory)
    rows = [
        {
            "first": (t.first_state, t.first_obs),
            "rows": jax.tree.map(lambda x: x[live], to_numpy((t.states, t.steps))),
        }
        for t in (trajectory, looped)
    ]
    path = find_difference(rows[0], rows[1], rtol=1e-4)
    if path is not None:
        raise EnvError(
            f"{made.id}: a vmapped environment differs from the same environment alone, in {path}."
        )


def _unwrap_time_limit(state: PyTree) -> PyTree:
    return state.inner if isinstance(state, TimeLimitState) else state


def _check_final_state(made: MadeEnv | MadeMultiEnv, trajectory: Trajectory, keys: Keys) -> None:
    """Raise if ends look like resets.

    That is the case if after every end, state and observation lie entirely within the range of
    initial ones, which they rarely do after other steps.
    """
    resets = jit_quickly(jax.vmap(made.env.reset, in_axes=(0, None)))(keys, made.params)
    shown = resets[1].obs if isinstance(resets[1], MultiStart) else resets[1]
    first = to_numpy((_unwrap_time_limit(resets[0]), shown))
    rows = to_numpy((_unwrap_time_limit(trajectory.states), trajectory.steps.obs))
    live = get_live_mask(trajectory)
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
            f"{made.id}: the state after an end looks like a reset's; step must return the final "
            f"observation and state and leave the reset to jaxrl (or pass "
            f"check_auto_reset=False if episodes may end where they start)."
        )


def _warn_about_endless(made: MadeEnv | MadeMultiEnv, trajectory: Trajectory) -> None:
    ended = np.asarray(trajectory.ended)
    if made.max_episode_steps is None and not ended.any():
        warnings.warn(
            f"{made.id} did not end within {ended.shape[1]} steps and has no time limit; set "
            f"max_episode_steps, or episodes may never end.",
            stacklevel=4,
        )
