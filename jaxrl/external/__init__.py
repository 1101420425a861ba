"""Simulators that step environments elsewhere: their client, and the protocol that it speaks.

The files of jaxrl-link import the standard library and NumPy alone, in the syntax of Python 3.9;
`jaxrl client --write DIR` copies them into a simulator's tree.
"""

from .client import PolicyClient
from .frames import LinkError, RunEndedError

__all__ = ["LinkError", "PolicyClient", "RunEndedError"]
