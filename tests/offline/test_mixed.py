"""Shares of sources: exact numbers of rows, beside a replay buffer and without one."""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import (
    Algorithm,
    BCConfig,
    CQLConfig,
    DQNConfig,
    EpisodeWriter,
    MARWILConfig,
    PPOConfig,
    SACConfig,
)
from jaxrl.algorithms.dqn import DQNLearner
from jaxrl.assembly.assemble import assemble
from jaxrl.assembly.offline import concatenate_sources
from jaxrl.buffers.dataset import DatasetSampler
from jaxrl.core.types import IS_RECORDED
from jaxrl.errors import CheckpointError, ConfigError, DataError
from jaxrl.training.offline import MixedTrainStep
from tests.recorded_data import OBS_SPACE, make_part, write_data

SMALL = {"fcnet_hiddens": [8]}
MARK = 1000.0
"""Reward of recorded rows, which no environment gives."""


def make_sampler(sizes: tuple[int, ...], num_shards: int) -> DatasetSampler:
    return DatasetSampler(
        batch_size=sum(sizes), num_updates=1, num_shards=num_shards, source_sizes=sizes
    )


@pytest.mark.representatives("1-2")
@pytest.mark.parametrize("num_shards", [1, 2])
@pytest.mark.parametrize("num_devices", [1, 2])
def test_each_draw_has_the_exact_number_of_every_source(num_shards: int, num_devices: int) -> None:
    if num_devices > num_shards:
        pytest.skip("a shard is on one device")
    lengths = (3, 50, 7)
    sources = [[make_part(i, length)] for i, length in enumerate(lengths)]
    data = jax.tree.map(jnp.asarray, concatenate_sources(sources))
    sizes = (4, 2, 10)
    sampler, bounds = make_sampler(sizes, num_shards), np.cumsum([0, *lengths])
    seen = set()

    @jax.jit
    def draw(key: Any) -> Any:
        on_device = jax.vmap(
            lambda _: sampler.draw(data, None, key, axis_name="d").rows, axis_name="d"
        )
        return on_device(jnp.arange(num_devices)), sampler.draw(data, None, key).rows

    for seed in range(20):
        found, alone = draw(jax.random.key(seed))
        rows = np.asarray(found).ravel()
        counts = [np.sum((rows >= a) & (rows < b)) for a, b in itertools.pairwise(bounds)]
        assert tuple(counts) == sizes
        seen |= set(rows.tolist())
        np.testing.assert_array_equal(rows, alone)  # whatever the number of devices
    assert {*range(3), *range(53, 60)} <= seen


def write_marked(folder: Path, env: str = "CartPole-v1") -> str:
    """Write 60 steps in the spaces of an environment, with the marked reward."""
    obs_space, action_space = assemble(PPOConfig().environment(env)).made.spaces
    with EpisodeWriter(folder, obs_space, action_space, actions_are_normalized=True) as writer:
        for i in range(6):
            part = make_part(i, 10, terminated=True, action_space=spaces.Discrete(2))
            action = np.zeros((10, 1), np.float32) if env.startswith("Pendulum") else part.action
            obs = np.tile(np.zeros(obs_space.shape, np.float32), (11, 1))
            changes = {"obs": obs, "action": action, "reward": np.full(10, MARK, np.float32)}
            writer.add_parts([dataclasses.replace(part, **changes)])
    return str(folder)


class CountingLearner(DQNLearner):
    """Reports what the rows of a gradient step are."""

    def compute_loss(self, params: Any, batch: Any, targets: Any, key: Any) -> Any:
        loss, metrics = super().compute_loss(params, batch, targets, key)
        is_marked = batch.reward == MARK
        agrees = jnp.mean(is_marked == (batch.extras[IS_RECORDED] > 0.0))
        return loss, {**metrics, "num_marked": jnp.sum(is_marked) * 1.0, "agrees": agrees}


def make_config(data: Any, **training: Any) -> DQNConfig:
    config = DQNConfig().environment("CartPole-v1").rl_module(model_config=SMALL)
    config.learners(learner_class=CountingLearner)
    config.training(num_steps_sampled_before_learning_starts=32)
    config.training(**{"train_batch_size": 16, **training})
    config.reporting(min_sample_timesteps_per_iteration=128).debugging(loggers=[])
    return config.offline_data(input_=data)


