"""Settings of algorithms with a replay buffer."""

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any, get_args

from jaxrl.buffers.hindsight import ComputeReward, Strategy
from jaxrl.buffers.replay import ReplayBuffer
from jaxrl.compat import lookup
from jaxrl.config.coerce import MismatchError, coerce
from jaxrl.config.fields import (
    Schedule,
    at_least_one,
    check_schedule_points,
    count,
    count_or_zero,
    field,
    non_negative,
    positive,
    step_count,
    unit_interval,
)
from jaxrl.config.imports import REPLAY_BUFFER
from jaxrl.config.settings.training import Auto, Training
from jaxrl.core.hparams import Traced
from jaxrl.errors import ConfigError, did_you_mean

BURN_IN_DOC = (
    "Number of rows before a sequence that a stateful module is unrolled over, without training on "
    "them, to compute its state with the current parameters."
)
UNIFORM, PRIORITIZED, HINDSIGHT = "uniform", "prioritized", "hindsight"
DEVICE, HOST = "device", "host"
_DEFAULTS = {
    "type": UNIFORM,
    "capacity": 50_000,
    "alpha": 0.6,
    "beta": 0.4,
    "storage": DEVICE,
}
"""Values for keys that an algorithm's own default does not set."""
_BUFFER_TYPES = {
    UNIFORM: UNIFORM,
    PRIORITIZED: PRIORITIZED,
    HINDSIGHT: HINDSIGHT,
    "HindsightReplayBuffer": HINDSIGHT,
    "EpisodeReplayBuffer": UNIFORM,
    "ReplayBuffer": UNIFORM,
    "PrioritizedEpisodeReplayBuffer": PRIORITIZED,
    "PrioritizedReplayBuffer": PRIORITIZED,
    **{f"MultiAgent{name}": UNIFORM for name in ("ReplayBuffer", "EpisodeReplayBuffer")},
    "MultiAgentPrioritizedReplayBuffer": PRIORITIZED,
    "MultiAgentPrioritizedEpisodeReplayBuffer": PRIORITIZED,
}
"""Types of buffers by name, including RLlib's class names."""
MAX_N_STEP = 32
APEX_REPLAY_BUFFER = {"type": PRIORITIZED, "capacity": 2_000_000, "alpha": 0.6, "beta": 0.4}
"""Default of the two algorithms of Horgan et al. 2018."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OffPolicyTraining(Training):
    """Settings of algorithms that train from a replay buffer."""

    replay_buffer_config: dict[str, Any] = field(
        default=_DEFAULTS,
        import_path=REPLAY_BUFFER,
        doc="Replay buffer: `type` 'uniform', 'prioritized' or 'hindsight' (RLlib's class names are "
        "accepted), or a class: a subclass of `jaxrl.ReplayBuffer` is compiled, one with RLlib's "
        "methods `add` and `sample` stores and draws transitions on the host; further keys are its "
        "own. "
        "`capacity` in transitions, the exponents `alpha` of the priorities and `beta` of the "
        "importance weights (a number or a schedule) for prioritized sampling, and `storage` on "
        "the learner's 'device' or, with runners on the host, in 'host' memory. 'hindsight' draws "
        "uniformly, or prioritized if `alpha` or `beta` is given, and replaces a `goal_fraction` "
        "(0.8) of the goals by ones achieved within `horizon` rows (the time limit), by the "
        "`strategy` 'future' or 'final'; `compute_reward` stands in for the environment's method. "
        "Omitted keys keep their defaults.",
    )
    num_steps_sampled_before_learning_starts: int = field(
        default=1000,
        check=non_negative,
        doc="Number of transitions in the buffer before the first update.",
    )
    initial_random_timesteps: Traced[int] = field(
        default=0,
        is_counter=True,
        check=step_count,
        doc="Number of environment steps with uniformly random actions at the start.",
    )
    training_intensity: float | None = field(
        default=None,
        check=positive,
        doc="Number of transitions trained on per sampled transition. It must give a whole number "
        "of updates per rollout. None is one update per rollout.",
    )
    n_step: int | tuple[int, int] = field(
        default=1,
        check=count,
        doc="Number of steps of a transition before the bootstrap, or a pair (min, max) between "
        "which it is sampled for each row.",
    )
    target_network_update_freq: int = field(
        default=0,
        check=non_negative,
        doc="Number of environment steps between updates of the target networks; 0 updates them "
        "with every gradient step.",
    )
    tau: Traced[float] = field(
        default=1.0,
        check=unit_interval,
        doc="Weight of the new parameters in an update of the target networks.",
    )
    burn_in_len: int = field(default=0, check=count_or_zero, doc=BURN_IN_DOC)
    zero_init_states: bool = field(
        default=False,
        doc="Whether sequences start from the initial recurrent state instead of the state that "
        "was recorded during the rollout, which the buffer then does not store.",
    )
    store_buffer_in_checkpoints: bool | Auto = field(
        default="auto",
        doc="Whether checkpoints contain the buffer; otherwise a resumed run refills it before it "
        "trains. 'auto' is True up to 1 GiB.",
    )
    max_buffer_bytes: int | Auto = field(
        default="auto",
        check=at_least_one,
        doc="Maximum memory of the buffer over all devices, in bytes; a larger buffer raises an "
        "error before it is allocated. 'auto' is half of the devices' memory.",
    )

    @property
    def starts_sequences_at_zero(self) -> bool:
        return self.zero_init_states


@dataclasses.dataclass(frozen=True, kw_only=True)
class HindsightSettings:
    """Values of `replay_buffer_config` that only the type 'hindsight' has; see `Hindsight`.

    `horizon` is None for the time limit, `compute_reward` for the environment's method.
    """

    goal_fraction: float = 0.8
    horizon: int | None = None
    strategy: Strategy = "future"
    compute_reward: ComputeReward | None = None


_HINDSIGHT_KEYS = tuple(field.name for field in dataclasses.fields(HindsightSettings))


@dataclasses.dataclass(frozen=True, kw_only=True)
class BufferSettings:
    """Complete and validated values of `replay_buffer_config`.

    `buffer_class` is a subclass of ReplayBuffer, and `host_class` another class with RLlib's
    methods; `options` are the keys that only this class has. `hindsight` is None for other types.
    """

    kind: str
    capacity: int
    alpha: float
    beta: float | list[list[float]]
    storage: str
    buffer_class: type[ReplayBuffer] = ReplayBuffer
    host_class: type[Any] | None = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    hindsight: HindsightSettings | None = None


def resolve_buffer_settings(
    given: Mapping[str, Any], defaults: Mapping[str, Any], num_learners: int
) -> BufferSettings:
    """Return the complete and validated buffer settings of a run.

    Args:
        given: `replay_buffer_config` of the run.
        defaults: That of its algorithm.
        num_learners: Number of learner processes.

    Raises:
        ConfigError: If a key is unknown or a value is out of range.
    """
    user_config, default = dict(given), {**_DEFAULTS, **defaults}
    has_class = isinstance(user_config.get("type"), type)  # which may have keys of any name
    if not has_class and not user_config.keys() <= {*default, *_HINDSIGHT_KEYS}:
        user_config = lookup.load("rllib.settings").rename_buffer_keys(user_config)
    merged = {**default, **user_config}
    buffer_type = merged["type"]
    own_class = buffer_type if isinstance(buffer_type, type) else None
    named = _BUFFER_TYPES.get(buffer_type) if isinstance(buffer_type, str) else None
    own_keys = list(_HINDSIGHT_KEYS) if named == HINDSIGHT else []
    if own_class is not None:
        own_keys = _get_own_keys(own_class)
    for key in user_config:
        if key not in default and key not in own_keys:
            known = [*default, *own_keys]
            lookup.load("rllib.settings").check_buffer_key(key, user_config[key])
            if key in _HINDSIGHT_KEYS and named is not None:
                raise ConfigError(
                    f"replay_buffer_config[{key!r}]={user_config[key]!r} has no effect on "
                    f"{named} replay; leave it out, or set 'type' to {HINDSIGHT!r}."
                )
            raise ConfigError(
                f"replay_buffer_config has {key!r}, but its settings are {', '.join(known)}."
                f"{did_you_mean(key, known)}"
            )
    settings = BufferSettings(
        kind=UNIFORM,
        capacity=_parse_count("capacity", merged["capacity"], "transitions"),
        alpha=_parse_exponent("alpha", merged["alpha"], float),
        beta=_parse_exponent("beta", merged["beta"], Schedule),
        storage=_parse_storage(merged["storage"], num_learners),
        options={key: value for key, value in user_config.items() if key in own_keys},
    )
    if own_class is not None and issubclass(own_class, ReplayBuffer):
        is_prioritized = default["type"] == PRIORITIZED or {"alpha", "beta"} & user_config.keys()
        kind = PRIORITIZED if is_prioritized else UNIFORM
        return dataclasses.replace(settings, kind=kind, buffer_class=own_class)
    if own_class is not None:
        _check_host_class(own_class, user_config, num_learners)
        return dataclasses.replace(settings, storage=HOST, host_class=own_class)
    if named is None:
        raise ConfigError(
            "replay_buffer_config['type'] must be 'uniform', 'prioritized', 'hindsight' or a class, "
            f"got {buffer_type!r}.{did_you_mean(str(buffer_type), _BUFFER_TYPES)}"
        )
    if named == HINDSIGHT:
        kind = PRIORITIZED if {"alpha", "beta"} & user_config.keys() else UNIFORM
        hindsight = _parse_hindsight(settings.options)
        return dataclasses.replace(settings, kind=kind, options={}, hindsight=hindsight)
    if named == UNIFORM:
        _check_no_exponents(user_config, default)
    return dataclasses.replace(settings, kind=named)


def _parse_hindsight(given: Mapping[str, Any]) -> HindsightSettings:
    """Return the settings of hindsight replay.

    Raises:
        ConfigError: If a value is out of range.
    """
    settings = HindsightSettings(**given)
    fraction = _parse_exponent("goal_fraction", settings.goal_fraction, float)
    horizon, strategy, function = settings.horizon, settings.strategy, settings.compute_reward
    if horizon is not None:
        horizon = _parse_count("horizon", horizon, "rows")
    if strategy not in get_args(Strategy):
        raise ConfigError(
            f"replay_buffer_config['strategy'] must be 'future' or 'final', got {strategy!r}."
            f"{did_you_mean(str(strategy), get_args(Strategy))}"
        )
    if function is not None and not callable(function):
        raise ConfigError(
            "replay_buffer_config['compute_reward'] must be a function (achieved_goal, "
            "desired_goal, params) -> (reward, terminated), or its import path 'module:name', got "
            f"{function!r}."
        )
    return dataclasses.replace(settings, goal_fraction=fraction, horizon=horizon)


def _get_own_keys(own_class: type[Any]) -> list[str]:
    """Return the keys of `replay_buffer_config` that only a user's class has."""
    if issubclass(own_class, ReplayBuffer):
        inherited = {field.name for field in dataclasses.fields(ReplayBuffer)}
        return [f.name for f in dataclasses.fields(own_class) if f.name not in inherited]
    parameters = inspect.signature(own_class).parameters.values()
    named = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return [name for name in named if name not in ("capacity", "seed", "type", "storage")]


