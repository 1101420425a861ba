"""`python -m jaxrl.cli`, the same as `jaxrl`."""

from jaxrl.cli import main

main()
