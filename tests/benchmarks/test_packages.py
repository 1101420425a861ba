"""The command of environments of other packages runs and writes its tables."""

from pathlib import Path

import pytest

from benchmarks import packages
from tests.helpers import need_package

pytestmark = [
    pytest.mark.allow_key_reuse,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Brax System"),
]


@pytest.mark.slow
def test_every_table_is_written(tmp_path: Path) -> None:
    for env in packages.ENVS:
        need_package(env)
    assert packages.main(["--quick", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "packages.md").read_text()
    assert all(env in text for env in packages.ENVS)
    assert text.count("| environment |") == 3
