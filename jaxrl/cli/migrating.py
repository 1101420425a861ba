"""`jaxrl migrate`: prints or writes the migration of files that use RLlib."""

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from jaxrl.errors import ConfigError, escape

if TYPE_CHECKING:
    from jaxrl.migrate.files import Batch

NOTHING_LEFT, SOMETHING_LEFT, UNREADABLE = 0, 1, 2
"""Exit codes: everything has a counterpart, something remains by hand, a file was not read."""


def migrate(paths: Sequence[str], *, write: bool, as_json: bool) -> int:
    """Migrate files and print the changes and what remains.

    Returns:
        The exit code.

    Raises:
        ConfigError: If LibCST is missing, a path does not exist, or a file is not writable.
    """
    try:
        from jaxrl.migrate import files
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("libcst"):
            raise
        raise ConfigError("jaxrl migrate needs LibCST: pip install 'jaxrl[migrate]'.") from error
    batch = files.migrate_paths(paths)
    written = files.write_files(batch.files) if write else 0
    if as_json:
        typer.echo(json.dumps(_to_dict(batch), indent=2))
    else:
        if not write:
            for file in batch.files:
                typer.echo(files.format_diff(file), nl=False)
        for line in _format_report(batch, paths, written if write else None):
            typer.echo(line)
    for sentence in batch.errors:
        typer.echo(f"error: {escape(sentence)}", err=True)
    if batch.errors:
        return UNREADABLE
    return SOMETHING_LEFT if any(file.migration.by_hand for file in batch.files) else NOTHING_LEFT


def _to_dict(batch: "Batch") -> dict[str, object]:
    return {
        "files_read": batch.num_read,
        "files": [
            {
                "path": str(file.path),
                "is_changed": file.migration.is_changed,
                "changes": [dataclasses.asdict(change) for change in file.migration.changes],
                "by_hand": [dataclasses.asdict(item) for item in file.migration.by_hand],
            }
            for file in batch.files
        ],
        "errors": batch.errors,
    }


def _format_report(batch: "Batch", paths: Sequence[str], written: int | None) -> list[str]:
    """Return the lines that remain by hand, and the summary."""
    if not batch.files:
        return [] if batch.errors else [f"{', '.join(paths)}: no code or experiment of RLlib."]
    lines = [
        escape(f"{file.path}:{item.line}: {item.what}: {item.advice}.")
        for file in batch.files
        for item in file.migration.by_hand
    ]
    if lines:
        lines = ["", "By hand:", *lines, ""]
    changed = [file for file in batch.files if file.migration.is_changed]
    changes = Counter(c.kind for file in batch.files for c in file.migration.changes)
    by_hand = Counter(item.kind for file in batch.files for item in file.migration.by_hand)
    done = f"{len(changed)} to change" if written is None else f"{written} written"
    summary = (
        f"{_count(batch.num_read, 'file')} read, {done}. Changes: {_describe(changes)}. "
        f"By hand: {_describe(by_hand)}."
    )
    if changed and written is None:
        summary += " Write them with --write."
    if any(file.migration.needs_tune for file in batch.files):
        summary += " Imports of Ray Tune need pip install 'jaxrl[tune]'."
    return [*lines, summary]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _describe(counts: "Counter[str]") -> str:
    """Describe counts by kind: "3 (2 settings, 1 import)"."""
    total = sum(counts.values())
    if not total:
        return "none"
    kinds = ", ".join(_count(number, kind) for kind, number in counts.most_common())
    return f"{total} ({kinds})"
