"""What a run remembers on the host, and a checkpoint's metadata."""

import dataclasses
import datetime
import logging
import math
import os
import platform
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl import checkpoint as ckpt
from jaxrl.config.serialize import restorable_dict
from jaxrl.core.types import Device, PyTree
from jaxrl.errors import CheckpointError, did_you_mean
from jaxrl.logging import results

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

logger = logging.getLogger("jaxrl")

COMPONENTS: dict[str, tuple[str, ...]] = {
    "rl_module": ("learner.sgd.params",),
    "learner": ("learner",),
    "connectors": ("connectors.obs", "connectors.learner"),
}
"""Parts of a state that can be restored alone, as prefixes of their leaves' paths."""

_OF_THIS_PROCESS = ("compile", "system", "timers", "pid", "hostname")


@dataclasses.dataclass(kw_only=True)
class HostState:
    """The few things of a run that are not in its TrainState; a checkpoint's JSON holds them."""

    iteration: int = 0
    time_total_s: float = 0.0
    actions_drawn: int = 0
    last_evaluation: dict[str, Any] = dataclasses.field(default_factory=dict)
    runner_counts: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What runners on the host have counted over the run's life."""
    last_result: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The numbers of the latest result, which stop criteria and scores look at."""

    def remember(self, result: Mapping[str, Any]) -> None:
        """Keep what of a result outlives the process."""
        lasting = {name: v for name, v in result.items() if name not in _OF_THIS_PROCESS}
        self.last_result = _numbers(results.to_plain(lasting))

    def auto_filled(self, elapsed: float) -> dict[str, Any]:
        """What RLlib puts into every result; the iteration took so many seconds."""
        now = datetime.datetime.now()
        self.time_total_s += elapsed
        return {
            "training_iteration": self.iteration,
            "time_this_iter_s": elapsed,
            "time_total_s": self.time_total_s,
            "timestamp": int(now.timestamp()),
            "date": now.strftime("%Y-%m-%d_%H-%M-%S"),
            "hostname": socket.gethostname(),
            "pid": os.getpid(),
        }

    @staticmethod
    def from_metadata(metadata: Mapping[str, Any]) -> "HostState":
        """As a checkpoint's metadata has it."""
        return HostState(**metadata["host"])


def _numbers(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A nested dictionary without its texts, lists and what is missing or not finite."""
    return {
        name: _numbers(value) if isinstance(value, dict) else value
        for name, value in tree.items()
        if isinstance(value, dict) or (isinstance(value, int | float) and math.isfinite(value))
    }


def checkpoint_metadata(
    config: "AlgorithmConfig", host: HostState, env_steps: int, devices: list[Device]
) -> dict[str, Any]:
    """All that a checkpoint says beside its leaves.

    Settings that cannot be imported again are left out and named under `not_saved`.
    """
    saved, not_saved = restorable_dict(config)
    return {
        "algorithm": config.algo_name,
        "config": saved,
        "not_saved": not_saved,
        "host": dataclasses.asdict(host),
        "env_steps": env_steps,
        "num_devices": len(devices),
        "platform": devices[0].platform,
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """What a bit-exact resume depends on."""
    import importlib.metadata

    names = ("jaxrl", "jax", "jaxlib", "flax", "optax", "gymnax", "orbax-checkpoint")
    installed = {name: importlib.metadata.version(name) for name in names}
    return {**installed, "python": platform.python_version()}


def check_algorithm(metadata: Mapping[str, Any], algo_name: str, path: object) -> None:
    """Refuse another algorithm's state."""
    if metadata["algorithm"] != algo_name:
        raise CheckpointError(
            f"{path} is of algorithm {metadata['algorithm']}, this one is {algo_name}; "
            "restore(..., component='rl_module') takes the module alone."
        )


def check_supplied(metadata: Mapping[str, Any], given: Mapping[str, Any], path: object) -> None:
    """Refuse to build from a config of which a part was not saved and is not given."""
    missing = [name for name in metadata["not_saved"] if name not in given]
    if missing:
        supply = ", ".join(f"{name}=..." for name in missing)
        raise CheckpointError(
            f"{path} does not hold {' and '.join(missing)}, which had no import path: supply it "
            f"with from_checkpoint(..., {supply})."
        )


def warn_of_differences(metadata: Mapping[str, Any], devices: list[Device]) -> None:
    """Say why a resume will not be exact to the bit, if it will not."""
    phrases = differences(metadata, devices)
    if phrases:
        logger.warning(
            "The checkpoint was written with %s: the run goes on from the same state, but "
            "not bit for bit as it would have.",
            "; ".join(phrases),
        )


def differences(metadata: Mapping[str, Any], devices: list[Device]) -> list[str]:
    """What keeps a resume from being exact to the bit, a phrase each."""
    here = {
        "num_devices": len(devices),
        "platform": devices[0].platform,
        **{f"{name} version": version for name, version in versions().items()},
    }
    then = {
        **metadata,
        **{f"{name} version": version for name, version in metadata["versions"].items()},
    }
    return [
        f"{name}={then.get(name)}, this run has {value}"
        for name, value in here.items()
        if then.get(name) != value
    ]


def component_prefixes(name: str | None) -> tuple[str, ...]:
    """The leaves of a part of a state, as prefixes of their paths; everything for None."""
    if name is None:
        return ("",)
    if name not in COMPONENTS:
        raise CheckpointError(
            f"There is no component '{name}'.{did_you_mean(name, COMPONENTS)} "
            f"The components are {', '.join(COMPONENTS)}."
        )
    return COMPONENTS[name]


def fill_envs(saved: Mapping[str, np.ndarray], own: PyTree) -> PyTree:
    """The state of environments on the host, as a checkpoint has it.

    Args:
        saved: Its leaves.
        own: The state of the environments that shall go on from there.

    Raises:
        CheckpointError: Those are other environments, or another number of them.
    """
    if not any(name.startswith("env.env.") for name in saved):
        own = {**own, "env": None}  # they could not tell where they were, and start new episodes
    state = {"env": own}
    problem = ckpt.first_difference(state, saved, ("",))
    if problem is not None:
        raise CheckpointError(
            f"The environments of the checkpoint do not fit these runners: {problem}; restore with "
            "the environment and with as many environments as were saved."
        )
    return ckpt.fill(state, saved, ("",))["env"]


def with_overrides(
    leaves: Mapping[str, np.ndarray],
    own: Mapping[str, np.ndarray],
    config: "AlgorithmConfig",
    overrides: Mapping[str, Any],
) -> dict[str, np.ndarray]:
    """The saved leaves, but for those of settings that are overridden, which are the new run's.

    Args:
        leaves: What was saved.
        own: The leaves of the new run's first state.
        config: The new run's.
        overrides: The settings that were given, under any name that they have.
    """
    table = config.name_table()
    names = {table.current_name(name) or name for name in overrides}
    kept = [f"{where}.{name}" for name in names for where in HYPERPARAMETERS]
    if "env_config" in names:
        kept.append("env_params")

    def is_kept(leaf: str) -> bool:
        return any(leaf == prefix or leaf.startswith(f"{prefix}.") for prefix in kept)

    saved = {name: leaf for name, leaf in leaves.items() if not is_kept(name)}
    return {**saved, **{name: leaf for name, leaf in own.items() if is_kept(name)}}


HYPERPARAMETERS = ("learner.hparams", "guard.snapshot.hparams")
"""Where a state holds the values of the settings that enter arithmetic."""
