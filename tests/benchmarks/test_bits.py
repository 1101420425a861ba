"""Digests of what shipped configs compute."""

import pytest

from benchmarks import bits


@pytest.mark.slow
def test_equal_runs_have_equal_digests(tmp_path) -> None:
    first = bits.compute_digest("classic/cartpole-ppo", 2, str(tmp_path / "a"))
    assert first == bits.compute_digest("classic/cartpole-ppo", 2, str(tmp_path / "b"))
    assert first != bits.compute_digest("classic/cartpole-ppo", 3, str(tmp_path / "c"))


def test_a_line_for_each_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert bits.main(["gymnasium/cartpole-impala"]) == 0
    assert "skipped: samples of actors" in capsys.readouterr().out
    names = bits.list_shipped()
    assert "classic/cartpole-ppo" in names
    assert not [name for name in names if name.startswith("sweeps/")]
