"""Renderings of an export that other runtimes run, loaded as policies with NumpyPolicy's methods."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxrl.export import numpy_program as npp

MakeProgram = Callable[[str, dict[str, Any], bytes], Any]
"""Function of a program's name, the contents of `policy.json`, and those of the program's file."""


def load_policy(
    folder: str | os.PathLike[str],
    rendering: str,
    make_program: MakeProgram,
    *,
    explore: bool,
    seed: int | None,
) -> npp.NumpyPolicy:
    """Load a rendering of an export whose files are named `PROGRAM.RENDERING`.

    Args:
        folder: Folder of the export.
        rendering: Format of the files, and their ending.
        make_program: Function that returns a program, with the interface of `Program`.
        explore: Whether to sample actions.
        seed: Seed of the sampled actions.

    Raises:
        PolicyFileError: If the export is damaged, or has no such files.
    """
    path = str(Path(folder).expanduser())
    manifest = npp.read_json(path, npp.MANIFEST)
    npp.check_manifest(manifest, path)
    programs: dict[str, Any] = {}
    for name in manifest["programs"]:
        file = f"{name}.{rendering}"
        if file not in manifest["files"]:
            raise npp.PolicyFileError(
                f"{path} has no {file}: export with formats=({rendering!r},)."
            )
        programs[name] = make_program(name, manifest, Path(path, file).read_bytes())
    return npp.NumpyPolicy.from_programs(
        manifest,
        programs,
        npp.read_arrays(path, npp.WEIGHTS),
        npp.read_arrays(path, npp.CONSTANTS),
        explore=explore,
        seed=seed,
    )
