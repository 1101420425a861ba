"""The façade: results, evaluation, actions, weights, callbacks and what overrides it."""

import dataclasses
import gc
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.algorithm import Algorithm
from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.callbacks import Callbacks
from jaxrl.checkpoint import complete_checkpoints, read_leaves, read_metadata
from jaxrl.connectors.observations import flatten
from jaxrl.core.struct import pytree
from jaxrl.core.types import TimeStep
from jaxrl.envs.base import JaxEnv
from jaxrl.envs.registry import MadeEnv
from jaxrl.errors import (
    ConfigError,
    EnvError,
    ModuleError,
    RunFolderError,
    SpaceError,
    UnknownNameError,
)
from jaxrl.logging import RunFolder
from jaxrl.runners.env_params import changed_params
from jaxrl.runners.inference import adjusted, conform
from tests.helpers import action_pipeline, assert_equal, differs, observation_pipeline, small


@dataclasses.dataclass(frozen=True)
class _Rewards:
    reward: Any


@pytree
class EndlessState:
    """Nothing changes."""

    x: jax.Array


class Endless(JaxEnv[EndlessState, EndlessState]):
    """Never terminates and has no time limit."""

    name = "Endless"

    @property
    def default_params(self) -> EndlessState:
        return EndlessState(x=jnp.zeros(()))

    def observation_space(self, params: EndlessState) -> Any:
        return spaces.Box(-1, 1, (1,), np.float32)

    def action_space(self, params: EndlessState) -> Any:
        return spaces.Discrete(2)

    def reset(self, key: Any, params: EndlessState) -> Any:
        return EndlessState(x=jnp.zeros(())), jnp.zeros((1,))

    def step(self, key: Any, state: EndlessState, action: Any, params: EndlessState) -> Any:
        no = jnp.zeros((), bool)
        step = TimeStep(
            obs=jnp.zeros((1,)), reward=jnp.ones(()), terminated=no, truncated=no, info={}
        )
        return state, step


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


def test_before_any_episode_ended_there_is_no_return() -> None:
    with small(env="Pendulum-v1").build() as algorithm:
        runners = algorithm.train()["env_runners"]
    assert runners["num_episodes"] == 0
    assert "episode_return_mean" not in runners


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


def test_evaluation_leaves_training_alone_and_repeats_itself() -> None:
    config = small().evaluation(evaluation_duration=12, evaluation_config={"explore": False})
    with config.build() as algorithm:
        algorithm.train()
        before = algorithm.get_state()["train_state"]
        first = algorithm.evaluate()["env_runners"]
        again = algorithm.evaluate()["env_runners"]
        assert first == again
        assert first["num_episodes"] == 12
        assert first["episode_return_mean"] == pytest.approx(first["episode_len_mean"])
        assert_equal(before, algorithm.get_state()["train_state"])
        assert algorithm.evaluate(num_episodes=7)["env_runners"]["num_episodes"] == 7


def test_evaluation_by_timesteps_plays_exactly_so_many() -> None:
    config = small().evaluation(
        evaluation_duration=640, evaluation_duration_unit="timesteps", evaluation_num_envs=4
    )
    with config.build() as algorithm:
        stats = algorithm.evaluate()["env_runners"]
    assert stats["num_env_steps_sampled"] == 640
    assert stats["num_episodes"] > 4


def test_evaluation_happens_at_its_interval_and_stays_attached() -> None:
    config = small().evaluation(evaluation_interval=2, evaluation_duration=4)
    with config.build() as algorithm:
        results = [algorithm.train() for _ in range(3)]
    assert "evaluation" not in results[0]
    assert results[1]["evaluation"]["env_runners"]["num_episodes"] == 4
    assert results[2]["evaluation"] == results[1]["evaluation"]
    config = small().evaluation(
        evaluation_interval=2, evaluation_duration=4, always_attach_evaluation_results=False
    )
    with config.build() as algorithm:
        assert ["evaluation" in algorithm.train() for _ in range(3)] == [False, True, False]


