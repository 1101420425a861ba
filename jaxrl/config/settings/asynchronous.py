"""Settings of asynchronous algorithms, whose learner does not wait for its actors."""

import dataclasses

from jaxrl.config.fields import (
    Schedule,
    count,
    field,
    non_negative,
    positive,
    unit_interval,
)
from jaxrl.config.settings.training import AdvantageTraining, CircularTraining
from jaxrl.core.hparams import Traced


@dataclasses.dataclass(frozen=True, kw_only=True)
class AsyncTraining(CircularTraining, AdvantageTraining):
    """Settings that IMPALA and APPO have in common: V-trace, stale actors, and reuse of batches."""

    vtrace: bool = field(
        default=True,
        doc="Whether to correct for the difference between behavior and target policy by V-trace; "
        "False sets the ratio to 1, so that targets are lambda-returns of the behavior policy.",
    )
    vtrace_clip_rho_threshold: Traced[float] = field(
        default=1.0,
        check=positive,
        doc="Upper bound of the importance ratio in the value targets (rho bar in the paper).",
    )
    vtrace_clip_pg_rho_threshold: Traced[float] = field(
        default=1.0,
        check=positive,
        doc="Upper bound of the importance ratio in the advantages.",
    )
    lambda_: Traced[float] = field(
        default=1.0,
        check=unit_interval,
        doc="Decay of the trace in V-trace (remark 2 of the paper); 1 gives equation 1.",
    )
    vf_loss_coeff: Traced[float] = field(
        default=0.5, check=non_negative, doc="Weight of the value loss."
    )
    entropy_coeff: Traced[Schedule] = field(
        default=0.01, doc="Weight of the entropy bonus, or a schedule of it."
    )
    broadcast_interval: int = field(
        default=1,
        check=count,
        doc="Number of train batches between broadcasts of weights to the actors. In the compiled "
        "program, too, the acting weights are those of the latest broadcast.",
    )
    learner_queue_size: int = field(
        default=3,
        check=count,
        doc="Maximum number of train batches that wait for the learner; a full queue blocks the "
        "actors. The compiled program has no queue.",
    )

    @property
    def weights_interval(self) -> int:
        return self.broadcast_interval

    @property
    def needs_values(self) -> bool:
        return True
