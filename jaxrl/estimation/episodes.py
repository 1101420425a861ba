"""Whole recorded episodes, and the probabilities of their actions."""

import dataclasses
from collections.abc import Iterable, Sequence

import jax
import numpy as np
from gymnasium import spaces
from jaxtyping import Bool, Float, Int

from jaxrl.assembly.recorded_actions import (
    ActionConversion,
    convert_rows,
    join_actions,
    split_rows,
)
from jaxrl.connectors.checks import check_action_inverse
from jaxrl.connectors.pipelines import ActionPipeline
from jaxrl.core.types import Columns, PyTree
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import DataError
from jaxrl.offline.checks import locate
from jaxrl.offline.joining import merge_parts
from jaxrl.offline.recorded import RecordedData

MAX_LOG_PROB = 1e-3
"""Log-probability of a choice above which it is none; rounding may leave it slightly above 0."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class WholeEpisodes:
    """Episodes that were recorded from their first step to their end.

    Attributes:
        source: First of the files that they are from.
        parts: Episodes, with the module's actions.
        behavior_log_prob: Log-probability of each action for the policy that recorded it, by episode;
            None if it was not recorded.
        num_dropped: Number of parts of episodes that were not whole.
        num_dropped_steps: Number of their steps.
    """

    source: str
    parts: Sequence[EpisodePart]
    behavior_log_prob: Sequence[Float[np.ndarray, " L"]] | None
    num_dropped: int
    num_dropped_steps: int = 0

    @property
    def has_density(self) -> bool:
        """True if the probabilities of the actions were recorded."""
        return self.behavior_log_prob is not None

    @property
    def lengths(self) -> Int[np.ndarray, " E"]:
        """Number of steps of each episode."""
        return np.asarray([len(part) for part in self.parts])

    @property
    def mask(self) -> Bool[np.ndarray, "E H"]:
        """Rows of padded arrays that are steps."""
        return np.arange(self.lengths.max()) < self.lengths[:, None]

    def pad(self, rows: Sequence[np.ndarray]) -> Float[np.ndarray, "E H"]:
        """Lay one number per step out as `[E, H]`, in float64, with zeros after each end."""
        out = np.zeros(self.mask.shape)
        for i, values in enumerate(rows):
            out[i, : len(values)] = values
        return out


def read_whole_episodes(
    data: RecordedData, pipeline: ActionPipeline, *, ignore_final_observation: bool = False
) -> WholeEpisodes:
    """Read the episodes that are whole; see `select_whole_episodes`.

    Raises:
        ConfigError: If the recorded actions cannot be converted to the module's.
        DataError: If no episode is whole, or the data are damaged.
    """
    return select_whole_episodes(
        data, data.iter_parts(), pipeline, ignore_final_observation=ignore_final_observation
    )


def select_whole_episodes(
    data: RecordedData,
    recorded: Iterable[EpisodePart],
    pipeline: ActionPipeline,
    *,
    split_by_episode: bool = True,
    ignore_final_observation: bool = False,
) -> WholeEpisodes:
    """Return the episodes that are whole.

    Recorded densities are of the actions as they were recorded: where these are the environment's,
    they are converted to those of the module's actions.

    Args:
        data: Recorded data.
        recorded: Parts of their episodes, those of one episode in order of time.
        pipeline: Action connectors of the target policy.
        split_by_episode: Whether episodes are those of the data; False makes each row one.
        ignore_final_observation: Whether an episode that was truncated ends one step earlier, at an
            observation that was acted on, because its final one is not known.

    Raises:
        ConfigError: If the recorded actions cannot be converted to the module's.
        DataError: If no episode is whole, or the data are damaged.
    """
    conversion = None
    if not data.actions_are_normalized and len(pipeline):
        check_action_inverse(pipeline)
        conversion = ActionConversion(pipeline=pipeline)
    parts: list[EpisodePart] = []
    dropped: list[int] = []
    for part in merge_parts(recorded):
        is_whole = part.t_started == 0 and (part.terminated or part.truncated) and data.has_past
        needs_final = ignore_final_observation and split_by_episode
        kept = _without_last_row(part) if needs_final else part
        if kept is not None and not split_by_episode:
            parts += _split_rows(kept)
        elif kept is not None and is_whole:
            parts.append(kept)
        else:
            dropped.append(len(part))
    if not parts:
        raise DataError(
            f"{data.files[0]} has no whole episode, from its first step to a termination or "
            "truncation, which estimates are made from: record whole episodes."
        )
    log_probs = None
    if data.has_density and all(Columns.ACTION_LOGP in part.extras for part in parts):
        log_probs = [_read_log_probs(data, part) for part in parts]
    if conversion is not None:
        if log_probs is not None:
            scales = split_rows(_compute_log_scale(pipeline, join_actions(parts)), parts)
            log_probs = [one + scale for one, scale in zip(log_probs, scales, strict=True)]
        parts = conversion.convert_parts(parts)
    return WholeEpisodes(
        source=str(data.files[0]),
        parts=parts,
        behavior_log_prob=log_probs,
        num_dropped=len(dropped),
        num_dropped_steps=sum(dropped),
    )


def _read_log_probs(data: RecordedData, part: EpisodePart) -> Float[np.ndarray, " L"]:
    """Return the recorded log-probabilities of a part.

    Raises:
        DataError: If one is none: not finite or, of an action that is a choice, above 0.
    """
    found = np.asarray(part.extras[Columns.ACTION_LOGP], np.float64)
    space, where = data.action_space, locate(part, str(data.files[0]))
    if found.size != len(part):
        raise DataError(
            f"{where}: {Columns.ACTION_LOGP} must have one number a step, got the shape {found.shape}."
        )
    found = found.reshape(-1)
    is_choice = isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)
    largest = MAX_LOG_PROB if is_choice else np.inf
    is_valid = np.isfinite(found) & (found <= largest)
    if not is_valid.all():
        row = int(np.argmin(is_valid))
        raise DataError(
            f"{where}: {Columns.ACTION_LOGP} is {found[row]:g} at t={part.t_started + row}, and must be the "
            f"logarithm of the probability with which an action of {space} was drawn: record that, or "
            "has_density=False."
        )
    return found


def join_episodes(sources: Sequence[WholeEpisodes]) -> WholeEpisodes:
    """Return the episodes of several sources, with densities if all of them have some."""
    if len(sources) == 1:
        return sources[0]
    log_probs: list[np.ndarray] | None = []
    for source in sources:
        if log_probs is not None and source.behavior_log_prob is not None:
            log_probs += source.behavior_log_prob
        else:
            log_probs = None
    return WholeEpisodes(
        source=sources[0].source,
        parts=[part for source in sources for part in source.parts],
        behavior_log_prob=log_probs,
        num_dropped=sum(source.num_dropped for source in sources),
        num_dropped_steps=sum(source.num_dropped_steps for source in sources),
    )


def _without_last_row(part: EpisodePart) -> EpisodePart | None:
    """Return a part without a last row whose successor is not known; None if no row is left."""
    if part.terminated:
        return part
    if len(part) == 1:
        return None
    head = part.split(len(part) - 1)[0]
    return dataclasses.replace(head, truncated=part.truncated, is_cut=part.is_cut)


def _split_rows(part: EpisodePart) -> list[EpisodePart]:
    """Return every row of a part as an episode that ends with it, as those of a bandit do."""

    def take(tree: PyTree, i: int, number: int = 1) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[i : i + number], tree)

    return [
        dataclasses.replace(
            part,
            t_started=0,
            obs=take(part.obs, i, 2),
            action=take(part.action, i),
            reward=part.reward[i : i + 1],
            extras=take(part.extras, i),
            version=part.version[i : i + 1],
            terminated=True,
            truncated=False,
            is_cut=False,
            carry=None,
        )
        for i in range(len(part))
    ]


def _compute_log_scale(pipeline: ActionPipeline, action: PyTree) -> Float[np.ndarray, " N"]:
    """Compute the log-density of the module's actions u less that of the environment's a, -log |du/da|.

    Raises:
        DataError: If actions are nested, so that they have no single density.
    """
    space = pipeline.space
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return np.zeros(len(action))
    if not isinstance(space, spaces.Box):
        raise DataError(
            f"The densities of recorded actions of {space} cannot be converted to those of the "
            "policy's actions: record them with output=..., or use the methods dm and fqe."
        )
    size = int(np.prod(space.shape))

    def invert(flat: jax.Array) -> jax.Array:
        return pipeline.inverse(flat.reshape(1, *space.shape)).reshape(size)

    flat = np.asarray(action, np.float32).reshape(len(action), size)
    jacobian = convert_rows(jax.jit(jax.vmap(jax.jacfwd(invert))), flat)
    return -np.linalg.slogdet(np.asarray(jacobian, np.float64))[1]
