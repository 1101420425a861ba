"""Recorded data of a config: opening them, the dataset to learn from, and where its rows are."""

import dataclasses
import hashlib
import importlib.util
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.assembly.replay import check_temporal, check_whole_sequences, get_max_seq_len
from jaxrl.buffers.dataset import Dataset, DatasetSampler
from jaxrl.config.batch_plan import OfflinePlan, ReplayPlan
from jaxrl.config.offline import check_stream, count_source_rows, describe_storage
from jaxrl.config.settings.offline import SAMPLER, OfflineDataSettings, Storage
from jaxrl.config.settings.replay import OffPolicyTraining, parse_n_step
from jaxrl.config.settings.training import Auto, EnvironmentSettings, Training
from jaxrl.connectors.base import Before
from jaxrl.connectors.checks import check_action_inverse
from jaxrl.connectors.learning import ClipRewards
from jaxrl.connectors.pipelines import ActionPipeline, LearnerPipeline
from jaxrl.connectors.temporal import PrevActionsPrevRewards
from jaxrl.core.hparams import build_hparams, current_values
from jaxrl.core.space_arrays import count_bytes
from jaxrl.core.struct import replace
from jaxrl.core.types import Columns, Device, Progress, PyTree, Rollout
from jaxrl.distributions.base import Deterministic, SquashedGaussian
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import ConfigError, DataError, JaxrlError
from jaxrl.modules.decision_transformer import DecisionTransformerModule
from jaxrl.modules.rl_module import RLModule, make_zeros
from jaxrl.offline.held_out import EpisodeSplit
from jaxrl.offline.manifest import ReferenceReturns
from jaxrl.offline.recorded import RecordedData, Source, open_data, read_reference
from jaxrl.offline.stitch import merge_parts
from jaxrl.runtime.devices import get_host_memory_limit, get_memory_limit
from jaxrl.training.rollout import PolicyStep

if TYPE_CHECKING:
    from jaxrl.config.config import Config

BLOCK_ROWS = 2**16
"""Maximum number of rows of one call of a compiled function."""

_RowFunction: TypeAlias = Callable[[PyTree], PyTree]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ActionConversion:
    """Function of recorded actions `[N, ...]` that returns the module's, in NumPy.

    Args:
        pipeline: Pipeline to the environment's actions, which are recorded; None if the module's are.
        box: Space that the module's actions are clipped to; None for any.
    """

    pipeline: ActionPipeline | None
    box: spaces.Box | None = None

    def __call__(self, action: PyTree) -> PyTree:
        if self._inverse is not None:
            action = convert_rows(self._inverse, action)
        if self.box is not None:
            action = np.clip(action, self.box.low, self.box.high).astype(action.dtype)
        return action

    @cached_property
    def _inverse(self) -> _RowFunction | None:
        return None if self.pipeline is None else jax.jit(self.pipeline.inverse)

    def __getstate__(self) -> dict[str, object]:
        """Return the fields alone: tasks of other processes compile for themselves."""
        return {"pipeline": self.pipeline, "box": self.box}

    def convert_parts(self, parts: Sequence[EpisodePart]) -> list[EpisodePart]:
        """Return parts of episodes with the module's actions."""
        if not parts or (self.pipeline is None and self.box is None):
            return list(parts)
        converted = self(join_actions(parts))
        return [
            dataclasses.replace(part, action=action)
            for part, action in zip(parts, split_rows(converted, parts), strict=True)
        ]


def make_action_conversion(policy_step: PolicyStep, *, are_normalized: bool) -> ActionConversion:
    """Make the conversion of recorded actions to those that a module learns from.

    Those of a policy without bounds may be outside of the module's Box, at whose bounds the
    environment played them. A module whose own actions are always inside learns from these.

    Args:
        policy_step: Module and its connectors.
        are_normalized: Whether the recorded actions are a module's, or else the environment's.

    Raises:
        ConfigError: If the environment's actions cannot be converted.
    """
    pipeline = None
    if not are_normalized and len(policy_step.action_pipeline):
        pipeline = policy_step.action_pipeline
        check_action_inverse(pipeline)
    return ActionConversion(pipeline=pipeline, box=_get_bounding_box(policy_step.module))


def _get_bounding_box(module: RLModule) -> spaces.Box | None:
    """Return the Box that all actions of a module are in; None if there is none."""
    space, family = module.action_space, module.distribution.family
    is_bounded = family in (SquashedGaussian, Deterministic)
    return space if is_bounded and isinstance(space, spaces.Box) else None


