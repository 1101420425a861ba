"""StableHLO of an export computes what the original computes, at every batch size."""

import sys
from pathlib import Path

import numpy as np
import pytest

from jaxrl.errors import ExportError
from jaxrl.export.artifact import make_export
from jaxrl.export.examples import find_mask_key, sample_observations
from jaxrl.export.numpy_program import NumpyPolicy, PolicyFileError
from jaxrl.export.parity import compare
from jaxrl.export.stablehlo import load_stablehlo
from tests.export.exports import CARTPOLE, LSTM, REPRESENTATIVES, get_export, get_policy
from tests.export.test_parity import batch_of


@pytest.mark.representatives(LSTM)
@pytest.mark.parametrize("config_id", REPRESENTATIVES)
def test_outputs_and_batches(config_id: str, tmp_path: Path) -> None:
    policy = get_policy(config_id)
    export = make_export(policy.inference, policy.actor, formats=["stablehlo"], num_examples=4)
    export.write(tmp_path / "exported")
    loaded = load_stablehlo(tmp_path / "exported")
    assert all(check.is_equal for check in compare(loaded, export.examples))
    inference = policy.inference
    rows = sample_observations(
        inference.observation_space, np.random.default_rng(0), 7, find_mask_key(inference)
    )
    for number in (1, 2, 7):
        result = loaded.step(batch_of(rows[:number]))
        assert result.dist_inputs.shape[0] == number
    with pytest.raises(PolicyFileError, match=r"has no program.json: export with formats"):
        NumpyPolicy(tmp_path / "exported")


def test_an_export_without_it(tmp_path: Path) -> None:
    folder = get_export(CARTPOLE).write(tmp_path / "exported")
    with pytest.raises(PolicyFileError, match=r"has no greedy.stablehlo: export with formats"):
        load_stablehlo(folder)


def test_the_package_that_serializes_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "jax._src.export.serialization", raising=False)
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    with pytest.raises(ExportError, match=r"pip install 'jaxrl\[export\]'"):
        get_policy(CARTPOLE).export(tmp_path / "exported", formats=["stablehlo"])
    assert not (tmp_path / "exported").exists()
