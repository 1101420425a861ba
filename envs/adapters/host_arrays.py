"""Batches on the host: which rows are finite, and one row's info out of gymnasium's merged ones."""

import dataclasses
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool

from jaxrl.core.types import PyTree
from jaxrl.envs.adapters.barrier import FAULT


def finite_rows(tree: PyTree) -> Bool[np.ndarray, " B"]:
    """Where every floating-point entry of a row is finite."""
    leaves = jax.tree.leaves(tree)
    rows = np.ones(len(leaves[0]), np.bool_)
    for leaf in leaves:
        if leaf.dtype.kind == "f":
            rows &= np.isfinite(leaf).reshape(len(leaf), -1).all(axis=1)
    return rows


def where_rows(condition: Bool[np.ndarray, " B"], new: PyTree, old: PyTree) -> PyTree:
    """Rows of `new` where the condition holds, else of `old`."""

    def select(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.where(condition.reshape(-1, *(1,) * (x.ndim - 1)), x, y)

    return jax.tree.map(select, new, old)


def finite_or_zero(obs: PyTree) -> tuple[PyTree, Bool[np.ndarray, " B"]]:
    """The observations with zeros for what is not finite, and which rows had such entries."""
    unfit = ~finite_rows(obs)
    if not unfit.any():
        return obs, unfit

    def clean(leaf: np.ndarray) -> np.ndarray:
        return np.nan_to_num(leaf, nan=0.0, posinf=0.0, neginf=0.0)

    return jax.tree.map(lambda x: clean(x) if x.dtype.kind == "f" else x, obs), unfit


@dataclasses.dataclass(frozen=True, kw_only=True)
class InfoRows:
    """The info of one copy's successor out of gymnasium's merged ones."""

    infos: dict[str, Any]
    ended: np.ndarray

    def __call__(self, row: int) -> dict[str, Any]:
        infos = self.infos
        if self.ended[row] and "final_info" in infos:
            infos = infos["final_info"]
        return _info_row(infos, row)


def _info_row(infos: dict[str, Any], row: int) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, values in infos.items():
        present = infos.get(f"_{key}")
        if present is None or not present[row] or key == FAULT:
            continue
        kept[key] = _info_row(values, row) if isinstance(values, dict) else values[row]
    return kept
