"""The façade: results, weights, callbacks, what overrides it, and what it refuses to build."""

import dataclasses
import gc
import inspect
import json
import math
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import Algorithm, Callbacks, JaxrlError, PPOConfig, RandomAgentConfig
from jaxrl.compat.rllib.attributes import UNCALLED_METHODS
from jaxrl.errors import (
    CheckpointError,
    ConfigError,
    EnvError,
    ModuleError,
    RunFolderError,
    UnknownNameError,
)
from jaxrl.loggers import RunFolder
from jaxrl.loggers.sinks import read_results
from jaxrl.metrics import EMPTY_EPISODE_METRICS
from jaxrl.runs.checkpoint import list_checkpoints
from tests.endless import Endless, EndlessState
from tests.helpers import assert_equal, differs, small


def test_results_have_rllibs_keys() -> None:
    with small().build() as algorithm:
        algorithm.train()
        result = algorithm.train()
    assert result["training_iteration"] == 2
    runners = result["env_runners"]
    assert runners["num_env_steps_sampled"] == 128
    assert runners["num_env_steps_sampled_lifetime"] == 256
    assert result["num_env_steps_sampled_lifetime"] == 256
    assert result["num_env_steps_trained_lifetime"] == 256
    assert 5 < runners["episode_return_mean"] < 60
    assert runners["episode_return_min"] <= runners["episode_return_mean"]
    assert runners["episode_return_mean"] <= runners["episode_return_max"]
    assert runners["episode_return_mean"] == pytest.approx(runners["episode_len_mean"])
    assert runners["num_episodes_lifetime"] >= runners["num_episodes"]
    learned = result["learners"]["default_policy"]
    assert {"policy_loss", "vf_loss", "entropy", "mean_kl_loss", "total_loss"} <= set(learned)
    assert learned["num_updates_lifetime"] == 2 * 2 * 4
    assert result["compile"]["train"]["flops"] > 1e5
    assert result["timers"]["training_step_s"] <= result["time_this_iter_s"]
    assert result["time_total_s"] >= result["time_this_iter_s"]
    json.dumps(result)


@pytest.mark.slow
def test_minibatches_need_not_divide_the_train_batch(caplog: pytest.LogCaptureFixture) -> None:
    config = small(minibatch_size=32, num_epochs=3).training(train_batch_size=126)
    with config.build() as algorithm:
        result = algorithm.train()
    assert result["env_runners"]["num_env_steps_sampled"] == 128
    assert "train_batch_size=126 is rounded to 128, 8 steps" in caplog.text
    with small(minibatch_size=48, num_epochs=3).build() as algorithm:
        result = algorithm.train()
    learned = result["learners"]["default_policy"]
    assert learned["num_updates_lifetime"] == 8  # 3 x 128 / 48
    assert learned["grad_norm"] > 0
    assert result["num_env_steps_trained_lifetime"] == 128


def test_before_any_episode_ended_returns_are_nan() -> None:
    with small(env="Pendulum-v1").build() as algorithm:
        runners = algorithm.train()["env_runners"]
    assert runners["num_episodes"] == 0
    assert all(math.isnan(runners[name]) for name in EMPTY_EPISODE_METRICS)


@pytest.mark.slow
def test_iterations_are_as_long_as_asked_for() -> None:
    config = small().reporting(min_sample_timesteps_per_iteration=1000)
    with config.build() as algorithm:
        result = algorithm.train()
        assert result["env_runners"]["num_env_steps_sampled"] == 1024
        assert result["num_training_step_calls_per_iteration"] == 8
    with small().reporting(min_time_s_per_iteration=0.5).build() as algorithm:
        algorithm.train()
        result = algorithm.train()
        assert result["time_this_iter_s"] >= 0.5
        assert result["num_training_step_calls_per_iteration"] > 1


def test_the_same_seed_is_the_same_run_and_another_is_not() -> None:
    states = []
    for seed in (3, 3, 4):
        with small().debugging(seed=seed).build() as algorithm:
            algorithm.train()
            states.append(algorithm.get_state()["train_state"])
    assert_equal(states[0], states[1])
    assert differs(states[0], states[2])


