"""What acts: the deployable policy, and actions computed for observations from outside."""

from jaxrl.policy.policy import Policy

__all__ = ["Policy"]
