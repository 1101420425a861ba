"""Lanes of a sweep that learn from recorded data: one dataset, and every lane the run by itself."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import (
    AWACConfig,
    BCConfig,
    CQLConfig,
    DQNConfig,
    IQLConfig,
    MARWILConfig,
    Population,
    PopulationBasedTraining,
    TD3Config,
    grid,
    loguniform,
    uniform,
)
from jaxrl.config.markers import Marker
from jaxrl.errors import CheckpointError, ConfigError, DataError, HostLanesError
from jaxrl.metrics import get_score
from jaxrl.sweeps.lane_group import SharedDataset
from tests.helpers import assert_close, slow_but
from tests.recorded_data import make_part, make_parts, write_data

pytestmark = pytest.mark.allow_key_reuse

BOX = spaces.Box(-2.0, 2.0, (1,), np.float32)
SMALL = {"fcnet_hiddens": [8]}
LSTM = {**SMALL, "use_lstm": True, "max_seq_len": 4, "lstm_cell_size": 4}


@pytest.fixture(name="data")
def make_data(tmp_path: Path) -> str:
    return write_data(tmp_path / "data")


@pytest.fixture(name="box_data")
def make_box_data(tmp_path: Path) -> str:
    return write_data(tmp_path / "box", make_parts(action_space=BOX), BOX)


def make_config(data: str, algorithm: type = DQNConfig, **settings: Any) -> Any:
    config = algorithm().offline_data(input_=data, num_updates_per_iteration=6)
    config.training(train_batch_size=16).rl_module(model_config=SMALL)
    config.debugging(seed=3).checkpointing(checkpoint_at_end=False)
    return config.update_from_dict(settings)


def train_alone(sweep: Population, index: int, iterations: int = 1) -> tuple[Any, Any]:
    """Train the single run of a lane, and return its result and its state."""
    lane = sweep.lanes[index]
    with lane.config.copy(copy_frozen=False).debugging(seed=lane.seed).build() as alone:
        for _ in range(iterations):
            result = alone.train()
        return result, alone.get_state()["train_state"]


def get_state(sweep: Population, index: int) -> Any:
    return sweep._runs[index].algorithm.get_state()["train_state"]


RUNS: dict[str, tuple[type, dict[str, Any]]] = {
    "BC": (BCConfig, {"lr": grid([1e-3, 1e-2])}),
    "MARWIL": (MARWILConfig, {"gamma": grid([0.9, 0.99]), "num_updates_per_iteration": 12}),
    "windows": (MARWILConfig, {"lambda_": 0.8, "window_length": 4, "vf_coeff": grid([0.5, 1.0])}),
    "DQN": (DQNConfig, {"lr": grid([1e-3, 1e-2]), "n_step": (1, 3)}),
    "memory": (DQNConfig, {"model_config": LSTM, "burn_in_len": 2, "gamma": grid([0.9, 0.99])}),
    "filter": (BCConfig, {"lr": grid([1e-3, 1e-2]), "observation_filter": "MeanStdFilter"}),
    "CQL": (CQLConfig, {"min_q_weight": grid([1.0, 5.0])}),
    "IQL": (IQLConfig, {"beta": grid([0.1, 3.0])}),
    "TD3+BC": (TD3Config, {"bc_coeff": grid([1.0, 2.5])}),
    "AWAC": (AWACConfig, {"gamma": grid([0.9, 0.99])}),
}
CONTINUOUS = ("CQL", "IQL", "TD3+BC", "AWAC")


@pytest.mark.parametrize("name", slow_but("MARWIL", of=RUNS))
def test_a_lane_is_the_run_by_itself(data: str, box_data: str, name: str) -> None:
    algorithm, settings = RUNS[name]
    config = make_config(box_data if name in CONTINUOUS else data, algorithm, **settings)
    with config.sweep(seeds=2).build() as sweep:
        assert isinstance(sweep, Population)
        assert len(sweep._groups) == 1
        result = sweep.train()
        states = [get_state(sweep, index) for index in range(4)]
        want, state = train_alone(sweep, 3)
    got = result["lanes"][3]
    assert_close(state, states[3], rtol=1e-4, atol=1e-5)
    assert got["num_env_steps_sampled_lifetime"] == 0
    trained = "num_env_steps_trained_lifetime"
    assert got[trained] == want[trained] == config.num_updates_per_iteration * 16
    for metric, value in want["learners"]["default_policy"].items():
        assert got["learners"]["default_policy"][metric] == pytest.approx(
            value, rel=1e-3, abs=1e-4
        ), metric
    assert len({params_of(state) for state in states}) == 4
    assert got["config"] == {name: grids.values[1] for name, grids in markers(settings).items()}


def markers(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if isinstance(value, Marker)}


def params_of(state: Any) -> bytes:
    return b"".join(x.tobytes() for name, x in state.items() if ".sgd.params" in name)


def test_lanes_do_not_share_rewards_that_depend_on_the_lane(data: str) -> None:
    config = make_config(data, MARWILConfig, normalize_rewards=True, gamma=grid([0.5, 0.99]))
    with pytest.raises(HostLanesError, match="NormalizeRewards read gamma, in which the runs diff"):
        Population(config)


def test_each_lane_draws_rows_by_its_own_seed(data: str) -> None:
    """With the same values, lanes of two seeds differ, and those of one seed do not."""
    config = make_config(data, BCConfig, lr=grid([1e-3, 1e-3])).sweep(seeds=2)
    with config.build() as sweep:
        start = sweep._groups[0][0].states.learner.sgd.params
        same = jax.tree.map(lambda x: jax.numpy.broadcast_to(x[:1], x.shape), start)
        group = sweep._groups[0][0]
        learner = dataclasses.replace(
            group.states.learner, sgd=dataclasses.replace(group.states.learner.sgd, params=same)
        )
        group.states = dataclasses.replace(group.states, learner=learner)
        sweep.train()
        params = [params_of(get_state(sweep, index)) for index in range(4)]
    assert params[0] == params[2] != params[1] == params[3]


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_lanes_share_one_dataset(tmp_path: Path, devices: int) -> None:
    """Eight lanes have one copy on each device among the arguments, and none in the program."""
    data = write_data(tmp_path / "large", [make_part(i, 500, terminated=True) for i in range(40)])
    config = make_config(data, BCConfig, num_devices=devices).sweep(seeds=8)
    with config.build() as sweep:
        sweep.train()
        (group,) = sweep._groups[0]
        shared = group.data
        assert isinstance(shared, SharedDataset)
        assert all(len(leaf.devices()) == devices for leaf in jax.tree.leaves(shared.dataset))
        stats = sweep._runs[0].algorithm.last_result["compile"]["train"]
    size = shared.num_bytes
    assert size > 500_000
    assert size < stats["argument_bytes"] < 1.5 * size  # a second copy would double it
    assert stats["temp_bytes"] < 0.3 * size


@pytest.mark.slow
def test_programs_of_other_shapes_share_the_dataset(data: str) -> None:
    models = [{"fcnet_hiddens": [8]}, {"fcnet_hiddens": [4]}]
    config = make_config(data, BCConfig, model_config=grid(models)).sweep(max_lanes_per_program=1)
    with config.sweep(seeds=2).build() as sweep:
        assert [len(turns) for turns in sweep._groups] == [2, 2]
        datasets = [group.data.dataset for turns in sweep._groups for group in turns]
        assert all(dataset is datasets[0] for dataset in datasets)
        assert len(sweep.train()["lanes"]) == 4


@pytest.mark.slow
def test_lanes_of_other_data_have_programs_of_their_own(data: str, tmp_path: Path) -> None:
    other = write_data(tmp_path / "other", make_parts(4))
    with make_config(data, BCConfig, input_=grid([data, other])).build() as sweep:
        first, second = (turns[0].data for turns in sweep._groups)
        assert first.dataset.num_rows == 135
        assert second.dataset.num_rows == 86
        result = sweep.train()
        _, state = train_alone(sweep, 1)
        assert_close(state, get_state(sweep, 1), rtol=1e-4, atol=1e-5)
    assert len(result["lanes"]) == 2


@pytest.mark.slow
def test_a_resumed_sweep_goes_on_to_the_bit_with_the_same_data(data: str) -> None:
    config = make_config(data, BCConfig, dataset_sampling="epochs").sweep(seeds=2)
    with config.build() as sweep:
        sweep.train()
        folder = sweep.save()
        sweep.train()
        want = [get_state(sweep, index) for index in range(2)]
    with Population.from_checkpoint(folder) as resumed:
        assert resumed.train()["training_iteration"] == 2
        for index in range(2):
            jax.tree.map(np.testing.assert_array_equal, want[index], get_state(resumed, index))
        with resumed.lane(1) as alone:
            jax.tree.map(np.testing.assert_array_equal, want[1], alone.get_state()["train_state"])
    shutil.rmtree(data)
    write_data(Path(data), make_parts(4))
    with pytest.raises(CheckpointError, match="trained on other recorded data"):
        Population.from_checkpoint(folder)


@pytest.mark.slow
def test_each_lane_is_evaluated_in_its_own_environment(tmp_path: Path) -> None:
    data = write_cartpole(tmp_path / "cartpole")
    config = make_config(data, BCConfig).environment("CartPole-v1")
    config.environment(env_config={"gravity": grid([9.8, 60.0])})
    config.evaluation(evaluation_interval=2, evaluation_duration=4).sweep(seeds=2)
    with config.build() as sweep:
        assert len(sweep._groups) == 1
        assert "evaluation" not in sweep.train()["lanes"][0]
        result = sweep.train()["lanes"]
        lane = sweep.lanes[2]
        alone_config = lane.config.copy(copy_frozen=False).debugging(seed=lane.seed)
        with alone_config.build() as alone:
            alone.set_state(sweep._runs[2].algorithm.get_state())
            want = alone.evaluate()["env_runners"]
        evaluated = sweep.evaluate(num_episodes=2)["lanes"]
        returns = [r["evaluation"]["env_runners"]["episode_return_mean"] for r in result.values()]
        assert returns[sweep.best_lane()] == max(returns)
        assert np.isfinite([point.score for point in sweep.points()]).all()
    assert result[2]["evaluation"]["env_runners"] == pytest.approx(want)
    assert [r["evaluation"]["env_runners"]["num_episodes"] for r in result.values()] == [4] * 4
    assert evaluated[1]["env_runners"]["num_episodes"] == 2
    lengths = [r["evaluation"]["env_runners"]["episode_len_mean"] for r in result.values()]
    assert len(set(lengths)) > 1


def write_cartpole(folder: Path) -> str:
    import gymnasium

    from jaxrl import EpisodeWriter

    env = gymnasium.make("CartPole-v1")
    obs = np.random.default_rng(0).uniform(-0.1, 0.1, (31, 4)).astype(np.float32)
    part = make_part(0, 30, terminated=True, action_space=spaces.Discrete(2), obs=obs)
    with EpisodeWriter(folder, env.observation_space, env.action_space) as writer:
        writer.add_parts([part])
    return str(folder)


# --- population based training ---

HELD_OUT = {"offline_evaluation_interval": 1, "offline_evaluation_split": 0.3}
LOSS = "evaluation/offline_eval_runners/default_policy/total_eval_loss"


def make_population(data: str, algorithm: type = MARWILConfig, **arguments: Any) -> Any:
    scheduler = PopulationBasedTraining(
        **{
            "hyperparam_mutations": {"beta": loguniform(0.1, 10.0)},
            "perturbation_interval": 2 * 6 * 16,
            "time_attr": "num_env_steps_trained_lifetime",
            "metric": LOSS,
            "mode": "min",
            **arguments,
        }
    )
    config = make_config(data, algorithm, **HELD_OUT)
    return config.sweep(num_samples=3, scheduler=scheduler)


def test_lanes_go_on_as_copies_of_those_with_the_best_held_out_loss(data: str) -> None:
    """One dataset, rounds by the rows trained on, and a resumed population goes on to the bit."""
    with make_population(data).build() as sweep:
        results = [sweep.train()["lanes"] for _ in range(2)]
        folder = sweep.save()
        sweep.train()
        (exploit,) = sweep.schedule
        (group,) = sweep._groups[0]
        scores = [get_score(results[1][i], LOSS) for i in range(3)]
        assert (exploit.training_iteration, exploit.source_score) == (2, min(scores))
        assert exploit.score == max(scores)
        hparams = group.states.learner.hparams["beta"]
        assert float(hparams[exploit.lane]) == pytest.approx(exploit.new["beta"])
        want = [get_state(sweep, index) for index in range(3)]
    with Population.from_checkpoint(folder) as resumed:
        resumed.train()
        assert resumed.schedule == [exploit]
        for index in range(3):
            jax.tree.map(np.testing.assert_array_equal, want[index], get_state(resumed, index))


def test_a_round_waits_for_the_evaluation(data: str) -> None:
    config = make_population(data, time_attr="training_iteration", perturbation_interval=1)
    with config.evaluation(offline_evaluation_interval=2).build() as sweep:
        for _ in range(3):
            sweep.train()
        assert [exploit.training_iteration for exploit in sweep.schedule] == [2]


def test_behavior_cloning_is_a_program_of_its_own(data: str) -> None:
    with make_config(data, MARWILConfig, beta=grid([0.0, 1.0, 2.0])).build() as sweep:
        assert [len(turns[0].lanes) for turns in sweep._groups] == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            {"metric": "env_runners/episode_return_mean"},
            "is in no result of runs that learn from recorded data: set metric='evaluation/env_run",
        ),
        (
            {"metric": "evaluation/env_runners/episode_return_mean"},
            "is in no result without evaluation(evaluation_interval=...)",
        ),
        (
            {"metric": "evaluation/off_policy_estimator/is/v_target"},
            "is in no result: off_policy_estimation_methods names no estimate",
        ),
        (
            {"time_attr": "num_env_steps_sampled_lifetime"},
            "stays at 0 in runs that learn from recorded data: set 'num_env_steps_trained_lifetime'",
        ),
        (
            {"hyperparam_mutations": {"beta": uniform(0.0, 1.0)}},
            "hyperparam_mutations['beta'] has 0, which is another program than other values",
        ),
    ],
)
def test_schedulers_that_would_never_act_are_one_sentence(
    data: str, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_population(data, **arguments).build()
    assert said in str(caught.value)


def test_losses_on_held_out_episodes_need_them(data: str) -> None:
    config = make_population(data).evaluation(offline_evaluation_interval=None)
    config.evaluation(offline_evaluation_split=0.1)
    with pytest.raises(
        ConfigError, match=r"without evaluation\(offline_evaluation_interval=\.\.\.\)"
    ):
        config.build()


# --- wrong input ---


def test_rows_in_host_memory_are_no_lanes(data: str) -> None:
    config = make_config(data, BCConfig, dataset_storage="host").sweep(seeds=2)
    with pytest.raises(HostLanesError, match=r"dataset_storage='host' sends rows to each run"):
        Population(config)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"dataset_storage": "stream"}, "A sweep is not supported with dataset_storage='stream'"),
        ({"num_learners": 2}, "which is 'stream' here"),
        ({"input_": "nothing/here"}, "No file matches"),
        (
            {"dataset_storage": "device", "max_dataset_bytes": 100},
            "max_dataset_bytes=100 allows 0.00 MiB",
        ),
        ({"train_batch_size": grid([16, 10**6])}, "more than the 135 recorded"),
        ({"num_envs_per_env_runner": 2}, "'num_envs_per_env_runner' (got 2) has no effect"),
    ],
)
def test_sweeps_that_do_not_fit_are_one_sentence(
    data: str, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises((ConfigError, DataError)) as caught:
        make_config(data, BCConfig, **settings).sweep(seeds=2).build()
    assert said in str(caught.value)