@pytest.mark.representatives("prioritized")
@pytest.mark.parametrize("buffer", ["uniform", "prioritized"])
def test_shares_are_exact_also_when_the_buffer_is_full(tmp_path: Path, buffer: str) -> None:
    """The ring has been written over twice at the end; demonstrations are not in it.

    Evaluations play in the environment. A run resumes, and its data are checked.
    """
    one, two = (write_marked(tmp_path / name) for name in "ab")
    config = make_config(
        {"sampler": 0.75, one: 0.125, two: 0.125},
        replay_buffer_config={"type": buffer, "capacity": 64},
    )
    config.evaluation(evaluation_interval=2, evaluation_duration=2)
    with config.build() as algorithm:
        for i in range(2):
            result = algorithm.train()
            learned = result["learners"]["default_policy"]
            assert learned["num_marked"] == 4.0
            assert learned["agrees"] == 1.0
            if i == 0:
                path = algorithm.save(tmp_path / "checkpoint")
        want = algorithm.get_weights()
    assert result["num_env_steps_trained_lifetime"] == 16 * learned["num_updates_lifetime"]
    assert result["num_env_steps_sampled_lifetime"] == 256
    assert result["evaluation"]["env_runners"]["num_episodes"] == 2
    with Algorithm.from_checkpoint(path, trust=["tests"]) as resumed:
        resumed.train()
        jax.tree.map(np.testing.assert_array_equal, resumed.get_weights(), want)
    changed = {"input_": {"sampler": 0.75, two: 0.25}}
    with pytest.raises(CheckpointError, match="trained on other recorded data"):
        Algorithm.from_checkpoint(path, trust=["tests"], **changed)


@pytest.mark.slow
def test_the_order_of_sources_changes_no_share(tmp_path: Path) -> None:
    """Programs are shared by configs that are equal as JSON, in which keys have no order."""
    one, two = (write_marked(tmp_path / name) for name in "ab")
    shares = {"sampler": 0.5, one: 0.125, two: 0.375}
    seen = []
    for names in (list(shares), list(shares)[::-1]):
        config = make_config({name: shares[name] for name in names}).debugging(seed=1)
        with config.build() as algorithm:
            algorithm.train()
            group = algorithm.learner_group
            seen.append((group.fingerprint, algorithm.get_weights()))
    assert seen[0][0] == seen[1][0]
    jax.tree.map(np.testing.assert_array_equal, seen[0][1], seen[1][1])


def test_rows_may_be_given_per_learner(tmp_path: Path) -> None:
    data = write_marked(tmp_path / "data")
    config = DQNConfig().environment("CartPole-v1").training(train_batch_size_per_learner=20)
    runner = assemble(config.offline_data(input_={"sampler": 0.7, data: 0.3})).train_step
    assert isinstance(runner, MixedTrainStep)
    assert runner.recorded.source_sizes == (6,)
    assert runner.replay is not None
    assert runner.replay.rows_per_update == 20


def test_one_source_with_all_rows_is_that_source(tmp_path: Path) -> None:
    config = BCConfig().offline_data(input_={write_data(tmp_path / "a"): 1.0})
    with config.training(train_batch_size=16).debugging(loggers=[]).build() as algorithm:
        assert algorithm._assembly.train_step.experience.order == "epochs"


