"""Training steps of one's own, from sample, add_to_buffer, update and sync_weights."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl import Algorithm, Population
from jaxrl.errors import ConfigError
from jaxrl.tune import AlgorithmTrainable, as_trainable
from tests.helpers import assert_equal, differs, small


class OnPolicy(Algorithm):
    """The built-in step, in pieces."""

    def training_step(self) -> Mapping[str, float]:
        metrics = self.update(self.sample())
        self.sync_weights()
        return metrics


class OnPolicyFlow(Algorithm):
    """The same, as part of the program."""

    @staticmethod
    def compiled_training_step(flow: Any) -> None:
        flow.update(flow.sample())
        flow.sync_weights()


class Buffered(Algorithm):
    """The built-in step of algorithms that draw from a buffer, in pieces."""

    def training_step(self) -> Mapping[str, float]:
        self.add_to_buffer(self.sample())
        metrics = self.update()
        self.sync_weights()
        return metrics


class BufferedFlow(Algorithm):
    """The same, as part of the program."""

    @staticmethod
    def compiled_training_step(flow: Any) -> None:
        flow.add_to_buffer(flow.sample())
        flow.update()
        flow.sync_weights()


def make(algo_class: type[Algorithm] | None, algo: str = "PPO", **training: Any) -> Any:
    config = small(algo, **training)
    config.algo_class = algo_class
    return config


APPO = {"circular_buffer_num_batches": 2, "circular_buffer_iterations_per_batch": 2}


@pytest.mark.representatives("DQN-in_graph")
@pytest.mark.parametrize("placement", ["in_graph", "host"])
@pytest.mark.parametrize(
    ("algo", "training", "classes"),
    [
        pytest.param("PPO", {}, (OnPolicy, OnPolicyFlow), id="PPO"),
        pytest.param("DQN", {}, (Buffered, BufferedFlow), id="DQN"),
        pytest.param("APPO", APPO, (Buffered, BufferedFlow), id="APPO"),
        pytest.param("SAC", {}, (Buffered, BufferedFlow), id="SAC"),
        pytest.param("IMPALA", {}, (OnPolicy, OnPolicyFlow), id="IMPALA"),
    ],
)
def test_the_pieces_are_the_built_in_step(
    algo: str, training: dict[str, Any], classes: tuple[type[Algorithm], ...], placement: str
) -> None:
    rows, states = [], []
    for algo_class in (None, *classes):
        with (
            make(algo_class, algo, **training).env_runners(placement=placement).build() as algorithm
        ):
            rows += [algorithm.train() for _ in range(3)]
            states.append(algorithm.get_state()["train_state"])
    for state in states[1:]:
        assert_equal(state, states[0])
    for row in (rows[5], rows[8]):
        learned, built_in = (r["learners"]["default_policy"] for r in (row, rows[2]))
        assert learned == pytest.approx(built_in, rel=1e-4, abs=1e-6, nan_ok=True)
        sampled = {n: x for n, x in row["env_runners"].items() if "per_second" not in n}
        want = {n: x for n, x in rows[2]["env_runners"].items() if "per_second" not in n}
        sampled.pop("env_step_fraction", None), want.pop("env_step_fraction", None)
        assert sampled == pytest.approx(want, nan_ok=True)


@pytest.mark.parametrize("algo", ["PPO", pytest.param("DQN", marks=pytest.mark.slow)])
def test_the_pieces_are_the_built_in_step_of_several_agents(algo: str) -> None:
    classes = (OnPolicy, OnPolicyFlow) if algo == "PPO" else (Buffered, BufferedFlow)
    states = []
    for algo_class in (None, *classes):
        config = make(algo_class, algo)
        config.environment("MultiAgentCartPole-v0", env_config={"num_agents": 2})
        config.multi_agent(
            policies={"p0", "p1"},
            policy_mapping_fn=lambda agent_id, *args, **kwargs: f"p{agent_id}",
        )
        with config.build() as algorithm:
            results = [algorithm.train() for _ in range(3)]
            states.append(algorithm.get_state()["train_state"])
        assert results[-1]["learners"]["p1"]["grad_norm"] > 0
    for state in states[1:]:
        assert_equal(state, states[0])


@pytest.mark.slow
def test_two_devices_equal_one() -> None:
    states = []
    for algo_class, devices in ((OnPolicy, 1), (OnPolicy, 2), (OnPolicyFlow, 2)):
        config = make(algo_class).learners(num_devices=devices, num_shards=2)
        with config.build() as algorithm:
            algorithm.train()
            states.append(algorithm.get_weights())
    for state in states[1:]:
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), states[0], state
        )


@pytest.mark.slow
def test_two_devices_with_buffers_equal_one() -> None:
    for placement in ("in_graph", "host"):
        states = []
        for devices in (1, 2):
            config = make(Buffered, "DQN").learners(num_devices=devices, num_shards=2)
            with config.env_runners(placement=placement).build() as algorithm:
                for _ in range(3):
                    algorithm.train()
                states.append(algorithm.get_weights())
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), *states)


class Collecting(Algorithm):
    """Three batches sampled in a loop of the program, and one update on the last."""

    @staticmethod
    def compiled_training_step(flow: Any) -> None:
        flow.repeat(2, lambda flow: flow.add_to_buffer(flow.sample()))
        flow.add_to_buffer(flow.sample())
        flow.update()
        flow.sync_weights()


@pytest.mark.allow_key_reuse
def test_a_loop_may_sample() -> None:
    with make(Collecting, "DQN").build() as algorithm:
        jax.jit(algorithm.runner.train_batch)(algorithm.state)  # nothing leaves the loop
        result = algorithm.train()
    assert result["num_env_steps_sampled_lifetime"] % (3 * 128) == 0
    assert np.isfinite(result["learners"]["default_policy"]["total_loss"])


class Scheduled(Algorithm):
    """Two updates per sample, and one more every other time."""

    @staticmethod
    def compiled_training_step(flow: Any) -> None:
        batch = flow.sample()
        flow.update(batch)
        flow.repeat(1 + flow.progress.train_batches.low % 2, lambda flow: flow.update(batch))
        flow.sync_weights()


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["in_graph", "host"])
def test_a_schedule_of_updates(placement: str) -> None:
    """The counter is read after the first update: three updates, then two, and so on."""
    with make(Scheduled, num_epochs=1).env_runners(placement=placement).build() as algorithm:
        counts = []
        for _ in range(3):
            result = algorithm.train()
            counts.append(int(algorithm.state.progress.train_batches))
        assert counts == [3, 5, 7]
        assert result["learners"]["default_policy"]["num_updates_lifetime"] == 4 * 7
        assert result["num_env_steps_sampled_lifetime"] % (3 * 128) == 0
        assert result["num_training_step_calls_per_iteration"] == 1


class NumUpdates(Buffered):
    """Five gradient steps a batch, whatever the config says."""

    def training_step(self) -> Mapping[str, float]:
        self.add_to_buffer(self.sample())
        metrics = self.update(num_updates=5)
        self.sync_weights()
        return metrics


@pytest.mark.slow
def test_the_number_of_gradient_steps_is_the_users() -> None:
    with make(NumUpdates, "DQN").build() as algorithm:
        result = algorithm.train()
        calls = result["num_training_step_calls_per_iteration"]
        assert result["learners"]["default_policy"]["num_updates_lifetime"] == 5 * calls
        assert result["replay_buffer"]["num_env_steps_sampled_lifetime"] == 5 * calls * 128


class Unsynced(Algorithm):
    """An update that the runners never hear of."""

    batches: list[Any]

    def training_step(self) -> Mapping[str, float]:
        batch = self.sample()
        self.batches.append(batch)
        return self.update(batch)


@pytest.mark.representatives("host")
@pytest.mark.parametrize("placement", ["in_graph", "host"])
def test_runners_act_with_the_weights_of_the_last_synchronization(placement: str) -> None:
    """The probabilities of actions are those of the first weights until they are synchronized."""
    with make(Unsynced, lr=0.1).env_runners(placement=placement).build() as algorithm:
        algorithm.batches = []
        module, first = algorithm.get_module(), algorithm.get_weights()["default_policy"]

        def is_of(params: Any, batch: Any) -> bool:
            out = module.forward_train(params, {"obs": batch.rollout.obs})
            dist = module.action_dist(out["action_dist_inputs"])
            want = dist.log_prob(batch.rollout.action)
            return bool(np.allclose(want, batch.rollout.extras["action_logp"], atol=1e-5))

        algorithm.train()
        algorithm.train()
        assert all(is_of(first, batch) for batch in algorithm.batches)
        newest = algorithm.get_weights()["default_policy"]
        algorithm.sync_weights()
        last = algorithm.sample()
        assert is_of(newest, last)
        assert not is_of(first, last)


@pytest.mark.representatives("host")
@pytest.mark.parametrize("placement", ["in_graph", "host"])
def test_a_restore_keeps_the_weights_that_act(placement: str, tmp_path: Path) -> None:
    with make(Unsynced, lr=0.1).env_runners(placement=placement).build() as algorithm:
        algorithm.batches = []
        algorithm.train()
        path = algorithm.save(tmp_path)
        want = algorithm.sample()
        with Algorithm.from_checkpoint(path) as restored:
            assert isinstance(restored, Unsynced)
            assert_equal(restored.sample().rollout, want.rollout)
            restored.sync_weights()
            assert differs(restored.sample().rollout, algorithm.sample().rollout)
        with Algorithm.from_checkpoint(path) as restored:  # also the built-in step goes on
            Algorithm.training_step(restored)


class Mixed(Algorithm):
    """A piece or two, then the built-in step."""

    def training_step(self) -> Mapping[str, float]:
        self.update(self.sample())
        return super().training_step()


@pytest.mark.representatives("in_graph")
@pytest.mark.parametrize("placement", ["in_graph", "host"])
def test_pieces_and_the_built_in_step(placement: str) -> None:
    with make(Mixed).env_runners(placement=placement).build() as algorithm:
        result = algorithm.train()
        assert result["num_env_steps_sampled_lifetime"] == 2 * 128
        assert int(algorithm.state.progress.train_batches) == 2


def test_a_batch_may_be_changed_before_it_is_learned_from() -> None:
    """Rewards of zero everywhere leave no advantage to learn from, so only values change."""

    class Unrewarded(Algorithm):
        def training_step(self) -> Mapping[str, float]:
            batch = self.sample()
            rollout = replace(batch.rollout, reward=jnp.zeros_like(batch.rollout.reward))
            metrics = self.update(replace(batch, rollout=rollout))
            self.sync_weights()
            return metrics

    losses = []
    for algo_class in (OnPolicy, Unrewarded):
        with make(algo_class, gamma=0.5).build() as algorithm:
            losses.append(algorithm.train()["learners"]["default_policy"]["vf_loss"])
    assert losses[1] < 0.5 * losses[0]


def test_hooks_hear_of_own_samples() -> None:
    heard: dict[str, int] = {"episodes": 0, "samples": 0}

    def on_episode_end(**_: Any) -> None:
        heard["episodes"] += 1

    def on_sample_end(samples: Any, **_: Any) -> None:
        heard["samples"] += samples["num_env_steps_sampled"]

    config = make(OnPolicy).callbacks(on_episode_end=on_episode_end, on_sample_end=on_sample_end)
    with config.build() as algorithm:
        results = [algorithm.train() for _ in range(4)]
    assert heard["samples"] == 4 * 128
    assert heard["episodes"] == results[-1]["env_runners"]["num_episodes_lifetime"] > 0


@pytest.mark.slow
@pytest.mark.allow_key_reuse
def test_lanes_share_a_compiled_step() -> None:
    """Each lane is its solo run, and a step outside of the program is refused."""
    config = make(OnPolicyFlow).debugging(loggers=[]).sweep(seeds=[1, 2])
    with Population(config) as population:
        population.train()
        lanes = [population.lane(i).get_weights() for i in range(2)]
    with make(OnPolicyFlow).debugging(seed=2, loggers=[]).build() as alone:
        alone.train()
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
            alone.get_weights(),
            lanes[1],
        )
    with pytest.raises(ConfigError, match=r"OnPolicy has a training_step of its own.*compiled_"):
        Population(make(OnPolicy).sweep(seeds=[1, 2]))


@pytest.mark.parametrize("num_devices", [1, 2])
def test_lanes_that_would_update_different_numbers_of_times_are_refused(num_devices: int) -> None:
    """Also if each has its device alone, because all share one count of updates."""

    class AsManyAsEpisodes(Algorithm):
        @staticmethod
        def compiled_training_step(flow: Any) -> None:
            batch = flow.sample()
            flow.repeat(batch.rollout.is_first.sum(), lambda flow: flow.update(batch))

    config = make(AsManyAsEpisodes).learners(num_devices=num_devices).sweep(seeds=[1, 2])
    with pytest.raises(ConfigError, match=r"number of times that may differ between lanes"):
        Population(config).train()


def test_a_subclass_is_restored_as_itself(tmp_path: Path) -> None:
    """Also if the class itself was called, instead of named in the config."""
    with OnPolicyFlow(small()) as algorithm:
        path = algorithm.save(tmp_path)
    with Algorithm.from_checkpoint(path) as restored:
        assert isinstance(restored, OnPolicyFlow)
        restored.train()


class Counting(jaxrl.PPO):
    """A subclass as RLlib's users write it."""

    calls = 0

    @classmethod
    def get_default_config(cls) -> Any:
        return small(lr=0.25)

    def training_step(self) -> Mapping[str, float]:
        type(self).calls += 1
        return super().training_step()


