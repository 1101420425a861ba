"""Learning while environments crash and stall, as in RLlib's example of a crashing CartPole.

The probabilities, times and workers are those of its
`examples/fault_tolerance/crashing_and_stalling_env.py` (with `--stall`), PPO's settings the defaults.
"""

from typing import Any

import pytest

from jaxrl import PPOConfig

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster"), pytest.mark.slow]

CRASHES = {
    "p_crash": 1e-4,
    "p_crash_reset": 1e-3,
    "crash_on_worker_indices": [1, 2],
    "init_time_s": 2.0,
    "p_stall": 5e-4,
    "p_stall_reset": 1e-3,
    "stall_time_sec": (2.0, 5.0),
    "stall_on_worker_indices": [2, 3],
}
GOAL, LIMIT = 450.0, 400_000


def run(env_config: dict[str, Any], seed: int, **faults: Any) -> tuple[int, dict[str, Any]]:
    """Environment steps until the goal, and the last result."""
    config = PPOConfig().environment(
        "jaxrl:crashing-cartpole-v0", env_config=env_config, disable_env_checking=True
    )
    config.env_runners(
        num_env_runners=4,
        num_envs_per_env_runner=5,
        num_cpus_per_env_runner=0.5,
        sample_timeout_s=10.0,
    )
    config.fault_tolerance(**faults).debugging(seed=seed, loggers=["json"])
    with config.build() as algorithm:
        while True:
            result = algorithm.train()
            steps = result["num_env_steps_sampled_lifetime"]
            if result["env_runners"].get("episode_return_mean", 0.0) >= GOAL:
                return steps, result
            assert steps < LIMIT, result["env_runners"]


def test_crashes_and_stalls_cost_at_most_twice_the_steps() -> None:
    calm, _ = run({}, 0)
    by_copy, copies = run(CRASHES, 0, restart_failed_sub_environments=True)
    by_runner, runners = run(CRASHES, 0)
    print(f"\n450 at {calm} steps; {by_copy} with copies restarted, {by_runner} with runners")
    assert by_copy <= 2 * calm
    assert by_runner <= 2 * calm
    # The first is the way that harms nobody else: no runner was lost, so no other copy's episode.
    assert copies["fault_tolerance"]["num_sub_env_restarts"] > 0
    assert copies["fault_tolerance"]["num_env_runner_restarts"] == 0
    assert runners["fault_tolerance"]["num_env_runner_restarts"] > 0
