"""State of JAX's own switch for stepping through programs."""

import jax


def is_jit_disabled() -> bool:
    """Return whether this thread is inside `jax.disable_jit()`, or `JAX_DISABLE_JIT` is set."""
    return bool(jax.config.jax_disable_jit)  # pyright: ignore[reportAttributeAccessIssue]
