"""Choice of where the rows of recorded data are: on the devices, in host memory, or in a stream."""

import dataclasses
import importlib.util
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import jax

from jaxrl.assembly.offline import Spaces, open_config_data
from jaxrl.config.offline import check_stream, describe_storage
from jaxrl.config.settings.offline import Storage
from jaxrl.connectors.learning import ClipRewards
from jaxrl.connectors.pipelines import LearnerPipeline
from jaxrl.core.types import Device
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import ConfigError, DataError
from jaxrl.offline.recorded import RecordedData
from jaxrl.runtime.devices import get_host_memory_limit, get_memory_limit
from jaxrl.training.rollout import PolicyStep

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

_HOST_SHARE = "half of the host's memory"
_STREAM_PACKAGES = ("pyarrow", "pandas", "fsspec")
"""Packages that Ray Data needs and that plain Ray does not bring."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChosenStorage:
    """Storage of a run's recorded rows, and a sentence on why."""

    name: Storage
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSize:
    """Size of recorded data in memory.

    `num_steps` is None if the files do not say; `num_bytes` is then their size on disk.
    """

    num_steps: int | None
    num_bytes: int

    def __str__(self) -> str:
        if self.num_steps is None:
            return f"{format_bytes(self.num_bytes)} of files"
        each = self.num_bytes // max(1, self.num_steps)
        return f"{self.num_steps} steps of {each} bytes, {format_bytes(self.num_bytes)}"


def format_bytes(number: int) -> str:
    """Return a size in MiB."""
    return f"{number / 2**20:.2f} MiB"


def measure_data(data: Sequence[RecordedData]) -> DataSize:
    """Return the size of the data of all sources, without reading their rows."""
    if any(source.counts is None for source in data):
        files = sum(path.stat().st_size for source in data for path in source.files)
        return DataSize(num_steps=None, num_bytes=files)
    steps = sum(source.counts.num_steps for source in data if source.counts is not None)
    return DataSize(num_steps=steps, num_bytes=steps * data[0].step_bytes)


def choose_storage(config: "AlgorithmConfig", spaces: Spaces) -> ChosenStorage:
    """Choose where the rows of a config's recorded data are.

    Raises:
        ConfigError: If the data fit nowhere, or a setting contradicts the place that they fit into.
    """
    settings = config.offline_data_settings
    if settings.dataset_storage != "auto":
        chosen = ChosenStorage(name=settings.dataset_storage, reason="as set")
    elif num_learners := config.learners_settings.num_learners:
        reason = f"each learner of num_learners={num_learners} reads its share"
        chosen = ChosenStorage(name="stream", reason=reason)
    else:
        chosen = _choose_by_size(config, spaces)
    if chosen.name == "stream":
        check_stream(config)
        _check_packages(config)
    elif settings.shuffle_buffer_size:
        raise ConfigError(
            f"shuffle_buffer_size={settings.shuffle_buffer_size} has no effect with dataset_storage="
            f"'auto', which is {chosen.name!r} here ({chosen.reason}): leave it out, or set "
            "dataset_storage='stream'."
        )
    return chosen


def _choose_by_size(config: "AlgorithmConfig", spaces: Spaces) -> ChosenStorage:
    try:
        size = measure_data(open_config_data(config, spaces))
    except DataError as error:  # loading raises it again, if the run is to be trained
        return ChosenStorage(name="device", reason=f"there are no data: {error}")
    device_limit = get_device_limit(config, jax.local_devices()[0])
    if device_limit is None or size.num_bytes <= device_limit:
        return ChosenStorage(name="device", reason=f"{size} fit into max_dataset_bytes")
    allowed = f"max_dataset_bytes allows {format_bytes(device_limit)}"
    host_limit = get_host_limit()
    if host_limit is None or size.num_bytes <= host_limit:
        return ChosenStorage(name="host", reason=f"{size}, and {allowed}")
    beyond = f"{size}, {allowed}, and {_HOST_SHARE} is {format_bytes(host_limit)}"
    if find_missing_package() is not None:
        given = config.offline_data_settings.input_
        raise ConfigError(
            f"input_={given!r} is too large: {beyond}; name fewer files, raise max_dataset_bytes, or "
            "install what streams them, pip install 'jaxrl[offline]'."
        )
    return ChosenStorage(name="stream", reason=beyond)


def get_device_limit(config: "AlgorithmConfig", device: Device) -> int | None:
    """Return the maximum size of a dataset on a device in bytes, None if it is unknown."""
    limit = config.offline_data_settings.max_dataset_bytes
    if limit != "auto":
        return limit
    memory = get_memory_limit(device)
    return None if memory is None else memory // 2


