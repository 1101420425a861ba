"""MARWIL's returns within windows and with memory, against a walk over each part in NumPy."""

import dataclasses
import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import BCConfig, EpisodeWriter, MARWILConfig
from jaxrl.algorithms.marwil import MARWILLearner
from jaxrl.assembly.offline import concatenate_sources
from jaxrl.buffers.dataset import Dataset, DatasetSampler, DrawnRows, compute_returns_to_go
from jaxrl.core.struct import replace
from jaxrl.core.types import Columns
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import ConfigError
from jaxrl.learners.bootstrap import compute_window_returns
from tests.helpers import slow_but
from tests.recorded_data import ACTION_SPACE, OBS_SPACE, make_part, make_parts, write_data
from tests.recurrent import MEMORY

GAMMA, LAMBDA = 0.9, 0.8
PLAIN = {"fcnet_hiddens": [8]}
LENGTHS = [("terminated", 5), ("truncated", 3), ("is_cut", 7), ("terminated", 1), ("truncated", 6)]
PARTS = [
    make_part(i, n, **{kind: True, "is_cut": kind == "is_cut"})
    for i, (kind, n) in enumerate(LENGTHS)
]
STARTS = np.array([0, 2, 6, 11, 17, 20])
"""First rows of the windows, of which one goes on at the beginning of the data."""


def make_learner(model: dict[str, Any], **training: Any) -> tuple[MARWILLearner, Any]:
    """Make a learner, and parameters that are far from their initial ones."""
    config = MARWILConfig().training(gamma=GAMMA, **training).rl_module(model_config=model)
    module = config.get_rl_module_spec(OBS_SPACE, ACTION_SPACE).build()
    learner = MARWILLearner(module=module, settings=config.training_settings)
    rng = np.random.default_rng(0)

    def moved(x: Any) -> Any:
        return x + jnp.asarray(rng.normal(size=x.shape) * 0.3, jnp.float32)

    return learner, jax.tree.map(moved, jax.jit(module.init)(jax.random.key(0)))


def make_sampler(length: int, **changes: Any) -> DatasetSampler:
    return DatasetSampler(
        batch_size=len(STARTS), num_updates=1, num_shards=1, sequence_length=length, **changes
    )


def gather(sampler: DatasetSampler, data: Dataset, starts: np.ndarray = STARTS) -> Any:
    drawn = DrawnRows(rows=jnp.asarray(starts, jnp.int32), learns=jnp.ones(len(starts), bool))
    gamma = jnp.float32(GAMMA)
    returns = compute_returns_to_go(data, gamma) if sampler.needs_returns else None
    sampler = dataclasses.replace(sampler, batch_size=len(starts))
    return sampler.gather(data, drawn, returns, gamma, jax.random.key(0))


def load(parts: list[EpisodePart]) -> Dataset:
    return jax.tree.map(jnp.asarray, concatenate_sources([parts]))


@functools.partial(jax.jit, static_argnums=0)
def forward(learner: MARWILLearner, params: Any, obs: Any) -> Any:
    return learner.module.forward_train(params, {Columns.OBS: obs})


@functools.partial(jax.jit, static_argnums=0)
def compute_targets(learner: MARWILLearner, params: Any, batch: Any) -> Any:
    out = learner.module.forward_train(params, {Columns.OBS: batch.obs})
    return learner.compute_value_targets(
        params, batch, out, SimpleNamespace(gamma=jnp.float32(GAMMA))
    )


@functools.cache
def compile_step(learner: MARWILLearner) -> Any:
    """Return one step of the module, compiled once."""
    return jax.jit(learner.module._forward_step)  # pyright: ignore[reportPrivateUsage]


def unroll(learner: MARWILLearner, params: Any, rows: Any) -> np.ndarray:
    """Return the values of observations of one episode, from its initial state, one at a time."""
    carry, values = learner.module.initial_carry(1), []
    for row in rows:
        out = compile_step(learner)(params, row[None], carry)
        carry = out[Columns.STATE_OUT]
        values.append(float(out[Columns.VF_PREDS][0]))
    return np.asarray(values)


def evaluate(learner: MARWILLearner, params: Any, rows: Any) -> np.ndarray:
    """Return the values of observations, which follow each other if the module remembers."""
    if learner.module.is_stateful:
        return unroll(learner, params, rows)
    return np.asarray(learner.module.compute_values(params, jnp.asarray(rows)))


