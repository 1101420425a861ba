"""Arithmetic of train batches: explicit sizes are kept, free ones adapt, exactly or not at all.

A `BatchRequest` has the sizes that a config sets explicitly, and `make_plan` solves it. Replay, recorded
data and several agents have plans of their own kind; those of several agents have one by module.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from jaxrl.config.agent_mapping import AgentMapping
from jaxrl.config.fields import MAX_COUNT
from jaxrl.config.markers import contains_tune_marker, find_markers
from jaxrl.config.modules import get_rows_per_sample
from jaxrl.config.multi_agent import (
    AnyMadeMulti,
    make_agents_env,
    make_module_config,
    resolve_agents,
)
from jaxrl.config.offline import count_source_rows
from jaxrl.config.settings.replay import OffPolicyTraining, parse_n_step
from jaxrl.envs.contract import find_acting
from jaxrl.envs.multi.host_made import MadeMultiHostEnv
from jaxrl.envs.multi.made import MadeMultiEnv
from jaxrl.errors import ConfigError

if TYPE_CHECKING:
    from jaxrl.config.config import Config

DEFAULT_NUM_ENVS = 16
MAX_SHARDS = 8
MAX_ROUNDING = 0.1
"""Largest relative change of an explicit train batch size, RLlib's own tolerance."""
MAX_CANDIDATES = 200
"""Number of values that are tried as suggestions, both below and above the explicit one."""
MAX_SEQUENCE_LENGTHS = 1000
"""Number of sequence lengths that are tried if no explicit size has to be a multiple of them."""
MAX_INTENSITY_DENOMINATOR = 10_000
MAX_UPDATES_PER_BATCH = 128
"""Maximum number of gradient steps on recorded data per train batch, between which a run may stop."""
MIN_ROWS_PER_CPU_DEVICE = 64
MEASURED_SUFFIX = "='auto': measured when the Algorithm is built; until then"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """Sizes of one training step.

    `num_envs * rollout_fragment_length = train_batch_size`, and `num_shards` divides `num_envs` and
    `minibatch_size`. A batch is `[T, B]` with `num_envs` columns: `fragments_per_batch` fragments
    of `envs_per_runner` columns each. In synchronous training they are the same number of consecutive
    fragments of each runner, otherwise the first fragments to arrive. A minibatch that the batch does
    not divide into continues with the rows of the next epoch.
    """

    num_envs: int
    rollout_fragment_length: int
    train_batch_size: int
    minibatch_size: int
    num_minibatches: int
    """Number of minibatches of one epoch, rounded up."""
    num_epochs: int = 1
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


class BatchSizeError(ConfigError):
    """Explicit sizes that are not divisible.

    Attributes:
        suggestions: Changes of fields, each of which makes a valid plan.
    """

    def __init__(self, message: str, suggestions: tuple[dict[str, int], ...] = ()) -> None:
        super().__init__(message)
        self.suggestions = suggestions


def plan_batches(config: "Config") -> BatchPlan:
    """Return the exact sizes of a config's train batch and its parts.

    Raises:
        ConfigError: If a setting is a search marker.
        BatchSizeError: If explicit sizes are not divisible; the message suggests others.
    """
    refuse_markers(config)
    if config.is_multi_agent:
        return _plan_agents(config)
    if config.is_offline:
        return _plan_recorded(config)
    if isinstance(config.training_settings, OffPolicyTraining):
        return _plan_replay(config)
    return make_plan(make_batch_request(config), get_rows_per_sample(config))


def refuse_markers(config: "Config") -> None:
    """Raise if settings hold search markers, which a sweep or Ray Tune must resolve first."""
    if config.sweep_settings.scheduler is not None:
        raise ConfigError(
            "sweep(scheduler=...) compares the lanes of a sweep, but this would be a single run: "
            "build() makes a Population; Ray Tune has its own schedulers."
        )
    for name, value in config.items():
        if any(True for _ in find_markers(value)):
            raise ConfigError(
                f"{name} is swept, got {value!r}, so this config describes several runs: build() "
                "makes a Population of them, and tune.Tuner(..., param_space=config) trials."
            )
        if contains_tune_marker(value):
            raise ConfigError(
                f"{name} is a search marker, got {value!r}; give the config to "
                "tune.Tuner(..., param_space=config), which tries its values, or set one of them."
            )


def _resolve_batch_size(config: "Config") -> int | None:
    """Return the train batch size over all learners if one was set explicitly, else None.

    Raises:
        ConfigError: If the two train batch sizes contradict each other.
    """
    training, learners = config.training_settings, max(1, config.learners_settings.num_learners)
    share, whole = training.train_batch_size_per_learner, training.train_batch_size
    is_explicit = "train_batch_size" in config.explicit
    if share is None:
        return whole if is_explicit else None
    if is_explicit and whole != share * learners:
        raise ConfigError(
            f"train_batch_size={whole} is not train_batch_size_per_learner={share} for each of "
            f"{learners} learner{'s' * (learners > 1)}; set only one of them."
        )
    return share * learners


# --- sizes that were set, and the plan closest to them ---


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
    is_tuning_num_envs: bool = False
    """True if the number of environments is measured when the run is built."""
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
    def num_rows(self) -> int | None:
        """Number of rows of one fragment of every runner, if the settings determine it."""
        if self.num_columns is None or self.rollout_fragment_length is None:
            return None
        return self.num_columns * self.rollout_fragment_length

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

    @property
    def nearest_batch_size(self) -> int:
        """Explicit train batch size, or the multiple of all explicit sizes nearest to the default."""
        if self.train_batch_size is not None:
            return self.train_batch_size
        if self.num_rows is not None:
            return self.num_rows
        unit = self.batch_unit
        return max(1, math.floor(self.default_train_batch_size / unit + 0.5)) * unit


