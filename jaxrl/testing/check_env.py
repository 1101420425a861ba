"""Certify an environment: everything that the compiled loop takes for granted about a `JaxEnv`."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.seeds import seed_key
from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, PyTree, TimeStep
from jaxrl.envs.base import JaxEnv
from jaxrl.envs.contract import check_signatures
from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.registry import EnvSpec, Made, MadeEnv, make
from jaxrl.envs.space_checks import check_values
from jaxrl.envs.wrappers import TimeLimitState
from jaxrl.errors import EnvError
from jaxrl.runtime.devices import claim_cpu_devices
from jaxrl.testing.check_host_env import check_host_env

# Compiling dominates; the programs run for a few steps only.
_COMPILER_OPTIONS = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
_NUM_RESETS = 64


@pytree
class _Trajectory:
    """What `num_envs` environments did; leading axes `[B]` at the reset, `[B, T]` afterwards."""

    first_state: PyTree
    first_obs: PyTree
    states: PyTree
    steps: TimeStep


def check_env(
    env: EnvSpec | Made,
    env_config: Mapping[str, Any] | None = None,
    *,
    num_steps: int = 24,
    num_envs: int = 3,
    seed: int = 0,
    check_auto_reset: bool = True,
) -> None:
    """Try an environment with random actions and raise at the first thing that is wrong.

    Checked are: spaces are gymnasium's; observations match their space in structure, dtype, shape
    and range, after resets and steps; rewards are float32 scalars, `terminated` and `truncated`
    bool scalars; nothing is weakly typed; the state has the same structure and dtypes after a
    reset and after a step; `params` are traced, not baked in; one key gives one result; an
    environment does under `vmap` what it does alone; the last observation of an episode is the
    final one, not that of a reset. An environment that makes no use of its key, or that neither
    ends nor has a time limit, is warned about.

    A gymnasium environment is held to what runners on the host need, see `check_host_env`.

    Args:
        env: Whatever `jaxrl.envs.make` takes, or what it returned.
        env_config: As in `make`.
        num_steps: Steps per environment; enough for some episodes to end.
        num_envs: How many environments are vectorised.
        seed: Of keys and actions.
        check_auto_reset: False for an environment whose episodes may end in a first state.

    Raises:
        EnvError: The environment breaks the contract; one sentence says where and how.
    """
    claim_cpu_devices()  # what is built after the check shall have them
    made = env if isinstance(env, MadeEnv | MadeHostEnv) else make(env, env_config)
    if isinstance(made, MadeHostEnv):
        check_host_env(made, num_steps=num_steps, num_envs=num_envs, seed=seed)
        return
    name = made.id
    check_signatures(made)
    observation_space = made.env.observation_space(made.params)
    action_space = made.env.action_space(made.params)
    actions = _random_actions(action_space, num_envs, num_steps, seed)

    vmapped = _jit(jax.vmap(_unroll(made.env), in_axes=(0, 0, None)))
    trajectory = _run(name, vmapped, _keys(seed, num_envs), actions, made.params)
    _check_observations(name, observation_space, trajectory)
    again = vmapped(_keys(seed, num_envs), actions, made.params)
    _check_determinism(name, trajectory, again)
    other = vmapped(_keys(seed + 1, num_envs), actions, made.params)
    _warn_about_constant_key(name, trajectory, other)
    _check_vmap(made, trajectory, _keys(seed, num_envs), actions)
    if check_auto_reset:
        _check_final_state(made, trajectory, _keys(seed + 2, _NUM_RESETS))
    _warn_about_endless(made, trajectory)


def _keys(seed: int, count: int) -> Key:
    """Made anew for each use: a key is consumed once."""
    return jax.random.split(seed_key(seed), count)


def _jit(function: Callable[..., Any]) -> Any:
    return jax.jit(function, compiler_options=_COMPILER_OPTIONS)


def _unroll(env: JaxEnv[Any, Any]) -> Callable[[Key, PyTree, PyTree], _Trajectory]:
    """One environment: a reset, then a step per action, without resets in between."""

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


def _random_actions(
    space: gymnasium.Space[Any], num_envs: int, num_steps: int, seed: int
) -> PyTree:
    """`[B, T, ...]`, integers as int32."""
    space.seed(seed)
    samples = [space.sample() for _ in range(num_envs * num_steps)]

    def stack(*leaves: Any) -> np.ndarray:
        stacked = np.stack(leaves)
        dtype = np.int32 if stacked.dtype == np.int64 else stacked.dtype
        return stacked.astype(dtype).reshape(num_envs, num_steps, *stacked.shape[1:])

    return jax.tree.map(stack, *samples)


def _run(name: str, function: Any, *arguments: Any) -> _Trajectory:
    try:
        return function(*arguments)
    except (TypeError, ValueError, IndexError) as error:
        reason = str(error).strip().splitlines()[0]
        raise EnvError(
            f"{name} does not run under jit(vmap(scan)) ({type(error).__name__}: {reason})."
        ) from error


def _ended(trajectory: _Trajectory) -> np.ndarray:
    return np.asarray(trajectory.steps.terminated) | np.asarray(trajectory.steps.truncated)


def _live_rows(trajectory: _Trajectory) -> np.ndarray:
    """`[B, T]`: the steps up to each episode's first end; what follows is not defined."""
    ended = _ended(trajectory)
    return np.cumsum(ended, axis=1) - ended == 0