def walk(rewards: Any, values: Any, ends_task: bool, lambda_: float) -> np.ndarray:
    """Compute λ-returns backwards over rows whose successors' values are `values[1:]`."""
    target = 0.0 if ends_task else float(values[-1])
    targets = []
    for t in reversed(range(len(rewards))):
        is_end = t == len(rewards) - 1
        after = target if is_end else (1.0 - lambda_) * float(values[t + 1]) + lambda_ * target
        target = float(rewards[t]) + GAMMA * after
        targets.append(target)
    return np.asarray(targets[::-1])


def find_pieces(start: int, length: int, parts: list[EpisodePart]) -> list[tuple[int, int, int]]:
    """Return the part, the first and the end step of each piece of a window."""
    owners = [(number, t) for number, part in enumerate(parts) for t in range(len(part))]
    pieces: list[tuple[int, int, int]] = []
    for place in range(start, start + length):
        number, t = owners[place % len(owners)]
        if pieces and pieces[-1][0] == number and pieces[-1][2] == t:
            pieces[-1] = (number, pieces[-1][1], t + 1)
        else:
            pieces.append((number, t, t + 1))
    return pieces


@pytest.mark.parametrize("model", [PLAIN, MEMORY], ids=["plain", "memory"])
def test_lambda_returns_are_walks_that_end_with_windows_and_parts(model: dict[str, Any]) -> None:
    learner, params = make_learner(model, lambda_=LAMBDA)
    length, has_memory = 4, learner.module.is_stateful
    batch = gather(make_sampler(length, has_memory=has_memory), load(PARTS))
    found = compute_targets(learner, params, batch)
    want: list[float] = []
    for start in STARTS:
        for number, first, end in find_pieces(start, length, PARTS):
            part = PARTS[number]
            values = evaluate(learner, params, part.obs[first : end + 1])
            is_end = part.terminated and end == len(part)
            want.extend(walk(part.reward[first:end], values, is_end, LAMBDA))
    np.testing.assert_allclose(np.asarray(found).reshape(-1), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("burn_in", slow_but(2, of=[0, 2]))
def test_returns_with_memory_go_to_the_end_of_the_part(burn_in: int) -> None:
    """The state at an end outside of the window is that after the part's last rows."""
    learner, params = make_learner(MEMORY)
    length, data = 3, load(PARTS)
    batch = gather(make_sampler(length, burn_in=burn_in, needs_returns=True), data)
    found = compute_targets(learner, params, batch)
    rows, is_outside = iter(np.asarray(found).reshape(-1)), []
    for start in STARTS:
        for number, first, end in find_pieces(start, length, PARTS):
            part = PARTS[number]
            before = (
                max(0, first - burn_in) if first and first == start_of(start, number) else first
            )
            seen = before if end == len(part) else max(0, len(part) - burn_in - length)
            is_outside.append(end < len(part) and seen > 0 and not part.terminated)
            value = 0.0 if part.terminated else unroll(learner, params, part.obs[seen:])[-1]
            for t in range(first, end):
                left = range(t, len(part))
                want = sum(GAMMA ** (k - t) * part.reward[k] for k in left)
                np.testing.assert_allclose(
                    next(rows), want + GAMMA ** len(left) * value, rtol=1e-4, atol=1e-5
                )
    assert next(rows, None) is None
    assert any(is_outside)


def start_of(row: int, number: int) -> int:
    """Return the step in a part of a row of the dataset."""
    return row - sum(map(len, PARTS[:number]))


@pytest.mark.representatives("memory")
@pytest.mark.parametrize("model", [PLAIN, MEMORY], ids=["plain", "memory"])
def test_lambda_of_one_is_the_return_of_the_whole_part(model: dict[str, Any]) -> None:
    """Windows that parts fill have the same targets on both paths."""
    parts = [dataclasses.replace(make_part(i, 6), **end) for i, end in enumerate(ENDS)]
    learner, params = make_learner(model)
    data, starts, has_memory = load(parts), np.arange(3) * 6, learner.module.is_stateful
    batch = gather(make_sampler(6, has_memory=has_memory), data, starts)

    @jax.jit
    def compute(params: Any, batch: Any) -> Any:
        out = learner.module.forward_train(params, {Columns.OBS: batch.obs})
        value_fn = functools.partial(learner.module.compute_values, params)
        return compute_window_returns(value_fn, batch, out, jnp.float32(GAMMA), 1.0)

    found = compute(params, batch)
    if has_memory:
        whole = gather(make_sampler(6, needs_returns=True), data, starts)
    else:
        rows = DrawnRows(rows=jnp.arange(18), learns=jnp.ones(18, bool))
        sampler = DatasetSampler(batch_size=18, num_updates=1, num_shards=1, needs_returns=True)
        returns = compute_returns_to_go(data, jnp.float32(GAMMA))
        whole = sampler.gather(data, rows, returns, jnp.float32(GAMMA), jax.random.key(0))
    want = compute_targets(learner, params, whole)
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)


