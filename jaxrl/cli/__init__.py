"""The command line: `jaxrl train`, `evaluate`, `resume` and `list`.

Nothing here imports JAX before a command needs it, so that `jaxrl --help` answers at once.
"""

from jaxrl.cli.app import main

__all__ = ["main"]
