"""Command-line interface: `jaxrl train`, `evaluate`, `resume`, `benchmark`, `list` and more.

JAX is imported only by commands that need it, so that `jaxrl --help` is immediate.
"""

import signal


def main() -> None:
    """Run the `jaxrl` command; Ctrl-C ends it without a traceback from the first import on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the imports below are done
    from jaxrl.cli.interrupts import ExitOnInterrupt

    with ExitOnInterrupt():
        from jaxrl.cli import app

        app.main()


__all__ = ["main"]
