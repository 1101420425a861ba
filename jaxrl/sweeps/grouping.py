"""Which lanes can share a program: those that differ in nothing but numbers that are its arguments."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import jax

from jaxrl.assembly.assemble import Assembly, assemble, make_env
from jaxrl.assembly.env_params import share_a_program
from jaxrl.config.sweep import Lane
from jaxrl.core.hparams import numbers_of, per_lane_settings
from jaxrl.core.types import Device, PyTree
from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.registry import MadeEnv
from jaxrl.errors import ConfigError, HostLanesError
from jaxrl.evaluation.evaluation import evaluation_env
from jaxrl.runtime.devices import warn_of_lost_devices

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

from jaxrl.runners.placement import required_bytes, state_bytes
from jaxrl.runtime.devices import memory_limit

T = TypeVar("T")

OWN_NAMES = ("seed", "run_name", "results_dir", "loggers")
"""Settings that differ between lanes of one program."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LaneEnvs:
    """What a lane plays in.

    Args:
        trained: The environment of training.
        evaluated: That of evaluation, often the same.
    """

    trained: MadeEnv
    evaluated: MadeEnv | MadeHostEnv


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Sharing:
    """Lanes that can share a program.

    Args:
        lanes: One or more.
        envs: Of each.
    """

    lanes: list[Lane]
    envs: list[LaneEnvs]

    @property
    def env_params(self) -> list[PyTree]:
        """Of each lane's environment."""
        return [envs.trained.params for envs in self.envs]

    def parts(self, size: int) -> list["Sharing"]:
        """The lanes in parts of so many, the last of which may have fewer."""
        starts = range(0, len(self.lanes), size)
        places = [slice(start, start + size) for start in starts]
        return [Sharing(lanes=self.lanes[place], envs=self.envs[place]) for place in places]

    def numbers(self) -> set[str]:
        """The traced settings of which the lanes have different values."""
        settings = [lane.config.training_settings for lane in self.lanes]
        names = numbers_of(settings[0])
        return {n for n in names if any(vars(s)[n] != vars(settings[0])[n] for s in settings)}

    def assemble(self, numbers: Collection[str]) -> Assembly:
        """The functions of the program, built without the numbers that its lanes have of their own.

        Its learner has those of the first lane, for the shapes of its state.

        Args:
            numbers: The names of those numbers.

        Raises:
            ConfigError: Something reads one of them from the settings.
        """
        first = self.lanes[0].config
        if not numbers:
            return assemble(first)
        config = first.copy(copy_frozen=False)
        vars(config)["training_settings"] = per_lane_settings(first.training_settings, numbers)
        assembly = assemble(config)
        runner = assembly.runner
        learner = dataclasses.replace(runner.learner, settings=first.training_settings)
        return dataclasses.replace(assembly, runner=dataclasses.replace(runner, learner=learner))


def grouped(lanes: Sequence[Lane]) -> list[Sharing]:
    """The lanes that can share a program, group by group, in the order of their first lanes.

    Raises:
        HostLanesError: An environment is stepped by runners on the host.
    """
    known = _Known()
    groups: list[tuple[Any, Sharing]] = []
    for lane in lanes:
        envs, structure = _envs_of(lane.config, known), _structure(lane.config)
        for other, group in groups:
            if _equal(other, structure) and _fit(group.envs[0], envs):
                group.lanes.append(lane)
                group.envs.append(envs)
                break
        else:
            groups.append((structure, Sharing(lanes=[lane], envs=[envs])))
    return [group for _, group in groups]


def _structure(config: "AlgorithmConfig") -> dict[str, Any]:
    """Settings that shape a program, without those that only say what the environment is."""
    numbers = numbers_of(config.training_settings)
    shapes = jax.tree.map(lambda x: x.shape, numbers)
    left_out = {*numbers, *OWN_NAMES, "env_config"}
    return {**{n: v for n, v in config.items() if n not in left_out}, "numbers": shapes}


