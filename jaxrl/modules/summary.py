"""A module's parameters as a table."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Params


def parameter_table(title: str, params: Params) -> str:
    """A table of parameters (or their shapes), one row an array, with totals."""
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    rows = [("layer", "parameter", "shape", "number", "trainable")]
    trainable = total = 0
    for path, leaf in leaves:
        names = jax.tree_util.keystr(path, simple=True, separator="/").split("/")
        number = int(np.prod(leaf.shape, dtype=np.int64))
        is_trainable = bool(jnp.issubdtype(leaf.dtype, jnp.floating))
        total += number
        trainable += number if is_trainable else 0
        shape = " x ".join(map(str, leaf.shape)) or "scalar"
        layer = "/".join(names[:-1]) or "-"
        rows.append((layer, names[-1], shape, f"{number:,}", "yes" if is_trainable else "no"))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows]
    rule = "-" * (sum(widths) + 8)
    totals = f"{total:,} parameters: {trainable:,} trainable, {total - trainable:,} not trainable"
    return "\n".join([title, rule, lines[0], rule, *lines[1:], rule, totals])
