"""Tasks of Ray Data that read recorded files and make the rows of gradient steps of them."""

import dataclasses
import functools
import hashlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
import jax
import numpy as np
import ray

from jaxrl.assembly.offline import (
    concatenate_sources,
    make_blank_dataset,
    open_source,
    select_parts,
)
from jaxrl.assembly.recorded_actions import ActionConversion, make_action_conversion
from jaxrl.buffers.dataset import Dataset, DatasetSampler, DrawnRows, compute_returns_to_go
from jaxrl.buffers.dataset_rows import AnyArray, PickedRows
from jaxrl.config.settings.offline import OfflineDataSettings
from jaxrl.connectors.learning import ClipRewards
from jaxrl.connectors.pipelines import LearnerPipeline
from jaxrl.core.struct import replace
from jaxrl.core.types import Columns, PyTree
from jaxrl.errors import DataError
from jaxrl.offline.held_out import leave_out
from jaxrl.offline.recorded import RecordedData
from jaxrl.offline.stitch import merge_ended_parts

if TYPE_CHECKING:
    from jaxrl.assembly.assemble import Assembly
    from jaxrl.config.base import AlgorithmConfig

PATH = "path"
CHUNK_BYTES = 2**24
"""Default of `chunk_bytes`."""
_UNFINISHED_CHUNKS = 8
"""Size of the episodes that have not ended and wait for the next part, in chunks."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RowLayout:
    """Columns of a stream: the leaves of picked rows, in order.

    Args:
        example: Picked rows `[1]` of the same structure, types and shapes, in NumPy.
    """

    example: PickedRows

    def split(self, picked: PickedRows) -> dict[str, np.ndarray]:
        """Return the columns of picked rows; leaves without a number have none.

        Raises:
            DataError: If they have another structure.
        """
        if jax.tree.structure(picked) != jax.tree.structure(self.example):
            raise DataError(
                "The rows of one stream differ in what they have of a step, such as 'action_logp': name "
                "files of one kind, and keep the extras of parts in input_transform."
            )
        leaves = jax.tree.leaves(picked)
        return {f"{i}": np.asarray(leaf) for i, leaf in enumerate(leaves) if leaf[:1].size}

    def join(self, columns: dict[str, np.ndarray], num_rows: int) -> PickedRows:
        """Return the rows of columns."""
        leaves, tree = jax.tree.flatten(self.example)
        blank = [np.zeros((num_rows, *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
        found = [
            columns[f"{i}"].reshape(leaf.shape).astype(leaf.dtype, copy=False)
            if f"{i}" in columns
            else leaf
            for i, leaf in enumerate(blank)
        ]
        return jax.tree.unflatten(tree, found)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RowTask:
    """Function of a batch of paths that yields the columns of their rows, shuffled in chunks.

    Chunks and their order are the same whenever a task is run again, so that Ray can restart it.

    Attributes:
        observation_space: Space of the observations.
        action_space: Space of the environment's actions.
        action_mask_key: Key of the action mask in a Dict of observations; None for none.
        settings: How the files are read.
        held_out_share: Share of the episodes that no rows are made of.
        sampler: What a row, or a sequence, is.
        action_conversion: Function of recorded actions that returns the module's.
        learner_pipeline: Connectors of rewards, which look at single ones.
        gamma: Discount factor of the returns to go.
        layout: Columns.
        chunk_bytes: Size of the parts that rows are made of at once, if an episode is not longer.
    """

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    action_mask_key: str | None
    settings: OfflineDataSettings
    held_out_share: float
    sampler: DatasetSampler
    action_conversion: ActionConversion
    learner_pipeline: LearnerPipeline
    gamma: float
    layout: RowLayout
    chunk_bytes: int

    def __call__(self, batch: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
        """Yield the columns of the rows of files, a chunk at a time."""
        for path in batch[PATH]:
            for number, chunk in enumerate(self._iter_chunks(str(path))):
                yield self.layout.split(self._make_rows(chunk, _make_generator(str(path), number)))

    def open(self, path: str) -> RecordedData:
        """Open one file."""
        return open_source(
            path,
            self.settings,
            (self.observation_space, self.action_space),
            action_mask_key=self.action_mask_key,
            is_tried=True,
        )

    def _iter_chunks(self, path: str) -> Iterator[Dataset]:
        data = self.open(path)
        parts, size = [], 0
        recorded = leave_out(data.iter_parts(), self.held_out_share)
        most = _UNFINISHED_CHUNKS * self.chunk_bytes // data.step_bytes
        merge = functools.partial(
            merge_ended_parts,
            max_unfinished_steps=most,
            overlaps=self.settings.ignore_final_observation,
        )
        for part in select_parts(self.settings, data, recorded, merge):
            parts.append(part)
            size += len(part) * data.step_bytes
            if size >= self.chunk_bytes:
                yield concatenate_sources([parts])
                parts, size = [], 0
        if parts:
            yield concatenate_sources([parts])

    def _make_rows(self, chunk: Dataset, rng: np.random.Generator) -> PickedRows:
        chunk = self._keep_columns(self._apply_connectors(chunk))
        first = rng.permutation(self.sampler.count_samples(chunk)).astype(np.int32)
        low, high = self.sampler.n_step
        max_steps = rng.integers(low, high + 1, size=len(first), dtype=np.int32)
        returns = self._compute_returns(chunk) if self.sampler.needs_returns else None
        drawn = DrawnRows(
            rows=first * np.int32(self.sampler.sequence_length or 1),
            learns=np.ones(first.shape, np.bool_),
        )
        return self.sampler.pick(chunk, drawn, max_steps, returns)

    def _keep_columns(self, chunk: Dataset) -> Dataset:
        """Return a chunk with the extras of the layout alone."""
        kept = self.layout.example.extras
        return replace(chunk, extras={name: x for name, x in chunk.extras.items() if name in kept})

    def _apply_connectors(self, chunk: Dataset) -> Dataset:
        chunk = replace(chunk, action=self.action_conversion(chunk.action))
        if len(self.learner_pipeline):
            reward: PyTree = _pad(chunk.reward)
            for connector in self.learner_pipeline.connectors:
                assert isinstance(connector, ClipRewards)  # the others are refused for streams
                reward = connector.clip(reward)
            chunk = replace(chunk, reward=np.asarray(reward)[: chunk.num_rows])
        return chunk

    def _compute_returns(self, chunk: Dataset) -> np.ndarray:
        number = len(_pad(chunk.reward))
        last = np.arange(number, dtype=np.int32)
        last[: chunk.num_rows] = chunk.last
        padded = replace(chunk, reward=_pad(chunk.reward), last=last)
        small = replace(padded, obs=(), action=(), extras={})
        return np.asarray(_compute_returns(small, np.float32(self.gamma)))[: chunk.num_rows]


_compute_returns = jax.jit(compute_returns_to_go)


def _pad(values: AnyArray) -> np.ndarray:
    """Return values with zeros after them, so that programs see few different lengths."""
    padded = np.zeros(1 << (len(values) - 1).bit_length(), values.dtype)
    padded[: len(values)] = values
    return padded


def _make_generator(path: str, number: int) -> np.random.Generator:
    """Return the generator of a chunk: another one in each task, the same if it is run again."""
    task = ray.get_runtime_context().get_task_id() or ""
    digest = hashlib.sha256(f"{task} {path} {number}".encode()).digest()
    return np.random.default_rng(np.frombuffer(digest, np.uint32))


def make_row_task(
    config: "AlgorithmConfig", assembly: "Assembly", data: RecordedData, sampler: DatasetSampler
) -> RowTask:
    """Make the function that reads the rows of a run.

    Args:
        config: Config of the run.
        assembly: Its functions.
        data: Its recorded data.
        sampler: What a row is.

    Raises:
        ConfigError: If the recorded actions cannot be converted to the module's.
    """
    policy_step = assembly.policy_step
    blank = jax.tree.map(np.asarray, make_blank_dataset(policy_step))
    has_logp = any(column.path[-1:] == (Columns.ACTION_LOGP,) for column in data.columns.leaves)
    if has_logp:
        blank = replace(blank, extras={Columns.ACTION_LOGP: np.zeros(1, np.float32)})
    one = DrawnRows(rows=np.zeros(1, np.int32), learns=np.ones(1, np.bool_))
    returns = np.zeros(1, np.float32) if sampler.needs_returns else None
    example = sampler.pick(blank, one, np.ones(1, np.int32), returns)
    return RowTask(
        observation_space=data.observation_space,
        action_space=data.action_space,
        action_mask_key=config.environment_settings.action_mask_key,
        settings=config.offline_data_settings,
        held_out_share=config.evaluation_settings.held_out_share,
        sampler=sampler,
        action_conversion=make_action_conversion(
            policy_step, are_normalized=data.actions_are_normalized
        ),
        learner_pipeline=assembly.train_step.learner_pipeline,
        gamma=config.training_settings.gamma,
        layout=RowLayout(example=example),
        chunk_bytes=CHUNK_BYTES,
    )


def get_paths(data: RecordedData) -> Sequence[dict[str, str]]:
    """Return the items of the stream: a path each."""
    return [{PATH: str(path)} for path in data.files]
