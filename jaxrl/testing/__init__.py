"""Checks for extensions of jaxrl: a test of environments, and reference formulas."""

from jaxrl.testing.check_env import check_env
from jaxrl.testing.replies import play_all_replies

__all__ = ["check_env", "play_all_replies"]
