"""Saved run: the contents of a checkpoint from which an Algorithm is rebuilt."""

import dataclasses
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl.config.imports import TrustSpec
from jaxrl.config.serialize import deserialize_config
from jaxrl.errors import CheckpointError
from jaxrl.runs import checkpoint as ckpt
from jaxrl.runs import host_state as host
from jaxrl.runs.added_league import check_added_league

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavedRun:
    """Contents of a checkpoint, checked before anything is compiled.

    Args:
        path: Path of the checkpoint.
        metadata: Its metadata.
        leaves: Leaves of the saved state by name.
        config: Saved config, with some settings replaced.
        trained: Modules of several agents to train once they are restored, in the form of
            `policies_to_train`; None for those of the config.
    """

    path: Path
    metadata: dict[str, Any]
    leaves: Mapping[str, np.ndarray]
    config: "AlgorithmConfig"
    trained: Collection[str] | Callable[..., object] | None = None

    @staticmethod
    def read(
        path: str | os.PathLike[str],
        component: str | None,
        trust: TrustSpec,
        overrides: Mapping[str, Any],
        *,
        is_whole: bool = True,
    ) -> "SavedRun":
        """Read a checkpoint, and prepare the process for the run.

        Args:
            path: Checkpoint, or a folder or run, whose newest checkpoint is used.
            component: Component to restore; None for all.
            trust: Packages whose classes and functions the checkpoint may import.
            overrides: Settings that replace the saved ones.
            is_whole: Whether the run is restored as it was, rather than some of its modules.

        Raises:
            CheckpointError: If the checkpoint is damaged or foreign, or a setting is missing.
        """
        found = ckpt.find_checkpoint(path)
        metadata = ckpt.read_metadata(found)
        host.check_metadata(metadata, found)
        trusted = host.resolve_trust(found, trust)
        host.get_component_prefixes(component)  # raises for an unknown name
        host.check_missing_settings(metadata, overrides, found)
        config = deserialize_config(metadata["config"], overrides, trust=trusted)
        trained = None
        is_changed = is_whole and component is None and "policies_to_train" in overrides
        if is_changed and config.is_multi_agent:
            trained = overrides["policies_to_train"]
            as_saved = metadata["config"]["settings"].get("policies_to_train")
            config.unset("policies_to_train")
            if as_saved is not None:
                config.multi_agent(policies_to_train=as_saved)
        host.prepare_resumed_process(config, metadata)
        leaves = ckpt.read_leaves(found, metadata)  # raises, if damaged, before anything compiles
        if is_whole and component is None:
            if "league" in overrides:
                check_added_league(config, leaves, found)
            if "max_agents" in overrides:
                _check_same_slots(config, metadata, leaves, found)
        return SavedRun(
            path=found, metadata=metadata, leaves=leaves, config=config, trained=trained
        )


def _check_same_slots(
    config: "AlgorithmConfig",
    metadata: Mapping[str, Any],
    leaves: Mapping[str, np.ndarray],
    path: Path,
) -> None:
    """Raise CheckpointError if a run is to go on with another number of slots for agents."""
    saved = metadata["config"]["settings"].get("max_agents")
    wanted = config.multi_agent_settings.max_agents
    if wanted == saved:
        return
    modules = sorted({name.split(".")[1] for name in leaves if name.startswith("modules.")})
    raise CheckpointError(
        f"{path} is of a run with max_agents={saved}, whose rows and statistics are those of its slots, "
        f"and cannot go on with max_agents={wanted!r}: begin a new run with what its modules learned, "
        f"Algorithm.from_checkpoint(path, policy_ids={modules}, max_agents={wanted!r})."
    )