def _fit(envs: LaneEnvs, others: LaneEnvs) -> bool:
    """Whether one program trains in both, and one evaluates in both."""
    if not share_a_program(envs.trained, others.trained):
        return False
    ours, theirs = envs.evaluated, others.evaluated
    if isinstance(ours, MadeEnv) and isinstance(theirs, MadeEnv):
        return share_a_program(ours, theirs)
    return type(ours) is type(theirs)  # on the host every lane has runners of its own


class _Known:
    """What was made, by what it was made of: creators are called once for lanes with equal settings."""

    def __init__(self) -> None:
        self._made: list[tuple[Any, Any]] = []

    def get(self, settings: Any, make: Callable[[], T]) -> T:
        """What was made of equal settings, or else is made now."""
        key = _typed(settings)
        for other, made in self._made:
            if _equal(other, key):
                return made
        made = make()
        self._made.append((key, made))
        return made


def _envs_of(config: "AlgorithmConfig", known: _Known) -> LaneEnvs:
    made = known.get(vars(config.environment_settings), lambda: make_env(config))
    if isinstance(made, MadeHostEnv):
        raise on_the_host(made)
    changed = config.get_evaluation_config_object()
    assert changed is not None
    settings = {**vars(changed.environment_settings), "evaluated for": made}
    return LaneEnvs(
        trained=made,
        evaluated=known.get(settings, lambda: evaluation_env(config, changed, made)),
    )


def on_the_host(made: MadeEnv | MadeHostEnv) -> HostLanesError:
    """Says that runs in this environment cannot be lanes."""
    return HostLanesError(
        f"{made.id} is stepped by runners on the host, so its runs cannot be lanes of one program: "
        "config.build() makes trials of them."
    )


def _typed(value: Any) -> Any:
    """The value with the type of each part, which keeps True, 1 and 1.0 apart."""
    if isinstance(value, Mapping):
        return {name: _typed(part) for name, part in cast(Mapping[Any, Any], value).items()}
    if isinstance(value, list | tuple):
        return [type(value), *map(_typed, cast(list[Any], value))]
    return type(value), value


def _equal(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except ValueError:  # arrays, which do not say
        return False


def devices_of(config: "AlgorithmConfig") -> list[Device]:
    """The local devices that may share lanes."""
    devices, learners = jax.local_devices(), config.learners_settings
    if learners.local_device_idx is not None:
        return [devices[learners.local_device_idx]]
    if learners.num_devices != "auto":
        return devices[: learners.num_devices]
    warn_of_lost_devices(lambda count: count)
    return devices


def check_lane(lane: Lane) -> None:
    """Refuse, before anything is built, a lane that could not run.

    Raises:
        ConfigError: Its settings do not fit together, or cannot be kept by several lanes at once.
    """
    lane.config.validate()
    reporting = lane.config.reporting_settings
    if reporting.min_time_s_per_iteration:
        raise ConfigError(
            f"min_time_s_per_iteration={reporting.min_time_s_per_iteration} cannot be kept by all "
            "lanes of a sweep at once; use min_sample_timesteps_per_iteration."
        )


def lanes_at_once(
    number: int, assembly: Assembly, devices: Sequence[Device], most: int | None = None
) -> int:
    """The lanes that each of several turns trains; the last turn may have fewer.

    The states of all lanes are there at any moment, rollouts and targets of those alone that it is
    the turn of. What is estimated is a lower bound.

    Args:
        number: Of all lanes.
        assembly: Of one of them.
        devices: That share them.
        most: Lanes at once, at most; None for any number.

    Raises:
        ConfigError: Not even one lane at a time fits.
    """
    fit, limit = number, memory_limit(devices[0])
    if limit is not None:
        total = limit * (1 if devices[0].platform == "cpu" else len(devices))
        states = state_bytes(assembly)
        work = max(1, required_bytes(assembly) - states)
        fit = (total - number * states) // work
        if fit < 1:
            lanes = max(0, (total - work) // states)
            raise ConfigError(
                f"{number} lanes need at least {(number * states + work) / 2**30:.1f} GiB, one at a "
                f"time, and there are {total / 2**30:.1f} GiB: sweep at most {lanes} lanes, or "
                "lower train_batch_size."
            )
    turns = -(-number // min(number, fit, most or number))
    return -(-number // turns)
