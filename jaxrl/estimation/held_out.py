"""Evaluation of a run on the episodes that are held out of its recorded data."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding
from jaxtyping import Array, Float, Int

from jaxrl.assembly.assemble import Assembly
from jaxrl.assembly.offline import (
    Spaces,
    apply_connectors,
    concatenate_sources,
    format_bytes,
    get_device_limit,
    limit_dataset_size,
    open_source,
    open_sources,
    prepare_parts,
)
from jaxrl.buffers.dataset import (
    Dataset,
    DatasetSampler,
    DrawnRows,
    compute_returns_to_go,
    fold_rows,
)
from jaxrl.config.offline import EstimationMethod, parse_methods
from jaxrl.config.settings.offline import EVAL_LOSS
from jaxrl.connectors.pipelines import LearnerPipeline
from jaxrl.core.hparams import current_values
from jaxrl.core.struct import replace
from jaxrl.core.types import Device, Key, Metrics, Progress, PyTree, Transition
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import ConfigError, DataError
from jaxrl.learners.learner import BaseLearner, LearnerState
from jaxrl.metrics import DEFAULT_MODULE, OFF_POLICY_ESTIMATOR, OFFLINE_EVAL_RUNNERS
from jaxrl.modules.rl_module import RLModule
from jaxrl.offline.held_out import hash_episode
from jaxrl.offline.recorded import RecordedData, Source
from jaxrl.runtime.program import Program
from jaxrl.training.offline import OfflineTrainStep
from jaxrl.training.replay_updates import ReplayUpdates
from jaxrl.training.report import to_host
from jaxrl.training.rollout import ActorState, PolicyStep
from jaxrl.training.train_state import TrainState

if TYPE_CHECKING:
    from jaxrl.config.config import Config
    from jaxrl.estimation.estimate import EstimateReport
    from jaxrl.estimation.target import Target, WholeEpisodes

_SALT = 0x68656C64
"""Constant folded into the run's key for the draws of losses."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _RowsInOrder:
    """Rows of a dataset in order, `batch_size` samples of the sampler for each step."""

    sampler: DatasetSampler
    data: Dataset
    returns: Float[Array, " N"] | None

    def init_state(self) -> None:
        return None

    def sample_rows(
        self, source_state: None, step: Int[Array, ""], gamma: Float[Array, ""], key: Key
    ) -> tuple[None, Transition]:
        del source_state
        sampler, size = self.sampler, self.sampler.count_samples(self.data)
        place = step * sampler.batch_size + jnp.arange(sampler.batch_size, dtype=jnp.int32)
        first = jnp.minimum(place, size - 1) * (sampler.sequence_length or 1)
        drawn = DrawnRows(rows=first, learns=place < size)
        picked = sampler.pick(self.data, drawn, sampler.draw_max_steps(key), self.returns)
        return None, fold_rows(picked, gamma)

    def record_td_error(
        self,
        source_state: None,
        step: Int[Array, ""],
        indices: None,
        td_error: Float[Array, " N *L"],
    ) -> None:
        del source_state, step, indices, td_error


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class HeldOutLosses:
    """Means of a learner's losses over the rows of a dataset, at its current parameters.

    Each batch's losses are those of a gradient step that is not taken: learning rates are 0, so that
    no loss sees what another one's step would change.

    Args:
        runner: Functions of the run.
        sampler: What a sample is, and how many a batch has; one shard, in epochs.
        num_batches: Number of batches.
    """

    runner: OfflineTrainStep
    sampler: DatasetSampler
    num_batches: int

    @staticmethod
    def make(
        runner: OfflineTrainStep, batch_rows: int, num_rows: int, most: int
    ) -> "HeldOutLosses":
        """Make the losses of a dataset.

        Args:
            runner: Functions of the run.
            batch_rows: Maximum number of rows of a batch; a sequence is never divided.
            num_rows: Number of rows of the dataset.
            most: Maximum number of batches.
        """
        length = runner.experience.sequence_length or 1
        samples = -(-num_rows // length)
        size = min(samples, max(1, batch_rows // length))
        sampler = dataclasses.replace(
            runner.experience, batch_size=size, num_shards=1, order="epochs", source_sizes=None
        )
        number = min(most, -(-samples // size))
        return HeldOutLosses(runner=runner, sampler=sampler, num_batches=number)

    def count_rows(self, num_rows: int) -> int:
        """Return the number of rows of a dataset of `num_rows` that losses are means over."""
        return min(num_rows, self.num_batches * self.sampler.rows_per_update)

    def __call__(
        self, learner: LearnerState, obs_state: PyTree, progress: Progress, key: Key, data: Dataset
    ) -> Metrics:
        """Compute the means of all metrics whose names end with "loss".

        Args:
            learner: State of the learner.
            obs_state: Statistics of the observation connectors.
            progress: Counters of the run.
            key: Key of the run, which is not consumed: equal states have equal losses.
            data: Dataset.
        """
        gamma = current_values(learner.hparams, progress)["gamma"]
        returns = compute_returns_to_go(data, gamma) if self.sampler.needs_returns else None
        source = _RowsInOrder(sampler=self.sampler, data=data, returns=returns)
        updates = ReplayUpdates(
            learner=self.runner.learner,
            policy_step=self.runner.policy_step,
            guard=self.runner.guard,
            num_updates=1,
            axis_name=None,
        )
        state, base = self._stop_learning(learner), jax.random.fold_in(key, _SALT)

        def compute(number: Int[Array, ""]) -> Metrics:
            metrics = updates.compute_metrics(source, obs_state, state, progress, number, base)
            return {name: x for name, x in metrics.items() if name.endswith("loss")}

        batches = jax.lax.map(compute, jnp.arange(self.num_batches, dtype=jnp.int32))
        # Losses are means over all rows of a batch, of which those beyond the data weigh 0.
        scale = self.sampler.rows_per_update / self.count_rows(data.num_rows)
        return {name: x.sum() * jnp.float32(scale) for name, x in batches.items()}

    def _stop_learning(self, state: LearnerState) -> LearnerState:
        """Return the state with learning rates of 0, and in which no part's step is delayed."""
        zero = jnp.zeros((), jnp.float32)
        rates = {name: zero for name in state.hparams if name == "lr" or name.endswith("_lr")}
        state = replace(state, hparams={**state.hparams, **rates})
        learner = self.runner.learner
        return learner.without_delays(state) if isinstance(learner, BaseLearner) else state


def load_held_out(
    config: "Config",
    data: Sequence[RecordedData],
    held_out: Sequence[Sequence[EpisodePart]],
    policy_step: PolicyStep,
    learner_pipeline: LearnerPipeline,
    num_rows: int | None = None,
    statistics: PyTree | None = None,
) -> Dataset:
    """Lay the held-out episodes into a dataset of NumPy arrays, as they would be learned from.

    Episodes are in the order of their hashes, which does not depend on that of the files.

    Args:
        config: Config with an evaluation on them.
        data: Recorded data by source.
        held_out: Held-out parts of each source, as they are recorded.
        policy_step: Policy with its connectors.
        learner_pipeline: Connectors of rewards.
        num_rows: Number of rows that are needed; None for all.
        statistics: Statistics of the observation connectors, which those that look back are used
            with; None for those of the held-out rows.

    Raises:
        DataError: If no row is left of them.
    """
    parts: list[EpisodePart] = []
    for source, recorded in zip(data, held_out, strict=True):
        parts += prepare_parts(config.offline_data_settings, source, recorded, policy_step)
    if not parts:
        raise DataError(
            f"{data[0].files[0]} has no rows among the held-out episodes, after input_transform and the "
            "connectors: raise offline_evaluation_split, or leave offline_evaluation_interval out."
        )
    dataset = concatenate_sources([_take_rows(sort_episodes(parts), num_rows)])
    return apply_connectors(
        config.training_settings, dataset, policy_step, learner_pipeline, statistics
    )


def sort_episodes(parts: Sequence[EpisodePart]) -> list[EpisodePart]:
    """Return parts in the order of the hashes of their episodes, those of one side by side."""
    return sorted(parts, key=lambda part: (hash_episode(part.episode_id), part.episode_id))


def _take_rows(parts: Sequence[EpisodePart], num_rows: int | None) -> list[EpisodePart]:
    """Return the first parts with at least so many rows; all if there are fewer."""
    if num_rows is None:
        return list(parts)
    before = itertools.accumulate(map(len, parts), initial=0)
    return [part for part, rows in zip(parts, before, strict=False) if rows < num_rows]


SHARED_KEY = "held_out"
"""Name of the evaluation among what runs of one program share."""
_TOTAL_LOSS, _TOTAL_EVAL_LOSS = "total_loss", "total_eval_loss"


def resolve_explore(setting: bool, module: RLModule, explore: bool | None) -> bool:
    """Return whether the estimated policy samples its actions.

    Args:
        setting: Setting `explore`.
        module: Module of the policy.
        explore: Choice of a caller; None for the setting, if the module samples with known
            probabilities.
    """
    return setting and module.explores_by_distribution if explore is None else explore


class HeldOutEvaluation:
    """Losses and estimates on held-out episodes, as a config asks for.

    Args:
        config: Config with an evaluation on held-out episodes.
        assembly: Functions of the run.
        device: Device that computes losses.

    Raises:
        JaxrlError: If no episode is held out or left, the data lack what a method needs, or the policy
            has no probabilities that one needs.
    """

    def __init__(self, config: "Config", assembly: Assembly, device: Device) -> None:
        self._config, self._assembly, self._device = config, assembly, device
        self._settings = config.evaluation_settings
        self.programs: list[Program] = []
        self._losses: tuple[Dataset, HeldOutLosses, Program] | None = None
        self._reload: Callable[[PyTree], Dataset] | None = None
        """Function that reads rows through the run's statistics, which exist at the first evaluation."""
        self._compiled: dict[Any, Any] = {}
        self._estimates: dict[str, EstimationMethod] = {}
        if self._settings.offline_evaluation_type != EVAL_LOSS:
            kind = self._settings.offline_evaluation_type
            self._estimates[OFFLINE_EVAL_RUNNERS] = EstimationMethod(method=kind)
        self._named = parse_methods(self._settings.off_policy_estimation_methods)
        held_out = self._read_parts(leaves_others=self._assembly.row_storage != "stream")
        if self._settings.offline_evaluation_type == EVAL_LOSS:
            self._losses = self._make_losses(*held_out)
        self._episodes: WholeEpisodes | None = None
        if self._methods:
            from jaxrl.estimation.estimate import check_densities, check_target

            names = [each.method for each in self._methods]
            check_target(self._make_target(None), names)
            self._episodes = self._join_episodes(*held_out)
            check_densities(self._episodes, names)

    @property
    def _methods(self) -> list[EstimationMethod]:
        return [*self._estimates.values(), *self._named.values()]

    def _read_parts(
        self, *, leaves_others: bool
    ) -> tuple[list[RecordedData], list[list[EpisodePart]]]:
        """Return the data by source, and their held-out parts."""
        settings, environment = (
            self._config.offline_data_settings,
            self._config.environment_settings,
        )
        data = open_sources(settings, environment, self._assembly.made.spaces)
        parts = self._assembly.episode_split.take(
            data,
            self._settings.held_out_share,
            held_out=True,
            leaves_others=leaves_others,
            count=limit_dataset_size(
                settings,
                self._settings.offline_evaluation_split,
                data,
                self._assembly.row_storage,
                self._device,
            ),
        )
        return data, parts

    def _make_losses(
        self,
        data: Sequence[RecordedData],
        held_out: Sequence[Sequence[EpisodePart]],
    ) -> tuple[Dataset, HeldOutLosses, Program]:
        assembly, settings = self._assembly, self._settings
        duration, size = (
            settings.offline_evaluation_duration,
            settings.offline_eval_batch_size_per_runner,
        )
        pipeline = assembly.policy_step.obs_pipeline
        load = partial(
            load_held_out,
            self._config,
            data,
            held_out,
            assembly.policy_step,
            assembly.train_step.learner_pipeline,
            None if duration == "auto" else duration * size,
        )
        dataset = load()
        if pipeline.temporal and pipeline.has_statistics:
            self._reload = load
        self._check_size(dataset)
        losses = HeldOutLosses.make(
            assembly.offline_step,
            size,
            dataset.num_rows,
            dataset.num_rows if duration == "auto" else duration,
        )
        program = Program(
            "evaluate_offline", losses, enabled=self._config.debugging_settings.compiles
        )
        self.programs.append(program)
        place = SingleDeviceSharding(self._device)
        return jax.device_put(dataset, place), losses, program

    def _check_size(self, dataset: Dataset) -> None:
        """Raise if the held-out rows are larger than the limit of a dataset on the device."""
        limit = get_device_limit(self._config.offline_data_settings.max_dataset_bytes, self._device)
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(dataset))
        if limit is not None and size > limit:
            raise ConfigError(
                f"offline_evaluation_split={self._settings.offline_evaluation_split} holds out "
                f"{format_bytes(size)}, and max_dataset_bytes allows {format_bytes(limit)} on the device: "
                "lower one, raise the other, or set offline_evaluation_duration to a number of batches."
            )

    def _make_target(self, actor: ActorState | None) -> "Target":
        """Return the policy to estimate, with the functions that were compiled for it before."""
        from jaxrl.estimation.target import Target

        return Target(
            policy_step=self._assembly.policy_step,
            actor=actor,
            explore=resolve_explore(
                self._config.env_runners_settings.explore, self._assembly.module, None
            ),
            compiled=self._compiled,
        )

    def read_episodes(self) -> "WholeEpisodes":
        """Return the held-out episodes that estimates are made from.

        Raises:
            JaxrlError: If there are none that are whole, or the data are damaged.
        """
        if self._episodes is not None:
            return self._episodes
        return self._join_episodes(*self._read_parts(leaves_others=False))

    def _join_episodes(
        self,
        data: Sequence[RecordedData],
        held_out: Sequence[Sequence[EpisodePart]],
    ) -> "WholeEpisodes":
        from jaxrl.estimation.target import join_episodes, read_whole_episodes

        whole = [
            read_whole_episodes(
                source,
                self._assembly.policy_step.action_pipeline,
                self._select_episodes(parts),
                split_by_episode=self._settings.ope_split_batch_by_episode,
                ignore_final_observation=self._config.offline_data_settings.ignore_final_observation,
            )
            for source, parts in zip(data, held_out, strict=True)
            if parts
        ]
        return join_episodes(whole)

    def _select_episodes(self, parts: Sequence[Any]) -> Sequence[Any]:
        """Return the parts of a source in the order of their hashes, as many as are evaluated."""
        settings, ordered = self._settings, sort_episodes(parts)
        if settings.offline_evaluation_duration == "auto":
            return ordered
        number = settings.offline_evaluation_duration * settings.offline_eval_batch_size_per_runner
        ids = list(dict.fromkeys(part.episode_id for part in ordered))[:number]
        return [part for part in ordered if part.episode_id in set(ids)]

    def evaluate(
        self, state: TrainState, get_actor: Callable[[], ActorState], *, gamma: float, seed: int
    ) -> dict[str, Any]:
        """Evaluate a run, by RLlib's keys below "evaluation".

        Args:
            state: State of the run.
            get_actor: Function that returns the policy's parameters and statistics.
            gamma: Discount factor of the run.
            seed: Seed of the run.
        """
        result: dict[str, Any] = {}
        if self._losses is not None:
            result[OFFLINE_EVAL_RUNNERS] = self._compute_losses(state)
        if self._methods:
            reports = self._estimate(get_actor(), gamma, seed)
            for name, method in self._estimates.items():
                result[name] = _describe_report(reports[_key(method)], method.method)
            named = {
                name: _describe_gain(reports[_key(method)], method.method)
                for name, method in self._named.items()
            }
            if named:
                result[OFF_POLICY_ESTIMATOR] = named
        return result

    def _compute_losses(self, state: TrainState) -> dict[str, Any]:
        assert self._losses is not None
        dataset, losses, program = self._losses
        if self._reload is not None:
            statistics = to_host(_to_device(state.connectors.obs, self._device))
            dataset = jax.device_put(self._reload(statistics), SingleDeviceSharding(self._device))
            self._losses, self._reload = (dataset, losses, program), None
        inputs = state.learner, state.connectors.obs, state.progress, state.key
        means = to_host(program(*_to_device(inputs, self._device), dataset))
        values = {name: float(value) for name, value in means.items()}
        total = {_TOTAL_EVAL_LOSS: values.pop(_TOTAL_LOSS)}
        return {
            DEFAULT_MODULE: {**total, **values},
            "num_env_steps": losses.count_rows(dataset.num_rows),
        }

    def _estimate(
        self, actor: ActorState, gamma: float, seed: int
    ) -> dict[tuple[Any, ...], "EstimateReport"]:
        """Return the reports by the settings of fitted Q evaluation, each with all its methods."""
        from jaxrl.estimation.estimate import estimate

        by_settings: dict[tuple[Any, ...], list[EstimationMethod]] = {}
        for method in self._methods:
            by_settings.setdefault(_key(method), []).append(method)
        target, episodes = self._make_target(actor), self.read_episodes()
        return {
            key: estimate(
                target,
                episodes,
                gamma=gamma,
                methods=list(dict.fromkeys(each.method for each in group)),
                fqe=group[0].fqe,
                seed=seed,
            )
            for key, group in by_settings.items()
        }


class MissingEvaluation:
    """Evaluation on held-out episodes of data that are missing; a restored policy may still act.

    Args:
        error: Error of the data.
    """

    def __init__(self, error: DataError) -> None:
        self._error, self.programs = error, list[Program]()

    def read_episodes(self) -> NoReturn:
        """Raise the error."""
        raise self._error

    def evaluate(
        self, state: TrainState, get_actor: Callable[[], ActorState], *, gamma: float, seed: int
    ) -> NoReturn:
        """Raise the error."""
        del state, get_actor, gamma, seed
        raise self._error


def open_held_out(
    config: "Config",
    assembly: Assembly,
    devices: Sequence[Device],
    shared: dict[str, Any],
) -> HeldOutEvaluation | MissingEvaluation | None:
    """Return the evaluation on held-out episodes, if the config has one.

    Args:
        config: Config of the run.
        assembly: Its functions.
        devices: Its devices.
        shared: What runs of one program share, where the evaluation is kept.

    Raises:
        JaxrlError: If it is impossible. A run that is only restored may lack its data.
    """
    if not config.evaluation_settings.held_out_share:
        return None
    if SHARED_KEY not in shared:
        try:
            shared[SHARED_KEY] = HeldOutEvaluation(config, assembly, devices[0])
        except DataError as error:
            if assembly.should_train:
                raise
            return MissingEvaluation(error)
    return shared[SHARED_KEY]


def open_estimated(
    config: "Config",
    input_: Source | None,
    held_out: HeldOutEvaluation | MissingEvaluation | None,
    spaces: Spaces,
) -> "RecordedData | WholeEpisodes":
    """Return the data to estimate a policy from: those named, held-out episodes, or the run's.

    Raises:
        ConfigError: If there are no data.
        DataError: If they are damaged, or of other spaces.
    """
    if input_ is None and held_out is not None:
        return held_out.read_episodes()
    if input_ is None and not (config.is_offline or config.is_mixed):
        raise ConfigError(
            "evaluate_offline needs recorded data: name a folder of them, "
            "evaluate_offline('path/to/data')."
        )
    settings = config.offline_data_settings
    if input_ is None:
        input_ = list(settings.sources) or cast("str | list[str]", settings.input_)
    return open_source(input_, settings, spaces)


def _key(method: EstimationMethod) -> tuple[Any, ...]:
    return tuple(sorted(method.fqe.items()))


def _describe_report(report: "EstimateReport", method: str) -> dict[str, Any]:
    """Return what results have of an estimate: the discounted return, and how sure it is."""
    estimate = report.estimates[method]
    return {
        "episode_return_mean": estimate.value,
        "episode_return_low": estimate.low,
        "episode_return_high": estimate.high,
        "behavior_return_mean": report.behavior.value,
        "num_episodes": report.num_episodes,
        "num_env_steps": report.num_steps,
        **_describe_weights(report),
    }


def _describe_gain(report: "EstimateReport", method: str) -> dict[str, Any]:
    """Return an estimate by RLlib's names of `off_policy_estimator`."""
    estimate, behavior = report.estimates[method], report.behavior.value
    return {
        "v_target": estimate.value,
        "v_target_low": estimate.low,
        "v_target_high": estimate.high,
        "v_behavior": behavior,
        "v_delta": estimate.value - behavior,
        "v_gain": estimate.value / behavior if behavior else float("nan"),
        **_describe_weights(report),
    }


def _describe_weights(report: "EstimateReport") -> dict[str, Any]:
    if report.effective_size is None:
        return {}
    return {"effective_size": report.effective_size, "largest_share": report.largest_share}


def _to_device(tree: PyTree, device: Device) -> PyTree:
    """Return a tree that all devices of a run have, on one device."""

    def move(leaf: jax.Array | np.ndarray) -> jax.Array:
        own = leaf.addressable_data(0) if isinstance(leaf, jax.Array) else leaf
        return jax.device_put(own, device)

    return jax.tree.map(move, tree)
