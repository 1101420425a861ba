"""Checks of evaluation on held-out episodes of recorded data."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from jaxrl.compat import lookup
from jaxrl.config.fields import get_settings
from jaxrl.config.imports import Trust
from jaxrl.config.settings.offline_evaluation import (
    EVAL_LOSS,
    METHODS,
    MODELED,
    FQESettings,
    OfflineEvaluationSettings,
)
from jaxrl.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

RLLIB_ESTIMATORS = {
    "ImportanceSampling": "is",
    "WeightedImportanceSampling": "wis",
    "DirectMethod": "dm",
    "DoublyRobust": "dr",
}
"""Methods by the name of RLlib's class."""

_RLLIB_DURATION = 1
"""RLlib's default of `offline_evaluation_duration`, which its configs have without an interval."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EstimationMethod:
    """Estimate that a config asks for, with its settings of fitted Q evaluation."""

    method: str
    fqe: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])


def check_offline_evaluation(config: "AlgorithmConfig") -> None:
    """Check the settings of evaluation on held-out episodes.

    Raises:
        ConfigError: If one has no effect, or is invalid.
    """
    settings = config.evaluation_settings
    methods = parse_methods(settings.off_policy_estimation_methods)
    if not settings.offline_evaluation_interval:
        _check_unused(config)
        return
    interval = settings.offline_evaluation_interval
    if not config.is_offline:
        raise ConfigError(
            f"offline_evaluation_interval={interval} evaluates on episodes that are held out of "
            "recorded data, and the run does not learn from them alone (input_="
            f"{config.offline_data_settings.input_!r}): leave it out, or use evaluation_interval."
        )
    is_loss = settings.offline_evaluation_type == EVAL_LOSS
    if is_loss and not methods and not settings.ope_split_batch_by_episode:
        raise ConfigError(
            "ope_split_batch_by_episode=False has no effect without an estimate: set "
            "offline_evaluation_type='is' or off_policy_estimation_methods, or leave it out."
        )
    size, is_all = settings.offline_eval_batch_size_per_runner, "auto"
    if (
        settings.offline_evaluation_duration == is_all
        and not is_loss
        and size != OfflineEvaluationSettings().offline_eval_batch_size_per_runner
    ):
        raise ConfigError(
            f"offline_eval_batch_size_per_runner={size} has no effect with offline_evaluation_duration="
            "'auto', which estimates from all held-out episodes: set a number of batches."
        )


def describe_held_out(config: "AlgorithmConfig") -> list[str]:
    """Return a sentence on the episodes that are not trained on; none if there are none."""
    settings = config.evaluation_settings
    if not settings.held_out_share:
        return []
    interval, kind = settings.offline_evaluation_interval, settings.offline_evaluation_type
    sentence = (
        f"Held out: {100.0 * settings.held_out_share:g}% of the episodes, by a hash of their ids "
        f"(offline_evaluation_split); evaluated every {interval} iterations "
        f"(offline_evaluation_type={kind!r})."
    )
    return [sentence]


def _check_unused(config: "AlgorithmConfig") -> None:
    """Raise if a setting of offline evaluation is set, but there is none."""
    settings, default = config.evaluation_settings, OfflineEvaluationSettings()
    for name, value in vars(default).items():
        own = vars(settings)[name]
        is_rllibs = name == "offline_evaluation_duration" and own == _RLLIB_DURATION
        if name == "offline_evaluation_interval" or own == value or is_rllibs:
            continue
        raise ConfigError(
            f"'{name}' (got {own!r}) has no effect without an evaluation on held-out episodes: set "
            "offline_evaluation_interval, or leave it out."
        )


def parse_methods(methods: Mapping[str, Any]) -> dict[str, EstimationMethod]:
    """Return the estimates of `off_policy_estimation_methods` by their names.

    Raises:
        ConfigError: If one has no known type, or a setting that does not exist.
    """
    return {name: _parse_method(name, dict(given)) for name, given in methods.items()}


def _parse_method(name: str, given: dict[str, Any]) -> EstimationMethod:
    where = f"off_policy_estimation_methods[{name!r}]"
    kind = given.pop("type", None)
    method = kind
    if kind not in METHODS:
        method = RLLIB_ESTIMATORS.get(lookup.load("rllib.values").get_rllib_name(kind) or "", kind)
    if method not in METHODS:
        raise ConfigError(
            f"{where} must have a type, one of {', '.join(METHODS)}, got {kind!r}."
            f"{did_you_mean(str(kind), METHODS)}"
        )
    if given and method not in MODELED:
        raise ConfigError(
            f"{where} has {min(given)!r}, and {method!r} has no settings besides its type."
        )
    make_fqe_settings(given, where)
    return EstimationMethod(method=cast(str, method), fqe=given)


def make_fqe_settings(given: Mapping[str, Any] | None, where: str = "fqe") -> FQESettings:
    """Make the settings of fitted Q evaluation.

    Args:
        given: Values by name; None for the defaults.
        where: Name of the setting that has them, for error messages.

    Raises:
        ConfigError: If a name or value is invalid.
    """
    known = get_settings(FQESettings)
    values: dict[str, Any] = {}
    for name, value in (given or {}).items():
        if name not in known:
            raise ConfigError(
                f"{where} has no setting {name!r}.{did_you_mean(name, known)} It has "
                f"{', '.join(known)}."
            )
        try:
            values[name] = known[name].parse(value, Trust())
        except ConfigError as error:
            raise ConfigError(f"{where} {error}") from None
    return FQESettings(**values)