def test_weights_move_between_algorithms() -> None:
    with small().build() as one, small().debugging(seed=9).build() as other:
        one.train()
        weights = one.get_weights()
        assert_equal(weights, one.get_weights(["default_policy"]))
        assert one.get_weights([]) == {}
        with pytest.raises(UnknownNameError, match="no module 'other'"):
            one.get_weights(["other"])
        assert other.set_weights(weights) == []
        assert_equal(weights, other.get_weights())
        obs = np.zeros(4, np.float32)
        actions = [a.compute_single_action(obs, full_fetch=True)[2] for a in (one, other)]
        np.testing.assert_array_equal(
            actions[0]["action_dist_inputs"], actions[1]["action_dist_inputs"]
        )


def test_a_warm_start_takes_what_fits_and_lists_the_rest() -> None:
    wider = small().rl_module(model_config={"fcnet_hiddens": [8, 5]})
    with small().build() as source, wider.build() as target:
        weights = source.get_weights()
        before = target.get_weights()
        with pytest.raises(ModuleError, match="do not fit the module"):
            target.set_weights(weights)
        assert_equal(before, target.get_weights())
        problems = target.set_weights(weights, strict=False)
        assert any("is missing" in problem for problem in problems)
        assert any("has shape" in problem for problem in problems)
        taken = target.get_weights()["default_policy"]["pi_encoder"]["mlp"]["dense_0"]["kernel"]
        own = weights["default_policy"]["pi_encoder"]["mlp"]["dense_0"]["kernel"]
        np.testing.assert_array_equal(taken, own)
        target.train()


class Recorded(Callbacks):
    """Remembers every call."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.returns: list[float] = []

    def on_algorithm_init(self, *, algorithm: Algorithm) -> None:
        self.calls.append("init")

    def on_train_result(self, *, algorithm: Algorithm, result: dict[str, Any]) -> None:
        self.calls.append("result")
        result["custom_metrics"] = {"answer": 42}

    def on_evaluate_start(self, *, algorithm: Algorithm) -> None:
        self.calls.append("evaluate")

    def on_evaluate_end(self, *, algorithm: Algorithm, evaluation_metrics: dict[str, Any]) -> None:
        self.calls.append(f"evaluated {evaluation_metrics['env_runners']['num_episodes']}")

    def on_episode_end(self, *, algorithm: Algorithm, episode: Any) -> None:
        self.returns.append(episode.episode_return)

    def on_sample_end(self, *, algorithm: Algorithm, samples: dict[str, Any]) -> None:
        self.calls.append(f"sampled {samples['num_env_steps_sampled']}")

    def on_checkpoint_loaded(self, *, algorithm: Algorithm) -> None:
        self.calls.append("loaded")


def test_callbacks_as_a_class_and_as_functions(tmp_path: Path) -> None:
    recorded, also = Recorded(), []
    config = small().callbacks(
        [recorded], on_train_result=lambda *, result, **_: also.append(result["custom_metrics"])
    )
    config.evaluation(evaluation_interval=1, evaluation_duration=3)
    config.training(train_batch_size=1024)
    with config.build() as algorithm:
        result = algorithm.train()
        assert recorded.calls == ["init", "sampled 1024", "evaluate", "evaluated 3", "result"]
        assert also == [{"answer": 42}]
        assert len(recorded.returns) == result["env_runners"]["num_episodes"] > 0
        assert np.mean(recorded.returns) == pytest.approx(
            result["env_runners"]["episode_return_mean"]
        )
        assert result["env_runners"]["num_episodes_not_reported"] == 0
        algorithm.restore(algorithm.save(tmp_path))
        assert recorded.calls[-1] == "loaded"
        line = json.loads((Path(algorithm.run_dir) / "result.json").read_text())
        assert line["custom_metrics"] == {"answer": 42}


def test_a_misspelled_hook_is_refused() -> None:
    class Wrong(Callbacks):
        def on_episode_ended(self, **_: Any) -> None: ...

    with pytest.raises(ConfigError, match="Did you mean 'on_episode_end'"):
        small().callbacks(Wrong).build()


ARGUMENTS: dict[str, tuple[Callable[[Any], object], str]] = {
    "steps": (lambda a: a.fit(1000), r"\{'num_env_steps_sampled_lifetime': 1000\} counts .* steps"),
    "timesteps": (lambda a: a.fit(total_timesteps=64), r"fit\(\{\"num_env_steps_sampled_lifetime"),
    "typo": (lambda a: a.fit(on_iterations=print), "Did you mean 'on_iteration'"),
    "train": (lambda a: a.train(1000), r"train\(\): .*; it runs one iteration; fit\(stop"),
    "episodes": (lambda a: a.evaluate(n_eval_episodes=3), r"write evaluate\(num_episodes=N\)"),
    "positional": (lambda a: a.evaluate(3), r"evaluate\(\): .*; write evaluate\(num_episodes=N\)"),
    "unknown": (lambda a: a.train(verbose=1), r"train\(\) has no argument 'verbose'\.$"),
}


def test_arguments_of_other_libraries_are_answered() -> None:
    config = RandomAgentConfig().environment("CartPole-v1").debugging(loggers=[])
    with config.build() as algorithm:
        for call, answer in ARGUMENTS.values():
            with pytest.raises(JaxrlError, match=answer):
                call(algorithm)
        assert str(inspect.signature(algorithm.train)) == "() -> dict[str, typing.Any]"


def test_the_last_line_is_printed_before_the_user_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = RandomAgentConfig().environment("CartPole-v1").debugging(loggers=["console"])
    with config.build() as algorithm:
        for act in (lambda: algorithm.fit({"training_iteration": 3}), algorithm.save):
            algorithm.train()
            act()
            print("mine")
        lines = capsys.readouterr().out.splitlines()
    first = lines.index("mine")
    assert lines[first - 1].startswith("iteration 3 ")
    assert lines[-2].startswith("iteration 4 ")


class Twice(Algorithm):
    """Two dispatches a step, and a number of its own."""

    def training_step(self) -> Mapping[str, float]:
        super().training_step()
        return super().training_step()


def test_training_step_is_the_override_point() -> None:
    with of_class(Twice).build() as algorithm:
        assert isinstance(algorithm, Twice)
        assert algorithm.train()["env_runners"]["num_env_steps_sampled"] == 256


class Methods(Algorithm):
    """The methods of RLlib's Trainable that are called, each with the base's, as RLlib's users write."""

    def setup(self, config: Any) -> None:
        super().setup(config)
        assert config is self.config
        self.called, self.mine = ["setup"], 0

    def log_result(self, result: dict[str, Any]) -> None:
        super().log_result(result)
        self.mine += 1
        self.called.append(f"log_result {result['training_iteration']}")
        result["mine"] = self.mine

    def save_checkpoint(self, checkpoint_dir: str) -> str:
        super().save_checkpoint(checkpoint_dir)
        (Path(checkpoint_dir) / "mine.json").write_text(json.dumps(self.mine))
        self.called.append("save_checkpoint")
        return checkpoint_dir

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        super().load_checkpoint(checkpoint_dir)
        self.mine = json.loads((Path(checkpoint_dir) / "mine.json").read_text())
        self.called.append("load_checkpoint")

    def cleanup(self) -> None:
        self.called.append("cleanup")
        super().cleanup()


