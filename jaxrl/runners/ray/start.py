"""Starting or joining Ray, and checking the requested resources against the available ones."""

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
from typing import TYPE_CHECKING, Any, Protocol

import ray
import ray.util
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from jaxrl.errors import ConfigError, JaxrlError, RayError, summarize_exception
from jaxrl.runners.fragment import Weights
from jaxrl.runners.ray.kept_params import KeptParams
from jaxrl.runtime.cores import count_usable_cores

if TYPE_CHECKING:
    from jaxrl.config.config import Config


_PLACEMENT_TIMEOUT_S = 30.0
_RELEASE_TIMEOUT_S = 10.0

Bundle = dict[str, float]
"""Resources of an actor by Ray's names."""


def ensure_ray(config: "Config") -> str:
    """Connect to a running Ray instance, or start one on this machine without a dashboard.

    As in Ray itself, `RAY_ADDRESS` selects a cluster. The output of actors is shown with
    debugging(log_level="INFO" or "DEBUG").

    Returns:
        Message for `explain()`.
    """
    if ray.is_initialized():
        return f"Ray: the running instance, with {_count_cpus():g} CPUs."
    level = config.debugging_settings.log_level
    options: dict[str, Any] = {
        "log_to_driver": level in ("INFO", "DEBUG"),
        "logging_level": logging.INFO if level == "DEBUG" else logging.ERROR,
    }
    address = os.environ.get("RAY_ADDRESS", "local")
    if address != "local":
        start_ray(**options)
        return f"Ray: the cluster at {address}, with {_count_cpus():g} CPUs."
    start_local_ray(count_usable_cores(), **options)
    return f"Ray: started on this machine with {_count_cpus():g} CPUs, one per usable core."


def start_local_ray(num_cpus: int, **options: object) -> None:
    """Start Ray for this process only, on the loopback interface, without a dashboard."""
    start_ray(
        address="local",
        num_cpus=num_cpus,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        **options,
    )


def start_ray(**options: Any) -> None:
    """Call `ray.init` without changing this process's signal handlers.

    Raises:
        RayError: If Ray cannot be started or joined.
    """
    # Actors set their visible devices themselves; Ray would warn about a change of its default.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with _keep_signal_handlers(), warnings.catch_warnings():
        # Ray's forks exec another program at once, so JAX's threads do not affect them.
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        try:
            ray.init(**options)
        except Exception as error:  # of many kinds, plain Exception among them
            where = options.get("address") or os.environ.get("RAY_ADDRESS", "local")
            raise RayError(
                f"Ray could not be started or joined (address {where!r}): {summarize_exception(error)}; "
                "try again if the machine is busy. Ray's own logs are in "
                "/tmp/ray/session_latest/logs."
            ) from error


def _count_cpus() -> float:
    return ray.cluster_resources().get("CPU", 0.0)


