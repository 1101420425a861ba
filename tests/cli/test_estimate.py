"""`jaxrl estimate`."""

import json
from pathlib import Path

import pytest

from tests.cli.command import jaxrl
from tests.helpers import small


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint and the data that its run recorded."""
    folder = tmp_path_factory.mktemp("results")
    data = folder / "data"
    config = small().offline_data(output=str(data))
    config.debugging(results_dir=str(folder), run_name="run")
    with config.build() as algorithm:
        for _ in range(5):
            algorithm.train()
        return Path(algorithm.save()), data


def test_table(run: tuple[Path, Path]) -> None:
    code, printed, err = jaxrl(
        "estimate", run[0], "--input", run[1], "--methods", "wis,pdis,dm", "--fqe-updates", "20"
    )
    assert code == 0, err
    assert f"checkpoint  {run[0]}" in printed
    assert "policy      samples its actions" in printed
    for name in ("behavior", "wis", "pdis", "dm"):
        assert any(line.startswith(name) and "[" in line for line in printed.splitlines()), printed
    assert "effective episodes " in printed


def test_json(run: tuple[Path, Path]) -> None:
    code, printed, err = jaxrl(
        "estimate", run[0], "--input", run[1], "--methods", "wis", "--gamma", "0.5", "--json"
    )
    assert code == 0, err
    report = json.loads(printed)
    assert report["gamma"] == 0.5
    assert report["estimates"]["wis"]["low"] <= report["estimates"]["wis"]["value"] <= 2.0
    assert report["num_episodes"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "learned from no recorded data: name a folder of them, --input DATA"),
        (("--input", "nothing/here"), "nothing/here"),
        (("--methods", "wiss"), "unknown 'wiss'"),
    ],
)
def test_errors_are_one_sentence(
    run: tuple[Path, Path], arguments: tuple[str, ...], message: str
) -> None:
    data = () if "--input" in arguments or not arguments else ("--input", str(run[1]))
    code, _, err = jaxrl("estimate", run[0], *data, *arguments)
    assert code == 2
    assert message in err.replace("\n", " ")