def convert_rows(function: _RowFunction, rows: PyTree) -> PyTree:
    """Return what a compiled function makes of rows `[N, ...]`, called with few different sizes."""
    number = len(jax.tree.leaves(rows)[0])
    size = min(BLOCK_ROWS, 1 << (number - 1).bit_length())

    def take(leaf: np.ndarray, first: int) -> np.ndarray:
        return leaf[np.minimum(np.arange(first, first + size), number - 1)]

    blocks = [
        jax.device_get(function(jax.tree.map(lambda x, i=first: take(x, i), rows)))
        for first in range(0, number, size)
    ]
    return jax.tree.map(lambda *x: np.concatenate(x)[:number], *blocks)


def join_actions(parts: Iterable[EpisodePart]) -> PyTree:
    """Return the actions of parts, one after another."""
    return jax.tree.map(lambda *x: np.concatenate(x), *(part.action for part in parts))


def split_rows(rows: PyTree, parts: Sequence[EpisodePart]) -> list[PyTree]:
    """Return the rows of each part, of rows that lie one after another."""
    ends = np.cumsum([len(part) for part in parts]).tolist()
    bounds = [(end - len(part), end) for part, end in zip(parts, ends, strict=True)]
    return [jax.tree.map(lambda x, i=i, j=j: x[i:j], rows) for i, j in bounds]


_TRANSFORM = "input_transform"


def transform_parts(
    function: Callable[..., Any] | None, data: RecordedData, parts: Iterable[EpisodePart]
) -> Iterator[EpisodePart]:
    """Yield the parts that a user's function returns, without empty ones.

    Args:
        function: Function of a part; None for the parts as they are.
        data: Recorded data of the parts.
        parts: Recorded parts.

    Raises:
        ConfigError: If it returns anything but a part, or one whose rows do not fit.
    """
    if function is None:
        yield from parts
        return
    for part in parts:
        changed = function(part)
        if changed is None:
            continue
        if not isinstance(changed, EpisodePart):
            raise ConfigError(
                f"{_TRANSFORM} must return the part of an episode to learn from, or None, got a "
                f"{type(changed).__name__}."
            )
        if not np.size(changed.reward):
            continue
        try:
            yield data.check_changed(changed, _TRANSFORM)
        except DataError as error:
            raise ConfigError(str(error)) from error


def apply_connectors(
    training: Training,
    dataset: Dataset,
    policy_step: PolicyStep,
    learner_pipeline: LearnerPipeline,
    statistics: PyTree | None = None,
) -> Dataset:
    """Return the dataset with rewards and observations as they are learned from.

    Args:
        training: Settings of the learner.
        dataset: Dataset with the environment's own observations.
        policy_step: Policy with its connectors.
        learner_pipeline: Connectors of rewards.
        statistics: Statistics of the observation connectors, if some of them look back; None for
            those of the dataset.
    """
    temporal = policy_step.obs_pipeline.temporal
    if not temporal and not len(learner_pipeline):
        return dataset
    values = current_values(build_hparams(training), Progress.zeros())
    learner_pipeline = learner_pipeline.at(values)

    def convert(dataset: Dataset) -> Dataset:
        raw = _as_rollout(dataset)
        seen, used = raw, ()
        if temporal:
            seen, used = _look_back(raw, policy_step, statistics)
        learned = seen
        if len(learner_pipeline):
            states = learner_pipeline.init(jax.random.key(0))
            per_env = learner_pipeline.init_per_env(1)
            learned = learner_pipeline(states, per_env, seen, None)[2]
        dataset = replace(dataset, reward=learned.reward[:, 0], statistics=used)
        return _lay_observations(dataset, seen) if temporal else dataset

    return jax.tree.map(np.asarray, jax.jit(convert)(dataset))


def _as_rollout(dataset: Dataset) -> Rollout:
    """Return all rows as a rollout `[N, 1]` of one environment."""
    rows = jnp.arange(dataset.num_rows, dtype=jnp.int32)

    def column(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: x[:, None], tree)

    return Rollout(
        obs=column(dataset.get_obs(rows)),
        action=column(dataset.action),
        reward=column(dataset.reward),
        terminated=column(dataset.terminated),
        truncated=column(dataset.truncated),
        final_obs=column(dataset.get_next_obs(rows)),
        is_first=column(dataset.is_first),
        mask=jnp.ones((dataset.num_rows, 1), jnp.bool_),
        extras={},
    )