def of_class(own: type[Algorithm], **more: Any) -> PPOConfig:
    config = PPOConfig(algo_class=own).update_from_dict(
        {name: value for name, value in small().items() if name in small().explicit}
    )
    return config.update_from_dict(more)


def test_methods_of_rllibs_trainable_are_called(tmp_path: Path) -> None:
    with of_class(Methods, run_name="run", results_dir=str(tmp_path)).build() as algorithm:
        assert isinstance(algorithm, Methods)
        result = algorithm.fit({"training_iteration": 2})
        assert result["mine"] == 2
        path = algorithm.save(tmp_path / "elsewhere")
        algorithm.train()
        algorithm.restore(path)
        assert algorithm.mine == 2
        called = ["setup", "log_result 1", "log_result 2", "save_checkpoint", "save_checkpoint"]
        called += ["log_result 3", "load_checkpoint"]
        assert algorithm.called == called
    assert algorithm.called == [*called, "cleanup"]
    algorithm.stop()
    assert algorithm.called == [*called, "cleanup"]
    assert [row["mine"] for row in read_results(tmp_path / "run" / "result.json")][:2] == [1, 2]
    for saved in (path, tmp_path / "run"):
        with Algorithm.from_checkpoint(saved) as again:
            assert isinstance(again, Methods)
            assert (again.mine, again.called) == (2, ["setup", "load_checkpoint"])
    file = Path(path) / "own" / "mine.json"
    file.write_text("7")
    with pytest.raises(CheckpointError, match=r"own/mine\.json was changed"):
        Algorithm.from_checkpoint(path)
    with pytest.raises(
        ConfigError, match=r"Methods has a setup\(\) of its own, which is not called"
    ):
        of_class(Methods, seeds=2).build()


