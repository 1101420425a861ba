"""Settings of the algorithms that learn from a replay buffer."""

import dataclasses
from typing import TYPE_CHECKING, Any

from jaxrl.config.coerce import MismatchError, coerce
from jaxrl.config.fields import (
    Schedule,
    at_least_one,
    check_knots,
    count,
    count_or_zero,
    field,
    non_negative,
    positive,
    steps,
    unit_interval,
)
from jaxrl.config.settings.training import Auto, Training
from jaxrl.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

UNIFORM, PRIORITIZED = "uniform", "prioritized"
DEVICE, HOST = "device", "host"
_DEFAULTS = {
    "type": UNIFORM,
    "capacity": 50_000,
    "alpha": 0.6,
    "beta": 0.4,
    "storage": DEVICE,
}
"""Of what an algorithm's own default leaves out."""
_TYPES = {
    UNIFORM: UNIFORM,
    PRIORITIZED: PRIORITIZED,
    "EpisodeReplayBuffer": UNIFORM,
    "ReplayBuffer": UNIFORM,
    "PrioritizedEpisodeReplayBuffer": PRIORITIZED,
    "PrioritizedReplayBuffer": PRIORITIZED,
}
"""The types of buffers, RLlib's names among them."""
MAX_N_STEP = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class OffPolicyTraining(Training):
    """What algorithms have that learn from a replay buffer."""

    replay_buffer_config: dict[str, Any] = field(
        default=_DEFAULTS,
        doc="The buffer: `type` 'uniform' or 'prioritized' (RLlib's class names are understood), "
        "`capacity` in transitions, for prioritised draws the exponents `alpha` of the "
        "priorities and `beta` of the importance weights, a number or a schedule, and `storage` on "
        "the learner's 'device' or, with runners on the host, in memory of the 'host'. What is "
        "left out keeps its default.",
    )
    num_steps_sampled_before_learning_starts: int = field(
        default=1000,
        check=non_negative,
        doc="Transitions that are in the buffer before the first update.",
    )
    initial_random_timesteps: int = field(
        default=0,
        sweepable=True,
        is_counter=True,
        check=steps,
        doc="Environment steps at the start of which the actions are uniformly random.",
    )
    training_intensity: float | None = field(
        default=None,
        check=positive,
        doc="Transitions learned from for each one sampled; updates for each rollout follow from "
        "it, exactly or not at all. None is one update for each rollout.",
    )
    n_step: int | tuple[int, int] = field(
        default=1,
        check=count,
        doc="Steps of a transition before the bootstrap, or a pair (least, most), between which it "
        "is drawn for each row.",
    )
    target_network_update_freq: int = field(
        default=0,
        check=non_negative,
        doc="Environment steps between two updates of the target networks; 0 is with every "
        "gradient step.",
    )
    tau: float = field(
        default=1.0,
        sweepable=True,
        check=unit_interval,
        doc="Share of the new parameters in an update of the target networks.",
    )
    burn_in_len: int = field(
        default=0,
        check=count_or_zero,
        doc="Rows before those of a sequence that a module which remembers learns from, to find its "
        "state by the present parameters.",
    )
    zero_init_states: bool = field(
        default=False,
        doc="Sequences begin without memory, instead of with what was remembered when acting, "
        "which the buffer then need not hold.",
    )
    store_buffer_in_checkpoints: bool | Auto = field(
        default="auto",
        doc="Whether checkpoints hold the buffer, without which a resumed run fills it anew before "
        "it learns; 'auto' is True up to 1 GiB.",
    )
    max_buffer_bytes: int | Auto = field(
        default="auto",
        check=at_least_one,
        doc="Memory that the buffer may take on all devices together; a larger one is refused "
        "before it is allocated. 'auto' is half of what the devices have.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BufferSettings:
    """`replay_buffer_config`, complete and checked."""

    type: str
    capacity: int
    alpha: float
    beta: float | list[list[float]]
    storage: str


def buffer_settings(config: "AlgorithmConfig") -> BufferSettings:
    """What the buffer of a config is.

    Raises:
        ConfigError: An unknown key, or a value out of range; one sentence.
    """
    given = config.training_settings.replay_buffer_config
    default = {**_DEFAULTS, **type(config).training_settings.replay_buffer_config}
    for key in given:
        if key not in default:
            raise ConfigError(
                f"replay_buffer_config has {key!r}, but its settings are {', '.join(default)}."
                f"{did_you_mean(key, default)}"
            )
    merged = {**default, **given}
    kind = merged["type"]
    if not isinstance(kind, str) or kind not in _TYPES:
        raise ConfigError(
            f"replay_buffer_config['type'] must be 'uniform' or 'prioritized', got {kind!r}."
            f"{did_you_mean(str(kind), _TYPES)}"
        )
    if _TYPES[kind] == UNIFORM:
        _refuse_exponents(given, default)
    return BufferSettings(
        type=_TYPES[kind],
        capacity=_capacity(merged["capacity"]),
        alpha=_exponent("alpha", merged["alpha"], float),
        beta=_exponent("beta", merged["beta"], Schedule),
        storage=_storage(config, merged["storage"]),
    )


def _storage(config: "AlgorithmConfig", value: Any) -> str:
    if value not in (DEVICE, HOST):
        hint = did_you_mean(str(value), (DEVICE, HOST))
        raise ConfigError(
            f"replay_buffer_config['storage'] must be 'device' or 'host', got {value!r}.{hint}"
        )
    if value == HOST and config.learners_settings.num_learners > 0:
        raise ConfigError(
            "replay_buffer_config['storage']='host' is for learning in this process, got "
            f"num_learners={config.learners_settings.num_learners}, whose buffers are on their "
            "devices; set num_learners=0, or 'storage' to 'device'."
        )
    return value


def _capacity(value: Any) -> int:
    try:
        capacity: int = coerce(value, int)
    except MismatchError:
        capacity = 0
    if capacity < 1:
        raise ConfigError(
            "replay_buffer_config['capacity'] must be a whole number of transitions above 0, got "
            f"{value!r}."
        )
    return capacity


def _exponent(name: str, value: Any, annotation: Any) -> Any:
    """A number between 0 and 1 or, if the annotation says so, a schedule of such."""
    name = f"replay_buffer_config[{name!r}]"
    schedule = " or a schedule [[timestep, value], ...] of such" if annotation is Schedule else ""
    wanted = f"{name} must be between 0 and 1{schedule}, got {value!r}."
    try:
        exponent = coerce(value, annotation)
    except MismatchError:
        raise ConfigError(wanted) from None
    check_knots(name, exponent)
    values = [knot[1] for knot in exponent] if isinstance(exponent, list) else [exponent]
    if not all(0 <= number <= 1 for number in values):
        raise ConfigError(wanted)
    return exponent


def _refuse_exponents(given: dict[str, Any], default: dict[str, Any]) -> None:
    for name in ("alpha", "beta"):
        if given.get(name, default[name]) != default[name]:
            raise ConfigError(
                f"replay_buffer_config[{name!r}]={given[name]!r} has no effect on uniform draws; "
                "leave it out, or set 'type' to 'prioritized'."
            )


def n_step_range(setting: int | tuple[int, int]) -> tuple[int, int]:
    """The least and the most steps.

    Raises:
        ConfigError: They are no range, or more than 32.
    """
    low, high = setting if isinstance(setting, tuple) else (setting, setting)
    if not 1 <= low <= high <= MAX_N_STEP:
        raise ConfigError(
            f"n_step must be a number from 1 to {MAX_N_STEP} or an ascending pair of them, got "
            f"{setting!r}."
        )
    return low, high