SETTING_BY_FIELD = {
    "train_batch_size": "train_batch_size",
    "envs_per_runner": "num_envs_per_env_runner",
    "num_env_runners": "num_env_runners",
    "rollout_fragment_length": "rollout_fragment_length",
    "minibatch_size": "minibatch_size",
    "num_shards": "num_shards",
}
"""Setting behind each field of the request."""


def make_batch_request(config: "Config") -> BatchRequest:
    """Return the explicit sizes of a config; None for those that the plan is free to choose.

    Raises:
        ConfigError: If the two train batch sizes contradict each other.
    """
    training, runners = config.training_settings, config.env_runners_settings
    learners, use = config.learners_settings, config.training_settings.batch_use
    size = use.minibatch_size
    envs, steps, shards = (
        None if value in (None, "auto") else value
        for value in (
            runners.num_envs_per_env_runner,
            runners.rollout_fragment_length,
            learners.num_shards,
        )
    )
    batch = _resolve_batch_size(config)
    # A default length adapts to an explicit train batch size.
    adapts = batch is not None and "rollout_fragment_length" not in config.explicit
    return BatchRequest(
        train_batch_size=batch,
        envs_per_runner=envs,
        rollout_fragment_length=None if adapts else steps,
        default_rollout_fragment_length=steps if adapts else None,
        is_tuning_num_envs=runners.num_envs_per_env_runner == "auto",
        minibatch_size=size if "minibatch_size" in config.explicit else None,
        num_shards=shards,
        num_env_runners=max(1, runners.num_env_runners),
        num_learners=max(1, learners.num_learners),
        # Without actors, the environments of this process produce the whole batch.
        is_async=config.is_async and runners.num_env_runners > 0,
        is_per_learner=training.train_batch_size_per_learner is not None,
        num_epochs=use.num_epochs,
        iterations_per_batch=use.iterations_per_batch,
        is_whole_batch=size is None,
        default_train_batch_size=training.train_batch_size,
        default_minibatch_size=size or training.train_batch_size,
    )


class _ProblemError(Exception):
    """Reason why there is no plan, as the beginning of a sentence.

    Attributes:
        message: The reason.
        fields: Fields of the request that could change; none if no change of a single one helps.
    """

    def __init__(self, message: str, *fields: str) -> None:
        super().__init__(message)
        self.message, self.fields = message, fields


def make_plan(request: BatchRequest, max_seq_len: int = 1) -> BatchPlan:
    """Return the plan closest to the request.

    Args:
        request: Explicit sizes and defaults.
        max_seq_len: Maximum number of rows that should stay together in a minibatch.

    Raises:
        BatchSizeError: If explicit sizes are not divisible; the message suggests sizes that are.
    """
    plan = _solve_sequences(request, max_seq_len) if max_seq_len > 1 else None
    if plan is not None:
        return plan
    try:
        return _solve(request)
    except _ProblemError as problem:
        if not problem.fields:
            raise BatchSizeError(f"{problem.message}; set smaller values.") from None
        suggestions = _suggest_changes(request, problem.fields)
        advice = _format_suggestions(request, suggestions)
        raise BatchSizeError(f"{problem.message}: set {advice}.", suggestions) from None