def _look_back(
    rollout: Rollout, policy_step: PolicyStep, statistics: PyTree | None
) -> tuple[Rollout, PyTree]:
    """Return the rollout with the observations of all connectors, and the statistics of these.

    What connectors that look back see of rewards is the environment's, as in
    `RolloutWorker.preprocess_rollout`.

    Args:
        rollout: Rollout `[N, 1]` with the environment's own observations.
        policy_step: Policy with its connectors.
        statistics: Statistics to use; None for those of the rollout.
    """
    pipeline = policy_step.obs_pipeline
    shift = jax.tree.map(lambda x: jnp.roll(x, 1, axis=0), (rollout.action, rollout.reward))
    zeros = jax.tree.map(jnp.zeros_like, shift)
    action, reward = jax.tree.map(
        lambda x, zero: jnp.where(
            rollout.is_first.reshape(rollout.is_first.shape + (1,) * (x.ndim - 2)), zero, x
        ),
        shift,
        zeros,
    )
    before = Before(is_first=rollout.is_first, action=action, reward=reward)
    states = tuple(pipeline.init() if statistics is None else statistics)
    for i, connector in enumerate(pipeline.connectors):
        if statistics is None and jax.tree.leaves(states[i]):
            seen = pipeline.preprocess_rollout(states, pipeline.init_carry(1), rollout, before)
            own = connector.update(states[i], seen.received[i], rollout.mask, None)
            states = (*states[:i], own, *states[i + 1 :])
    seen = pipeline.preprocess_rollout(states, pipeline.init_carry(1), rollout, before)
    return replace(rollout, obs=seen.obs, final_obs=seen.final_obs), states


def check_rewards_unfiltered(policy_step: PolicyStep) -> None:
    """Check that a decision transformer sees the environment's rewards, which it subtracts.

    Raises:
        ConfigError: If a filter comes after the connector of previous rewards.
    """
    pipeline = policy_step.obs_pipeline
    if not isinstance(policy_step.module, DecisionTransformerModule):
        return
    has_rewards = False
    for connector, state in zip(pipeline.connectors, jax.eval_shape(pipeline.init), strict=True):
        if has_rewards and jax.tree.leaves(state):
            raise ConfigError(
                f"{connector.unwrapped.name} would change the previous rewards, by which returns-to-go "
                "become lower: put it before PrevActionsPrevRewards, as "
                "observation_filter='MeanStdFilter' is."
            )
        has_rewards = has_rewards or isinstance(connector.unwrapped, PrevActionsPrevRewards)


def check_statistics_may_change(policy_step: PolicyStep) -> None:
    """Raise if recorded rows have passed connectors whose statistics are to be replaced.

    Raises:
        ConfigError: If they have.
    """
    pipeline = policy_step.obs_pipeline
    if pipeline.temporal and pipeline.has_statistics:
        names = " and ".join(connector.name for connector in pipeline.temporal)
        raise ConfigError(
            f"The statistics of the observation filter cannot be replaced in a run from recorded data "
            f"with {names}, which see all rows once, through the statistics of these: replace the "
            "weights alone."
        )


def _lay_observations(dataset: Dataset, seen: Rollout) -> Dataset:
    """Return the dataset with the observations of a rollout of all its rows."""

    def lay(obs: PyTree, final_obs: PyTree) -> PyTree:
        total = jax.tree.leaves(dataset.obs)[0].shape[0]
        out = jnp.zeros((total, *obs.shape[2:]), obs.dtype)
        out = out.at[dataset.obs_index + 1].set(final_obs[:, 0])
        return out.at[dataset.obs_index].set(obs[:, 0])

    return replace(dataset, obs=jax.tree.map(lay, seen.obs, seen.final_obs))


logger = logging.getLogger("jaxrl")

MAX_RECORDED_BYTES = 2**26
"""Size in bytes of the rollouts that one dispatch of a recorded run returns, if it is not one batch."""
MAX_RECORDED_BATCHES = 4096

Spaces: TypeAlias = tuple[gymnasium.Space[Any], gymnasium.Space[Any]]
"""Spaces of observations and of actions."""


