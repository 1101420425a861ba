"""State of a run beside its TrainState: the metadata of checkpoints, and a run read from one."""

import dataclasses
import datetime
import logging
import math
import os
import socket
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import jax
import numpy as np

from jaxrl.config.coerce import MismatchError, coerce, describe_type
from jaxrl.config.imports import SCRIPT_OPTION, Trust, TrustSpec
from jaxrl.config.serialize import deserialize_config, find_missing, serialize_restorable
from jaxrl.core.types import Device, PyTree
from jaxrl.errors import CheckpointError, did_you_mean
from jaxrl.metrics import EMPTY_EPISODE_METRICS, flatten
from jaxrl.runners.counts import COUNT, MAPPING, ValueKind, find_mismatch, find_problem
from jaxrl.runners.metrics_logger import find_state_problem
from jaxrl.runs import checkpoint as ckpt
from jaxrl.runs import results
from jaxrl.runs.manifest import JAX_OPTIONS, MAX_DEVICES, check_saved_session, get_jax_option
from jaxrl.runtime.process import prepare_process
from jaxrl.runtime.versions import EXACT_PACKAGES, SUITES, get_versions

if TYPE_CHECKING:
    from jaxrl.config.config import Config
    from jaxrl.config.settings.multi_agent import MultiAgentSettings
    from jaxrl.envs.registry import AnyMadeEnv

logger = logging.getLogger("jaxrl")

COMPONENTS: dict[str, tuple[str, ...]] = {
    "rl_module": ("learner.sgd.params",),
    "learner": ("learner",),
    "connectors": ("connectors.obs", "connectors.learner"),
}
"""Components of a state that can be restored separately, as prefixes of their leaves' paths."""


@dataclasses.dataclass(kw_only=True)
class RunMetadata:
    """State of a run outside its TrainState, stored in the JSON metadata of checkpoints."""

    iteration: int = 0
    time_total_s: float = 0.0
    actions_drawn: int = 0
    last_evaluation: dict[str, Any] = dataclasses.field(default_factory=dict)
    runner_counts: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Lifetime counts of host runners."""
    last_result: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Numbers of the latest result, which stop criteria and scores use."""
    logged: dict[str, Any] = dataclasses.field(default_factory=dict)
    """State of the run's metrics logger."""
    logged_in_evaluations: dict[str, Any] = dataclasses.field(default_factory=dict)
    """State of the logger of evaluations on the host."""

    def record_result(self, result: Mapping[str, Any]) -> None:
        """Store the numbers of a result, except for those of the current process."""
        persistent = {name: v for name, v in result.items() if name not in results.PROCESS_KEYS}
        self.last_result = _keep_numbers(results.to_plain(persistent))

    def get_auto_filled_metrics(self, elapsed_s: float) -> dict[str, Any]:
        """Return the metrics that RLlib adds to every result, and update the total time.

        Args:
            elapsed_s: Duration of the iteration in seconds.
        """
        now = datetime.datetime.now()
        self.time_total_s += elapsed_s
        return {
            "training_iteration": self.iteration,
            "time_this_iter_s": elapsed_s,
            "time_total_s": self.time_total_s,
            "timestamp": int(now.timestamp()),
            "date": now.strftime("%Y-%m-%d_%H-%M-%S"),
            "hostname": socket.gethostname(),
            "pid": os.getpid(),
        }

    @staticmethod
    def from_metadata(metadata: Mapping[str, Any]) -> "RunMetadata":
        """Return the state stored in a checkpoint's metadata.

        Raises:
            CheckpointError: If a value is missing or has the wrong type.
        """
        check_metadata(metadata)
        state = RunMetadata(**metadata["host"])
        state.last_result = _restore_nan(state.last_result)
        state.last_evaluation = _restore_nan(state.last_evaluation)
        return state


