"""Local inference: the client's NumPy computes what the run's compiled policy computes."""

import dataclasses
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest

from jaxrl import DQNConfig, TD3Config
from jaxrl.external import LinkError
from jaxrl.runners.external.acting import PolicyExporter
from tests.external.served import SMALL, Served, Walk, make_config, wait_for

LSTM = {**SMALL, "use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4}


def play(served: Served, mode: str, length: int) -> Any:
    """Play an episode of fixed observations and return what arrived of it."""
    inbox = served.group.inbox
    before = len(inbox.parts)
    with served.connect(inference_mode=mode, seed=0) as client:
        assert client.inference_mode == mode
        name = client.start_episode()
        for t in range(length):
            action = client.get_action(name, np.asarray([t, -t], np.float32))
            assert served.assembly.made.spaces[1].contains(action)
            client.log_returns(name, 0.5 * t)
        client.end_episode(name, np.zeros(2, np.float32), truncated=True)
        wait_for(lambda: sum(map(len, inbox.parts[before:])) == length)
    return inbox.parts[before:]


@pytest.mark.parametrize("kind", ["plain", "LSTM", "previous reward"])
def test_records_what_remote_inference_records(kind: str) -> None:
    config = make_config()
    if kind == "LSTM":
        config.rl_module(model_config=LSTM)
    if kind == "previous reward":
        config.env_runners(env_to_module_connector=make_previous)
    served = Served(config)
    try:
        local, remote = (play(served, mode, 6) for mode in ("local", "remote"))
        assert [len(part) for part in local] == [len(part) for part in remote]
        for mine, theirs in zip(local, remote, strict=True):
            inputs = "action_dist_inputs"
            if kind == "previous reward":  # it depends on the sampled actions, beside the first
                assert mine.extras[inputs].shape == theirs.extras[inputs].shape
                np.testing.assert_array_equal(mine.carry.reward, theirs.carry.reward)
                continue
            np.testing.assert_allclose(mine.extras[inputs], theirs.extras[inputs], atol=1e-5)
            for a, b in zip(*map(jax.tree.leaves, (mine.carry, theirs.carry)), strict=True):
                np.testing.assert_allclose(a, b, atol=1e-5)
        for part in [*local, *remote]:
            check_log_prob(served, part)
    finally:
        served.group.stop()


def make_previous() -> Any:
    from jaxrl.connectors import PrevActionsPrevRewards

    return PrevActionsPrevRewards()


def check_log_prob(served: Served, part: Any) -> None:
    """The recorded log-probability is that of the recorded action under the recorded inputs."""
    logits = part.extras["action_dist_inputs"].astype(np.float64)
    log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    expected = np.take_along_axis(log_probs, part.action[:, None], axis=-1)[:, 0]
    np.testing.assert_allclose(part.extras["action_logp"], expected, atol=1e-5)


@pytest.fixture(scope="module")
def served():
    served = Served(make_config().evaluation(evaluation_config={"explore": False}))
    yield served
    served.group.stop()


def test_weights_are_fetched_when_there_are_new_ones(served: Served) -> None:
    with served.connect(inference_mode="local") as client, served.learning():
        client.run(Walk(), num_episodes=20)
        wait_for(lambda: served.version > 0)
        client.run(Walk(), num_episodes=20)
        assert client.local is not None
        assert client.local.version > 0
    assert any(fragment.weights_version > 0 for fragment in served.fragments)


def test_weights_are_fetched_when_asked_for(served: Served) -> None:
    with (
        served.connect(inference_mode="local", update_interval=3600.0) as client,
        served.connect() as remote,
    ):
        local: Any = client.local
        local._interval = 3600.0  # as where steps of any age are trained on
        before = local.version
        served.publish()
        wait_for(lambda: client.weights_version == before + 1)
        client.step(np.zeros(2))
        assert local.version == before
        client.update_policy_weights()
        assert local.version == before + 1
        remote.update_policy_weights()  # has none


def test_new_weights_change_the_actions(served: Served) -> None:
    with served.connect(inference_mode="local") as client:
        obs = np.ones(2, np.float32)

        def choose() -> int:
            name = client.start_episode(training_enabled=False)  # without exploration
            action = client.get_action(name, obs)
            client.end_episode(name, obs, truncated=True)
            return action

        before = {choose() for _ in range(3)}
        assert len(before) == 1
        actor = served.actor
        try:
            for seed in range(5):
                rng = np.random.default_rng(seed)
                params = jax.tree.map(lambda x, r=rng: r.normal(size=x.shape), actor.params)
                params = jax.tree.map(np.float32, params)
                served.actor = dataclasses.replace(actor, params=params)
                served.publish()
                wait_for(lambda: client.weights_version == served.version)
                before.add(choose())
        finally:
            served.actor = actor
            served.publish()
    assert len(before) > 1


def test_policy_without_a_numpy_form_is_remote(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise LinkError("The policy cannot be computed by simulators (no form).")

    served = Served(make_config())
    monkeypatch.setattr(PolicyExporter, "_export_arrays", fail)
    with pytest.raises(LinkError, match="cannot be computed by simulators"):
        served.connect(inference_mode="local")
    with served.connect(inference_mode=None) as client:
        assert client.inference_mode == "remote"
        client.run(Walk(), num_episodes=1)
    served.group.stop()


@pytest.mark.parametrize(
    ("config_class", "name"),
    [(DQNConfig, "epsilon_ladder"), (TD3Config, "exploration_sigma_max")],
)
def test_simulators_that_explore_by_their_place_are_remote(config_class: Any, name: str) -> None:
    config = make_config(config_class).training(**{name: 7.0})
    if config_class is TD3Config:
        config.environment(action_space=gymnasium.spaces.Box(-1.0, 1.0, (2,)))
    served = Served(config)
    with pytest.raises(LinkError, match=rf"differently from one another, by {name}, .*'remote'"):
        served.connect(inference_mode="local")
    with served.connect(inference_mode=None) as client:
        assert client.inference_mode == "remote"
    served.group.stop()


def test_an_episode_after_a_refused_one_of_its_name_begins_without_its_memory() -> None:
    served = Served(make_config().rl_module(model_config=LSTM))
    try:
        with served.connect(inference_mode="local", seed=0) as client:
            obs = np.ones(2, np.float32)
            for _ in range(2):
                client.start_episode("game")
                client.get_action("game", obs)
                first = client.episodes["game"].open_step
                assert first is not None
                carried = [x for name, x in first.columns.items() if name.startswith("state")]
                assert carried
                assert all((x == 0.0).all() for x in carried)
                client.get_action("game", obs)
                client.link.refused["game"] = "The run has given the episode up."
                with pytest.raises(LinkError, match="given the episode up"):
                    client.get_action("game", obs)
    finally:
        served.group.stop()


def test_nested_spaces() -> None:
    obs = gymnasium.spaces.Dict(
        {"b": gymnasium.spaces.Discrete(3), "a": gymnasium.spaces.Box(-1, 1, (2,), np.float32)}
    )
    actions = gymnasium.spaces.Tuple(
        [gymnasium.spaces.Discrete(2), gymnasium.spaces.Box(-2, 2, (1,), np.float32)]
    )
    served = Served(make_config().environment(observation_space=obs, action_space=actions))
    obs.seed(0)
    try:
        for mode in ("local", "remote"):
            with served.connect(inference_mode=mode) as client:
                name = client.start_episode()
                for _ in range(3):
                    assert actions.contains(client.get_action(name, obs.sample()))
                client.end_episode(name, obs.sample(), terminated=True)
        wait_for(lambda: served.ledger.received == 6)
        first, second = served.group.inbox.parts
        assert jax.tree.structure(first.action) == jax.tree.structure(second.action)
    finally:
        served.group.stop()