def test_evaluation_overrides_and_custom_function() -> None:
    shorter = {"max_episode_steps": 5}
    with small().evaluation(evaluation_config=shorter).build() as algorithm:
        assert algorithm.evaluate()["env_runners"]["episode_len_max"] == 5
    with small().evaluation(custom_evaluation_function=count_parameters).build() as algorithm:
        assert algorithm.evaluate() == {"custom_metrics": {"parameters": 107}}


def count_parameters(algorithm: Algorithm) -> dict[str, Any]:
    leaves = jax.tree.leaves(algorithm.get_weights())
    return {"custom_metrics": {"parameters": sum(leaf.size for leaf in leaves)}}


def test_evaluation_cannot_hang() -> None:
    """An environment that never ends: the steps of an evaluation are bounded."""
    config = small(env="tests.test_algorithm:Endless").evaluation(evaluation_duration=2)
    with config.build() as algorithm:
        stats = algorithm.evaluate()["env_runners"]
    assert stats["num_episodes"] == 0
    assert stats["num_env_steps_sampled"] == 20_000
    assert "episode_return_mean" not in stats


# --- actions ---


def test_actions_are_those_of_the_module_through_the_whole_pipeline() -> None:
    config = small(env="Pendulum-v1").env_runners(observation_filter="MeanStdFilter")
    with config.build() as algorithm:
        for _ in range(3):
            algorithm.train()
        obs = np.array([0.5, -0.8, 3.0], np.float32)
        action = algorithm.compute_single_action(obs, explore=False)
        moments = algorithm.state.connectors.obs[0]
        normalized = (obs - moments.mean) / np.sqrt(moments.m2 / (moments.count - 1))
        params = algorithm.get_weights()["default_policy"]
        out = algorithm.get_module().forward_inference(params, jnp.asarray(normalized)[None])
        want = np.clip(np.asarray(out["actions"][0]) * 2.0, -2.0, 2.0)  # torque in [-2, 2]
        np.testing.assert_allclose(action, want, rtol=1e-3)
        assert action.shape == (1,)
        batch = algorithm.compute_actions([obs, obs], explore=False)
        np.testing.assert_allclose(batch[1], action, rtol=1e-6)
        named = algorithm.compute_actions({"a": obs}, explore=False)
        np.testing.assert_allclose(named["a"], action, rtol=1e-6)
        sampled = [float(algorithm.compute_single_action(obs, explore=True)[0]) for _ in range(4)]
        assert len(set(sampled)) > 2  # some are clipped
        _, state_out, outputs = algorithm.compute_single_action(obs, full_fetch=True)
        assert state_out is None
        assert outputs["action_dist_inputs"].shape == (2,)
        with pytest.raises(UnknownNameError, match="no module 'other'"):
            algorithm.compute_single_action(obs, policy_id="other")
        raw = algorithm.compute_single_action(obs, explore=False, unsquash_action=False)
        np.testing.assert_allclose(raw, np.asarray(out["actions"][0]), rtol=1e-3)
        actions, states, outputs = algorithm.compute_actions([obs] * 3, full_fetch=True)
        assert states is None
        assert actions.shape == outputs["actions"].shape == (3, 1)
        actions, _, outputs = algorithm.compute_actions({"a": obs, 7: obs}, full_fetch=True)
        assert actions["a"].shape == (1,)
        assert outputs[7]["action_dist_inputs"].shape == (2,)
        with pytest.raises(SpaceError, match="observations are empty"):
            algorithm.compute_actions([])
        for name in ("prev_action", "prev_reward", "info", "input_dict", "timestep", "episode"):
            algorithm.compute_single_action(obs, **{name: None})
            with pytest.raises(
                ConfigError, match=f"compute_single_action\\({name}=1\\) has no eff"
            ):
                algorithm.compute_single_action(obs, **{name: 1})
        with pytest.raises(ConfigError, match="Did you mean 'prev_reward'"):
            algorithm.compute_actions([obs], prev_rewards=None)


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        ([0.0, 0.0, 0.0], r"obs has shape \(3,\).*\(4,\)"),
        ([0.0, 9.0, 0.0, np.nan], r"obs has NaN at \(3,\)"),
        ([7.0, 0.0, 0.0, 0.0], r"obs\[0\] is 7, outside its space's bounds \[-4.8, 4.8\]"),
        (["a", "b", "c", "d"], "obs must be numbers"),
    ],
)
def test_observations_outside_their_space_are_refused(obs: Any, message: str) -> None:
    box = spaces.Box(
        np.array([-4.8, -np.inf, -0.42, -np.inf], np.float32),
        np.array([4.8, np.inf, 0.42, np.inf], np.float32),
    )
    with pytest.raises(SpaceError, match=message):
        conform(box, obs)


