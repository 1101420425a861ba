"""Episode of one agent, or a chunk of one, with RLlib's accessors."""

import copy
import uuid
from collections.abc import Hashable, Mapping
from typing import Any, Literal, Self, SupportsFloat, Unpack

import gymnasium
import jax
import numpy as np
from gymnasium import spaces

from jaxrl.core.types import Columns, PyTree
from jaxrl.episodes.episode import DiscreteReading, Episode, Reading, Writing
from jaxrl.episodes.lookback import Indices, LookbackBuffer
from jaxrl.errors import EpisodeError, did_you_mean

_REWARDS = spaces.Box(-np.inf, np.inf, (), np.float32)


class SingleAgentEpisode(Episode):
    """Observations, actions, rewards and module outputs of an episode chunk.

    A chunk returned by `cut` has a lookback buffer: the last steps of the previous chunk precede
    its own and are visible to the accessors only. There is one more observation (and info) than
    actions and rewards.

    The accessors take `indices` (an index, a list, a slice, or None for everything),
    `neg_index_as_lookback`, `fill` and, for observations and actions, `one_hot_discrete`; see
    `LookbackBuffer.get`.

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

        super().__init__(id_ or uuid.uuid4().hex)
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
        self.agent_id, self.module_id = agent_id, module_id
        self.multi_agent_episode_id = multi_agent_episode_id
        self.validate()

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

    def add_env_reset(self, observation: PyTree, infos: dict[str, Any] | None = None) -> None:
        """Add the return values of the environment's `reset`.

        Raises:
            EpisodeError: If the episode has already begun.
        """
        self._begin()
        self.observations.append(observation)
        self.infos.append(infos or {})

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
        self._note_step()

    @property
    def is_reset(self) -> bool:
        """Return whether the episode has a first observation."""
        return len(self.observations) > 0

    def concat_episode(self, other: "SingleAgentEpisode") -> None:
        """Append the next chunk of the same episode.

        Raises:
            EpisodeError: If `other` belongs to another episode or does not follow directly.
        """
        self._check_next(other, start=other.t_started, end=self.t)
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
        self._take_over(other)
        self.validate()

    def cut(self, len_lookback_buffer: int = 0) -> "SingleAgentEpisode":
        """Return the next chunk of the episode, which has no steps yet.

        Args:
            len_lookback_buffer: Maximum number of steps of this chunk in the lookback buffer of the
                next one.

        Raises:
            EpisodeError: If the episode is done or has not begun.
        """
        self._check_cut(len_lookback_buffer)
        chunk = self.slice(slice(len(self), None), len_lookback_buffer=len_lookback_buffer)
        chunk.continue_from(self)
        return chunk

    def continue_from(self, other: "SingleAgentEpisode") -> None:
        """Prepare for steps that follow those of the chunk before."""
        for buffer in (self.infos, *self._buffers()):
            buffer.unstack()
        self.custom_data = copy.deepcopy(other.custom_data)

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
        start, stop = self._read_slice(slice_)
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

    def agent_steps(self) -> int:
        """Return the number of agent steps, which equals that of environment steps."""
        return len(self)

    def get_observations(
        self, indices: Indices = None, **options: Unpack[DiscreteReading]
    ) -> PyTree:
        """Return observations; index 0 is the one before the first action."""
        return self.observations.get(indices, **options)

    def get_infos(self, indices: Indices = None, **options: Unpack[Reading]) -> PyTree:
        """Return the environment's infos; index 0 belongs to the first observation."""
        return self.infos.get(indices, **options)

    def get_actions(self, indices: Indices = None, **options: Unpack[DiscreteReading]) -> PyTree:
        """Return actions."""
        return self.actions.get(indices, **options)

    def get_rewards(self, indices: Indices = None, **options: Unpack[Reading]) -> PyTree:
        """Return rewards."""
        return self.rewards.get(indices, **options)

    def get_extra_model_outputs(
        self, key: str, indices: Indices = None, **options: Unpack[Reading]
    ) -> PyTree:
        """Return the module's outputs of a name, other than actions."""
        return self._get_extra(key).get(indices, **options)

    def set_observations(self, *, new_data: PyTree, **options: Unpack[Writing]) -> None:
        """Replace the observations at `at_indices`."""
        self.observations.set(new_data, **options)

    def set_actions(self, *, new_data: PyTree, **options: Unpack[Writing]) -> None:
        """Replace the actions at `at_indices`."""
        self.actions.set(new_data, **options)

    def set_rewards(self, *, new_data: PyTree, **options: Unpack[Writing]) -> None:
        """Replace the rewards at `at_indices`."""
        self.rewards.set(new_data, **options)

    def set_extra_model_outputs(
        self, *, key: str, new_data: PyTree, **options: Unpack[Writing]
    ) -> None:
        """Replace the module's outputs of a name at `at_indices`."""
        self._get_extra(key).set(new_data, **options)

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
