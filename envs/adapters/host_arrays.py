"""Batches on the host: finiteness of rows, and infos by row from gymnasium's merged ones."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool

from jaxrl.core.types import PyTree
from jaxrl.envs.adapters.barrier import FAULT_KEY, SubEnvFault


def finite_rows(tree: PyTree) -> Bool[np.ndarray, " B"]:
    """Return whether every floating-point entry of a row is finite, for each row."""
    leaves = jax.tree.leaves(tree)
    rows = np.ones(len(leaves[0]), np.bool_)
    for leaf in leaves:
        if leaf.dtype.kind == "f":
            rows &= np.isfinite(leaf).reshape(len(leaf), -1).all(axis=1)
    return rows


def all_finite(tree: PyTree) -> bool:
    """Return whether every floating-point entry is finite."""
    leaves = (tree,) if tree.__class__ is np.ndarray else jax.tree.leaves(tree)
    return all(map(_is_finite, leaves))


def _is_finite(leaf: np.ndarray) -> bool:
    """Return whether a leaf is finite.

    The sum of squares takes one pass without a temporary array; the entries are only checked if it
    overflows.
    """
    if leaf.dtype.kind != "f":
        return True
    return math.isfinite(np.vdot(leaf, leaf)) or bool(np.isfinite(leaf).all())


def where_rows(condition: Bool[np.ndarray, " B"], new: PyTree, old: PyTree) -> PyTree:
    """Select rows of `new` where the condition holds, else of `old`."""

    def select(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.where(condition.reshape(-1, *(1,) * (x.ndim - 1)), x, y)

    return jax.tree.map(select, new, old)


def replace_non_finite(obs: PyTree) -> tuple[PyTree, Bool[np.ndarray, " B"]]:
    """Replace non-finite entries by zero; also return which rows had some."""
    is_bad = ~finite_rows(obs)
    if not is_bad.any():
        return obs, is_bad

    def clean(leaf: np.ndarray) -> np.ndarray:
        return np.nan_to_num(leaf, nan=0.0, posinf=0.0, neginf=0.0)

    return jax.tree.map(lambda x: clean(x) if x.dtype.kind == "f" else x, obs), is_bad


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubEnvInfos:
    """Infos of the copies at a step, with final observations and faults.

    `rows` are the infos of the successors, `first_rows` those of the observations returned, which
    a reset within the step replaced. `final_obs` are the observations that it replaced, `faults`
    the reports of barriers, the latter two by row.
    """

    rows: Sequence[dict[str, Any]]
    first_rows: Sequence[dict[str, Any]]
    final_obs: dict[int, PyTree] = dataclasses.field(default_factory=dict)
    faults: dict[int, SubEnvFault] = dataclasses.field(default_factory=dict)

    def __call__(self, row: int) -> dict[str, Any]:
        """Return the info of one copy's successor."""
        return _drop_fault(self.rows[row])

    def get_first(self, row: int) -> dict[str, Any]:
        """Return the info of the reset of a copy that was reset."""
        return _drop_fault(self.first_rows[row])


def _drop_fault(info: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in info.items() if key != FAULT_KEY}


def split_infos(infos: dict[str, Any] | SubEnvInfos, num_envs: int) -> SubEnvInfos:
    """Split the one dictionary into which gymnasium's vector environments merge infos."""
    if isinstance(infos, SubEnvInfos):
        return infos
    ended = _rows_with_key(infos, "final_obs", num_envs)
    last = _rows_with_key(infos, "final_info", num_envs)
    return SubEnvInfos(
        rows=_MergedRows(infos, last),
        first_rows=_MergedRows(infos, np.zeros(num_envs, np.bool_)),
        final_obs={int(row): infos["final_obs"][row] for row in np.flatnonzero(ended)},
        faults={
            int(row): infos[FAULT_KEY][row]
            for row in np.flatnonzero(_rows_with_key(infos, FAULT_KEY, num_envs))
        },
    )


class _MergedRows(Sequence[dict[str, Any]]):
    """Infos of rows, split on access; the marked ones are those below `final_info`."""

    def __init__(self, infos: dict[str, Any], is_final: Bool[np.ndarray, " B"]) -> None:
        self._infos, self._is_final = infos, is_final

    def __len__(self) -> int:
        return len(self._is_final)

    def __getitem__(self, row: Any) -> Any:
        if self._is_final[row]:
            return _info_row(self._infos["final_info"], row)
        own = _info_row(self._infos, row)
        return {key: own[key] for key in own if key not in ("final_obs", "final_info")}


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


def _rows_with_key(infos: dict[str, Any], key: str, num_envs: int) -> Bool[np.ndarray, " B"]:
    """Return which copies' infos have the key."""
    return infos[f"_{key}"] if key in infos else np.zeros(num_envs, np.bool_)