def test_nested_observations_are_checked_by_path() -> None:
    space = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Tuple([spaces.MultiBinary(2)])})
    good = conform(space, {"a": 2, "b": ([1, 0],)})
    assert good["a"] == 2
    np.testing.assert_array_equal(good["b"][0], [1, 0])
    with pytest.raises(SpaceError, match=r"obs\.a is 3, which is not in Discrete\(3\)"):
        conform(space, {"a": 3, "b": ([1, 0],)})
    with pytest.raises(SpaceError, match=r"obs\.b\[0\] has shape"):
        conform(space, {"a": 0, "b": ([1, 0, 1],)})


def test_flattening_agrees_with_gymnasium() -> None:
    space = spaces.Dict(
        {
            "box": spaces.Box(-1, 1, (2, 2), np.float32),
            "one": spaces.Discrete(3, start=5),
            "many": spaces.MultiDiscrete([2, 3]),
            "bits": spaces.Tuple([spaces.MultiBinary(3)]),
        },
        seed=0,
    )
    pipeline = observation_pipeline(space, "NoFilter", ())
    samples = [space.sample() for _ in range(5)]
    want = np.stack([spaces.flatten(space, sample) for sample in samples])
    assert pipeline.spaces[-1].shape == want[0].shape
    batch = jax.tree.map(lambda *x: jnp.asarray(np.stack(x)), *[conform(space, s) for s in samples])
    np.testing.assert_allclose(flatten(space, batch), want)
    np.testing.assert_allclose(pipeline(pipeline.init(), batch), want)


def test_action_connectors_cover_offset_unsquash_and_clip() -> None:
    discrete = action_pipeline(
        spaces.Discrete(3, start=-1), normalize_actions=True, clip_actions=False
    )
    assert discrete.module_space == spaces.Discrete(3)
    np.testing.assert_array_equal(discrete(jnp.array([0, 2])), [-1, 1])
    box = spaces.Box(np.array([0.0, -2.0], np.float32), np.array([1.0, 4.0], np.float32))
    unsquash = action_pipeline(box, normalize_actions=True, clip_actions=False)
    np.testing.assert_allclose(
        unsquash(jnp.array([[-1.0, 0.0], [3.0, 1.0]])), [[0.0, 1.0], [1.0, 4.0]]
    )
    clip = action_pipeline(box, normalize_actions=False, clip_actions=True)
    np.testing.assert_allclose(clip(jnp.array([[5.0, -5.0]])), [[1.0, -2.0]])
    raw = action_pipeline(box, normalize_actions=False, clip_actions=False)
    np.testing.assert_allclose(raw(jnp.array([[5.0, -5.0]])), [[5.0, -5.0]])


