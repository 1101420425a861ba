"""What an episode holds, and how it is read and overwritten."""

from typing import Any, Self

import gymnasium
import numpy as np

from jaxrl.core.types import Columns
from jaxrl.episodes.lookback import Indices, LookbackBuffer
from jaxrl.errors import EpisodeError, did_you_mean


class EpisodeData:
    """The data of a part of an episode, with RLlib's accessors.

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
        """Steps of this part."""
        return self.t - self.t_started

    @property
    def observation_space(self) -> gymnasium.Space[Any] | None:
        """For `fill` and `one_hot_discrete`."""
        return self.observations.space

    @observation_space.setter
    def observation_space(self, space: gymnasium.Space[Any] | None) -> None:
        self.observations.space = space

    @property
    def action_space(self) -> gymnasium.Space[Any] | None:
        """For `fill` and `one_hot_discrete`."""
        return self.actions.space

    @action_space.setter
    def action_space(self, space: gymnasium.Space[Any] | None) -> None:
        self.actions.space = space

    def validate(self) -> None:
        """Hold the lengths of the data against one another.

        Raises:
            EpisodeError: They do not fit together.
        """
        steps = len(self.rewards)
        has_begun = self.observations.len_incl_lookback() or self.rewards.len_incl_lookback()
        states = steps + 1 if has_begun else 0
        wanted = {"observations": states, "infos": states, "actions": steps}
        lengths = {name: len(vars(self)[name]) for name in wanted}
        for name, data in self.extra_model_outputs.items():
            wanted[name], lengths[name] = steps, len(data)
        if lengths != wanted:
            raise EpisodeError(
                f"The episode {self.id_} has {steps} rewards; that goes with {wanted}, not {lengths}."
            )

    @property
    def is_numpy(self) -> bool:
        """Whether the data are arrays."""
        return self.rewards.finalized

    def to_numpy(self) -> Self:
        """Stack lists to arrays, in place; infos stay a list of dictionaries."""
        self.validate()
        for buffer in self._buffers():
            buffer.finalize()
        return self

    def _buffers(self) -> list[LookbackBuffer]:
        """All but the infos."""
        return [self.observations, self.actions, self.rewards, *self.extra_model_outputs.values()]

    def get_observations(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Any:
        """Observations, of which 0 is what the first action saw."""
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
        fill: Any = None,
    ) -> Any:
        """The environment's infos, of which 0 came with the first observation."""
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
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Any:
        """Actions."""
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
        fill: Any = None,
    ) -> Any:
        """Rewards."""
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
        fill: Any = None,
    ) -> Any:
        """What the module put out beside actions, by name."""
        return self._extra(key).get(
            indices,
            neg_index_as_lookback=neg_index_as_lookback,
            fill=fill,
        )

    def set_observations(
        self,
        *,
        new_data: Any,
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
    ) -> None:
        """Put other observations in the place of those at `at_indices`."""
        self.observations.set(
            new_data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback
        )

    def set_actions(
        self,
        *,
        new_data: Any,
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
    ) -> None:
        """Put other actions in the place of those at `at_indices`."""
        self.actions.set(
            new_data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback
        )

    def set_rewards(
        self,
        *,
        new_data: Any,
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
    ) -> None:
        """Put other rewards in the place of those at `at_indices`."""
        self.rewards.set(
            new_data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback
        )

    def set_extra_model_outputs(
        self,
        *,
        key: str,
        new_data: Any,
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
    ) -> None:
        """Put other outputs in the place of those of this name at `at_indices`."""
        self._extra(key).set(
            new_data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback
        )

    def _extra(self, key: str) -> LookbackBuffer:
        if key not in self.extra_model_outputs:
            raise EpisodeError(
                f"The episode {self.id_} has no model output '{key}'."
                f"{did_you_mean(key, self.extra_model_outputs)}"
            )
        return self.extra_model_outputs[key]

    def get_return(self) -> float:
        """The sum of this part's rewards."""
        return float(np.sum(np.asarray(self.get_rewards(), np.float64)))

    def get_data_dict(self) -> dict[str, Any]:
        """One entry a step of everything, by RLlib's column names."""
        steps = len(self)
        ends = [False] * max(steps - 1, 0)
        rows: dict[str, Any] = {
            "eps_id": [self.id_] * steps,
            "t": list(range(self.t_started, self.t)),
            Columns.TERMINATEDS: [*ends, self.is_terminated][:steps],
            Columns.TRUNCATEDS: [*ends, self.is_truncated][:steps],
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
