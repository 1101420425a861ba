"""For those who extend jaxrl: certify an environment, or an algorithm."""

from jaxrl.testing.check_env import check_env

__all__ = ["check_env"]