@pytest.mark.parametrize(
    ("normalize", "clip", "unsquash_action", "clip_action", "want"),
    [
        (True, False, None, None, [4.0, -2.0]),
        (True, False, True, None, [4.0, -2.0]),
        (True, False, False, None, [3.0, -1.0]),
        (True, False, False, True, [3.0, -1.0]),
        (True, False, None, True, [4.0, -2.0]),
        (False, True, None, None, [3.0, -1.0]),
        (False, True, None, False, [3.0, -1.0]),
        (False, False, None, True, [3.0, -1.0]),
    ],
)
def test_unsquashing_and_clipping_can_be_switched_per_call(
    normalize: bool, clip: bool, unsquash_action: Any, clip_action: Any, want: list[float]
) -> None:
    box = spaces.Box(-2.0, 4.0, (2,), np.float32)
    pipeline = action_pipeline(box, normalize_actions=normalize, clip_actions=clip)
    switched = adjusted(pipeline, unsquash_action, clip_action)
    np.testing.assert_allclose(switched(jnp.array([[3.0, -1.0]]))[0], want)
    far = switched(jnp.array([[9.0, -9.0]]))[0]
    clips = (normalize and unsquash_action is not False) or clip_action
    clips = clips or (clip_action is None and clip and not normalize)
    np.testing.assert_allclose(far, [4.0, -2.0] if clips else [9.0, -9.0])


def test_only_what_is_squashed_is_unsquashed() -> None:
    box = spaces.Box(-2.0, 4.0, (2,), np.float32)
    pipeline = action_pipeline(box, normalize_actions=False, clip_actions=True)
    with pytest.raises(ConfigError, match="unsquash_action=True has nothing to unsquash"):
        adjusted(pipeline, True, None)
    discrete = action_pipeline(
        spaces.Discrete(3, start=-1), normalize_actions=True, clip_actions=False
    )
    assert adjusted(discrete, False, True) is discrete


# --- the environment's parameters ---


@pytest.fixture(scope="module")
def curriculum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Algorithm]:
    """Two devices, and no second compilation of anything."""
    config = small().learners(num_devices=2).evaluation(evaluation_duration=8)
    config.debugging(max_retraces=0, results_dir=str(tmp_path_factory.mktemp("results")))
    with config.build() as algorithm:
        yield algorithm


def test_env_params_change_without_compiling(curriculum: Algorithm, tmp_path: Path) -> None:
    curriculum.train()
    length = curriculum.evaluate()["env_runners"]["episode_len_mean"]
    before = curriculum.train()["env_runners"]["episode_len_mean"]
    curriculum.set_env_params(force_mag=2000, gravity=np.float64(9.0))
    assert float(curriculum.env_params.force_mag) == 2000.0
    results = [curriculum.train() for _ in range(3)]
    assert results[-1]["compile"]["train"]["num_compilations"] == 1
    assert results[-1]["env_runners"]["episode_len_min"] <= 3 < before
    assert curriculum.evaluate()["env_runners"]["episode_len_mean"] <= 4 < length
    saved = Path(curriculum.save(tmp_path))
    assert read_leaves(saved, read_metadata(saved))["env_params.force_mag"] == 2000.0
    easier = dataclasses.replace(curriculum.env_params, force_mag=np.float32(10))
    curriculum.set_env_params(easier)
    assert curriculum.evaluate()["env_runners"]["episode_len_mean"] > 4
    curriculum.restore(saved)
    assert float(curriculum.env_params.force_mag) == 2000.0


@pytest.mark.parametrize(
    ("params", "fields", "error", "message"),
    [
        (None, {"gravty": 1.0}, UnknownNameError, r"set_env_params\(\).*Did you mean 'gravity'"),
        (None, {"gravity": "down"}, EnvError, "'gravity' must be float32 of shape"),
        (None, {"gravity": [1.0, 2.0]}, EnvError, "'gravity' must be float32 of shape"),
        (None, {"x_threshold": 3.0}, EnvError, "observation space of CartPole-v1"),
        ({"gravity": 1.0}, {}, EnvError, "must have the structure"),
    ],
)
def test_other_env_params_are_refused(
    params: Any, fields: Any, error: Any, message: str, curriculum: Algorithm
) -> None:
    before = curriculum.env_params
    with pytest.raises(error, match=message):
        curriculum.set_env_params(params, **fields)
    assert_equal(before, curriculum.env_params)


def test_evaluation_with_an_environment_of_its_own_keeps_it() -> None:
    config = small().evaluation(evaluation_config={"env_config": {"gravity": 9.8}})
    with config.build() as algorithm:
        before = algorithm.evaluate()
        algorithm.set_env_params(force_mag=2000.0)
        assert algorithm.evaluate() == before


