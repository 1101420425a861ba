"""Every environment of PettingZoo's classic suite and of mpe2, through the adapter."""

import ast
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl import MAPPOConfig, PPOConfig
from jaxrl.assembly.assemble import assemble
from jaxrl.config.agent_mapping import describe_suggestion, suggest_mapping
from jaxrl.config.settings.training import CriticKind
from jaxrl.envs import CheckedMultiAgentEnv, MadeMultiHostEnv, PettingZooEnv, make_multi_host
from jaxrl.envs.adapters.pettingzoo import wrap_pettingzoo
from jaxrl.envs.adapters.precheck import play_randomly
from jaxrl.errors import ConfigError, EnvError
from jaxrl.testing import check_env

CLASSIC = [
    "chess_v6",
    "connect_four_v3",
    "go_v5",
    "hanabi_v5",
    "leduc_holdem_v4",
    "rps_v2",
    "texas_holdem_no_limit_v6",
    "texas_holdem_v4",
    "tictactoe_v3",
]
ALIKE = [
    "simple_formation_v1",
    "simple_line_v1",
    "simple_reference_v3",
    "simple_spread_v3",
    "simple_v3",
]
UNALIKE = [
    "collect_treasure_v1",
    "simple_adversary_v3",
    "simple_crypto_v3",
    "simple_push_v3",
    "simple_speaker_listener_v4",
    "simple_tag_v3",
    "simple_world_comm_v3",
]
SISL = ["multiwalker_v9", "pursuit_v5"]
BUTTERFLY = ["cooperative_pong_v6", "knights_archers_zombies_v11", "pistonball_v6"]
NAMES = [f"classic/{name}" for name in CLASSIC] + [f"mpe2/{name}" for name in (*ALIKE, *UNALIKE)]
NAMES += [f"sisl/{name}" for name in SISL]
WITH_IMAGES = [f"butterfly/{name}" for name in BUTTERFLY]

pytestmark = pytest.mark.filterwarnings("ignore")  # what PettingZoo's environments warn of


def make(name: str) -> MadeMultiHostEnv:
    """Make an environment; skip the test if its packages are not installed."""
    package = name.partition("/")[0]
    pytest.importorskip("pettingzoo")
    pytest.importorskip("pygame")
    pytest.importorskip("mpe2" if package == "mpe2" else "pettingzoo.classic")
    for part, needed in (("chess", "chess"), ("holdem", "rlcard"), ("hanabi", "shimmy")):
        if part in name:
            pytest.importorskip(needed)
    if package in ("sisl", "butterfly"):
        pytest.importorskip(f"pettingzoo.{name.replace('/', '.')}", exc_type=ImportError)
    return make_multi_host(f"pettingzoo:{name}")


@pytest.mark.parametrize("name", [*NAMES, *WITH_IMAGES])
def test_random_episodes_keep_the_contract(name: str) -> None:
    """Every value is checked at every step, and the environment is as sound afterwards."""
    env = make(name).make_checked()
    play_randomly(env, 30, seed=1)
    start = env.reset(seed=3)
    assert start.obs.keys() == set(env.agents_to_act)
    env.close()


@pytest.mark.parametrize("name", [*NAMES, *WITH_IMAGES])
def test_pettingzoos_own_tests_pass_through_the_adapter(name: str) -> None:
    adapter: Any = make(name).make_checked().env
    from pettingzoo.test import api_test, parallel_api_test

    from tests.envs.multi_host.pettingzoo_views import ParallelView, TurnsView

    if isinstance(adapter, PettingZooEnv):
        api_test(TurnsView(adapter), num_cycles=30)
    else:
        parallel_api_test(ParallelView(adapter), num_cycles=30)
    adapter.close()


@pytest.mark.parametrize("name", ["classic/tictactoe_v3", "mpe2/simple_tag_v3"])
def test_checks_of_a_user_pass(name: str) -> None:
    check_env(make(name))


