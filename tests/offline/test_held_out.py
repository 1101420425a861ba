"""Evaluation on held-out episodes: what is held out, the losses, the estimates, and wrong input."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import (
    Algorithm,
    BCConfig,
    Callbacks,
    DQNConfig,
    MARWILConfig,
    PPOConfig,
    TD3Config,
    grid,
)
from jaxrl.assembly.offline import open_sources
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import CheckpointError, ConfigError, DataError
from jaxrl.offline.checks import number_id
from jaxrl.offline.held_out import is_held_out
from jaxrl.offline.recorded import RecordedData
from tests.helpers import slow_but
from tests.recorded_data import ACTION_SPACE, OBS_SPACE, make_part, write_data

BOX = spaces.Box(-1.0, 1.0, (1,), np.float32)
SMALL = {"fcnet_hiddens": [8]}
LSTM = {**SMALL, "use_lstm": True, "max_seq_len": 4, "lstm_cell_size": 4}
SPLIT = 0.3


def make_episodes(number: int = 30, action_space: gymnasium.Space[Any] = ACTION_SPACE) -> list[Any]:
    """Make whole episodes of 5 to 9 steps, with the densities of uniform actions."""
    parts: list[EpisodePart] = []
    for i in range(number):
        length = 5 + i % 5
        density = np.full(length, -np.log(3.0), np.float32)
        ends = {"terminated": i % 2 == 0, "truncated": i % 2 == 1}
        extras = {"action_logp": density}
        parts.append(make_part(i, length, action_space=action_space, extras=extras, **ends))
    return parts


def is_out(part: EpisodePart) -> bool:
    return is_held_out(part.episode_id, SPLIT)


HELD_OUT = [part for part in make_episodes() if is_out(part)]
LEFT = [part for part in make_episodes() if not is_out(part)]
NUM_ROWS = sum(map(len, HELD_OUT))


@pytest.fixture(name="data")
def make_data(tmp_path: Path) -> str:
    return write_data(tmp_path / "data", make_episodes(), has_density=True)


def make_config(data: Any, algorithm: type = BCConfig, **settings: Any) -> Any:
    config = algorithm().offline_data(input_=data, num_updates_per_iteration=4)
    config.training(train_batch_size=16).rl_module(model_config=SMALL).debugging(seed=3)
    config.evaluation(offline_evaluation_interval=1, offline_evaluation_split=SPLIT)
    return config.checkpointing(checkpoint_at_end=False).update_from_dict(settings)


def get_losses(result: Any) -> dict[str, float]:
    return result["evaluation"]["offline_eval_runners"]["default_policy"]


# --- what is held out ---


def test_the_share_of_episodes_is_the_split_and_grows_with_it() -> None:
    ids = [f"run-{i}" for i in range(10_000)]
    small, large = ({x for x in ids if is_held_out(x, share)} for share in (0.1, 0.4))
    assert len(small) == pytest.approx(1000, abs=100)
    assert len(large) == pytest.approx(4000, abs=160)
    assert small < large
    own = [f"run#{i}" for i in range(1000)]
    assert sum(is_held_out(x, 0.4) for x in own) == pytest.approx(400, abs=60)
    assert all(is_held_out(x, 0.4) == is_held_out(number_id(x, 2), 0.4) for x in own)
    assert not any(is_held_out(x, 0.0) for x in ids)


def iter_rows(algorithm: Algorithm, storage: str) -> Iterator[Any]:
    """Yield the observations that are acted on in what a run learns from."""
    if storage == "stream":
        from jaxrl.runners.ray.offline import make_row_task

        config, assembly = algorithm.config, algorithm._assembly
        data = open_sources(
            config.offline_data_settings, config.environment_settings, assembly.made.spaces
        )[0]
        task = make_row_task(config, assembly, data, assembly.offline_step.experience)
        for path in data.files:
            for chunk in task._iter_chunks(str(path)):
                yield np.asarray(chunk.get_obs(np.arange(chunk.num_rows)))
        return
    group = algorithm.learner_group
    dataset = group.dataset if storage == "device" else group.source.dataset
    yield np.asarray(dataset.get_obs(np.arange(dataset.num_rows)))


@pytest.mark.parametrize("storage", ["device", "host", "stream"])
def test_held_out_episodes_are_never_trained_on(data: str, storage: str) -> None:
    """The others all are."""
    where = "device" if storage == "stream" else storage  # its tasks need no Ray
    algorithm = make_config(data, dataset_storage=where).build()
    rows = np.concatenate(list(iter_rows(algorithm, storage)))
    trained = {row.tobytes() for row in rows}
    assert trained == {row.tobytes() for part in LEFT for row in part.obs[:-1]}
    held_out, _, _ = algorithm._held_out._losses
    evaluated = {row.tobytes() for row in np.asarray(held_out.obs)}
    assert evaluated == {row.tobytes() for part in HELD_OUT for row in part.obs}
    assert not trained & evaluated
    assert len(HELD_OUT) > 4
    assert f"Held out: {100 * SPLIT:g}% of the episodes" in algorithm.explain()


@pytest.mark.parametrize("storage", slow_but("device", of=["device", "host"]))
def test_the_data_are_read_once(data: str, storage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the losses, the estimates and the training alike, and nothing of it is kept."""
    reads: list[Any] = []
    read = RecordedData.iter_parts
    monkeypatch.setattr(RecordedData, "iter_parts", lambda self: reads.append(self) or read(self))
    methods = {"clone": {"type": "wis"}}
    algorithm = make_config(
        data, dataset_storage=storage, off_policy_estimation_methods=methods
    ).build()
    evaluated = algorithm.train()["evaluation"]
    assert {"off_policy_estimator", "offline_eval_runners"} <= set(evaluated)
    assert len(reads) == 1
    assert not algorithm._assembly.episode_split._waiting


