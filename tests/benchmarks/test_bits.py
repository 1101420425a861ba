"""Digests of what shipped configs compute."""

import pytest

from benchmarks import bits


def test_equal_runs_have_equal_digests(tmp_path) -> None:
    first = bits.digests("classic/cartpole-ppo", 2, str(tmp_path / "a"))
    assert first == bits.digests("classic/cartpole-ppo", 2, str(tmp_path / "b"))
    assert first != bits.digests("classic/cartpole-ppo", 3, str(tmp_path / "c"))


def test_a_line_for_each_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert bits.main(["gymnasium/cartpole-impala"]) == 0
    assert "skipped: what actors sample" in capsys.readouterr().out
    names = bits.shipped()
    assert "classic/cartpole-ppo" in names
    assert not [name for name in names if name.startswith("sweeps/")]


def test_a_single_number_is_seen() -> None:
    row = {"learners": {"loss": 1.0}, "time_total_s": 2.0, "timers": {"x": 3.0}}
    other = {"learners": {"loss": 1.0 + 1e-9}, "time_total_s": 2.0}
    assert bits.without_times(row) == {"learners": {"loss": 1.0}}
    assert bits.digest_of_rows([bits.without_times(row)]) != bits.digest_of_rows([other])
