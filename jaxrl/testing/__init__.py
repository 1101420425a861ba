"""Checks for extensions of jaxrl: a test of environments, and reference formulas."""

from jaxrl.testing.check_env import check_env

__all__ = ["check_env"]