def test_without_an_interval_all_are_trained_on(data: str) -> None:
    config = make_config(data, offline_evaluation_interval=None, offline_evaluation_split=0.1)
    algorithm = config.build()
    assert algorithm.learner_group.dataset.num_rows == sum(map(len, make_episodes()))
    assert "evaluation" not in algorithm.train()
    with pytest.raises(ConfigError, match="has no held-out episodes: set offline_evaluation_inter"):
        algorithm.evaluate_held_out()


def test_the_order_of_files_changes_nothing(tmp_path: Path) -> None:
    """Neither the episodes, nor those of a shorter evaluation."""
    parts = make_episodes()
    files = [write_data(tmp_path / f"{i}", parts[i::3], has_density=True) for i in range(3)]
    settings = {"offline_evaluation_duration": 2, "offline_eval_batch_size_per_runner": 8}
    results = []
    for order in (files, files[::-1]):
        algorithm = make_config(order, **settings).build()
        losses = algorithm._held_out._losses
        results.append((np.asarray(losses[0].obs), algorithm.evaluate_held_out()))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]
    assert results[0][1]["offline_eval_runners"]["num_env_steps"] == 16


def test_a_checkpoint_is_of_one_split(data: str, tmp_path: Path) -> None:
    algorithm = make_config(data).build()
    first = algorithm.train()
    path = algorithm.save(tmp_path / "checkpoint")
    want = algorithm.train()
    restored = Algorithm.from_checkpoint(path)
    assert restored.last_result["training_iteration"] == 1
    assert get_losses(restored.train()) == get_losses(want) != get_losses(first)
    for changes in ({"offline_evaluation_split": 0.2}, {"offline_evaluation_interval": None}):
        changes = {"offline_evaluation_split": 0.1, **changes}
        with pytest.raises(CheckpointError, match="trained on other recorded data"):
            Algorithm.from_checkpoint(path, **changes)


# --- losses ---


def test_the_loss_is_that_of_the_held_out_actions(data: str) -> None:
    """The mean negative log-probability, computed by NumPy from the policy's logits."""
    algorithm = make_config(data, observation_filter="NoFilter", lr=0.1).build()
    algorithm.train()
    obs = np.concatenate([part.obs[:-1] for part in HELD_OUT])
    actions = np.concatenate([part.action for part in HELD_OUT])
    out = algorithm.get_module()({"obs": jnp.asarray(obs)})
    logits = np.asarray(out["action_dist_inputs"], np.float64)
    log_prob = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    want = -log_prob[np.arange(len(actions)), actions].mean()
    found = algorithm.evaluate_held_out()["offline_eval_runners"]
    assert found["default_policy"]["total_eval_loss"] == pytest.approx(want, rel=1e-5)
    assert found["num_env_steps"] == NUM_ROWS == len(actions)


