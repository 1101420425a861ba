"""Copies of gymnasium environments that raise, or give numbers that are not finite."""

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from jaxrl.envs import EnvContext, StepFailedRecreateEnvError
from jaxrl.envs.host_vector import make_vector
from jaxrl.errors import EnvError
from tests.envs.copies import CRASHING, MODES, Counter, copies, host, step_rows


@pytest.mark.parametrize("mode", MODES)
def test_a_copy_that_raises_is_restarted_alone(mode: Any, opened: Any) -> None:
    config = {"crash_after_n_steps": 4, "crash_on_vector_indices": [1]}
    crashing, whole = host(CRASHING, config), host(CRASHING)
    keywords: dict[str, Any] = {"num_envs": 3, "seed": 2, "mode": mode, "check": False}
    vector = opened(make_vector(crashing, restart_failed=True, **keywords))
    reference = opened(make_vector(whole, **{**keywords, "mode": "sync"}))
    np.testing.assert_array_equal(vector.reset(), reference.reset())
    others = [0, 2]
    for number in range(1, 13):
        before = vector._obs
        step, expected = (v.step(np.zeros(3, np.int32)) for v in (vector, reference))
        np.testing.assert_array_equal(step.obs[others], expected.obs[others])
        np.testing.assert_array_equal(step.mask[others], [True, True])
        np.testing.assert_array_equal(step.starts[others], expected.starts[others])
        if number % 4:
            assert step.faults == ()
            assert step.mask.all()
            continue
        (fault,) = step.faults
        assert (fault.row, fault.what, fault.silent) == (1, "raised", False)
        assert (
            "vector_index=1): step raised SimulatedCrash: simulated crash in step" in fault.detail
        )
        assert "in _maybe_crash" in fault.detail
        assert (step.mask[1], step.starts[1], step.truncated[1]) == (False, True, True)
        assert step.reward[1] == 0.0
        np.testing.assert_array_equal(step.final_obs[1], before[1])
        assert np.abs(step.obs[1]).max() <= 0.05


@pytest.mark.parametrize("mode", MODES)
def test_without_the_setting_it_is_an_error_with_the_original_traceback(
    mode: Any, opened: Any
) -> None:
    made = host(CRASHING, {"crash_after_n_steps": 2, "crash_on_vector_indices": [1]})
    vector = opened(make_vector(made, num_envs=2, worker_index=3, mode=mode, check=False))
    vector.reset()
    step_rows(vector, 1)
    message = (
        r"^jaxrl:crashing-cartpole-v0 \(worker_index=3, vector_index=1\): step raised "
        r"SimulatedCrash: simulated crash in step \(worker 3, copy 1\)\.$"
    )
    with pytest.raises(EnvError, match=message) as caught:
        step_rows(vector, 1)
    cause = caught.value.__cause__
    if mode == "sync":
        assert type(cause).__name__ == "SimulatedCrash"
    else:
        assert "in _maybe_crash" in str(cause)


def test_a_restart_can_be_asked_for_silently() -> None:
    made = host(CRASHING, {"crash_after_n_steps": 2, "crash_silently": True})
    vector = make_vector(made, num_envs=1, restart_failed=True, check=False)
    vector.reset()
    step = step_rows(vector, 2)[1]
    assert [fault.silent for fault in step.faults] == [True]
    assert StepFailedRecreateEnvError.__name__ in step.faults[0].detail


def test_restarted_copies_have_seeds_of_their_own() -> None:
    made = host(CRASHING, {"crash_after_n_steps": 2})
    vector = make_vector(made, num_envs=2, restart_failed=True, check=False)
    firsts = [vector.reset(), *(step.obs for step in step_rows(vector, 12) if step.starts.all())]
    rows = np.concatenate(firsts)
    assert len(firsts) == 7
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_a_reset_that_raises_leaves_the_step_before_it_whole() -> None:
    calls: list[int] = []

    class FailsOnce(Counter):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            calls.append(1)
            if len(calls) == 2:
                raise RuntimeError("not now")
            return super().reset(seed=seed, options=options)

    vector = make_vector(host(FailsOnce), num_envs=1, restart_failed=True, check=False)
    vector.reset()
    step = step_rows(vector, 5)[4]
    assert (step.terminated[0], step.mask[0], step.starts[0]) == (True, True, True)
    np.testing.assert_array_equal(step.final_obs[0], [1, 5])
    assert "reset raised RuntimeError: not now" in step.faults[0].detail


