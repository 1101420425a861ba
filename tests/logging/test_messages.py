"""Python's log: what `log_level` changes, and who hears it."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.assembly.assemble import assemble
from jaxrl.loggers.python_log import set_log_level
from tests.helpers import small


@pytest.fixture(autouse=True)
def _level_as_before() -> Iterator[None]:
    ours = logging.getLogger("jaxrl")
    level, handlers = ours.level, list(ours.handlers)
    yield
    ours.setLevel(level)
    ours.handlers[:] = handlers


def nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program that did not configure logging; pytest itself listens while a test runs."""
    for logger in (logging.getLogger(), logging.getLogger("jaxrl")):
        monkeypatch.setattr(logger, "handlers", [])


def test_messages_reach_standard_error_if_nobody_listens(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody_listens(monkeypatch)
    for level in ("INFO", "INFO", "WARN"):
        set_log_level(level)
        logging.getLogger("jaxrl.runners").info("built")
    assert len(logging.getLogger("jaxrl").handlers) == 1
    assert capsys.readouterr().err == "INFO jaxrl.runners: built\n" * 2


def test_a_program_that_listens_is_not_told_twice(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody_listens(monkeypatch)
    heard: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    set_log_level("INFO")  # before the program configures its logging
    logging.getLogger().addHandler(Listener())
    set_log_level("INFO")
    logging.getLogger("jaxrl").info("built")
    assert heard == ["built"]
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_levels_say_what_was_built_compiled_and_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = small(gamma=0.987)  # no other test's, whose programs would be shared
    with config.debugging(log_level="DEBUG").build() as algorithm:
        assert any("jaxrl's own JAX implementation" in note for note in algorithm.notes)
        assert set(algorithm.notes) <= set(caplog.messages)
        algorithm.train()
        path = algorithm.save(tmp_path)
    by_level: dict[str, list[str]] = {"INFO": [], "DEBUG": []}
    for record in caplog.records:
        if record.name.startswith("jaxrl"):
            by_level[record.levelname].append(record.getMessage())
    said = "\n".join(by_level["INFO"])
    for words in (
        f"PPO on CartPole-v1; {algorithm.config.plan().describe()}",
        "1 cpu devices, as set.",
        "Compilation cache: ",
        "compiled init in ",
        "compiled train in ",
        f"checkpoint {path} of ",
    ):
        assert words in said
    shapes = "\n".join(by_level["DEBUG"])
    for words in ("observation space Box(", "action space Discrete(2)", "float32(4, 8)", "train: "):
        assert words in shapes


def test_what_adapted_is_announced(caplog: pytest.LogCaptureFixture) -> None:
    set_log_level("INFO")
    config = PPOConfig().environment("CartPole-v1").training(train_batch_size=4000, num_sgd_iter=4)
    assemble(config).log(config.algo_name, [], ["Two devices."])
    said = "\n".join(caplog.messages)
    assert "minibatch_size: 125 instead of the default 128" in said
    assert "num_sgd_iter" not in said  # announced once, when the run is prepared
    assert "Two devices." in caplog.messages
    assert "parameter" not in said


def test_by_default_it_is_quiet(caplog: pytest.LogCaptureFixture) -> None:
    small().build().stop()
    assert [record for record in caplog.records if record.name.startswith("jaxrl")] == []
