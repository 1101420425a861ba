"""Batches on the host: which rows are finite, and one row's info out of gymnasium's merged ones."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool

from jaxrl.core.types import PyTree
from jaxrl.envs.adapters.barrier import FAULT, CopyFault


def finite_rows(tree: PyTree) -> Bool[np.ndarray, " B"]:
    """Where every floating-point entry of a row is finite."""
    leaves = jax.tree.leaves(tree)
    rows = np.ones(len(leaves[0]), np.bool_)
    for leaf in leaves:
        if leaf.dtype.kind == "f":
            rows &= np.isfinite(leaf).reshape(len(leaf), -1).all(axis=1)
    return rows


def all_finite(tree: PyTree) -> bool:
    """Whether every floating-point entry is finite."""
    leaves = (tree,) if tree.__class__ is np.ndarray else jax.tree.leaves(tree)
    return all(map(_finite, leaves))


def _finite(leaf: np.ndarray) -> bool:
    """By the sum of squares, one pass without an array of its own, unless that is too large."""
    if leaf.dtype.kind != "f":
        return True
    return math.isfinite(np.vdot(leaf, leaf)) or bool(np.isfinite(leaf).all())


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
class CopyInfos:
    """What the copies said beside their numbers at a step.

    `rows` are the infos of the successors, `final_obs` the observations that a reset within the
    step replaced, `faults` what barriers reported, the latter two by row.
    """

    rows: Sequence[dict[str, Any]]
    final_obs: dict[int, PyTree] = dataclasses.field(default_factory=dict)
    faults: dict[int, CopyFault] = dataclasses.field(default_factory=dict)

    def __call__(self, row: int) -> dict[str, Any]:
        """The info of one copy's successor."""
        return {key: value for key, value in self.rows[row].items() if key != FAULT}


def copy_infos(infos: dict[str, Any] | CopyInfos, num_envs: int) -> CopyInfos:
    """Out of the one dictionary into which gymnasium's vector environments merge them."""
    if isinstance(infos, CopyInfos):
        return infos
    ended = _present(infos, "final_obs", num_envs)
    return CopyInfos(
        rows=_MergedRows(infos, num_envs),
        final_obs={int(row): infos["final_obs"][row] for row in np.flatnonzero(ended)},
        faults={
            int(row): infos[FAULT][row] for row in np.flatnonzero(_present(infos, FAULT, num_envs))
        },
    )


class _MergedRows(Sequence[dict[str, Any]]):
    """The successors' infos, taken apart when they are asked for."""

    def __init__(self, infos: dict[str, Any], num_envs: int) -> None:
        self._infos = infos
        self._ended = _present(infos, "final_info", num_envs)

    def __len__(self) -> int:
        return len(self._ended)

    def __getitem__(self, row: Any) -> Any:
        return _info_row(self._infos["final_info"] if self._ended[row] else self._infos, row)


def _info_row(infos: dict[str, Any], row: int) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, values in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue
        present = infos.get(f"_{key}")
        if isinstance(values, dict):
            kept[key] = _info_row(values, row)
        elif isinstance(values, np.ndarray) and (present is None or present[row]):
            kept[key] = values[row]
    return kept


def _present(infos: dict[str, Any], key: str, num_envs: int) -> Bool[np.ndarray, " B"]:
    """Which copies' info has the key."""
    return infos[f"_{key}"] if key in infos else np.zeros(num_envs, np.bool_)
