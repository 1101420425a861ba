"""The numbers of a train batch: what is free adapts to what is set, exactly or not at all."""

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Mapping

DEFAULT_NUM_ENVS = 16
MAX_SHARDS = 8
MEASURED = "='auto': measured when the Algorithm is built; until then"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """How many of what one training step has.

    `num_envs * rollout_fragment_length = train_batch_size = num_minibatches * minibatch_size`,
    and `num_shards` divides `num_envs` and `minibatch_size`. A batch is `[T, B]` with `num_envs`
    columns: `fragments_per_batch` fragments of `envs_per_runner` columns each, one of each runner
    where runners and learner take turns, else of whichever runners were first.
    """

    num_envs: int
    rollout_fragment_length: int
    train_batch_size: int
    minibatch_size: int
    num_minibatches: int
    num_epochs: int
    num_shards: int
    num_env_runners: int = 1
    """1 also where there is none beside this process."""
    envs_per_runner: int
    iterations_per_batch: int = 1
    """How often a batch is learned from, all epochs each time."""
    sequence_length: int | None = None
    """Rows that stay together in minibatches, for a module that remembers."""
    notes: tuple[str, ...] = ()
    """A sentence for every default that adapted."""

    @property
    def total_envs(self) -> int:
        """Environments of all runners."""
        return self.num_env_runners * self.envs_per_runner

    @property
    def fragments_per_batch(self) -> int:
        """Fragments that make a train batch."""
        return self.num_envs // self.envs_per_runner

    @property
    def updates_per_iteration(self) -> int:
        """Gradient steps of one training step."""
        return self.num_minibatches * self.num_epochs * self.iterations_per_batch

    def describe(self) -> str:
        """The arithmetic in one line."""
        again = f" x {self.iterations_per_batch} times" if self.iterations_per_batch > 1 else ""
        return (
            f"{self._columns()} x {self.rollout_fragment_length} steps = "
            f"{self.train_batch_size}; {self.num_minibatches} minibatches of "
            f"{self.minibatch_size} x {self.num_epochs} epochs{again} = "
            f"{self.updates_per_iteration} updates an iteration"
        )

    def _columns(self) -> str:
        if self.total_envs != self.num_envs:
            return f"{self.fragments_per_batch} fragments x {self.envs_per_runner} envs"
        if self.num_env_runners > 1:
            return f"{self.num_env_runners} runners x {self.envs_per_runner} envs"
        return f"{self.num_envs} envs"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchRequest:
    """What the settings say; None where the plan is free to choose.

    The defaults are what the plan stays close to. `minibatch_size` with `whole_batch` is the train
    batch itself.
    """

    train_batch_size: int | None
    envs_per_runner: int | None
    rollout_fragment_length: int | None
    minibatch_size: int | None
    num_shards: int | None
    num_env_runners: int = 1
    num_learners: int = 1
    asynchronous: bool = False
    """Whether a batch is any fragments, not one of each runner."""
    per_learner: bool = False
    """Whether the train batch was set as train_batch_size_per_learner."""
    num_epochs: int = 1
    iterations_per_batch: int = 1
    whole_batch: bool = False
    default_train_batch_size: int = 4000
    default_minibatch_size: int = 128
    measures_envs: bool = False  # by a trial, when the run is built
    default_rollout_fragment_length: int | None = None
    """Where a length is the default and may adapt to the train batch that was set."""

    @property
    def shards(self) -> int:
        """What columns and minibatches are multiples of."""
        return math.lcm(self.num_shards or 1, self.num_learners)

    @property
    def columns(self) -> int | None:
        """The columns of the batch, where the settings alone say it."""
        if self.envs_per_runner is None or self.asynchronous:
            return None
        return self.num_env_runners * self.envs_per_runner

    @property
    def factors(self) -> dict[str, int]:
        """What the settings say that the train batch is a product of, or a multiple."""
        alone = self.asynchronous or self.num_env_runners == 1
        factors = {
            "num_env_runners": None if alone else self.num_env_runners,
            "envs_per_runner": self.envs_per_runner,
            "rollout_fragment_length": self.rollout_fragment_length,
        }
        return {name: value for name, value in factors.items() if value is not None}

    @property
    def column_unit(self) -> int:
        """What the number of columns is a multiple of, however it is chosen."""
        fragment = self.envs_per_runner or 1
        return math.lcm(self.shards, fragment * (1 if self.asynchronous else self.num_env_runners))

    @property
    def batch_unit(self) -> int:
        """What the train batch is a multiple of."""
        rows = self.shards
        if not self.whole_batch:
            rows = math.lcm(rows, self.minibatch_size or 1)
        columns = self.columns or self.column_unit
        return math.lcm(rows, columns * (self.rollout_fragment_length or 1))