def open_source(
    source: Source,
    settings: OfflineDataSettings,
    spaces: tuple[gymnasium.Space[Any] | None, gymnasium.Space[Any] | None],
    *,
    action_mask_key: str | None = None,
    is_tried: bool = False,
) -> RecordedData:
    """Open recorded data as the settings of a run say; see `open_data`."""
    return open_data(
        source,
        observation_space=spaces[0],
        action_space=spaces[1],
        actions_are_normalized=settings.actions_in_input_normalized,
        schema=settings.input_read_schema,
        ignore_final_observation=settings.ignore_final_observation,
        ignore_unused_schema=True,
        action_mask_key=action_mask_key,
        is_transformed=settings.input_transform is not None,
        is_tried=is_tried,
    )


def get_sources(settings: OfflineDataSettings) -> list[Source]:
    """Return the sources of a run's recorded data, each with a share of its own."""
    return [*settings.sources] or [cast("str | list[str]", settings.input_)]


def open_sources(
    settings: OfflineDataSettings, environment: EnvironmentSettings, spaces: Spaces | None = None
) -> list[RecordedData]:
    """Open the recorded data of a run, by source, without reading their rows.

    Args:
        settings: Settings with `input_`.
        environment: Settings that declare the environment.
        spaces: Spaces that the data must have; None for the declared ones, or those of the data.

    Raises:
        JaxrlError: If there are no data, or they have other spaces.
    """
    wanted = spaces or (environment.observation_space, environment.action_space)
    opened: list[RecordedData] = []
    for source in get_sources(settings):
        mask_key = environment.action_mask_key
        data = open_source(source, settings, wanted, action_mask_key=mask_key)
        opened.append(data)
        wanted = data.observation_space, data.action_space
    if settings.input_read_schema and not any(data.has_schema for data in opened):
        raise ConfigError(
            f"input_read_schema={settings.input_read_schema!r} has no effect on input_="
            f"{settings.input_!r}, of the format {opened[0].kind}, in which columns have fixed names: "
            "leave it out."
        )
    return opened


def find_reference(settings: OfflineDataSettings) -> ReferenceReturns | None:
    """Return the returns that scores are normalized with; None if the recorded data do not say."""
    try:
        found = {read_reference(source) for source in get_sources(settings)}
    except JaxrlError:  # what is missing or damaged is reported by what reads the rows
        return None
    return found.pop() if len(found) == 1 else None


def get_fingerprint(
    data: Sequence[RecordedData], held_out_share: float = 0.0, *, is_quick: bool = False
) -> str:
    """Return the digest of what is learned from, of recorded data of one or several sources.

    Args:
        data: Recorded data by source.
        held_out_share: Share of the episodes that are held out.
        is_quick: Whether files without a recorded digest have that of their names and sizes.
    """
    digests = [source.get_fingerprint(is_quick=is_quick) for source in data]
    if held_out_share:
        digests.append(f"held out: {held_out_share!r}")
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def make_mixed_sampler(
    config: "Config", plan: ReplayPlan, policy_step: PolicyStep
) -> DatasetSampler:
    """Make the draws of the recorded rows that are learned from beside those of a replay buffer.

    Raises:
        ConfigError: If a setting is incompatible with them.
    """
    check_temporal(policy_step, "Recorded observations are stored after")
    module, training = policy_step.module, config.training_settings
    if module.is_stateful:
        raise ConfigError(
            f"input_={config.offline_data_settings.input_!r} mixes single rows, and "
            f"{type(module).__name__} learns from sequences: use a module without memory."
        )
    assert isinstance(training, OffPolicyTraining)
    sizes = _count_samples(count_source_rows(config, plan.train_batch_size))
    return DatasetSampler(
        batch_size=sum(sizes),
        num_updates=plan.num_minibatches,
        num_shards=plan.num_shards,
        n_step=parse_n_step(training.n_step),
        source_sizes=sizes,
    )


