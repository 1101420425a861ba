"""Inference: the deployable policy, and actions for external observations."""

from jaxrl.policy.policy import Policy

__all__ = ["Policy"]
