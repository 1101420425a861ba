"""Names of the data sets that `jaxrl datasets make` makes, such as "dataset:cartpole-expert"."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jaxrl.errors import DataError, UnknownNameError, did_you_mean

if TYPE_CHECKING:
    pass

PREFIX = "dataset:"
"""Start of a source of recorded data that is the name of a data set."""
FOLDER_VARIABLE = "JAXRL_DATASETS_DIR"
"""Environment variable of the folder of data sets."""
RECORD = "dataset.json"
"""File of a task's folder with what its data sets were made from; it is written last."""


class DatasetTask(NamedTuple):
    """Task that data sets are made of.

    Attributes:
        config: Id of the shipped config that is trained.
        num_steps: Environment steps until its policy is the expert.
        interval: Environment steps between two evaluations.
    """

    config: str
    num_steps: int
    interval: int


TASKS: dict[str, DatasetTask] = {
    "cartpole": DatasetTask("classic/cartpole-ppo", 500_000, 2048),
    "pendulum": DatasetTask("classic/pendulum-sac", 20_000, 500),
    "acrobot": DatasetTask("classic/acrobot-ppo", 1_000_000, 20_000),
    "mountaincar": DatasetTask("classic/mountaincar-ppo", 1_000_000, 20_000),
    "breakout": DatasetTask("minatar/breakout-ppo", 10_000_000, 200_000),
    "freeway": DatasetTask("minatar/freeway-ppo", 10_000_000, 200_000),
}
QUALITIES: dict[str, str] = {
    "random": "uniformly random legal actions",
    "medium": "the policy when it first had half of the expert's score above random",
    "expert": "the policy at the end of its training",
    "replay": "everything that the run sampled before it was medium",
    "mixed": "one part of expert, and nine of random",
}


def list_datasets() -> list[str]:
    """Return the names of all data sets, without the prefix."""
    return [f"{task}-{quality}" for task in TASKS for quality in QUALITIES]


def resolve_datasets_dir(folder: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of data sets.

    Args:
        folder: The folder; None for `$JAXRL_DATASETS_DIR` if it is set, and otherwise for
            `jaxrl/datasets` in the user's cache directory (`$XDG_CACHE_HOME`, or `~/.cache`).
    """
    given = folder or os.environ.get(FOLDER_VARIABLE)
    if given:
        return Path(os.path.abspath(Path(given).expanduser()))
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "jaxrl" / "datasets"


def split_name(name: str) -> tuple[str, str]:
    """Return the task and the quality of a data set.

    Args:
        name: Name, without the prefix.

    Raises:
        UnknownNameError: If there is no such data set.
    """
    if name not in list_datasets():
        raise UnknownNameError(
            f"There is no data set {name!r}: the names are {', '.join(TASKS)}, each followed by "
            f"{', '.join(f'-{quality}' for quality in QUALITIES)}."
            + did_you_mean(name, list_datasets())
        )
    task, _, quality = name.rpartition("-")
    return task, quality


def is_made(task: str, folder: str | os.PathLike[str] | None = None) -> bool:
    """Return whether the data sets of a task are complete in a folder; None is the default one."""
    return (resolve_datasets_dir(folder) / task / RECORD).is_file()


def find_dataset(source: str) -> Path:
    """Return the folder of a data set.

    Args:
        source: Name, with the prefix.

    Raises:
        UnknownNameError: If there is no data set of this name.
        DataError: If it has not been made.
    """
    name = source.removeprefix(PREFIX)
    task, quality = split_name(name)
    if not is_made(task):
        raise DataError(
            f"The data set {name!r} is not in {resolve_datasets_dir()} yet: 'jaxrl datasets make "
            f"{name}' makes it."
        )
    return resolve_datasets_dir() / task / quality


def iter_sources(input_: str | Iterable[object]) -> Iterator[str]:
    """Yield the names of data sets among the sources of `input_`, with the prefix."""
    for source in [input_] if isinstance(input_, str) else input_:
        if str(source).startswith(PREFIX):
            yield str(source)
