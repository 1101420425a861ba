"""The plan of a train batch whose rollouts and minibatches are whole sequences."""

import dataclasses
import math

from jaxrl.config.batch_plan.arithmetic import BatchPlan, BatchRequest, notes_of, solve
from jaxrl.config.batch_plan.divisors import divisors

MAX_LENGTHS = 1000
"""Of sequences that are tried where nothing explicit has to be divided by them."""


def solve_in_sequences(request: BatchRequest, most: int) -> BatchPlan | None:
    """The plan whose rollouts and minibatches are whole sequences, of up to `most` rows.

    The longest sequences that go together with what is explicit; None if they have less than half
    as many rows.
    """
    wanted, most = most, min(most, request.rollout_fragment_length or most)
    for length in _lengths(request, most):
        in_units = _divided(request, length)
        plan = None if in_units is None else solve(in_units)[0]
        if plan is None:
            continue
        plan = dataclasses.replace(
            plan,
            rollout_fragment_length=plan.rollout_fragment_length * length,
            train_batch_size=plan.train_batch_size * length,
            minibatch_size=plan.minibatch_size * length,
            sequence_length=length,
        )
        notes = list(notes_of(request, plan))
        if length < wanted:
            notes.append(f"max_seq_len={wanted}: {length}, the most that divides the sizes.")
        return dataclasses.replace(plan, notes=tuple(notes))
    return None


def _lengths(request: BatchRequest, most: int) -> list[int]:
    """Lengths that divide what is explicit, from `most` down to its half, the longest first."""
    sizes = [request.train_batch_size, request.rollout_fragment_length, request.minibatch_size]
    explicit = [size for size in sizes if size is not None]
    least = (most - 1) // 2
    if explicit:
        return [n for n in reversed(divisors(math.gcd(*explicit))) if least < n <= most]
    return list(range(most, max(least, most - MAX_LENGTHS), -1))


def _divided(request: BatchRequest, length: int) -> BatchRequest | None:
    """The request counted in sequences; None where an explicit number is no multiple of them."""
    changes: dict[str, int] = {}
    for name in ("train_batch_size", "rollout_fragment_length", "minibatch_size"):
        rows = getattr(request, name)
        if rows is not None and rows % length:
            return None
        default = f"default_{name}"
        if rows is not None:
            changes[name] = rows // length
        if getattr(request, default) is not None:
            changes[default] = max(1, round(getattr(request, default) / length))
    return dataclasses.replace(request, **changes)
