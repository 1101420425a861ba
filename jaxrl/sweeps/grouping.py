"""Grouping of lanes by program: lanes share one if they differ only in numbers passed to it."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import jax

from jaxrl.algorithm import TRAINABLE_METHODS, Algorithm
from jaxrl.assembly.assemble import Assembly, assemble, make_env
from jaxrl.assembly.env import can_share_program, prepare_first_task
from jaxrl.assembly.multi_agent import make_multi_agent_env
from jaxrl.config.offline import check_lane_storage, make_stream_lanes_error
from jaxrl.config.settings.runners import LearnersSettings
from jaxrl.config.settings.training import Training
from jaxrl.config.sweep import Lane
from jaxrl.connectors.pipelines import LearnerPipeline
from jaxrl.core.hparams import (
    HParams,
    build_hparams,
    current_values,
    get_numeric_hparams,
    mark_per_lane,
)
from jaxrl.core.spaces import is_same_space
from jaxrl.core.types import Device, Progress, PyTree
from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.multi.host_made import MadeMultiHostEnv
from jaxrl.envs.registry import MadeEnv, MadeMultiEnv
from jaxrl.errors import ConfigError, HostLanesError
from jaxrl.evaluation.evaluation import make_evaluation_env
from jaxrl.runtime.devices import warn_about_unused_cores

if TYPE_CHECKING:
    from jaxrl.config.config import Config
    from jaxrl.training.multi_learning import MultiLearning
    from jaxrl.training.train_step import TrainStep

from jaxrl.runtime.devices import get_memory_limit
from jaxrl.sweeps.lanes import change_settings, count_slots

T = TypeVar("T")

PER_LANE_SETTINGS = ("seed", "run_name", "results_dir", "loggers")
"""Settings that differ between lanes of one program."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LaneEnvs:
    """Environments of a lane.

    Args:
        train_env: Training environment, or that of the recorded data.
        eval_env: Evaluation environment, often the same.
    """

    train_env: MadeEnv | MadeMultiEnv | MadeHostEnv
    eval_env: MadeEnv | MadeMultiEnv | MadeHostEnv


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class CompatibleLanes:
    """Lanes that can share a program.

    Args:
        lanes: Lanes, at least one.
        envs: Environments of each lane.
    """

    lanes: list[Lane]
    envs: list[LaneEnvs]

    @property
    def env_params(self) -> list[PyTree]:
        """Parameters of each lane's training environment; empty if there is none to step."""
        made = [envs.train_env for envs in self.envs]
        return [() if isinstance(each, MadeHostEnv) else each.params for each in made]

    def split(self, size: int) -> list["CompatibleLanes"]:
        """Split the lanes into parts of a size; the last part may have fewer."""
        starts = range(0, len(self.lanes), size)
        slices = [slice(start, start + size) for start in starts]
        return [CompatibleLanes(lanes=self.lanes[part], envs=self.envs[part]) for part in slices]

    def find_varying_settings(self) -> set[str]:
        """Return the names of traced settings whose values differ between the lanes."""
        first, *others = [lane.config.get_training_by_module() for lane in self.lanes]
        return {
            name
            for module, settings in first.items()
            for name in get_numeric_hparams(settings)
            if any(vars(other[module])[name] != vars(settings)[name] for other in others)
        }

    def assemble(self, varying: Collection[str]) -> Assembly:
        """Build the functions of the program without the values of settings that differ per lane.

        The learner gets the values of the first lane, which determine the shapes of its state.

        Args:
            varying: Names of the settings that differ between lanes.

        Raises:
            ConfigError: If one of these values is read from the settings.
        """
        first = self.lanes[0].config
        if not varying:
            return assemble(first)
        config = first.copy(copy_frozen=False)
        vars(config)["training_settings"] = mark_per_lane(first.training_settings, varying)
        assembly, settings = assemble(config), first.get_training_by_module()
        if not (assembly.is_in_graph or assembly.is_offline):
            return assembly
        run = change_settings(assembly.run, lambda module, _: settings[module])
        return assembly.with_train_step(cast("TrainStep | MultiLearning", run.learning))


def group_lanes(lanes: Sequence[Lane]) -> list[CompatibleLanes]:
    """Group lanes that can share a program, in the order of the groups' first lanes.

    Raises:
        HostLanesError: If an environment is stepped by host runners.
    """
    cache = _MadeEnvs()
    groups: list[tuple[Any, CompatibleLanes]] = []
    for lane in lanes:
        envs, structure = _make_envs(lane.config, cache), _get_structure(lane.config)
        for other, group in groups:
            if _is_equal(other, structure) and _can_share_program(group.envs[0], envs):
                group.lanes.append(lane)
                group.envs.append(envs)
                break
        else:
            groups.append((structure, CompatibleLanes(lanes=[lane], envs=[envs])))
    return [group for _, group in groups]