def test_env_params_without_a_type_of_their_own_keep_it_that_way() -> None:
    now = jax.jit(lambda params: params)({"a": 1.0, "b": jnp.zeros(2)})
    made = MadeEnv(env=Endless(), params={"a": 1.0, "b": np.zeros(2)}, id="Endless")
    new = changed_params(made, now, None, {"a": 2, "b": [3.0, 4.0]})
    assert (float(new["a"]), new["b"].tolist()) == (2.0, [3.0, 4.0])
    for name in now:
        assert new[name].aval == now[name].aval
        assert new[name].sharding == now[name].sharding


# --- weights, callbacks, overrides ---


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


class Twice(Algorithm):
    """Two dispatches a step, and a number of its own."""

    def training_step(self) -> dict[str, Any]:
        super().training_step()
        return super().training_step()


def test_training_step_is_the_override_point() -> None:
    config = PPOConfig(algo_class=Twice).update_from_dict(
        {name: value for name, value in small().items() if name in small().explicit}
    )
    with config.build() as algorithm:
        assert isinstance(algorithm, Twice)
        assert algorithm.train()["env_runners"]["num_env_steps_sampled"] == 256


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
    assert [path.name for path in complete_checkpoints(run / "checkpoints")] == [
        "checkpoint_000001",
        "checkpoint_000002",
    ]
    RunFolder.open(run).close()  # nobody holds it any more


def test_an_algorithm_goes_on_after_stop() -> None:
    """And appends to its logs."""
    algorithm = small().build()
    algorithm.train()
    algorithm.stop()
    algorithm.train()
    algorithm.stop()
    lines = (Path(algorithm.run_dir) / "result.json").read_text().splitlines()
    assert [json.loads(line)["training_iteration"] for line in lines] == [1, 2]


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


@pytest.mark.allow_key_reuse
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


@pytest.mark.parametrize(("rows", "reason"), [(2**24, "needs at least .* GiB"), (2**34, "rows")])
def test_too_large_a_batch_is_refused_before_compiling(
    rows: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxrl.runners.placement.memory_limit", lambda _: 2**28)
    config = small().env_runners(num_envs_per_env_runner=2**20)
    config.training(train_batch_size=rows, minibatch_size=2**20)
    with pytest.raises(ConfigError, match=f"train_batch_size={rows} .*{reason}"):
        config.build()


class Untyped(Endless):
    """Its reward is an integer."""

    def step(self, key: Any, state: EndlessState, action: Any, params: EndlessState) -> Any:
        state, step = super().step(key, state, action, params)
        return state, dataclasses.replace(step, reward=jnp.ones((), jnp.int32))


def test_an_environment_that_breaks_the_contract_is_refused_before_compiling() -> None:
    with pytest.raises(EnvError, match="the reward must be a float32 scalar, got int32"):
        small(env=Untyped).build()
    small(env=Untyped).environment(disable_env_checking=True).build().stop()


def test_no_env_is_refused() -> None:
    with pytest.raises(ConfigError, match="env is not set"):
        PPOConfig().build()


def test_a_declared_space_must_be_the_environments() -> None:
    config = small().environment(action_space=gymnasium.spaces.Discrete(3))
    with pytest.raises(ConfigError, match=r"action_space is declared as Discrete\(3\)"):
        config.build()


@pytest.mark.parametrize(
    ("setting", "rewards"),
    [(True, [-1.0, 0.0, 1.0]), (2.0, [-2.0, 0.0, 2.0]), ((-1.0, 3.0), [-1.0, 0.0, 3.0])],
)
def test_rewards_are_clipped_for_learning_only(setting: Any, rewards: list[float]) -> None:
    from jaxrl.connectors.learning import default_learner_connectors

    (connector,) = default_learner_connectors(setting, False, 0.99)
    rollout: Any = _Rewards(jnp.array([[-5.0, 0.0, 5.0]]))
    _, _, clipped = connector((), (), rollout, None)
    np.testing.assert_array_equal(clipped.reward[0], rewards)