def test_a_subclass_of_an_algorithm_by_name(tmp_path: Path) -> None:
    """`jaxrl.PPO` is a Trainable; with a method of Algorithm, its subclass is an Algorithm."""
    assert issubclass(Counting, Algorithm)
    before = Counting.calls
    with Counting({"num_epochs": 1}, env="CartPole-v1") as algorithm:
        assert (algorithm.config.lr, algorithm.config.num_epochs) == (0.25, 1)
        algorithm.train()
        path = algorithm.save(tmp_path)
    assert Counting.calls == before + 1
    with Algorithm.from_checkpoint(path) as restored:
        assert type(restored) is Counting

    trainable = as_trainable(Counting, "Counting")
    trial = trainable({"num_epochs": 1})
    try:
        assert trial.train()["num_env_steps_sampled_lifetime"] == 128
    finally:
        trial.stop()
    assert Counting.calls == before + 2

    class Unchanged(jaxrl.PPO):
        """Nothing of Algorithm: still what Tune takes."""

    assert issubclass(Unchanged, AlgorithmTrainable)


def test_steps_between_iterations_count_for_none() -> None:
    """They are part of the run, but of no result, and nothing of them is kept."""
    with make(OnPolicy).build() as algorithm:
        for _ in range(2):
            algorithm.update(algorithm.sample())
        result = algorithm.train()
        assert result["env_runners"]["num_env_steps_sampled"] == 128
        assert result["env_runners"]["num_env_steps_sampled_lifetime"] == 3 * 128


