"""Policies behind HTTP: `jaxrl serve`. Nothing here imports JAX but `jax_backend`."""
