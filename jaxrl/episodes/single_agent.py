"""An episode of one agent, or a part of one, with RLlib's accessors."""

import copy
import time
import uuid
from collections.abc import Mapping
from typing import Any, Literal

import gymnasium
import jax
import numpy as np
from gymnasium import spaces

from jaxrl.episodes.data import EpisodeData
from jaxrl.episodes.lookback import LookbackBuffer, unstacked
from jaxrl.errors import EpisodeError

_REWARDS = spaces.Box(-np.inf, np.inf, (), np.float32)


class SingleAgentEpisode(EpisodeData):
    """Observations, actions, rewards and what the module put out, step by step.

    A part of an episode that was `cut` can look back: it has the last steps of the part before, in
    front of its own, which count for nothing but the accessors. There is one observation (and info)
    more than there are actions and rewards.

    Attributes:
        id_: The same in all parts of an episode.
        t_started: Steps of the episode before this part.
        t: Steps of the episode up to now.
        is_terminated: The task has ended.
        is_truncated: The recording has ended.
        custom_data: For callbacks; goes on in the next part.
    """

    def __init__(
        self,
        id_: str | None = None,
        *,
        observations: Any = None,
        observation_space: gymnasium.Space[Any] | None = None,
        infos: Any = None,
        actions: Any = None,
        action_space: gymnasium.Space[Any] | None = None,
        rewards: Any = None,
        terminated: bool = False,
        truncated: bool = False,
        extra_model_outputs: Mapping[str, Any] | None = None,
        t_started: int | None = None,
        len_lookback_buffer: int | Literal["auto"] = "auto",
    ) -> None:
        """An empty episode, or one of given data.

        Args:
            id_: None draws one.
            observations: A list, or a tree of arrays; so are the others.
            observation_space: For `fill` and `one_hot_discrete`.
            infos: A list of dictionaries; empty ones if None.
            actions: One fewer than observations.
            action_space: As `observation_space`.
            rewards: As many as actions.
            terminated: The last observation ends the task.
            truncated: The last observation ends the recording.
            extra_model_outputs: By name, as many as actions.
            t_started: Steps of the episode before the data that are no look-back.
            len_lookback_buffer: So many of the steps given are only for looking back; "auto" is all.

        Raises:
            EpisodeError: The lengths do not fit together.
        """
        number = 0 if rewards is None else len(LookbackBuffer(rewards))
        lookback = number if len_lookback_buffer == "auto" else min(len_lookback_buffer, number)
        if infos is None:
            infos = [{} for _ in range(len(LookbackBuffer(observations)))]

        def buffer(data: Any, space: gymnasium.Space[Any] | None = None) -> LookbackBuffer:
            if isinstance(data, LookbackBuffer):
                return data
            return LookbackBuffer(data, lookback, space)

        self.id_ = id_ or uuid.uuid4().hex
        self.observations = buffer(observations, observation_space)
        self.infos = buffer(infos)
        self.actions = buffer(actions, action_space)
        self.rewards = buffer(rewards, _REWARDS)
        self.extra_model_outputs = {
            name: buffer(data) for name, data in (extra_model_outputs or {}).items()
        }
        self.is_terminated, self.is_truncated = terminated, truncated
        self.t_started = t_started or 0
        self.t = self.t_started + len(self.rewards)
        self.custom_data: dict[str, Any] = {}
        self._start_time: float | None = None
        self._last_step_time: float | None = None
        self.validate()

    def add_env_reset(self, observation: Any, infos: dict[str, Any] | None = None) -> None:
        """Add what the environment's `reset` returned.

        Raises:
            EpisodeError: The episode has begun already.
        """
        if self.is_reset:
            raise EpisodeError(f"The episode {self.id_} has begun already; make a new one.")
        self.observations.append(observation)
        self.infos.append(infos or {})
        self._start_time = time.perf_counter()

    def add_env_step(
        self,
        observation: Any,
        action: Any,
        reward: Any,
        infos: dict[str, Any] | None = None,
        *,
        terminated: bool = False,
        truncated: bool = False,
        extra_model_outputs: Mapping[str, Any] | None = None,
    ) -> None:
        """Add an action and what the environment's `step` returned.

        Raises:
            EpisodeError: The episode has not begun, or is done, or had other model outputs before.
        """
        if not self.is_reset or self.is_done:
            state = "is done" if self.is_done else "has not begun"
            raise EpisodeError(f"The episode {self.id_} {state}; no step can be added to it.")
        extra = dict(extra_model_outputs or {})
        if self.rewards.len_incl_lookback() == 0:
            self.extra_model_outputs = {name: LookbackBuffer() for name in extra}
        if extra.keys() != self.extra_model_outputs.keys():
            raise EpisodeError(
                f"The episode {self.id_} has the model outputs {list(self.extra_model_outputs)}; "
                f"a step with {list(extra)} cannot be added."
            )
        self.observations.append(observation)
        self.actions.append(action)
        self.rewards.append(reward)
        self.infos.append(infos or {})
        for name, value in extra.items():
            self.extra_model_outputs[name].append(value)
        self.t += 1
        self.is_terminated, self.is_truncated = bool(terminated), bool(truncated)
        self._last_step_time = time.perf_counter()
        if self._start_time is None:
            self._start_time = self._last_step_time

    @property
    def is_reset(self) -> bool:
        """Whether there is a first observation."""
        return len(self.observations) > 0

    @property
    def is_done(self) -> bool:
        """Whether the episode has ended."""
        return self.is_terminated or self.is_truncated

    def concat_episode(self, other: "SingleAgentEpisode") -> None:
        """Add the part of the same episode that comes after this one.

        Raises:
            EpisodeError: It is of another episode or does not come right after.
        """
        if other.id_ != self.id_ or self.is_done or other.t_started != self.t:
            raise EpisodeError(
                f"The part of {other.id_} from step {other.t_started} on cannot go on from "
                f"{self.id_}, which {'is done' if self.is_done else 'stands'} at step {self.t}."
            )
        first, last = other.get_observations(0), self.get_observations(-1)
        same = map(np.array_equal, jax.tree.leaves(first), jax.tree.leaves(last))
        if jax.tree.structure(first) != jax.tree.structure(last) or not all(same):
            raise EpisodeError(
                f"The part of {self.id_} from step {self.t} on does not begin with the observation "
                "that this one ends with."
            )
        if other.extra_model_outputs.keys() != self.extra_model_outputs.keys() and len(other):
            raise EpisodeError(
                f"The parts of {self.id_} have the model outputs {list(self.extra_model_outputs)} "
                f"and {list(other.extra_model_outputs)}."
            )
        self.observations.pop()
        self.infos.pop()
        self.observations.extend(other.get_observations())
        self.infos.extend(other.get_infos())
        self.actions.extend(other.get_actions())
        self.rewards.extend(other.get_rewards())
        for name, buffer in other.extra_model_outputs.items():
            self.extra_model_outputs[name].extend(buffer.get())
        self.t = other.t
        self.is_terminated, self.is_truncated = other.is_terminated, other.is_truncated
        self._last_step_time = other._last_step_time or self._last_step_time
        self.custom_data.update(other.custom_data)
        self.validate()

    def cut(self, len_lookback_buffer: int = 0) -> "SingleAgentEpisode":
        """The part of the episode that comes next, without a step of its own yet.

        Args:
            len_lookback_buffer: So many steps of this part it can look back to, or as many as
                there are.

        Raises:
            EpisodeError: The episode is done or has not begun.
        """
        if self.is_done or not self.is_reset or len_lookback_buffer < 0:
            raise EpisodeError(
                f"The episode {self.id_} cannot be cut with a look-back of {len_lookback_buffer}: "
                "it must be going on."
            )
        kept = min(len_lookback_buffer, self.rewards.len_incl_lookback())

        def last(buffer: LookbackBuffer, number: int) -> list[Any]:
            total = buffer.len_incl_lookback()
            taken = buffer.get(slice(-number, None)) if number and total else []
            return taken if isinstance(taken, list) else unstacked(taken)

        part = SingleAgentEpisode(
            self.id_,
            observations=last(self.observations, kept + 1),
            observation_space=self.observation_space,
            infos=last(self.infos, kept + 1),
            actions=last(self.actions, kept),
            action_space=self.action_space,
            rewards=last(self.rewards, kept),
            extra_model_outputs={
                name: last(buffer, kept) for name, buffer in self.extra_model_outputs.items()
            },
            t_started=self.t,
        )
        part.custom_data = copy.deepcopy(self.custom_data)
        return part

    def slice(
        self, slice_: slice, *, len_lookback_buffer: int | None = None
    ) -> "SingleAgentEpisode":
        """The steps of a slice as an episode of its own; `episode[a:b]` is the same.

        Args:
            slice_: Of the steps of this part, without its look-back.
            len_lookback_buffer: Steps before the slice to look back to, or as many as there are;
                None is as many as this part has.

        Raises:
            EpisodeError: The slice leaves out steps in between.
        """
        if slice_.step not in (None, 1):
            raise EpisodeError(f"Consecutive steps make an episode; {slice_} is not of such.")
        start, stop, _ = slice_.indices(len(self))
        stop = max(start, stop)
        lookback = self.rewards.lookback if len_lookback_buffer is None else len_lookback_buffer
        lookback = min(lookback, self.rewards.lookback + start)

        def part(buffer: LookbackBuffer, more: int = 0) -> LookbackBuffer:
            indices = slice(start - lookback, stop + more)
            data = buffer.get(indices, neg_index_as_lookback=True)
            return LookbackBuffer(data, lookback, buffer.space)

        ends_here = stop == len(self)
        return SingleAgentEpisode(
            self.id_,
            observations=part(self.observations, 1),
            observation_space=self.observation_space,
            infos=part(self.infos, 1),
            actions=part(self.actions),
            action_space=self.action_space,
            rewards=part(self.rewards),
            extra_model_outputs={k: part(v) for k, v in self.extra_model_outputs.items()},
            terminated=self.is_terminated and ends_here,
            truncated=self.is_truncated and ends_here,
            t_started=self.t_started + start,
        )

    def get_duration_s(self) -> float:
        """Seconds from the first observation to the latest step."""
        if self._start_time is None or self._last_step_time is None:
            return 0.0
        return self._last_step_time - self._start_time

    def env_steps(self) -> int:
        """Steps of this part."""
        return len(self)

    def agent_steps(self) -> int:
        """The same as `env_steps`."""
        return len(self)

    def __getitem__(self, item: "slice") -> "SingleAgentEpisode":
        if not isinstance(item, slice):
            raise EpisodeError(f"An episode takes slices such as episode[2:5], not {item!r}.")
        return self.slice(item)

    def __repr__(self) -> str:
        return (
            f"SingleAgentEpisode(len={len(self)} done={self.is_done} "
            f"return={self.get_return():g} id_={self.id_})"
        )

    def get_state(self) -> dict[str, Any]:
        """What `from_state` makes an equal episode of; can be pickled."""
        return {
            **{name: vars(self)[name].get_state() for name in _BUFFERS},
            "extra_model_outputs": {k: v.get_state() for k, v in self.extra_model_outputs.items()},
            **{name: vars(self)[name] for name in _PLAIN},
            "custom_data": dict(self.custom_data),
        }

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> "SingleAgentEpisode":
        """The episode of a state."""
        episode = SingleAgentEpisode(state["id_"])
        for name in _BUFFERS:
            setattr(episode, name, LookbackBuffer.from_state(state[name]))
        episode.extra_model_outputs = {
            name: LookbackBuffer.from_state(part)
            for name, part in state["extra_model_outputs"].items()
        }
        for name in (*_PLAIN, "custom_data"):
            setattr(episode, name, state[name])
        episode.validate()
        return episode


_BUFFERS = ("observations", "infos", "actions", "rewards")
_PLAIN = (
    "id_",
    "is_terminated",
    "is_truncated",
    "t_started",
    "t",
    "_start_time",
    "_last_step_time",
)
