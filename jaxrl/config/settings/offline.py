"""Settings for recorded data: where they are, how they are trained and evaluated on."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, get_args

from jaxrl.config.fields import (
    Check,
    at_least_one,
    between_zero_and_one,
    count,
    count_or_zero,
    field,
    non_negative,
    positive,
    unit_interval,
)
from jaxrl.config.settings.replay import BURN_IN_DOC
from jaxrl.config.settings.training import Auto, Training
from jaxrl.core.hparams import Traced, list_hparams

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


EVAL_LOSS = "eval_loss"
"""Type of offline evaluation that computes the learner's losses."""

Method = Literal["is", "pdis", "wis", "wpdis", "dm", "fqe", "dr"]
METHODS: tuple[Method, ...] = get_args(Method)
"""Methods that estimate a policy's return from recorded episodes."""
WEIGHTED = frozenset({"is", "pdis", "wis", "wpdis", "dr"})
"""Methods that need the probabilities of recorded actions."""
MODELED = frozenset({"dm", "fqe", "dr"})
"""Methods that fit a value function."""

OfflineEvaluationType = Literal["eval_loss"] | Method


@dataclasses.dataclass(frozen=True, kw_only=True)
class FQESettings:
    """Settings of fitted Q evaluation."""

    num_updates: int = field(
        default=10_000, check=count, doc="Number of gradient steps of each fit."
    )
    batch_size: int = field(default=256, check=count, doc="Number of rows per gradient step.")
    lr: float = field(default=1e-3, check=positive, doc="Learning rate of Adam.")
    tau: float = field(
        default=0.05,
        check=Check("above 0 and at most 1", lambda value: 0.0 < value <= 1.0),
        doc="Update coefficient of the target network, per gradient step.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfflineEvaluationSettings:
    """Evaluation on held-out episodes of the recorded data, without an environment."""

    offline_evaluation_interval: int | None = field(
        default=None,
        check=count_or_zero,
        doc="Number of training iterations between evaluations on held-out episodes of the recorded "
        "data; None or 0 holds out none, and trains on all.",
    )
    offline_evaluation_type: OfflineEvaluationType = field(
        default="eval_loss",
        doc="What is computed of held-out episodes: 'eval_loss' the learner's losses; the others "
        "estimate the policy's return, by importance sampling ('is', 'pdis', 'wis', 'wpdis'), fitted "
        "Q evaluation ('dm', 'fqe'), or both ('dr').",
    )
    offline_evaluation_duration: int | Auto = field(
        default="auto",
        check=at_least_one,
        doc="Number of batches of held-out data that are evaluated, each of "
        "offline_eval_batch_size_per_runner; 'auto' evaluates all of them.",
    )
    offline_eval_batch_size_per_runner: int = field(
        default=256,
        check=at_least_one,
        doc="Number of held-out rows per batch of 'eval_loss', and of episodes per batch of estimates.",
    )
    offline_evaluation_split: float = field(
        default=0.1,
        check=between_zero_and_one,
        doc="Share of the episodes that are held out, chosen by a hash of their ids: the same ones in "
        "every run and for any order of files.",
    )
    off_policy_estimation_methods: dict[str, dict[str, Any]] = field(
        default={},
        doc="Further estimates of the policy's return from held-out episodes, by a name of your "
        "choice: {'mine': {'type': 'wis'}}. 'dm' and 'dr' may have num_updates, batch_size, lr and tau "
        "of fitted Q evaluation.",
    )
    ope_split_batch_by_episode: bool = field(
        default=True,
        doc="Whether estimates are of whole episodes; False, for bandits, makes every row an episode of "
        "its own.",
    )

    def is_offline_evaluation_due(self, iteration: int) -> bool:
        """Return whether an iteration ends with an evaluation on held-out episodes."""
        interval = self.offline_evaluation_interval
        return bool(interval) and iteration % (interval or 1) == 0

    @property
    def held_out_share(self) -> float:
        """Share of the episodes that are not trained on; 0 without an evaluation on them."""
        return self.offline_evaluation_split if self.offline_evaluation_interval else 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfflineTraining(Training):
    """Settings of algorithms that learn from recorded data, without target networks."""

    train_batch_size: int = field(
        default=2000,
        check=count,
        doc="Number of recorded rows per gradient step, over all devices and learners.",
    )
    burn_in_len: int = field(default=0, check=count_or_zero, doc=BURN_IN_DOC)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BCTraining(OfflineTraining):
    """Settings of behavior cloning."""

    bc_logstd_coeff: float = field(
        default=0.0,
        check=non_negative,
        doc="Weight of the mean log standard deviation of a Box's actions, which is maximized, so "
        "that they stay random; 0 disables it.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MARWILTraining(BCTraining):
    """Settings of Wang et al. 2018; names and defaults are RLlib's."""

    beta: Traced[float] = field(
        default=1.0,
        off=0.0,
        check=non_negative,
        doc="Scale of the advantages in the exponential weights of actions; 0 is behavior cloning, "
        "without a value function, and another program.",
    )
    lambda_: float = field(
        default=1.0,
        check=unit_interval,
        doc="GAE's lambda. 1 is the return of the whole episode; below it, advantages are computed "
        "within windows of successive rows, the last of which bootstraps. Each value is another "
        "program.",
    )
    window_length: int = field(
        default=100,
        check=count,
        doc="Number of successive rows whose advantages are computed together if lambda_ is below 1; "
        "a module with memory has max_seq_len for it.",
    )
    vf_coeff: Traced[float] = field(
        default=1.0, check=non_negative, doc="Weight of the value loss."
    )
    moving_average_sqd_adv_norm_start: Traced[float] = field(
        default=100.0,
        check=positive,
        doc="Initial moving average of squared advantages, whose root divides the advantages.",
    )
    moving_average_sqd_adv_norm_update_rate: Traced[float] = field(
        default=1e-8,
        check=unit_interval,
        doc="Weight of a batch's squared advantages in their moving average.",
    )

    @property
    def needs_values(self) -> bool:
        return "beta" in list_hparams(self)  # its number may be one of each lane
