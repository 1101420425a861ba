"""What a run remembers on the host, and a checkpoint's metadata."""

import dataclasses
import datetime
import logging
import math
import os
import platform
import socket
import sys
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl.config.coerce import MismatchError, coerce, describe
from jaxrl.config.imports import Trust, TrustSpec
from jaxrl.config.serialize import restorable_dict
from jaxrl.core.types import Device, PyTree
from jaxrl.errors import CheckpointError, did_you_mean
from jaxrl.metrics import NO_EPISODE, flatten
from jaxrl.runners.counts import COUNT, MAPPING, Kind, mismatch, problem_of
from jaxrl.runs import checkpoint as ckpt
from jaxrl.runs import results
from jaxrl.runtime.process import prepare_process

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
        """As a checkpoint's metadata has it.

        Raises:
            CheckpointError: It has it not, or not of these types.
        """
        check_metadata(metadata)
        state = HostState(**metadata["host"])
        state.last_result = _with_episodes(state.last_result)
        state.last_evaluation = _with_episodes(state.last_evaluation)
        return state


def _with_episodes(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result whose NaN the JSON of a checkpoint did not hold."""
    stats = result.get("env_runners")
    if not isinstance(stats, Mapping):
        return dict(result)
    known = {name: math.nan if value is None else value for name, value in stats.items()}
    missing = {name: value for name, value in NO_EPISODE.items() if name not in known}
    return {**result, "env_runners": {**known, **missing}}


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
        "host": {
            **dataclasses.asdict(host),
            "last_evaluation": results.to_json(host.last_evaluation),
        },
        "env_steps": env_steps,
        "num_devices": len(devices),
        "platform": devices[0].platform,
        "versions": versions(),
    }


_METADATA: dict[str, Any] = {
    "algorithm": str,
    "config": dict[str, Any],
    "not_saved": list[str],
    "host": dict[str, Any],
    "env_steps": int,
    "num_devices": int,
    "platform": str,
    "versions": dict[str, str],
}


def check_metadata(metadata: Mapping[str, Any], source: object = "The state's metadata") -> None:
    """Refuse metadata that `checkpoint_metadata` did not write.

    Args:
        metadata: Of a checkpoint.
        source: What it belongs to, for the error.

    Raises:
        CheckpointError: Something is missing or of another type; names the first.
    """
    if not isinstance(metadata, Mapping):
        raise CheckpointError(f"{source} cannot be loaded: it is no mapping, got {metadata!r}.")
    _check_types(metadata, _METADATA, "", source)
    problem = (
        mismatch({"env_steps": metadata["env_steps"]}, {"env_steps": COUNT}, "")
        or mismatch(metadata["host"], _HOST, "host.")
        or problem_of(metadata["host"].get("runner_counts", {}), "host.runner_counts.")
    )
    if problem is not None:
        raise CheckpointError(f"{source} cannot be loaded: {problem}.")


def _is_result(value: Any) -> bool:
    """Whether the counts and the figures of episodes of a result are such, if there are any."""
    if not isinstance(value, dict):
        return False
    result = typing.cast(dict[Any, Any], value)
    stats, lifetime = result.get("env_runners", {}), (results.ITERATION, results.ENV_STEPS)
    return (
        isinstance(stats, dict)
        and all(_is_figure(stats.get(name)) for name in NO_EPISODE)
        and all(COUNT.holds(result[name]) for name in lifetime if name in result)
    )


def _are_numbers(value: Any) -> bool:
    """Whether this is what `HostState.remember` keeps; nothing before the first result."""
    if not _is_result(value) or not all(map(_is_figure, flatten(value).values())):
        return False
    return not value or {results.ITERATION, results.ENV_STEPS} <= value.keys()


def _is_figure(value: Any) -> bool:
    return value is None or isinstance(value, float) or (isinstance(value, int) and _fits(value))


def _is_duration(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf and _fits(value)


def _fits(value: float) -> bool:
    """Whether a float can hold a number: JSON's whole ones have any number of digits."""
    return abs(value) <= sys.float_info.max


_HOST: Mapping[str, Kind] = {
    "iteration": COUNT,
    "time_total_s": Kind("a finite number of at least 0", _is_duration),
    "actions_drawn": COUNT,
    "last_evaluation": Kind("a result with numbers of episodes", _is_result),
    "runner_counts": MAPPING,
    "last_result": Kind("the numbers of a result", _are_numbers),
}
"""The fields of a HostState, as JSON has them."""


def _check_types(
    values: Mapping[str, Any], types: Mapping[str, Any], prefix: str, source: object
) -> None:
    for name, kind in types.items():
        try:
            if name not in values:
                raise CheckpointError(f"{source} cannot be loaded: {prefix}{name} is missing.")
            if kind is int and type(values[name]) is not int:
                raise MismatchError
            coerce(values[name], kind)
        except (MismatchError, OverflowError, RecursionError):
            raise CheckpointError(
                f"{source} cannot be loaded: {prefix}{name} must be {describe(kind)}, got "
                f"{str(values[name])[:80]!r}."
            ) from None


def versions() -> dict[str, str]:
    """What a bit-exact resume depends on."""
    import importlib.metadata

    names = ("jaxrl", "jax", "jaxlib", "flax", "optax", "gymnax")
    installed = {name: importlib.metadata.version(name) for name in names}
    return {**installed, "python": platform.python_version()}


def check_algorithm(metadata: Mapping[str, Any], algo_name: str, path: object) -> None:
    """Refuse another algorithm's state."""
    check_metadata(metadata, path)
    if metadata["algorithm"] != algo_name:
        raise CheckpointError(
            f"{path} is of algorithm {metadata['algorithm']}, this one is {algo_name}; "
            "restore(..., component='rl_module') takes the module alone."
        )


def trust_in(checkpoint: Path, given: TrustSpec, *, quietly: bool = False) -> Trust:
    """What the config of a checkpoint may do: all, if this user wrote it on this machine.

    Args:
        checkpoint: Its folder.
        given: What the caller trusts beside that.
        quietly: Do not log what is not taken.
    """
    own = ckpt.is_own(checkpoint)
    return dataclasses.replace(Trust.of(given, own=own, source=checkpoint), quietly=quietly)


def check_supplied(metadata: Mapping[str, Any], given: Mapping[str, Any], path: object) -> None:
    """Refuse to build from a config of which a part was not saved and is not given.

    Args:
        metadata: Of a checkpoint, or of a sweep.
        given: The settings that are.
        path: For the error.
    """
    missing = [name for name in metadata["not_saved"] if name not in given]
    if missing:
        supply = ", ".join(f"{name}=..." for name in missing)
        raise CheckpointError(
            f"{path} does not hold {' and '.join(missing)}, which had no import path: supply it "
            f"with from_checkpoint(..., {supply})."
        )


def prepare_as_before(config: "AlgorithmConfig", metadata: Mapping[str, Any]) -> None:
    """Settle the process for a run that goes on, with the devices that it had if there are as many."""
    prepare_process(config)
    if metadata["platform"] == jax.default_backend():
        config.preferred_devices = (metadata["num_devices"], "as the run had before")


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


def fill_own(saved: Mapping[str, np.ndarray], part: str, own: Callable[[], PyTree]) -> PyTree:
    """Fill a part that the loop over runners on the host keeps; None if the checkpoint has none.

    Args:
        saved: The leaves of all such parts.
        part: The name before their leaves' first dot.
        own: Gives the part as it is now: the state of the environments that shall go on.

    Raises:
        CheckpointError: Those are other environments, or another number of them.
    """
    leaves = {name: leaf for name, leaf in saved.items() if name.startswith(f"{part}.")}
    if not leaves:
        return None
    now = own()
    if part == "env" and not any(name.startswith("env.env.") for name in leaves):
        now = {**now, "env": None}  # they could not tell where they were, and start new episodes
    state = {part: now}
    problem = ckpt.first_difference(state, leaves, ("",))
    if problem is not None:
        raise CheckpointError(
            f"The environments of the checkpoint do not fit these runners: {problem}; restore with "
            "the environment and with as many environments as were saved."
        )
    return ckpt.fill(state, leaves, ("",))[part]


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