SETTING_OF = {
    "train_batch_size": "train_batch_size",
    "envs_per_runner": "num_envs_per_env_runner",
    "num_env_runners": "num_env_runners",
    "rollout_fragment_length": "rollout_fragment_length",
    "minibatch_size": "minibatch_size",
    "num_shards": "num_shards",
}
"""The setting that a number of the request comes from."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """Why there is no plan, as the beginning of a sentence, and what could change."""

    sentence: str = ""
    names: tuple[str, ...] = ()
    advice: str = ""
    """What to do where no single change would help."""


def solve(request: BatchRequest) -> tuple[BatchPlan | None, Problem]:
    """The plan closest to the request, or the first reason why there is none."""
    batch = request.train_batch_size or free_batch(request)
    problem = _size_problem(request, batch)
    if problem is not None:
        return None, problem
    columns = request.columns or _free_columns(request, batch)
    steps = request.rollout_fragment_length or max(1, batch // columns)
    size = batch if request.whole_batch else request.minibatch_size
    size = size or nearest(divisors(batch, request.shards), request.default_minibatch_size) or batch
    problem = _first_problem(request, batch, columns, steps, size)
    if problem is not None:
        return None, problem
    plan = BatchPlan(
        num_envs=columns,
        rollout_fragment_length=steps,
        train_batch_size=batch,
        minibatch_size=size,
        num_minibatches=batch // size,
        num_epochs=request.num_epochs,
        iterations_per_batch=request.iterations_per_batch,
        num_shards=request.num_shards or _free_shards(request, math.gcd(columns, size)),
        num_env_runners=request.num_env_runners,
        envs_per_runner=_envs_per_runner(request, columns),
    )
    return dataclasses.replace(plan, notes=tuple(notes_of(request, plan))), Problem()


def _size_problem(request: BatchRequest, batch: int) -> Problem | None:
    """Whether what is explicit makes more rows than there can be, before anything is divided."""
    units = math.lcm(request.column_unit, request.shards)
    if max(batch, request.columns or 0, units) <= MAX_COUNT:
        return None
    said = ", ".join(words for words in (_in_words(request, name) for name in SETTING_OF) if words)
    return Problem(
        f"{said}: together they ask for more than {MAX_COUNT} rows in a train batch",
        advice="set smaller ones",
    )


def _in_words(request: BatchRequest, name: str) -> str:
    """A number of the request under its setting's name; empty where it is free."""
    value = getattr(request, name)
    return "" if value is None or value == 1 else f"{SETTING_OF[name]}={value}"


def free_batch(request: BatchRequest) -> int:
    """The multiple of everything explicit that is nearest to the default train batch."""
    if request.columns and request.rollout_fragment_length:
        return request.columns * request.rollout_fragment_length
    unit = request.batch_unit
    return max(1, math.floor(request.default_train_batch_size / unit + 0.5)) * unit


