"""Learning from recorded data, written by hand with jax and optax, as a peer."""