def _get_structure(config: "Config") -> dict[str, Any]:
    """Return the settings that shape a program, except those that describe the environment."""
    numbers = get_lane_numbers(config)
    shapes = jax.tree.map(lambda x: x.shape, numbers)
    names = {name for own in numbers.values() for name in own}
    excluded = {*names, *PER_LANE_SETTINGS, "env_config"}
    return {**{n: v for n, v in config.items() if n not in excluded}, "numbers": shapes}


def get_lane_numbers(config: "Config") -> dict[str, HParams]:
    """Return the sweepable settings of each module as leaves, as `get_training_by_module` does."""
    return {m: get_numeric_hparams(own) for m, own in config.get_training_by_module().items()}


def _can_share_program(envs: LaneEnvs, others: LaneEnvs) -> bool:
    """Return whether lanes can share the training and the evaluation program."""
    mine, other = envs.train_env, others.train_env
    if isinstance(mine, MadeHostEnv) or isinstance(other, MadeHostEnv):  # of recorded data
        if not all(map(is_same_space, mine.spaces, other.spaces)):
            return False
    elif not can_share_program(mine, other):
        return False
    ours, theirs = envs.eval_env, others.eval_env
    if not isinstance(ours, MadeHostEnv) and not isinstance(theirs, MadeHostEnv):
        return can_share_program(ours, theirs)
    return type(ours) is type(theirs)  # on the host, every lane has its own runners


class _MadeEnvs:
    """Cache of environments, so that creators are called once for lanes with equal settings."""

    def __init__(self) -> None:
        self._made: list[tuple[Any, Any]] = []

    def get_or_make(self, settings: object, make: Callable[[], T]) -> T:
        """Return the environment cached for equal settings, or make one."""
        key = _tag_types(settings)
        for other, made in self._made:
            if _is_equal(other, key):
                return made
        made = make()
        self._made.append((key, made))
        return made


def _make_envs(config: "Config", cache: _MadeEnvs) -> LaneEnvs:
    described = vars(config.environment_settings)
    if config.is_offline:  # the data may say what there is of an environment
        described = {**described, **vars(config.offline_data_settings)}
    made = cache.get_or_make(described, lambda: _make_training_env(config))
    if isinstance(made, MadeMultiHostEnv) or (
        isinstance(made, MadeHostEnv) and not config.is_offline
    ):
        raise make_host_lanes_error(made)
    changed = config.get_evaluation_config_object()
    assert changed is not None
    settings = {**vars(changed.environment_settings), "evaluated for": made}
    return LaneEnvs(
        train_env=made,
        eval_env=cache.get_or_make(settings, lambda: make_evaluation_env(config, changed, made)),
    )


def _make_training_env(
    config: "Config",
) -> MadeEnv | MadeMultiEnv | MadeHostEnv | MadeMultiHostEnv:
    if config.is_multi_agent:
        return make_multi_agent_env(config.environment_settings, config.multi_agent_settings)
    mode = config.env_runners_settings.gym_env_vectorize_mode
    return prepare_first_task(config.environment_settings, mode, make_env(config))


def make_host_lanes_error(made: MadeEnv | MadeHostEnv | MadeMultiHostEnv) -> HostLanesError:
    """Return the error for an environment whose runs cannot be lanes."""
    return HostLanesError(
        f"{made.id} is stepped by runners on the host, so its runs cannot be lanes of one program: "
        "config.build() runs them as trials."
    )


def check_can_be_lanes(config: "Config", assembly: Assembly, varying: Collection[str]) -> None:
    """Check that runs can be lanes of one program.

    Args:
        config: Config of one of them.
        assembly: Functions that they share.
        varying: Names of the settings that differ between them.

    Raises:
        HostLanesError: If their environments are stepped on the host, or their rows are sent to them.
        ConfigError: If they cannot be trials of their own either.
    """
    if assembly.row_storage != "device":
        if assembly.row_storage == "stream":
            raise make_stream_lanes_error(config)
        raise HostLanesError(
            f"dataset_storage={assembly.row_storage!r} sends rows to each run, so runs cannot be lanes of "
            "one program: config.build() runs them as trials, or set dataset_storage='device'."
        )
    if not (assembly.is_in_graph or assembly.is_offline):
        raise make_host_lanes_error(assembly.made)
    if assembly.is_offline:
        pipeline = assembly.train_step.learner_pipeline
        _check_shared_rewards(config.training_settings, pipeline, varying)


