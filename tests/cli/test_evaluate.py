"""`jaxrl evaluate` with RLlib's options: --algo, --env, --steps, --out, --render."""

import json
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.envs import TimeLimit
from jaxrl.envs.classic.cartpole import CartPole
from jaxrl.evaluation.host import record_rollouts, write_rollouts
from tests.cli.command import jaxrl
from tests.helpers import small


def train(config: Any, folder: Path) -> Path:
    config.debugging(results_dir=str(folder.parent), run_name=folder.name)
    with config.build() as algo:
        algo.train()
        algo.save()
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one iteration, with five environments of a setting that --steps has to replace."""
    config = small(gamma=0.8).evaluation(evaluation_duration=3, evaluation_num_envs=3)
    return train(config, tmp_path_factory.mktemp("results") / "run")


def result_of(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())["evaluation"]["env_runners"]


def test_the_result_is_written_as_it_is_printed(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    code, printed, err = jaxrl("evaluate", trained, "--algo", "ppo", "--out", out)
    assert code == 0, err
    document = json.loads(out.read_text())
    stats = document["evaluation"]["env_runners"]
    assert document["algorithm"] == "PPO"
    assert document["env"] == "CartPole-v1"
    assert document["training_iteration"] == 1
    assert document["checkpoint"].endswith("checkpoint_000001")
    assert stats["num_episodes"] == 3
    assert f"over 3 episodes of {stats['episode_len_mean']:.4g} steps" in printed
    assert printed.splitlines()[-1] == f"written to        {out}"


def test_steps_are_exactly_as_many(trained: Path, tmp_path: Path) -> None:
    for steps, number in (("250", 250), ("1e3", 1000)):
        out = tmp_path / f"{number}.json"
        assert jaxrl("evaluate", trained, "--steps", steps, "--out", out)[0] == 0
        stats = result_of(out)
        assert stats["num_env_steps_sampled"] == number
        assert stats["num_episodes"] > 3
    code, printed, _ = jaxrl("evaluate", trained, "--steps", 5)
    assert code == 0
    assert "no episode ended" in printed


def test_another_environment_with_the_same_spaces(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "short_task.py").write_text(
        "from jaxrl.envs.classic.cartpole import CartPole\n"
        "from jaxrl.envs.wrappers import TimeLimit\n"
        "def Short(config): return TimeLimit(CartPole(), 7)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    out = tmp_path / "other.json"
    code, _, err = jaxrl("evaluate", trained, "--env", "short_task:Short", "--out", out)
    assert code == 0, err
    assert json.loads(out.read_text())["env"] == "short_task:Short"
    assert result_of(out)["episode_len_max"] == 7
    code, _, err = jaxrl("evaluate", trained, "--env", "gymnasium:CartPole-v1", "--out", out)
    assert code == 0, err
    assert json.loads(out.read_text())["env"] == "gymnasium:CartPole-v1"
    sys.modules.pop("short_task", None)


def test_the_environment_of_the_config_is_the_same_evaluation(
    trained: Path, tmp_path: Path
) -> None:
    for name, options in (("a", ()), ("b", ("--env", "CartPole-v1"))):
        out = tmp_path / f"{name}.json"
        assert jaxrl("evaluate", trained, *options, "--out", out)[0] == 0
    assert result_of(tmp_path / "a.json") == result_of(tmp_path / "b.json")


@pytest.mark.slow
def test_steps_in_an_environment_that_was_not_saved_keep_the_evaluation_config(
    tmp_path: Path,
) -> None:
    def make(config: Any) -> TimeLimit:
        return TimeLimit(CartPole(), 500)

    found = {}
    for name, env, explore in (("a", make, True), ("b", "CartPole-v1", True), ("c", make, False)):
        config = small().environment(env).evaluation(evaluation_config={"explore": explore})
        run, out = train(config, tmp_path / name), tmp_path / f"{name}.json"
        options = ("--env", "CartPole-v1", "--steps", 300, "--out", out)
        assert jaxrl("evaluate", run, *options)[0] == 0
        found[name] = result_of(out)["episode_len_mean"]
    assert found["a"] == found["b"] != found["c"]


def check_rollouts(path: Path, printed: str) -> dict[str, np.ndarray]:
    """Check the properties of every file of transitions."""
    arrays = dict(np.load(path))
    number = len(arrays["rewards"])
    assert all(len(rows) == number for rows in arrays.values())
    for episode in np.unique(arrays["eps_id"]):
        rows = arrays["eps_id"] == episode
        np.testing.assert_array_equal(arrays["t"][rows], np.arange(rows.sum()))
        np.testing.assert_array_equal(arrays["new_obs"][rows][:-1], arrays["obs"][rows][1:])
        ends = arrays["terminateds"][rows] | arrays["truncateds"][rows]
        assert not ends[:-1].any()
    return arrays


@pytest.mark.parametrize("env", ["CartPole-v1", "gymnasium:CartPole-v1"])
def test_transitions_are_those_of_the_evaluation(env: str, trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "rollouts.npz"
    code, printed, err = jaxrl("evaluate", trained, "--env", env, "--episodes", 4, "--out", out)
    assert code == 0, err
    arrays = check_rollouts(out, printed)
    assert arrays["obs"].shape[1:] == (4,)
    assert len(np.unique(arrays["eps_id"])) == 4
    assert (arrays["terminateds"] | arrays["truncateds"]).sum() == 4
    mean = arrays["rewards"].sum() / 4
    assert f"evaluated return  {mean:.4g} on average" in printed


def test_transitions_of_a_number_of_steps(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "rollouts.npz"
    code, printed, err = jaxrl("evaluate", trained, "--steps", 203, "--out", out)
    assert code == 0, err
    arrays = check_rollouts(out, printed)
    assert len(arrays["rewards"]) == 203


def test_changed_parameters_of_the_environment_are_those_recorded(tmp_path: Path) -> None:
    config = small().debugging(results_dir=str(tmp_path), run_name="run")
    with config.build() as algo:
        algo.set_env_params(force_mag=0.0)
        changed = algo.config.get_evaluation_config_object()
        assert changed is not None
        weights, pushes = algo.learner_group.get_weights(1), []
        for used in (None, algo.env_params):
            _, episodes = record_rollouts(changed, weights, 1, used)
            pushes.append(np.abs(np.diff(episodes[0].get_observations()[:3, 1])).max())
    assert pushes[1] < 0.01 < 0.1 < pushes[0]  # the cart is pushed, or only pulled by its pole


class Nested(gymnasium.Env[Any, Any]):
    """Two parts to observe."""

    observation_space = spaces.Dict(
        {"place": spaces.Box(-1.0, 1.0, (2,), np.float32), "mode": spaces.Discrete(3)}
    )
    action_space = spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self._observe(), 1.0, self.steps == 3, False, {}

    def _observe(self) -> dict[str, Any]:
        return {"place": np.full(2, self.steps / 10, np.float32), "mode": self.steps % 3}


def test_parts_of_an_observation_are_arrays_of_their_own(tmp_path: Path) -> None:
    with small(env=Nested).build() as algo:
        config = algo.config.get_evaluation_config_object()
        assert config is not None
        result, episodes = record_rollouts(config, algo.learner_group.get_weights(1), 2)
    assert result["env_runners"]["num_episodes"] == 2
    write_rollouts(tmp_path / "nested.npz", episodes)
    arrays = dict(np.load(tmp_path / "nested.npz"))
    assert arrays["obs/place"][:, 0].tolist() == pytest.approx([0.0, 0.1, 0.2] * 2)
    assert arrays["new_obs/mode"].tolist() == [1, 2, 0] * 2
    assert arrays["terminateds"].tolist() == [False, False, True] * 2
    assert [path.name for path in tmp_path.glob("*.npz")] == ["nested.npz"]


def test_render_is_video(trained: Path, tmp_path: Path) -> None:
    code, printed, err = jaxrl("evaluate", trained, "--render", "--episodes", 1)
    assert code == 0, err
    (video,) = (trained / "videos").iterdir()
    assert f"video             {video}" in printed.splitlines()


WRONG = [
    (("--algo", "DQN"), "--algo DQN does not fit"),
    (("--algo", "PPPO"), "Did you mean 'PPO'"),
    (("--env", "Pendulum-v1"), "has the observation space"),
    (("--steps", "3", "--episodes", "3"), "leave one of them out"),
    (("--steps", "0"), "--steps must be a whole number"),
    (("--out", "result.txt"), "must end in .json"),
    (("--out", "/proc/nowhere/result.json"), "cannot be written"),
    (("--out", "rollouts.npz", "--render"), "leave out --render"),
]


@pytest.mark.parametrize(("options", "words"), WRONG, ids=[" ".join(o) for o, _ in WRONG])
def test_a_mistake_is_one_sentence(
    options: tuple[str, ...], words: str, trained: Path, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    code, out, err = jaxrl("evaluate", trained, *options)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def own_evaluation(algorithm: Any) -> dict[str, Any]:
    return {"custom_metrics": {"five": 5}}


@pytest.mark.slow
def test_a_custom_evaluation_chooses_its_own_episodes(tmp_path: Path) -> None:
    config = small(gamma=0.8).evaluation(custom_evaluation_function=own_evaluation)
    run = train(config, tmp_path / "run")
    assert "custom_evaluation_function" in jaxrl("evaluate", run, "--steps", 9)[2]
    out = tmp_path / "x.npz"
    assert "custom_evaluation_function" in jaxrl("evaluate", run, "--out", out)[2]
    assert jaxrl("evaluate", run, "--out", tmp_path / "x.json")[0] == 0
    written = json.loads((tmp_path / "x.json").read_text())
    assert written["evaluation"]["custom_metrics"] == {"five": 5}
