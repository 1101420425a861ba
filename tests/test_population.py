"""Sweeps: lanes go on by themselves, are left behind, share devices and programs."""

import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import Algorithm, Population, grid
from jaxrl.core.struct import replace
from jaxrl.errors import ConfigError, DivergenceError, UnknownNameError
from jaxrl.export.numpy_program import NumpyPolicy
from jaxrl.runs.checkpoint import fetch_leaves
from jaxrl.sweeps.points import SweepPoint, group_points
from tests.helpers import RATES, assert_close, small

pytestmark = pytest.mark.allow_key_reuse


def swept(algo: str = "PPO", seeds: Any = 2, **settings: Any) -> Any:
    rate = RATES.get(algo, "lr")
    config = small(algo, **{rate: grid([1e-2, 1e-3]), **settings}).sweep(seeds=seeds)
    return config.learners(num_devices="auto").checkpointing(checkpoint_at_end=False)


def population(config: Any) -> Population:
    made: Any = config.build()
    assert isinstance(made, Population)
    return made


def test_first_values_of_the_state_are_the_lanes() -> None:
    """PPO's adaptive weight of the KL penalty begins with a setting."""
    config = swept(lr=1e-3, seeds=1, kl_coeff=grid([0.1, 0.4]))
    config.training(lr=grid([[[0, 1e-3], [1000, 0.0]], [[0, 1e-4], [500, 1e-5]]]))
    with population(config) as sweep:
        assert len(sweep._groups) == 1
        learners = [run.algorithm.state.learner for run in sweep._runs]
        for lane, learner in zip(sweep.lanes, learners, strict=True):
            knots = np.asarray(lane.values["lr"])
            np.testing.assert_allclose(learner.hparams["lr"].times.low, knots[:, 0])
            np.testing.assert_allclose(learner.hparams["lr"].values, knots[:, 1], rtol=1e-6)
            assert float(learner.kl_coeff) == pytest.approx(lane.values["kl_coeff"])


@pytest.mark.slow
def test_lanes_count_their_own_steps_and_do_as_many_batches() -> None:
    """A lane whose environments are at fault has fewer transitions than the others."""
    config = swept(lr=[[0, 1e-2], [1000, 0.0]], seeds=1).environment("jaxrl.envs.faults:FaultyEnv")
    share = {"at_step": 3, "fraction": grid([0.0, 0.5])}
    config.environment(env_config={"env": "CartPole-v1", **share})
    with population(config.reporting(min_sample_timesteps_per_iteration=256)) as sweep:
        lanes = list(sweep.train()["lanes"].values())
        steps = [int(run.algorithm.state.progress.env_steps) for run in sweep._runs]
        faults = [lane["fault_tolerance"]["num_nonfinite_env_steps"] for lane in lanes]
        assert faults[0] == 0 < faults[1]
        for lane, taken, fault in zip(lanes, steps, faults, strict=True):
            assert lane["num_training_step_calls_per_iteration"] == 2
            assert taken == lane["num_env_steps_sampled_lifetime"] == 256 - fault
            assert lane["env_runners"]["num_env_steps_sampled"] == taken


def test_a_lane_goes_on_by_itself_and_from_its_checkpoint() -> None:
    with population(swept(seeds=1)) as sweep:
        sweep.train()
        folder = Path(sweep.save())
        exported = NumpyPolicy(sweep.export(1, folder.parent / "policy"))
        assert exported.manifest["source"]["training_iteration"] == 1
        with sweep.lane(1) as alone:
            assert alone.iteration == 1
            params = jax.tree.leaves(alone.get_weights()["default_policy"]["pi_head"])
            for leaf in params:
                assert any(np.array_equal(leaf, own) for own in exported.get_weights().values())
            assert alone.config.lr == 1e-3
            alone.train()
            went_on = alone.get_state()["train_state"]
        sweep.train()
        together = sweep._runs[1].algorithm.get_state()["train_state"]
        assert_close(went_on, together, rtol=1e-4, atol=1e-5)
    with Algorithm.from_checkpoint(folder / "lane_001") as restored:
        assert restored.iteration == 1
        restored.train()
        leaves = restored.get_state()["train_state"]
    for name, leaf in fetch_leaves(went_on).items():
        np.testing.assert_array_equal(leaf, fetch_leaves(leaves)[name])
    assert {path.name for path in folder.iterdir() if path.is_dir()} >= {"lane_000", "lane_001"}
    assert (folder / "lane_000" / "result.json").is_file()