@pytest.mark.slow
def test_losses_of_parts_are_of_the_same_parameters(tmp_path: Path) -> None:
    """TD3's policy loss is of the critic as it is, and of now, although its step is delayed."""
    parts = make_episodes(action_space=BOX)
    data = write_data(tmp_path / "box", parts, BOX)
    algorithm = make_config(data, TD3Config, critic_lr=0.5, policy_delay=3).build()
    result = algorithm.train()
    module, params = algorithm.get_module(), algorithm.state.learner.sgd.params
    obs = jnp.asarray(np.concatenate([part.obs[:-1] for part in parts if is_out(part)]))
    action = module.compute_policy_action(params["policy"], obs)
    q_values = module.compute_first_q_values(params["critic"], obs, action)
    assert get_losses(result)["policy_loss"] == pytest.approx(-float(q_values.mean()), rel=1e-4)


BATCHES: dict[str, tuple[type, dict[str, Any]]] = {
    "BC": (BCConfig, {}),
    "MARWIL": (MARWILConfig, {"gamma": 0.9}),
    "windows": (MARWILConfig, {"lambda_": 0.8, "window_length": 4}),
    "DQN": (DQNConfig, {"n_step": 3, "cql_alpha": 1.0, "margin_coeff": 0.5}),
    "memory": (BCConfig, {"model_config": LSTM}),
}


@pytest.mark.parametrize("name", slow_but("MARWIL", "DQN", of=BATCHES))
def test_the_size_of_batches_changes_no_loss(data: str, name: str) -> None:
    algorithm, settings = BATCHES[name]
    losses = []
    for size in (12, 10_000):
        run = make_config(data, algorithm, offline_eval_batch_size_per_runner=size, **settings)
        losses.append(get_losses(run.build().train()))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4, abs=1e-6)
    assert set(losses[0]) >= {"total_eval_loss"}


@pytest.mark.slow
def test_an_evaluation_changes_no_training(data: str) -> None:
    runs = [make_config(data, offline_evaluation_interval=n).build() for n in (1, 3)]
    results = [[run.train() for _ in range(3)] for run in runs]
    one, other = (jax.tree.map(np.asarray, run.state.learner) for run in runs)
    jax.tree.map(np.testing.assert_array_equal, one, other)
    assert "evaluation" not in results[1][1]
    assert get_losses(results[1][2]) == pytest.approx(get_losses(results[0][2]), rel=1e-6)
    assert (
        runs[0].evaluate_held_out()["offline_eval_runners"]
        == results[0][2]["evaluation"]["offline_eval_runners"]
    )
    assert results[0][0]["timers"]["offline_evaluation_s"] > 0.0


# --- estimates ---


def test_estimates_are_those_of_the_held_out_episodes(data: str, tmp_path: Path) -> None:
    """As if their folder had been given."""
    folder = write_data(tmp_path / "held_out", HELD_OUT, has_density=True)
    methods = {"mine": {"type": "wis"}, "rllibs": {"type": "ray.rllib.x.ImportanceSampling"}}
    config = make_config(data, offline_evaluation_type="pdis", gamma=0.9)
    algorithm = config.evaluation(off_policy_estimation_methods=methods).build()
    result = algorithm.train()["evaluation"]
    report = algorithm.evaluate_offline(folder, ["pdis", "wis", "is"])
    own = result["offline_eval_runners"]
    assert own["num_episodes"] == report.num_episodes == len(HELD_OUT)
    assert own["episode_return_mean"] == pytest.approx(report.estimates["pdis"].value, rel=1e-5)
    assert own["behavior_return_mean"] == pytest.approx(report.behavior.value)
    named = result["off_policy_estimator"]
    assert named["mine"]["v_target"] == pytest.approx(report.estimates["wis"].value, rel=1e-5)
    assert named["rllibs"]["v_target"] == pytest.approx(report.estimates["is"].value, rel=1e-5)
    delta = named["mine"]["v_target"] - named["mine"]["v_behavior"]
    assert named["mine"]["v_delta"] == pytest.approx(delta)
    without_input = algorithm.evaluate_offline(methods=["wis"])
    assert without_input.num_episodes == len(HELD_OUT)
    assert without_input.estimates["wis"].value == pytest.approx(named["mine"]["v_target"])