def test_what_a_subclass_saves_are_files(tmp_path: Path) -> None:
    class Unwritten(Methods):
        def save_checkpoint(self, checkpoint_dir: str) -> Any:
            return {"mine": 1}

    with of_class(Unwritten).build() as algorithm:
        with pytest.raises(CheckpointError, match="must write files into the folder"):
            algorithm.save(tmp_path)
        assert list_checkpoints(tmp_path) == []


@pytest.mark.parametrize("name", UNCALLED_METHODS)
def test_methods_that_are_not_called_are_refused(name: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"Mine overrides {name}\(\), which is not called here: "
    ):
        type("Mine", (Algorithm,), {name: lambda self, *args: None, "__module__": "mine"})
    assert name not in vars(Algorithm)


@pytest.mark.slow
def test_metrics_of_a_step_are_means_over_the_batches_that_were_learned_from() -> None:
    """Learning starts within the step; if it does not, there are none at all, as in results."""
    config = small("DQN", num_steps_sampled_before_learning_starts=3 * 128)
    with config.build() as algorithm:
        assert dict(algorithm.training_step()) == {}
        algorithm._batches_to_run = 4
        got = dict(algorithm.training_step())
        algorithm._totals.pending, algorithm._totals.episode_sums = (
            algorithm._totals.pending[1:],
            None,
        )
        want = algorithm._totals.make_result(1)
    assert algorithm._totals.learned.learned_batches == 3
    assert got
    for name, value in got.items():
        assert value == pytest.approx(want["learners"]["default_policy"][name])


def test_the_config_is_frozen_and_the_builder_is_not() -> None:
    config = small()
    with config.build() as algorithm:
        with pytest.raises(ConfigError, match="lr"):
            algorithm.config.training(lr=1.0)
        config.training(lr=1.0)
        assert algorithm.config["lr"] != 1.0


def test_fit_stops_saves_and_needs_a_criterion() -> None:
    config = small().checkpointing(checkpoint_frequency=2, max_to_keep=None)
    seen: list[int] = []
    with config.build() as algorithm:
        with pytest.raises(ConfigError, match="needs a stop criterion"):
            algorithm.fit()
        result = algorithm.fit(
            {"env_runners/num_env_steps_sampled_lifetime": 600},
            on_iteration=lambda r: seen.append(r["training_iteration"]),
        )
        run = Path(algorithm.run_dir)
    assert seen == [1, 2, 3, 4, 5]
    assert result["num_env_steps_sampled_lifetime"] == 640
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert names == ["checkpoint_000002", "checkpoint_000004", "checkpoint_000005"]
    stored = json.loads((run / "run.json").read_text())["stop"]
    assert stored == {"env_runners/num_env_steps_sampled_lifetime": 600}
    assert (run / "plots" / "learning_curve.png").stat().st_size > 1000


def test_fit_draws_nothing_where_nothing_was_logged() -> None:
    with small().debugging(loggers=[]).build() as algorithm:
        algorithm.fit(should_stop=iter([False, False, True, True]).__next__)
        run = Path(algorithm.run_dir)
    assert not (run / "plots").exists()
    assert json.loads((run / "run.json").read_text())["stop"] is None


@pytest.mark.slow
def test_dropping_an_algorithm_closes_what_it_writes(tmp_path: Path) -> None:
    config = small().debugging(loggers=["json", "csv", "tensorboard"])
    config.debugging(results_dir=str(tmp_path), run_name="run")
    config.checkpointing(checkpoint_frequency=1, checkpoint_at_end=False)
    algorithm = config.build()
    algorithm.fit({"training_iteration": 2})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del algorithm
        gc.collect()
    assert [str(warning.message) for warning in caught] == []
    run = tmp_path / "run"
    assert len((run / "result.json").read_text().splitlines()) == 2
    assert len((run / "progress.csv").read_text().splitlines()) == 3
    assert [path.name for path in list_checkpoints(run / "checkpoints")] == [
        "checkpoint_000001",
        "checkpoint_000002",
    ]
    RunFolder.open(run).close()  # nobody holds it any more


