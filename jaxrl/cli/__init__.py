"""The command line: `jaxrl train`, `evaluate`, `resume` and `list`.

Nothing here imports JAX before a command needs it, so that `jaxrl --help` answers at once.
"""

import signal


def main() -> None:
    """The entry point `jaxrl`: Ctrl-C ends it without a traceback from the first import on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until what follows is imported
    from jaxrl.cli.interrupts import AtOnce

    with AtOnce():
        from jaxrl.cli import app

        app.main()


__all__ = ["main"]