def make_checkpoint_metadata(
    config: "Config",
    host: RunMetadata,
    env_steps: int,
    session: Mapping[str, Any],
    made: "AnyMadeEnv",
) -> dict[str, Any]:
    """Return the metadata of a checkpoint, without the description of its leaves.

    Settings that cannot be imported again are omitted and listed under `not_saved`. The spaces of
    recorded data become declared ones, so that the policy can be restored without the data.

    Args:
        config: Config of the run.
        host: Host-side state of the run.
        env_steps: Number of environment steps sampled so far.
        session: Entry of the run's manifest; see `jaxrl.runs.manifest`.
        made: Environment of the run.
    """
    if config.is_offline and config.environment_settings.env is None:
        config = config.copy(copy_frozen=False)
        observation_space, action_space = made.spaces
        config.environment(observation_space=observation_space, action_space=action_space)
    saved, not_saved = serialize_restorable(config)
    counts = {results.ITERATION: host.iteration, results.ENV_STEPS: env_steps}
    last_evaluation = results.to_json(host.last_evaluation)
    return {
        **session,
        "algorithm": config.algo_name,
        "config": saved,
        "not_saved": not_saved,
        "host": {
            **dataclasses.asdict(host),
            "last_evaluation": _make_loadable(last_evaluation, {}),
            "last_result": _make_loadable(host.last_result, counts) if host.last_result else {},
        },
        "env_steps": env_steps,
        "num_devices": session["devices"]["count"],
        "platform": session["devices"]["platform"],
    }


# --- results in JSON's types, checked when they are read ---


def _restore_nan(result: Mapping[str, Any]) -> dict[str, Any]:
    """Restore NaN in a result's episode statistics, which JSON cannot represent."""
    stats = result.get("env_runners")
    if not isinstance(stats, Mapping):
        return dict(result)
    restored = {name: math.nan if value is None else value for name, value in stats.items()}
    missing = {name: value for name, value in EMPTY_EPISODE_METRICS.items() if name not in restored}
    return {**result, "env_runners": {**restored, **missing}}


