"""Architectures of opponents: what modules have in common whose parameters may be exchanged."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax

from jaxrl.core.hparams import list_hparams
from jaxrl.errors import ConfigError
from jaxrl.training.league_rules import find_version
from jaxrl.training.opponents import MAX_ID_BYTES, OpponentKind

if TYPE_CHECKING:
    from jaxrl.assembly.assemble import Assembly
    from jaxrl.training.rollout import PolicyStep


def check_opponent_id(module: str) -> None:
    """Raise ConfigError if an id is too long for a slot."""
    if len(module.encode()) > MAX_ID_BYTES:
        raise ConfigError(
            f"The id {module!r} has {len(module.encode())} bytes, and opponents have at most "
            f"{MAX_ID_BYTES}: shorten it."
        )


def check_snapshot_ids(learners: Sequence[str], drawn: Sequence[str]) -> None:
    """Raise ConfigError if an opponent has the id of a snapshot that a league takes."""
    for name in drawn:
        if any(find_version(learner, name) is not None for learner in learners):
            raise ConfigError(
                f"policies has {name!r}, which is the id of a snapshot of the league: choose another."
            )


def find_kind(kinds: Sequence[OpponentKind], policy: "PolicyStep") -> OpponentKind | None:
    """Return the kind of a module's architecture, None if there is none."""
    wanted = describe_architecture(policy)
    return next((k for k in kinds if describe_architecture(k.policy) == wanted), None)


def has_same_hparams(one: "Assembly", other: "Assembly") -> bool:
    """Return whether two modules have hyperparameters of the same names."""
    first, second = (list_hparams(own.train_step.learner.settings) for own in (one, other))
    return first == second


def describe_architecture(policy: "PolicyStep") -> tuple[Any, ...]:
    """Return what two modules have in common whose parameters may be exchanged."""
    module, shapes = policy.module, policy.param_shapes
    sizes = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(shapes)]
    return type(module), module.model_config, jax.tree.structure(shapes), sizes


def sort_kinds(kinds: Sequence[OpponentKind]) -> tuple[OpponentKind, ...]:
    """Return kinds in the order of their slots."""
    return tuple(sorted(kinds, key=lambda kind: kind.name))
