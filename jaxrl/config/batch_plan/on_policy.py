"""The exact plan of a train batch, or the changes that would make one; and its devices."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator

from jaxrl.config.batch_plan.arithmetic import (
    DEFAULT_NUM_ENVS,
    SETTING_OF,
    BatchPlan,
    BatchRequest,
    divisors,
    free_batch,
    nearest,
    notes_of,
    solve,
)
from jaxrl.errors import ConfigError

MIN_ROWS_PER_CPU_DEVICE = 64
IsWorth = Callable[[int, int], bool]
"""Whether so many devices, with so many rows of a minibatch each, are faster than one."""
MAX_TRIED = 200
"""Values of a setting that are tried as a suggestion, below and above the one that was set."""


class BatchSizeError(ConfigError):
    """Explicit sizes do not divide. `suggestions` are changes that each make a workable plan."""

    def __init__(self, message: str, suggestions: tuple[dict[str, int], ...] = ()) -> None:
        super().__init__(message)
        self.suggestions = suggestions


def make_plan(request: BatchRequest, max_seq_len: int = 1) -> BatchPlan:
    """The plan closest to the request.

    Args:
        request: What the settings say.
        max_seq_len: Rows that shall stay together in a minibatch, where that can be.

    Raises:
        BatchSizeError: Explicit values do not divide; names the values that would.
    """
    plan = solve_in_sequences(request, max_seq_len) if max_seq_len > 1 else None
    if plan is not None:
        return plan
    plan, problem = solve(request)
    if plan is not None:
        return plan
    if problem.advice:
        raise BatchSizeError(f"{problem.sentence}; {problem.advice}.")
    suggestions = tuple(_suggest(request, problem.names))
    raise BatchSizeError(f"{problem.sentence}: {_in_words(request, suggestions)}.", suggestions)


def _suggest(request: BatchRequest, names: Iterable[str]) -> Iterator[dict[str, int]]:
    """Single changes that work, nearest first; if there is none, one change of several."""
    found = False
    for name in names:
        current = getattr(request, name)
        if current is None:
            continue
        for values in (_below(request, name, current), _above(request, name, current)):
            near = itertools.islice(values, MAX_TRIED)
            works = (v for v in near if solve(dataclasses.replace(request, **{name: v}))[0])
            nearest_one = next(works, None)
            if nearest_one is not None:
                found = True
                yield {name: nearest_one}
    if not found:
        yield _change_all(request)


def _change_all(request: BatchRequest) -> dict[str, int]:
    """Keeps the train batch, if runners and learners can share it, and adapts all else to it."""
    runners = 1 if request.asynchronous else request.num_env_runners
    unit = math.lcm(request.num_learners, runners)
    batch = request.train_batch_size or free_batch(request)
    batch = max(1, math.floor(batch / unit + 0.5)) * unit
    shared = [d for d in divisors(batch, request.num_learners) if batch % math.lcm(d, unit) == 0]
    shards = nearest(shared, request.num_shards or 1) or request.num_learners
    wished = (request.envs_per_runner or 0) * runners or DEFAULT_NUM_ENVS
    columns = nearest(divisors(batch, math.lcm(shards, runners)), wished) or batch
    size = request.minibatch_size or request.default_minibatch_size
    envs = columns // runners
    if request.asynchronous:
        envs = nearest(divisors(columns), request.envs_per_runner or columns) or columns
    wanted = {
        "train_batch_size": batch,
        "envs_per_runner": envs,
        "rollout_fragment_length": batch // columns,
        "minibatch_size": nearest(divisors(batch, shards), size) or batch,
        "num_shards": shards,
    }
    return {name: value for name, value in wanted.items() if getattr(request, name) is not None}


def _candidates(request: BatchRequest, name: str) -> list[int]:
    """Values of one setting that may work, in ascending order."""
    batch = request.train_batch_size or free_batch(request)
    if name == "train_batch_size":
        if request.columns and request.rollout_fragment_length:
            return [request.columns * request.rollout_fragment_length]
        return _around(batch, request.batch_unit)
    if name == "num_shards":
        return divisors(request.columns or request.minibatch_size or batch, request.num_learners)
    if name == "num_env_runners":
        if request.num_env_runners == 1:
            return []  # nobody is told to start actors
        return divisors(batch) if request.train_batch_size else _around(request.num_env_runners, 1)
    if request.train_batch_size is None and name in ("envs_per_runner", "rollout_fragment_length"):
        return _around(getattr(request, name), _unit_beside(request, name))
    return divisors(batch)


def _unit_beside(request: BatchRequest, name: str) -> int:
    """What a factor must be a multiple of, so that a free train batch holds whole minibatches."""
    others = math.prod(value for factor, value in request.factors.items() if factor != name)
    size = request.minibatch_size or 1
    unit = size // math.gcd(size, others)
    if name == "envs_per_runner":
        runners = 1 if request.asynchronous else request.num_env_runners
        unit = math.lcm(unit, request.shards // math.gcd(request.shards, runners))
    return unit


def _around(value: int, unit: int) -> list[int]:
    """The multiples of `unit` just below and above a value."""
    k = value // unit
    return [n * unit for n in (k - 1, k, k + 1) if n > 0]


def _below(request: BatchRequest, name: str, current: int) -> list[int]:
    return [v for v in reversed(_candidates(request, name)) if v < current]


def _above(request: BatchRequest, name: str, current: int) -> list[int]:
    return [v for v in _candidates(request, name) if v > current]


def _in_words(request: BatchRequest, suggestions: tuple[dict[str, int], ...]) -> str:
    if len(suggestions) == 1 and len(suggestions[0]) > 1:
        pairs = [_setting(request, name, value) for name, value in suggestions[0].items()]
        return f"set {', '.join(f'{name}={value}' for name, value in pairs)}"
    values: dict[str, list[str]] = {}
    for change in suggestions:
        for name, value in change.items():
            setting, shown = _setting(request, name, value)
            values.setdefault(setting, []).append(str(shown))
    return "set " + ", or ".join(f"{name} to {' or '.join(v)}" for name, v in values.items())


def _setting(request: BatchRequest, name: str, value: int) -> tuple[str, int]:
    """The setting, and its value, that a number of the request comes from."""
    if name == "train_batch_size" and request.per_learner:
        return "train_batch_size_per_learner", value // request.num_learners
    return SETTING_OF[name], value


def choose_num_devices(
    plan: BatchPlan,
    platform: str,
    local_device_count: int,
    requested: int | None = None,
    *,
    on_host: bool = False,
    is_worth: IsWorth | None = None,
) -> tuple[int, str]:
    """How many local devices share the work, and why, in a sentence.

    On a CPU the cores are devices: the largest number that divides `num_shards` and leaves each
    at least 64 rows of a minibatch, or that `is_worth` says is faster; one where the environments
    are stepped `on_host`, since an update alone is faster by XLA's threads within it than divided.
    On accelerators the largest number that divides `num_shards`.

    Raises:
        ConfigError: `requested` is more than there are, or does not divide `num_shards`.
    """
    workable = [n for n in divisors(plan.num_shards) if n <= local_device_count]
    if requested is not None:
        if requested not in workable:
            raise ConfigError(
                f"num_devices={requested} must divide num_shards={plan.num_shards} and be at most "
                f"the {local_device_count} local devices: use {_any_of(workable)}."
            )
        return requested, f"{requested} {platform} devices, as set."
    if platform == "cpu" and on_host:
        return 1, "1 cpu device: XLA's threads share each update, the environments are on the host."
    decide = _leaves_enough if is_worth is None else is_worth
    rows = plan.minibatch_size
    chosen = next(n for n in reversed(workable) if platform != "cpu" or decide(rows // n, n))
    why = f"the largest divisor of num_shards={plan.num_shards} up to {local_device_count}"
    if platform == "cpu":
        enough = f"leaves each {MIN_ROWS_PER_CPU_DEVICE} rows of a minibatch"
        why += f" that {enough if is_worth is None else 'makes updates faster on this machine'}"
    return chosen, f"{chosen} {platform} device{'s' * (chosen > 1)}: {why}."


def _leaves_enough(rows: int, num_devices: int) -> bool:
    return num_devices == 1 or rows >= MIN_ROWS_PER_CPU_DEVICE


def _any_of(values: list[int]) -> str:
    words = [str(value) for value in values]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


MAX_LENGTHS = 1000
"""Of sequences that are tried where nothing explicit has to be divided by them."""


def solve_in_sequences(request: BatchRequest, most: int) -> BatchPlan | None:
    """The plan whose rollouts and minibatches are whole sequences, of up to `most` rows.

    The longest sequences that go together with what is explicit; None if they have less than half
    as many rows.
    """
    wanted, most = most, min(most, request.rollout_fragment_length or most)
    for length in _lengths(request, most):
        in_units = _divided(request, length)
        plan = None if in_units is None else solve(in_units)[0]
        if plan is None:
            continue
        plan = dataclasses.replace(
            plan,
            rollout_fragment_length=plan.rollout_fragment_length * length,
            train_batch_size=plan.train_batch_size * length,
            minibatch_size=plan.minibatch_size * length,
            sequence_length=length,
        )
        notes = list(notes_of(request, plan))
        if length < wanted:
            notes.append(f"max_seq_len={wanted}: {length}, the most that divides the sizes.")
        return dataclasses.replace(plan, notes=tuple(notes))
    return None


def _lengths(request: BatchRequest, most: int) -> list[int]:
    """Lengths that divide what is explicit, from `most` down to its half, the longest first."""
    sizes = [request.train_batch_size, request.rollout_fragment_length, request.minibatch_size]
    explicit = [size for size in sizes if size is not None]
    least = (most - 1) // 2
    if explicit:
        return [n for n in reversed(divisors(math.gcd(*explicit))) if least < n <= most]
    return list(range(most, max(least, most - MAX_LENGTHS), -1))


def _divided(request: BatchRequest, length: int) -> BatchRequest | None:
    """The request counted in sequences; None where an explicit number is no multiple of them."""
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