ENDS = [
    {"terminated": True, "is_cut": False},
    {"truncated": True, "is_cut": False},
    {"is_cut": True},
]


def test_no_gradient_flows_into_the_targets() -> None:
    learner, params = make_learner(MEMORY, lambda_=LAMBDA)
    batch = gather(make_sampler(4), load(PARTS))

    slopes = jax.jit(jax.grad(lambda params: compute_targets(learner, params, batch).sum()))(params)
    assert all((np.asarray(x) == 0.0).all() for x in jax.tree.leaves(slopes))


@pytest.mark.parametrize("has_memory", [True, False])
def test_rows_after_the_data_weigh_nothing_in_epochs(has_memory: bool) -> None:
    batch = gather(make_sampler(4, has_memory=has_memory, order="epochs"), load(PARTS))
    weight = np.asarray(batch.weight).reshape(len(STARTS), 4)
    assert weight.sum() == 4 * len(STARTS) - 2
    assert weight[-1].tolist() == [1.0, 1.0, 0.0, 0.0]


def test_the_state_of_a_sequence_has_nothing_of_the_episode_before() -> None:
    """Other observations before an episode's start change no output after it, those in it do."""
    learner, params = make_learner(MEMORY)
    data = load(PARTS)
    batch = gather(make_sampler(4, burn_in=2), data, np.array([3]))  # rows 1 to 6; 5 is a first
    assert batch.obs.is_first.tolist() == [[False, False, False, False, True, False]]

    def outputs(rows: slice) -> np.ndarray:
        obs = replace(batch.obs, obs=batch.obs.obs.at[:, rows].add(1.0))
        return np.asarray(forward(learner, params, obs)[Columns.ACTION_DIST_INPUTS])[0]

    plain = outputs(slice(0, 0))
    np.testing.assert_array_equal(outputs(slice(0, 4))[2:], plain[2:])
    assert (outputs(slice(0, 2))[:2] != plain[:2]).any()  # the burn-in counts
    assert (outputs(slice(4, 5))[3] != plain[3]).any()


# --- runs ---

param, FILTER = pytest.param, {"observation_filter": "MeanStdFilter"}
GRU = {**MEMORY, "recurrent_layer_type": "gru"}


def make_config(data: str, config_class: Any = MARWILConfig, **settings: Any) -> Any:
    config = config_class().offline_data(input_=data, num_updates_per_iteration=5)
    config.training(train_batch_size=16).rl_module(model_config=PLAIN)
    return config.debugging(loggers=[], seed=1).update_from_dict(settings)


@pytest.mark.parametrize(
    "settings",
    [
        param({"lambda_": 0.9, "window_length": 8}, id="windows", marks=pytest.mark.slow),
        param(
            {"lambda_": 0.9, "model_config": MEMORY}, id="memory, lambda", marks=pytest.mark.slow
        ),
        param({"model_config": MEMORY, "burn_in_len": 3, **FILTER}, id="memory"),
        param(
            {"model_config": GRU, "dataset_sampling": "uniform"}, id="GRU", marks=pytest.mark.slow
        ),
    ],
)
def test_trains_and_resumes_to_the_bit(tmp_path: Path, settings: dict[str, Any]) -> None:
    with make_config(write_data(tmp_path / "data"), **settings).build() as algorithm:
        learned = algorithm.train()
        assert learned["num_env_steps_trained_lifetime"] == 5 * 16
        assert learned["learners"]["default_policy"]["num_updates_lifetime"] == 5
        path = algorithm.save(tmp_path / "checkpoint")
        want = algorithm.train()["learners"]["default_policy"]
    assert np.isfinite(want["total_loss"])
    with type(algorithm).from_checkpoint(path) as resumed:
        assert resumed.train()["learners"]["default_policy"]["total_loss"] == want["total_loss"]


