"""Every lane is the run that it would be by itself, whatever lanes differ in."""

from typing import Any

import jax
import pytest

from jaxrl import Population, grid
from jaxrl.sweeps.lanes import choose_lane_devices, count_slots
from tests.helpers import REPLAYS, assert_close, every_algorithm, small
from tests.lanes import (
    PaidCartPole,
    other_value,
    paid_cart_pole,
    population_of,
    sweepable,
    with_effects,
)

pytestmark = pytest.mark.allow_key_reuse

REPRESENTATIVES = ("PPO", "DQN")
SLOW = tuple(sorted({p.values[0] for p in every_algorithm(slow=())} - set(REPRESENTATIVES)))
GROUPS = ("PPO", "APPO", "DQN", "PQN", "SAC", "TD3")
"""Algorithms that have all traced settings together."""


def config_of(algo: str) -> Any:
    config = with_effects(small(algo)).checkpointing(checkpoint_at_end=False)
    # One batch: two updates later rounding has grown, as it does between any two programs.
    batches = 3 if algo in REPLAYS else 1
    return config.reporting(min_sample_timesteps_per_iteration=128 * batches)


def test_a_lane_that_has_its_device_alone_has_the_program_of_a_run() -> None:
    """With an axis of one lane, products of matrices are slower on a CPU."""
    is_batched = []
    for num_devices in (1, 2):  # two lanes on one device, and one on each of two
        config = small().learners(num_devices=num_devices).sweep(seeds=2)
        with config.build() as sweep:
            group = sweep._groups[0][0]
            text = group._compiled.run._jitted.lower(group.states, 1).as_text()
        products = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
        assert products
        is_batched.append(any("batching_dims" in line for line in products))
    assert is_batched == [True, False]


def assert_lanes_are_runs_by_themselves(sweep: Population, indices: list[int]) -> dict[str, Any]:
    """The result of one iteration, after lanes were compared to runs with their settings."""
    result = sweep.train()
    for index in indices:
        lane = sweep.lanes[index]
        config = lane.config.copy(copy_frozen=False).debugging(seed=lane.seed)
        with config.learners(num_devices=1).build() as alone:
            want = alone.train()
            state = sweep._runs[index].algorithm.get_state()["train_state"]
            assert_close(alone.get_state()["train_state"], state, rtol=1e-5, atol=1e-6)
        got = result["lanes"][index]
        assert got["env_runners"]["num_episodes"] == want["env_runners"]["num_episodes"]
        assert got["num_env_steps_sampled_lifetime"] == want["num_env_steps_sampled_lifetime"]
        for name, value in want["learners"]["default_policy"].items():
            assert got["learners"]["default_policy"][name] == pytest.approx(
                value, rel=1e-3, abs=1e-4
            ), (lane.values, name)
    return result