def _check_shared_rewards(
    training: Training, pipeline: LearnerPipeline, varying: Collection[str]
) -> None:
    """Raise if connectors of recorded rewards, of which lanes share a copy, differ between them."""
    values = current_values(build_hparams(training), Progress.zeros())
    differing = sorted(pipeline.find_read_values(values) & set(varying))
    if differing:
        raise HostLanesError(
            f"{' and '.join(pipeline.names)} read {differing[0]}, in which the runs differ, and lanes of "
            "one program share the recorded rewards: config.build() runs them as trials, or leave the "
            "connector out."
        )


def _tag_types(value: object) -> object:
    """Return the value with the type of each part, which distinguishes True, 1 and 1.0."""
    if isinstance(value, Mapping):
        return {name: _tag_types(part) for name, part in cast(Mapping[Any, Any], value).items()}
    if isinstance(value, list | tuple):
        return [type(value), *map(_tag_types, cast(list[Any], value))]
    return type(value), value


def _is_equal(a: object, b: object) -> bool:
    try:
        return bool(a == b)
    except ValueError:  # arrays have no single truth value
        return False


def select_devices(learners: LearnersSettings) -> list[Device]:
    """Return the local devices among which lanes may be divided."""
    devices = jax.local_devices()
    if learners.local_device_idx is not None:
        return [devices[learners.local_device_idx]]
    if learners.num_devices != "auto":
        return devices[: learners.num_devices]
    warn_about_unused_cores(lambda count: count)
    return devices


def check_lane(lane: Lane) -> None:
    """Validate a lane's settings before anything is built.

    Raises:
        ConfigError: If its settings are inconsistent, or cannot hold for several lanes at once.
    """
    lane.config.validate()
    check_lane_storage(lane.config)
    own_class = lane.config.algo_class or Algorithm
    if own_class.training_step is not Algorithm.training_step:
        raise ConfigError(
            f"{own_class.__name__} has a training_step of its own, which cannot be part of a "
            "program of several lanes: write it as compiled_training_step(flow), or train each "
            "lane by itself, e.g. with jaxrl.tune."
        )
    for name in TRAINABLE_METHODS:
        if getattr(own_class, name) is not getattr(Algorithm, name):
            raise ConfigError(
                f"{own_class.__name__} has a {name}() of its own, which is not called for the lanes "
                "of a sweep: write it as callbacks, or train each lane by itself, e.g. with "
                "jaxrl.tune."
            )
    reporting = lane.config.reporting_settings
    if reporting.min_time_s_per_iteration:
        raise ConfigError(
            f"min_time_s_per_iteration={reporting.min_time_s_per_iteration} cannot hold for all "
            "lanes of a sweep at once; use min_sample_timesteps_per_iteration."
        )


def compute_lanes_per_turn(
    num_lanes: int,
    states: int,
    work: int,
    devices: Sequence[Device],
    max_lanes: int | None = None,
    *,
    shared_bytes: int = 0,
) -> int:
    """Compute the number of lanes that each turn trains; the last turn may have fewer.

    The states of all lanes are always in memory, rollouts and targets only those of the current
    turn, each with the copies that give devices equal shares. The memory estimate is a lower bound.

    Args:
        num_lanes: Total number of lanes.
        states: Size in bytes of the state of one lane.
        work: Size in bytes of what a train batch of one lane needs beside it.
        devices: Devices among which the lanes are divided.
        max_lanes: Maximum number of lanes per turn; None for no limit.
        shared_bytes: Size in bytes of what all lanes share, on each device.

    Raises:
        ConfigError: If not even one lane at a time fits into memory.
    """
    fewest_turns = -(-num_lanes // min(num_lanes, max_lanes or num_lanes))
    sizes = [-(-num_lanes // turns) for turns in range(fewest_turns, num_lanes + 1)]
    limit = get_memory_limit(devices[0])
    if limit is None:
        return sizes[0]
    total = limit * (1 if devices[0].platform == "cpu" else len(devices))
    total = max(0, total - shared_bytes * len(devices))
    work = max(1, work)
    for size in sizes:
        slots = count_slots(size, len(devices))
        if -(-num_lanes // size) * slots * states + slots * work <= total:
            return size
    lanes = max(0, (total - work) // states)
    raise ConfigError(
        f"{num_lanes} lanes need at least {(num_lanes * states + work) / 2**30:.1f} GiB "
        f"even one at a time, but only {total / 2**30:.1f} GiB are available: sweep at most "
        f"{lanes} lanes, or lower train_batch_size."
    )
