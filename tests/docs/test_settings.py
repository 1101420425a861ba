"""The tables of settings say what the code does."""

import ast
import re
from pathlib import Path

from jaxrl.algorithms.ppo import PPOConfig

PPO_PAGE = Path(__file__).parents[2] / "docs" / "algorithms" / "ppo.md"


def test_defaults_of_ppo() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", PPO_PAGE.read_text(), re.MULTILINE)
    assert len(rows) > 10
    config = PPOConfig()
    documented = {name: ast.literal_eval(default) for name, default in rows}
    assert documented == {name: config[name] for name in documented}
