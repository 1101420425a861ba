"""Classic-control environments in JAX, each equal to gymnasium's."""
