"""Wrong types in what a run remembers on the host: one sentence, and nothing has changed."""

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxrl.errors import CheckpointError
from jaxrl.runs.host_state import (
    RunMetadata,
)
from tests.helpers import assert_equal, small
from tests.saved_states import COUNTS, forged, loaded, save_two

VALUES: tuple[Any, ...] = (None, True, "9", 9.5, -1, 9, 10**400, [], [1], ["a"], {}, {"a": "b"})
"""Values of every type that JSON has."""

RIGHT: dict[str, tuple[Any, ...]] = {
    "iteration": (9,),
    "time_total_s": (9.5, 9),
    "actions_drawn": (9,),
    "last_evaluation": ({}, {"a": "b"}),
    "runner_counts": ({},),
    "last_result": ({},),
    "logged": ({},),
    "logged_in_evaluations": ({},),
    "logged.sum": (),
    "logged.a/mean.data": (),
    "logged.all.percentiles": ([], [1]),
    "runner_counts.num_sub_env_restarts": (9,),
    "runner_counts.num_env_runner_restarts": (9,),
    "runner_counts.env_steps": ([], [1]),
    "runner_counts.ledger": ({},),
    "runner_counts.logged": ({},),
    "runner_counts.weights_version": (9,),
    "runner_counts.ledger.received": (9,),
    "runner_counts.ledger.trained": (),
    "runner_counts.ledger.queued": (),
    "runner_counts.ledger.discarded": (),
    "runner_counts.ledger.maybe_lost": (9,),
    "runner_counts.logged.sum": (),
    "runner_counts.logged.sum.reduce": (),
    "runner_counts.logged.sum.window": (None,),
    "runner_counts.logged.sum.data": ([1],),
    "runner_counts.logged.a/mean.data": (),
    "runner_counts.logged.a/last.window": (9, 10**400),
    "runner_counts.logged.ema.ema_coeff": (),
    "runner_counts.logged.all.percentiles": ([], [1]),
    "runner_counts.logged.item.data": ([1], ["a"]),
    "last_result.training_iteration": (9,),
    "last_result.num_env_steps_sampled_lifetime": (9,),
    "last_result.env_runners": ({},),
    "last_result.num": (None, True, 9.5, -1, 9, {}),
    "last_evaluation.env_runners": ({}, {"a": "b"}),
    "last_evaluation.training_iteration": (9,),
}
"""Values among them that fields may have, and what is in fields; nothing else."""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """An older and a newer checkpoint."""
    return save_two(tmp_path_factory.mktemp("checkpoints"))


def within(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        *above, name = path.split(".")
        place = document["host"]
        for part in above:
            place = place[part]
        place[name] = copy.deepcopy(value)

    return change


def test_every_field_is_here() -> None:
    fields = {field.name for field in dataclasses.fields(RunMetadata)}
    assert {path for path in RIGHT if "." not in path} == fields
    for path, names in (("runner_counts", COUNTS), ("runner_counts.ledger", COUNTS["ledger"])):
        assert {p.rpartition(".")[2] for p in RIGHT if p.rpartition(".")[0] == path} == names.keys()


@pytest.mark.parametrize("path", RIGHT)
def test_a_field_of_another_type_is_one_sentence(
    path: str, two: list[Path], tmp_path: Path
) -> None:
    for value in VALUES:
        checkpoint = forged(tmp_path, two[1], within(path, value))
        try:
            loaded(checkpoint)
        except CheckpointError as error:
            assert not any(right == value and type(right) is type(value) for right in RIGHT[path])
            sentence = str(error)
            assert "\n" not in sentence
            assert len(sentence) < 400
            assert f"host.{path.split('.')[0]}" in sentence, (value, sentence)
        else:
            assert any(right == value and type(right) is type(value) for right in RIGHT[path]), (
                value
            )


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("runner_counts.more", 1),
        ("runner_counts.ledger.more", 1),
        ("runner_counts.ledger.received", 10),  # does not balance
        (
            "runner_counts.logged.a",
            {"reduce": "sum", "window": None, "data": [1.0]},
        ),  # a and a/mean
        ("runner_counts.logged.x", {"reduce": "sum", "window": None, "data": [1.0], "more": 1}),
        ("runner_counts.logged.x", {"reduce": "mean", "window": None, "data": [1.0, 0]}),
        ("runner_counts.logged.x", {"reduce": "max", "window": 2, "data": []}),
        ("last_result.env_runners", {"episode_return_mean": "x"}),
        ("last_evaluation.env_runners", {"episode_return_mean": [1]}),
        ("last_result", {"env_runners": {}}),  # of no iteration
    ],
)
def test_what_is_of_the_right_types_and_makes_no_sense(
    path: str, value: Any, two: list[Path], tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=rf"host\.{path.split('.')[0]}"):
        loaded(forged(tmp_path, two[1], within(path, value)))


def test_a_run_on_the_host_answers_before_anything_has_changed(tmp_path: Path) -> None:
    config = small("IMPALA", broadcast_interval=3).env_runners(placement="host")
    with config.debugging(loggers=[]).build() as algorithm:
        algorithm.train()
        before = algorithm.get_state()
        saved = Path(algorithm.save(tmp_path / "own"))
        counts = before["metadata"]["host"]["runner_counts"]
        assert counts.keys() <= COUNTS.keys()
        assert "weights_version" in counts
        algorithm.train()
        now = algorithm.get_state()
        for path, value in (
            ("runner_counts", [1]),
            ("runner_counts", {}),  # without the version of the weights that are acted with
            ("runner_counts.num_sub_env_restarts", "x"),
            ("runner_counts.weights_version", None),
            ("last_result", {"training_iteration": "1"}),
        ):
            with pytest.raises(CheckpointError, match=r"host\.(runner_counts|last_result)"):
                algorithm.restore(forged(tmp_path, saved, within(path, value)))
            assert_equal(algorithm.get_state()["train_state"], now["train_state"])
        odd = {"a": "b", "env_runners": {"x": ["y"]}, "videos": 5}
        algorithm.restore(forged(tmp_path, saved, within("last_evaluation", odd)))
        assert algorithm.train()["training_iteration"] == 2
        algorithm.save(tmp_path / "again")