# --- wrong use ---


def train_with(step: Callable[[Any], object], algo: str = "PPO", **training: Any) -> None:
    class Wrong(Algorithm):
        def training_step(self) -> Mapping[str, float]:
            step(self)
            return {}

    with make(Wrong, algo, **training).build() as algorithm:
        algorithm.train()


WRONG: dict[str, tuple[Callable[[Any], object], str, dict[str, Any]]] = {
    "nothing": (lambda a: None, r"training_step\(\) of Wrong neither sampled nor updated", {}),
    "no batch": (lambda a: a.update(), r"update\(\) of PPOLearner needs a batch", {}),
    "no buffer": (
        lambda a: a.add_to_buffer(a.sample()),
        r"add_to_buffer\(\) needs an algorithm with a buffer, and PPOLearner",
        {},
    ),
    "batch and buffer": (
        lambda a: a.update(a.sample()),
        r"update\(batch\) cannot be used with DQNLearner.*add_to_buffer",
        {"algo": "DQN"},
    ),
    "steps without replay": (
        lambda a: a.update(a.sample(), num_updates=2),
        "num_updates=2 counts gradient steps on rows of a replay buffer, and PPOLearner",
        {},
    ),
    "half an update": (
        lambda a: a.update(num_updates=0.5),
        "num_updates must be a whole number from 1 on, got 0.5",
        {"algo": "DQN"},
    ),
    "interval": (
        lambda a: a.sample(),
        "broadcast_interval=3 has no effect on a training_step that calls sample",
        {"algo": "IMPALA", "broadcast_interval": 3},
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_use_is_a_sentence(name: str) -> None:
    step, message, settings = WRONG[name]
    with pytest.raises(ConfigError, match=message):
        train_with(step, **settings)


def test_a_step_that_only_updates_ends() -> None:
    """One call is an iteration, unless a number of samples is asked for that never comes."""
    kept: list[Any] = []

    class Offline(Algorithm):
        def training_step(self) -> Mapping[str, float]:
            if not kept:
                kept.append(self.sample())
            return self.update(kept[0])

    config = make(Offline)
    with config.build() as algorithm:
        algorithm.train()
        result = algorithm.train()
        assert result["env_runners"]["num_env_steps_sampled"] == 0
        assert result["env_runners"]["num_env_steps_sampled_lifetime"] == 128
        assert int(algorithm.state.progress.train_batches) == 2
    kept.clear()
    with make(Offline).reporting(min_sample_timesteps_per_iteration=64).build() as algorithm:
        algorithm.train()
        with pytest.raises(ConfigError, match=r"min_sample_timesteps_per_iteration=64 would never"):
            algorithm.train()


def test_a_compiled_step_is_checked_before_anything_is_compiled() -> None:
    class Bound(Algorithm):
        def compiled_training_step(self, flow: Any) -> None:  # type: ignore[override]
            flow.update(flow.sample())

    class Idle(Algorithm):
        @staticmethod
        def compiled_training_step(flow: Any) -> None:
            flow.sync_weights()

    with pytest.raises(ConfigError, match="must be a static function of the data flow alone"):
        make(Bound).build()
    with pytest.raises(ConfigError, match="neither sampled nor updated anything"):
        make(Idle).build()
    with pytest.raises(ConfigError, match="broadcast_interval=2 has no effect"):
        make(OnPolicyFlow, "IMPALA", broadcast_interval=2).build()


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("where", ["runners", "learners", "learners in graph"])
def test_actors_take_the_same_steps(where: str) -> None:
    """Runner actors, learner actors on their data, and learner actors that step environments."""
    configs = []
    for algo_class in (None, OnPolicy):
        config = make(algo_class).learners(num_shards=2)
        config.env_runners(num_cpus_per_env_runner=0.5)
        if where == "learners in graph":
            config.learners(num_learners=2, num_cpus_per_learner=0.5)
        elif where == "learners":
            config.env_runners(placement="host")
            config.learners(num_learners=2, num_cpus_per_learner=0.5)
        else:
            config.env_runners(num_env_runners=2, num_envs_per_env_runner=8)
        configs.append(config)
    states = []
    for config in configs:
        with config.build() as algorithm:
            for _ in range(2):
                algorithm.train()
            states.append(algorithm.get_weights())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), *states)


class Reporting(Algorithm):
    """Returns values of its own, and one that a result has."""

    def training_step(self) -> dict[str, Any]:
        super().training_step()
        return {"mine": {"number": 7}, "env_runners": {"num_episodes": -1, "extra": 2}}


def test_what_a_training_step_of_ones_own_returns_is_in_the_result() -> None:
    config = small().debugging(loggers=[])
    config.algo_class = Reporting
    with config.build() as algorithm:
        result = algorithm.train()
    assert result["mine"] == {"number": 7}
    assert result["env_runners"]["extra"] == 2
    assert result["env_runners"]["num_episodes"] >= 0
