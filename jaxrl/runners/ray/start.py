"""Starting Ray, or joining the one that is there, and holding what is asked against what it has."""

import contextlib
import dataclasses
import logging
import math
import os
import signal
import threading
import time
import warnings
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ray
import ray.util
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from jaxrl.errors import ConfigError, RayError, in_one_line
from jaxrl.runtime.devices import usable_cores

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

_PLACEMENT_TIMEOUT_S = 30.0
_RELEASE_TIMEOUT_S = 10.0

Bundle = dict[str, float]
"""The resources of one actor by Ray's names."""


def ensure_ray(config: "AlgorithmConfig") -> str:
    """Connect to the Ray that is there, or start one on this machine without a dashboard.

    `RAY_ADDRESS` names a cluster, as Ray's own documentation says. What actors print is shown with
    debugging(log_level="INFO" or "DEBUG").

    Returns:
        What came of it, a sentence for `explain()`.
    """
    if ray.is_initialized():
        return f"Ray: the one that runs, with {_cpus():g} CPUs."
    level = config.debugging_settings.log_level
    options: dict[str, Any] = {
        "log_to_driver": level in ("INFO", "DEBUG"),
        "logging_level": logging.INFO if level == "DEBUG" else logging.ERROR,
    }
    address = os.environ.get("RAY_ADDRESS", "local")
    if address != "local":
        start_ray(**options)
        return f"Ray: the cluster at {address}, with {_cpus():g} CPUs."
    start_ray_here(usable_cores(), **options)
    return f"Ray: started on this machine with {_cpus():g} CPUs, as many as it has cores to use."


def start_ray_here(num_cpus: int, **options: Any) -> None:
    """Start Ray for this process alone, on this machine's loopback, without a dashboard."""
    start_ray(
        address="local",
        num_cpus=num_cpus,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        **options,
    )


def start_ray(**options: Any) -> None:
    """`ray.init`, which leaves this process as it was but for being connected."""
    # Actors are told what they see; Ray would otherwise warn that it will stop telling them.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with _signal_handlers_kept(), warnings.catch_warnings():
        # What Ray forks here becomes another program at once, so JAX's threads do it no harm.
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        try:
            ray.init(**options)
        except Exception as error:  # of many kinds, plain Exception among them
            where = options.get("address") or os.environ.get("RAY_ADDRESS", "local")
            raise RayError(
                f"Ray could not be started or joined (address {where!r}): {in_one_line(error)}; a "
                "machine that does much else may need another try, and what Ray itself logged is in "
                "/tmp/ray/session_latest/logs."
            ) from error


def _cpus() -> float:
    return ray.cluster_resources().get("CPU", 0.0)


@contextlib.contextmanager
def _signal_handlers_kept() -> Generator[None]:
    """Ray replaces the handler of SIGTERM, by which a run would save itself."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers, and Ray does not try
        return
    before = {name: signal.getsignal(name) for name in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for name, handler in before.items():
            if handler is not None:
                signal.signal(name, handler)


def runner_bundle(config: "AlgorithmConfig") -> Bundle:
    """The resources of one EnvRunner."""
    settings = config.env_runners_settings
    return {"CPU": settings.num_cpus_per_env_runner, **settings.custom_resources_per_env_runner}


def learner_bundle(config: "AlgorithmConfig") -> Bundle:
    """The resources of one learner."""
    settings = config.learners_settings
    gpus = float(settings.num_gpus_per_learner)
    cpus = settings.num_cpus_per_learner
    return {
        "CPU": float(0 if gpus else 1) if cpus == "auto" else float(cpus),
        "GPU": gpus,
        **{name: float(each) for name, each in settings.custom_resources_per_learner.items()},
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a group of actors needs.

    Args:
        count: How many actors.
        bundle: Resources of each.
        strategy: Ray's placement strategy.
        count_setting: The setting that says how many, for messages.
        setting_of: The setting behind each resource, for messages.
    """

    count: int
    bundle: Bundle
    strategy: str
    count_setting: str
    setting_of: Mapping[str, str]


def check_resources(wanted: Wanted) -> None:
    """Refuse what can never be placed, before any actor waits for it for ever.

    What other actors hold is waited for a moment: those of a run that has just ended may not have
    given it back yet.

    Raises:
        ConfigError: Names the setting, what is there and what would fit.
    """
    group = ray.util.get_current_placement_group()
    if group is not None:  # a trial of Tune has what its bundles say, the first being its own
        refuse_misfit(wanted, group.bundle_specs[1:] or group.bundle_specs, "this trial has")
        return
    nodes = [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]
    refuse_misfit(wanted, nodes, "Ray has")
    deadline = time.monotonic() + _RELEASE_TIMEOUT_S
    while time.monotonic() < deadline:
        if _fits_free(wanted, ray.available_resources()):
            return
        time.sleep(0.1)
    refuse_misfit(wanted, [ray.available_resources()], "others hold all of Ray's but")