def _solve(request: BatchRequest) -> BatchPlan:
    """Return the plan closest to the request.

    Raises:
        _ProblemError: If there is none.
    """
    batch = _round_batch_size(request)
    _check_countable(request, batch)
    columns = _choose_columns(request, batch)
    steps = request.rollout_fragment_length or max(1, batch // columns)
    size = batch if request.is_whole_batch else request.minibatch_size
    size = (
        size
        or find_nearest(divisors(batch, request.shard_unit), request.default_minibatch_size)
        or batch
    )
    # Environments in the compiled program are divided over devices with all of their fragments.
    divided = request.num_columns or columns
    _check_divisible(request, batch, columns * steps, divided, size)
    envs = request.envs_per_runner
    if envs is None:
        envs = find_nearest(divisors(columns), columns / request.num_env_runners) or columns
    plan = BatchPlan(
        num_envs=columns,
        rollout_fragment_length=steps,
        train_batch_size=batch,
        minibatch_size=size,
        num_minibatches=math.ceil(batch / size),
        num_epochs=request.num_epochs,
        iterations_per_batch=request.iterations_per_batch,
        num_shards=request.num_shards
        or _find_num_shards(math.gcd(divided, size), request.num_learners),
        num_env_runners=request.num_env_runners,
        envs_per_runner=envs,
    )
    return _add_notes(request, plan)


def _round_batch_size(request: BatchRequest) -> int:
    """Return the train batch size, an explicit one rounded to whole steps of all environments.

    With an explicit number of environments and length of fragments, these are whole fragments of
    all environments. A size that rounding would change by more than `MAX_ROUNDING` is returned
    unchanged, as is that of fragments of a number of environments that is free.
    """
    batch, unit = request.nearest_batch_size, math.prod(request.factors.values())
    is_free = request.num_columns is None and request.rollout_fragment_length is not None
    if request.train_batch_size is None or is_free:
        return batch
    rounded = (batch + unit // 2) // unit * unit
    return rounded if abs(rounded - batch) <= MAX_ROUNDING * batch else batch


def _choose_columns(request: BatchRequest, batch: int) -> int:
    steps, columns = request.rollout_fragment_length, request.num_columns
    if columns is not None:  # with a length, as many fragments as fill the batch
        return columns if steps is None else columns * max(1, batch // (columns * steps))
    if steps is not None:
        return max(1, batch // steps)
    wanted = DEFAULT_NUM_ENVS
    if request.default_rollout_fragment_length is not None:
        wanted = max(1, batch // request.default_rollout_fragment_length)
    elif request.envs_per_runner is not None:
        wanted = request.envs_per_runner * request.num_env_runners
    unit = request.column_unit
    return find_nearest(divisors(batch, unit), wanted) or unit


def _find_num_shards(common: int, learners: int) -> int:
    """Return the largest of 8, 4, 2, 1 times the number of learners that divides `common`."""
    sizes = [learners * n for n in (8, 4, 2, 1) if learners * n <= MAX_SHARDS or n == 1]
    return next(size for size in sizes if common % size == 0)


def _check_countable(request: BatchRequest, batch: int) -> None:
    """Raise a problem if the explicit sizes exceed MAX_COUNT rows, before anything is divided."""
    units = math.lcm(request.column_unit, request.shard_unit)
    if max(batch, request.num_columns or 0, units) > MAX_COUNT:
        given = {name: getattr(request, name) for name in SETTING_BY_FIELD}
        sizes = ", ".join(
            f"{SETTING_BY_FIELD[n]}={v}" for n, v in given.items() if v not in (None, 1)
        )
        raise _ProblemError(
            f"{sizes}: together they require more than {MAX_COUNT} rows in a train batch"
        )


def _check_divisible(request: BatchRequest, batch: int, rows: int, divided: int, size: int) -> None:
    """Raise the first problem of sizes that do not divide one another.

    Args:
        request: Explicit sizes.
        batch: Train batch size.
        rows: Columns times steps.
        divided: Columns that are divided over devices.
        size: Minibatch size.
    """
    learners, runners, factors = request.num_learners, request.num_env_runners, request.factors
    product = math.prod(factors.values())
    written = " x ".join(f"{SETTING_BY_FIELD[name]}={value}" for name, value in factors.items())
    whole = _format_batch_size(request, batch)
    shards = (
        f"num_shards={request.num_shards}" if request.num_shards else f"num_learners={learners}"
    )
    columns = f"num_envs_per_env_runner={divided // runners}"
    if request.num_columns is None:
        length = f"rollout_fragment_length={request.rollout_fragment_length}"
        columns = f"{whole} over {length}, that is {divided},"
    elif runners > 1:
        columns = f"num_env_runners={runners} x {columns} = {divided}"
    for is_wrong, message, fields in (
        (
            request.num_shards and request.num_shards % learners,
            f"num_shards={request.num_shards} is not a multiple of num_learners={learners}",
            ("num_shards",),
        ),
        (
            request.num_rows is not None and product > batch,
            f"{written} is {product}, not {whole}",
            (*reversed(factors), "train_batch_size"),
        ),
        (
            batch % product,
            f"{whole} is not a multiple of {written}{f' = {product}' * (len(factors) > 1)}",
            (*factors, "train_batch_size"),
        ),
        (
            rows != batch,
            f"{whole} is not a multiple of {shards}",
            ("num_shards", "train_batch_size"),
        ),
        (
            size > batch,
            f"minibatch_size={size} is more than {whole}",
            ("minibatch_size", "train_batch_size", "envs_per_runner"),
        ),
        (
            divided % request.shard_unit,
            f"{columns} is not a multiple of {shards}",
            ("num_shards", "envs_per_runner", "rollout_fragment_length", "train_batch_size"),
        ),
        (
            size % request.shard_unit,
            f"minibatch_size={size} is not a multiple of {shards}",
            ("num_shards", "minibatch_size", "train_batch_size"),
        ),
    ):
        if is_wrong:
            raise _ProblemError(message, *fields)


def _format_batch_size(request: BatchRequest, batch: int) -> str:
    if not request.is_per_learner:
        return f"train_batch_size={batch}"
    learners = request.num_learners
    share = f"train_batch_size_per_learner={batch // learners}"
    return share if learners == 1 else f"{share} x num_learners={learners} = {batch}"


def _add_notes(request: BatchRequest, plan: BatchPlan, *notes: str) -> BatchPlan:
    """Return the plan with sentences on what was rounded or adapted, and the given notes."""
    rounding, asked, batch = None, request.train_batch_size, plan.train_batch_size
    if asked not in (None, batch):
        factors = " x ".join(f"{SETTING_BY_FIELD[n]}={v}" for n, v in request.factors.items())
        rounding = (
            f"{_format_batch_size(request, asked or 0)} is rounded to {batch}, "
            f"{batch // plan.total_envs} steps of every environment: it is not a multiple of "
            f"{factors}."
        )
    first = () if rounding is None else (rounding,)
    adapted = _describe_adaptations(request, plan)
    return dataclasses.replace(plan, notes=(*first, *adapted, *notes), rounding=rounding)


def _describe_adaptations(request: BatchRequest, plan: BatchPlan) -> Iterator[str]:
    """Yield a sentence for every default that was adapted."""
    batch, size = plan.train_batch_size, plan.minibatch_size
    if request.train_batch_size is None and batch != request.default_train_batch_size:
        yield (
            f"train_batch_size: {batch} instead of the default {request.default_train_batch_size}, "
            "to fit the explicit values."
        )
    is_free = request.minibatch_size is None and not request.is_whole_batch
    if is_free and size != request.default_minibatch_size:
        yield (
            f"minibatch_size: {size} instead of the default {request.default_minibatch_size}, which "
            f"does not divide train_batch_size={batch}."
        )
    length = request.default_rollout_fragment_length
    if length is not None and plan.rollout_fragment_length != length:
        yield (
            f"rollout_fragment_length: {plan.rollout_fragment_length} instead of the default "
            f"{length}, to fit the explicit values."
        )
    if request.envs_per_runner is not None:
        return
    suffix, runners = MEASURED_SUFFIX if request.is_tuning_num_envs else ":", plan.num_env_runners
    chosen = f"num_envs_per_env_runner{suffix} {plan.envs_per_runner}"
    if request.is_async:
        yield f"{chosen}, for {plan.fragments_per_batch} fragments a train batch."
    elif request.rollout_fragment_length is not None:
        by = "rollout_fragment_length" + " and runners" * (runners > 1)
        yield f"{chosen}, train_batch_size divided by {by}."
    else:
        target = DEFAULT_NUM_ENVS if length is None else batch // length
        scope = f"as the total of {runners} runners is " * (runners > 1)
        yield f"{chosen}, {scope}the number nearest to {target} that divides the train batch."


# --- suggestions ---


def _is_solvable(request: BatchRequest) -> bool:
    try:
        _solve(request)
    except _ProblemError:
        return False
    return True


def _suggest_changes(request: BatchRequest, names: Iterable[str]) -> tuple[dict[str, int], ...]:
    """Return valid changes of a single field, nearest first, or one change of several fields."""
    found: list[dict[str, int]] = []
    for name in names:
        current: int | None = getattr(request, name)
        if current is None:
            continue
        candidates = _list_candidates(request, name)
        below = [{name: v} for v in reversed(candidates) if v < current]
        above = [{name: v} for v in candidates if v > current]
        for changes in (below[:MAX_CANDIDATES], above[:MAX_CANDIDATES]):
            valid = (c for c in changes if _is_solvable(dataclasses.replace(request, **c)))
            found += itertools.islice(valid, 1)
    return tuple(found) or (_suggest_joint_change(request),)


def _suggest_joint_change(request: BatchRequest) -> dict[str, int]:
    """Return sizes that fit each other, with a train batch size close to the explicit one."""
    runners = 1 if request.is_async else request.num_env_runners
    unit, batch = math.lcm(request.num_learners, runners), request.nearest_batch_size
    free = dataclasses.replace(
        request,
        train_batch_size=max(1, math.floor(batch / unit + 0.5)) * unit,
        envs_per_runner=None,
        rollout_fragment_length=None,
        minibatch_size=None,
        num_shards=None,
        default_minibatch_size=request.minibatch_size or request.default_minibatch_size,
    )
    plan = _solve(free)
    explicit = [n for n in SETTING_BY_FIELD if n != "num_env_runners" and getattr(request, n)]
    return {name: getattr(plan, name) for name in explicit}


def _list_candidates(request: BatchRequest, name: str) -> list[int]:
    """Return candidate values of one field, in ascending order."""
    batch, current = request.nearest_batch_size, getattr(request, name)
    if name == "train_batch_size":
        return _list_neighbors(batch, request.num_rows or request.batch_unit)
    if name == "num_shards":
        divided = request.num_columns or request.minibatch_size or batch
        return divisors(divided, request.num_learners)
    if name == "num_env_runners" and request.num_env_runners == 1:
        return []  # never suggest actors to a run without any
    if name == "minibatch_size" or request.train_batch_size is not None:
        return divisors(batch)
    if name == "num_env_runners":
        return _list_neighbors(current, 1)
    # A free train batch must have whole minibatches.
    others = math.prod(value for factor, value in request.factors.items() if factor != name)
    size = request.minibatch_size or 1
    unit = size // math.gcd(size, others)
    if name == "envs_per_runner":
        runners = 1 if request.is_async else request.num_env_runners
        unit = math.lcm(unit, request.shard_unit // math.gcd(request.shard_unit, runners))
    return _list_neighbors(current, unit)


def _list_neighbors(value: int, unit: int) -> list[int]:
    """Return the multiples of `unit` next to a value."""
    k = value // unit
    return [n * unit for n in (k - 1, k, k + 1) if n > 0]


def _format_suggestions(request: BatchRequest, suggestions: tuple[dict[str, int], ...]) -> str:
    values: dict[str, list[str]] = {}
    for name, value in (pair for change in suggestions for pair in change.items()):
        setting = SETTING_BY_FIELD[name]
        if name == "train_batch_size" and request.is_per_learner:
            setting, value = "train_batch_size_per_learner", value // request.num_learners
        values.setdefault(setting, []).append(str(value))
    if len(suggestions) == 1 and len(suggestions[0]) > 1:  # together
        return ", ".join(f"{name}={own[0]}" for name, own in values.items())
    return ", or ".join(f"{name} to {' or '.join(own)}" for name, own in values.items())


# --- sequences of stateful modules ---


def _solve_sequences(request: BatchRequest, max_seq_len: int) -> BatchPlan | None:
    """Return the plan whose rollouts and minibatches consist of whole sequences.

    Returns:
        The plan with the longest sequences that fit the explicit sizes, or None if those are
        shorter than half of the maximum.
    """
    longest = min(max_seq_len, request.rollout_fragment_length or max_seq_len)
    for length in _list_sequence_lengths(request, longest):
        try:
            plan = _solve(_convert_to_sequences(request, length))
        except _ProblemError:
            continue
        plan = dataclasses.replace(
            plan,
            rollout_fragment_length=plan.rollout_fragment_length * length,
            train_batch_size=plan.train_batch_size * length,
            minibatch_size=plan.minibatch_size * length,
            sequence_length=length,
        )
        shorter = f"max_seq_len={max_seq_len}: {length}, the largest length that divides the sizes."
        return _add_notes(request, plan, *([shorter] if length < max_seq_len else []))
    return None


def _list_sequence_lengths(request: BatchRequest, max_length: int) -> Iterable[int]:
    """Return lengths that divide the explicit sizes, from the maximum down to its half."""
    sizes = (request.train_batch_size, request.rollout_fragment_length, request.minibatch_size)
    explicit = [size for size in sizes if size is not None]
    min_length = (max_length - 1) // 2
    if explicit:
        return [n for n in reversed(divisors(math.gcd(*explicit))) if min_length < n <= max_length]
    return range(max_length, max(min_length, max_length - MAX_SEQUENCE_LENGTHS), -1)


def _convert_to_sequences(request: BatchRequest, length: int) -> BatchRequest:
    """Return the request in units of sequences, whose length divides the explicit sizes."""
    changes: dict[str, int] = {}
    for name in ("train_batch_size", "rollout_fragment_length", "minibatch_size"):
        rows, default = getattr(request, name), getattr(request, f"default_{name}")
        if rows is not None:
            changes[name] = rows // length
        if default is not None:
            changes[f"default_{name}"] = max(1, round(default / length))
    return dataclasses.replace(request, **changes)


# --- replay and recorded data ---


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayPlan(BatchPlan):
    """Sizes of one training step whose updates sample from a replay buffer.

    A rollout of `num_envs * rollout_fragment_length` steps is followed by `num_minibatches`
    updates of `minibatch_size = train_batch_size` rows each. `num_shards` divides `num_envs` and
    `minibatch_size`.
    """

    buffer_length: int
    """Number of transitions per environment in the buffer, a multiple of the rollout length."""

    @property
    def updates_per_iteration(self) -> int:
        """Number of gradient steps in one training step."""
        return self.num_minibatches

    def describe(self) -> str:
        """Return the arithmetic in one line."""
        sampled = self.num_envs * self.rollout_fragment_length
        return (
            f"{self._describe_columns()} x {self.rollout_fragment_length} steps = {sampled} into a buffer "
            f"of {self.buffer_length * self.num_envs}, then {self.num_minibatches} "
            f"update{'s' * (self.num_minibatches > 1)} of {self.train_batch_size}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfflinePlan(BatchPlan):
    """Sizes of one train batch: `num_minibatches` updates of `train_batch_size` recorded rows each.

    An iteration is `batches_per_iteration` train batches.
    """

    batches_per_iteration: int

    @property
    def updates_per_iteration(self) -> int:
        """Number of gradient steps in one iteration."""
        return self.num_minibatches * self.batches_per_iteration

    def describe(self) -> str:
        """Return the arithmetic in one line."""
        return f"{self.updates_per_iteration} updates of {self.train_batch_size} recorded rows"


def _plan_replay(config: "Config") -> ReplayPlan:
    """Return the plan of a config with replay; explicit values are never changed."""
    training, runners = config.training_settings, config.env_runners_settings
    if runners.batch_mode != "truncate_episodes":
        raise ConfigError(
            f"batch_mode={runners.batch_mode!r} produces fragments of varying length, but a replay "
            "buffer requires fragments of rollout_fragment_length steps; set "
            "batch_mode='truncate_episodes'."
        )
    parse_n_step(training.n_step)
    rows, num_runners = _count_update_rows(config), max(1, runners.num_env_runners)
    envs, steps = runners.num_envs_per_env_runner, runners.rollout_fragment_length
    if envs == "auto":
        raise ConfigError(
            "num_envs_per_env_runner='auto' is for on-policy algorithms: with a replay buffer, "
            "more environments delay updates; set a number, or leave it out for 1."
        )
    envs_per_runner = envs or 1
    num_envs = num_runners * envs_per_runner
    least_steps = 1 if steps == "auto" else steps
    for text, number in (
        (f"train_batch_size={rows}", rows),
        (
            f"{num_envs} environments x rollout_fragment_length={least_steps}",
            num_envs * least_steps,
        ),
    ):
        if number > MAX_COUNT:
            raise BatchSizeError(f"{text} must be at most {MAX_COUNT} rows; set smaller values.")
    notes: list[str] = []
    intensity = _parse_intensity(training.training_intensity)
    if steps == "auto":
        steps = _find_shortest_rollout(intensity, num_envs, rows)
        notes.append(f"rollout_fragment_length='auto': {steps}.")
    if envs is None:
        notes.append("num_envs_per_env_runner: 1.")
    updates = 1 if intensity is None else _count_updates(intensity, num_envs, steps, rows, training)
    capacity = config.get_buffer_settings().capacity
    length = capacity // (num_envs * steps) * steps
    notes += _check_buffer(training, config.explicit, capacity, num_envs, steps)
    return ReplayPlan(
        num_envs=num_envs,
        rollout_fragment_length=steps,
        train_batch_size=rows,
        minibatch_size=rows,
        num_minibatches=updates,
        num_shards=_choose_replay_shards(config, num_envs, rows),
        num_env_runners=num_runners,
        envs_per_runner=envs_per_runner,
        buffer_length=length,
        notes=tuple(notes),
    )


def _check_buffer(
    training: OffPolicyTraining,
    explicit: frozenset[str],
    capacity: int,
    num_envs: int,
    steps: int,
) -> Iterator[str]:
    """Yield sentences on buffer sizes that differ from the settings.

    Raises:
        ConfigError: If the buffer holds no rollout, or learning would never start.
    """
    sampled = num_envs * steps
    if capacity < sampled:
        raise ConfigError(
            f"replay_buffer_config['capacity']={capacity} is less than one rollout of {num_envs} "
            f"environments x {steps} steps; use at least {sampled}."
        )
    stored, setting = capacity // sampled * sampled, "num_steps_sampled_before_learning_starts"
    learning_starts = training.num_steps_sampled_before_learning_starts
    if learning_starts > stored and setting in explicit:
        raise ConfigError(
            f"{setting}={learning_starts} transitions are more than the buffer holds "
            f"({stored}): lower it to {stored}, or set replay_buffer_config['capacity'] "
            f"to {-(-learning_starts // sampled) * sampled}."
        )
    if stored != capacity:
        yield (
            f"replay_buffer_config['capacity']={capacity}: {stored}, the most that is a "
            "multiple of a rollout."
        )
    if learning_starts > stored:
        yield f"{setting}={learning_starts}: {stored}, when the buffer is full."


def _count_update_rows(config: "Config") -> int:
    """Return the number of rows of one update over all learners."""
    whole, learners = (
        config.training_settings.train_batch_size,
        max(1, config.learners_settings.num_learners),
    )
    rows = _resolve_batch_size(config) or whole
    if rows % learners:
        raise BatchSizeError(
            f"train_batch_size={whole} is not a multiple of num_learners={learners}; set it to "
            f"{max(1, round(whole / learners)) * learners}."
        )
    return rows


def _parse_intensity(setting: float | None) -> Fraction | None:
    """Convert the setting to an exact ratio: 0.1 is 1/10, not the nearest float."""
    if setting is None:
        return None
    is_finite = math.isfinite(setting)
    ratio = Fraction(setting if is_finite else 0).limit_denominator(MAX_INTENSITY_DENOMINATOR)
    if not 0 < ratio <= MAX_COUNT:
        raise ConfigError(
            f"training_intensity={setting:g} must be at least {1 / MAX_INTENSITY_DENOMINATOR:g} "
            f"and at most {MAX_COUNT} rows of updates per sampled environment step."
        )
    return ratio


def _find_shortest_rollout(intensity: Fraction | None, num_envs: int, rows: int) -> int:
    """Return the length of the shortest rollout with a whole number of updates."""
    return 1 if intensity is None else (intensity * num_envs / rows).denominator


def _count_updates(
    intensity: Fraction, num_envs: int, steps: int, rows: int, training: OffPolicyTraining
) -> int:
    """Return the number of updates per rollout."""
    updates = intensity * num_envs * steps / rows
    if updates > MAX_COUNT:
        raise BatchSizeError(
            f"training_intensity={training.training_intensity:g} is {float(updates):g} updates per "
            f"rollout, more than the limit of {MAX_COUNT}; lower it."
        )
    if updates.denominator == 1:
        return updates.numerator
    below, above = math.floor(updates), math.ceil(updates)
    ratios = [str(float(Fraction(n * rows, num_envs * steps))) for n in (below, above) if n > 0]
    raise BatchSizeError(
        f"training_intensity={training.training_intensity} with {num_envs} "
        f"environments x rollout_fragment_length={steps} and train_batch_size={rows} is "
        f"{float(updates):g} updates per rollout, not a whole number: set training_intensity "
        f"to {' or '.join(ratios)}, or rollout_fragment_length to "
        f"{_find_shortest_rollout(intensity, num_envs, rows)}."
    )


def _choose_replay_shards(config: "Config", num_envs: int, rows: int) -> int:
    """Return the explicit number of shards, or the largest that fits of 8, 4, 2, 1 per learner."""
    learners = max(1, config.learners_settings.num_learners)
    samples = math.gcd(rows, *count_source_rows(config, rows).values())
    common = math.gcd(num_envs, samples // get_rows_per_sample(config))
    wanted = config.learners_settings.num_shards
    if num_envs % learners:
        raise BatchSizeError(
            f"{num_envs} environments cannot be divided over num_learners={learners}; set "
            f"num_envs_per_env_runner to {learners}."
        )
    if wanted == "auto":
        return _find_num_shards(common, learners)
    if common % wanted or wanted % learners:
        each = f" and be a multiple of num_learners={learners}" if learners > 1 else ""
        raise BatchSizeError(
            f"num_shards={wanted} must divide {num_envs} environments and train_batch_size={rows}"
            f"{each}; set it to {find_nearest(divisors(common, learners), wanted)}."
        )
    return wanted


def _plan_recorded(config: "Config") -> OfflinePlan:
    """Return the plan of a config that learns from recorded data: gradient steps alone."""
    rows, length = _count_update_rows(config), get_rows_per_sample(config)
    total = config.offline_data_settings.num_updates_per_iteration
    updates = max(n for n in divisors(total) if n <= MAX_UPDATES_PER_BATCH)
    samples = math.gcd(rows, *count_source_rows(config, rows, length).values()) // length
    num_shards = config.learners_settings.num_shards
    if num_shards == "auto":
        num_shards = _find_num_shards(samples, 1)
    elif samples % num_shards:
        raise BatchSizeError(
            f"num_shards={num_shards} must divide train_batch_size={rows}; set it to "
            f"{find_nearest(divisors(samples), num_shards)}."
        )
    return OfflinePlan(
        num_envs=1,
        rollout_fragment_length=1,
        train_batch_size=rows,
        minibatch_size=rows,
        num_minibatches=updates,
        num_shards=num_shards,
        envs_per_runner=1,
        batches_per_iteration=total // updates,
    )


# --- several agents ---


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiAgentPlan(BatchPlan):
    """Sizes of one training step of several agents.

    `train_batch_size` counts environment steps, and the plan of each module its rows, of which every
    environment has one for each of the module's agents. All plans have the same `num_shards`.
    `minibatch_size` is the smallest of a module's that is trained.
    """

    agents: AgentMapping
    modules: Mapping[str, BatchPlan]

    @property
    def updates_per_iteration(self) -> int:
        """Number of gradient steps of all modules in one training step."""
        return sum(self.modules[m].updates_per_iteration for m in self.agents.trained)

    def describe(self) -> str:
        """Return the arithmetic in one line."""
        sizes = f"{self.num_envs} envs x {self.rollout_fragment_length} steps"
        modules = "; ".join(self._describe_module(m) for m in self.modules)
        return f"{sizes} = {self.train_batch_size}; {modules}"

    def _describe_module(self, module: str) -> str:
        count, plan = self.agents.count_agents(module), self.modules[module]
        rows = plan.num_envs * plan.rollout_fragment_length
        head = f"{module}: {count:g} agent{'s' * (count != 1)}, {rows} rows"
        if module not in self.agents.trained:
            return f"{head}, not trained"
        updates = f"{plan.updates_per_iteration} updates of {plan.minibatch_size}"
        if isinstance(plan, ReplayPlan):
            return f"{head} into a buffer of {plan.buffer_length * plan.num_envs}, {updates}"
        return f"{head}, {updates}"


def _plan_agents(config: "Config") -> MultiAgentPlan:
    """Return the plan of a config for several agents; messages name the module."""
    agents = resolve_agents(config.environment_settings, config.multi_agent_settings)
    replays = isinstance(config.training_settings, OffPolicyTraining)
    common = (_plan_common_replay if replays else _plan_common)(config, agents)
    learners, period = config.learners_settings.num_learners, len(agents.patterns)
    if learners and common.num_envs % (learners * period):
        raise ConfigError(
            f"{common.num_envs} environments cannot be divided over num_learners={learners}; set "
            f"num_envs_per_env_runner to a multiple of {learners * period}."
        )
    if config.env_runners_settings.num_env_runners == 0:
        common = dataclasses.replace(common, envs_per_runner=common.num_envs)
    shards = _choose_agent_shards(config, common, agents)
    modules = {m: _plan_module(config, agents, common, m, shards) for m in agents.modules}
    trained = [modules[m] for m in agents.trained]
    notes = [f"{m}: {note}" for m in sorted(agents.trained) for note in modules[m].notes]
    return MultiAgentPlan(
        num_envs=common.num_envs,
        num_env_runners=common.num_env_runners,
        envs_per_runner=common.envs_per_runner,
        rollout_fragment_length=common.rollout_fragment_length,
        train_batch_size=common.train_batch_size,
        minibatch_size=min(plan.minibatch_size for plan in trained),
        num_minibatches=max(plan.num_minibatches for plan in trained),
        num_epochs=common.num_epochs,
        num_shards=shards,
        iterations_per_batch=common.iterations_per_batch,
        notes=(*common.notes, *notes),
        rounding=common.rounding,
        agents=agents,
        modules=modules,
    )


def _plan_common(config: "Config", agents: AgentMapping) -> BatchPlan:
    """Return the plan of environment steps, in which minibatches have no part."""
    request = make_batch_request(config)
    if config.multi_agent_settings.count_steps_by == "agent_steps":
        made = make_agents_env(config.environment_settings, config.multi_agent_settings)
        request = _count_environment_steps(made, request, agents)
    request = dataclasses.replace(request, minibatch_size=None, is_whole_batch=True)
    configs = (make_module_config(config, agents, m, {}) for m in agents.modules)
    return make_plan(request, math.lcm(*map(get_rows_per_sample, configs)))


def _plan_common_replay(config: "Config", agents: AgentMapping) -> BatchPlan:
    """Return the plan of environment steps between the updates of modules with replay buffers.

    With "auto", a rollout is the shortest after which every module has whole updates.
    """
    runners, num_shards = config.env_runners_settings, config.learners_settings.num_shards
    given, steps = runners.num_envs_per_env_runner, runners.rollout_fragment_length
    num_runners = max(1, runners.num_env_runners)
    envs_per_runner = given if isinstance(given, int) else 1
    num_envs = num_runners * envs_per_runner
    if num_shards in (None, "auto"):
        num_shards = 1
    if num_envs % num_shards:
        raise ConfigError(
            f"num_shards={num_shards} must divide {num_envs} environments; set it to "
            f"{find_nearest(divisors(num_envs), num_shards)}."
        )
    if config.multi_agent_settings.count_steps_by != "env_steps":
        raise ConfigError(
            "count_steps_by='agent_steps' has no effect with a replay buffer, whose train_batch_size "
            "is the rows of each module in an update: leave it out."
        )
    if steps == "auto":
        steps = 1
        for m in sorted(agents.trained):
            sizes = {"num_envs_per_env_runner": agents.count_rows(m, envs_per_runner)}
            sizes |= _scale_intensity(config, agents, m)
            plan = make_module_config(config, agents, m, sizes).plan()
            steps = math.lcm(steps, plan.rollout_fragment_length)
    return BatchPlan(
        num_envs=num_envs,
        num_env_runners=num_runners,
        envs_per_runner=envs_per_runner,
        rollout_fragment_length=steps,
        train_batch_size=num_envs * steps,
        minibatch_size=num_envs * steps,
        num_minibatches=1,
        num_shards=num_shards,
        notes=() if given else ("num_envs_per_env_runner: 1.",),
    )


def _scale_intensity(config: "Config", agents: AgentMapping, module: str) -> dict[str, Any]:
    """Return the training intensity per row where not all of a module's agents act at a step."""
    training, number = config.training_settings, agents.count_agents(module)
    if not isinstance(training, OffPolicyTraining) or training.training_intensity is None:
        return {}
    made = make_agents_env(config.environment_settings, config.multi_agent_settings)
    if isinstance(made, MadeMultiHostEnv):
        return {}
    most = made.env.max_acting
    if most is None or most >= number:
        return {}
    return {"training_intensity": training.training_intensity * most / number}


def _count_environment_steps(
    made: AnyMadeMulti, request: BatchRequest, agents: AgentMapping
) -> BatchRequest:
    """Return a request in environment steps, given one in rows of agents.

    Raises:
        ConfigError: If the number of agents that act at a step is not declared, or does not divide
            the train batch.
    """
    number = None
    if isinstance(made, MadeMultiEnv):
        acts_at_once = find_acting(made) == "all"
        number = len(agents.agents) if acts_at_once else made.env.max_acting
    if number is None:
        raise ConfigError(
            f"count_steps_by='agent_steps' needs the number of agents that act at a step, and "
            f"{made.id} does not declare max_acting: count by 'env_steps'."
        )
    size = request.train_batch_size
    if size is not None and size % number:
        raise ConfigError(
            f"train_batch_size={size} agent steps are not a multiple of the {number} agents that act "
            f"at a step: set {max(1, round(size / number)) * number}."
        )
    return dataclasses.replace(
        request,
        train_batch_size=None if size is None else size // number,
        default_train_batch_size=max(1, request.default_train_batch_size // number),
    )


def _choose_agent_shards(config: "Config", common: BatchPlan, agents: AgentMapping) -> int:
    """Return the largest number of shards that divides what every module has."""
    period = len(agents.patterns)
    if config.learners_settings.num_shards not in (None, "auto"):
        if common.num_envs // common.num_shards % period:
            raise ConfigError(
                f"num_shards={common.num_shards} leaves shards of "
                f"{common.num_envs // common.num_shards} environments, which have the {period} "
                f"patterns of the mapping in turn: set a number that divides "
                f"{common.num_envs // period}."
            )
        return common.num_shards
    own = [_plan_module(config, agents, common, m, None).num_shards for m in agents.trained]
    return min(MAX_SHARDS, math.gcd(common.num_envs // period, *own))


def _plan_module(
    config: "Config",
    agents: AgentMapping,
    common: BatchPlan,
    module: str,
    num_shards: int | None,
) -> BatchPlan:
    sizes = compute_module_sizes(config, agents, common, module, num_shards)
    try:
        return make_module_config(config, agents, module, sizes).plan()
    except BatchSizeError as error:
        raise ConfigError(
            f"The module {module!r} with {agents.count_agents(module):g} agents in each of "
            f"{common.num_envs} environments: {error}"
        ) from error


def make_planned_config(config: "Config", plan: MultiAgentPlan, module: str) -> "Config":
    """Return the config of a module, with the sizes of its rows, given the plan of the run."""
    sizes = compute_module_sizes(config, plan.agents, plan, module, plan.num_shards)
    return make_module_config(config, plan.agents, module, sizes)


def compute_module_sizes(
    config: "Config",
    agents: AgentMapping,
    common: BatchPlan,
    module: str,
    num_shards: int | None,
) -> dict[str, object]:
    """Return the settings that give a module's config the rows of its agents."""
    columns = agents.count_rows(module, common.num_envs)
    steps = common.rollout_fragment_length
    sizes: dict[str, object] = {} if num_shards is None else {"num_shards": num_shards}
    sizes |= {
        "num_envs_per_env_runner": agents.count_rows(module, common.envs_per_runner),
        "rollout_fragment_length": steps,
    }
    if isinstance(config.training_settings, OffPolicyTraining):
        return sizes | _scale_intensity(config, agents, module)
    return sizes | {"train_batch_size": columns * steps, "train_batch_size_per_learner": None}


# --- devices ---


IsFaster = Callable[[int, int], bool]
"""Predicate of rows per device and number of devices: whether these are faster than one device."""


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

    def is_enough(number: int) -> bool:
        rows = plan.minibatch_size // number
        if is_faster is not None:
            return is_faster(rows, number)
        return number == 1 or rows >= MIN_ROWS_PER_CPU_DEVICE

    chosen = next(n for n in reversed(allowed) if platform != "cpu" or is_enough(n))
    reason = f"the largest divisor of num_shards={plan.num_shards} up to {local_device_count}"
    if platform == "cpu":
        condition = f"leaves {MIN_ROWS_PER_CPU_DEVICE} rows of a minibatch to each"
        reason += (
            f" that {condition if is_faster is None else 'makes updates faster on this machine'}"
        )
    return chosen, f"{chosen} {platform} device{'s' * (chosen > 1)}: {reason}."


def _join_choices(values: list[int]) -> str:
    words = [str(value) for value in values]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


# --- numbers ---


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
