"""Version of jaxrl."""

__version__ = "0.1.0"
