"""Stand-in for the runner of this process where all runners are actors."""

from types import SimpleNamespace
from typing import Any

import pytest

from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.runners.ray import group as group_module
from jaxrl.runners.ray.group import RayEnvRunnerGroup, RunnerStandIn
from tests.multi_agent.test_host_training import make_config


def choose(agent_id: Any, episode: Any, **kwargs: Any) -> str:
    return "one"


@pytest.fixture
def make_group(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(group_module, "call_all", lambda fleet, call, **settings: {1: call(fleet)})

    def make(config: PPOConfig, count_setting: str = "num_env_runners") -> Any:
        group = object.__new__(RayEnvRunnerGroup)
        config.freeze()
        actor = SimpleNamespace(config=config.copy_live("policy_mapping_fn"), num_envs=4)
        shape = SimpleNamespace(count_setting=count_setting)
        parts = {"_fleet": actor, "_shape": shape, "stand_in": RunnerStandIn(config)}
        vars(group).update(parts)
        return group

    return make


def test_what_is_set_on_runners_is_set_for_those_that_start_later(make_group: Any) -> None:
    group = make_group(make_config())
    group.foreach_env_runner(func=lambda r: r.config.multi_agent(policy_mapping_fn=choose))
    for config in (group.local_config, group._fleet.config):
        assert config.multi_agent_settings.policy_mapping_fn is choose
    assert group.foreach_env_runner(lambda r: r.num_envs) == [0, 4]
    assert group.foreach_env_runner(lambda r: r.num_envs, local_env_runner=False) == [4]
    with pytest.raises(AttributeError, match="'sample': pass local_env_runner=False"):
        group.foreach_env_runner("sample")


def test_it_is_left_out_where_nothing_can_be_set(make_group: Any) -> None:
    evaluating = make_group(make_config(), "evaluation_num_env_runners")
    evaluating.foreach_env_runner(lambda r: r.config.multi_agent(policy_mapping_fn=choose))
    assert evaluating.local_config.multi_agent_settings.policy_mapping_fn is choose
    alone = make_group(PPOConfig().environment("CartPole-v1"))
    assert alone.foreach_env_runner(lambda r: r.num_envs) == [4]