def _keep_numbers(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Remove all values but finite numbers from a nested dictionary."""
    return {
        name: _keep_numbers(value) if isinstance(value, dict) else value
        for name, value in tree.items()
        if isinstance(value, dict) or (isinstance(value, int | float) and _fits_float(value))
    }


def _make_loadable(result: Mapping[str, Any], counts: Mapping[str, int]) -> dict[str, Any]:
    """Return a result as `_is_result` wants it: users' functions may write anything into one.

    Args:
        result: Result in JSON's types.
        counts: Counts that take the place of others that are missing or no counts.
    """
    fixed = dict(result)
    for name in (results.ITERATION, results.ENV_STEPS):
        if not COUNT.is_satisfied(fixed.get(name)):
            fixed.pop(name, None)
            fixed |= {name: counts[name]} if name in counts else {}
    stats = fixed.get("env_runners", {})
    if not isinstance(stats, dict):
        return {name: value for name, value in fixed.items() if name != "env_runners"}
    if stats:
        fixed["env_runners"] = {
            name: value
            for name, value in cast(dict[str, Any], stats).items()
            if name not in EMPTY_EPISODE_METRICS or _is_number_or_none(value)
        }
    return fixed


def _is_result(value: object) -> TypeGuard[dict[str, Any]]:
    """Return whether the counts and episode statistics of a result are valid, if present."""
    if not isinstance(value, dict):
        return False
    result = cast(dict[Any, Any], value)
    stats, lifetime = result.get("env_runners", {}), (results.ITERATION, results.ENV_STEPS)
    return (
        isinstance(stats, dict)
        and all(_is_number_or_none(stats.get(name)) for name in EMPTY_EPISODE_METRICS)
        and all(COUNT.is_satisfied(result[name]) for name in lifetime if name in result)
    )


def _are_numbers(value: object) -> bool:
    """Return whether this is valid output of `RunMetadata.record_result`, or empty."""
    if not _is_result(value) or not all(map(_is_number_or_none, flatten(value).values())):
        return False
    return not value or {results.ITERATION, results.ENV_STEPS} <= value.keys()


def _is_number_or_none(value: object) -> bool:
    if value is None or isinstance(value, float):
        return True
    return isinstance(value, int) and _fits_float(value)


def _fits_float(value: float) -> bool:
    """Return whether a number fits into a float: JSON integers have any number of digits."""
    return abs(value) <= sys.float_info.max


# --- checks of metadata ---


def check_state(state: object) -> None:
    """Raise CheckpointError unless this looks like a return value of `Algorithm.get_state`."""
    if not isinstance(state, Mapping) or not {"train_state", "metadata"} <= state.keys():
        raise CheckpointError(
            "A state must be the return value of get_state(), with train_state and metadata, "
            f"got {state!r}."
        )


_METADATA_TYPES: dict[str, Any] = {
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
    """Check that metadata are valid output of `make_checkpoint_metadata`.

    Args:
        metadata: Metadata of a checkpoint.
        source: Object that the metadata belong to, for error messages.

    Raises:
        CheckpointError: If an entry is missing or has the wrong type; names the first.
    """
    if not isinstance(metadata, Mapping):
        raise CheckpointError(f"{source} cannot be loaded: it must be a mapping, got {metadata!r}.")
    _check_types(metadata, _METADATA_TYPES, "", source)
    if not 1 <= metadata["num_devices"] <= MAX_DEVICES:
        raise CheckpointError(
            f"{source} cannot be loaded: num_devices must be from 1 to {MAX_DEVICES}, got "
            f"{metadata['num_devices']}."
        )
    check_saved_session(metadata, source)
    problem = (
        find_mismatch({"env_steps": metadata["env_steps"]}, {"env_steps": COUNT}, "")
        or find_mismatch(metadata["host"], _HOST_KINDS, "host.")
        or find_problem(metadata["host"].get("runner_counts", {}), "host.runner_counts.")
    )
    for name in ("logged", "logged_in_evaluations"):
        unreadable = None if problem else find_state_problem(metadata["host"].get(name, {}))
        problem = f"host.{name} {unreadable}" if unreadable else problem
    if problem is not None:
        raise CheckpointError(f"{source} cannot be loaded: {problem}.")


def _is_duration(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf and _fits_float(value)


_HOST_KINDS: Mapping[str, ValueKind] = {
    "iteration": COUNT,
    "time_total_s": ValueKind("a finite number of at least 0", _is_duration),
    "actions_drawn": COUNT,
    "last_evaluation": ValueKind("a result with numbers of episodes", _is_result),
    "runner_counts": MAPPING,
    "last_result": ValueKind("the numbers of a result", _are_numbers),
    "logged": MAPPING,
    "logged_in_evaluations": MAPPING,
}
"""Kinds of the JSON values of the RunMetadata fields."""


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
                f"{source} cannot be loaded: {prefix}{name} must be {describe_type(kind)}, got "
                f"{str(values[name])[:80]!r}."
            ) from None


def check_algorithm(metadata: Mapping[str, Any], algo_name: str, path: object) -> None:
    """Raise CheckpointError if the state belongs to another algorithm.

    Args:
        metadata: Metadata of the checkpoint.
        algo_name: Name of the algorithm that restores it.
        path: Path of the checkpoint, for error messages.
    """
    check_metadata(metadata, path)
    if metadata["algorithm"] != algo_name:
        raise CheckpointError(
            f"{path} was saved by {metadata['algorithm']}, but this algorithm is {algo_name}; "
            "restore(..., component='rl_module') restores only the module."
        )


def resolve_trust(checkpoint: Path, granted: TrustSpec, *, quietly: bool = False) -> Trust:
    """Return the trust in the config of a checkpoint: full if this user wrote it on this machine.

    Args:
        checkpoint: Path of the checkpoint.
        granted: Additional trust granted by the caller.
        quietly: Whether to suppress log messages about ignored settings.
    """
    own = ckpt.is_own(checkpoint)
    return dataclasses.replace(
        Trust.from_argument(granted, is_own=own, source=checkpoint), is_quiet=quietly
    )


def check_missing_settings(
    metadata: Mapping[str, Any], supplied: Mapping[str, Any], path: object
) -> None:
    """Raise if settings that could not be saved, or found, are not supplied.

    Args:
        metadata: Metadata of a checkpoint or a sweep.
        supplied: Supplied settings by name.
        path: Path of the checkpoint or sweep, for error messages.

    Raises:
        CheckpointError: If a setting is missing.
    """
    missing = [name for name in metadata["not_saved"] if name not in supplied]
    of_script = [name for name in find_missing(metadata["config"]) if name not in supplied]
    reasons = [f"{', '.join(missing)}, which had no import path"] if missing else []
    if of_script:
        reasons.append(f"{', '.join(of_script)}, which the script defined that saved it")
    if reasons:
        supply = ", ".join(f"{name}=..." for name in (*missing, *of_script))
        script = f", or give the script, {SCRIPT_OPTION} on the command line" if of_script else ""
        raise CheckpointError(
            f"{path} does not contain {', and '.join(reasons)}: supply it with from_checkpoint(..., "
            f"{supply}){script}."
        )


def find_missing_settings(metadata: Mapping[str, Any]) -> list[str]:
    """Return the settings that a checkpoint does not contain, or whose objects are not found here."""
    return [*metadata["not_saved"], *find_missing(metadata["config"])]


def prepare_resumed_process(config: "Config", metadata: Mapping[str, Any]) -> None:
    """Prepare the process for a resumed run, with its previous devices if as many are available."""
    prepare_process(config)
    if metadata["platform"] == jax.default_backend():
        keep_recorded_choices(config, metadata["num_devices"])


def keep_recorded_choices(config: "Config", num_devices: int) -> None:
    """Make a run use the number of devices it had before, and measure nothing anew.

    Args:
        config: Config of the run.
        num_devices: Number of devices, which applies if as many are available.
    """
    config.preferred_devices = (num_devices, "as the run had before")
    config.is_recorded = True


def warn_of_differences(metadata: Mapping[str, Any], devices: list[Device]) -> None:
    """Log a warning if the resumed run will not be bit-exact."""
    phrases = list_differences(metadata, devices)
    if phrases:
        logger.warning(
            "The checkpoint was written with %s: the run continues from the same state, but is not "
            "bit-identical to an uninterrupted one.",
            "; ".join(phrases),
        )


def list_differences(metadata: Mapping[str, Any], devices: list[Device]) -> list[str]:
    """Return the differences that prevent a bit-exact resume, a phrase for each."""
    versions = get_versions()
    options = metadata.get("jax_options")  # earlier checkpoints have none
    options = options if isinstance(options, Mapping) else {}
    known = [name for name in JAX_OPTIONS if name in options]
    current = {
        "num_devices": len(devices),
        "platform": devices[0].platform,
        **{f"{name} version": versions.get(name) for name in EXACT_PACKAGES},
        **{
            f"{name} version": versions[name]
            for name in SUITES
            if name in versions and name in metadata["versions"]
        },
        **{name: get_jax_option(name) for name in known},
    }
    saved = {
        **metadata,
        **{name: options[name] for name in known},
        **{f"{name} version": version for name, version in metadata["versions"].items()},
    }
    return [
        f"{name}={saved.get(name)}, this run has {value}"
        for name, value in current.items()
        if saved.get(name) != value
    ]


def get_component_prefixes(name: str | None, modules: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the prefixes of the leaf paths of a state's component; None selects all leaves.

    Args:
        name: Name of the component, or None.
        modules: Modules of a run of several agents, each of which has the component.

    Raises:
        CheckpointError: If there is no such component.
    """
    if name is None:
        return ("",)
    if name not in COMPONENTS:
        raise CheckpointError(
            f"There is no component '{name}'.{did_you_mean(name, COMPONENTS)} "
            f"The components are {', '.join(COMPONENTS)}."
        )
    own = COMPONENTS[name]
    return tuple(f"modules.{m}.{part}" for m in modules for part in own) or own


def restore_part(
    saved: Mapping[str, np.ndarray], part: str, get_current: Callable[[], PyTree]
) -> PyTree:
    """Restore a part of the state that the loop over host runners holds.

    Args:
        saved: Saved leaves of all such parts, by name.
        part: Name of the part, which is the leaves' prefix.
        get_current: Function that returns the current value of the part, such as the environments'
            state.

    Returns:
        The restored part; None if the checkpoint does not have it.

    Raises:
        CheckpointError: If the environments, or their number, differ.
    """
    leaves = {name: leaf for name, leaf in saved.items() if name.startswith(f"{part}.")}
    if not leaves:
        return None
    if part == "buffer":  # a user's own, whose arrays have any shape
        return _nest({name.removeprefix(f"{part}."): leaf for name, leaf in leaves.items()})
    current = get_current()
    if part == "env" and not any(name.startswith("env.env.") for name in leaves):
        current = {**current, "env": None}  # the state could not be saved: episodes start anew
    state = {part: current}
    problem = ckpt.find_first_difference(state, leaves, ("",))
    if problem is not None:
        raise CheckpointError(
            f"The environments of the checkpoint do not fit these runners: {problem}; restore with "
            "the same environment and number of environments as were saved."
        )
    return ckpt.fill(state, leaves, ("",))[part]


MAX_BUFFER_DEPTH = 32
"""Maximum number of levels in the state of a user's replay buffer."""


def _nest(leaves: Mapping[str, np.ndarray]) -> PyTree:
    """Return the tree of dictionaries and tuples that leaves are named by."""
    if any(name.count(".") > MAX_BUFFER_DEPTH for name in leaves):
        raise CheckpointError(
            f"The replay buffer of the checkpoint is nested more than {MAX_BUFFER_DEPTH} levels deep."
        )
    if set(leaves) == {""}:
        return leaves[""]
    parts: dict[str, dict[str, np.ndarray]] = {}
    for name, leaf in leaves.items():
        first, _, rest = name.partition(".")
        parts.setdefault(first, {})[rest] = leaf
    tree = {name: _nest(part) for name, part in parts.items()}
    if set(tree) == {str(i) for i in range(len(tree))}:
        return tuple(tree[str(i)] for i in range(len(tree)))
    return tree


def apply_overrides(
    leaves: Mapping[str, np.ndarray],
    current: Mapping[str, np.ndarray],
    config: "Config",
    overrides: Mapping[str, Any],
    saved_settings: Mapping[str, Any],
) -> dict[str, np.ndarray]:
    """Return the saved leaves, except that leaves of overridden settings are the new run's.

    Another seed has other random keys.

    Args:
        leaves: Saved leaves by name.
        current: Leaves of the new run's initial state, by name.
        config: Config of the new run.
        overrides: Overridden settings, under any of their names.
        saved_settings: Settings of the run that was saved.
    """
    table = config.get_name_table()
    names = {table.find_current_name(name) or name for name in overrides}
    roots = [f"modules.{module}." for module in _list_modules(leaves)] or [""]
    owned = [(root, name) for root in roots for name in names]
    prefixes = [f"{root}{parent}.{name}" for root, name in owned for parent in HYPERPARAMETER_PATHS]
    adapted = {f"{root}{parent}.{name}" for root, name in owned for parent in ADAPTED_PATHS}
    if names & {"env_config", "curriculum", "env_task_fn"}:
        prefixes.append("env_params")

    is_reseeded = "seed" in names and config.debugging_settings.seed != saved_settings.get("seed")

    def is_overridden(leaf: str) -> bool:
        if leaf in adapted or (is_reseeded and ckpt.is_key_name(leaf)):
            return True
        return any(leaf == prefix or leaf.startswith(f"{prefix}.") for prefix in prefixes)

    saved = {name: leaf for name, leaf in leaves.items() if not is_overridden(name)}
    if "league" in names:
        saved = _add_league(saved, current)
    return {**saved, **{name: leaf for name, leaf in current.items() if is_overridden(name)}}


HYPERPARAMETER_PATHS = ("learner.hparams", "guard.snapshot.hparams")
"""Paths of a state's hyperparameters: the values of traced settings."""
ADAPTED_PATHS = ("learner", "guard.snapshot")
"""Paths of single values that start at a setting of their name and are adapted, as `kl_coeff`."""


# --- a run read from a checkpoint ---


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
    config: "Config"
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
        check_metadata(metadata, found)
        trusted = resolve_trust(found, trust)
        get_component_prefixes(component)  # raises for an unknown name
        check_missing_settings(metadata, overrides, found)
        config = deserialize_config(metadata["config"], overrides, trust=trusted)
        trained = None
        is_changed = is_whole and component is None and "policies_to_train" in overrides
        if is_changed and config.is_multi_agent:
            trained = overrides["policies_to_train"]
            as_saved = metadata["config"]["settings"].get("policies_to_train")
            config.unset("policies_to_train")
            if as_saved is not None:
                config.multi_agent(policies_to_train=as_saved)
        prepare_resumed_process(config, metadata)
        leaves = ckpt.read_leaves(found, metadata)  # raises, if damaged, before anything compiles
        if is_whole and component is None:
            if "league" in overrides:
                _check_added_league(config.multi_agent_settings, leaves, found)
            if "max_agents" in overrides:
                settings = metadata["config"]["settings"]
                limits = settings.get("max_agents"), config.multi_agent_settings.max_agents
                _check_same_slots(*limits, _list_modules(leaves), found)
        return SavedRun(
            path=found, metadata=metadata, leaves=leaves, config=config, trained=trained
        )


def _list_modules(leaves: Iterable[str]) -> list[str]:
    """Return the modules of several agents that leaves are of; empty for one agent."""
    return sorted({name.split(".")[1] for name in leaves if name.startswith("modules.")})


def _check_same_slots(saved: object, wanted: object, modules: list[str], path: Path) -> None:
    """Raise CheckpointError if a run is to go on with another number of slots for agents."""
    if wanted == saved:
        return
    raise CheckpointError(
        f"{path} is of a run with max_agents={saved}, whose rows and statistics are those of its slots, "
        f"and cannot go on with max_agents={wanted!r}: begin a new run with what its modules learned, "
        f"Algorithm.from_checkpoint(path, policy_ids={modules}, max_agents={wanted!r})."
    )


# --- a league that is added to a run, or removed from one ---

_GAMES = ("opponents.games", "opponents.waits", "carry.opponents.lead", "carry.opponents.games")
"""Leaves of a state that a league of one learner counts its games in."""
_IS_OPEN = "opponents.is_open"
"""Leaf that says which draws snapshots join."""


def _check_added_league(
    settings: "MultiAgentSettings", leaves: Mapping[str, np.ndarray], path: Path
) -> None:
    """Raise CheckpointError if a league needs modules or opponents that a saved run does not have."""
    kind = type(settings.any_league).__name__
    if settings.learners_league is not None and not _has(leaves, "opponents.league."):
        reason = "which makes the modules and who meets whom, and those of this run are others"
        needed = "mapping=None, policies=None, policies_to_train=None"
    elif settings.self_play is not None and not _has(leaves, "opponents."):
        reason = "whose games are with opponents that are drawn, and this run draws none"
        needed = "policies=..., mapping=Seats(..., Draw())"
    else:
        return
    saved = _list_modules(leaves)
    raise CheckpointError(
        f"{path} cannot go on with league={kind}(...), {reason}: begin a new run with what its modules "
        f"learned, Algorithm.from_checkpoint(path, policy_ids={saved[:1]}, league=..., {needed})."
    )


def _add_league(
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
