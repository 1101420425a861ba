"""Search for the inputs that decide the results of a function, in its traced operations."""

from collections.abc import Callable

import jax
import numpy as np
from jax.interpreters import partial_eval
from jaxtyping import Bool

from jaxrl.core.types import PyTree


def find_dependence(
    function: Callable[..., tuple[PyTree, PyTree]], constants: PyTree, obs: PyTree, carry: PyTree
) -> tuple[PyTree, Bool[np.ndarray, "c o"]]:
    """Return what depends on observations, at their step or, through the carry, later.

    Args:
        function: Function of constants, observations and a carry to results and the next carry.
        constants: Other inputs, as arrays or their shapes, as the following ones.
        obs: Observations.
        carry: Carry, structured as the next one.

    Returns:
        Whether a result depends on each leaf of the observations, and whether each leaf of the carry
        does, `[leaves of the carry, leaves of the observations]`.
    """
    jaxpr = jax.make_jaxpr(function)(constants, obs, carry).jaxpr
    num_before, num_obs, num_carried = (
        len(jax.tree.leaves(tree)) for tree in (constants, obs, carry)
    )
    each = np.eye(len(jaxpr.outvars), dtype=np.bool_)
    uses = np.asarray([partial_eval.dce_jaxpr(jaxpr, row.tolist())[1] for row in each], np.bool_)
    of_obs, of_carry = uses[:, num_before:][:, :num_obs], uses[:, num_before + num_obs :]
    carried, links = of_obs[-num_carried or len(uses) :], of_carry[-num_carried or len(uses) :]
    for _ in range(num_carried):
        carried = carried | (links @ carried)
    num_results = len(uses) - num_carried
    found = of_obs[:num_results] | (of_carry[:num_results] @ carried)
    flags = [bool(column.any()) for column in found.T]
    return jax.tree.unflatten(jax.tree.structure(obs), flags), carried
