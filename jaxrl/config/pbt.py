"""Population based training: what `sweep(scheduler=...)` takes, under Ray Tune's names."""

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from jaxrl.config.markers import is_marker
from jaxrl.config.sweep import Marker, as_marker, marker_from_data
from jaxrl.core.types import Counter
from jaxrl.errors import ConfigError, UnknownNameError, did_you_mean
from jaxrl.metrics import OLD_KEYS, check_key

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

TIMES = ("training_iteration", "num_env_steps_sampled_lifetime")
"""What all lanes have the same amount of at any moment."""

_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "synch": ((True,), "all lanes are at the same iteration at any moment"),
    "custom_explore_fn": ((None,), "hyperparam_mutations says how values change"),
    "log_config": ((True,), "the schedule is always written"),
    "require_attrs": ((False,), "a lane without the metric is left alone until it has it"),
}
"""Arguments of Ray's that have one meaning here: what is accepted, and why nothing else is."""


@dataclasses.dataclass(frozen=True, init=False)
class PopulationBasedTraining:
    """Jaderberg et al. 2017, https://arxiv.org/abs/1711.09846, as Ray Tune's synchronous scheduler.

    Every `perturbation_interval` the worst lanes go on as copies of some of the best, with
    hyperparameters changed at random.

    Attributes:
        hyperparam_mutations: Numbers of `training()` and where their values come from: a list of
            values, `uniform(low, high)`, `loguniform(low, high)`, or Ray Tune's of the same names.
        time_attr: What the interval counts: "training_iteration" or
            "num_env_steps_sampled_lifetime".
        metric: The result key by which lanes are compared.
        mode: Whether "max" or "min" of it is best.
        perturbation_interval: Of `time_attr`, between two rounds.
        burn_in_period: Of `time_attr`, before the first round.
        quantile_fraction: The share of lanes that is replaced, and of those that are copied.
        resample_probability: That a value is drawn anew instead of changed.
        perturbation_factors: One of them multiplies a value that is changed; a value of a list
            gives way to a neighbour instead.
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
        metric: str = "env_runners/episode_return_mean",
        mode: str = "max",
        perturbation_interval: float = 10,
        burn_in_period: float = 0,
        quantile_fraction: float = 0.25,
        resample_probability: float = 0.25,
        perturbation_factors: tuple[float, ...] | list[float] = (1.2, 0.8),
        **others: Any,
    ) -> None:
        _refuse_others(others, [field.name for field in dataclasses.fields(self)])
        fields: dict[str, Any] = {
            "hyperparam_mutations": _distributions(hyperparam_mutations),
            "time_attr": _one_of("time_attr", OLD_KEYS.get(time_attr, time_attr), TIMES),
            "metric": OLD_KEYS.get(metric, metric),
            "mode": _one_of("mode", mode, ("max", "min")),
            "perturbation_interval": _number("perturbation_interval", perturbation_interval),
            "burn_in_period": _number("burn_in_period", burn_in_period, least=0.0),
            "quantile_fraction": _number("quantile_fraction", quantile_fraction, most=0.5),
            "resample_probability": _number(
                "resample_probability", resample_probability, least=0.0, most=1.0
            ),
            "perturbation_factors": _factors(perturbation_factors),
        }
        check_key(fields["metric"], "metric of PopulationBasedTraining")
        for name, value in fields.items():
            object.__setattr__(self, name, value)


def scheduler_of(config: "AlgorithmConfig") -> PopulationBasedTraining | None:
    """The scheduler of a sweep; a dictionary has its arguments.

    Raises:
        ConfigError: An argument does not fit; one sentence.
    """
    given = config.sweep_settings.scheduler
    if given is None or isinstance(given, PopulationBasedTraining):
        return given
    return PopulationBasedTraining(**cast(Mapping[str, Any], given))


def mutations_of(config: "AlgorithmConfig") -> dict[str, Marker]:
    """The settings that a sweep's scheduler changes, and from what; their values as they are kept.

    Raises:
        UnknownNameError: There is no such setting.
        ConfigError: It cannot change while a program runs, or a value does not fit it.
    """
    scheduler = scheduler_of(config)
    table = config.name_table()
    found: dict[str, Marker] = {}
    for name, marker in ({} if scheduler is None else scheduler.hyperparam_mutations).items():
        current = table.current_name(name)
        numbers = [n for n, s in table.groups["training_settings"].items() if s.sweepable]
        if current is None:
            hint = did_you_mean(name, numbers)
            raise UnknownNameError(f"hyperparam_mutations names '{name}', no setting.{hint}")
        if current not in numbers:
            raise ConfigError(
                f"hyperparam_mutations cannot change {current}, got {marker!r}: it is no number "
                f"that only enters arithmetic, as are {', '.join(numbers)}."
            )
        found[current] = _numbers(current, marker.parsed(table.setting(current).parse))
    return found


def _numbers(name: str, marker: Marker) -> Marker:
    if not all(_is_number(value) for value in marker.values):
        raise ConfigError(
            f"hyperparam_mutations['{name}'] must have numbers to choose from, got {marker!r}."
        )
    return marker


def refuse_fixed(mutations: Mapping[str, Marker], learner: Any) -> None:
    """Refuse to change what is no number of the first lane's, or is only a first value.

    Args:
        mutations: By setting.
        learner: The state that a Learner begins with, or its shapes.
    """
    adapted = {field.name for field in dataclasses.fields(learner)}
    for name, marker in mutations.items():
        value = learner.hparams.get(name)
        if name in adapted:
            why = "it is only the first value of what every lane adapts itself"
        elif not (hasattr(value, "shape") or isinstance(value, Counter)):
            why = "it is None, a schedule or a function where the sweep begins; set a number"
        else:
            continue
        raise ConfigError(f"hyperparam_mutations cannot change {name}, got {marker!r}: {why}.")


def _refuse_others(others: Mapping[str, Any], known: list[str]) -> None:
    for name, value in others.items():
        if name not in _REFUSED:
            hint = did_you_mean(name, known)
            raise UnknownNameError(
                f"PopulationBasedTraining has no argument '{name}' (got {value!r}).{hint}"
            )
        accepted, why = _REFUSED[name]
        if value not in accepted:
            raise ConfigError(
                f"{name} must be {accepted[0]!r}, got {value!r}, since {why}; leave it out."
            )


def _one_of(name: str, value: Any, known: tuple[str, ...]) -> str:
    if value not in known:
        words = " or ".join(map(repr, known))
        raise ConfigError(f"{name} must be {words}, got {value!r}.{did_you_mean(value, known)}")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number(name: str, value: Any, *, least: float | None = None, most: float = math.inf) -> float:
    """A finite number above 0, or from `least` on, up to `most`."""
    fits = _is_number(value) and (value > 0 if least is None else value >= least) and value <= most
    if not fits:
        low = "above 0" if least is None else f"at least {least:g}"
        high = "" if most == math.inf else f" and at most {most:g}"
        raise ConfigError(f"{name} must be a number {low}{high}, got {value!r}.")
    return value


def _factors(values: Any) -> tuple[float, ...]:
    factors = tuple(cast(list[Any], values)) if isinstance(values, list | tuple) else ()
    if not factors or not all(_is_number(x) and x > 0 for x in factors):
        raise ConfigError(
            f"perturbation_factors must be numbers above 0, such as (1.2, 0.8), got {values!r}."
        )
    return factors


def _distributions(mutations: Any) -> dict[str, Marker]:
    if not isinstance(mutations, Mapping) or not mutations:
        raise ConfigError(
            "hyperparam_mutations must map settings to where their values come from, such as "
            f"{{'lr': loguniform(1e-5, 1e-2)}}, got {mutations!r}."
        )
    given = cast(Mapping[str, Any], mutations)
    return {name: _distribution(name, value) for name, value in given.items()}


def _distribution(name: str, value: Any) -> Marker:
    """Where values come from: "uniform" and "loguniform" bounds, or the values themselves."""
    if is_marker(value) and not isinstance(value, Mapping):
        value = _of_ray(value)
    if isinstance(value, list | tuple | Mapping):
        plain = list(cast(Any, value)) if isinstance(value, tuple) else value
        value = as_marker(value) or marker_from_data(plain, name)
    if not isinstance(value, Marker):
        raise ConfigError(
            f"hyperparam_mutations['{name}'] must be a list of values, uniform(low, high) or "
            f"loguniform(low, high), got {value!r}."
        )
    return Marker("choice", value.values) if value.kind in ("grid", "choice") else value


def _of_ray(domain: Any) -> Any:
    """The marker that a search space of Ray Tune's means; itself if there is none."""
    if hasattr(domain, "categories"):
        return list(domain.categories)
    sampler = type(domain.get_sampler()).__name__.lstrip("_").lower()
    if sampler in ("uniform", "loguniform") and type(domain).__name__ == "Float":
        return {sampler: [domain.lower, domain.upper]}
    return domain
