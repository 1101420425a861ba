"""League that is added to a run which was trained without, or removed from one."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jaxrl.errors import CheckpointError

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

_GAMES = ("opponents.games", "opponents.waits", "carry.opponents.lead", "carry.opponents.games")
"""Leaves of a state that a league of one learner counts its games in."""
_IS_OPEN = "opponents.is_open"
"""Leaf that says which draws snapshots join."""


def check_added_league(
    config: "AlgorithmConfig", leaves: Mapping[str, np.ndarray], path: Path
) -> None:
    """Check that a saved run can go on with the league of its config.

    Args:
        config: Saved config with the league.
        leaves: Leaves of the saved state by name.
        path: The checkpoint.

    Raises:
        CheckpointError: If the league needs modules or opponents that the run does not have.
    """
    settings = config.multi_agent_settings
    kind = type(settings.any_league).__name__
    if settings.learners_league is not None and not _has(leaves, "opponents.league."):
        reason = "which makes the modules and who meets whom, and those of this run are others"
        needed = "mapping=None, policies=None, policies_to_train=None"
    elif settings.self_play is not None and not _has(leaves, "opponents."):
        reason = "whose games are with opponents that are drawn, and this run draws none"
        needed = "policies=..., mapping=Seats(..., Draw())"
    else:
        return
    saved = sorted({name.split(".")[1] for name in leaves if name.startswith("modules.")})
    raise CheckpointError(
        f"{path} cannot go on with league={kind}(...), {reason}: begin a new run with what its modules "
        f"learned, Algorithm.from_checkpoint(path, policy_ids={saved[:1]}, league=..., {needed})."
    )


def add_league(
    leaves: Mapping[str, np.ndarray], current: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return saved leaves that have a league's games exactly if those of the new run have them.

    Games of a league that is added begin at zero.

    Args:
        leaves: Saved leaves by name.
        current: Leaves of the new run's initial state, by name.
    """
    kept = {name: leaf for name, leaf in leaves.items() if name not in _GAMES or name in current}
    added = [name for name in _GAMES if name in current and name not in leaves]
    if added and _IS_OPEN in current:
        added.append(_IS_OPEN)
    return {**kept, **{name: current[name] for name in added}}


def _has(leaves: Mapping[str, np.ndarray], prefix: str) -> bool:
    return any(name.startswith(prefix) for name in leaves)