@pytest.mark.representatives("1-PPO", "3-PPO")
@pytest.mark.parametrize("algo", every_algorithm(slow=SLOW))
@pytest.mark.parametrize("num_devices", [1, 3])
def test_a_lane_is_the_run_by_itself(
    num_devices: int, algo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another seed and another value of everything that can be swept in a program."""
    config = config_of(algo).learners(num_devices=num_devices)
    others = {name: other_value(config, name) for name in sweepable(config)}
    points = [{}, {"seed": 3}, {**others, "seed": 5}]
    with population_of(config, points, monkeypatch) as sweep:
        assert len(sweep._groups) == 1
        result = assert_lanes_are_runs_by_themselves(sweep, [2])
        states = [run.algorithm.get_state()["train_state"] for run in sweep._runs]
    assert result["num_lanes"] == 3
    assert len({params_of(state) for state in states}) == 3


def test_lanes_that_the_devices_do_not_divide_are_runs_by_themselves() -> None:
    """The last device has a copy of the last lane, which nothing of the results includes."""
    config = small().learners(num_devices=2).sweep(seeds=5)
    config.evaluation(evaluation_duration=4, evaluation_config={"max_episode_steps": 30})
    with config.build() as sweep:
        (group,) = sweep._groups[0]
        assert (len(sweep.devices), len(group.lanes), group.num_lanes) == (2, 6, 5)
        result = assert_lanes_are_runs_by_themselves(sweep, [0, 4])
        assert result["lanes"].keys() == {0, 1, 2, 3, 4}
        evaluated = sweep.evaluate()["lanes"]
        assert evaluated.keys() == {0, 1, 2, 3, 4}
        with sweep.lane(4) as alone:
            assert alone.evaluate()["env_runners"] == pytest.approx(evaluated[4]["env_runners"])


@pytest.mark.parametrize(
    ("num_lanes", "num_devices", "want"),
    [
        (5, 1, (1, 5)),
        (5, 2, (2, 6)),
        (5, 8, (5, 5)),
        (6, 4, (3, 6)),
        (7, 4, (4, 8)),
        (10, 8, (5, 10)),
    ],
)
def test_lanes_are_divided_among_devices(
    num_lanes: int, num_devices: int, want: tuple[int, int]
) -> None:
    devices = jax.devices("cpu")[:num_devices]
    slots = count_slots(num_lanes, num_devices)
    chosen = choose_lane_devices(devices, num_lanes)
    assert (len(chosen), slots) == want
    assert choose_lane_devices(devices, slots) == chosen


def params_of(state: Any) -> bytes:
    return b"".join(x.tobytes() for name, x in state.items() if ".sgd.params" in name)


@pytest.mark.slow
@pytest.mark.parametrize("algo", GROUPS)
def test_a_lane_with_another_value_of_one_setting_is_the_run_by_itself(
    algo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(algo)
    points: list[dict[str, Any]] = [{}, {"seed": 3}]
    points += [{name: other_value(config, name)} for name in sweepable(config)]
    with population_of(config, points, monkeypatch) as sweep:
        assert len(sweep._groups) == 1
        assert_lanes_are_runs_by_themselves(sweep, list(range(len(points))))


ENV_CONFIGS = [
    pytest.param("PPO", PaidCartPole, "pay", [1.0, 0.01], 2, id="constructor"),
    pytest.param(
        "PPO", paid_cart_pole, "pay", [1.0, 0.01], 2, id="creator", marks=pytest.mark.slow
    ),
    pytest.param(
        "PPO", "Pendulum-v1", "max_torque", [1.0, 4.0], 2, id="space", marks=pytest.mark.slow
    ),
    pytest.param(
        "PPO", "CartPole-v1", "gravity", [1.0, 60.0], 1, id="parameter", marks=pytest.mark.slow
    ),
    pytest.param(
        "SAC", "Pendulum-v1", "max_torque", [1.0, 4.0], 2, id="space-sac", marks=pytest.mark.slow
    ),
    pytest.param(
        "PPO",
        "MountainCarContinuous-v0",
        "max_action",
        [1.0, 0.25],
        2,
        id="bound",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        "PPO",
        "gymnax:CartPole-v1",
        "max_steps_in_episode",
        [500, 5],
        2,
        id="time-limit",
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "env", "name", "values", "programs"), ENV_CONFIGS)
def test_a_lane_in_another_environment_is_the_run_by_itself(
    algo: str, env: Any, name: str, values: list[float], programs: int
) -> None:
    config = config_of(algo).environment(env, env_config={name: grid(values)})
    with config.build() as sweep:
        assert len(sweep._groups) == programs
        evaluated = sweep.evaluate(num_episodes=2)["lanes"]
        with sweep.lane(1) as alone:
            want = alone.evaluate(num_episodes=2)["env_runners"]
            assert evaluated[1]["env_runners"] == pytest.approx(want)
        assert evaluated[0] != evaluated[1]
        assert_lanes_are_runs_by_themselves(sweep, [1])


def log_length(*, episode: Any, metrics_logger: Any, **_: Any) -> None:
    metrics_logger.log_value("length_mean", len(episode))
    metrics_logger.log_value("steps", len(episode), reduce="lifetime_sum")


def test_hooks_of_a_lane_are_called_for_the_episodes_of_its_run() -> None:
    """Another lane may have run the dispatch already; a copy has what its source has logged."""
    config = small().callbacks(on_episode_end=log_length)
    config.reporting(min_sample_timesteps_per_iteration=512).debugging(loggers=[])

    def read(result: dict[str, Any]) -> list[float]:
        runners = result["env_runners"]
        assert runners["num_episodes_not_reported"] == 0
        return [runners[name] for name in ("num_episodes", "length_mean", "steps")]

    with config.copy().training(lr=grid([1e-2, 1e-6])).sweep(seeds=1).build() as sweep:
        lanes = [[read(lane) for lane in sweep.train()["lanes"].values()] for _ in range(2)]
        copy, source = sweep._runs[1], sweep._runs[0]
        copy.exploit(source, {}, 1)
        before = lanes[1][0][2]
        num_episodes, length, steps = read(sweep.train()["lanes"][1])
        assert steps == pytest.approx(before + num_episodes * length)
    with config.copy().training(lr=1e-6).build() as alone:
        assert [read(alone.train()) for _ in range(2)] == [lane[1] for lane in lanes]