@pytest.mark.slow
def test_other_structures_are_programs_of_their_own() -> None:
    config = swept(seeds=1).rl_module(model_config={"fcnet_hiddens": grid([[8], [4]])})
    config.environment(env_config={"gravity": grid([9.8, 12.0])})
    with population(config) as sweep:
        assert sweep.num_lanes == 8
        assert [[len(turn.lanes) for turn in turns] for turns in sweep._groups] == [[4], [4]]
        result = sweep.train()
        assert set(result["lanes"]) == set(range(8))
        for lane, run in zip(sweep.lanes, sweep._runs, strict=True):
            gravity = float(np.asarray(run.algorithm.env_params.gravity))
            assert gravity == pytest.approx(lane.values["env_config.gravity"])
        assert "8 lanes in 2 programs" in sweep.explain()


@pytest.mark.slow
def test_a_lane_that_diverges_is_left_behind_alone() -> None:
    config = swept(seeds=2).fault_tolerance(nonfinite_updates_tolerance=4)
    with population(config) as sweep, population(config) as untouched:
        for either in (sweep, untouched):
            either.train()
        run = sweep._runs[3].algorithm
        broken = jax.tree.map(lambda x: x * jnp.nan, run.state.learner.sgd.params)
        learner = run.state.learner
        run.state = replace(
            run.state, learner=replace(learner, sgd=replace(learner.sgd, params=broken))
        )
        run.state = replace(run.state, guard=replace(run.state.guard, snapshot=run.state.learner))
        result = sweep.train()
        assert set(result["diverged"]) == {3}
        assert "None of the" in result["diverged"][3]
        assert "lane_003" in result["diverged"][3]
        assert set(result["lanes"]) == {0, 1, 2}
        result = sweep.train()
        for _ in range(2):
            want = untouched.train()
        assert result["lanes"][2]["env_runners"] | TIMES == want["lanes"][2]["env_runners"] | TIMES
        states = [p._runs[2].algorithm.get_state()["train_state"] for p in (sweep, untouched)]
        for name, leaf in states[0].items():
            np.testing.assert_array_equal(leaf, states[1][name])
        assert sweep.best_lane() in (0, 1, 2)
        evaluated = sweep.evaluate(num_episodes=1)
        assert evaluated.keys() == result.keys()
        assert list(evaluated["lanes"]) == [0, 1, 2]
        assert evaluated["diverged"] == result["diverged"]
        returns = [x["env_runners"]["episode_return_mean"] for x in evaluated["lanes"].values()]
        assert evaluated["env_runners"]["episode_return_mean"] == pytest.approx(np.mean(returns))
        for index in range(3):
            sweep.diverged[index] = "nothing"
        with pytest.raises(DivergenceError, match="All 4 lanes have diverged"):
            sweep.train()


def test_callbacks_of_lanes_are_given_an_algorithm_of_the_lane() -> None:
    seen: list[dict[str, Any]] = []

    def use(*, algorithm: Algorithm, **_: Any) -> None:
        assert isinstance(algorithm, Algorithm)
        policy = algorithm.get_policy(explore=False)
        obs = np.zeros(4, np.float32)
        seen.append(
            {
                "lr": algorithm.config.lr,
                "iteration": algorithm.iteration,
                "same": policy.act(obs) == algorithm.compute_single_action(obs, explore=False),
                "played": algorithm.evaluate(num_episodes=2)["env_runners"]["num_episodes"],
                "weights": algorithm.get_weights()["default_policy"],
            }
        )

    config = swept(seeds=1).callbacks(on_train_result=use).learners(num_devices=1)
    with population(config) as sweep:
        sweep.train()
        assert [x["lr"] for x in seen] == [1e-2, 1e-3]
        for x, run in zip(seen, sweep._runs, strict=True):
            assert (x["iteration"], x["same"], x["played"]) == (1, True, 2)
            now = run.algorithm.get_weights()["default_policy"]
            jax.tree.map(np.testing.assert_array_equal, x["weights"], now)