@pytest.mark.slow
def test_devices_agree(tmp_path: Path) -> None:
    data = write_marked(tmp_path / "data")
    losses = []
    for num_devices in (1, 2):
        config = make_config({"sampler": 0.5, data: 0.5}, grad_clip=None)
        config.env_runners(num_envs_per_env_runner=2).learners(
            num_devices=num_devices, num_shards=2
        )
        with config.debugging(seed=1).build() as algorithm:
            result = algorithm.train()["learners"]["default_policy"]
            losses.append(result["qf_mean"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.slow
def test_margins_are_of_recorded_rows_alone(tmp_path: Path) -> None:
    data = write_marked(tmp_path / "data")
    runs = {}
    for share in (0.25, 0.5):
        config = make_config({"sampler": 1.0 - share, data: share}, margin_coeff=1.0, lr=0.0)
        config.debugging(seed=3)
        with config.build() as algorithm:
            runs[share] = algorithm.train()["learners"]["default_policy"]["margin_loss"]
    assert runs[0.25] > 0.0
    assert runs[0.5] == pytest.approx(2.0 * runs[0.25], rel=0.2)


@pytest.mark.slow
def test_rlpd_is_sac_with_shares(tmp_path: Path) -> None:
    data = write_marked(tmp_path / "data", "Pendulum-v1")
    config = SACConfig().environment("Pendulum-v1").rl_module(model_config=SMALL)
    config.training(train_batch_size=16, num_steps_sampled_before_learning_starts=32)
    config.reporting(min_sample_timesteps_per_iteration=64).debugging(loggers=[])
    with config.offline_data(input_={"sampler": 0.5, data: 0.5}).build() as algorithm:
        learned = algorithm.train()["learners"]["default_policy"]
    assert np.isfinite(learned["total_loss"])
    assert learned["qf_mean"] != 0.0


def test_shares_of_recorded_sources_alone(tmp_path: Path) -> None:
    """One arm of a bandit is in each source, and the policy has the shares as probabilities."""
    names = []
    for arm in range(2):
        parts = [make_part(i, 10 + 40 * arm, terminated=True) for i in range(3)]
        parts = [
            dataclasses.replace(
                part, obs=np.zeros_like(part.obs), action=np.full(len(part), arm, np.int32)
            )
            for part in parts
        ]
        names.append(write_data(tmp_path / str(arm), parts))
    config = BCConfig().offline_data(
        input_={names[0]: 0.75, names[1]: 0.25}, num_updates_per_iteration=300
    )
    config.training(train_batch_size=64, lr=1e-2).rl_module(model_config=SMALL)
    config.debugging(loggers=[], seed=0)
    with config.build() as algorithm:
        algorithm.train()
        params, obs = algorithm.state.learner.sgd.params, np.zeros((1, 2), np.float32)
        inputs = algorithm.get_module().forward_train(params, {"obs": obs})
        probs = np.asarray(jax.nn.softmax(inputs["action_dist_inputs"]))[0]
    assert probs[0] == pytest.approx(0.75, abs=0.1)


def test_shares_are_of_whole_sequences(tmp_path: Path) -> None:
    config = MARWILConfig().training(lambda_=0.9, window_length=20, train_batch_size=160)
    shares = {write_data(tmp_path / name): share for name, share in (("a", 0.25), ("b", 0.75))}
    config.offline_data(input_=shares)
    sampler = assemble(config).offline_step.experience
    assert isinstance(sampler, DatasetSampler)
    assert sampler.source_sizes == (2, 6)
    assert sampler.num_shards == 2


def test_a_config_with_shares_survives_json() -> None:
    config = DQNConfig().environment("CartPole-v1").offline_data(input_={"sampler": 0.5, "d": 0.5})
    copied = DQNConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert copied["input_"] == {"sampler": 0.5, "d": 0.5}
    assert config.is_mixed
    assert not config.is_offline


HALVES = {"sampler": 0.5, "data": 0.5}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (DQNConfig().offline_data(input_={}), r"input_=\{\} has no source"),
        (
            DQNConfig().offline_data(input_={"data": 0.5, "./data/": 0.5}),
            r"'./data/': 0.5\} names a source twice",
        ),
        (
            DQNConfig().offline_data(input_={"sampler": 0.5, "data": 0.4}),
            r"shares that sum to 0.9; they must sum to 1",
        ),
        (
            DQNConfig().offline_data(input_={"sampler": 1.5, "data": -0.5}),
            r"has the share -0.5 of 'data'; shares must be above 0",
        ),
        (
            DQNConfig().offline_data(input_={"sampler": 0.9, "data": 0.1}),
            r"no whole rows of train_batch_size=32; set it to 30",
        ),
        (PPOConfig().offline_data(input_=HALVES), r"PPO learns from its newest steps: use DQN"),
        (CQLConfig().offline_data(input_=HALVES), r"CQL learns from recorded data alone"),
        (
            DQNConfig().offline_data(input_=HALVES, num_updates_per_iteration=5),
            r"'num_updates_per_iteration' \(got 5\) has no effect with input_=",
        ),
        (
            DQNConfig().offline_data(input_=HALVES, dataset_sampling="epochs"),
            r"'dataset_sampling' \(got 'epochs'\) has no effect",
        ),
        (
            DQNConfig().offline_data(input_=HALVES).env_runners(normalize_rewards=True),
            r"normalize_rewards=True is not supported with input_=",
        ),
        (
            MARWILConfig()
            .offline_data(input_={"a": 0.3, "b": 0.7})
            .training(lambda_=0.9, window_length=20, train_batch_size=160),
            r"no whole sequences of window_length=20 rows of train_batch_size=160; set it to 200",
        ),
        (
            DQNConfig().offline_data(input_=HALVES).env_runners(num_env_runners=1),
            r"'num_env_runners' \(got 1\) has no effect",
        ),
        (
            DQNConfig().offline_data(input_=HALVES).rl_module(model_config={"use_lstm": True}),
            r"mixes single rows, and .* learns from sequences",
        ),
    ],
)
def test_wrong_shares_are_one_sentence(config: Any, message: str) -> None:
    config.environment("CartPole-v1")
    if "train_batch_size" not in config.explicit and "sequences" in message:
        config.training(train_batch_size=320)
    with pytest.raises(ConfigError, match=message) as caught:
        config.build()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("num_devices", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_environments_on_the_host_fill_the_buffer(tmp_path: Path, num_devices: int) -> None:
    """Shares are exact, a run resumes, and its data are checked, as in the compiled program."""
    data = write_marked(tmp_path / "data")
    config = make_config({"sampler": 0.75, data: 0.25}).environment("gymnasium:CartPole-v1")
    config.env_runners(num_envs_per_env_runner=2)
    config.learners(num_devices=num_devices, num_shards=2).debugging(seed=1)
    with config.build() as algorithm:
        result = algorithm.train()
        learned = result["learners"]["default_policy"]
        path = algorithm.save(tmp_path / "checkpoint")
    assert (learned["num_marked"], learned["agrees"]) == (4.0 / num_devices, 1.0)  # on each device
    assert result["num_env_steps_trained_lifetime"] == 16 * learned["num_updates_lifetime"]
    assert result["num_env_steps_sampled_lifetime"] == 128
    if num_devices > 1:
        return
    with Algorithm.from_checkpoint(path, trust=["tests"]) as resumed:
        resumed.train()
        after = resumed.train()["learners"]["default_policy"]
        assert after["num_marked"] == 4.0
        assert after["num_updates_lifetime"] > learned["num_updates_lifetime"]
    other = write_marked(tmp_path / "other")
    changed = {"input_": {"sampler": 0.75, data: 0.125, other: 0.125}}
    with pytest.raises(CheckpointError, match="trained on other recorded data"):
        Algorithm.from_checkpoint(path, trust=["tests"], **changed)
    Path(data).rename(tmp_path / "moved")
    with (
        Algorithm.from_checkpoint(path, trust=["tests"]) as restored,
        pytest.raises(DataError, match="No file matches"),
    ):
        restored.train()


def test_a_buffer_in_host_memory_is_refused(tmp_path: Path) -> None:
    config = make_config({"sampler": 0.75, "data": 0.25}).environment("gymnasium:CartPole-v1")
    config.training(replay_buffer_config={"storage": "host"})
    with pytest.raises(ConfigError, match="keeps it in host memory: set its 'storage' to 'device'"):
        config.build()


class OwnStep(Algorithm):
    """Training step of a user, of pieces."""

    def training_step(self) -> None:
        batch = self.sample()
        self.add_to_buffer(batch)
        self.update()


def test_a_training_step_of_pieces_is_refused_on_the_host(tmp_path: Path) -> None:
    data = write_marked(tmp_path / "data")
    config = make_config({"sampler": 0.75, data: 0.25}).environment("gymnasium:CartPole-v1")
    config.algo_class = OwnStep
    with (
        config.build() as algorithm,
        pytest.raises(ConfigError, match=r"call super\(\).training_st"),
    ):
        algorithm.train()


def test_an_environment_is_needed() -> None:
    with pytest.raises(ConfigError, match="env is not set"):
        DQNConfig().offline_data(input_=HALVES).build()


def test_epochs_have_no_shares(tmp_path: Path) -> None:
    one, two = (write_data(tmp_path / name) for name in "ab")
    config = BCConfig().offline_data(input_={one: 0.5, two: 0.5}, dataset_sampling="epochs")
    with pytest.raises(ConfigError, match="dataset_sampling='epochs' draws every row equally"):
        config.training(train_batch_size=16).build()


def test_sources_of_other_spaces_are_refused(tmp_path: Path) -> None:
    one = write_data(tmp_path / "a")
    folder = tmp_path / "b"
    with EpisodeWriter(folder, OBS_SPACE, spaces.Discrete(5)) as writer:
        writer.add_parts([make_part(0, 5, terminated=True)])
    config = BCConfig().offline_data(input_={one: 0.5, str(folder): 0.5})
    with pytest.raises(DataError, match="action_space"):
        config.training(train_batch_size=16).build()


def test_a_row_has_the_same_draws_whatever_the_number_of_devices(tmp_path: Path) -> None:
    """The actions that SAC draws for the rows of an update are drawn by place."""
    data = {"sampler": 0.5, write_marked(tmp_path / "data", "Pendulum-v1"): 0.5}
    found: list[Any] = []
    for num_devices in (1, 2):
        config = SACConfig().environment("Pendulum-v1").rl_module(model_config=SMALL)
        config.env_runners(num_envs_per_env_runner=4, rollout_fragment_length=4)
        config.training(train_batch_size=16, num_steps_sampled_before_learning_starts=16)
        config.training(replay_buffer_config={"type": "prioritized", "capacity": 160})
        config.reporting(min_sample_timesteps_per_iteration=16).debugging(loggers=[], seed=1)
        config.learners(num_devices=num_devices, num_shards=2).offline_data(input_=data)
        with config.build() as algorithm:
            algorithm.train()
            found.append(algorithm.get_state()["train_state"])
    one, two = found
    compared = [name for name in one if name.startswith(("learner.sgd.params", "buffer"))]
    for name in compared:
        np.testing.assert_allclose(one[name], two[name], rtol=1e-4, atol=1e-6, err_msg=name)
    assert any("priorities" in name for name in compared)
