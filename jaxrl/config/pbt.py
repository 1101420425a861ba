"""Scheduler of population based training for `sweep(scheduler=...)`, with Ray Tune's arguments."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from jaxrl.config.imports import Trust
from jaxrl.config.markers import Marker, as_marker, is_tune_marker, marker_from_data
from jaxrl.core.types import Counter
from jaxrl.errors import ConfigError, UnknownNameError, did_you_mean
from jaxrl.metrics import (
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    NUM_ENV_STEPS_TRAINED_LIFETIME,
    RENAMED_KEYS,
    TRAINING_ITERATION,
    check_key,
)

if TYPE_CHECKING:
    from jaxrl.config.names import NameTable
    from jaxrl.learners.learner import LearnerState

TIME_ATTRS = (TRAINING_ITERATION, NUM_ENV_STEPS_SAMPLED_LIFETIME, NUM_ENV_STEPS_TRAINED_LIFETIME)
"""Result keys that may measure time; the last one in runs from recorded data, which sample nothing."""

DEFAULT_METRIC = "env_runners/episode_return_mean"
"""Result key by which lanes are compared if none is given."""

_FIXED_ARGUMENTS: dict[str, tuple[tuple[Any, ...], str]] = {
    "synch": ((True,), "all lanes are always at the same iteration"),
    "custom_explore_fn": ((None,), "hyperparam_mutations defines how values change"),
    "log_config": ((True,), "the schedule is always written"),
    "require_attrs": ((False,), "a lane is left unchanged until it reports the metric"),
}
"""Ray's arguments with a fixed meaning here: accepted values, and why others are refused."""


@dataclasses.dataclass(frozen=True, init=False)
class PopulationBasedTraining:
    """Population based training, with the arguments of Ray Tune's synchronous scheduler.

    Jaderberg et al. 2017, https://arxiv.org/abs/1711.09846. Every `perturbation_interval`, each of
    the worst lanes copies the state of one of the best and continues with randomly perturbed
    hyperparameters.

    Attributes:
        hyperparam_mutations: Numeric settings of `training()`, each with the distribution of its
            values: a list of values, `uniform(low, high)`, `loguniform(low, high)`, or Ray Tune's
            functions of the same names.
        time_attr: Result key that measures time: "training_iteration",
            "num_env_steps_sampled_lifetime" or, for recorded data,
            "num_env_steps_trained_lifetime".
        metric: Result key by which lanes are compared.
        mode: Whether a high ("max") or a low ("min") metric is better.
        perturbation_interval: Time between two rounds, in units of `time_attr`.
        burn_in_period: Time before the first round, in units of `time_attr`.
        quantile_fraction: Fraction of the lanes that is replaced, and of those that are copied.
        resample_probability: Probability of sampling a new value instead of perturbing the old one.
        perturbation_factors: Factors, one of which multiplies a perturbed value; a value from a
            list is replaced by a neighbor in the list instead.
    """

    hyperparam_mutations: dict[str, Marker]
    time_attr: str
    metric: str
    mode: str
    perturbation_interval: float
    burn_in_period: float
    quantile_fraction: float
    resample_probability: float
    perturbation_factors: tuple[float, ...]

    def __init__(
        self,
        *,
        hyperparam_mutations: Mapping[str, Any] | None = None,
        time_attr: str = "training_iteration",
        metric: str = DEFAULT_METRIC,
        mode: str = "max",
        perturbation_interval: float = 10,
        burn_in_period: float = 0,
        quantile_fraction: float = 0.25,
        resample_probability: float = 0.25,
        perturbation_factors: tuple[float, ...] | list[float] = (1.2, 0.8),
        **others: object,
    ) -> None:
        _check_other_arguments(others, [field.name for field in dataclasses.fields(self)])
        fields: dict[str, Any] = {
            "hyperparam_mutations": _parse_distributions(hyperparam_mutations),
            "time_attr": _require_choice(
                "time_attr", _require_key("time_attr", time_attr), TIME_ATTRS
            ),
            "metric": _require_key("metric", metric),
            "mode": _require_choice("mode", mode, ("max", "min")),
            "perturbation_interval": _require_number(
                "perturbation_interval", perturbation_interval
            ),
            "burn_in_period": _require_number("burn_in_period", burn_in_period, least=0.0),
            "quantile_fraction": _require_number("quantile_fraction", quantile_fraction, most=0.5),
            "resample_probability": _require_number(
                "resample_probability", resample_probability, least=0.0, most=1.0
            ),
            "perturbation_factors": _parse_factors(perturbation_factors),
        }
        check_key(fields["metric"], "metric of PopulationBasedTraining")
        for name, value in fields.items():
            object.__setattr__(self, name, value)


def make_scheduler(
    given: "PopulationBasedTraining | Mapping[str, Any] | None",
) -> PopulationBasedTraining | None:
    """Return the scheduler of a sweep, made of its arguments if they are given as a mapping.

    Raises:
        ConfigError: If an argument is invalid.
        UnknownNameError: If there is no such argument.
    """
    if given is None or isinstance(given, PopulationBasedTraining):
        return given
    return PopulationBasedTraining(**{str(name): value for name, value in given.items()})