def _fits_free(wanted: Wanted, free: Mapping[str, float]) -> bool:
    return all(free.get(name, 0.0) >= each * wanted.count for name, each in wanted.bundle.items())


def refuse_misfit(wanted: Wanted, nodes: Sequence[Mapping[str, float]], whose: str) -> None:
    """Raises ConfigError if the actors do not fit onto nodes with these resources."""
    for name, each in sorted(wanted.bundle.items()):
        if each <= 0:
            continue
        there = sum(node.get(name, 0.0) for node in nodes)
        fit = sum(_fits(node.get(name, 0.0), each) for node in nodes)
        if fit < wanted.count:
            raise ConfigError(
                f"{wanted.count_setting}={wanted.count} with {wanted.setting_of[name]}={each:g} "
                f"needs {wanted.count * each:g} {name}, but {whose} {there:g}: "
                f"{_advice(wanted, name, nodes, fit)}."
            )
    num_nodes = len(nodes)
    if wanted.strategy == "STRICT_SPREAD" and wanted.count > num_nodes:
        raise ConfigError(
            f"placement_strategy='STRICT_SPREAD' puts each of {wanted.count_setting}="
            f"{wanted.count} on a node of its own, but {whose} {num_nodes}: set "
            f"{wanted.count_setting}={num_nodes}, or placement_strategy='SPREAD'."
        )
    if wanted.strategy == "STRICT_PACK":
        most = max(_all_fit(node, wanted.bundle) for node in nodes)
        if most < wanted.count:
            raise ConfigError(
                f"placement_strategy='STRICT_PACK' puts all of {wanted.count_setting}="
                f"{wanted.count} on one node, and the largest has room for {most}: set "
                f"{wanted.count_setting}={most}, or placement_strategy='PACK'."
            )


def _fits(there: float, each: float) -> int:
    return math.floor(there / each + 1e-9)


def _all_fit(node: Mapping[str, float], bundle: Bundle) -> int:
    counts = [_fits(node.get(name, 0.0), each) for name, each in bundle.items() if each > 0]
    return min(counts, default=2**31)


def _advice(wanted: Wanted, name: str, nodes: Sequence[Mapping[str, float]], fit: int) -> str:
    """The single changes that would fit, as far as there are any."""
    ways = [f"set {wanted.count_setting}={fit}"] * (fit > 0)
    # As many shares of the fullest node as there are actors: they fit whatever the others have.
    share = math.floor(1000 * max(node.get(name, 0.0) for node in nodes) / wanted.count) / 1000
    if name == "CPU" and share > 0:
        ways.append(f"{wanted.setting_of[name]}={share:g} to let them share")
    if not ways:
        return f"give the cluster some {name}, or leave it out of {wanted.setting_of[name]}"
    return ", or ".join(ways)


def place(wanted: Wanted) -> PlacementGroup | None:
    """Reserve a bundle for each actor; None where Ray's own packing is what is asked for.

    Raises:
        ConfigError: The bundles can never be placed, or are not.
    """
    check_resources(wanted)
    if wanted.strategy == "PACK" or ray.util.get_current_placement_group() is not None:
        return None
    bundle = {name: each for name, each in wanted.bundle.items() if each > 0} or {"CPU": 0.001}
    group = placement_group([bundle] * wanted.count, strategy=wanted.strategy)
    if not group.wait(_PLACEMENT_TIMEOUT_S):
        remove_placement_group(group)
        raise ConfigError(
            f"placement_strategy={wanted.strategy!r} could not place {wanted.count_setting}="
            f"{wanted.count} actors within {_PLACEMENT_TIMEOUT_S:g} seconds: something else took "
            "the resources; set placement_strategy='PACK', or ask for fewer."
        )
    return group


def actor_options(bundle: Bundle, environs: Mapping[str, str]) -> dict[str, Any]:
    """Ray's options of an actor with these resources, which Ray itself never starts again."""
    return {
        "num_cpus": bundle["CPU"],
        "num_gpus": bundle.get("GPU", 0),
        "resources": {name: each for name, each in bundle.items() if name not in ("CPU", "GPU")},
        "max_restarts": 0,
        "max_task_retries": 0,
        "runtime_env": {"env_vars": dict(environs)},
    }


def placed(options: dict[str, Any], group: PlacementGroup | None, index: int) -> dict[str, Any]:
    """The options of the actor that has the bundle of this index, if bundles were reserved."""
    if group is None:
        return options
    strategy = PlacementGroupSchedulingStrategy(
        placement_group=group, placement_group_bundle_index=index
    )
    return {**options, "scheduling_strategy": strategy}