def test_faults_of_the_first_reset_come_with_the_first_step() -> None:
    made = host(CRASHING, {"p_crash_reset": 0.5})
    vector = make_vector(made, num_envs=8, seed=1, restart_failed=True, check=False)
    vector.reset()
    first, second = step_rows(vector, 2)
    assert 0 < len(first.faults) < 8
    assert first.mask.all()
    assert second.faults == ()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"p_crash_reset": 1.0}, "could not be restarted in 5 attempts, the last of which raised"),
        ({"p_crash": 1.0}, "It was restarted 10 times without a single step"),
    ],
)
def test_restarts_are_bounded(
    config: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("jaxrl.envs.adapters.barrier.time.sleep", pauses.append)
    vector = make_vector(host(CRASHING, config), num_envs=1, restart_failed=True, check=False)

    def run() -> None:
        vector.reset()
        step_rows(vector, 20)

    with pytest.raises(EnvError, match=message):
        run()
    assert pauses == sorted(pauses)


class Poisoned(Counter):
    """Not finite in its third step, in what `kind` says."""

    def __init__(self, config: EnvContext) -> None:
        super().__init__(config)
        self.kind = config["kind"] if config.vector_index == 1 else "nothing"

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, info = super().reset(seed=seed, options=options)
        return (np.full(2, np.nan, np.float32) if self.kind == "reset" else obs), info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        if self.count == 3 and self.kind == "observation":
            obs = np.array([np.inf, 1.0], np.float32)
        if self.count == 3 and self.kind == "reward":
            reward = np.nan
        if self.count == 5 and self.kind == "end":
            obs = np.array([np.nan, 1.0], np.float32)
        return obs, reward, terminated, truncated, info


class Huge(Counter):
    """Observations and rewards that are finite, and whose squares are not."""

    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, info = super().step(action)
        return obs + np.float32(3e38), 3e38, terminated, truncated, info


def test_large_numbers_are_finite() -> None:
    vector = copies(host(Huge, {}), 2, "sync", AutoresetMode.SAME_STEP)
    vector.reset()
    for step in step_rows(vector, 6):
        assert step.mask.all()
        assert not step.faults
        assert np.isfinite(step.final_obs).all()
        np.testing.assert_array_equal(step.reward, np.float32([3e38, 3e38]))


@pytest.mark.parametrize("mode", [*AutoresetMode])
@pytest.mark.parametrize("kind", ["reward", "observation"])
def test_what_is_not_finite_is_no_transition(kind: str, mode: AutoresetMode) -> None:
    vector = copies(host(Poisoned, {"kind": kind}), 2, "sync", mode)
    vector.reset()
    steps = step_rows(vector, 4)
    third = steps[2]
    assert [(fault.row, fault.what) for fault in third.faults] == [(1, kind)]
    assert third.mask.tolist() == [True, False]
    assert third.starts.tolist() == [False, True]
    assert third.truncated.tolist() == [False, True]
    assert third.reward.tolist() == [3.0, 0.0]
    np.testing.assert_array_equal(third.obs, [[1, 3], [2, 0]])
    np.testing.assert_array_equal(third.final_obs, [[1, 3], [1, 2]])
    np.testing.assert_array_equal(steps[3].final_obs, [[1, 4], [2, 1]])
    assert steps[3].mask.all()


@pytest.mark.parametrize("mode", [*AutoresetMode])
def test_an_end_that_is_not_finite_is_dropped(mode: AutoresetMode) -> None:
    vector = copies(host(Poisoned, {"kind": "end"}), 2, "sync", mode)
    vector.reset()
    fifth = step_rows(vector, 5)[4]
    assert fifth.mask.tolist() == [True, False]
    assert fifth.terminated.tolist() == [True, False]
    assert np.isfinite(fifth.obs).all()
    assert np.isfinite(fifth.final_obs).all()
    following = next(step for step in step_rows(vector, 2) if step.mask.all())
    np.testing.assert_array_equal(following.final_obs, [[2, 1], [2, 1]])


def test_a_first_observation_that_is_not_finite_costs_a_row() -> None:
    vector = make_vector(host(Poisoned, {"kind": "reset"}), num_envs=2, check=False)
    np.testing.assert_array_equal(vector.reset(), [[1, 0], [0, 0]])
    for number, step in enumerate(step_rows(vector, 3), 1):
        assert step.mask.tolist() == [True, False]
        assert step.starts.tolist() == [False, True]
        assert [fault.what for fault in step.faults] == ["observation"]
        np.testing.assert_array_equal(step.obs, [[1, number], [0, 0]])


def test_a_reward_beyond_float32_is_not_finite() -> None:
    class Huge(Counter):
        def step(self, action: Any) -> Any:
            return *super().step(action)[:1], 1e200, False, False, {}

    vector = make_vector(host(Huge), num_envs=1, check=False)
    vector.reset()
    assert [fault.what for fault in step_rows(vector, 1)[0].faults] == ["reward"]