def parse_mutations(
    table: "NameTable", trust: Trust, scheduler: PopulationBasedTraining | None
) -> dict[str, Marker]:
    """Return the settings that a scheduler changes, each with its parsed distribution.

    Args:
        table: Settings of the config.
        trust: Imports by name that the config may make.
        scheduler: The scheduler, None if there is none.

    Raises:
        UnknownNameError: If a setting does not exist.
        ConfigError: If a setting is not traced, or a value is invalid for it.
    """
    mutations: dict[str, Marker] = {}
    for name, marker in ({} if scheduler is None else scheduler.hyperparam_mutations).items():
        current = table.find_current_name(name)
        numbers = [n for n, s in table.groups["training_settings"].items() if s.sweepable]
        if current is None:
            hint = did_you_mean(name, numbers)
            raise UnknownNameError(
                f"hyperparam_mutations names '{name}', which is not a setting.{hint}"
            )
        if current not in numbers:
            raise ConfigError(
                f"hyperparam_mutations cannot change {current}, got {marker!r}: it is not a traced "
                f"setting; those are {', '.join(numbers)}."
            )
        setting = table.get_setting(current)
        marker = _require_numbers(
            current, marker.map_values(functools.partial(setting.parse, trust=trust))
        )
        if setting.off is not None and setting.off in marker.values:
            raise ConfigError(
                f"hyperparam_mutations['{current}'] has {setting.off:g}, which is another program than "
                f"other values, got {marker!r}: leave it out."
            )
        mutations[current] = marker
    return mutations


def _require_numbers(name: str, marker: Marker) -> Marker:
    if not all(_is_number(value) for value in marker.values):
        raise ConfigError(
            f"hyperparam_mutations['{name}'] must have numbers to choose from, got {marker!r}."
        )
    return marker


def check_mutable(mutations: Mapping[str, Marker], learner: "LearnerState") -> None:
    """Raise if a mutated setting is not a number in the learner state, or only an initial value.

    Args:
        mutations: Distributions by setting.
        learner: Initial learner state of the first lane, or its shapes.

    Raises:
        ConfigError: If a setting cannot be mutated.
    """
    adapted = {field.name for field in dataclasses.fields(learner)}
    for name, marker in mutations.items():
        value = learner.hparams.get(name)
        if name in adapted:
            why = "the learner adapts it during training; only its initial value is configurable"
        elif not (hasattr(value, "shape") or isinstance(value, Counter)):
            why = "its initial value is None, off, a schedule or a function; set a number"
        else:
            continue
        raise ConfigError(f"hyperparam_mutations cannot change {name}, got {marker!r}: {why}.")


def _check_other_arguments(others: Mapping[str, object], known: list[str]) -> None:
    for name, value in others.items():
        if name not in _FIXED_ARGUMENTS:
            hint = did_you_mean(name, known)
            raise UnknownNameError(
                f"PopulationBasedTraining has no argument '{name}' (got {value!r}).{hint}"
            )
        accepted, why = _FIXED_ARGUMENTS[name]
        if value not in accepted:
            raise ConfigError(
                f"{name} must be {accepted[0]!r}, got {value!r}, since {why}; leave it out."
            )


def _require_key(name: str, value: object) -> str:
    """Return a result key, as it is called now."""
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a result key, got {value!r}.")
    return RENAMED_KEYS.get(value, value)


def _require_choice(name: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        words = " or ".join(map(repr, known))
        raise ConfigError(f"{name} must be {words}, got {value!r}.{did_you_mean(value, known)}")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _require_number(
    name: str, value: float, *, least: float | None = None, most: float = math.inf
) -> float:
    """Return a finite number that is above 0 (or at least `least`) and at most `most`.

    Raises:
        ConfigError: If the value is not such a number.
    """
    is_valid = (
        _is_number(value) and (value > 0 if least is None else value >= least) and value <= most
    )
    if not is_valid:
        low = "above 0" if least is None else f"at least {least:g}"
        high = "" if most == math.inf else f" and at most {most:g}"
        raise ConfigError(f"{name} must be a number {low}{high}, got {value!r}.")
    return value


def _parse_factors(values: object) -> tuple[float, ...]:
    factors = tuple(cast(list[Any], values)) if isinstance(values, list | tuple) else ()
    if not factors or not all(_is_number(x) and x > 0 for x in factors):
        raise ConfigError(
            f"perturbation_factors must be numbers above 0, such as (1.2, 0.8), got {values!r}."
        )
    return factors


def _parse_distributions(mutations: object) -> dict[str, Marker]:
    if not isinstance(mutations, Mapping) or not mutations:
        raise ConfigError(
            "hyperparam_mutations must map settings to distributions of their values, such as "
            f"{{'lr': loguniform(1e-5, 1e-2)}}, got {mutations!r}."
        )
    given = cast(Mapping[str, Any], mutations)
    return {name: _parse_distribution(name, value) for name, value in given.items()}


def _parse_distribution(name: str, value: object) -> Marker:
    """Return the distribution of a setting's values: bounds of a (log-)uniform one, or a choice."""
    if is_tune_marker(value) and not isinstance(value, Mapping):
        value = _convert_ray_domain(value)
    if isinstance(value, list | tuple | Mapping):
        data: object = list(cast(Any, value)) if isinstance(value, tuple) else value
        value = as_marker(value) or marker_from_data(data, name)
    if not isinstance(value, Marker):
        raise ConfigError(
            f"hyperparam_mutations['{name}'] must be a list of values, uniform(low, high) or "
            f"loguniform(low, high), got {value!r}."
        )
    return Marker("choice", value.values) if value.kind in ("grid", "choice") else value


def _convert_ray_domain(domain: Any) -> object:
    """Convert a search space of Ray Tune to a marker's data; return others unchanged."""
    if hasattr(domain, "categories"):
        return list(domain.categories)
    sampler = type(domain.get_sampler()).__name__.lstrip("_").lower()
    if sampler in ("uniform", "loguniform") and type(domain).__name__ == "Float":
        return {sampler: [domain.lower, domain.upper]}
    return domain