def test_a_run_whose_folder_is_removed_can_still_be_resumed(tmp_path: Path) -> None:
    algorithm = small().debugging(results_dir=str(tmp_path), run_name="run").build()
    algorithm.fit({"training_iteration": 1})
    run, run_id = Path(algorithm.run_dir), algorithm.run_folder.run_id
    shutil.rmtree(run)
    algorithm.fit({"training_iteration": 2})
    algorithm.stop()
    with RunFolder.open(run) as folder:
        assert (folder.run_id, folder.stop_criterion) == (run_id, {"training_iteration": 2})
        assert [row["training_iteration"] for row in read_results(folder.result_file)] == [2]
        with Algorithm.from_checkpoint(run, run_folder=folder) as resumed:
            assert resumed.train()["training_iteration"] == 3
    assert len((run / "result.json").read_text().splitlines()) == 2


SHOWN = """
from jaxrl import Algorithm; from jaxrl.algorithms.ppo import PPOConfig; algo = \
PPOConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=16).training(\
train_batch_size=4000, lr=3e-4, model={"fcnet_hiddens": [64, 64]}).build(); \
[algo.train() for _ in range(30)]; algo.evaluate(); path = algo.save(); \
algo = Algorithm.from_checkpoint(path)
"""


@pytest.mark.slow
def test_the_first_example_plays_gymnasiums_own_cartpole() -> None:
    """As it stands in the documents: nothing is closed, and the actions go to another program."""
    names: dict[str, Any] = {}
    exec(SHOWN, names)
    algo: Algorithm = names.pop("algo")
    env = gymnasium.make("CartPole-v1")
    returns = []
    for episode in range(10):
        obs, _ = env.reset(seed=episode)
        total, ended = 0.0, False
        while not ended:
            action = algo.compute_single_action(obs, explore=False)
            obs, reward, terminated, truncated, _ = env.step(action)
            total, ended = total + float(reward), terminated or truncated
        returns.append(total)
    env.close()
    assert algo.iteration == 30
    assert np.mean(returns) >= 400, returns


def test_should_stop_ends_an_iteration_between_dispatches() -> None:
    config = small().reporting(min_sample_timesteps_per_iteration=128 * 10**6)
    asked = iter([False, False, False, True, True, True])
    with config.build() as algorithm:
        result = algorithm.fit(should_stop=lambda: next(asked))
        assert result["training_iteration"] == 1
        assert result["num_env_steps_sampled_lifetime"] < 128 * 10**6


@pytest.mark.slow
@pytest.mark.allow_key_reuse
@pytest.mark.slow
def test_without_jit_it_computes_the_same() -> None:
    states = []
    for jit in (True, False):
        config = small(num_epochs=1, minibatch_size=128).debugging(jit=jit)
        config.env_runners(rollout_fragment_length=2, num_envs_per_env_runner=4)
        config.training(train_batch_size=8, minibatch_size=8)
        with config.build() as algorithm:
            algorithm.train()
            states.append(algorithm.get_weights()["default_policy"])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *states)


def test_a_folder_that_cannot_be_written_is_refused_at_build(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="results_dir"):
        small().debugging(results_dir=str(tmp_path / "file" / "x")).build()


def test_too_large_a_batch_is_refused_before_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 2**24
    monkeypatch.setattr("jaxrl.runners.placement.get_memory_limit", lambda _: 2**28)
    config = small().env_runners(num_envs_per_env_runner=2**20)
    config.training(train_batch_size=rows, minibatch_size=2**20)
    with pytest.raises(ConfigError, match=f"train_batch_size={rows} .*needs at least .* GiB"):
        config.build()


class Untyped(Endless):
    """Its observation is an integer."""

    def step(self, key: Any, state: EndlessState, action: Any, params: EndlessState) -> Any:
        state, step = super().step(key, state, action, params)
        return state, dataclasses.replace(step, obs=step.obs.astype(jnp.int32))


def test_an_environment_that_breaks_the_contract_is_refused_before_compiling() -> None:
    with pytest.raises(EnvError, match=r"float32.*int32"):
        small(env=Untyped).build()
    small(env=Untyped).environment(disable_env_checking=True).build().stop()


def test_no_env_is_refused() -> None:
    with pytest.raises(ConfigError, match="env is not set"):
        PPOConfig().build()


def test_a_declared_space_must_be_the_environments() -> None:
    config = small().environment(action_space=gymnasium.spaces.Discrete(3))
    with pytest.raises(ConfigError, match=r"action_space is declared as Discrete\(3\)"):
        config.build()