@pytest.mark.slow
def test_a_lambda_next_to_one_trains_as_lambda_of_one_does(tmp_path: Path) -> None:
    """With one window per part, and all rows in every update."""
    parts = [dataclasses.replace(make_part(i, 6), **ENDS[i % 3]) for i in range(6)]
    losses, data = [], write_data(tmp_path / "data", parts)
    for training in ({"lambda_": 1.0}, {"lambda_": 1.0 - 1e-7, "window_length": 6}):
        config = make_config(data, lr=0.01, **training)
        config.training(train_batch_size=36, moving_average_sqd_adv_norm_start=1.0)
        with config.build() as algorithm:
            losses.append(algorithm.train()["learners"]["default_policy"])
    for name in ("policy_loss", "vf_loss", "vf_explained_var"):
        np.testing.assert_allclose(losses[0][name], losses[1][name], rtol=1e-4)


@pytest.mark.slow
def test_devices_change_no_windows(tmp_path: Path) -> None:
    data = write_data(tmp_path / "data")
    learned = []
    for devices in (1, 2):
        settings = {"lambda_": 0.9, "window_length": 4, "num_devices": devices, "num_shards": 2}
        with make_config(data, **settings).build() as algorithm:
            learned.append(algorithm.train()["learners"]["default_policy"]["total_loss"])
    np.testing.assert_allclose(*learned, rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"lambda_": 0.9, "beta": 0.0}, "lambda_=0.9 has no effect with beta=0, which has no adv"),
        ({"window_length": 8}, "window_length=8 has no effect unless lambda_ is below 1; leave it"),
        (
            {"window_length": 8, "lambda_": 0.9, "model_config": MEMORY},
            "window_length=8 has no effect with memory: set max_seq_len; leave it out",
        ),
        (
            {"window_length": 7, "lambda_": 0.9},
            "train_batch_size=16 must be whole sequences of window_length=7 rows for each of",
        ),
        ({"burn_in_len": 2}, "burn_in_len=2 has no effect on a module without memory"),
        (
            {"burn_in_len": 2, "lambda_": 0.9, "window_length": 8},
            "burn_in_len=2 has no effect on a module without memory",
        ),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config(write_data(tmp_path / "data", make_parts(2)), **settings).build()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


# --- memory ---

DELAY = 4


def record_recall(folder: Path) -> str:
    """Record who remembers the first observation of an episode, and repeats it at every step."""
    obs_space, action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32), BINARY
    with EpisodeWriter(folder, obs_space, action_space) as writer:
        for number in range(60):
            first = 2.0 * (number % 2) - 1.0
            obs = np.zeros((DELAY + 2, 1), np.float32)
            obs[0] = first
            action = np.full(DELAY + 1, number % 2, np.int32)
            reward = (np.arange(DELAY + 1) == DELAY).astype(np.float32)
            part = make_part(number, DELAY + 1, terminated=True, action_space=action_space)
            writer.add_parts([dataclasses.replace(part, obs=obs, action=action, reward=reward)])
    return str(folder)


BINARY = gymnasium.spaces.Discrete(2)
LSTM = {"fcnet_hiddens": [16], "use_lstm": True, "lstm_cell_size": 16, "max_seq_len": 10}


def play_recall(config: Any, data: str, model: dict[str, Any], **training: Any) -> float:
    config = config().environment("probe-recall-v0", env_config={"delay": DELAY})
    config.offline_data(input_=data, num_updates_per_iteration=150)
    config.training(lr=0.01, train_batch_size=80, **training)
    config.rl_module(model_config=model).debugging(loggers=[], seed=0)
    with config.build() as algorithm:
        algorithm.train()
        played = algorithm.evaluate(num_episodes=64)["env_runners"]
        return played["episode_return_mean"]


@pytest.mark.slow
def test_behavior_cloning_recalls_with_memory_alone(tmp_path: Path) -> None:
    data = record_recall(tmp_path / "data")
    assert play_recall(BCConfig, data, LSTM) == 1.0
    assert play_recall(BCConfig, data, {"fcnet_hiddens": [16]}) < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("training", [{}, {"lambda_": 0.9}, {"burn_in_len": 3}])
def test_marwil_recalls_with_memory(tmp_path: Path, training: dict[str, Any]) -> None:
    data = record_recall(tmp_path / "data")
    assert play_recall(MARWILConfig, data, LSTM, **training) == 1.0