def test_rows_of_a_bandit_are_episodes_of_their_own(data: str) -> None:
    """Importance sampling is then the mean of π(a|s) r / μ(a|s), in closed form."""
    config = make_config(data, offline_evaluation_type="is", ope_split_batch_by_episode=False)
    algorithm = config.build()
    algorithm.train()
    found = algorithm.evaluate_held_out()["offline_eval_runners"]
    obs = np.concatenate([part.obs[:-1] for part in HELD_OUT])
    actions = np.concatenate([part.action for part in HELD_OUT])
    rewards = np.concatenate([part.reward for part in HELD_OUT])
    out = algorithm.get_module()({"obs": jnp.asarray(obs)})
    logits = np.asarray(out["action_dist_inputs"], np.float64)
    prob = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    want = np.mean(prob[np.arange(len(actions)), actions] * 3.0 * rewards)
    assert found["num_episodes"] == NUM_ROWS
    assert found["episode_return_mean"] == pytest.approx(want, rel=1e-4)


@pytest.mark.slow
def test_a_duration_is_a_number_of_batches_of_episodes(data: str) -> None:
    config = make_config(data, offline_evaluation_type="wis", offline_evaluation_duration=2)
    config.evaluation(offline_eval_batch_size_per_runner=2)
    found = config.build().evaluate_held_out()["offline_eval_runners"]
    assert found["num_episodes"] == 4


@pytest.mark.slow
def test_a_fitted_value_function_has_settings_of_its_own(data: str) -> None:
    fast = {"num_updates": 20, "batch_size": 8}
    methods = {"fast": {"type": "dm", **fast}, "dr": {"type": "dr", **fast}}
    algorithm = make_config(data, off_policy_estimation_methods=methods).build()
    found = algorithm.evaluate_held_out()["off_policy_estimator"]
    report = algorithm.evaluate_offline(methods=["dm", "dr"], fqe=fast, seed=3)
    assert found["fast"]["v_target"] == pytest.approx(report.estimates["dm"].value, rel=1e-4)
    assert found["dr"]["v_target"] == pytest.approx(report.estimates["dr"].value, rel=1e-4)


# --- callbacks, sweeps, other evaluations ---


class Calls(Callbacks):
    """Say what is called, and extend the result."""

    def on_evaluate_offline_start(self, *, algorithm: Algorithm) -> None:
        TOLD.append(("start", algorithm.iteration))

    def on_evaluate_offline_end(
        self, *, algorithm: Algorithm, evaluation_metrics: dict[str, Any]
    ) -> None:
        TOLD.append(("end", algorithm.iteration))
        evaluation_metrics["offline_eval_runners"]["mine"] = 7.0


TOLD: list[tuple[str, int]] = []


def test_callbacks_are_called_around_an_evaluation(data: str) -> None:
    TOLD.clear()
    config = make_config(
        data, offline_evaluation_interval=2, always_attach_evaluation_results=False
    )
    algorithm = config.callbacks(Calls).build()
    results = [algorithm.train() for _ in range(3)]
    assert TOLD == [("start", 2), ("end", 2)]
    assert results[1]["evaluation"]["offline_eval_runners"]["mine"] == 7.0
    assert "evaluation" not in results[2]


@pytest.mark.allow_key_reuse
@pytest.mark.slow
def test_every_lane_has_its_own_evaluation(data: str) -> None:
    config = make_config(data, lr=grid([1e-3, 1e-1])).sweep(seeds=2)
    with config.build() as sweep:
        lanes = sweep.train()["lanes"]
        assert len({id(run.algorithm._held_out) for run in sweep._runs}) == 1
        lane = sweep.lanes[3]
        best = sweep.best_lane(
            "evaluation/offline_eval_runners/default_policy/total_eval_loss", "min"
        )
    losses = [get_losses(lanes[i])["total_eval_loss"] for i in range(4)]
    with lane.config.copy(copy_frozen=False).debugging(seed=lane.seed).build() as alone:
        assert losses[3] == pytest.approx(get_losses(alone.train())["total_eval_loss"], rel=1e-4)
    assert len(set(losses)) == 4
    assert losses[best] == min(losses)


