"""Settings of the algorithms whose learner does not wait for its actors."""

import dataclasses

from jaxrl.config.fields import (
    Schedule,
    count,
    field,
    non_negative,
    positive,
    unit_interval,
)
from jaxrl.config.settings.training import AdvantageTraining


@dataclasses.dataclass(frozen=True, kw_only=True)
class AsyncTraining(AdvantageTraining):
    """What IMPALA and APPO have in common: V-trace, stale actors, and batches used again."""

    vtrace: bool = field(
        default=True,
        doc="Corrects for the difference of the acting and the learned policy by V-trace; False "
        "takes the ratio as 1, so that targets are lambda-returns of whatever policy acted.",
    )
    vtrace_clip_rho_threshold: float = field(
        default=1.0,
        sweepable=True,
        check=positive,
        doc="Bound of the ratio in the value targets (the paper's rho bar).",
    )
    vtrace_clip_pg_rho_threshold: float = field(
        default=1.0,
        sweepable=True,
        check=positive,
        doc="Bound of the ratio in the advantages.",
    )
    lambda_: float = field(
        default=1.0,
        sweepable=True,
        check=unit_interval,
        doc="Factor of V-trace's trace (the paper's remark 2); 1 is its equation 1.",
    )
    vf_loss_coeff: float = field(
        default=0.5, sweepable=True, check=non_negative, doc="Weight of the value loss."
    )
    entropy_coeff: Schedule = field(
        default=0.01, sweepable=True, doc="Weight of the entropy bonus, or its schedule."
    )
    broadcast_interval: int = field(
        default=1,
        check=count,
        doc="Train batches after which actors get new weights; in the compiled program, too, they "
        "act with the weights of the latest broadcast.",
    )
    learner_queue_size: int = field(
        default=3,
        check=count,
        doc="Train batches that may wait for the learner, where actors run beside it; a full queue "
        "makes them wait. The compiled program has no queue.",
    )
    circular_buffer_num_batches: int = field(
        default=1,
        check=count,
        doc="The latest train batches that are kept to be learned from again; learning starts when "
        "more than half of the buffer is filled.",
    )
    circular_buffer_iterations_per_batch: int = field(
        default=1,
        check=count,
        doc="How often each train batch is learned from, at random times while the buffer holds it.",
    )