@contextlib.contextmanager
def _keep_signal_handlers() -> Generator[None]:
    """Restore the signal handlers: Ray replaces that of SIGTERM, on which a run saves itself."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers, so Ray sets none
        return
    before = {name: signal.getsignal(name) for name in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for name, handler in before.items():
            if handler is not None:
                signal.signal(name, handler)


def make_runner_bundle(config: "Config") -> Bundle:
    """Return the resources of one EnvRunner."""
    settings = config.env_runners_settings
    return {"CPU": settings.num_cpus_per_env_runner, **settings.custom_resources_per_env_runner}


def make_learner_bundle(config: "Config") -> Bundle:
    """Return the resources of one learner."""
    settings = config.learners_settings
    gpus = float(settings.num_gpus_per_learner)
    cpus = settings.num_cpus_per_learner
    return {
        "CPU": float(0 if gpus else 1) if cpus == "auto" else float(cpus),
        "GPU": gpus,
        **{name: float(each) for name, each in settings.custom_resources_per_learner.items()},
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResourceRequest:
    """Resources requested for a group of actors.

    Args:
        count: Number of actors.
        bundle: Resources of each actor.
        strategy: Ray's placement strategy.
        count_setting: Name of the setting of the number of actors, for messages.
        setting_by_resource: Name of the setting of each resource, for messages.
    """

    count: int
    bundle: Bundle
    strategy: str
    count_setting: str
    setting_by_resource: Mapping[str, str]


def check_resources(request: ResourceRequest) -> None:
    """Raise if actors can never be placed, instead of letting them wait indefinitely.

    Resources held by other actors are waited for briefly, since those of a run that has just ended
    may not have been released yet.

    Raises:
        ConfigError: If the resources do not suffice; the message gives a setting that fits.
    """
    group = ray.util.get_current_placement_group()
    if group is not None:  # a trial of Tune has the resources of its bundles; the first is its own
        check_fit(request, group.bundle_specs[1:] or group.bundle_specs, "this trial has")
        return
    nodes = [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]
    check_fit(request, nodes, "Ray has")
    deadline = time.monotonic() + _RELEASE_TIMEOUT_S
    while time.monotonic() < deadline:
        if _fits_available(request, ray.available_resources()):
            return
        time.sleep(0.1)
    check_fit(request, [ray.available_resources()], "running actors leave")


def _fits_available(wanted: ResourceRequest, free: Mapping[str, float]) -> bool:
    return all(free.get(name, 0.0) >= each * wanted.count for name, each in wanted.bundle.items())


def check_fit(request: ResourceRequest, nodes: Sequence[Mapping[str, float]], subject: str) -> None:
    """Raise ConfigError if the actors do not fit onto nodes with these resources."""
    for name, each in sorted(request.bundle.items()):
        if each <= 0:
            continue
        available = sum(node.get(name, 0.0) for node in nodes)
        fit = sum(_count_fitting(node.get(name, 0.0), each) for node in nodes)
        if fit < request.count:
            raise ConfigError(
                f"{request.count_setting}={request.count} with {request.setting_by_resource[name]}={each:g} "
                f"needs {request.count * each:g} {name}, but {subject} {available:g}: "
                f"{_suggest_settings(request, name, nodes, fit)}."
            )
    num_nodes = len(nodes)
    if request.strategy == "STRICT_SPREAD" and request.count > num_nodes:
        raise ConfigError(
            f"placement_strategy='STRICT_SPREAD' puts each of {request.count_setting}="
            f"{request.count} on a node of its own, but {subject} {num_nodes}: set "
            f"{request.count_setting}={num_nodes}, or placement_strategy='SPREAD'."
        )
    if request.strategy == "STRICT_PACK":
        largest = max(_count_fitting_bundles(node, request.bundle) for node in nodes)
        if largest < request.count:
            raise ConfigError(
                f"placement_strategy='STRICT_PACK' puts all of {request.count_setting}="
                f"{request.count} on one node, and the largest has room for {largest}: set "
                f"{request.count_setting}={largest}, or placement_strategy='PACK'."
            )


def _count_fitting(available: float, each: float) -> int:
    return math.floor(available / each + 1e-9)


def _count_fitting_bundles(node: Mapping[str, float], bundle: Bundle) -> int:
    counts = [
        _count_fitting(node.get(name, 0.0), each) for name, each in bundle.items() if each > 0
    ]
    return min(counts, default=2**31)


def _suggest_settings(
    wanted: ResourceRequest, name: str, nodes: Sequence[Mapping[str, float]], fit: int
) -> str:
    """Return the changes of single settings that would fit."""
    options = [f"set {wanted.count_setting}={fit}"] * (fit > 0 or name == "CPU")
    # Divide the largest node among all actors, so that they fit regardless of the other nodes.
    share = math.floor(1000 * max(node.get(name, 0.0) for node in nodes) / wanted.count) / 1000
    if name == "CPU":
        each = f"={share:g}" if share else f" below {wanted.bundle[name]:g}"
        options.append(f"{wanted.setting_by_resource[name]}{each} to let them share")
    if not options:
        return (
            f"give the cluster some {name}, or leave it out of {wanted.setting_by_resource[name]}"
        )
    return ", or ".join(options)


def reserve_bundles(request: ResourceRequest) -> PlacementGroup | None:
    """Reserve a bundle for each actor; return None if Ray's default packing is requested.

    Raises:
        ConfigError: If the bundles can never be placed, or are not placed in time.
    """
    check_resources(request)
    if request.strategy == "PACK" or ray.util.get_current_placement_group() is not None:
        return None
    bundle = {name: each for name, each in request.bundle.items() if each > 0} or {"CPU": 0.001}
    group = placement_group([bundle] * request.count, strategy=request.strategy)
    if not group.wait(_PLACEMENT_TIMEOUT_S):
        remove_placement_group(group)
        raise ConfigError(
            f"placement_strategy={request.strategy!r} could not place {request.count_setting}="
            f"{request.count} actors within {_PLACEMENT_TIMEOUT_S:g} seconds: something else took "
            "the resources; set placement_strategy='PACK', or ask for fewer."
        )
    return group


def make_actor_options(bundle: Bundle, env_vars: Mapping[str, str]) -> dict[str, Any]:
    """Return Ray's options for an actor with these resources, without restarts by Ray."""
    return {
        "num_cpus": bundle["CPU"],
        "num_gpus": bundle.get("GPU", 0),
        "resources": {name: each for name, each in bundle.items() if name not in ("CPU", "GPU")},
        "max_restarts": 0,
        "max_task_retries": 0,
        "runtime_env": {"env_vars": dict(env_vars)},
    }