def get_host_limit() -> int | None:
    """Return the maximum size of a dataset in host memory in bytes, None if it is unknown."""
    memory = get_host_memory_limit()
    return None if memory is None else memory // 2


def limit_dataset_size(
    config: "AlgorithmConfig", data: Sequence[RecordedData], storage: Storage, device: Device
) -> Callable[[EpisodePart], None]:
    """Check the size of a dataset before it is read, and return the function that counts its parts.

    All recorded episodes count, also those that are held out. Of a stream only these are kept in
    memory.

    Args:
        config: Config of the run.
        data: Recorded data by source.
        storage: Where the rows are.
        device: Device that has them, if a device does.

    Raises:
        ConfigError: If the data are larger than the limit of their storage. Where files do not say
            their size, the function raises it, as soon as so much was read.
    """
    limit = get_device_limit(config, device) if storage == "device" else get_host_limit()
    size, is_stream = measure_data(data), storage == "stream"
    is_known = size.num_steps is not None  # files on disk may be larger than their rows
    if limit is None or (is_known and not is_stream):
        if limit is not None and size.num_bytes > limit:
            raise _make_size_error(config, str(size), storage, limit)
        return lambda part: None
    total, most = 0, limit

    def count(part: EpisodePart) -> None:
        nonlocal total
        total += part.num_bytes
        if total > most:
            raise _make_size_error(
                config, f"more than {format_bytes(most)} of steps", storage, most
            )

    return count


def _make_size_error(
    config: "AlgorithmConfig", size: str, storage: Storage, limit: int
) -> ConfigError:
    settings = config.offline_data_settings
    if storage == "stream":
        split = config.evaluation_settings.offline_evaluation_split
        return ConfigError(
            f"offline_evaluation_split={split} holds out {size}, which are kept in memory, and "
            f"{_HOST_SHARE} is {format_bytes(limit)}: lower it."
        )
    allowed = (
        f"max_dataset_bytes={settings.max_dataset_bytes!r} allows {format_bytes(limit)}: name fewer "
        "files, raise max_dataset_bytes, or set dataset_storage='host' or 'stream'."
        if storage == "device"
        else f"{_HOST_SHARE} is {format_bytes(limit)}: name fewer files, or set "
        "dataset_storage='stream'."
    )
    return ConfigError(f"input_={settings.input_!r} has {size}, and {allowed}")


def find_missing_package() -> str | None:
    """Return a package that streams need and that is not installed; None if all are there."""
    for name in _STREAM_PACKAGES:
        if importlib.util.find_spec(name) is None:
            return name
    return None


def _check_packages(config: "AlgorithmConfig") -> None:
    missing = find_missing_package()
    if missing is not None:
        raise ConfigError(
            f"{describe_storage(config)} reads by Ray Data, which needs {missing}: pip install "
            "'jaxrl[offline]', or set dataset_storage='host'."
        )


def check_stream_pipelines(
    config: "AlgorithmConfig", policy_step: PolicyStep, learner_pipeline: LearnerPipeline
) -> None:
    """Check that rows can pass the connectors in a stream, where not all of them are there at once.

    Raises:
        ConfigError: If a connector looks back, or at all rewards, or needs statistics of all rows
            after those of another one.
    """
    pipeline = policy_step.obs_pipeline
    temporal = [connector.name for connector in pipeline.temporal]
    states = zip(pipeline.connectors, jax.eval_shape(pipeline.init), strict=True)
    filters = [connector.name for connector, state in states if jax.tree.leaves(state)]
    others = [c.name for c in learner_pipeline.connectors if not isinstance(c, ClipRewards)]
    for names, reason in (
        (temporal, "looks back in the episode"),
        (others, "may look at other rewards"),
        (filters[1:], "has statistics of all rows after those of another filter"),
    ):
        if names:
            raise ConfigError(
                f"{names[0]} {reason}, which {describe_storage(config)} does not support: set "
                "dataset_storage='host', or leave it out."
            )


def describe_chosen(chosen: ChosenStorage | None) -> list[str]:
    """Return a sentence on where recorded rows are; none if there are none."""
    if chosen is None:
        return []
    where = {
        "device": "on the devices, as an argument of the program",
        "host": "in host memory; the rows of each train batch are sent to the devices",
        "stream": "read in every epoch by Ray Data, in another order each time; a resumed run has the "
        "epoch and the number of rows, not their order",
    }[chosen.name]
    return [f"Recorded data: {where} (dataset_storage={chosen.name!r}: {chosen.reason})."]