@pytest.mark.representatives("mpe2/simple_crypto_v3")
@pytest.mark.parametrize("name", [f"mpe2/{name}" for name in UNALIKE])
def test_agents_that_differ_are_refused_with_a_mapping_that_works(name: str) -> None:
    made = make(name)
    config = PPOConfig().environment(f"pettingzoo:{name}").debugging(loggers=[])
    with pytest.raises(ConfigError, match="spaces differ") as caught:
        config.build()
    mapping = read_mapping(str(caught.value))
    assert mapping.keys() == set(made.possible_agents)
    assembly: Any = assemble(config.multi_agent(mapping=mapping))
    assert set(assembly.modules) == set(mapping.values())


def read_mapping(sentence: str) -> dict[str, str]:
    """Return the mapping that a sentence proposes."""
    found = re.search(r"\.multi_agent\(mapping=(\{.*?\})\)", sentence)
    assert found is not None
    return ast.literal_eval(found[1])


def test_a_suggested_module_plays_agents_of_equal_spaces() -> None:
    from gymnasium import spaces

    small, large = spaces.Discrete(2), spaces.Discrete(3)
    seen = {"eve_0": small, "bob_0": large, "alice_0": large, "bob-1": large}
    actions = dict.fromkeys(seen, small)
    assert suggest_mapping(seen, actions) == {
        "eve_0": "eve",
        "bob_0": "bob_alice",
        "alice_0": "bob_alice",
        "bob-1": "bob_alice",
    }
    apart = suggest_mapping(seen, {**actions, "bob_0": large})
    assert apart == {"eve_0": "eve", "bob_0": "bob", "alice_0": "alice_bob", "bob-1": "alice_bob"}
    for agents in (("0", "1"), ("car_0", "car_1")):
        own = dict(zip(agents, (small, large), strict=True))
        found = suggest_mapping(own, dict.fromkeys(agents, small))
        assert list(found.values()) == ["policy_0", "policy_1"]
    many = {f"a_{i}": small for i in range(20)} | {"b_0": large}
    assert describe_suggestion(many, dict.fromkeys(many, small)) == (
        ".multi_agent(mapping={'a_0': 'a', 'b_0': 'b', ...}) with an entry for each agent"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_ppo_trains_without_another_setting(name: str) -> None:
    """Only sizes are set, and a mapping where the sentence that refuses says so."""
    make(name)
    config = PPOConfig().environment(f"pettingzoo:{name}").debugging(loggers=[])
    config.training(train_batch_size=60, minibatch_size=15, num_epochs=1)
    if name.removeprefix("mpe2/") in UNALIKE:
        with pytest.raises(ConfigError) as caught:
            config.build()
        config.multi_agent(mapping=read_mapping(str(caught.value)))
    with config.build() as algorithm:
        for iteration in (1, 2):
            result = algorithm.train()
            assert result["num_env_steps_sampled_lifetime"] == 60 * iteration
        losses = [own["total_loss"] for m, own in result["learners"].items() if m[0] != "_"]
    assert losses
    assert all(abs(float(loss)) < 1e6 for loss in losses)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["state", "joint"])
def test_mappo_trains_with_the_state_of_pettingzoo(kind: CriticKind) -> None:
    made = make("mpe2/simple_spread_v3")
    config = MAPPOConfig().environment("pettingzoo:mpe2/simple_spread_v3").debugging(loggers=[])
    config.training(critic_input=kind, train_batch_size=60, num_epochs=1)
    with config.build() as algorithm:
        for _ in range(2):
            result = algorithm.train()
    assert made.state_space is not None
    assert np.isfinite(result["learners"]["default_policy"]["vf_loss"])


def test_an_object_has_one_adapter() -> None:
    made = make("classic/rps_v2")
    env: Any = made.make_checked()
    assert isinstance(env, CheckedMultiAgentEnv)
    assert wrap_pettingzoo(env.env) is env.env


def test_a_package_that_raises_at_import_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As rlcard does at the second attempt, where a package of its own is missing."""
    (tmp_path / "zoo_that_raises").mkdir()
    (tmp_path / "zoo_that_raises" / "cards_v1.py").write_text("raise ValueError('registered')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EnvError, match=r"cards_v1 cannot be imported: ValueError: registered\."):
        make_multi_host("pettingzoo:zoo_that_raises/cards_v1")
