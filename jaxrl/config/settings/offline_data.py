"""Settings for recorded data: where they are read from, and how they are trained on."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

from jaxrl.config.fields import at_least_one, count, field, non_negative
from jaxrl.config.settings.training import Auto

SAMPLER = "sampler"
"""Value of `input_` for learning from environments."""

Storage = Literal["device", "host", "stream"]
"""Names of the places that recorded rows are kept in."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfflineDataSettings:
    """Recorded data to learn from, instead of environments that are stepped."""

    input_: str | list[str] | dict[str, float] = field(
        default=SAMPLER,
        doc="Recorded data to learn from: a folder that was recorded, a file, a pattern of files, or "
        "a list of them; what they are is found by their content. 'dataset:NAME' is a data set of 'jaxrl "
        "datasets make NAME'. 'sampler' steps environments. A dictionary has the share of each source in the rows of every gradient step, 'sampler' "
        "being the replay buffer, such as {'sampler': 0.5, 'data/': 0.5}.",
    )
    input_read_schema: dict[str, str] = field(
        default={},
        doc="Names of the columns in files of another library, by RLlib's name of the column.",
    )
    actions_in_input_normalized: bool | None = field(
        default=None,
        doc="Whether recorded Box actions are those of a module in [-1, 1] rather than the "
        "environment's own. None is what the data's manifest says, and False for files without one.",
    )
    ignore_final_observation: bool = field(
        default=False,
        doc="Whether to leave out rows after which an episode was truncated or cut, instead of "
        "bootstrapping from its final observation. Estimates of a policy leave them out as well.",
    )
    input_transform: Callable[..., Any] | None = field(
        default=None,
        import_path=True,
        doc="Function of a part of an episode (`jaxrl.episodes.packing.EpisodePart`, of NumPy arrays) "
        "that returns the part to learn from, or None to leave it out.",
    )
    dataset_sampling: Literal["auto", "uniform", "epochs"] = field(
        default="auto",
        doc="Order of rows: 'uniform' draws with replacement, 'epochs' draws every row once before "
        "any of them again. 'auto' is 'epochs' for BC and MARWIL, and otherwise 'uniform'.",
    )
    num_updates_per_iteration: int = field(
        default=100,
        check=count,
        doc="Number of gradient steps per iteration, each on train_batch_size rows.",
    )
    dataset_storage: Storage | Auto = field(
        default="auto",
        doc="Where the recorded rows are: 'device' keeps all of them on the devices, 'host' in host "
        "memory, from which the rows of each train batch are sent, and 'stream' reads the files anew "
        "in every epoch, in tasks of Ray Data. 'auto' is the first of these that the data fit into: "
        "max_dataset_bytes, and half of the host's memory.",
    )
    max_dataset_bytes: int | Auto = field(
        default="auto",
        check=at_least_one,
        doc="Maximum memory of the dataset on a device, in bytes; a larger one raises an error before "
        "it is read or, where the files do not say their number of steps, when so much was read. Episodes "
        "that are held out count as well; with dataset_storage 'host' and 'stream' it is the limit of "
        "those alone, if losses are computed on them. 'auto' is half of the device's memory.",
    )
    shuffle_buffer_size: int = field(
        default=0,
        check=non_negative,
        doc="Number of rows, or of sequences of a module with memory, that are shuffled together in a "
        "stream, in each learner. Those of 16 MiB of a file, or of a longer episode, are shuffled in "
        "any case, and so is the order of files.",
    )
    output: str | None = field(
        default=None,
        doc="Folder that everything sampled for training is recorded in, for learning from it; None "
        "records nothing. Several agents have a folder in it for each module. Recording changes nothing "
        "that is trained.",
    )
    output_max_file_size: int = field(
        default=64 * 2**20,
        check=at_least_one,
        doc="Size in bytes at which a recorded file is complete and the next one begins.",
    )
    output_max_rows_per_file: int | None = field(
        default=None,
        check=at_least_one,
        doc="Maximum number of parts of episodes per recorded file; None for any.",
    )

    @property
    def sources(self) -> dict[str, float]:
        """Recorded sources with their shares in the order of their names, if `input_` has shares.

        A program has the shares, and its dataset the sources: equal programs need equal orders.
        """
        if not isinstance(self.input_, dict):
            return {}
        return {name: share for name, share in sorted(self.input_.items()) if name != SAMPLER}

    @property
    def sampler_share(self) -> float:
        """Share of what is sampled in the rows of a gradient step."""
        if isinstance(self.input_, dict):
            return self.input_.get(SAMPLER, 0.0)
        return float(self.input_ == SAMPLER)