def _check_observations(name: str, space: gymnasium.Space[Any], trajectory: _Trajectory) -> None:
    check_values(f"{name}: reset's observation", space, trajectory.first_obs)
    live = _live_rows(trajectory)
    obs = jax.tree.map(lambda x: np.asarray(x)[live], trajectory.steps.obs)
    check_values(f"{name}: step's observation", space, obs)
    reward = np.asarray(trajectory.steps.reward)[live]
    if not np.all(np.isfinite(reward)):
        raise EnvError(f"{name}: the reward is {reward[~np.isfinite(reward)][0]} at some step.")


def _numbers(tree: PyTree) -> PyTree:
    """NumPy arrays, with keys as their words."""

    def convert(leaf: Any) -> np.ndarray:
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if is_key else leaf)

    return jax.tree.map(convert, tree)


def _first_difference(a: PyTree, b: PyTree, *, rtol: float) -> str | None:
    """The path of the first leaf in which two trees of one structure differ."""
    pairs = zip(
        jax.tree_util.tree_leaves_with_path(_numbers(a)), jax.tree.leaves(_numbers(b)), strict=True
    )
    for (path, x), y in pairs:
        if x.dtype.kind == "f" and rtol:
            scale = np.max(np.abs(x), initial=1e-6, where=np.isfinite(x))
            same = np.allclose(x, y, rtol=rtol, atol=rtol * scale, equal_nan=True)
        else:
            same = np.array_equal(x, y, equal_nan=x.dtype.kind == "f")
        if not same:
            return jax.tree_util.keystr(path)
    return None


def _check_determinism(name: str, first: _Trajectory, second: _Trajectory) -> None:
    path = _first_difference(first, second, rtol=0.0)
    if path is not None:
        raise EnvError(
            f"{name}: two runs from the same keys and actions differ in {path[1:]}; an "
            f"environment may draw numbers from its key only."
        )


def _warn_about_constant_key(name: str, first: _Trajectory, second: _Trajectory) -> None:
    if _first_difference(first, second, rtol=0.0) is None:
        warnings.warn(
            f"{name} does not depend on the key: every episode starts alike.", stacklevel=3
        )


def _check_vmap(made: MadeEnv, trajectory: _Trajectory, keys: Key, actions: PyTree) -> None:
    """Each environment alone (a loop over environments, in one program) against the batch."""
    unroll = _unroll(made.env)

    def one_by_one(keys: Key, actions: PyTree, params: PyTree) -> _Trajectory:
        return jax.lax.map(
            lambda inputs: unroll(inputs["key"], inputs["actions"], params),
            {"key": keys, "actions": actions},
        )

    looped = _run(made.id, _jit(one_by_one), keys, actions, made.params)
    live = _live_rows(trajectory)
    rows = [
        {
            "first": (t.first_state, t.first_obs),
            "rows": jax.tree.map(lambda x: x[live], _numbers((t.states, t.steps))),
        }
        for t in (trajectory, looped)
    ]
    path = _first_difference(rows[0], rows[1], rtol=1e-4)
    if path is not None:
        raise EnvError(
            f"{made.id}: a vmapped environment differs from the same environment alone, in {path}."
        )


def _inner(state: PyTree) -> PyTree:
    return state.inner if isinstance(state, TimeLimitState) else state


def _check_final_state(made: MadeEnv, trajectory: _Trajectory, keys: Key) -> None:
    """An end must not look like a reset.

    It does if after every end all of the state and the observation lie within the range of first
    ones, which after other steps they hardly ever do.
    """
    resets = _jit(jax.vmap(made.env.reset, in_axes=(0, None)))(keys, made.params)
    first = _numbers((_inner(resets[0]), resets[1]))
    rows = _numbers((_inner(trajectory.states), trajectory.steps.obs))
    live = _live_rows(trajectory)
    ended = _ended(trajectory) & live
    inside = np.ones_like(live)
    for low_high, leaf in zip(jax.tree.leaves(first), jax.tree.leaves(rows), strict=True):
        if leaf.dtype == np.uint32:  # keys, whose words have no meaningful range
            continue
        within = (leaf >= low_high.min(axis=0)) & (leaf <= low_high.max(axis=0))
        inside &= within.reshape(*live.shape, -1).all(axis=-1)
    others = inside[live & ~ended]
    if ended.any() and inside[ended].all() and others.size and np.mean(others) < 0.1:
        raise EnvError(
            f"{made.id}: the state after an end looks like a reset's; step must return the final "
            f"observation and state, and leave the reset to jaxrl (or pass "
            f"check_auto_reset=False, if episodes end where they start)."
        )


def _warn_about_endless(made: MadeEnv, trajectory: _Trajectory) -> None:
    ended = _ended(trajectory)
    if made.max_episode_steps is None and not ended.any():
        warnings.warn(
            f"{made.id} did not end within {ended.shape[1]} steps and has no time limit; give "
            f"max_episode_steps, or episodes may never end.",
            stacklevel=3,
        )
