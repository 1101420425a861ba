"""Recorded rows as Parquet in RLlib's columns, which RLlib and jaxrl read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs]

from benchmarks.settings import EPISODE_LENGTH, make_rows

ROWS_PER_GROUP = 50_000


def write_rows(path: Path, num_rows: int) -> None:
    """Write the rows of `make_rows` with their successors, in episodes of equal length."""
    rows = make_rows(num_rows)
    obs = rows["observations"]
    columns = {
        "eps_id": pa.array((np.arange(num_rows) // EPISODE_LENGTH).astype(str)),
        "obs": _encode(obs),
        "actions": _encode(rows["actions"]),
        "rewards": pa.array(rows["rewards"]),
        "new_obs": _encode(np.roll(obs, -1, axis=0)),
        "terminateds": pa.array(rows["terminals"]),
        "truncateds": pa.array(rows["timeouts"]),
    }
    pq.write_table(pa.table(columns), path, row_group_size=ROWS_PER_GROUP)


def _encode(array: np.ndarray) -> Any:
    return pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), array.shape[1])