@pytest.mark.slow
def test_results_of_both_kinds_stay_side_by_side(tmp_path: Path) -> None:
    env = gymnasium.make("CartPole-v1")
    from jaxrl import EpisodeWriter

    rng = np.random.default_rng(0)
    with EpisodeWriter(tmp_path / "d", env.observation_space, env.action_space) as writer:
        for i in range(12):
            obs = rng.uniform(-0.1, 0.1, (7, 4)).astype(np.float32)
            two = spaces.Discrete(2)
            writer.add_parts([make_part(i, 6, terminated=True, action_space=two, obs=obs)])
    config = make_config(str(tmp_path / "d")).environment("CartPole-v1")
    config.evaluation(evaluation_interval=2, evaluation_duration=2)
    algorithm = config.build()
    results = [algorithm.train()["evaluation"] for _ in range(3)]
    assert [sorted(result) for result in results] == [
        ["offline_eval_runners"],
        ["env_runners", "offline_eval_runners"],
        ["env_runners", "offline_eval_runners"],
    ]
    assert results[2]["env_runners"] == results[1]["env_runners"]
    assert results[2]["offline_eval_runners"] != results[1]["offline_eval_runners"]


# --- wrong input ---


def refused(config: Any) -> str:
    with pytest.raises((ConfigError, DataError)) as caught:
        config.build()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"offline_evaluation_split": 1e-6},
            "holds out none of the 30 recorded episodes: raise it",
        ),
        (
            {"offline_evaluation_split": 1 - 1e-9},
            "holds out all of the 30 recorded episodes: lower",
        ),
        ({"offline_evaluation_split": 1.0}, "offline_evaluation_split must be above 0 and below 1"),
        ({"offline_evaluation_type": "iss"}, "Did you mean 'is'"),
        ({"offline_evaluation_duration": 0}, "offline_evaluation_duration must be at least 1"),
        (
            {"off_policy_estimation_methods": {"a": {"type": "wiss"}}},
            "off_policy_estimation_methods['a'] must have a type, one of is, pdis",
        ),
        (
            {"off_policy_estimation_methods": {"a": {"type": "is", "k": 5}}},
            "off_policy_estimation_methods['a'] has 'k', and 'is' has no settings",
        ),
        (
            {"off_policy_estimation_methods": {"a": {"type": "dr", "q_model_type": "fqe"}}},
            "off_policy_estimation_methods['a'] has no setting 'q_model_type'",
        ),
        (
            {"off_policy_estimation_methods": {"a": {"type": "dm", "num_updates": "x"}}},
            "off_policy_estimation_methods['a'] num_updates must be a whole number, got 'x'",
        ),
        (
            {"ope_split_batch_by_episode": False},
            "ope_split_batch_by_episode=False has no effect without an estimate",
        ),
        (
            {"offline_evaluation_type": "is", "offline_eval_batch_size_per_runner": 5},
            "offline_eval_batch_size_per_runner=5 has no effect with offline_evaluation_duration='auto'",
        ),
        (
            {"offline_evaluation_interval": None, "offline_evaluation_type": "is"},
            "'offline_evaluation_type' (got 'is') has no effect without an evaluation on held-out",
        ),
        (
            {"max_dataset_bytes": 300, "dataset_storage": "host"},
            "holds out 0.00 MiB, and max_dataset_bytes allows 0.00 MiB on the device: lower one",
        ),
        ({"num_offline_eval_runners": 2}, "evaluated in this process, in one compiled call"),
        ({"offline_loss_for_module_fn": len}, "learner_class may override"),
    ],
)
def test_settings_that_do_not_fit_are_one_sentence(
    data: str, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises((ConfigError, DataError)) as caught:
        make_config(data, **settings).build()
    assert said in str(caught.value)


def test_an_evaluation_needs_data_that_are_learned_from_alone(data: str) -> None:
    ppo = PPOConfig().environment("CartPole-v1").evaluation(offline_evaluation_interval=1)
    assert "offline_evaluation_interval=1 evaluates on episodes that are held out" in refused(ppo)
    mixed = make_config({"sampler": 0.5, data: 0.5}, DQNConfig).environment("CartPole-v1")
    mixed.offline_data(num_updates_per_iteration=100)
    assert "does not learn from them alone" in refused(mixed)


@pytest.fixture(name="num_read")
def count_read_parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the parts that are read."""
    number, read = [0], RecordedData.iter_parts

    def iter_parts(data: RecordedData) -> Iterator[EpisodePart]:
        for part in read(data):
            number[0] += 1
            yield part

    monkeypatch.setattr(RecordedData, "iter_parts", iter_parts)
    return number


def test_data_that_are_too_large_are_not_read(data: str, num_read: list[int]) -> None:
    """Held-out episodes count, which are on the device as well."""
    size = sum(map(len, HELD_OUT + LEFT))
    limits = {"dataset_storage": "device", "max_dataset_bytes": 16 * size}
    assert f"has {size} steps" in refused(make_config(data, **limits))
    assert num_read == [0]


@pytest.mark.parametrize(
    ("storage", "said"),
    [
        ("device", "more than 0.00 MiB of steps, and max_dataset_bytes=800 allows 0.00 MiB: name"),
        ("host", "more than 0.00 MiB of steps, and half of the host's memory is 0.00 MiB: name"),
        (
            "stream",
            f"offline_evaluation_split={SPLIT} holds out more than 0.00 MiB of steps, which",
        ),
    ],
)
def test_files_that_do_not_say_their_size_are_read_up_to_the_limit(
    tmp_path: Path,
    num_read: list[int],
    monkeypatch: pytest.MonkeyPatch,
    storage: str,
    said: str,
) -> None:
    path, number = tmp_path / "a.npz", 500
    np.savez(
        path,
        observations=np.zeros((number, 2), np.float32),
        actions=np.zeros(number, np.int64),
        rewards=np.zeros(number),
        terminals=np.arange(number) % 5 == 4,
        next_observations=np.zeros((number, 2), np.float32),
    )
    config = make_config(str(path), dataset_storage=storage)
    config.environment(observation_space=OBS_SPACE, action_space=ACTION_SPACE)
    if storage == "device":
        config.offline_data(max_dataset_bytes=800)
    else:
        monkeypatch.setattr("jaxrl.assembly.offline.get_host_limit", lambda: 800)
    assert said in refused(config)
    assert 0 < num_read[0] < 40


def test_weights_need_densities(tmp_path: Path) -> None:
    parts = [dataclasses.replace(part, extras={}) for part in make_episodes()]
    data = write_data(tmp_path / "plain", parts)
    message = refused(make_config(data, offline_evaluation_type="wis"))
    assert "has no probabilities of the recorded actions, action_logp, which wis need" in message
    density = {part.episode_id: part for part in make_episodes()}
    cut = [dataclasses.replace(p, truncated=False, terminated=False) for p in density.values()]
    data = write_data(tmp_path / "cut", cut, has_density=True)
    assert "has no whole episode" in refused(make_config(data, offline_evaluation_type="pdis"))


def test_weights_need_a_policy_that_samples(tmp_path: Path) -> None:
    data = write_data(tmp_path / "box", make_episodes(action_space=BOX), BOX, has_density=True)
    message = refused(make_config(data, TD3Config, offline_evaluation_type="is"))
    assert "without exploration has no density of: use the methods dm and fqe" in message


def test_rows_without_episodes_cannot_be_held_out(tmp_path: Path) -> None:
    import json

    rows = {
        "obs": np.zeros((4, 2)).tolist(),
        "new_obs": np.zeros((4, 2)).tolist(),
        "actions": [0, 1, 2, 0],
        "rewards": [0.0] * 4,
        "terminateds": [False] * 4,
        "truncateds": [False] * 4,
    }
    (tmp_path / "rows.json").write_text(json.dumps({"type": "SampleBatch", **rows}) + "\n")
    config = make_config(str(tmp_path / "rows.json"))
    config.environment(observation_space=OBS_SPACE, action_space=ACTION_SPACE)
    assert "does not say the episode of each row, by which episodes are held out" in refused(config)
