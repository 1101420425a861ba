"""RLlib's sample batches: lines of JSON, each a batch of columns."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import DataError, did_you_mean
from jaxrl.offline.formats.rows import COLUMNS, EPS_ID, RowParts, check_columns
from jaxrl.offline.formats.settings import ImportSettings
from jaxrl.offline.formats.values import make_table, rename


def read_batches(
    files: Sequence[Path], settings: ImportSettings
) -> Iterator[tuple[Path, EpisodePart]]:
    """Yield the parts of files of sample batches.

    Raises:
        DataError: If a line is no sample batch of one policy, a column is missing, or it has other
            values than its space.
    """
    parts = RowParts(ignore_final_observation=settings.ignore_final_observation)
    for path in files:
        for number, batch in iter_batches(path, settings.max_group_bytes):
            where = f"{path}, line {number}"
            names = rename(list(batch), settings.schema, COLUMNS, where, did_you_mean)
            check_columns(names, path)
            columns = {name: batch[column] for name, column in names.items()}
            for part in parts.add(make_table(columns, settings, where), path):
                yield path, part
    for part in parts.finish():
        yield files[-1], part


def iter_batches(path: Path, max_bytes: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the batches of one file with the numbers of their lines.

    Raises:
        DataError: If a line is too long, or no sample batch of one policy.
    """
    with open(path, "rb") as file:
        number = 0
        while line := file.readline(max_bytes + 1):
            number += 1
            if len(line) > max_bytes:
                raise DataError(
                    f"{path}, line {number} is longer than {max_bytes} bytes: raise max_group_bytes."
                )
            if line.strip():
                yield number, _parse(line, f"{path}, line {number}")


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        data: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not JSON: {str(error)[:100]}.") from error
    batch = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    kind = batch.get("type")
    if kind == "MultiAgentBatch":
        found: object = batch.get("policy_batches")
        policies = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
        batches = [each for each in policies.values() if isinstance(each, dict)]
        if len(batches) != 1 or len(policies) != 1:
            raise DataError(
                f"{where} has batches of {len(batches)} policies, and one agent is read: give the "
                "batches of one policy."
            )
        return cast("dict[str, Any]", batches[0])
    if kind != "SampleBatch":
        raise DataError(f"{where} has type={str(kind)[:40]!r}: lines of RLlib are 'SampleBatch'.")
    return batch


def has_episodes(path: Path, schema: Mapping[str, str], max_bytes: int) -> bool:
    """Return whether the first batch of a file says the episode of each row."""
    first = next(iter_batches(path, max_bytes), None)
    return first is not None and schema.get(EPS_ID, EPS_ID) in first[1]
