"""Arithmetic of train batch sizes: free sizes adapt to the explicit ones, exactly or not at all."""

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction

DEFAULT_NUM_ENVS = 16
MAX_SHARDS = 8
MEASURED_SUFFIX = "='auto': measured when the Algorithm is built; until then"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """Sizes of one training step.

    `num_envs * rollout_fragment_length = train_batch_size`, and `num_shards` divides `num_envs` and
    `minibatch_size`. A batch is `[T, B]` with `num_envs` columns: `fragments_per_batch` fragments
    of `envs_per_runner` columns each. In synchronous training they are the same number of consecutive
    fragments of each runner, otherwise the first fragments to arrive. A minibatch that the batch does not divide into
    continues with the rows of the next epoch.
    """

    num_envs: int
    rollout_fragment_length: int
    train_batch_size: int
    minibatch_size: int
    num_minibatches: int
    """Number of minibatches of one epoch, rounded up."""
    num_epochs: int
    num_shards: int
    num_env_runners: int = 1
    """Number of runners; 1 if there is none besides this process."""
    envs_per_runner: int
    iterations_per_batch: int = 1
    """Number of times that a batch is trained on, with all epochs each time."""
    sequence_length: int | None = None
    """Number of rows that stay together in minibatches, for a stateful module."""
    notes: tuple[str, ...] = ()
    """Sentences on the defaults that were adapted."""
    rounding: str | None = None
    """Sentence on an explicit train batch size that was rounded, one of the notes."""

    @property
    def total_envs(self) -> int:
        """Number of environments of all runners."""
        return self.num_env_runners * self.envs_per_runner

    @property
    def fragments_per_batch(self) -> int:
        """Number of fragments in a train batch."""
        return self.num_envs // self.envs_per_runner

    @property
    def fragments_per_env(self) -> int:
        """Number of consecutive fragments of each environment, in synchronous training."""
        return self.num_envs // self.total_envs

    @property
    def minibatches_per_epoch(self) -> Fraction:
        """Size of the train batch divided by that of a minibatch."""
        return Fraction(self.train_batch_size, self.minibatch_size)

    @property
    def updates_per_iteration(self) -> int:
        """Number of gradient steps in one training step."""
        return math.ceil(self.num_epochs * self.minibatches_per_epoch) * self.iterations_per_batch

    def describe(self) -> str:
        """Return the arithmetic in one line."""
        repeats = f" x {self.iterations_per_batch} times" if self.iterations_per_batch > 1 else ""
        return (
            f"{self._describe_columns()} x {self.rollout_fragment_length} steps = "
            f"{self.train_batch_size}; {float(self.minibatches_per_epoch):.6g} minibatches of "
            f"{self.minibatch_size} x {self.num_epochs} epochs{repeats} = "
            f"{self.updates_per_iteration} updates an iteration"
        )

    def _describe_columns(self) -> str:
        if self.total_envs != self.num_envs:
            return f"{self.fragments_per_batch} fragments x {self.envs_per_runner} envs"
        if self.num_env_runners > 1:
            return f"{self.num_env_runners} runners x {self.envs_per_runner} envs"
        return f"{self.num_envs} envs"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchRequest:
    """Sizes that were set explicitly; None for those that the plan is free to choose.

    Free sizes stay close to the defaults. With `is_whole_batch`, a minibatch is the train batch.
    """

    train_batch_size: int | None
    envs_per_runner: int | None
    rollout_fragment_length: int | None
    minibatch_size: int | None
    num_shards: int | None
    num_env_runners: int = 1
    num_learners: int = 1
    is_async: bool = False
    """True if a batch is made of any fragments, instead of one from each runner."""
    is_per_learner: bool = False
    """True if the train batch was set as train_batch_size_per_learner."""
    num_epochs: int = 1
    iterations_per_batch: int = 1
    is_whole_batch: bool = False
    default_train_batch_size: int = 4000
    default_minibatch_size: int = 128
    is_tuning_num_envs: bool = False  # by a measurement when the run is built
    default_rollout_fragment_length: int | None = None
    """Default length, if it may adapt to an explicit train batch size."""

    @property
    def shard_unit(self) -> int:
        """Number that divides columns and minibatches."""
        return math.lcm(self.num_shards or 1, self.num_learners)

    @property
    def num_columns(self) -> int | None:
        """Number of columns of one fragment of every runner, if the settings determine it."""
        if self.envs_per_runner is None or self.is_async:
            return None
        return self.num_env_runners * self.envs_per_runner

    @property
    def factors(self) -> dict[str, int]:
        """Explicit sizes that are factors of the train batch, by field name."""
        is_single_runner = self.is_async or self.num_env_runners == 1
        factors = {
            "num_env_runners": None if is_single_runner else self.num_env_runners,
            "envs_per_runner": self.envs_per_runner,
            "rollout_fragment_length": self.rollout_fragment_length,
        }
        return {name: value for name, value in factors.items() if value is not None}

    @property
    def column_unit(self) -> int:
        """Number that divides every possible number of columns."""
        fragment = self.envs_per_runner or 1
        return math.lcm(self.shard_unit, fragment * (1 if self.is_async else self.num_env_runners))

    @property
    def batch_unit(self) -> int:
        """Number that divides the train batch size."""
        rows = self.shard_unit
        if not self.is_whole_batch:
            rows = math.lcm(rows, self.minibatch_size or 1)
        columns = self.num_columns or self.column_unit
        return math.lcm(rows, columns * (self.rollout_fragment_length or 1))


