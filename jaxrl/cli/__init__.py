"""Command-line interface: `jaxrl train`, `evaluate`, `resume`, `benchmark`, `list` and more.

JAX is imported only by commands that need it, so that `jaxrl --help` is immediate.
"""

import atexit
import gc
import signal


def main() -> None:
    """Run the `jaxrl` command; Ctrl-C ends it without a traceback from the first import on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the imports below are done
    _collect_rarely()
    from jaxrl.cli.terminal import ExitOnInterrupt

    with ExitOnInterrupt():
        from jaxrl.cli import app

        app.main()


def _collect_rarely() -> None:
    """Look for reference cycles rarely, and not among what is left when the process ends.

    Imports and tracing make many objects and hardly any cycles: with Python's own thresholds the
    collections during a short command and at its end take as long as the import of JAX.
    """
    gc.set_threshold(10_000)
    atexit.register(gc.freeze)


__all__ = ["main"]
