"""Record of what the data sets of a task were made from."""

import json
from pathlib import Path
from typing import Any

from jaxrl.config.datasets import QUALITIES, RECORD
from jaxrl.errors import DataError
from jaxrl.runtime.files import read_bounded

_MAX_RECORD_BYTES = 2**20


def read_record(folder: Path) -> dict[str, Any]:
    """Return what the data sets of a task were made from, with their sizes and returns.

    Raises:
        DataError: If the record is damaged.
    """
    try:
        record = json.loads(read_bounded(folder / RECORD, _MAX_RECORD_BYTES))
        return {
            **record,
            "config": str(record["config"]),
            "num_rows": int(record["num_rows"]),
            "seed": int(record["seed"]),
            "datasets": {name: _parse_entry(record["datasets"][name]) for name in QUALITIES},
        }
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise DataError(f"{folder / RECORD} is damaged ({reason}): remove {folder}.") from error


def _parse_entry(entry: dict[str, Any]) -> dict[str, Any]:
    counts = {name: int(entry[name]) for name in ("num_steps", "num_episodes")}
    mean = entry["mean_return"]
    return {**entry, **counts, "mean_return": None if mean is None else float(mean)}
