"""The exact arithmetic of a train batch: defaults adapt, explicit values never do."""

import dataclasses
import math
from collections.abc import Iterable, Iterator

from jaxrl.errors import ConfigError

DEFAULT_NUM_ENVS = 16
MAX_SHARDS = 8
MIN_ENVS_PER_CPU_DEVICE = 8
MIN_ROWS_PER_CPU_DEVICE = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """How many of what one training step has.

    `num_envs * rollout_fragment_length = train_batch_size = num_minibatches * minibatch_size`,
    and `num_shards` divides `num_envs` and `minibatch_size`.
    """

    num_envs: int
    rollout_fragment_length: int
    train_batch_size: int
    minibatch_size: int
    num_minibatches: int
    num_epochs: int
    num_shards: int
    notes: tuple[str, ...] = ()
    """A sentence for every default that adapted."""

    @property
    def updates_per_iteration(self) -> int:
        """Gradient steps of one training step."""
        return self.num_minibatches * self.num_epochs

    def describe(self) -> str:
        """The arithmetic in one line."""
        return (
            f"{self.num_envs} envs x {self.rollout_fragment_length} steps = "
            f"{self.train_batch_size}; {self.num_minibatches} minibatches of "
            f"{self.minibatch_size} x {self.num_epochs} epochs = "
            f"{self.updates_per_iteration} updates an iteration"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchRequest:
    """What the settings say; None where the plan is free to choose.

    The defaults are what the plan stays close to. `minibatch_size` with `whole_batch` is the train
    batch itself.
    """

    train_batch_size: int | None
    num_envs: int | None
    rollout_fragment_length: int | None
    minibatch_size: int | None
    num_shards: int | None
    num_epochs: int = 1
    whole_batch: bool = False
    default_train_batch_size: int = 4000
    default_minibatch_size: int = 128


class BatchSizeError(ConfigError):
    """Explicit sizes do not divide. `suggestions` are changes that each make a workable plan."""

    def __init__(self, message: str, suggestions: tuple[dict[str, int], ...] = ()) -> None:
        super().__init__(message)
        self.suggestions = suggestions


SETTING_OF = {
    "train_batch_size": "train_batch_size",
    "num_envs": "num_envs_per_env_runner",
    "rollout_fragment_length": "rollout_fragment_length",
    "minibatch_size": "minibatch_size",
    "num_shards": "num_shards",
}


def make_plan(request: BatchRequest) -> BatchPlan:
    """The plan closest to the request.

    Raises:
        BatchSizeError: Explicit values do not divide; names the values that would.
    """
    plan, problem = _solve(request)
    if plan is not None:
        return plan
    suggestions = tuple(_suggest(request, problem.names))
    raise BatchSizeError(f"{problem.sentence}: {_in_words(suggestions)}.", suggestions)


@dataclasses.dataclass(frozen=True)
class _Problem:
    sentence: str = ""
    names: tuple[str, ...] = ()


def _solve(request: BatchRequest) -> tuple[BatchPlan | None, _Problem]:
    batch = request.train_batch_size or _free_batch(request)
    shards = request.num_shards or 1
    envs = request.num_envs or _free_envs(request, batch)
    steps = request.rollout_fragment_length or max(1, batch // envs)
    size = batch if request.whole_batch else request.minibatch_size
    size = size or nearest(divisors(batch, shards), request.default_minibatch_size) or batch
    problem = _first_problem(request, batch, envs, steps, size)
    if problem is not None:
        return None, problem
    auto = next(g for g in (8, 4, 2, 1) if g <= MAX_SHARDS and math.gcd(envs, size) % g == 0)
    plan = BatchPlan(
        num_envs=envs,
        rollout_fragment_length=steps,
        train_batch_size=batch,
        minibatch_size=size,
        num_minibatches=batch // size,
        num_epochs=request.num_epochs,
        num_shards=request.num_shards or auto,
    )
    return dataclasses.replace(plan, notes=tuple(_notes(request, plan))), _Problem()


def _free_batch(request: BatchRequest) -> int:
    """The multiple of everything explicit that is nearest to the default train batch."""
    shards = request.num_shards or 1
    envs, steps = request.num_envs, request.rollout_fragment_length
    if envs and steps:
        return envs * steps
    rows = shards if request.whole_batch else math.lcm(shards, request.minibatch_size or 1)
    unit = math.lcm(rows, (envs or shards) * (steps or 1))
    return max(1, math.floor(request.default_train_batch_size / unit + 0.5)) * unit


def _free_envs(request: BatchRequest, batch: int) -> int:
    steps = request.rollout_fragment_length
    if steps:
        return max(1, batch // steps)
    return nearest(divisors(batch, request.num_shards or 1), DEFAULT_NUM_ENVS) or 1


def _first_problem(
    request: BatchRequest, batch: int, envs: int, steps: int, size: int
) -> _Problem | None:
    if envs * steps != batch:
        given = request.num_envs and request.rollout_fragment_length
        if given:
            return _Problem(
                f"num_envs_per_env_runner={envs} x rollout_fragment_length={steps} is "
                f"{envs * steps}, not train_batch_size={batch}",
                ("rollout_fragment_length", "num_envs", "train_batch_size"),
            )
        name = "num_envs" if request.num_envs else "rollout_fragment_length"
        value = envs if request.num_envs else steps
        return _Problem(
            f"train_batch_size={batch} is not a multiple of {SETTING_OF[name]}={value}",
            (name, "train_batch_size"),
        )
    if batch % size:
        return _Problem(
            f"train_batch_size={batch} is not a multiple of minibatch_size={size}",
            ("minibatch_size", "train_batch_size", "num_envs"),
        )
    shards = request.num_shards or 1
    for name, value in (("num_envs", envs), ("minibatch_size", size)):
        if value % shards:
            return _Problem(
                f"{SETTING_OF[name]}={value} is not a multiple of num_shards={shards}",
                ("num_shards", name, "train_batch_size"),
            )
    return None


def _suggest(request: BatchRequest, names: Iterable[str]) -> Iterator[dict[str, int]]:
    """Single changes that work, nearest first; if there is none, one change of several."""
    found = False
    for name in names:
        current = getattr(request, name)
        if current is None:
            continue
        for values in (_below(request, name, current), _above(request, name, current)):
            works = (v for v in values if _solve(dataclasses.replace(request, **{name: v}))[0])
            nearest_one = next(works, None)
            if nearest_one is not None:
                found = True
                yield {name: nearest_one}
    if not found:
        yield _change_all(request)


def _change_all(request: BatchRequest) -> dict[str, int]:
    """Keeps the train batch and lets everything else adapt to it."""
    batch = request.train_batch_size or _free_batch(request)
    shards = nearest(divisors(batch), request.num_shards or 1) or 1
    envs = nearest(divisors(batch, shards), request.num_envs or DEFAULT_NUM_ENVS) or batch
    size = request.minibatch_size or request.default_minibatch_size
    size = nearest(divisors(batch, shards), size) or batch
    wanted = {
        "train_batch_size": batch,
        "num_envs": envs,
        "rollout_fragment_length": batch // envs,
        "minibatch_size": size,
        "num_shards": shards,
    }
    return {name: value for name, value in wanted.items() if getattr(request, name) is not None}


def _candidates(request: BatchRequest, name: str) -> list[int]:
    """Values of one setting that may work, in ascending order."""
    batch = request.train_batch_size or _free_batch(request)
    if name == "train_batch_size":
        envs, steps = request.num_envs, request.rollout_fragment_length
        shards = request.num_shards or 1
        if envs and steps:
            return [envs * steps]
        rows = shards if request.whole_batch else math.lcm(shards, request.minibatch_size or 1)
        unit = math.lcm(rows, (envs or shards) * (steps or 1))
        return _around(batch, unit)
    if name == "num_shards":
        return divisors(request.num_envs or request.minibatch_size or batch)
    if request.train_batch_size is None and name in ("num_envs", "rollout_fragment_length"):
        other = request.rollout_fragment_length if name == "num_envs" else request.num_envs
        unit = (request.minibatch_size or 1) // math.gcd(request.minibatch_size or 1, other or 1)
        if name == "num_envs":
            unit = math.lcm(unit, request.num_shards or 1)
        return _around(getattr(request, name), unit)
    return divisors(batch)


def _around(value: int, unit: int) -> list[int]:
    """The multiples of `unit` just below and above a value."""
    k = value // unit
    return [n * unit for n in (k - 1, k, k + 1) if n > 0]


def _below(request: BatchRequest, name: str, current: int) -> list[int]:
    return [v for v in reversed(_candidates(request, name)) if v < current]


def _above(request: BatchRequest, name: str, current: int) -> list[int]:
    return [v for v in _candidates(request, name) if v > current]


def _in_words(suggestions: tuple[dict[str, int], ...]) -> str:
    if len(suggestions) == 1 and len(suggestions[0]) > 1:
        changes = ", ".join(f"{SETTING_OF[n]}={v}" for n, v in suggestions[0].items())
        return f"set {changes}"
    values: dict[str, list[str]] = {}
    for change in suggestions:
        for name, value in change.items():
            values.setdefault(SETTING_OF[name], []).append(str(value))
    return "set " + ", or ".join(f"{name} to {' or '.join(v)}" for name, v in values.items())


def _notes(request: BatchRequest, plan: BatchPlan) -> Iterator[str]:
    if request.train_batch_size is None and (
        plan.train_batch_size != request.default_train_batch_size
    ):
        yield (
            f"train_batch_size: {plan.train_batch_size} instead of the default "
            f"{request.default_train_batch_size}, to fit the explicit values."
        )
    if (
        request.minibatch_size is None
        and not request.whole_batch
        and plan.minibatch_size != request.default_minibatch_size
    ):
        yield (
            f"minibatch_size: {plan.minibatch_size} instead of the default "
            f"{request.default_minibatch_size}, which does not divide train_batch_size="
            f"{plan.train_batch_size}."
        )
    if request.num_envs is None:
        yield (
            f"num_envs_per_env_runner='auto': {plan.num_envs}, the number nearest to "
            f"{DEFAULT_NUM_ENVS} that divides the train batch."
            if request.rollout_fragment_length is None
            else f"num_envs_per_env_runner='auto': {plan.num_envs}, train_batch_size divided by "
            "rollout_fragment_length."
        )


def divisors(number: int, multiple_of: int = 1) -> list[int]:
    """The divisors of a number that are multiples of another, in ascending order."""
    low = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    both = sorted({*low, *(number // d for d in low)})
    return [d for d in both if d % multiple_of == 0]


def nearest(values: Iterable[int], target: int) -> int | None:
    """The value with the smallest ratio to the target; of two, the larger."""
    return min(values, key=lambda v: (max(v / target, target / v), -v), default=None)


def choose_num_devices(
    plan: BatchPlan, platform: str, local_device_count: int, requested: int | None = None
) -> tuple[int, str]:
    """How many local devices share the work, and why, in a sentence.

    On a CPU the cores are devices: the largest number that divides `num_shards` and leaves each
    at least 8 environments and 64 rows of a minibatch. On accelerators the largest number that
    divides `num_shards`.

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
    chosen = [n for n in workable if platform != "cpu" or _worth_it(plan, n)][-1]
    why = f"the largest divisor of num_shards={plan.num_shards} up to {local_device_count}"
    if platform == "cpu":
        why += (
            f" that leaves each {MIN_ENVS_PER_CPU_DEVICE} environments and "
            f"{MIN_ROWS_PER_CPU_DEVICE} rows of a minibatch"
        )
    return chosen, f"{chosen} {platform} device{'s' * (chosen > 1)}: {why}."


def _worth_it(plan: BatchPlan, num_devices: int) -> bool:
    return num_devices == 1 or (
        plan.num_envs // num_devices >= MIN_ENVS_PER_CPU_DEVICE
        and plan.minibatch_size // num_devices >= MIN_ROWS_PER_CPU_DEVICE
    )


def _any_of(values: list[int]) -> str:
    words = [str(value) for value in values]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
