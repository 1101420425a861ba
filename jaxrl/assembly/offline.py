"""Recorded data of a config: spaces, draws, and the dataset for the device."""

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.assembly.dataset_connectors import apply_connectors, check_rewards_unfiltered
from jaxrl.assembly.input_transform import transform_parts
from jaxrl.assembly.recorded_actions import make_action_conversion
from jaxrl.assembly.replay import check_temporal, check_whole_sequences, get_max_seq_len
from jaxrl.buffers.dataset import Dataset, DatasetSampler
from jaxrl.config.batch_plan import OfflinePlan, ReplayPlan
from jaxrl.config.offline import count_source_rows
from jaxrl.config.settings.offline import SAMPLER, OfflineDataSettings, Storage
from jaxrl.config.settings.replay import OffPolicyTraining, parse_n_step
from jaxrl.connectors.pipelines import LearnerPipeline
from jaxrl.core.space_arrays import count_bytes
from jaxrl.core.struct import replace
from jaxrl.core.types import Columns, PyTree
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import ConfigError, DataError, JaxrlError
from jaxrl.modules.rl_module import make_zeros
from jaxrl.offline.held_out import EpisodeSplit
from jaxrl.offline.manifest import ReferenceReturns
from jaxrl.offline.recorded import RecordedData, Source, open_data, read_reference
from jaxrl.offline.stitch import merge_parts
from jaxrl.training.rollout import PolicyStep

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

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


def open_config_data(
    config: "AlgorithmConfig",
    spaces: Spaces | None = None,
) -> list[RecordedData]:
    """Open the recorded data of a config, by source, without reading their rows.

    Args:
        config: Config with `input_`.
        spaces: Spaces that the data must have; None for the declared ones, or those of the data.

    Raises:
        JaxrlError: If there are no data, or they have other spaces.
    """
    settings, environment = config.offline_data_settings, config.environment_settings
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


def find_reference(config: "AlgorithmConfig") -> ReferenceReturns | None:
    """Return the returns that scores are normalized with; None if the recorded data do not say."""
    if not (config.is_offline or config.is_mixed):
        return None
    try:
        found = {read_reference(source) for source in get_sources(config.offline_data_settings)}
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
    config: "AlgorithmConfig", plan: ReplayPlan, policy_step: PolicyStep
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
    sizes = _get_source_sizes(config, plan.train_batch_size)
    return DatasetSampler(
        batch_size=sum(sizes),
        num_updates=plan.num_minibatches,
        num_shards=plan.num_shards,
        n_step=parse_n_step(training.n_step),
        source_sizes=sizes,
    )


def _get_source_sizes(
    config: "AlgorithmConfig", num_rows: int, length: int = 1, num_shards: int = 1
) -> tuple[int, ...]:
    """Return the number of samples per gradient step of each recorded source; empty without shares.

    A sample is a row, or a sequence of `length` rows, of which each shard has equally many.
    """
    counts = count_source_rows(config, num_rows, length, num_shards)
    return tuple(number // length for name, number in counts.items() if name != SAMPLER)


def make_dataset_sampler(
    config: "AlgorithmConfig", plan: OfflinePlan, policy_step: PolicyStep, storage: Storage
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
    check_whole_sequences(
        config, plan.train_batch_size, plan.num_shards, length, has_memory=has_memory
    )
    order, sizes = config.offline_data_settings.dataset_sampling, None
    if len(config.offline_data_settings.sources) > 1:
        rows, shards = plan.train_batch_size, plan.num_shards
        sizes = _get_source_sizes(config, rows, length or 1, shards)
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
    config: "AlgorithmConfig",
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
        parts = prepare_parts(config, source, recorded, policy_step)
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
    return apply_connectors(config, dataset, policy_step, learner_pipeline)


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


def concatenate_parts(parts: Iterable[EpisodePart]) -> Dataset:
    """Lay parts of episodes end to end, those of an episode that follow each other as one."""
    return concatenate_sources([list(parts)])


def concatenate_sources(sources: Sequence[Iterable[EpisodePart]]) -> Dataset:
    """Lay the parts of several sources end to end, as `concatenate_parts` does those of one."""
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
    config: "AlgorithmConfig",
    data: RecordedData,
    recorded: Iterable[EpisodePart],
    policy_step: PolicyStep,
) -> list[EpisodePart]:
    """Return the parts to learn from, of those of a source, with the module's actions.

    Raises:
        ConfigError: If the recorded actions cannot be converted to the module's.
    """
    settings, is_modules = config.offline_data_settings, data.actions_are_normalized
    conversion = make_action_conversion(policy_step, are_normalized=is_modules)
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


def count_recorded_batches(
    config: "AlgorithmConfig", rows: Iterable[tuple[PolicyStep, int]]
) -> int:
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


def check_mixed_storage(config: "AlgorithmConfig", *, in_host_memory: bool) -> None:
    """Raise ConfigError if the replay buffer beside recorded data is in host memory."""
    if not in_host_memory:
        return
    buffer = config.training_settings.replay_buffer_config
    raise ConfigError(
        f"input_={config.offline_data_settings.input_!r} mixes recorded rows with those of a "
        f"replay buffer on the device, and replay_buffer_config={buffer!r} keeps it in host "
        "memory: set its 'storage' to 'device', and its 'type' to a compiled buffer."
    )
