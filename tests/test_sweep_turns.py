"""Lanes in turns, where memory is short, and evaluated all at once."""

from typing import Any

import jax
import numpy as np
import pytest

from jaxrl import grid
from jaxrl.assembly.assemble import assemble
from jaxrl.errors import ConfigError
from jaxrl.runtime.program import Program
from jaxrl.sweeps import grouping
from tests.helpers import assert_close, slow_but, small
from tests.test_sweep_resume import lasting, population, states_of, swept

pytestmark = pytest.mark.allow_key_reuse


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["PPO", pytest.param("APPO", marks=pytest.mark.slow)])
def test_turns_train_as_one_program_does(algo: str) -> None:
    config = small(algo).environment(env_config={"gravity": grid([6.0, 8.0, 9.8, 12.0, 15.0])})
    config.checkpointing(checkpoint_at_end=False)
    with population(config) as sweep:
        assert len(sweep._groups[0]) == 1
        want, evaluated = sweep.train(), sweep.evaluate(num_episodes=3)["lanes"]
        states = states_of(sweep)
    with population(config.sweep(max_lanes_per_program=4)) as turns:
        assert [len(group.lanes) for group in turns._groups[0]] == [3, 3]  # one to spare
        assert "5 lanes in 1 program." in turns.notes[0]
        assert any("2 turns of 3 lanes" in note for note in turns.notes)
        got = turns.train()
        for own, other in zip(states_of(turns), states, strict=True):
            assert_close(own, other, rtol=1e-5, atol=1e-6)
        for index in range(5):
            runners = [lasting(x["lanes"][index]["env_runners"]) for x in (got, want)]
            assert runners[0] == pytest.approx(runners[1], nan_ok=True)
        first, second = turns._groups[0]
        assert first.programs == second.programs
        assert all(len(program.compile_stats) <= 1 for program in first.programs)
        again = turns.evaluate(num_episodes=3)["lanes"]
        assert again.keys() == evaluated.keys()
        for index, found in again.items():
            assert found["env_runners"] == pytest.approx(evaluated[index]["env_runners"])


@pytest.mark.slow
def test_a_copy_may_come_from_another_turn() -> None:
    config = swept().sweep(max_lanes_per_program=1)
    with population(config) as sweep:
        assert len(sweep._groups[0]) == 4
        for _ in range(2):
            sweep.train()
        sweep._exploit_if_due()
        (exploit,) = sweep.schedule
        states = states_of(sweep)
        own, source = states[exploit.lane], states[exploit.source]
        assert {name for name in own if not np.array_equal(own[name], source[name])} == {
            *(name for name in own if ":" in name),
            "learner.hparams.lr",
            "guard.snapshot.hparams.lr",
        }
        assert sweep.train()["lanes"].keys() == {0, 1, 2, 3}


def test_lanes_at_once_follow_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assembly = assemble(small())
    states, work = assembly.state_bytes, assembly.batch_bytes

    def at_once(number: int, memory: int | None, most: int | None = None, devices: int = 1) -> int:
        monkeypatch.setattr(grouping, "get_memory_limit", lambda device: memory)
        own = jax.devices("cpu")[:devices]
        return grouping.compute_lanes_per_turn(number, states, work, own, most)

    assert at_once(10, None) == 10
    assert at_once(10, 10 * (states + work)) == 10
    assert at_once(10, 10 * states + 9 * work) == 5
    assert at_once(10, 10 * states + 4 * work) == 2  # the last of three turns would be padded
    assert at_once(10, 10 * states + work) == 1
    assert at_once(10, None, most=3) == 3
    assert at_once(10, None, most=7) == 5
    assert at_once(5, 6 * (states + work), devices=2) == 5  # and a copy
    assert at_once(5, 6 * (states + work) - 1, devices=2) == 2
    with pytest.raises(ConfigError, match=r"10 lanes need .* sweep at most 9 lanes"):
        at_once(10, 9 * states + work + work // 2)


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", slow_but("auto", of=[1, "auto"]))
def test_all_lanes_are_evaluated_in_one_dispatch(
    num_devices: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    call = Program.__call__

    def counted(self: Program, *args: Any) -> Any:
        calls.append(self.name)
        return call(self, *args)

    monkeypatch.setattr(Program, "__call__", counted)
    config = small(lr=grid([1e-2, 1e-3])).sweep(seeds=2).learners(num_devices=num_devices)
    config.environment(env_config={"gravity": grid([8.0, 12.0])})
    config.evaluation(
        evaluation_interval=1, evaluation_duration=4, evaluation_config={"max_episode_steps": 30}
    )
    with population(config) as sweep:
        assert len(sweep.devices) == (8 if num_devices == "auto" else 1)
        first = sweep._runs[0].algorithm
        first._evaluation.compile(first._make_evaluation_inputs())
        result = sweep.train()
        assert calls.count("evaluate") == 1
        assert result["lanes"][5]["compile"]["evaluate"]["num_compilations"] == 1
        found = sweep.evaluate(num_episodes=3)["lanes"]
        assert sweep.evaluate(num_episodes=3)["lanes"] == found
        assert calls.count("evaluate_3_episodes") == 1
        for index in (0, 5):
            with sweep.lane(index) as alone:
                assert alone.evaluate()["env_runners"] == pytest.approx(
                    result["lanes"][index]["evaluation"]["env_runners"]
                )
                assert alone.evaluate(num_episodes=3)["env_runners"] == pytest.approx(
                    found[index]["env_runners"]
                )
        run = sweep._runs[5].algorithm
        before = found[5]["env_runners"]["episode_return_mean"]
        run.set_weights(
            {"default_policy": jax.tree.map(np.zeros_like, run.get_weights()["default_policy"])}
        )
        after = sweep.evaluate(num_episodes=3)["lanes"]
        assert after[5]["env_runners"]["episode_return_mean"] != before
        assert after[4] == found[4]


@pytest.mark.slow
def test_the_environment_of_evaluation_may_be_another_for_every_lane() -> None:
    config = small(lr=1e-3).environment(env_config={"gravity": grid([5.0, 20.0])})
    config.evaluation(evaluation_config={"env": "CartPole-v1"}, evaluation_duration=4)
    with population(config) as sweep:
        found = sweep.evaluate()["lanes"]
        for index in (0, 1):
            with sweep.lane(index) as alone:
                assert alone.evaluate()["env_runners"] == pytest.approx(found[index]["env_runners"])
    assert found[0] != found[1]
