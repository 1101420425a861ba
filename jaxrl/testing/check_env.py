"""Check of an environment against everything that the compiled loop assumes about it."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.buffers.hindsight import ACHIEVED_GOAL, DESIRED_GOAL
from jaxrl.core.types import Key, PyTree
from jaxrl.envs.base import JaxEnv
from jaxrl.envs.contract import check_signatures
from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.multi.host_made import MadeMultiHostEnv
from jaxrl.envs.multi.made import MadeMultiEnv
from jaxrl.envs.registry import EnvSpec, Made, MadeEnv, make_any
from jaxrl.envs.space_checks import check_values
from jaxrl.envs.wrappers import find_compute_reward
from jaxrl.errors import EnvError
from jaxrl.runtime.devices import claim_cpu_devices
from jaxrl.testing.check_host_env import check_host_env
from jaxrl.testing.check_multi_env import check_multi_env
from jaxrl.testing.check_multi_host_env import check_multi_host_env
from jaxrl.testing.short_runs import (
    Trajectory,
    Unroll,
    check_runs,
    get_live_mask,
    sample_actions,
)


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
    steps do. A warning is given if the environment does not
    use its key, or if it neither ends nor has a time limit.

    A gymnasium environment is checked against the needs of host runners, see `check_host_env`; of
    one with several agents, see `check_multi_env` for what else holds, and `check_multi_host_env`
    if it is written in Python.

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
    if isinstance(made, MadeHostEnv):
        check_host_env(made, num_steps=num_steps, num_envs=num_envs, seed=seed)
        return
    if isinstance(made, MadeMultiHostEnv):
        check_multi_host_env(made, num_steps=num_steps, num_envs=num_envs, seed=seed)
        return
    if isinstance(made, MadeMultiEnv):
        check_multi_env(
            made,
            num_steps=num_steps,
            num_envs=num_envs,
            seed=seed,
            check_auto_reset=check_auto_reset,
        )
        return
    check_signatures(made)
    observation_space, action_space = made.spaces
    trajectory = check_runs(
        made,
        _unroll(made.env),
        sample_actions(action_space, num_envs, num_steps, seed),
        lambda trajectory: _check_observations(made.id, observation_space, trajectory),
        seed=seed,
        check_auto_reset=check_auto_reset,
    )
    _check_compute_reward(made, trajectory)


def _unroll(env: JaxEnv[Any, Any]) -> Unroll:
    """Return a function that resets one environment and steps it without further resets."""

    def unroll(key: Key, actions: PyTree, params: PyTree) -> Trajectory:
        key_reset, key_steps = jax.random.split(key)
        first_state, first_obs = env.reset(key_reset, params)

        def step(state: PyTree, inputs: dict[str, Any]) -> tuple[PyTree, dict[str, Any]]:
            key = jax.random.fold_in(key_steps, inputs["index"])
            state, step = env.step(key, state, inputs["action"], params)
            return state, {"state": state, "step": step}

        indices = jnp.arange(len(jax.tree.leaves(actions)[0]), dtype=jnp.int32)
        _, rows = jax.lax.scan(step, first_state, {"index": indices, "action": actions})
        return Trajectory(
            first_state=first_state,
            first_obs=first_obs,
            states=rows["state"],
            steps=rows["step"],
            ended=rows["step"].terminated | rows["step"].truncated,
        )

    return unroll


def _check_observations(name: str, space: gymnasium.Space[Any], trajectory: Trajectory) -> None:
    check_values(f"{name}: reset's observation", space, trajectory.first_obs)
    live = get_live_mask(trajectory)
    obs = jax.tree.map(lambda x: np.asarray(x)[live], trajectory.steps.obs)
    check_values(f"{name}: step's observation", space, obs)
    reward = np.asarray(trajectory.steps.reward)[live]
    if not np.all(np.isfinite(reward)):
        raise EnvError(f"{name}: the reward is {reward[~np.isfinite(reward)][0]} at some step.")


def _check_compute_reward(made: MadeEnv, trajectory: Trajectory) -> None:
    """Check that an environment with goals recomputes the rewards and ends of its steps."""
    compute, space = find_compute_reward(made.env), made.spaces[0]
    has_goals = isinstance(space, spaces.Dict) and {ACHIEVED_GOAL, DESIRED_GOAL} <= set(space)
    if compute is None or not has_goals:
        return
    steps, live = trajectory.steps, get_live_mask(trajectory)
    recompute = jax.vmap(jax.vmap(compute, (0, 0, None)), (0, 0, None))
    goals = steps.obs[ACHIEVED_GOAL], steps.obs[DESIRED_GOAL]
    found = recompute(*goals, made.params)
    for name, own, again in zip(
        ("reward", "terminated"), (steps.reward, steps.terminated), found, strict=True
    ):
        before, after = np.asarray(own)[live], np.asarray(again)[live]
        differs = ~np.isclose(before, after, rtol=1e-5, atol=1e-6)
        if differs.any():
            raise EnvError(
                f"{made.id}: compute_reward gives {name}={after[differs][0]} for the goals of a step "
                f"whose {name} is {before[differs][0]}; both must be the same."
            )