def _count_samples(counts: Mapping[str, int], length: int = 1) -> tuple[int, ...]:
    """Return the number of samples, of `length` rows each, of each recorded source."""
    return tuple(number // length for name, number in counts.items() if name != SAMPLER)


def make_dataset_sampler(
    config: "Config", plan: OfflinePlan, policy_step: PolicyStep, storage: Storage
) -> DatasetSampler:
    """Make the draws of rows from the recorded data.

    Args:
        config: Config of the run.
        plan: Sizes of a train batch.
        policy_step: Policy with its connectors.
        storage: Where the rows are; a stream has epochs.

    Raises:
        ConfigError: If a setting is incompatible with recorded data.
    """
    check_rewards_unfiltered(policy_step)
    training, module = config.training_settings, policy_step.module
    has_memory, length = module.is_stateful, config.rows_per_window
    if length is None and has_memory:
        length = get_max_seq_len(module)
    name = "max_seq_len" if config.rows_per_window is None else config.window_setting
    check_whole_sequences(
        training, plan.train_batch_size, plan.num_shards, length, name, has_memory=has_memory
    )
    order, sizes = config.offline_data_settings.dataset_sampling, None
    if len(config.offline_data_settings.sources) > 1:
        rows, shards = plan.train_batch_size, plan.num_shards
        counts = count_source_rows(config, rows, length or 1, shards)
        sizes = _count_samples(counts, length or 1)
        if order == "epochs":
            raise ConfigError(
                "dataset_sampling='epochs' draws every row equally often, and "
                f"input_={config.offline_data_settings.input_!r} has shares: use 'uniform', or a list "
                "of sources."
            )
    if order == "auto":
        has_epochs = storage == "stream" or (config.learns_in_epochs and sizes is None)
        order = "epochs" if has_epochs else "uniform"
    return DatasetSampler(
        batch_size=plan.train_batch_size // (length or 1),
        num_updates=plan.num_minibatches,
        num_shards=plan.num_shards,
        order=order,
        n_step=parse_n_step(training.n_step) if isinstance(training, OffPolicyTraining) else (1, 1),
        sequence_length=length,
        burn_in=training.burn_in_len,
        has_memory=has_memory,
        needs_returns=config.needs_returns,
        source_sizes=sizes,
    )


def load_dataset(
    config: "Config",
    data: Sequence[RecordedData],
    policy_step: PolicyStep,
    learner_pipeline: LearnerPipeline,
    sampler: DatasetSampler,
    split: EpisodeSplit,
    count: Callable[[EpisodePart], None] = lambda part: None,
) -> Dataset:
    """Read the recorded data into a dataset of NumPy arrays, as they are learned from.

    Actions become the module's, rewards pass the learner connectors, and observations those
    connectors that look back. Held-out episodes are left in `split`. `count` is called with each part
    that is read.

    Raises:
        JaxrlError: If the data are damaged, do not fit, or are too few.
    """
    sources: list[list[EpisodePart]] = []
    share = config.evaluation_settings.held_out_share
    learned: Sequence[Iterable[EpisodePart]] = (
        split.take(data, share, held_out=False, leaves_others=True, count=count)
        if share
        else [_count_parts(source.iter_parts(), count) for source in data]
    )
    for source, recorded in zip(data, learned, strict=True):
        parts = prepare_parts(config.offline_data_settings, source, recorded, policy_step)
        if not parts:
            advice = (
                f"lower offline_evaluation_split={share}, which may hold out all of its episodes"
                if share
                else "name data with at least one transition"
            )
            raise DataError(f"{source.files[0]} has no rows to learn from: {advice}.")
        sources.append(parts)
    dataset = concatenate_sources(sources)
    samples = sampler.count_samples(dataset)
    if sampler.order == "epochs" and samples < sampler.batch_size:
        raise ConfigError(
            f"train_batch_size={sampler.rows_per_update} is more than the {dataset.num_rows} "
            "recorded rows: lower it, or set dataset_sampling='uniform', which repeats rows."
        )
    return apply_connectors(config.training_settings, dataset, policy_step, learner_pipeline)


def _count_parts(
    parts: Iterable[EpisodePart], count: Callable[[EpisodePart], None]
) -> Iterator[EpisodePart]:
    for part in parts:
        count(part)
        yield part


def make_blank_dataset(policy_step: PolicyStep, num_sources: int = 1) -> Dataset:
    """Make a dataset of one row of zeros per source, where there are no data.

    Args:
        policy_step: Policy with its connectors.
        num_sources: Number of sources.
    """
    pipeline = policy_step.obs_pipeline
    statistics = pipeline.init() if pipeline.temporal else ()
    seen = pipeline.spaces[-1] if pipeline.temporal else pipeline.space
    part = EpisodePart(
        episode_id="",
        t_started=0,
        obs=jax.tree.map(np.asarray, make_zeros(seen, (2,))),
        action=jax.tree.map(np.asarray, make_zeros(policy_step.module.action_space, (1,))),
        reward=np.zeros(1, np.float32),
        extras={},
        version=np.zeros(1, np.int64),
        terminated=True,
    )
    dataset = replace(concatenate_sources([[part]] * num_sources), statistics=statistics)
    return jax.tree.map(jnp.asarray, dataset)


def concatenate_sources(sources: Sequence[Iterable[EpisodePart]]) -> Dataset:
    """Lay parts of episodes end to end, source by source, those that follow each other as one."""
    by_source = [list(merge_parts(parts)) for parts in sources]
    merged = [part for parts in by_source for part in parts]
    sizes = [sum(map(len, parts)) for parts in by_source]
    lengths = np.asarray([len(part) for part in merged], np.int64)
    ends = np.cumsum(lengths)
    number = np.arange(len(merged))
    owner = np.repeat(number, lengths)
    flags = {name: np.zeros(int(ends[-1]), np.bool_) for name in ("terminated", "truncated")}
    flags["terminated"][ends - 1] = [part.terminated for part in merged]
    flags["truncated"][ends - 1] = [not part.terminated for part in merged]
    is_first = np.zeros(int(ends[-1]), np.bool_)
    is_first[ends - lengths] = True

    def concatenate(get: Any) -> PyTree:
        return jax.tree.map(lambda *x: np.concatenate(x), *(get(part) for part in merged))

    densities = all(Columns.ACTION_LOGP in part.extras for part in merged)
    make = cast("Callable[..., Dataset]", Dataset)  # its fields hold arrays of either kind
    return make(
        obs=concatenate(lambda part: part.obs),
        obs_index=(np.arange(int(ends[-1])) + owner).astype(np.int32),
        action=concatenate(lambda part: part.action),
        reward=concatenate(lambda part: np.asarray(part.reward, np.float32)),
        is_first=is_first,
        last=(ends - 1)[owner].astype(np.int32),
        source_start=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32),
        extras={Columns.ACTION_LOGP: concatenate(lambda part: part.extras[Columns.ACTION_LOGP])}
        if densities
        else {},
        **flags,
    )