SETTING_BY_FIELD = {
    "train_batch_size": "train_batch_size",
    "envs_per_runner": "num_envs_per_env_runner",
    "num_env_runners": "num_env_runners",
    "rollout_fragment_length": "rollout_fragment_length",
    "minibatch_size": "minibatch_size",
    "num_shards": "num_shards",
}
"""Setting behind each field of the request."""


@dataclasses.dataclass(frozen=True)
class PlanProblem:
    """Reason why there is no plan, as the beginning of a sentence, and fields that could change."""

    message: str = ""
    field_names: tuple[str, ...] = ()
    advice: str = ""
    """Remedy, if no change of a single field helps."""


def solve_plan(request: BatchRequest) -> tuple[BatchPlan | None, PlanProblem]:
    """Return the plan closest to the request, or the first problem that rules out any plan."""
    batch = _round_train_batch_size(request) or choose_train_batch_size(request)
    problem = _find_size_problem(request, batch)
    if problem is not None:
        return None, problem
    columns = _count_columns(request, batch) or _choose_columns(request, batch)
    steps = request.rollout_fragment_length or max(1, batch // columns)
    size = batch if request.is_whole_batch else request.minibatch_size
    size = (
        size
        or find_nearest(divisors(batch, request.shard_unit), request.default_minibatch_size)
        or batch
    )
    problem = _find_problem(request, batch, columns, steps, size)
    if problem is not None:
        return None, problem
    plan = BatchPlan(
        num_envs=columns,
        rollout_fragment_length=steps,
        train_batch_size=batch,
        minibatch_size=size,
        num_minibatches=math.ceil(batch / size),
        num_epochs=request.num_epochs,
        iterations_per_batch=request.iterations_per_batch,
        num_shards=request.num_shards
        or _choose_num_shards(request, math.gcd(request.num_columns or columns, size)),
        num_env_runners=request.num_env_runners,
        envs_per_runner=_choose_envs_per_runner(request, columns),
    )
    return add_notes(request, plan), PlanProblem()


MAX_ROUNDING = 0.1
"""Largest relative change of an explicit train batch size, RLlib's own tolerance."""


def _round_train_batch_size(request: BatchRequest) -> int | None:
    """Return the explicit train batch size, rounded to whole steps of all environments.

    With an explicit number of environments and length of fragments, these are whole fragments of
    all environments. A size that rounding would change by more than `MAX_ROUNDING` is returned
    unchanged, as is that of fragments of a number of environments that is free.
    """
    batch, columns = request.train_batch_size, math.prod(request.factors.values())
    is_free = request.num_columns is None
    if batch is None or (is_free and request.rollout_fragment_length is not None):
        return batch
    rounded = (batch + columns // 2) // columns * columns
    return rounded if abs(rounded - batch) <= MAX_ROUNDING * batch else batch


def add_notes(request: BatchRequest, plan: BatchPlan, *notes: str) -> BatchPlan:
    """Return the plan with sentences on what was adapted, followed by the given notes."""
    rounding = _describe_rounding(request, plan)
    first = () if rounding is None else (rounding,)
    adapted = describe_adaptations(request, plan)
    return dataclasses.replace(plan, notes=(*first, *adapted, *notes), rounding=rounding)


def _describe_rounding(request: BatchRequest, plan: BatchPlan) -> str | None:
    """Return a sentence on an explicit train batch size that was rounded, or None."""
    if request.train_batch_size in (None, plan.train_batch_size):
        return None
    factors = _format_product(request.factors)
    return (
        f"{_format_batch_size(request, request.train_batch_size or 0)} is rounded to "
        f"{plan.train_batch_size}, {plan.train_batch_size // plan.total_envs} steps of every "
        f"environment: it is not a multiple of {factors}."
    )


def _find_size_problem(request: BatchRequest, batch: int) -> PlanProblem | None:
    """Return a problem if the explicit sizes exceed MAX_COUNT rows, before anything is divided."""
    units = math.lcm(request.column_unit, request.shard_unit)
    if max(batch, request.num_columns or 0, units) <= MAX_COUNT:
        return None
    sizes = ", ".join(
        words for words in (_format_field(request, name) for name in SETTING_BY_FIELD) if words
    )
    return PlanProblem(
        f"{sizes}: together they require more than {MAX_COUNT} rows in a train batch",
        advice="set smaller values",
    )


def _format_field(request: BatchRequest, name: str) -> str:
    """Return a field of the request as `setting=value`, or an empty string if it is free or 1."""
    value = getattr(request, name)
    return "" if value is None or value == 1 else f"{SETTING_BY_FIELD[name]}={value}"


def choose_train_batch_size(request: BatchRequest) -> int:
    """Return the multiple of all explicit sizes that is nearest to the default train batch size."""
    if request.num_columns and request.rollout_fragment_length:
        return request.num_columns * request.rollout_fragment_length
    unit = request.batch_unit
    return max(1, math.floor(request.default_train_batch_size / unit + 0.5)) * unit


def _count_columns(request: BatchRequest, batch: int) -> int | None:
    """Return the columns that the settings determine: those of as many fragments as fill the batch."""
    columns, steps = request.num_columns, request.rollout_fragment_length
    if columns is None or steps is None:
        return columns
    return columns * max(1, batch // (columns * steps))


def _choose_columns(request: BatchRequest, batch: int) -> int:
    if request.rollout_fragment_length:
        return max(1, batch // request.rollout_fragment_length)
    wanted = DEFAULT_NUM_ENVS
    if request.default_rollout_fragment_length is not None:
        wanted = max(1, batch // request.default_rollout_fragment_length)
    elif request.envs_per_runner is not None:
        wanted = request.envs_per_runner * request.num_env_runners
    unit = request.column_unit
    return find_nearest(divisors(batch, unit), wanted) or unit


def _choose_envs_per_runner(request: BatchRequest, columns: int) -> int:
    if request.envs_per_runner is not None:
        return request.envs_per_runner
    share = columns / request.num_env_runners
    return find_nearest(divisors(columns), share) or columns


def _choose_num_shards(request: BatchRequest, common: int) -> int:
    """Return the largest of 8, 4, 2, 1 times the number of learners that divides `common`."""
    learners = request.num_learners
    return next(
        learners * factor
        for factor in (8, 4, 2, 1)
        if common % (learners * factor) == 0 and (learners * factor <= MAX_SHARDS or factor == 1)
    )


def _find_problem(
    request: BatchRequest, batch: int, columns: int, steps: int, size: int
) -> PlanProblem | None:
    if request.num_shards and request.num_shards % request.num_learners:
        return PlanProblem(
            f"num_shards={request.num_shards} is not a multiple of "
            f"num_learners={request.num_learners}",
            ("num_shards",),
        )
    problem = _find_column_problem(request, batch, columns, steps)
    if problem is not None:
        return problem
    if size > batch:
        return PlanProblem(
            f"minibatch_size={size} is more than {_format_batch_size(request, batch)}",
            ("minibatch_size", "train_batch_size", "envs_per_runner"),
        )
    # Environments in the compiled program are divided over devices with all of their fragments.
    divided = request.num_columns or columns
    if divided % request.shard_unit:
        return PlanProblem(
            f"{_format_columns(request, batch, divided)} is not a multiple of "
            f"{_format_shards(request)}",
            ("num_shards", "envs_per_runner", "rollout_fragment_length", "train_batch_size"),
        )
    if size % request.shard_unit:
        return PlanProblem(
            f"minibatch_size={size} is not a multiple of {_format_shards(request)}",
            ("num_shards", "minibatch_size", "train_batch_size"),
        )
    return None


def _find_column_problem(
    request: BatchRequest, batch: int, columns: int, steps: int
) -> PlanProblem | None:
    """Return a problem unless the batch is columns times steps, and a multiple of all factors."""
    factors = request.factors
    product = math.prod(factors.values())
    product_text = _format_product(factors)
    if request.num_columns and request.rollout_fragment_length and product > batch:
        return PlanProblem(
            f"{product_text} is {product}, not {_format_batch_size(request, batch)}",
            (*reversed(factors), "train_batch_size"),
        )
    if batch % product:
        total = f" = {product}" if len(factors) > 1 else ""
        return PlanProblem(
            f"{_format_batch_size(request, batch)} is not a multiple of {product_text}{total}",
            (*factors, "train_batch_size"),
        )
    if columns * steps != batch:
        return PlanProblem(
            f"{_format_batch_size(request, batch)} is not a multiple of {_format_shards(request)}",
            ("num_shards", "train_batch_size"),
        )
    return None


def _format_product(factors: Mapping[str, int]) -> str:
    return " x ".join(f"{SETTING_BY_FIELD[name]}={value}" for name, value in factors.items())


def _format_batch_size(request: BatchRequest, batch: int) -> str:
    if not request.is_per_learner:
        return f"train_batch_size={batch}"
    learners = request.num_learners
    share = f"train_batch_size_per_learner={batch // learners}"
    return share if learners == 1 else f"{share} x num_learners={learners} = {batch}"


def _format_columns(request: BatchRequest, batch: int, columns: int) -> str:
    if request.num_columns is None:
        return (
            f"{_format_batch_size(request, batch)} over "
            f"rollout_fragment_length={request.rollout_fragment_length}, that is {columns},"
        )
    runners = request.num_env_runners
    envs = f"num_envs_per_env_runner={columns // runners}"
    return envs if runners == 1 else f"num_env_runners={runners} x {envs} = {columns}"


def _format_shards(request: BatchRequest) -> str:
    if request.num_shards:
        return f"num_shards={request.num_shards}"
    return f"num_learners={request.num_learners}"


def describe_adaptations(request: BatchRequest, plan: BatchPlan) -> Iterator[str]:
    """Yield a sentence for every default that was adapted."""
    if request.train_batch_size is None and (
        plan.train_batch_size != request.default_train_batch_size
    ):
        yield (
            f"train_batch_size: {plan.train_batch_size} instead of the default "
            f"{request.default_train_batch_size}, to fit the explicit values."
        )
    if (
        request.minibatch_size is None
        and not request.is_whole_batch
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
        yield _describe_num_envs(request, plan)


def _describe_num_envs(request: BatchRequest, plan: BatchPlan) -> str:
    suffix = MEASURED_SUFFIX if request.is_tuning_num_envs else ":"
    chosen = f"num_envs_per_env_runner{suffix} {plan.envs_per_runner}"
    runners = plan.num_env_runners
    if request.is_async:
        return f"{chosen}, for {plan.fragments_per_batch} fragments a train batch."
    if request.rollout_fragment_length is not None:
        divisor = (
            "rollout_fragment_length" if runners == 1 else "rollout_fragment_length and runners"
        )
        return f"{chosen}, train_batch_size divided by {divisor}."
    target = DEFAULT_NUM_ENVS
    if request.default_rollout_fragment_length is not None:
        target = plan.train_batch_size // request.default_rollout_fragment_length
    rule = f"the number nearest to {target} that divides the train batch."
    scope = "" if runners == 1 else f"as the total of {runners} runners is "
    return f"{chosen}, {scope}{rule}"


MAX_COUNT = 2**31 - 1
"""Largest number of rows, environments or other items; arrays are indexed with 32 bits."""


def divisors(number: int, multiple_of: int = 1) -> list[int]:
    """Return the divisors of a number that are multiples of another, in ascending order."""
    return [d for d in _compute_divisors(number) if d % multiple_of == 0]


@functools.lru_cache(maxsize=1024)
def _compute_divisors(number: int) -> tuple[int, ...]:
    """Return all products of prime factors.

    A number up to MAX_COUNT takes at most about 23,000 divisions.
    """
    if number > 2 * MAX_COUNT:
        raise ValueError(f"{number} is too large to factor; check it against MAX_COUNT first.")
    found, remainder, factor = [1], number, 2
    while remainder > 1:
        if factor * factor > remainder:
            factor = remainder  # the remainder is prime
        powers = [1]
        while remainder % factor == 0:
            remainder //= factor
            powers.append(powers[-1] * factor)
        if len(powers) > 1:
            found = [d * power for d in found for power in powers]
        factor += 1 if factor == 2 else 2
    return tuple(sorted(found))


def find_nearest(values: Iterable[int], target: float) -> int | None:
    """Return the value with the smallest ratio to the target, the larger one in a tie."""
    return min(values, key=lambda v: (max(v / target, target / v), -v), default=None)
