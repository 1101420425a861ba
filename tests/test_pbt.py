"""Population based training: copies are exact but for keys, and new values are what lanes learn by."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl import Algorithm, Population, PopulationBasedTraining, grid, loguniform
from jaxrl.config.markers import Marker
from jaxrl.core.struct import replace
from jaxrl.errors import CheckpointError, UnknownNameError
from jaxrl.runs.exploits import Exploit, PBTScheduler, read_schedule
from tests.helpers import RATES, assert_close, differs, small

pytestmark = pytest.mark.allow_key_reuse


def trained_by(scheduler: Any, algo: str = "PPO", seeds: int = 2, **settings: Any) -> Any:
    rate = RATES.get(algo, "lr")
    config = small(algo, **{rate: grid([1e-2, 1e-3]), **settings}).sweep(
        seeds=seeds, scheduler=scheduler
    )
    config.reporting(min_sample_timesteps_per_iteration=512)
    return config.checkpointing(checkpoint_at_end=False)


def scheduler(rate: str = "lr", **arguments: Any) -> PopulationBasedTraining:
    mutations = {rate: loguniform(1e-4, 1e-1)}
    defaults = {"hyperparam_mutations": mutations, "perturbation_interval": 1}
    return PopulationBasedTraining(**(defaults | arguments))


def population(config: Any) -> Population:
    made: Any = config.build()
    assert isinstance(made, Population)
    return made


def leaves_of(sweep: Population, index: int) -> dict[str, np.ndarray]:
    return sweep._runs[index].algorithm.get_state()["train_state"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "num_devices"),
    [
        ("PPO", 1),
        ("PPO", 4),  # a lane each: the copy crosses devices
        *(pytest.param(algo, 1, marks=pytest.mark.slow) for algo in ("APPO", "DQN", "SAC")),
    ],
)
def test_a_copy_is_exact_but_for_keys_and_new_values(algo: str, num_devices: int) -> None:
    rate = RATES.get(algo, "lr")
    how = scheduler(rate, metric="num_env_steps_trained_lifetime")  # the same in all lanes
    with population(trained_by(how, algo).learners(num_devices=num_devices)) as sweep:
        assert len(sweep.devices) == num_devices
        sweep.train()
        before = [leaves_of(sweep, i) for i in range(4)]
        sweep._exploit_if_due()
        after = [leaves_of(sweep, i) for i in range(4)]
        (exploit,) = sweep.schedule
        assert (exploit.lane, exploit.source) == (3, 0)  # of equals, the first is best
        for index in (0, 1, 2):
            assert not differs(before[index], after[index])
        keys = [name for name in before[0] if ":" in name]
        assert len(keys) >= 2
        for name in keys:
            others = [before[exploit.source][name], before[exploit.lane][name]]
            assert all((after[exploit.lane][name] != other).any() for other in others)
        changed = [f"learner.hparams.{rate}", f"guard.snapshot.hparams.{rate}"]
        for name in [name for name in changed if name in after[3]]:
            np.testing.assert_array_equal(after[3][name], np.float32(exploit.new[rate]))
        for name in before[0].keys() - {*keys, *changed}:
            np.testing.assert_array_equal(after[3][name], before[0][name], err_msg=name)


@pytest.mark.slow
def test_a_count_is_copied_to_the_last_step() -> None:
    """2**24 + 1 is no float32."""
    late = 2**24 + 1
    how = scheduler(
        hyperparam_mutations={"initial_random_timesteps": [late, late + 2]},
        metric="num_env_steps_trained_lifetime",
        resample_probability=1.0,
    )
    config = trained_by(how, "DQN", seeds=1, initial_random_timesteps=grid([late - 1, 0]))
    with population(config) as sweep:
        sweep.train()
        sweep.train()
        (exploit,) = sweep.schedule
        new = exploit.new["initial_random_timesteps"]
        hparams = sweep._runs[exploit.lane].algorithm.learner_group.state.learner.hparams
        assert int(hparams["initial_random_timesteps"]) == new
        assert new in (late, late + 2)


@pytest.mark.slow
def test_a_lane_learns_by_its_new_value_as_a_run_by_itself_would() -> None:
    with population(trained_by(scheduler())) as sweep:
        first = sweep.train()
        assert [first["lanes"][i]["config"] for i in range(4)] == [
            {"lr": lane.values["lr"]} for lane in sweep.lanes
        ]
        sweep._exploit_if_due()
        (exploit,) = sweep.schedule
        lane = exploit.lane
        assert exploit.new["lr"] != exploit.old["lr"]
        with sweep.lane(lane) as alone, sweep.lane(lane) as otherwise:
            assert alone.config.lr == exploit.new["lr"]
            learner = otherwise.state.learner
            hparams = {**learner.hparams, "lr": np.float32(exploit.old["lr"])}
            otherwise.state = replace(
                otherwise.state, learner=replace(learner, hparams=jax.device_put(hparams))
            )
            alone.training_step()
            otherwise.training_step()
            # One batch: rounding grows from update to update.
            run = sweep._runs[lane]
            run._group._dispatch(1, lambda phase: None)
            together = leaves_of(sweep, lane)
            assert_close(alone.get_state()["train_state"], together, rtol=1e-5, atol=1e-6)
            with pytest.raises(AssertionError):
                assert_close(otherwise.get_state()["train_state"], together, rtol=1e-5, atol=1e-6)


def test_results_files_and_checkpoints_have_the_values_of_now() -> None:
    config = trained_by(scheduler(quantile_fraction=0.5)).checkpointing(checkpoint_at_end=True)
    with population(config) as sweep:
        result = sweep.fit({"training_iteration": 4})
        schedule = sweep.schedule
        assert [x.training_iteration for x in schedule] == [1, 1, 2, 2, 3, 3]
        values = [lane.values["lr"] for lane in sweep.lanes]
        for exploit in schedule:
            assert exploit.old == {"lr": values[exploit.source]}
            assert exploit.score is not None
            assert exploit.score <= exploit.source_score
            values[exploit.lane] = exploit.new["lr"]
            assert 1e-4 <= exploit.new["lr"] <= 1e-1
        assert [result["lanes"][i]["config"]["lr"] for i in range(4)] == values
        points = sweep.points()
        assert [p.values["lr"] for p in points] == [values[p.lanes[0]] for p in points]
        assert len(points) == 4
        folder = sweep.folder.path
        assert read_schedule(folder) == schedule
        assert json.loads((folder / "pbt.jsonl").read_text().splitlines()[0])["lane"] in range(4)
        lane = schedule[-1].lane
        rows = (folder / sweep.format_lane_name(lane) / "result.json").read_text().splitlines()
        assert json.loads(rows[-1])["config"] == {"lr": values[lane]}
    with Algorithm.from_checkpoint(folder / sweep.format_lane_name(lane)) as restored:
        assert restored.config.lr == values[lane]
        assert float(restored.state.learner.hparams["lr"]) == pytest.approx(values[lane])


def test_infinite_values_and_steps_are_saved() -> None:
    with population(trained_by(scheduler(), vf_clip_param=grid([10.0, np.inf]), seeds=1)) as sweep:
        sweep.train()
        values = [dict(run.current_values) for run in sweep._runs]
        assert sum(x["vf_clip_param"] == np.inf for x in values) >= 1
        folder = sweep.save()
        scores = {"score": 1.0, "source_score": 2.0, "old": {"lr": 1.0}, "new": {"lr": np.inf}}
        step = Exploit(training_iteration=1, lane=0, source=1, **scores)
        sweep._scheduler.schedule.append(step)  # pyright: ignore[reportOptionalMemberAccess]
        sweep._scheduler.write_schedule(sweep.folder.path)  # pyright: ignore[reportOptionalMemberAccess]
        assert read_schedule(sweep.folder.path)[-1] == step
    with Population.from_checkpoint(folder) as again:
        assert [dict(run.current_values) for run in again._runs] == values


@pytest.mark.parametrize("line", ['{"lane": 1', '{"lane": 1}', "[1]", '{"old": 1, "new": 2}'])
def test_a_damaged_schedule_is_one_sentence(tmp_path: Path, line: str) -> None:
    (tmp_path / "pbt.jsonl").write_text(line + "\n")
    with pytest.raises(CheckpointError, match=r"pbt.jsonl is damaged: .* a JSON object\.$"):
        read_schedule(tmp_path, before=3)


def test_a_lane_that_diverged_goes_on_as_a_copy() -> None:
    config = trained_by(scheduler(perturbation_interval=2))
    config.fault_tolerance(nonfinite_updates_tolerance=4)
    with population(config) as sweep:
        sweep.train()
        run = sweep._runs[0].algorithm
        broken = jax.tree.map(lambda x: x * np.nan, run.state.learner.sgd.params)
        learner = replace(run.state.learner, sgd=replace(run.state.learner.sgd, params=broken))
        guard = replace(run.state.guard, snapshot=learner)
        run.state = replace(run.state, learner=learner, guard=guard)
        assert set(sweep.train()["diverged"]) == {0}
        result = sweep.train()
        (exploit,) = [x for x in sweep.schedule if x.lane == 0]
        assert exploit.score is None
        assert exploit.diverged is not None
        assert "None of the" in exploit.diverged
        assert result["diverged"] == {}
        assert result["lanes"][0]["training_iteration"] == 3
        assert result["lanes"][0]["learners"]["default_policy"]["grad_norm"] > 0
        assert sweep.evaluate(num_episodes=1)["lanes"].keys() == {0, 1, 2, 3}


# --- what is decided ---


def decider(marker: Any = None, seed: int = 0, **arguments: Any) -> PBTScheduler:
    marker = marker or Marker("uniform", (0.0, 1.0))
    settings = scheduler(hyperparam_mutations={"gamma": marker}, **arguments)
    return PBTScheduler(settings, {"gamma": marker}, seed)


def decided(
    how: PBTScheduler, scores: dict[int, Any], time: int = 1, diverged: Any = (), value: float = 0.5
) -> list[Exploit]:
    results = {
        index: {"training_iteration": time, "env_runners": {"episode_return_mean": score}}
        for index, score in scores.items()
    }
    total = len(scores) + len(diverged)
    return how.select_exploits(results, [{"gamma": value}] * total, dict.fromkeys(diverged, "NaN"))


SCORES = {0: 5.0, 1: 1.0, 2: 8.0, 3: 2.0, 4: 7.0, 5: 3.0, 6: 6.0, 7: 4.0}


@pytest.mark.parametrize(
    ("arguments", "diverged", "replaced", "copied"),
    [
        ({}, (), {1, 3}, {2, 4}),
        ({"mode": "min"}, (), {2, 4}, {1, 3}),
        ({"quantile_fraction": 0.01}, (), {1}, {2}),
        ({"quantile_fraction": 0.5}, (), {1, 3, 5, 7}, {0, 2, 4, 6}),
        ({}, (8,), {8, 1, 3}, {2, 4, 6}),
        ({"quantile_fraction": 0.01}, (8, 9), {8, 9}, {2}),
    ],
)
def test_the_worst_are_copies_of_the_best(
    arguments: Any, diverged: Any, replaced: set[int], copied: set[int]
) -> None:
    sources: set[int] = set()
    for seed in range(20):
        done = decided(decider(seed=seed, **arguments), SCORES, diverged=diverged)
        assert {x.lane for x in done} == replaced
        assert all(x.source_score == SCORES[x.source] for x in done)
        sources |= {x.source for x in done}
    assert sources == copied


def test_lanes_without_a_score_are_left_alone() -> None:
    done = decided(decider(), {**SCORES, 1: None, 2: float("nan")})
    assert {x.lane for x in done} == {3, 5}
    assert {x.source for x in done} <= {4, 6}
    assert decided(decider(), {0: 1.0, 1: None}) == []
    assert decided(decider(), {0: None, 1: None}) == []
    assert [x.lane for x in decided(decider(), {0: 1.0, 1: 1.0})] == [1]
    with pytest.raises(UnknownNameError, match="learners/nothing"):
        decided(decider(metric="learners/nothing"), SCORES)


def test_when_it_is_time() -> None:
    how = decider(perturbation_interval=3, burn_in_period=4)
    assert [t for t in range(1, 13) if decided(how, SCORES, t)] == [4, 7, 10]
    late = decider(perturbation_interval=2)
    rounds = [t for t in range(1, 8) if decided(late, SCORES if t > 2 else {0: None, 1: None}, t)]
    assert rounds == [3, 5, 7]


def test_values_are_multiplied_within_the_bounds_or_drawn_anew() -> None:
    def new(marker: Marker, value: float, **arguments: Any) -> set[float]:
        return {
            x.new["gamma"]
            for seed in range(30)
            for x in decided(decider(marker, seed, **arguments), SCORES, value=value)
        }

    never: dict[str, Any] = {"resample_probability": 0.0}
    wide, values = Marker("uniform", (0.0, 1.0)), Marker("choice", (0.1, 0.2, 0.4))
    assert new(wide, 0.5, **never) == {0.6, 0.4}
    assert new(wide, 0.5, perturbation_factors=(2.0,), **never) == {1.0}
    assert new(wide, 0.9, **never) == {1.0, 0.9 * 0.8}
    assert new(Marker("loguniform", (0.6, 1.0)), 0.5, **never) == {0.6}
    assert new(Marker("uniform", (1, 100)), 11, **never) == {13, 9}
    drawn = new(wide, 0.5, resample_probability=1.0)
    assert len(drawn) > 50
    assert 0.0 <= min(drawn) < 0.2 < 0.8 < max(drawn) <= 1.0
    assert new(values, 0.2, **never) == {0.1, 0.4}
    assert new(values, 0.4, **never) == {0.2, 0.4}
    assert new(values, 0.3, **never) == {0.1, 0.2, 0.4}
    assert new(values, 0.1, resample_probability=1.0) == {0.1, 0.2, 0.4}
    both = new(wide, 0.5, resample_probability=0.5)
    assert {0.6, 0.4} < both
    assert len(both) > 10


def test_decisions_depend_on_the_seed_and_the_moment_alone() -> None:
    first, again = decider(), decider()
    decided(again, SCORES, 5)
    assert decided(first, SCORES, 7) == decided(again, SCORES, 7)
    assert decided(decider(seed=1), SCORES, 7) != first.schedule
