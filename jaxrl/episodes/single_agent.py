"""Episode of one agent, or a chunk of one, with RLlib's accessors."""

import copy
import time
import uuid
from collections.abc import Hashable, Mapping
from typing import Any, Literal, SupportsFloat

import gymnasium
import jax
import numpy as np
from gymnasium import spaces

from jaxrl.core.types import PyTree
from jaxrl.episodes.data import EpisodeData
from jaxrl.episodes.lookback import LookbackBuffer, unstack_items
from jaxrl.errors import EpisodeError

_REWARDS = spaces.Box(-np.inf, np.inf, (), np.float32)


class SingleAgentEpisode(EpisodeData):
    """Observations, actions, rewards and module outputs of an episode chunk.

    A chunk returned by `cut` has a lookback buffer: the last steps of the previous chunk precede
    its own and are visible to the accessors only. There is one more observation (and info) than
    actions and rewards.

    Attributes:
        id_: Identifier shared by all chunks of an episode.
        t_started: Number of steps of the episode before this chunk.
        t: Number of steps of the episode so far.
        is_terminated: Whether the task has ended.
        is_truncated: Whether the episode was cut off before its task ended.
        custom_data: Data of callbacks, which is copied to the next chunk.
        agent_id: Id of the agent, in an episode of several agents; None of a single one.
        module_id: Id of the module that plays the agent, in an episode of several agents.
        multi_agent_episode_id: Identifier of the episode of several agents.
    """

    def __init__(
        self,
        id_: str | None = None,
        *,
        observations: PyTree = None,
        observation_space: gymnasium.Space[Any] | None = None,
        infos: list[dict[str, Any]] | LookbackBuffer | None = None,
        actions: PyTree = None,
        action_space: gymnasium.Space[Any] | None = None,
        rewards: PyTree = None,
        terminated: bool = False,
        truncated: bool = False,
        extra_model_outputs: Mapping[str, Any] | None = None,
        t_started: int | None = None,
        len_lookback_buffer: int | Literal["auto"] = "auto",
        agent_id: Hashable = None,
        module_id: str | None = None,
        multi_agent_episode_id: str | None = None,
    ) -> None:
        """Initialize an empty episode, or one with data.

        Args:
            id_: Identifier of the episode; None generates one.
            observations: List of observations, or a tree of arrays, as are the other data.
            observation_space: Observation space, used by `fill` and `one_hot_discrete`.
            infos: List of dictionaries, one per observation; None for empty ones.
            actions: Actions, one fewer than observations.
            action_space: Action space, used like `observation_space`.
            rewards: Rewards, as many as actions.
            terminated: Whether the last observation ends the task.
            truncated: Whether the episode is cut off after the last observation.
            extra_model_outputs: Module outputs by name, as many as actions.
            t_started: Number of steps of the episode before this chunk's own, without lookback.
            len_lookback_buffer: Number of the given steps that are lookback; "auto" is all of them.
            agent_id: Id of the agent, in an episode of several agents.
            module_id: Id of the module that plays the agent.
            multi_agent_episode_id: Identifier of the episode of several agents.

        Raises:
            EpisodeError: If the lengths are inconsistent.
        """
        number = 0 if rewards is None else len(LookbackBuffer(rewards))
        lookback = number if len_lookback_buffer == "auto" else min(len_lookback_buffer, number)
        if infos is None:
            infos = [{} for _ in range(len(LookbackBuffer(observations)))]

        def buffer(data: PyTree, space: gymnasium.Space[Any] | None = None) -> LookbackBuffer:
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
        self.agent_id, self.module_id = agent_id, module_id
        self.multi_agent_episode_id = multi_agent_episode_id
        self._start_time: float | None = None
        self._last_step_time: float | None = None
        self.validate()

    def add_env_reset(self, observation: PyTree, infos: dict[str, Any] | None = None) -> None:
        """Add the return values of the environment's `reset`.

        Raises:
            EpisodeError: If the episode has already begun.
        """
        if self.is_reset:
            raise EpisodeError(f"The episode {self.id_} has already begun; create a new one.")
        self.observations.append(observation)
        self.infos.append(infos or {})
        self._start_time = time.perf_counter()

    def add_env_step(
        self,
        observation: PyTree,
        action: PyTree,
        reward: SupportsFloat,
        infos: dict[str, Any] | None = None,
        *,
        terminated: bool = False,
        truncated: bool = False,
        extra_model_outputs: Mapping[str, Any] | None = None,
    ) -> None:
        """Add an action and the return values of the environment's `step`.

        Raises:
            EpisodeError: If the episode has not begun or is done, or previous steps had other model
                outputs.
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
        """Return whether the episode has a first observation."""
        return len(self.observations) > 0

    @property
    def is_done(self) -> bool:
        """Return whether the episode has ended."""
        return self.is_terminated or self.is_truncated

    def concat_episode(self, other: "SingleAgentEpisode") -> None:
        """Append the next chunk of the same episode.

        Raises:
            EpisodeError: If `other` belongs to another episode or does not follow directly.
        """
        if other.id_ != self.id_ or self.is_done or other.t_started != self.t:
            raise EpisodeError(
                f"The chunk of {other.id_} from step {other.t_started} on cannot be appended to "
                f"{self.id_}, which {'is done' if self.is_done else 'ends'} at step {self.t}."
            )
        first, last = other.get_observations(0), self.get_observations(-1)
        is_same = map(np.array_equal, jax.tree.leaves(first), jax.tree.leaves(last))
        if jax.tree.structure(first) != jax.tree.structure(last) or not all(is_same):
            raise EpisodeError(
                f"The chunk of {self.id_} from step {self.t} on does not begin with the last "
                "observation of this one."
            )
        if not self.rewards.len_incl_lookback():
            self.extra_model_outputs = {
                name: LookbackBuffer() for name in other.extra_model_outputs
            }
        if other.extra_model_outputs.keys() != self.extra_model_outputs.keys() and len(other):
            raise EpisodeError(
                f"The chunks of {self.id_} have different model outputs: "
                f"{list(self.extra_model_outputs)} and {list(other.extra_model_outputs)}."
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
        """Return the next chunk of the episode, which has no steps yet.

        Args:
            len_lookback_buffer: Maximum number of steps of this chunk in the lookback buffer of the
                next one.

        Raises:
            EpisodeError: If the episode is done or has not begun.
        """
        if self.is_done or not self.is_reset or len_lookback_buffer < 0:
            raise EpisodeError(
                f"The episode {self.id_} cannot be cut with a lookback of {len_lookback_buffer}: "
                "the episode must be ongoing and the lookback at least 0."
            )
        lookback = min(len_lookback_buffer, self.rewards.len_incl_lookback())

        def get_last(buffer: LookbackBuffer, number: int) -> list[Any]:
            total = buffer.len_incl_lookback()
            items = buffer.get(slice(-number, None)) if number and total else []
            return items if isinstance(items, list) else unstack_items(items)

        chunk = SingleAgentEpisode(
            self.id_,
            observations=get_last(self.observations, lookback + 1),
            observation_space=self.observation_space,
            infos=get_last(self.infos, lookback + 1),
            actions=get_last(self.actions, lookback),
            action_space=self.action_space,
            rewards=get_last(self.rewards, lookback),
            extra_model_outputs={
                name: get_last(buffer, lookback)
                for name, buffer in self.extra_model_outputs.items()
            },
            t_started=self.t,
            **self._names(),
        )
        chunk.custom_data = copy.deepcopy(self.custom_data)
        return chunk

    def slice(
        self, slice_: slice, *, len_lookback_buffer: int | None = None
    ) -> "SingleAgentEpisode":
        """Return the steps of a slice as an episode; equivalent to `episode[a:b]`.

        Args:
            slice_: Slice of the steps of this chunk, without its lookback.
            len_lookback_buffer: Maximum number of steps before the slice in its lookback buffer;
                None uses the length of this chunk's lookback.

        Raises:
            EpisodeError: If the slice's step is not 1.
        """
        if slice_.step not in (None, 1):
            raise EpisodeError(f"An episode has consecutive steps, but the slice is {slice_}.")
        start, stop, _ = slice_.indices(len(self))
        stop = max(start, stop)
        lookback = self.rewards.lookback if len_lookback_buffer is None else len_lookback_buffer
        lookback = min(lookback, self.rewards.lookback + start)

        def slice_buffer(buffer: LookbackBuffer, num_extra: int = 0) -> LookbackBuffer:
            indices = slice(start - lookback, stop + num_extra)
            data = buffer.get(indices, neg_index_as_lookback=True)
            return LookbackBuffer(data, lookback, buffer.space)

        ends_here = stop == len(self)
        return SingleAgentEpisode(
            self.id_,
            observations=slice_buffer(self.observations, 1),
            observation_space=self.observation_space,
            infos=slice_buffer(self.infos, 1),
            actions=slice_buffer(self.actions),
            action_space=self.action_space,
            rewards=slice_buffer(self.rewards),
            extra_model_outputs={k: slice_buffer(v) for k, v in self.extra_model_outputs.items()},
            terminated=self.is_terminated and ends_here,
            truncated=self.is_truncated and ends_here,
            t_started=self.t_started + start,
            **self._names(),
        )

    def _names(self) -> dict[str, Any]:
        return {name: vars(self)[name] for name in _NAMES}

    def get_duration_s(self) -> float:
        """Return the seconds from the first observation to the latest step."""
        if self._start_time is None or self._last_step_time is None:
            return 0.0
        return self._last_step_time - self._start_time

    def env_steps(self) -> int:
        """Return the number of environment steps of this chunk."""
        return len(self)

    def agent_steps(self) -> int:
        """Return the number of agent steps, which equals that of environment steps."""
        return len(self)

    def __getitem__(self, item: "slice") -> "SingleAgentEpisode":
        if not isinstance(item, slice):
            raise EpisodeError(f"Index an episode by a slice such as episode[2:5], got {item!r}.")
        return self.slice(item)

    def __repr__(self) -> str:
        return (
            f"SingleAgentEpisode(len={len(self)} done={self.is_done} "
            f"return={self.get_return():g} id_={self.id_})"
        )

    def get_state(self) -> dict[str, Any]:
        """Return a picklable state, from which `from_state` creates an equal episode."""
        return {
            **{name: vars(self)[name].get_state() for name in _BUFFER_ATTRIBUTES},
            "extra_model_outputs": {k: v.get_state() for k, v in self.extra_model_outputs.items()},
            **{name: vars(self)[name] for name in (*_STATE_ATTRIBUTES, *_NAMES)},
            "custom_data": dict(self.custom_data),
        }

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> "SingleAgentEpisode":
        """Return the episode with the state that `get_state` returned."""
        episode = SingleAgentEpisode(state["id_"])
        for name in _BUFFER_ATTRIBUTES:
            setattr(episode, name, LookbackBuffer.from_state(state[name]))
        episode.extra_model_outputs = {
            name: LookbackBuffer.from_state(part)
            for name, part in state["extra_model_outputs"].items()
        }
        for name in (*_STATE_ATTRIBUTES, "custom_data"):
            setattr(episode, name, state[name])
        for name in _NAMES:
            setattr(episode, name, state.get(name))
        episode.validate()
        return episode


_BUFFER_ATTRIBUTES = ("observations", "infos", "actions", "rewards")
_NAMES = ("agent_id", "module_id", "multi_agent_episode_id")
_STATE_ATTRIBUTES = (
    "id_",
    "is_terminated",
    "is_truncated",
    "t_started",
    "t",
    "_start_time",
    "_last_step_time",
)
