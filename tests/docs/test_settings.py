"""The tables of settings say what the code does."""

import ast
import re
from pathlib import Path

import pytest

from jaxrl.config.base import get_algorithm_config

PAGES = Path(__file__).parents[2] / "docs" / "algorithms"


@pytest.mark.parametrize("page", ["ppo", "impala", "appo", "sac", "tqc", "td3"])
def test_defaults_on_the_page_of(page: str) -> None:
    text = (PAGES / f"{page}.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", text, re.MULTILINE)
    assert len(rows) > 8
    config = get_algorithm_config(page)
    documented = {name: ast.literal_eval(default) for name, default in rows}
    assert documented == {name: config[name] for name in documented}
