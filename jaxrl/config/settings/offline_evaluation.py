"""Settings of evaluation on recorded episodes that are held out from training."""

import dataclasses
from typing import Any, Literal, get_args

from jaxrl.config.fields import (
    Check,
    at_least_one,
    between_zero_and_one,
    count,
    count_or_zero,
    field,
    positive,
)
from jaxrl.config.settings.training import Auto

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
        sweepable=False,
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
