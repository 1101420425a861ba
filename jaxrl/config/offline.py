"""Recorded data that a config learns from and is evaluated on: shares, paths, storage and checks."""

import dataclasses
import math
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from jaxrl.compat import lookup
from jaxrl.config.datasets import PREFIX, iter_sources, split_name
from jaxrl.config.fields import get_settings
from jaxrl.config.imports import Trust
from jaxrl.config.settings.offline import (
    EVAL_LOSS,
    METHODS,
    MODELED,
    SAMPLER,
    FQESettings,
    OfflineEvaluationSettings,
)
from jaxrl.config.settings.replay import OffPolicyTraining
from jaxrl.config.settings.run import EvaluationSettings
from jaxrl.config.sweep import is_sweep
from jaxrl.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from jaxrl.config.config import Config


_NO_SAMPLING = "no environment is stepped for training"
_NO_BUFFER = "rows come from the recorded data, not from a replay buffer"
_HOOKS = (
    "on_environment_created",
    "on_episode_created",
    "on_episode_start",
    "on_episode_step",
    "on_episode_end",
    "on_sample_end",
    "on_env_runners_recreated",
)
NOT_OFFLINE_SETTINGS: dict[str, str] = {
    **dict.fromkeys(_HOOKS, _NO_SAMPLING),
    **dict.fromkeys(
        (
            "num_env_runners",
            "num_envs_per_env_runner",
            "rollout_fragment_length",
            "batch_mode",
            "env_runner_cls",
            "env_task_fn",
            "curriculum",
            "initial_random_timesteps",
            "min_sample_timesteps_per_iteration",
            "min_train_timesteps_per_iteration",
        ),
        f"{_NO_SAMPLING}; num_updates_per_iteration is the length of an iteration",
    ),
    **dict.fromkeys(
        (
            "replay_buffer_config",
            "num_steps_sampled_before_learning_starts",
            "training_intensity",
            "store_buffer_in_checkpoints",
            "max_buffer_bytes",
            "zero_init_states",
        ),
        _NO_BUFFER,
    ),
}
"""Settings that have no effect when a run learns from recorded data, with the reasons."""


MAX_SHARE_DENOMINATOR = 10_000
NOT_MIXED_SETTINGS: dict[str, str] = {
    "num_updates_per_iteration": "environment steps are the length of an iteration",
    "dataset_sampling": "rows are drawn with replacement, a share of every gradient step",
    "num_learners": "the data are on the devices of this process",
    "num_env_runners": "environments are stepped in this process",
}
"""Settings that have no effect when a run learns from recorded data and from what it samples."""


def count_source_rows(
    config: "Config", num_rows: int, length: int = 1, num_shards: int = 1
) -> dict[str, int]:
    """Return the number of rows of a gradient step that each source has; empty without shares.

    Args:
        config: Config of the run.
        num_rows: Number of rows of a gradient step.
        length: Number of rows of a sequence; 1 for single rows.
        num_shards: Number of logical shards, each of which has equally many sequences of a source.

    Raises:
        ConfigError: If shares do not sum to 1, or do not make whole rows or sequences.
    """
    shares = config.offline_data_settings.input_
    exact = _parse_shares(shares)
    samples = {name: share / (length * num_shards) for name, share in exact.items()}
    if any((num_rows * sample).denominator > 1 for sample in samples.values()):
        unit = math.lcm(*(sample.denominator for sample in samples.values()))
        name = "max_seq_len" if config.rows_per_window is None else config.window_setting
        what = "rows" if length == 1 else f"sequences of {name}={length} rows"
        where = f" for each of num_shards={num_shards}" if num_shards > 1 else ""
        raise ConfigError(
            f"input_={shares!r} has shares that make no whole {what}{where} of train_batch_size="
            f"{num_rows}; set it to {max(1, round(num_rows / unit)) * unit}."
        )
    return {name: int(share * num_rows) for name, share in exact.items()}


def _parse_shares(shares: object) -> dict[str, Fraction]:
    """Return the exact shares of the sources in the order of their names; empty without shares.

    Raises:
        ConfigError: If they do not sum to 1.
    """
    if not isinstance(shares, dict):
        return {}
    shares = cast("dict[str, float]", shares)
    if not shares:
        raise ConfigError(f"input_={shares!r} has no source: name one, {{'data/': 1.0}}.")
    exact = {name: _parse_share(shares, name) for name in sorted(shares)}
    total = sum(exact.values())
    if total != 1:
        raise ConfigError(
            f"input_={shares!r} has shares that sum to {float(total):g}; they must sum to 1."
        )
    return exact


def _parse_share(shares: dict[str, float], name: str) -> Fraction:
    share = shares[name]
    if not (math.isfinite(share) and 0.0 < share <= 1.0):
        raise ConfigError(
            f"input_={shares!r} has the share {share!r} of {name!r}; shares must be above 0 and at "
            "most 1."
        )
    return Fraction(share).limit_denominator(MAX_SHARE_DENOMINATOR)


