"""Exact plan of a train batch, suggestions if there is none, and the number of devices."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator

from jaxrl.config.batch_plan.arithmetic import (
    DEFAULT_NUM_ENVS,
    SETTING_BY_FIELD,
    BatchPlan,
    BatchRequest,
    add_notes,
    choose_train_batch_size,
    divisors,
    find_nearest,
    solve_plan,
)
from jaxrl.errors import ConfigError

MIN_ROWS_PER_CPU_DEVICE = 64
IsFaster = Callable[[int, int], bool]
"""Predicate of rows per device and number of devices: whether these are faster than one device."""
MAX_CANDIDATES = 200
"""Number of values that are tried as suggestions, both below and above the explicit one."""


class BatchSizeError(ConfigError):
    """Explicit sizes that are not divisible.

    Attributes:
        suggestions: Changes of fields, each of which makes a valid plan.
    """

    def __init__(self, message: str, suggestions: tuple[dict[str, int], ...] = ()) -> None:
        super().__init__(message)
        self.suggestions = suggestions


def make_plan(request: BatchRequest, max_seq_len: int = 1) -> BatchPlan:
    """Return the plan closest to the request.

    Args:
        request: Explicit sizes and defaults.
        max_seq_len: Maximum number of rows that should stay together in a minibatch.

    Raises:
        BatchSizeError: If explicit sizes are not divisible; the message suggests sizes that are.
    """
    plan = solve_sequence_plan(request, max_seq_len) if max_seq_len > 1 else None
    if plan is not None:
        return plan
    plan, problem = solve_plan(request)
    if plan is not None:
        return plan
    if problem.advice:
        raise BatchSizeError(f"{problem.message}; {problem.advice}.")
    suggestions = tuple(_suggest_changes(request, problem.field_names))
    raise BatchSizeError(
        f"{problem.message}: {_format_suggestions(request, suggestions)}.", suggestions
    )


def _suggest_changes(request: BatchRequest, names: Iterable[str]) -> Iterator[dict[str, int]]:
    """Yield valid changes of a single field, nearest first, or one change of several fields."""
    has_suggestion = False
    for name in names:
        current = getattr(request, name)
        if current is None:
            continue
        for values in (_list_below(request, name, current), _list_above(request, name, current)):
            candidates = itertools.islice(values, MAX_CANDIDATES)
            valid = (
                v for v in candidates if solve_plan(dataclasses.replace(request, **{name: v}))[0]
            )
            nearest_one = next(valid, None)
            if nearest_one is not None:
                has_suggestion = True
                yield {name: nearest_one}
    if not has_suggestion:
        yield _suggest_joint_change(request)


def _suggest_joint_change(request: BatchRequest) -> dict[str, int]:
    """Return a change of several fields that keeps the train batch size if possible."""
    runners = 1 if request.is_async else request.num_env_runners
    unit = math.lcm(request.num_learners, runners)
    batch = request.train_batch_size or choose_train_batch_size(request)
    batch = max(1, math.floor(batch / unit + 0.5)) * unit
    shared = [d for d in divisors(batch, request.num_learners) if batch % math.lcm(d, unit) == 0]
    shards = find_nearest(shared, request.num_shards or 1) or request.num_learners
    target = (request.envs_per_runner or 0) * runners or DEFAULT_NUM_ENVS
    columns = find_nearest(divisors(batch, math.lcm(shards, runners)), target) or batch
    size = request.minibatch_size or request.default_minibatch_size
    envs = columns // runners
    if request.is_async:
        envs = find_nearest(divisors(columns), request.envs_per_runner or columns) or columns
    change = {
        "train_batch_size": batch,
        "envs_per_runner": envs,
        "rollout_fragment_length": batch // columns,
        "minibatch_size": find_nearest(divisors(batch, shards), size) or batch,
        "num_shards": shards,
    }
    return {name: value for name, value in change.items() if getattr(request, name) is not None}


def _list_candidates(request: BatchRequest, name: str) -> list[int]:
    """Return candidate values of one field, in ascending order."""
    batch = request.train_batch_size or choose_train_batch_size(request)
    if name == "train_batch_size":
        if request.num_columns and request.rollout_fragment_length:
            return _list_neighbors(batch, request.num_columns * request.rollout_fragment_length)
        return _list_neighbors(batch, request.batch_unit)
    if name == "num_shards":
        return divisors(
            request.num_columns or request.minibatch_size or batch, request.num_learners
        )
    if name == "num_env_runners":
        if request.num_env_runners == 1:
            return []  # never suggest actors to a run without any
        return (
            divisors(batch)
            if request.train_batch_size
            else _list_neighbors(request.num_env_runners, 1)
        )
    if request.train_batch_size is None and name in ("envs_per_runner", "rollout_fragment_length"):
        return _list_neighbors(getattr(request, name), _compute_factor_unit(request, name))
    return divisors(batch)


def _compute_factor_unit(request: BatchRequest, name: str) -> int:
    """Return the unit of a factor for which a free train batch has whole minibatches."""
    others = math.prod(value for factor, value in request.factors.items() if factor != name)
    size = request.minibatch_size or 1
    unit = size // math.gcd(size, others)
    if name == "envs_per_runner":
        runners = 1 if request.is_async else request.num_env_runners
        unit = math.lcm(unit, request.shard_unit // math.gcd(request.shard_unit, runners))
    return unit


def _list_neighbors(value: int, unit: int) -> list[int]:
    """Return the multiples of `unit` next to a value."""
    k = value // unit
    return [n * unit for n in (k - 1, k, k + 1) if n > 0]


def _list_below(request: BatchRequest, name: str, current: int) -> list[int]:
    return [v for v in reversed(_list_candidates(request, name)) if v < current]


def _list_above(request: BatchRequest, name: str, current: int) -> list[int]:
    return [v for v in _list_candidates(request, name) if v > current]


def _format_suggestions(request: BatchRequest, suggestions: tuple[dict[str, int], ...]) -> str:
    if len(suggestions) == 1 and len(suggestions[0]) > 1:
        pairs = [
            _convert_to_setting(request, name, value) for name, value in suggestions[0].items()
        ]
        return f"set {', '.join(f'{name}={value}' for name, value in pairs)}"
    values: dict[str, list[str]] = {}
    for change in suggestions:
        for name, value in change.items():
            setting, shown = _convert_to_setting(request, name, value)
            values.setdefault(setting, []).append(str(shown))
    return "set " + ", or ".join(f"{name} to {' or '.join(v)}" for name, v in values.items())


def _convert_to_setting(request: BatchRequest, name: str, value: int) -> tuple[str, int]:
    """Return the setting and its value for a field of the request."""
    if name == "train_batch_size" and request.is_per_learner:
        return "train_batch_size_per_learner", value // request.num_learners
    return SETTING_BY_FIELD[name], value


def choose_num_devices(
    plan: BatchPlan,
    platform: str,
    local_device_count: int,
    requested: int | None = None,
    *,
    is_on_host: bool = False,
    is_faster: IsFaster | None = None,
) -> tuple[int, str]:
    """Choose the number of local devices that share the work.

    On accelerators, it is the largest number that divides `num_shards`. On a CPU, whose cores are
    the devices, each device must also have at least 64 rows of a minibatch or, if `is_faster` is
    given, be faster by that measure; the number is 1 if environments are stepped on the host, since
    XLA's threads within one device then speed up an update more than several devices do.

    Args:
        plan: Sizes of the train batch.
        platform: "cpu", "gpu" or "tpu".
        local_device_count: Number of available devices.
        requested: Explicit number of devices.
        is_on_host: Whether environments are stepped on the host.
        is_faster: Measured predicate that replaces the rule of 64 rows.

    Returns:
        The number of devices, and a sentence with the reason.

    Raises:
        ConfigError: If `requested` exceeds the available devices or does not divide `num_shards`.
    """
    allowed = [n for n in divisors(plan.num_shards) if n <= local_device_count]
    if requested is not None:
        if requested not in allowed:
            raise ConfigError(
                f"num_devices={requested} must divide num_shards={plan.num_shards} and be at most "
                f"the {local_device_count} local devices: use {_join_choices(allowed)}."
            )
        return requested, f"{requested} {platform} devices, as set."
    if platform == "cpu" and is_on_host:
        return (
            1,
            "1 cpu device: XLA's threads share each update, as the environments are on the host.",
        )
    is_enough = _has_enough_rows if is_faster is None else is_faster
    rows = plan.minibatch_size
    chosen = next(n for n in reversed(allowed) if platform != "cpu" or is_enough(rows // n, n))
    reason = f"the largest divisor of num_shards={plan.num_shards} up to {local_device_count}"
    if platform == "cpu":
        condition = f"leaves {MIN_ROWS_PER_CPU_DEVICE} rows of a minibatch to each"
        reason += (
            f" that {condition if is_faster is None else 'makes updates faster on this machine'}"
        )
    return chosen, f"{chosen} {platform} device{'s' * (chosen > 1)}: {reason}."


def _has_enough_rows(rows: int, num_devices: int) -> bool:
    return num_devices == 1 or rows >= MIN_ROWS_PER_CPU_DEVICE


def _join_choices(values: list[int]) -> str:
    words = [str(value) for value in values]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


MAX_SEQUENCE_LENGTHS = 1000
"""Number of sequence lengths that are tried if no explicit size has to be a multiple of them."""


def solve_sequence_plan(request: BatchRequest, max_seq_len: int) -> BatchPlan | None:
    """Return the plan whose rollouts and minibatches consist of whole sequences.

    Args:
        request: Explicit sizes and defaults.
        max_seq_len: Maximum number of rows of a sequence.

    Returns:
        The plan with the longest sequences that fit the explicit sizes, or None if those are
        shorter than half of the maximum.
    """
    wanted, max_seq_len = (
        max_seq_len,
        min(max_seq_len, request.rollout_fragment_length or max_seq_len),
    )
    for length in _list_sequence_lengths(request, max_seq_len):
        sequence_request = _convert_to_sequences(request, length)
        plan = None if sequence_request is None else solve_plan(sequence_request)[0]
        if plan is None:
            continue
        plan = dataclasses.replace(
            plan,
            rollout_fragment_length=plan.rollout_fragment_length * length,
            train_batch_size=plan.train_batch_size * length,
            minibatch_size=plan.minibatch_size * length,
            sequence_length=length,
        )
        shortened = f"max_seq_len={wanted}: {length}, the largest length that divides the sizes."
        return add_notes(request, plan, *([shortened] if length < wanted else []))
    return None


def _list_sequence_lengths(request: BatchRequest, max_length: int) -> list[int]:
    """Return lengths that divide the explicit sizes, from `most` down to its half."""
    sizes = [request.train_batch_size, request.rollout_fragment_length, request.minibatch_size]
    explicit = [size for size in sizes if size is not None]
    min_length = (max_length - 1) // 2
    if explicit:
        return [n for n in reversed(divisors(math.gcd(*explicit))) if min_length < n <= max_length]
    return list(range(max_length, max(min_length, max_length - MAX_SEQUENCE_LENGTHS), -1))


def _convert_to_sequences(request: BatchRequest, length: int) -> BatchRequest | None:
    """Return the request in units of sequences, or None if an explicit size is not a multiple."""
    changes: dict[str, int] = {}
    for name in ("train_batch_size", "rollout_fragment_length", "minibatch_size"):
        rows = getattr(request, name)
        if rows is not None and rows % length:
            return None
        default = f"default_{name}"
        if rows is not None:
            changes[name] = rows // length
        if getattr(request, default) is not None:
            changes[default] = max(1, round(getattr(request, default) / length))
    return dataclasses.replace(request, **changes)
