"""Placement of environments: the choice, what is refused, and what is advised."""

from typing import Any

import pytest

from jaxrl import PPOConfig
from jaxrl.config import get_algorithm_config
from jaxrl.config.placement import (
    HOST_ONLY_SETTINGS,
    REQUIREMENTS,
    check_in_graph,
    describe_idle_settings,
    describe_placement,
    resolve_placement,
)
from jaxrl.errors import ConfigError
from tests.config.test_round_trip import OTHER
from tests.helpers import small


def with_runners(**settings: Any) -> PPOConfig:
    return PPOConfig().environment("x").env_runners(**settings)


@pytest.mark.parametrize(
    ("settings", "of_jax", "of_python"),
    [
        ({}, "in_graph", "host"),
        ({"placement": "host"}, "host", "host"),
        ({"placement": "in_graph"}, "in_graph", None),
        ({"num_env_runners": 2}, "ray", "ray"),
        ({"num_env_runners": 2, "placement": "host"}, "ray", "ray"),
    ],
)
def test_placements(settings: dict[str, Any], of_jax: str, of_python: str | None) -> None:
    config = with_runners(**settings)
    config.validate()
    assert resolve_placement(config, "x", is_jax_env=True) == of_jax
    if of_python is not None:
        assert resolve_placement(config, "x", is_jax_env=False) == of_python
        return
    with pytest.raises(ConfigError, match="but x is a gymnasium environment"):
        resolve_placement(config, "x", is_jax_env=False)


def test_whole_episodes_are_in_the_program_where_no_row_goes_on() -> None:
    setting = {"batch_mode": "complete_episodes"}
    check_in_graph(PPOConfig().update_from_dict(setting))
    with pytest.raises(ConfigError, match=r"'batch_mode' .* rows of a replay buffer"):
        check_in_graph(get_algorithm_config("DQN").update_from_dict(setting))


@pytest.mark.parametrize("name", [name for name in HOST_ONLY_SETTINGS if name != "batch_mode"])
def test_what_only_the_host_can_do_is_refused_by_name(name: str) -> None:
    config = PPOConfig().update_from_dict({name: OTHER[name]})
    config.validate()  # the environment may yet be one of the host
    assert resolve_placement(config, "x", is_jax_env=False) == "host"
    on_host = config.copy().env_runners(placement="host")
    assert resolve_placement(on_host, "x", is_jax_env=True) == "host"
    for check in (
        lambda: check_in_graph(config),
        lambda: resolve_placement(config, "x", is_jax_env=True),
        lambda: config.copy().env_runners(placement="in_graph").validate(),
    ):
        with pytest.raises(ConfigError, match=f"'{name}' .* set placement='host'") as caught:
            check()
        assert HOST_ONLY_SETTINGS[name] in str(caught.value)
    check_in_graph(PPOConfig().update_from_dict({name: PPOConfig()[name]}))


def test_advice_is_for_the_place() -> None:
    class Asynchronous(PPOConfig):
        is_async = True

    def said(config: PPOConfig, **known: Any) -> str:
        return "\n".join(describe_placement(config, known.get("placement")))

    assert "resolved when" in said(PPOConfig())
    assert said(PPOConfig(), placement="in_graph") == said(with_runners(placement="in_graph"))
    assert "compiled program" in said(PPOConfig(), placement="in_graph")
    assert "this process steps" in said(PPOConfig(), placement="host")
    assert "this process steps" in said(with_runners(placement="host"))
    assert "IMPALA" not in said(PPOConfig(), placement="host")
    actors = said(with_runners(num_env_runners=2))
    assert "actors on CPUs step the environments, alternating with" in actors
    assert "num_env_runners=2" in actors
    assert "IMPALA and APPO" in actors
    overlapping = said(Asynchronous().env_runners(num_env_runners=1))
    assert "concurrently with the learner" in overlapping
    assert "IMPALA and APPO" not in overlapping


def test_explain_shows_the_place_and_the_learners() -> None:
    text = with_runners(num_env_runners=2).learners(num_learners=2).explain()
    assert "Ray: actors" in text
    assert "2 learner processes under Ray share the" in text
    assert "   num_envs_per_env_runner = 8 (from None)" in text
    assert "Local device 1" in PPOConfig().learners(local_device_idx=1).explain()


IDLE = [(requirement, name) for requirement in REQUIREMENTS for name in requirement.names]


@pytest.mark.parametrize(("requirement", "name"), IDLE, ids=[name for _, name in IDLE])
def test_a_setting_without_effect_in_a_placement_is_noted(requirement: Any, name: str) -> None:
    algo = "IMPALA" if name == "learner_queue_size" else "PPO"
    config: Any = get_algorithm_config(algo).env_runners(num_env_runners=0)
    config.learners(num_learners=0)
    assert describe_idle_settings(config, "in_graph") == []
    config.update_from_dict({name: OTHER.get(name, 7)})
    (note,) = describe_idle_settings(config, "in_graph")
    assert f"{name}={config[name]!r} needs {requirement.condition}" in note
    assert note in config.explain(placement="in_graph")
    if "placement='external'" in requirement.condition:
        assert describe_idle_settings(config, "external") == []
    if requirement.condition.startswith("simulators"):
        return
    config.env_runners(num_env_runners=2)
    config.evaluation(evaluation_num_env_runners=1).learners(num_learners=1)
    assert describe_idle_settings(config, "ray") == []


def test_all_settings_without_effect_are_one_note(caplog: pytest.LogCaptureFixture) -> None:
    config = small().env_runners(num_cpus_per_env_runner=2, sample_timeout_s=5)
    config.fault_tolerance(max_num_env_runner_restarts=3)
    with config.build():
        (message,) = (m for m in caplog.messages if "without effect" in m)
    assert all(name in message for name in ("num_cpus", "sample_timeout_s=5.0", "restarts=3"))
    assert "sample_timeout_s" not in str(describe_idle_settings(config, "host"))
    assert "num_cpus_per_env_runner" in str(describe_idle_settings(config, "host"))