def check_offline(config: "Config") -> None:
    """Check that data are given where they are needed, and settings that need environments are not.

    Raises:
        ConfigError: If a setting contradicts `input_`.
        UnknownNameError: If there is no data set of a name.
    """
    data = config.offline_data_settings
    _check_output(config)
    for source in iter_sources(config.offline_data_settings.input_):
        split_name(source.removeprefix(PREFIX))
    _parse_shares(data.input_)
    _check_storage(config)
    if config.is_mixed:
        _check_mixed(config)
        return
    if not config.is_offline:
        if config.requires_data:
            raise ConfigError(
                f"{config.algo_name} learns from recorded data: name a folder of them, "
                f"offline_data(input_='path/to/data'), got input_={data.input_!r}."
            )
        names = [name for name in vars(data) if name != "input_" and not name.startswith("output")]
        advice = f"set input_, which is {SAMPLER!r}, or leave it out"
        config.refuse_changed(dict.fromkeys(names, advice), "without recorded data")
        return
    if not (config.requires_data or isinstance(config.training_settings, OffPolicyTraining)):
        raise ConfigError(
            f"input_={data.input_!r} are recorded data, but {config.algo_name} learns from the "
            "newest steps of its own policy: use BC, MARWIL, CQL, or an algorithm with a replay "
            "buffer (DQN, SAC, TD3)."
        )
    placement = config.env_runners_settings.placement
    if placement != "auto":
        raise ConfigError(
            f"placement={placement!r} has no effect with input_={data.input_!r}: {_NO_SAMPLING}; "
            "leave it at 'auto'."
        )
    config.refuse_changed(NOT_OFFLINE_SETTINGS, f"with input_={data.input_!r}")
    evaluation = config.evaluation_settings
    if evaluation.evaluation_interval and not config.has_evaluation_env:
        raise ConfigError(
            f"evaluation_interval={evaluation.evaluation_interval} has no environment to evaluate "
            f"in: give the one of the data, environment(env=...), or leave it out."
        )


def resolve_data_paths(config: "Config") -> None:
    """Make the paths of recorded data absolute, which are relative to the working directory.

    Names of data sets remain, so that a checkpoint finds them on another machine.
    """
    data = config.offline_data_settings
    given = data.input_
    if isinstance(given, dict):
        resolved = {_resolve(name): share for name, share in given.items()}
        if len(resolved) < len(given):
            raise ConfigError(f"input_={given!r} names a source twice: give each one share.")
        config.offline_data(input_=resolved)
    elif isinstance(given, list):
        config.offline_data(input_=[_resolve(name) for name in given])
    elif given != SAMPLER:
        config.offline_data(input_=_resolve(given))
    if data.output is not None:
        config.offline_data(output=str(Path(data.output).expanduser().absolute()))


def _resolve(name: str) -> str:
    is_name = name == SAMPLER or name.startswith(PREFIX)
    return name if is_name else str(Path(name).expanduser().absolute())


def _check_mixed(config: "Config") -> None:
    """Raise if recorded data cannot be learned from together with what is sampled."""
    given, name = config.offline_data_settings.input_, config.algo_name
    if config.requires_data or not isinstance(config.training_settings, OffPolicyTraining):
        reason = "from recorded data alone" if config.requires_data else "from its newest steps"
        raise ConfigError(
            f"input_={given!r} mixes recorded rows with those of a replay buffer, and {name} learns "
            f"{reason}: use DQN, SAC, TQC, TD3 or AWAC."
        )
    config.refuse_changed(NOT_MIXED_SETTINGS, f"with input_={given!r}")
    if config.env_runners_settings.normalize_rewards:
        raise ConfigError(
            f"normalize_rewards=True is not supported with input_={given!r}: recorded rewards would be "
            "divided by their own standard deviation, and those that are sampled by another one; use "
            "clip_rewards, or scale the rewards in the environment and by input_transform."
        )
    if is_sweep(config):
        raise ConfigError(
            f"input_={given!r} is not supported in lanes of a sweep, which have no replay buffers of "
            "recorded rows; run them one by one."
        )
    if getattr(config.algo_class, "compiled_training_step", None) is not None:
        raise ConfigError(
            f"input_={given!r} is not supported with an own compiled training step, which learns "
            "from what it samples: leave it out."
        )


