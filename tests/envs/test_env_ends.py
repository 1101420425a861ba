"""Environments that exit, interrupt, or fail to close: they are told of, and nothing else is lost."""

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from jaxrl import Algorithm, PPOConfig
from jaxrl.envs import make
from jaxrl.envs.adapters.barrier import reraise_interrupts
from jaxrl.envs.host_vector import make_vector
from jaxrl.errors import EnvError
from jaxrl.runners.hang_watch import HangWatch


class Ending(CartPoleEnv):
    """CartPole that does something else at its third step."""

    def __init__(self, how: str = "", exits: bool = False) -> None:
        super().__init__()
        self._how, self._taken = how, 0
        if exits:
            sys.exit("no licence")

    def step(self, action: Any) -> Any:
        self._taken += 1
        if self._taken == 3:
            if self._how == "exit":
                sys.exit(3)
            if self._how == "hang":
                time.sleep(3600.0)
            if self._how == "interrupt":
                raise KeyboardInterrupt
            if self._how == "generator":
                raise GeneratorExit
            if self._how == "ctrl-c":
                signal.raise_signal(signal.SIGINT)
        return super().step(action)

    def close(self) -> None:
        if self._how == "close":
            raise RuntimeError("close fails")


def vector_of(
    how: str, *, mode: str = "sync", restart: bool = False, timeout_s: float | None = None
) -> Any:
    made = make(Ending, {"how": how})
    return make_vector(
        made,
        num_envs=2,
        first_index=0,
        worker_index=0,
        num_workers=0,
        seed=0,
        mode=mode,
        restart_failed=restart,
        check=False,
        validate_env=None,
        reset_mode=None,
        timeout_s=timeout_s,
    )


@contextlib.contextmanager
def closing(vector: Any) -> Iterator[Any]:
    try:
        vector.reset()
        yield vector
    finally:
        vector.close()


def steps(vector: Any, number: int) -> list[Any]:
    return [vector.step(np.zeros(2, np.int64)) for _ in range(number)]


@pytest.mark.parametrize(
    ("how", "said"),
    [("exit", "SystemExit: 3"), ("interrupt", "KeyboardInterrupt"), ("generator", "GeneratorExit")],
)
def test_exit_and_interrupt_are_the_environments_errors(how: str, said: str) -> None:
    where = r"Ending \(worker_index=0, vector_index=0\): step raised "
    with closing(vector_of(how)) as vector, pytest.raises(EnvError, match=f"{where}{said}"):
        steps(vector, 3)


@pytest.mark.parametrize("how", ["exit", "interrupt", "generator"])
def test_copies_that_exit_are_restarted(how: str) -> None:
    with closing(vector_of(how, restart=True)) as vector:
        last = steps(vector, 4)[2]
    assert [fault.row for fault in last.faults] == [0, 1]
    assert not last.mask.any()


def test_ctrl_c_within_a_step_stays_the_users() -> None:
    with closing(vector_of("ctrl-c", restart=True)) as vector, pytest.raises(KeyboardInterrupt):
        steps(vector, 3)


def test_an_interrupt_without_a_traceback_is_the_users() -> None:
    with pytest.raises(KeyboardInterrupt):
        reraise_interrupts(KeyboardInterrupt())


def test_the_end_of_a_generator_is_not_the_environments() -> None:
    def watch() -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            reraise_interrupts(error)
            raise AssertionError from error

    watching = watch()
    next(watching)
    watching.close()


def test_an_environment_that_exits_when_made_is_told_of() -> None:
    with pytest.raises(EnvError, match="its creation raised SystemExit: no licence"):
        make(Ending, {"exits": True})


def test_a_close_that_raises_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), closing(vector_of("close")) as vector:
        steps(vector, 1)
    assert "close raised RuntimeError: close fails; the environment is discarded" in caplog.text


def blocked(process: Any) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("SigBlk:"))
    return int(line.split()[1], 16)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_processes_of_environments_do_not_hear_the_terminal() -> None:
    with closing(vector_of("", mode="async")) as vector:
        masks = [blocked(process) for process in vector.vector.processes]
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        for mask in masks:
            assert mask & 1 << signal.SIGINT - 1
            assert mask & 1 << signal.SIGHUP - 1
            assert not mask & 1 << signal.SIGTERM - 1
        os.kill(vector.vector.processes[1].pid, signal.SIGKILL)
        time.sleep(0.2)
        with pytest.raises(EnvError, match=r"died: vector_index=1 \(ended by SIGKILL\)"):
            steps(vector, 1)
        assert vector.get_state() is None


@pytest.mark.slow
def test_a_process_that_hangs_is_an_error_in_time() -> None:
    with closing(vector_of("hang", mode="async", timeout_s=3.0)) as vector:
        steps(vector, 2)
        with pytest.raises(EnvError, match="sample_timeout_s=3 seconds, so its environment hangs"):
            steps(vector, 1)


def test_an_environment_that_hangs_in_this_process_is_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = HangWatch("Slow", 0.05)
    with watch:
        time.sleep(0.2)  # the first time compiles
    assert not caplog.text
    with caplog.at_level(logging.WARNING), watch:
        for _ in range(100):
            time.sleep(0.05)
            if caplog.text:
                break
    watch.stop()
    assert "Slow: no fragment within sample_timeout_s=0.05 seconds" in caplog.text
    assert f"at {__file__}" in caplog.text
    caplog.clear()
    with watch:
        watch.check()
    assert not caplog.text


class Exploding(Ending):
    """Raises in its 100th step; it can tell and take its state until then."""

    def get_state(self) -> dict[str, Any]:
        return {"state": np.asarray(self.state), "taken": np.asarray(self._taken)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.state, self._taken = np.asarray(state["state"]), 0

    def step(self, action: Any) -> Any:
        if self._taken == 100:
            raise RuntimeError("simulator exploded")
        return super().step(action)


def test_a_run_whose_environment_raises_is_saved_and_goes_on(tmp_path: Path) -> None:
    config = PPOConfig().environment(Exploding).env_runners(num_envs_per_env_runner=2)
    config.training(train_batch_size=32, minibatch_size=32, num_epochs=1)
    config.rl_module(model_config={"fcnet_hiddens": [4]})
    config.debugging(results_dir=str(tmp_path), run_name="run", loggers=["json"])
    with config.build() as algo, pytest.raises(EnvError, match="simulator exploded") as caught:
        algo.fit({"training_iteration": 99})
    assert "checkpoint_000006" in caught.value.__notes__[0]
    with Algorithm.from_checkpoint(tmp_path / "run") as again:
        assert again.iteration == 6
        assert again.train()["num_env_steps_sampled_lifetime"] == 7 * 32