def _check_host_class(own_class: type[Any], given: dict[str, Any], num_learners: int) -> None:
    """Check a class with RLlib's methods.

    Raises:
        ConfigError: If methods are missing, or a setting does not go with it.
    """
    name = own_class.__name__
    missing = [m for m in ("add", "sample", "__len__") if not callable(getattr(own_class, m, None))]
    if missing:
        raise ConfigError(
            f"replay_buffer_config['type']={name} must be a subclass of jaxrl.ReplayBuffer, or have "
            f"the methods add(batch), sample(num_items) and __len__(); it has no "
            f"{' and no '.join(missing)}."
        )
    if "capacity" not in inspect.signature(own_class).parameters:
        raise ConfigError(
            f"replay_buffer_config['type']={name} must take its size as capacity=..., got "
            f"{name}{inspect.signature(own_class)}."
        )
    if given.get("storage") == DEVICE:
        raise ConfigError(
            f"replay_buffer_config['storage']='device' cannot hold {name}, whose methods run in "
            "Python; leave it out, or subclass jaxrl.ReplayBuffer."
        )
    for exponent in ("alpha", "beta"):
        if exponent in given and exponent not in inspect.signature(own_class).parameters:
            raise ConfigError(
                f"replay_buffer_config[{exponent!r}]={given[exponent]!r} has no effect on {name}, "
                "which does not take it; leave it out."
            )
    _parse_storage(HOST, num_learners)