TIMES = {"num_env_steps_sampled_per_second": 0.0}


@pytest.mark.slow
def test_devices_share_the_lanes() -> None:
    with population(swept()) as sweep:
        assert len(sweep.devices) == 4
        sweep.train()
        spread = [run.algorithm.get_state()["train_state"] for run in sweep._runs]
    config = swept().learners(num_devices=1)
    with population(config) as sweep:
        assert len(sweep.devices) == 1
        sweep.train()
        for run, state in zip(sweep._runs, spread, strict=True):
            assert_close(run.algorithm.get_state()["train_state"], state, rtol=1e-5, atol=1e-6)


def test_fit_trains_every_lane_to_the_criterion() -> None:
    config = swept(seeds=2).checkpointing(checkpoint_at_end=True)
    seen: list[Any] = []
    with population(config) as sweep:
        result = sweep.fit({"training_iteration": 3}, on_iteration=seen.append)
        assert [x["training_iteration"] for x in seen] == [1, 2, 3]
        returns = {i: x["env_runners"]["episode_return_mean"] for i, x in result["lanes"].items()}
        assert result["env_runners"]["episode_return_mean"] == pytest.approx(
            np.mean(list(returns.values()))
        )
        assert sweep.best_lane() == max(returns, key=lambda i: returns[i])
        assert sweep.best_lane(mode="min") == min(returns, key=lambda i: returns[i])
        points = sweep.points()
        assert [p.score for p in points] == sorted((p.score for p in points), reverse=True)
        assert {p.lanes for p in points} == {(0, 1), (2, 3)}
        assert all(math.isnan(bound) for p in points for bound in p.interval)  # of two seeds
        rows = (sweep.folder.path / "lane_002" / "result.json").read_text().splitlines()
        assert len(rows) == 3
        assert json.loads(rows[-1])["env_runners"]["episode_return_mean"] == returns[2]
        assert len(list((sweep.folder.path / "lane_002" / "checkpoints").iterdir())) == 1
        with pytest.raises(UnknownNameError, match="no lane 4"):
            sweep.lane(4)
        with pytest.raises(UnknownNameError, match="a number under 'nothing'"):
            sweep.best_lane("nothing")
        with pytest.raises(ConfigError, match="'best'"):
            sweep.best_lane(mode="best")
        with pytest.raises(ConfigError, match="mode must be 'max' or 'min', got 'best'"):
            sweep.points(mode="best")
        with pytest.raises(ConfigError, match="needs a stop criterion"):
            sweep.fit()


def test_points_have_an_interval() -> None:
    losses = {0: {"loss": 2.0}, 1: {"loss": 1.0}, 2: {}}
    lanes: list[tuple[int, dict[str, float]]] = [(0, {}), (1, {}), (2, {})]
    for mode, best in (("max", [0, 1, 2]), ("min", [1, 0, 2])):
        assert [point.number for point in group_points(lanes, losses, "loss", mode)] == best
    point = SweepPoint.from_scores(0, {}, (0, 1, 2), [1.0, 2.0, 3.0])
    assert point.score == pytest.approx(2.0)
    low, high = point.interval
    assert low < 1.0 < 3.0 < high  # of three runs, two may be on the same side of the mean
    assert low + high == pytest.approx(4.0)
    assert math.isnan(SweepPoint.from_scores(0, {}, (0,), []).score)
    assert all(math.isnan(x) for x in SweepPoint.from_scores(0, {}, (0,), [4.0]).interval)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.reporting(min_time_s_per_iteration=1.0), ["min_time_s_per_iteration=1.0"]),
        (
            lambda c: (
                c.sweep(seeds=300)
                .env_runners(num_envs_per_env_runner=2**20)
                .training(train_batch_size=2**27, minibatch_size=2**27)
            ),
            ["300 lanes", "GiB"],
        ),
    ],
)
def test_what_cannot_be_swept_is_refused(change: Any, words: list[str]) -> None:
    config = swept(lr=1e-3)
    change(config)
    with pytest.raises(ConfigError) as error:
        config.build()
    for word in words:
        assert word in str(error.value)