def prepare_parts(
    settings: OfflineDataSettings,
    data: RecordedData,
    recorded: Iterable[EpisodePart],
    policy_step: PolicyStep,
) -> list[EpisodePart]:
    """Return the parts to learn from, of those of a source, with the module's actions.

    Raises:
        ConfigError: If the recorded actions cannot be converted to the module's.
    """
    conversion = make_action_conversion(policy_step, are_normalized=data.actions_are_normalized)
    has_look_back = bool(policy_step.obs_pipeline.temporal)
    parts: list[EpisodePart] = []
    num_dropped = 0
    for part in select_parts(settings, data, recorded):
        if has_look_back and part.t_started > 0:
            num_dropped += 1
            continue
        parts.append(part)
    if num_dropped:
        names = " and ".join(connector.name for connector in policy_step.obs_pipeline.temporal)
        logger.warning(
            "%d parts of episodes whose beginning was not recorded are left out, because %s needs "
            "the observations before them.",
            num_dropped,
            names,
        )
    return conversion.convert_parts(parts)


def select_parts(
    settings: OfflineDataSettings,
    data: RecordedData,
    parts: Iterable[EpisodePart],
    merge: Callable[[Iterable[EpisodePart]], Iterator[EpisodePart]] = merge_parts,
) -> Iterator[EpisodePart]:
    """Yield the parts to learn from, those of an episode that follow each other as one.

    Args:
        settings: How the data are learned from.
        data: Data that they are from.
        parts: Parts as they are recorded.
        merge: Function that joins those that follow each other.

    Raises:
        ConfigError: If `input_transform` returns anything but a part whose rows fit.
    """
    changed = transform_parts(settings.input_transform, data, parts)
    for part in merge(changed) if data.has_past else changed:
        if settings.ignore_final_observation and not part.terminated:
            if len(part) > 1:
                yield part.split(len(part) - 1)[0]
            continue
        yield part