def with_placement(
    options: dict[str, Any], group: PlacementGroup | None, index: int
) -> dict[str, Any]:
    """Return the options extended by the bundle of this index, if bundles were reserved."""
    if group is None:
        return options
    strategy = PlacementGroupSchedulingStrategy(
        placement_group=group, placement_group_bundle_index=index
    )
    return {**options, "scheduling_strategy": strategy}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExceptionInfo:
    """Exception in an actor as plain data, since exceptions may not be picklable.

    The exception's class is kept only if the user has to correct the error, so that a retry is
    useless: an environment that violates the contract, or a module that does not fit.
    """

    message: str
    traceback: str
    user_error_class: type[JaxrlError] | None = None


class RunnerDiedError(RuntimeError):
    """The process of an actor, or its reply, was lost."""


class Backend(Protocol):
    """Backend that runs actors, each executing its calls in order, and returns futures."""

    def now(self) -> float:
        """Return the seconds of a monotonic clock."""
        ...

    def start(self, worker_index: int, incarnation: int, env_steps: int) -> tuple[Any, Any]:
        """Start an actor.

        Args:
            worker_index: Index of the actor, from 1 on.
            incarnation: Number of earlier actors with this index.
            env_steps: Maximum number of steps that its environments have taken in earlier actors.

        Returns:
            Handle of the actor, and the future of its start, which holds None or an exception.
        """
        ...

    def call(self, handle: Any, method: str, *args: object) -> object:
        """Call a method of an actor; return the future of its result or exception."""
        ...

    def put(self, value: Weights | KeptParams) -> object:
        """Store weights or parameters once for all actors; return a reference to pass to `call`."""
        ...

    def wait(self, futures: Sequence[Any], timeout_s: float) -> list[Any]:
        """Wait for the first future to be ready, or for the timeout; return all that are ready."""
        ...

    def get(self, future: Any) -> Any:
        """Return the value of a future that is ready.

        Raises:
            RunnerDiedError: If the actor died before it replied.
        """
        ...

    def kill(self, handle: Any) -> None:
        """Kill an actor, which may be dead already."""
        ...

    def close(self) -> None:
        """Release the resources shared by all actors; safe to call more than once."""
        ...