def _free_columns(request: BatchRequest, batch: int) -> int:
    if request.rollout_fragment_length:
        return max(1, batch // request.rollout_fragment_length)
    wanted = DEFAULT_NUM_ENVS
    if request.default_rollout_fragment_length is not None:
        wanted = max(1, batch // request.default_rollout_fragment_length)
    elif request.envs_per_runner is not None:
        wanted = request.envs_per_runner * request.num_env_runners
    unit = request.column_unit
    return nearest(divisors(batch, unit), wanted) or unit


def _envs_per_runner(request: BatchRequest, columns: int) -> int:
    if request.envs_per_runner is not None:
        return request.envs_per_runner
    share = columns / request.num_env_runners
    return nearest(divisors(columns), share) or columns


def _free_shards(request: BatchRequest, common: int) -> int:
    """The largest of 8, 4, 2, 1 times what the learners need; `common` is a multiple of theirs."""
    learners = request.num_learners
    return next(
        learners * more
        for more in (8, 4, 2, 1)
        if common % (learners * more) == 0 and (learners * more <= MAX_SHARDS or more == 1)
    )


def _first_problem(
    request: BatchRequest, batch: int, columns: int, steps: int, size: int
) -> Problem | None:
    if request.num_shards and request.num_shards % request.num_learners:
        return Problem(
            f"num_shards={request.num_shards} is not a multiple of "
            f"num_learners={request.num_learners}",
            ("num_shards",),
        )
    problem = _column_problem(request, batch, columns, steps)
    if problem is not None:
        return problem
    if batch % size:
        return Problem(
            f"{_batch_in_words(request, batch)} is not a multiple of minibatch_size={size}",
            ("minibatch_size", "train_batch_size", "envs_per_runner"),
        )
    if columns % request.shards:
        return Problem(
            f"{_columns_in_words(request, batch, columns)} is not a multiple of "
            f"{_shards_in_words(request)}",
            ("num_shards", "envs_per_runner", "rollout_fragment_length", "train_batch_size"),
        )
    if size % request.shards:
        return Problem(
            f"minibatch_size={size} is not a multiple of {_shards_in_words(request)}",
            ("num_shards", "minibatch_size", "train_batch_size"),
        )
    return None


def _column_problem(request: BatchRequest, batch: int, columns: int, steps: int) -> Problem | None:
    """Whether the train batch is columns times steps, and the columns those of the runners."""
    factors = request.factors
    product = math.prod(factors.values())
    whole = _product_in_words(factors)
    if request.columns and request.rollout_fragment_length and product != batch:
        return Problem(
            f"{whole} is {product}, not {_batch_in_words(request, batch)}",
            (*reversed(factors), "train_batch_size"),
        )
    if batch % product:
        total = f" = {product}" if len(factors) > 1 else ""
        return Problem(
            f"{_batch_in_words(request, batch)} is not a multiple of {whole}{total}",
            (*factors, "train_batch_size"),
        )
    if columns * steps != batch:
        return Problem(
            f"{_batch_in_words(request, batch)} is not a multiple of {_shards_in_words(request)}",
            ("num_shards", "train_batch_size"),
        )
    return None


def _product_in_words(factors: Mapping[str, int]) -> str:
    return " x ".join(f"{SETTING_OF[name]}={value}" for name, value in factors.items())


def _batch_in_words(request: BatchRequest, batch: int) -> str:
    if not request.per_learner:
        return f"train_batch_size={batch}"
    learners = request.num_learners
    share = f"train_batch_size_per_learner={batch // learners}"
    return share if learners == 1 else f"{share} x num_learners={learners} = {batch}"


def _columns_in_words(request: BatchRequest, batch: int, columns: int) -> str:
    if request.columns is None:
        return (
            f"{_batch_in_words(request, batch)} over "
            f"rollout_fragment_length={request.rollout_fragment_length}, that is {columns},"
        )
    runners = request.num_env_runners
    envs = f"num_envs_per_env_runner={columns // runners}"
    return envs if runners == 1 else f"num_env_runners={runners} x {envs} = {columns}"


def _shards_in_words(request: BatchRequest) -> str:
    if request.num_shards:
        return f"num_shards={request.num_shards}"
    return f"num_learners={request.num_learners}"


def notes_of(request: BatchRequest, plan: BatchPlan) -> Iterator[str]:
    """Say of every default how it adapted."""
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
    wanted = request.default_rollout_fragment_length
    if wanted is not None and plan.rollout_fragment_length != wanted:
        yield (
            f"rollout_fragment_length: {plan.rollout_fragment_length} instead of the default "
            f"{wanted}, to fit the explicit values."
        )
    if request.envs_per_runner is None:
        yield _note_on_envs(request, plan)


def _note_on_envs(request: BatchRequest, plan: BatchPlan) -> str:
    how = MEASURED if request.measures_envs else ":"
    chosen = f"num_envs_per_env_runner{how} {plan.envs_per_runner}"
    runners = plan.num_env_runners
    if request.asynchronous:
        return f"{chosen}, for {plan.fragments_per_batch} fragments a train batch."
    if request.rollout_fragment_length is not None:
        by = "rollout_fragment_length" if runners == 1 else "rollout_fragment_length and runners"
        return f"{chosen}, train_batch_size divided by {by}."
    nearest_to = DEFAULT_NUM_ENVS
    if request.default_rollout_fragment_length is not None:
        nearest_to = plan.train_batch_size // request.default_rollout_fragment_length
    number = f"the number nearest to {nearest_to} that divides the train batch."
    together = "" if runners == 1 else f"as all {runners} have together "
    return f"{chosen}, {together}{number}"


MAX_COUNT = 2**31 - 1
"""The most rows, environments or parts of anything: arrays are indexed with 32 bits."""


def divisors(number: int, multiple_of: int = 1) -> list[int]:
    """List the divisors of a count that are multiples of another, in ascending order."""
    return [d for d in _divisors(number) if d % multiple_of == 0]


@functools.lru_cache(maxsize=1024)
def _divisors(number: int) -> tuple[int, ...]:
    """All products of prime factors; at most some 23,000 divisions for a number up to MAX_COUNT."""
    if number > 2 * MAX_COUNT:
        raise ValueError(f"{number} is beyond what is counted; check it against MAX_COUNT first.")
    found, left, factor = [1], number, 2
    while left > 1:
        if factor * factor > left:
            factor = left  # what is left is a prime
        powers = [1]
        while left % factor == 0:
            left //= factor
            powers.append(powers[-1] * factor)
        if len(powers) > 1:
            found = [d * power for d in found for power in powers]
        factor += 1 if factor == 2 else 2
    return tuple(sorted(found))


def nearest(values: Iterable[int], target: float) -> int | None:
    """The value with the smallest ratio to the target; of two, the larger."""
    return min(values, key=lambda v: (max(v / target, target / v), -v), default=None)
