"""The benchmark of recorded data: its settings, and its quick form."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import offline
from benchmarks.offline_rows import write_rows
from benchmarks.offline_settings import (
    D3RLPY,
    EPISODE_LENGTH,
    HANDWRITTEN,
    JAX_CORL,
    OURS,
    READING,
    RLLIB,
    RLLIB_THREADS,
    OfflineSetting,
    is_supported,
    make_rows,
    make_settings,
)
from benchmarks.peers.jaxrl_offline_worker import CONFIGS, JaxrlOfflinePeer, make_config
from jaxrl.bench.peers import PeerError
from jaxrl.offline.recorded import RecordedData, open_data


def test_settings_survive_json_and_have_valid_configs(tmp_path: Path) -> None:
    for setting in make_settings().values():
        assert OfflineSetting.from_dict(json.loads(json.dumps(setting.to_dict()))) == setting
        config = make_config(setting, "data.npz")
        assert type(config) is CONFIGS[setting.algorithm]
        assert config.plan().train_batch_size == setting.batch_size
        config.validate()


def test_peers_are_left_out_of_algorithms_that_they_do_not_have() -> None:
    by_peer = {
        peer: {x.algorithm for x in make_settings().values() if is_supported(peer, x)}
        for peer in offline.PEERS
    }
    assert by_peer[OURS] == by_peer[D3RLPY] == {"BC", "CQL", "IQL", "TD3+BC"}
    assert by_peer[HANDWRITTEN] == by_peer[JAX_CORL] == {"CQL", "IQL", "TD3+BC"}
    assert by_peer[RLLIB] == by_peer[RLLIB_THREADS] == {"BC", "CQL", "IQL"}


def test_a_peer_without_its_checkout_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("JAX_CORL", raising=False)
    with pytest.raises(SystemExit):
        offline.main(["--quick", "--peers", f"{OURS},{JAX_CORL}"])
    assert "jax-corl needs a checkout of JAX-CORL, JAX_CORL=FOLDER" in capsys.readouterr().err


def test_rows_in_parquet_are_those_of_the_arrays(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.parquet", 2 * EPISODE_LENGTH)
    rows = make_rows(2 * EPISODE_LENGTH)
    first, second = open_rows(tmp_path / "rows.parquet").iter_parts()
    assert not first.terminated
    assert first.truncated
    assert second.truncated
    np.testing.assert_array_equal(first.obs, rows["observations"][: EPISODE_LENGTH + 1])
    np.testing.assert_array_equal(second.action, rows["actions"][EPISODE_LENGTH:])
    np.testing.assert_array_equal(first.reward, rows["rewards"][:EPISODE_LENGTH])


def open_rows(path: Path) -> RecordedData:
    """Open recorded rows in the spaces of the benchmark."""
    environment = make_config(READING, str(path)).environment_settings
    return open_data(
        str(path),
        observation_space=environment.observation_space,
        action_space=environment.action_space,
    )


class FakeReader:
    """Reader that takes `seconds`, and notes what it has read."""

    def __init__(self, name: str, seconds: float, files: list[tuple[str, str]], lost: int) -> None:
        self.name, self.seconds, self.files, self.lost = name, seconds, files, lost

    def ask(self, command: str, data: str) -> dict[str, Any]:
        assert command == "read"
        self.files.append((self.name, Path(data).stem))
        num_rows = sum(len(part) for part in open_rows(Path(data)).iter_parts())
        return {"seconds": self.seconds, "num_rows": num_rows - self.lost}


def make_readers(lost: int = 0) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    files: list[tuple[str, str]] = []
    return {
        OURS: FakeReader(OURS, 0.5, files, 0),
        RLLIB: FakeReader(RLLIB, 20.0, files, lost),
    }, files


def test_readers_take_turns_after_a_small_file(tmp_path: Path) -> None:
    readers, files = make_readers()
    reading = offline.measure_reading(readers, tmp_path, 2 * EPISODE_LENGTH, 2)
    assert reading is not None
    assert files == [
        (OURS, "few"),
        (RLLIB, "few"),
        (OURS, "rows"),
        (RLLIB, "rows"),
        (RLLIB, "rows"),
        (OURS, "rows"),
    ]
    assert reading["seconds"] == {OURS: [0.5, 0.5], RLLIB: [20.0, 20.0]}
    assert reading["ratio"][RLLIB]["median"] == 40.0


def test_a_reader_that_loses_rows_is_an_error(tmp_path: Path) -> None:
    readers, _ = make_readers(lost=1)
    with pytest.raises(PeerError, match=f"{RLLIB} has read 1999 rows of 2000"):
        offline.measure_reading(readers, tmp_path, 2 * EPISODE_LENGTH, 2)


def test_nothing_is_read_without_rows_or_readers(tmp_path: Path) -> None:
    assert offline.measure_reading(make_readers()[0], tmp_path, 0, 2) is None
    assert offline.measure_reading({}, tmp_path, 2000, 2) is None


def test_fewer_rows_than_none_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        offline.main(["--rows", "-1"])
    assert "--rows: -1 is less than 0" in capsys.readouterr().err


def test_the_report_has_a_table_of_the_reading(tmp_path: Path) -> None:
    reading = offline.measure_reading(make_readers()[0], tmp_path, 2 * EPISODE_LENGTH, 3)
    results = {
        "machine": {"cpu": "C", "cores": 2, "memory_gib": 4, "system": "L", "python": "3"},
        "load": {"before": 0.0, "after": 0.0},
        "date": "2026-01-01",
        "command": "python",
        "quick": False,
        "cases": {},
    }
    text = offline.render_markdown({**results, "reading": reading})
    assert f"| {RLLIB} | 20.0 (20.0 - 20.0) | 40.0 (40.0 - 40.0) |" in text
    assert f"| {OURS} | 0.5 (0.5 - 0.5) | - |" in text
    assert "2,000 rows" in text
    assert "## Reading" not in offline.render_markdown(results)


def test_our_reader_has_every_row_on_the_device(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.parquet", EPISODE_LENGTH)
    reply = JaxrlOfflinePeer().read({"data": str(tmp_path / "rows.parquet")})
    assert reply["num_rows"] == EPISODE_LENGTH
    assert reply["seconds"] > 0.0


@pytest.mark.slow
def test_a_quick_run_writes_the_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        offline.main(["--quick", "--peers", f"{OURS},{HANDWRITTEN}", "--out", str(tmp_path)]) == 0
    )
    text = (tmp_path / "offline.md").read_text()
    assert capsys.readouterr().out.endswith(text + "\n")
    results = json.loads((tmp_path / "offline.json").read_text())
    for name, setting in make_settings().items():
        for peer in (OURS, HANDWRITTEN):
            assert (f"| {name} | {peer} |" in text) == is_supported(peer, setting)
            rates = results["cases"][name]["rates"].get(peer, [])
            assert len(rates) == 2 * is_supported(peer, setting)
            assert all(rate > 0 for rate in rates)
    assert list(results["reading"]["seconds"]) == [OURS]
    assert results["reading"]["num_rows"] == offline.QUICK_ROWS
