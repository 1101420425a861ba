"""Data of an episode, with accessors to read and overwrite it."""

from typing import Any, Self

import gymnasium
import numpy as np

from jaxrl.compat.lookup import RLlibEpisode
from jaxrl.core.types import Columns, PyTree
from jaxrl.episodes.lookback import Indices, LookbackBuffer
from jaxrl.errors import EpisodeError, did_you_mean


class EpisodeData(RLlibEpisode):
    """Data of an episode chunk, with RLlib's accessors.

    The accessors take `indices` (an index, a list, a slice, or None for everything),
    `neg_index_as_lookback`, `fill` and `one_hot_discrete`; see `LookbackBuffer.get`.
    """

    id_: str
    observations: LookbackBuffer
    infos: LookbackBuffer
    actions: LookbackBuffer
    rewards: LookbackBuffer
    extra_model_outputs: dict[str, LookbackBuffer]
    is_terminated: bool
    is_truncated: bool
    t_started: int
    t: int

    def __len__(self) -> int:
        """Return the number of steps of this chunk."""
        return self.t - self.t_started

    @property
    def length(self) -> int:
        """Number of steps of the episode so far, by the name of RLlib's older episodes."""
        return self.t

    @property
    def observation_space(self) -> gymnasium.Space[Any] | None:
        """Observation space, used by `fill` and `one_hot_discrete`."""
        return self.observations.space

    @observation_space.setter
    def observation_space(self, space: gymnasium.Space[Any] | None) -> None:
        self.observations.space = space

    @property
    def action_space(self) -> gymnasium.Space[Any] | None:
        """Action space, used by `fill` and `one_hot_discrete`."""
        return self.actions.space

    @action_space.setter
    def action_space(self, space: gymnasium.Space[Any] | None) -> None:
        self.actions.space = space

    def validate(self) -> None:
        """Check that the lengths of the data are consistent.

        Raises:
            EpisodeError: If they are not.
        """
        steps = len(self.rewards)
        has_begun = self.observations.len_incl_lookback() or self.rewards.len_incl_lookback()
        states = steps + 1 if has_begun else 0
        expected = {"observations": states, "infos": states, "actions": steps}
        lengths = {name: len(vars(self)[name]) for name in expected}
        for name, data in self.extra_model_outputs.items():
            expected[name], lengths[name] = steps, len(data)
        if lengths != expected:
            raise EpisodeError(
                f"The episode {self.id_} has {steps} rewards: expected the lengths {expected}, got "
                f"{lengths}."
            )

    @property
    def is_numpy(self) -> bool:
        """Return whether the data are stored as arrays."""
        return self.rewards.finalized

    def to_numpy(self) -> Self:
        """Stack lists to arrays in place; infos remain a list of dictionaries."""
        self.validate()
        for buffer in self._buffers():
            buffer.finalize()
        return self

    def _buffers(self) -> list[LookbackBuffer]:
        """Return all buffers except for the infos."""
        return [self.observations, self.actions, self.rewards, *self.extra_model_outputs.values()]

    def get_observations(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: object = None,
        one_hot_discrete: bool = False,
    ) -> PyTree:
        """Return observations; index 0 is the one before the first action."""
        return self.observations.get(
            indices,
            neg_index_as_lookback=neg_index_as_lookback,
            fill=fill,
            one_hot_discrete=one_hot_discrete,
        )

    def get_infos(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: object = None,
    ) -> PyTree:
        """Return the environment's infos; index 0 belongs to the first observation."""
        return self.infos.get(
            indices,
            neg_index_as_lookback=neg_index_as_lookback,
            fill=fill,
        )

    def get_actions(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: object = None,
        one_hot_discrete: bool = False,
    ) -> PyTree:
        """Return actions."""
        return self.actions.get(
            indices,
            neg_index_as_lookback=neg_index_as_lookback,
            fill=fill,
            one_hot_discrete=one_hot_discrete,
        )

    def get_rewards(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: object = None,
    ) -> PyTree:
        """Return rewards."""
        return self.rewards.get(
            indices,
            neg_index_as_lookback=neg_index_as_lookback,
            fill=fill,
        )

    def get_extra_model_outputs(
        self,
        key: str,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: object = None,
    ) -> PyTree:
        """Return the module's outputs of a name, other than actions."""
        return self._get_extra(key).get(
            indices,
            neg_index_as_lookback=neg_index_as_lookback,
            fill=fill,
        )

    def set_observations(
        self,
        *,
        new_data: PyTree,
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
    ) -> None:
        """Replace the observations at `at_indices`."""
        self.observations.set(
            new_data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback
        )

    def set_actions(
        self,
        *,
        new_data: PyTree,
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
    ) -> None:
        """Replace the actions at `at_indices`."""
        self.actions.set(
            new_data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback
        )

    def set_rewards(
        self,
        *,
        new_data: PyTree,
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
    ) -> None:
        """Replace the rewards at `at_indices`."""
        self.rewards.set(
            new_data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback
        )

    def set_extra_model_outputs(
        self,
        *,
        key: str,
        new_data: PyTree,
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
    ) -> None:
        """Replace the module's outputs of a name at `at_indices`."""
        self._get_extra(key).set(
            new_data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback
        )

    def _get_extra(self, key: str) -> LookbackBuffer:
        if key not in self.extra_model_outputs:
            raise EpisodeError(
                f"The episode {self.id_} has no model output '{key}'."
                f"{did_you_mean(key, self.extra_model_outputs)}"
            )
        return self.extra_model_outputs[key]

    def get_return(self) -> float:
        """Return the sum of this chunk's rewards."""
        return float(np.sum(np.asarray(self.get_rewards(), np.float64)))

    def get_data_dict(self) -> dict[str, Any]:
        """Return all data with one entry per step, by RLlib's column names."""
        steps = len(self)
        not_done = [False] * max(steps - 1, 0)
        rows: dict[str, Any] = {
            "eps_id": [self.id_] * steps,
            "t": list(range(self.t_started, self.t)),
            Columns.TERMINATEDS: [*not_done, self.is_terminated][:steps],
            Columns.TRUNCATEDS: [*not_done, self.is_truncated][:steps],
        }
        if self.is_numpy:
            rows = {name: np.asarray(column) for name, column in rows.items()}
        return {
            **rows,
            Columns.OBS: self.get_observations(slice(0, steps)),
            "infos": self.get_infos(slice(0, steps)),
            Columns.ACTIONS: self.get_actions(),
            Columns.REWARDS: self.get_rewards(),
            **{name: buffer.get() for name, buffer in self.extra_model_outputs.items()},
        }