def _check_storage(config: "Config") -> None:
    """Raise if other settings contradict `dataset_storage`."""
    data = config.offline_data_settings
    storage, num_learners = data.dataset_storage, config.learners_settings.num_learners
    if config.is_mixed and storage in ("host", "stream"):
        raise ConfigError(
            f"dataset_storage={storage!r} is not supported with input_={data.input_!r}, whose rows are "
            "mixed with those of a replay buffer on the device: set 'device', or leave it out."
        )
    if config.is_offline and num_learners and storage in ("device", "host"):
        raise ConfigError(
            f"dataset_storage={storage!r} is in this process, and num_learners={num_learners} learn in "
            "others: set dataset_storage='stream', or num_learners=0."
        )
    if data.shuffle_buffer_size and storage in ("device", "host"):
        raise ConfigError(
            f"shuffle_buffer_size={data.shuffle_buffer_size} has no effect with dataset_storage="
            f"{storage!r}, which draws from all rows: leave it out, or set dataset_storage='stream'."
        )
    is_stream = storage == "stream" or (config.is_offline and num_learners > 0)
    evaluation = config.evaluation_settings
    has_losses = evaluation.held_out_share and evaluation.offline_evaluation_type == EVAL_LOSS
    if data.max_dataset_bytes != "auto" and (is_stream or storage == "host") and not has_losses:
        raise ConfigError(
            f"max_dataset_bytes={data.max_dataset_bytes} is the limit of a dataset on a device, and has "
            f"no effect with {describe_storage(config)}: leave it out, or set dataset_storage='auto'."
        )
    if is_stream:
        check_stream(config)


def check_stream(config: "Config") -> None:
    """Check that the settings are those of a stream.

    Raises:
        ConfigError: If one of them needs all rows at once.
    """
    data = config.offline_data_settings
    for problem, name, advice in (
        (
            data.dataset_sampling == "uniform",
            "dataset_sampling='uniform'",
            "a stream has every row once in an epoch: leave it out",
        ),
        (
            len(data.sources) > 1,
            f"input_={data.input_!r}",
            "shares are of rows that are all there: give a list of sources, which are mixed by size",
        ),
    ):
        if problem:
            raise ConfigError(
                f"{name} is not supported with {describe_storage(config)}: {advice}, or set "
                "dataset_storage='host'."
            )


def check_lane_storage(config: "Config") -> None:
    """Check that the data of one run of a sweep are in its process.

    Raises:
        ConfigError: If they are a stream.
    """
    data = config.offline_data_settings
    is_stream = data.dataset_storage == "stream" or config.learners_settings.num_learners > 0
    if config.is_offline and is_stream:
        raise make_stream_lanes_error(config)


def make_stream_lanes_error(config: "Config") -> ConfigError:
    """Return the error for a sweep of runs whose data are streams."""
    return ConfigError(
        f"A sweep is not supported with {describe_storage(config)}: its runs would share Ray's CPUs "
        "with what reads for them; run them one by one, or set dataset_storage='device', of which all "
        "lanes of a program share one copy, or 'host'."
    )


def describe_storage(config: "Config") -> str:
    """Return the setting that makes a run's data a stream, for messages."""
    storage = config.offline_data_settings.dataset_storage
    if storage != "auto":
        return f"dataset_storage={storage!r}"
    num_learners = config.learners_settings.num_learners
    why = f"num_learners={num_learners}" if num_learners else "the data are larger than the memory"
    return f"dataset_storage='auto', which is 'stream' here ({why})"


def _check_output(config: "Config") -> None:
    """Raise if a run cannot be recorded, or settings of a recording are set without one."""
    data = config.offline_data_settings
    if data.output is None:
        names = ("output_max_file_size", "output_max_rows_per_file")
        advice = "name a folder as output, or leave it out"
        config.refuse_changed(dict.fromkeys(names, advice), "without a recording")
        return
    compiled = getattr(config.algo_class, "compiled_training_step", None) is not None
    for problem, reason in (
        (config.is_offline, "recorded data are learned from, and nothing is sampled"),
        (is_sweep(config), "lanes of a sweep are not recorded; run them one by one"),
        (
            config.learners_settings.num_learners > 0
            and config.env_runners_settings.num_env_runners == 0,
            "learner processes do not return what they sample; set num_learners=0",
        ),
        (compiled, "an own compiled training step is not recorded; set placement='host'"),
    ):
        if problem:
            raise ConfigError(f"output={data.output!r} cannot be recorded here: {reason}.")


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


def check_offline_evaluation(config: "Config") -> None:
    """Check the settings of evaluation on held-out episodes.

    Raises:
        ConfigError: If one has no effect, or is invalid.
    """
    settings = config.evaluation_settings
    methods = parse_methods(settings.off_policy_estimation_methods)
    if not settings.offline_evaluation_interval:
        names = [field.name for field in dataclasses.fields(OfflineEvaluationSettings)]
        config.refuse_changed(
            dict.fromkeys(names[1:], "set offline_evaluation_interval, or leave it out"),
            "without an evaluation on held-out episodes",
            neutral={"offline_evaluation_duration": _RLLIB_DURATION},
        )
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


def describe_held_out(settings: EvaluationSettings) -> list[str]:
    """Return a sentence on the episodes that are not trained on; none if there are none."""
    if not settings.held_out_share:
        return []
    interval, kind = settings.offline_evaluation_interval, settings.offline_evaluation_type
    sentence = (
        f"Held out: {100.0 * settings.held_out_share:g}% of the episodes, by a hash of their ids "
        f"(offline_evaluation_split); evaluated every {interval} iterations "
        f"(offline_evaluation_type={kind!r})."
    )
    return [sentence]


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
