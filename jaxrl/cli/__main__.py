"""Entry point of `python -m jaxrl.cli`, equivalent to `jaxrl`."""

from jaxrl.cli import main

main()
