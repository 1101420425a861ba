"""Data sets that are made from shipped configs, for `jaxrl datasets`."""
