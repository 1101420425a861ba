"""A minute in which actors of several agents are killed: the accounts of steps and rows are exact."""

import time
from typing import Any

import pytest

from jaxrl.algorithms.dqn import DQNConfig
from jaxrl.algorithms.impala import IMPALAConfig
from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.runners.counts import SampleCounts
from jaxrl.runners.fragment import Fragment
from tests.multi_agent.host_envs import Duel
from tests.multi_agent.test_host_ray import count_pending, make_config, make_replay_config
from tests.runners.ray.test_chaos import BETWEEN_S, SECONDS, Killer

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster"), pytest.mark.slow]


class CountingRows(SampleCounts):
    """Counts that include the complete rows of all fragments."""

    num_rows = 0

    def add(self, fragment: Fragment) -> None:
        super().add(fragment)
        rollout: Any = fragment.rollout
        self.num_rows += sum(int(own.mask.sum()) for own in rollout.rollouts.values())


@pytest.mark.parametrize("algo", [PPOConfig, IMPALAConfig, DQNConfig])
def test_killing_an_actor_every_five_seconds_loses_no_row_unaccounted_for(algo: Any) -> None:
    """In a duel one agent acts at each step, so rows, pending and lost ones add up to the steps."""
    config = make_replay_config(2, Duel) if algo is DQNConfig else make_config(2, algo)
    config.fault_tolerance(
        restart_failed_env_runners=True, num_consecutive_env_runner_failures_tolerance=1000
    )
    config.reporting(min_time_s_per_iteration=1.0)
    with config.build() as algorithm:
        group: Any = algorithm.env_runner_group
        fleet = group._fleet
        fleet.counts = CountingRows(has_several_agents=True)
        killer, end = Killer(), time.monotonic() + SECONDS
        killer.start()
        while time.monotonic() < end:
            result = algorithm.train()
        killer.is_over.set()
        killer.join()
        while group.num_healthy_env_runners < 2:
            result = algorithm.train()
        result = algorithm.train()
        counts: Any = fleet.counts
        if algo is not IMPALAConfig:  # whose actors are never idle
            pending = sum(group.foreach_env_runner(count_pending, local_env_runner=False))
            received = fleet.ledger.received
            assert counts.num_rows + counts.num_agent_steps_lost + pending == received
        with fleet.lock:  # pending rows as of the fragments that have arrived
            received = fleet.ledger.received
            known = sum(member.num_pending_rows for member in fleet.members)
            assert counts.num_rows + counts.num_agent_steps_lost + known == received
    assert killer.kills >= SECONDS / BETWEEN_S / 2
    faults = result["fault_tolerance"]
    assert faults["num_env_steps_received_lifetime"] == (
        faults["num_env_steps_trained_lifetime"]
        + faults["num_env_steps_queued"]
        + sum(faults["num_env_steps_discarded_lifetime"].values())
    )
    assert 2 <= faults["num_env_runner_restarts"] <= killer.kills
    assert 0 < faults["num_agent_steps_lost"] <= 2 * killer.kills
    steps = result["env_runners"]["num_env_steps_sampled_lifetime"]
    assert steps == faults["num_env_steps_trained_lifetime"]