def count_recorded_batches(config: "Config", rows: Iterable[tuple[PolicyStep, int]]) -> int:
    """Return the maximum number of train batches whose rollouts one dispatch records; 0 for none.

    Args:
        config: Config of the run.
        rows: Modules with their connectors, and the number of columns of each in a rollout.
    """
    if config.offline_data_settings.output is None:
        return 0
    size = 1
    for policy_step, number in rows:
        space, module = policy_step.obs_pipeline.space, policy_step.module
        own = sum(map(count_bytes, (space, space, module.action_space)))
        size += (own + 4 * module.distribution.input_dim + 16) * number
    size *= config.plan().rollout_fragment_length
    return max(1, min(MAX_RECORDED_BATCHES, MAX_RECORDED_BYTES // size))


def check_mixed_storage(input_: object, buffer: object, *, in_host_memory: bool) -> None:
    """Raise ConfigError if the replay buffer beside recorded data is in host memory."""
    if not in_host_memory:
        return
    raise ConfigError(
        f"input_={input_!r} mixes recorded rows with those of a "
        f"replay buffer on the device, and replay_buffer_config={buffer!r} keeps it in host "
        "memory: set its 'storage' to 'device', and its 'type' to a compiled buffer."
    )


_HOST_SHARE = "half of the host's memory"
_STREAM_PACKAGES = ("pyarrow", "pandas", "fsspec")
"""Packages that Ray Data needs and that plain Ray does not bring."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChosenStorage:
    """Storage of a run's recorded rows, and a sentence on why."""

    name: Storage
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSize:
    """Size of recorded data in memory.

    `num_steps` is None if the files do not say; `num_bytes` is then their size on disk.
    """

    num_steps: int | None
    num_bytes: int

    def __str__(self) -> str:
        if self.num_steps is None:
            return f"{format_bytes(self.num_bytes)} of files"
        each = self.num_bytes // max(1, self.num_steps)
        return f"{self.num_steps} steps of {each} bytes, {format_bytes(self.num_bytes)}"


def format_bytes(number: int) -> str:
    """Return a size in MiB."""
    return f"{number / 2**20:.2f} MiB"


def measure_data(data: Sequence[RecordedData]) -> DataSize:
    """Return the size of the data of all sources, without reading their rows."""
    if any(source.counts is None for source in data):
        files = sum(path.stat().st_size for source in data for path in source.files)
        return DataSize(num_steps=None, num_bytes=files)
    steps = sum(source.counts.num_steps for source in data if source.counts is not None)
    return DataSize(num_steps=steps, num_bytes=steps * data[0].step_bytes)


def choose_storage(config: "Config", spaces: Spaces) -> ChosenStorage:
    """Choose where the rows of a config's recorded data are.

    Raises:
        ConfigError: If the data fit nowhere, or a setting contradicts the place that they fit into.
    """
    settings = config.offline_data_settings
    if settings.dataset_storage != "auto":
        chosen = ChosenStorage(name=settings.dataset_storage, reason="as set")
    elif num_learners := config.learners_settings.num_learners:
        reason = f"each learner of num_learners={num_learners} reads its share"
        chosen = ChosenStorage(name="stream", reason=reason)
    else:
        chosen = _choose_by_size(settings, config.environment_settings, spaces)
    if chosen.name == "stream":
        check_stream(config)
        if (missing := find_missing_package()) is not None:
            raise ConfigError(
                f"{describe_storage(config)} reads by Ray Data, which needs {missing}: pip install "
                "'jaxrl[offline]', or set dataset_storage='host'."
            )
    elif settings.shuffle_buffer_size:
        raise ConfigError(
            f"shuffle_buffer_size={settings.shuffle_buffer_size} has no effect with dataset_storage="
            f"'auto', which is {chosen.name!r} here ({chosen.reason}): leave it out, or set "
            "dataset_storage='stream'."
        )
    return chosen


def _choose_by_size(
    settings: OfflineDataSettings, environment: EnvironmentSettings, spaces: Spaces
) -> ChosenStorage:
    try:
        size = measure_data(open_sources(settings, environment, spaces))
    except DataError as error:  # loading raises it again, if the run is to be trained
        return ChosenStorage(name="device", reason=f"there are no data: {error}")
    device_limit = get_device_limit(settings.max_dataset_bytes, jax.local_devices()[0])
    if device_limit is None or size.num_bytes <= device_limit:
        return ChosenStorage(name="device", reason=f"{size} fit into max_dataset_bytes")
    allowed = f"max_dataset_bytes allows {format_bytes(device_limit)}"
    host_limit = get_host_limit()
    if host_limit is None or size.num_bytes <= host_limit:
        return ChosenStorage(name="host", reason=f"{size}, and {allowed}")
    beyond = f"{size}, {allowed}, and {_HOST_SHARE} is {format_bytes(host_limit)}"
    if find_missing_package() is not None:
        raise ConfigError(
            f"input_={settings.input_!r} is too large: {beyond}; name fewer files, raise max_dataset_bytes, or "
            "install what streams them, pip install 'jaxrl[offline]'."
        )
    return ChosenStorage(name="stream", reason=beyond)


def get_device_limit(limit: int | Auto, device: Device) -> int | None:
    """Return the maximum size of a dataset on a device in bytes, None if it is unknown."""
    if limit != "auto":
        return limit
    memory = get_memory_limit(device)
    return None if memory is None else memory // 2


def get_host_limit() -> int | None:
    """Return the maximum size of a dataset in host memory in bytes, None if it is unknown."""
    memory = get_host_memory_limit()
    return None if memory is None else memory // 2


def limit_dataset_size(
    settings: OfflineDataSettings,
    held_out: float | str | None,
    data: Sequence[RecordedData],
    storage: Storage,
    device: Device,
) -> Callable[[EpisodePart], None]:
    """Check the size of a dataset before it is read, and return the function that counts its parts.

    All recorded episodes count, also those that are held out. Of a stream only these are kept in
    memory.

    Args:
        settings: How the data are learned from.
        held_out: Setting `offline_evaluation_split`.
        data: Recorded data by source.
        storage: Where the rows are.
        device: Device that has them, if a device does.

    Raises:
        ConfigError: If the data are larger than the limit of their storage. Where files do not say
            their size, the function raises it, as soon as so much was read.
    """
    limit = (
        get_device_limit(settings.max_dataset_bytes, device)
        if storage == "device"
        else get_host_limit()
    )
    size, is_stream = measure_data(data), storage == "stream"
    is_known = size.num_steps is not None  # files on disk may be larger than their rows
    if limit is None or (is_known and not is_stream):
        if limit is not None and size.num_bytes > limit:
            raise _make_size_error(settings, held_out, str(size), storage, limit)
        return lambda part: None
    total, most = 0, limit

    def count(part: EpisodePart) -> None:
        nonlocal total
        total += part.num_bytes
        if total > most:
            read = f"more than {format_bytes(most)} of steps"
            raise _make_size_error(settings, held_out, read, storage, most)

    return count


def _make_size_error(
    settings: OfflineDataSettings,
    held_out: float | str | None,
    size: str,
    storage: Storage,
    limit: int,
) -> ConfigError:
    if storage == "stream":
        return ConfigError(
            f"offline_evaluation_split={held_out} holds out {size}, which are kept in memory, and "
            f"{_HOST_SHARE} is {format_bytes(limit)}: lower it."
        )
    allowed = (
        f"max_dataset_bytes={settings.max_dataset_bytes!r} allows {format_bytes(limit)}: name fewer "
        "files, raise max_dataset_bytes, or set dataset_storage='host' or 'stream'."
        if storage == "device"
        else f"{_HOST_SHARE} is {format_bytes(limit)}: name fewer files, or set "
        "dataset_storage='stream'."
    )
    return ConfigError(f"input_={settings.input_!r} has {size}, and {allowed}")


def find_missing_package() -> str | None:
    """Return a package that streams need and that is not installed; None if all are there."""
    for name in _STREAM_PACKAGES:
        if importlib.util.find_spec(name) is None:
            return name
    return None


def check_stream_pipelines(
    config: "Config", policy_step: PolicyStep, learner_pipeline: LearnerPipeline
) -> None:
    """Check that rows can pass the connectors in a stream, where not all of them are there at once.

    Raises:
        ConfigError: If a connector looks back, or at all rewards, or needs statistics of all rows
            after those of another one.
    """
    pipeline = policy_step.obs_pipeline
    temporal = [connector.name for connector in pipeline.temporal]
    states = zip(pipeline.connectors, jax.eval_shape(pipeline.init), strict=True)
    filters = [connector.name for connector, state in states if jax.tree.leaves(state)]
    others = [c.name for c in learner_pipeline.connectors if not isinstance(c, ClipRewards)]
    for names, reason in (
        (temporal, "looks back in the episode"),
        (others, "may look at other rewards"),
        (filters[1:], "has statistics of all rows after those of another filter"),
    ):
        if names:
            raise ConfigError(
                f"{names[0]} {reason}, which {describe_storage(config)} does not support: set "
                "dataset_storage='host', or leave it out."
            )


def describe_chosen(chosen: ChosenStorage | None) -> list[str]:
    """Return a sentence on where recorded rows are; none if there are none."""
    if chosen is None:
        return []
    where = {
        "device": "on the devices, as an argument of the program",
        "host": "in host memory; the rows of each train batch are sent to the devices",
        "stream": "read in every epoch by Ray Data, in another order each time; a resumed run has the "
        "epoch and the number of rows, not their order",
    }[chosen.name]
    return [f"Recorded data: {where} (dataset_storage={chosen.name!r}: {chosen.reason})."]
