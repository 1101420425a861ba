"""Counts of host runners, and validation of those that are read from a checkpoint."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, cast

from jaxrl.errors import CheckpointError
from jaxrl.runners.fragment import Fragment
from jaxrl.runners.metrics_logger import find_state_problem
from jaxrl.runners.step_ledger import StepLedger


@dataclasses.dataclass(kw_only=True)
class SampleCounts:
    """Lifetime counts of what runners sampled.

    Attributes:
        has_several_agents: Whether there are several agents; rows of a single one are steps.
        num_sub_env_restarts: Environments that raised and were restarted.
        num_agent_steps_lost: Actions of agents that became no row, because a copy or an actor failed
            before the row was complete.
        num_rewards_without_action: Rewards of agents that were not present, which are learned from
            by none.
    """

    has_several_agents: bool = False
    num_sub_env_restarts: int = 0
    num_agent_steps_lost: int = 0
    num_rewards_without_action: int = 0

    def add(self, fragment: Fragment) -> None:
        """Add a fragment."""
        self.num_sub_env_restarts += sum(fault.what == "raised" for fault in fragment.faults)
        self.num_agent_steps_lost += fragment.num_agent_steps_lost
        self.num_rewards_without_action += fragment.rewards_without_action

    def describe(self) -> dict[str, int]:
        """Return the counts by name, for results and checkpoints."""
        counts = dataclasses.asdict(self)
        names = ["num_sub_env_restarts"]
        if counts.pop("has_several_agents"):
            names = list(counts)
        return {name: counts[name] for name in names}

    def restore(self, counts: Mapping[str, Any]) -> None:
        """Go on from the counts of a checkpoint."""
        for name in self.describe():
            setattr(self, name, int(counts.get(name, 0)))


@dataclasses.dataclass(frozen=True)
class ValueKind:
    """Required kind of a JSON value, as a description and a predicate."""

    requirement: str
    is_satisfied: Callable[[object], bool]


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _are_counts(values: object) -> bool:
    return isinstance(values, list) and all(map(_is_count, cast(list[Any], values)))


def _are_named_counts(values: object) -> bool:
    return isinstance(values, dict) and all(map(_is_count, cast(dict[Any, Any], values).values()))


COUNT = ValueKind("a whole number from 0 to 2**63 - 1", _is_count)
NAMED_COUNTS = ValueKind("a mapping of names to whole numbers of at least 0", _are_named_counts)
MAPPING = ValueKind("a mapping", lambda value: isinstance(value, dict))

WEIGHTS_VERSION = "weights_version"
"""Key of the version of the acting weights, for runs that keep them longer than an iteration."""

OUTPUT = "output"
"""Key of the state of the recording."""
DATA = "data"
"""Key of the fingerprint of the recorded data that a run learns from."""

_COUNTS: Mapping[str, ValueKind] = {
    "num_sub_env_restarts": COUNT,
    "num_env_runner_restarts": COUNT,
    "num_agent_steps_lost": COUNT,
    "num_rewards_without_action": COUNT,
    "env_steps": ValueKind("a list of whole numbers of at least 0", _are_counts),
    "ledger": MAPPING,
    "logged": MAPPING,
    "curriculum": MAPPING,
    OUTPUT: MAPPING,
    DATA: ValueKind("a text", lambda value: isinstance(value, str)),
    WEIGHTS_VERSION: COUNT,
}
_CURRICULUM: Mapping[str, ValueKind] = {
    **dict.fromkeys(("stage", "num_episodes_before"), COUNT),
    "task": ValueKind("a task", lambda value: value is not None),
}
_LEDGER: Mapping[str, ValueKind] = {
    **dict.fromkeys(("received", "trained", "queued", "maybe_lost"), COUNT),
    "discarded": NAMED_COUNTS,
}


def check_data(fingerprint: str | None, saved: object) -> None:
    """Check that recorded data are those that a checkpoint was trained on, where both are known.

    Raises:
        CheckpointError: If they are others.
    """
    if None not in (saved, fingerprint) and saved != fingerprint:
        raise CheckpointError(
            "The checkpoint was trained on other recorded data than those that input_ names now, and "
            "that offline_evaluation_split leaves for training: name the same files and split, or "
            "restore a part of it, component='rl_module'."
        )


def find_problem(counts: Mapping[str, Any], prefix: str) -> str | None:
    """Return a message about invalid counts of `Loop.get_counts`; None if they are valid.

    Args:
        counts: Counts read from a checkpoint.
        prefix: Prefix of their names in the message, e.g. "host.runner_counts.".
    """
    ledger = counts.get("ledger", {})
    problem = (
        find_mismatch(counts, _COUNTS, prefix)
        or find_mismatch(counts.get("curriculum", {}), _CURRICULUM, f"{prefix}curriculum.")
        or find_mismatch(ledger, _LEDGER, f"{prefix}ledger.")
    )
    if problem is not None:
        return problem
    try:
        StepLedger.from_state(ledger)
    except ValueError as error:
        return f"{prefix}ledger is invalid: {error}".removesuffix(".")
    problem = find_state_problem(counts.get("logged", {}))
    return None if problem is None else f"{prefix}logged {problem}"


def find_mismatch(
    values: Mapping[str, Any], kinds: Mapping[str, ValueKind], prefix: str
) -> str | None:
    """Return a message about the first value of a wrong kind or unknown name; None if all match."""
    for name, value in values.items():
        if name not in kinds:
            return f"{prefix}{name} is not a known entry"
        if not kinds[name].is_satisfied(value):
            return f"{prefix}{name} must be {kinds[name].requirement}, got {str(value)[:80]!r}"
    return None