def _parse_storage(value: object, num_learners: int) -> str:
    if value not in (DEVICE, HOST):
        hint = did_you_mean(str(value), (DEVICE, HOST))
        raise ConfigError(
            f"replay_buffer_config['storage'] must be 'device' or 'host', got {value!r}.{hint}"
        )
    if value == HOST and num_learners > 0:
        raise ConfigError(
            "replay_buffer_config['storage']='host' requires a learner in this process, got "
            f"num_learners={num_learners}, whose buffers are on their "
            "devices; set num_learners=0, or 'storage' to 'device'."
        )
    return value


def _parse_count(name: str, value: object, unit: str) -> int:
    try:
        number = coerce(value, int)
    except MismatchError:
        number = 0
    if number < 1:
        raise ConfigError(
            f"replay_buffer_config[{name!r}] must be a whole number of {unit} above 0, got "
            f"{value!r}."
        )
    return number


def _parse_exponent(name: str, value: object, annotation: Any) -> Any:
    """Return a number between 0 and 1 or, if the annotation allows it, a schedule of them."""
    name = f"replay_buffer_config[{name!r}]"
    schedule = (
        " or a schedule [[timestep, value], ...] of such numbers" if annotation is Schedule else ""
    )
    message = f"{name} must be between 0 and 1{schedule}, got {value!r}."
    try:
        exponent: Schedule = coerce(value, annotation)
    except MismatchError:
        raise ConfigError(message) from None
    check_schedule_points(name, exponent)
    values = [knot[1] for knot in exponent] if isinstance(exponent, list) else [exponent]
    if not all(0 <= number <= 1 for number in values):
        raise ConfigError(message)
    return exponent


def _check_no_exponents(given: dict[str, Any], default: dict[str, Any]) -> None:
    for name in ("alpha", "beta"):
        if given.get(name, default[name]) != default[name]:
            raise ConfigError(
                f"replay_buffer_config[{name!r}]={given[name]!r} has no effect on uniform "
                "sampling; leave it out, or set 'type' to 'prioritized'."
            )


def parse_n_step(setting: int | tuple[int, int]) -> tuple[int, int]:
    """Return the minimum and maximum of the setting `n_step`.

    Raises:
        ConfigError: If the setting is not a range of numbers from 1 to `MAX_N_STEP`.
    """
    low, high = setting if isinstance(setting, tuple) else (setting, setting)
    if not 1 <= low <= high <= MAX_N_STEP:
        raise ConfigError(
            f"n_step must be a number from 1 to {MAX_N_STEP} or an ascending pair of them, got "
            f"{setting!r}."
        )
    return low, high
