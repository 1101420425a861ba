"""Replay buffers of a user's own: compiled subclasses, and classes with RLlib's methods."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import Algorithm, DQNConfig, HostReplayBuffer, ReplayBuffer
from jaxrl.errors import ConfigError, ReplayBufferError
from tests.helpers import assert_equal, differs, small
from tests.replays import PRIORITIZED, replaying

pytestmark = pytest.mark.allow_key_reuse


class Plain(ReplayBuffer):
    """Nothing of its own."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clipped(ReplayBuffer):
    """Priorities of bounded TD errors."""

    largest_error: float = 1.0

    def update_priorities(
        self, priorities: Any, indices: Any, td_error: Any, axis_name: str | None = None
    ) -> Any:
        bound = self.largest_error
        return super().update_priorities(
            priorities, indices, jnp.clip(td_error, -bound, bound), axis_name
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Newest(ReplayBuffer):
    """Only the newest rows of each environment are drawn."""

    num_newest: int = 2

    def sample(
        self,
        state: Any,
        priorities: Any,
        key: Any,
        shards: Any,
        env_steps: Any,
        axis_name: str | None = None,
    ) -> Any:
        drawn = super().sample(state, priorities, key, shards, env_steps, axis_name)
        newest = (state.rows.current_index - 1 - drawn.time % self.num_newest) % self.length
        return dataclasses.replace(drawn, time=newest, weight=jnp.ones_like(drawn.weight))


def buffer(own_class: type, **options: Any) -> dict[str, Any]:
    return {**PRIORITIZED, "type": own_class, **options}


def train(config: Any, number: int = 1) -> Any:
    with config.build() as algorithm:
        for _ in range(number):
            algorithm.train()
        return jax.device_get((algorithm.state.buffer, algorithm.state.learner.sgd.params))


@pytest.mark.slow
def test_a_subclass_without_changes_is_the_buffer_itself() -> None:
    assert_equal(train(replaying(buffer=buffer(Plain))), train(replaying(buffer=PRIORITIZED)))


@pytest.mark.representatives("in_graph")
@pytest.mark.parametrize("placement", ["in_graph", "host"])
def test_a_subclass_is_compiled(placement: Any) -> None:
    """Its own key has an effect, on priorities and thus on the draws."""
    found = []
    for bound in (100.0, 0.05):
        config = replaying(buffer=buffer(Clipped, largest_error=bound))
        found.append(train(config.env_runners(placement=placement)))
    (free, learned), (own, other) = found
    assert free.priorities.largest > 1.0
    assert own.priorities.largest == 1.0  # that of new rows
    nodes = [np.asarray(x.priorities.tree.nodes) for x in (own, free)]
    leaves = [x[:, x.shape[1] // 2 :].max() for x in nodes]
    assert leaves[0] <= leaves[1]
    assert differs(other, learned)


def test_an_own_sample_decides_what_is_learned_from() -> None:
    """Rewards of newest rows alone: the mean is theirs, whatever the buffer holds."""
    config = replaying(buffer={"type": Newest, "num_newest": 1})
    with config.build() as algorithm:
        algorithm.train()
        state, replay = algorithm.state, algorithm.learner_group._train_step.experience  # pyright: ignore
        drawn = jax.jit(replay.sample)(
            state.buffer, None, jax.random.key(0), jnp.arange(1), state.progress.env_steps
        )
    assert set(np.asarray(drawn.time).tolist()) == {(int(state.buffer.rows.current_index) - 1) % 20}


@pytest.mark.slow
def test_a_class_may_be_named_in_a_file(tmp_path: Path) -> None:
    config = DQNConfig().training(
        replay_buffer_config={"type": "tests.test_own_buffers:Clipped", "largest_error": 2.0}
    )
    assert config.replay_buffer_config["type"] is Clipped
    config = replaying(buffer=buffer(Clipped)).debugging(results_dir=str(tmp_path))
    with config.build() as algorithm:
        algorithm.train()
        path, want = algorithm.save(), algorithm.get_state()["train_state"]
    with Algorithm.from_checkpoint(path) as restored:
        assert restored.config.replay_buffer_config["type"] is Clipped
        assert_equal(restored.get_state()["train_state"], want)


# --- with RLlib's methods ---


class Recording(HostReplayBuffer):
    """Everything that was added, drawn and learned from."""

    def __init__(self, capacity: int, seed: int = 0, note: str = "") -> None:
        super().__init__(capacity, seed)
        self.note = note
        self.added: list[dict[str, Any]] = []
        self.drawn: list[dict[str, Any]] = []
        self.updated: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, batch: dict[str, Any]) -> None:
        self.added.append(batch)
        super().add(batch)

    def sample(self, num_items: int) -> dict[str, Any]:
        drawn = super().sample(num_items)
        self.drawn.append(drawn)
        return drawn

    def update_priorities(self, indexes: np.ndarray, priorities: np.ndarray) -> None:
        self.updated.append((indexes, priorities))


def hosted(own_class: type, env: Any = "CartPole-v1", **settings: Any) -> Any:
    options = settings.pop("options", {})
    config = replaying(env, buffer={"type": own_class, **options}, **settings)
    return config.env_runners(placement="host")


def user_buffer(algorithm: Any) -> Any:
    return algorithm.learner_group.user_buffer.buffer


def test_transitions_are_added_and_drawn() -> None:
    config = hosted(Recording, options={"note": "mine"}, gamma=0.9)
    with config.build() as algorithm:
        result = algorithm.train()
        mine = user_buffer(algorithm)
        assert mine.note == "mine"
        added = {name: np.concatenate([b[name] for b in mine.added]) for name in mine.added[0]}
        assert len(added["obs"]) == result["num_env_steps_sampled_lifetime"] == 96
        np.testing.assert_allclose(added["rewards"], 1.0)
        np.testing.assert_allclose(added["discounts"], 0.9 * (1.0 - added["terminateds"]))
        assert added["terminateds"].any()
        # The successor of a row is the environment's next row, but at the end of an episode.
        per_env = added["obs"].reshape(-1, 4, 2, 4).swapaxes(1, 2).reshape(-1, 4, 4)
        after = added["new_obs"].reshape(-1, 4, 2, 4).swapaxes(1, 2).reshape(-1, 4, 4)
        ended = added["terminateds"].reshape(-1, 4, 2).swapaxes(1, 2).reshape(-1, 4)
        same = np.isclose(per_env[1:], after[:-1]).all(axis=-1)
        np.testing.assert_array_equal(same, ~ended[:-1])
        updates = result["learners"]["default_policy"]["num_updates_lifetime"]
        assert len(mine.drawn) == len(mine.updated) == updates > 0
        for drawn, (indexes, priorities) in zip(mine.drawn, mine.updated, strict=True):
            np.testing.assert_array_equal(drawn["batch_indexes"], indexes)
            assert (priorities > 0).all()
        assert result["replay_buffer"]["num_env_steps_stored"] == 80


def test_n_steps_are_folded_within_a_fragment() -> None:
    """Against a loop over the rows, with fragments of four steps."""
    config = hosted(Recording, n_step=3, gamma=0.5).env_runners(rollout_fragment_length=4)
    with config.build() as algorithm:
        batch = algorithm.sample()
        while not np.asarray(batch.rollout.terminated)[1:].any():  # by which earlier folds end
            batch = algorithm.sample()
        algorithm.add_to_buffer(batch)
        added = user_buffer(algorithm).added[0]
        mask, terminated = np.asarray(batch.rollout.mask), np.asarray(batch.rollout.terminated)
        final_obs = np.asarray(batch.rollout.final_obs)
    assert mask.all()
    rewards, discounts, ends, successors = [], [], [], []
    for env in range(4):
        for start in range(4):
            total, discount = 0.0, 1.0
            for t in range(start, min(start + 3, 4)):
                total += discount
                discount *= 0.5
                if terminated[t, env]:
                    break
            rewards.append(total)
            ends.append(terminated[t, env])
            discounts.append(discount * (1.0 - terminated[t, env]))
            successors.append(final_obs[t, env])
    np.testing.assert_allclose(added["rewards"], rewards)
    np.testing.assert_allclose(added["discounts"], discounts)
    np.testing.assert_array_equal(added["terminateds"], ends)
    np.testing.assert_array_equal(added["new_obs"], successors)


class Weighted(HostReplayBuffer):
    """Rows of weight zero."""

    def sample(self, num_items: int) -> dict[str, Any]:
        return {**super().sample(num_items), "weights": np.zeros(num_items, np.float32)}


def test_weights_of_a_sample_weigh_the_loss() -> None:
    with hosted(Weighted).build() as algorithm:
        before = algorithm.get_weights()
        result = algorithm.train()
        assert result["learners"]["default_policy"]["num_updates_lifetime"] > 0
        assert not differs(before, algorithm.get_weights())


def test_a_checkpoint_has_the_buffer(tmp_path: Path) -> None:
    """Rows, place and random numbers: a restored run goes on to the bit.

    An empty buffer has nothing to learn from; a restored one has, before a rollout.
    """
    with hosted(HostReplayBuffer).build() as algorithm:
        assert dict(algorithm.update()) == {}
        algorithm.train()
        path = algorithm.save(tmp_path)
        with Algorithm.from_checkpoint(path) as restored:
            assert len(user_buffer(restored)) == 80
            for run in (algorithm, restored):
                run.train()
            assert_equal(algorithm.get_state()["train_state"], restored.get_state()["train_state"])
        with Algorithm.from_checkpoint(path) as restored:
            before = restored.get_weights()
            assert restored.update()["grad_norm"] > 0
            assert differs(before, restored.get_weights())


@pytest.mark.slow
def test_a_checkpoint_without_the_buffer_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with hosted(HostReplayBuffer, store_buffer_in_checkpoints=False).build() as algorithm:
        algorithm.train()
        path = algorithm.save(tmp_path)
    with Algorithm.from_checkpoint(path) as restored:
        assert len(user_buffer(restored)) == 0
        assert "does not have what is in HostReplayBuffer" in caplog.text
        restored.train()


class Pieces(Algorithm):
    """Three gradient steps per batch."""

    def training_step(self) -> Mapping[str, float]:
        self.add_to_buffer(self.sample())
        metrics = self.update(num_updates=3)
        self.sync_weights()
        return metrics


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["own", "host"])
def test_an_own_training_step_with_a_buffer_in_host_memory(kind: str) -> None:
    config = hosted(Recording)
    if kind == "host":
        config.training(replay_buffer_config={**PRIORITIZED, "capacity": 80, "storage": "host"})
    config.algo_class = Pieces
    with config.build() as algorithm:
        result = algorithm.train()
        waited = 32 // 8 - 1
        calls = result["num_training_step_calls_per_iteration"]
        updates = result["learners"]["default_policy"]["num_updates_lifetime"]
        assert updates == 3 * (calls - waited)


@pytest.mark.parametrize(
    "change", [{"size": 99}, {"next": -1}, {"rows": {"obs": np.zeros((3, 4))}}]
)
def test_a_state_that_does_not_fit_is_refused(change: dict[str, Any]) -> None:
    mine = HostReplayBuffer(8)
    mine.add({"obs": np.ones((5, 4))})
    with pytest.raises(ValueError, match="capacity"):
        HostReplayBuffer(8).set_state({**mine.get_state(), **change})
    other = HostReplayBuffer(8)
    other.set_state(mine.get_state())
    assert len(other) == 5


# --- wrong classes ---


class NoMethods:
    pass


class NoCapacity(HostReplayBuffer):
    def __init__(self) -> None:
        super().__init__(1)


class Raising(HostReplayBuffer):
    def add(self, batch: dict[str, Any]) -> None:
        raise KeyError("full")


class Incomplete(HostReplayBuffer):
    def sample(self, num_items: int) -> dict[str, Any]:
        drawn = super().sample(num_items)
        del drawn["new_obs"]
        return drawn


class Short(HostReplayBuffer):
    def sample(self, num_items: int) -> dict[str, Any]:
        return super().sample(num_items - 1)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no methods": ({"type": NoMethods}, "NoMethods must be a subclass of jaxrl.ReplayBuffer"),
    "no capacity": ({"type": NoCapacity}, "NoCapacity must take its size as capacity"),
    "unknown key": ({"type": Clipped, "larges_error": 1}, "Did you mean 'largest_error'"),
    "unknown key of a host class": ({"type": Recording, "notes": ""}, "Did you mean 'note'"),
    "no effect": (
        {"type": Recording, "alpha": 0.5},
        "has no effect on Recording, which does not take it",
    ),
    "on the device": ({"type": Recording, "storage": "device"}, "cannot hold Recording"),
    "no name": ({"type": "tests.test_own_buffers:Nothing"}, "Nothing"),
    "no buffer": ({"type": "tests.test_own_buffers:NoMethods"}, "methods add and sample"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_classes_are_a_sentence(name: str) -> None:
    given, message = WRONG[name]
    with pytest.raises(ConfigError, match=message):
        replaying(buffer=given).env_runners(placement="host").build()


def test_what_a_class_cannot_do_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match="Recording keeps the buffer where the compiled program"):
        replaying(buffer={"type": Recording}).build()
    with pytest.raises(ConfigError, match="requires a learner in this process"):
        hosted(Recording).learners(num_learners=2).build()
    config = small("DQN", replay_buffer_config={"type": Clipped})
    with pytest.raises(ConfigError, match="Clipped draws single transitions"):
        config.rl_module(model_config={"use_lstm": True}).build()


@pytest.mark.parametrize(
    ("own_class", "message"),
    [
        (Raising, r"add\(\) of replay_buffer_config\['type'\]=Raising raised KeyError: 'full'"),
        (Incomplete, r"sample\(16\) of Incomplete returned the columns .* and no new_obs"),
        (Short, r"returned an array of shape \(15,.*where \(16,.*is needed"),
    ],
)
def test_a_class_that_fails_is_a_sentence(own_class: type, message: str) -> None:
    with hosted(own_class).build() as algorithm, pytest.raises(ReplayBufferError, match=message):
        algorithm.train()
