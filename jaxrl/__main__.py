"""`python -m jaxrl`, the same as `jaxrl`."""

from jaxrl.cli import main

if __name__ == "__main__":
    main()
