"""Search for the inputs that decide the results of a function, in its traced operations."""

from collections.abc import Callable

import jax
from jax.interpreters import partial_eval

from jaxrl.core.types import PyTree


def find_read_inputs(
    function: Callable[..., tuple[PyTree, PyTree]], constants: PyTree, obs: PyTree, carry: PyTree
) -> tuple[PyTree, PyTree]:
    """Return which observations and which parts of a carry decide the results of steps.

    Args:
        function: Function of constants, observations and a carry to results and the next carry. A
            part of the carry counts if it decides the results of this or of a later step.
        constants: Other inputs, as arrays or their shapes, as the following ones.
        obs: Observations.
        carry: Carry, structured as the next one.

    Returns:
        True or False for each leaf of the observations, and for each of the carry.
    """
    jaxpr = jax.make_jaxpr(function)(constants, obs, carry).jaxpr
    num_carried, num_before = len(jax.tree.leaves(carry)), len(jax.tree.leaves(constants))
    num_results = len(jaxpr.outvars) - num_carried
    kept = [False] * num_carried
    while True:
        _, used = partial_eval.dce_jaxpr(jaxpr, [True] * num_results + kept)
        of_obs, of_carry = used[num_before : -num_carried or None], used[len(used) - num_carried :]
        found = [now or before for now, before in zip(of_carry, kept, strict=True)]
        if found == kept:
            return _like(obs, of_obs), _like(carry, kept)
        kept = found


def _like(tree: PyTree, flags: list[bool]) -> PyTree:
    return jax.tree.unflatten(jax.tree.structure(tree), flags)
