"""Episode of several agents, or a chunk of one, with RLlib's accessors."""

import copy
import time
import uuid
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Literal, SupportsFloat, TypeAlias

import gymnasium

from jaxrl.core.types import PyTree
from jaxrl.episodes.agent_track import AgentTrack, Hanging
from jaxrl.episodes.multi_agent_data import (
    ALL,
    SKIP_ENV_TS_TAG,
    AgentDict,
    AgentID,
    MultiAgentEpisodeData,
)
from jaxrl.episodes.single_agent import SingleAgentEpisode
from jaxrl.errors import EpisodeError
from jaxrl.metrics import DEFAULT_MODULE

MappingFunction: TypeAlias = Callable[..., str]
"""Function of an agent and an episode that returns the id of a module."""
Info: TypeAlias = dict[str, Any] | None
Spaces: TypeAlias = "Mapping[Any, gymnasium.Space[Any]] | gymnasium.spaces.Dict | None"


class MultiAgentEpisode(MultiAgentEpisodeData):
    """Episodes of several agents on one clock, the time step of the environment.

    Each agent has a `SingleAgentEpisode` on its own clock. An agent that acted and waits for its
    next observation has a hanging action, which is in no `SingleAgentEpisode` yet; `cut` takes it
    along, so that no step is lost at a cut. An agent that ended may come again, which begins
    another `SingleAgentEpisode`.

    Attributes:
        id_: Identifier shared by all chunks of an episode.
        env_t_started: Number of steps of the environment before this chunk.
        env_t: Number of steps of the environment so far.
        is_terminated: Whether the episode has ended.
        is_truncated: Whether the episode was cut off before its end.
        agent_to_module_mapping_fn: Function of an agent and this episode that names its module.
        observation_space: Observation spaces by agent, used by `fill` and `one_hot_discrete`.
        action_space: Action spaces by agent, used like `observation_space`.
        custom_data: Data of callbacks, which is copied to the next chunk.
    """

    SKIP_ENV_TS_TAG = SKIP_ENV_TS_TAG

    def __init__(
        self,
        id_: str | None = None,
        *,
        observations: Sequence[AgentDict] | None = None,
        observation_space: Spaces = None,
        infos: Sequence[AgentDict] | None = None,
        actions: Sequence[AgentDict] | None = None,
        action_space: Spaces = None,
        rewards: Sequence[AgentDict] | None = None,
        terminateds: AgentDict | bool = False,
        truncateds: AgentDict | bool = False,
        extra_model_outputs: Sequence[AgentDict] | None = None,
        env_t_started: int | None = None,
        agent_t_started: Mapping[Any, int] | None = None,
        len_lookback_buffer: int | Literal["auto"] = "auto",
        agent_episode_ids: Mapping[Any, str] | None = None,
        agent_module_ids: Mapping[Any, str] | None = None,
        agent_to_module_mapping_fn: MappingFunction | None = None,
    ) -> None:
        """Initialize an empty episode, or one with data.

        An agent that had an observation and no action, though the data go on, has terminated.

        Args:
            id_: Identifier of the episode; None generates one.
            observations: Observations by agent, a dictionary for each time step.
            observation_space: Observation spaces by agent.
            infos: Infos by agent, as many as observations; None for empty ones.
            actions: Actions by agent, one dictionary fewer than observations; with as many, the last
                ones hang.
            action_space: Action spaces by agent.
            rewards: Rewards by agent, as many as actions; a missing one is 0.
            terminateds: Whether agents, and `"__all__"`, have ended with the last observation.
            truncateds: Whether they were cut off then.
            extra_model_outputs: Dictionaries of module outputs by agent, as many as actions.
            env_t_started: Number of steps before this chunk's own, without lookback.
            agent_t_started: The same by agent, of its own steps.
            len_lookback_buffer: Number of the given steps that are lookback; "auto" is all of them.
            agent_episode_ids: Identifiers of the agents' episodes; missing ones are generated.
            agent_module_ids: Modules of agents that are not to be asked for.
            agent_to_module_mapping_fn: Function of an agent and this episode that names its module;
                None for one module.

        Raises:
            EpisodeError: If the lengths are inconsistent, or an agent acts without an observation.
        """
        self.id_ = id_ or uuid.uuid4().hex
        self.agent_to_module_mapping_fn = agent_to_module_mapping_fn or _map_to_default
        self._agent_to_module_mapping: dict[Any, str] = dict(agent_module_ids or {})
        self.observation_space = dict(observation_space or {})
        self.action_space = dict(action_space or {})
        self.is_terminated = self.is_truncated = False
        self.env_t = self.env_t_started = 0
        self._tracks: dict[AgentID, list[AgentTrack]] = {}
        self._lookback = 0
        self._rewards_begin: dict[AgentID, float] = {}
        self._episode_ids = dict(agent_episode_ids or {})
        self.custom_data: dict[str, Any] = {}
        self._start_time: float | None = None
        self._last_step_time: float | None = None
        if observations:
            self._replay(
                observations, infos, actions or (), rewards or (), extra_model_outputs,
                (_to_flags(terminateds), _to_flags(truncateds)),
            )  # fmt: skip
        number = self.env_t
        self._lookback = number if len_lookback_buffer == "auto" else len_lookback_buffer
        self._lookback = min(self._lookback, number)
        self._start_at(env_t_started or 0, agent_t_started or {})

    def _replay(
        self,
        observations: Sequence[AgentDict],
        infos: Sequence[AgentDict] | None,
        actions: Sequence[AgentDict],
        rewards: Sequence[AgentDict],
        outputs: Sequence[AgentDict] | None,
        flags: tuple[AgentDict, AgentDict],
    ) -> None:
        """Add given data step by step."""
        steps = len(observations) - 1
        if len(actions) not in (steps, steps + 1) or len(rewards) not in (steps, len(actions)):
            raise EpisodeError(
                f"The episode {self.id_} has {steps + 1} observations: expected {steps} actions and "
                f"rewards, got {len(actions)} and {len(rewards)}."
            )
        self.add_env_reset(observations=observations[0], infos=infos[0] if infos else None)
        for step in range(steps):
            acted = actions[step]
            silent = [agent for agent in self.get_agents_to_act() if agent not in acted]
            was_cut = {agent: bool(flags[1].get(agent)) for agent in silent}
            is_last = step == steps - 1
            self.add_env_step(
                observations[step + 1],
                acted,
                rewards[step],
                infos[step + 1] if infos else None,
                terminateds={
                    **{agent: not cut for agent, cut in was_cut.items()},
                    **(flags[0] if is_last else {}),
                },
                truncateds={**was_cut, **(flags[1] if is_last else {})},
                extra_model_outputs=outputs[step] if outputs else None,
            )
        for agent, action in (actions[steps] if len(actions) > steps else {}).items():
            reward = rewards[steps].get(agent, 0.0) if len(rewards) > steps else 0.0
            extra = outputs[steps].get(agent) if outputs and len(outputs) > steps else None
            self._start_step(agent, action, extra)
            self._pay(agent, reward)
        if not steps:
            self.is_terminated = bool(flags[0].get(ALL))
            self.is_truncated = bool(flags[1].get(ALL))

    def _start_at(self, env_t: int, agent_t: Mapping[Any, int]) -> None:
        """Make the first steps lookback, and count times from the beginning of the episode."""
        offset = env_t - self._lookback
        for agent, tracks in self._tracks.items():
            for track in tracks:
                episode = track.episode
                kept = sum(moment <= self._lookback for moment in track.times[1:])
                for buffer in (
                    episode.observations,
                    episode.infos,
                    episode.actions,
                    episode.rewards,
                    *episode.extra_model_outputs.values(),
                ):
                    buffer.lookback = kept
                episode.t_started = agent_t.get(agent, 0) if track is tracks[-1] else 0
                episode.t = episode.t_started + len(episode.rewards)
                track.times = [moment + offset for moment in track.times]
        self.env_t_started, self.env_t = env_t, self.env_t + offset

    def add_env_reset(self, *, observations: AgentDict, infos: AgentDict | None = None) -> None:
        """Add the return values of the environment's `reset`.

        Raises:
            EpisodeError: If the episode has already begun.
        """
        if self._tracks or self.env_t or self.is_done:
            raise EpisodeError(f"The episode {self.id_} has already begun; create a new one.")
        for agent, observation in observations.items():
            self._begin(agent, observation, (infos or {}).get(agent))
        self._start_time = time.perf_counter()

    def add_env_step(
        self,
        observations: AgentDict,
        actions: AgentDict,
        rewards: Mapping[Any, SupportsFloat],
        infos: AgentDict | None = None,
        *,
        terminateds: AgentDict | None = None,
        truncateds: AgentDict | None = None,
        extra_model_outputs: AgentDict | None = None,
    ) -> None:
        """Add the agents' actions and the return values of the environment's `step`.

        An agent that terminates without an observation has its latest one again, which nothing is
        learned from. An agent that ends before it has ever acted leaves no trace.

        Args:
            observations: Observations of the agents that act next, and of those that end.
            actions: Actions of the agents that acted.
            rewards: Rewards by agent; a missing one is 0.
            infos: Infos by agent.
            terminateds: Whether agents, and `"__all__"`, have ended.
            truncateds: Whether they were cut off.
            extra_model_outputs: Dictionaries of module outputs by agent.

        Raises:
            EpisodeError: If the episode is done, an agent acts without an observation or gets two
                without an action, or is truncated without a last observation.
        """
        if self.is_done:
            raise EpisodeError(f"The episode {self.id_} is done; no step can be added to it.")
        flags = terminateds or {}, truncateds or {}
        self.env_t += 1
        self.is_terminated, self.is_truncated = (bool(flag.get(ALL)) for flag in flags)
        for agent, action in actions.items():
            self._start_step(agent, action, (extra_model_outputs or {}).get(agent))
        names = [*observations, *rewards, *flags[0], *flags[1]]
        if self.is_done:
            names += list(self._tracks)
        for agent in dict.fromkeys(names):
            if agent == ALL:
                continue
            ends = bool(flags[0].get(agent)), bool(flags[1].get(agent))
            ends = ends if any(ends) else (self.is_terminated, self.is_truncated)
            self._pay(agent, rewards.get(agent, 0.0))
            self._finish_step(agent, observations.get(agent), (infos or {}).get(agent), ends)
        self._last_step_time = time.perf_counter()
        if self._start_time is None:
            self._start_time = self._last_step_time

    def _begin(self, agent: AgentID, observation: PyTree, info: Info) -> None:
        tracks = self._tracks.setdefault(agent, [])
        episode = SingleAgentEpisode(
            None if tracks else self._episode_ids.get(agent),
            agent_id=agent,
            module_id=self.module_for(agent),
            multi_agent_episode_id=self.id_,
            observation_space=self.observation_space.get(agent),
            action_space=self.action_space.get(agent),
        )
        episode.add_env_reset(observation, info)
        tracks.append(AgentTrack(episode, [self.env_t]))

    def _start_step(self, agent: AgentID, action: PyTree, extra: AgentDict | None) -> None:
        track = self._get_live(agent)
        if track is None or track.hanging is not None:
            reason = "it has no observation to act on" if track is None else "its action hangs"
            raise EpisodeError(
                f"The episode {self.id_} got an action of agent {agent!r} at step {self.env_t}, but "
                f"{reason}."
            )
        track.hanging = Hanging(action, 0.0, dict(extra or {}))

    def _pay(self, agent: AgentID, reward: SupportsFloat) -> None:
        """Add a reward to an agent's hanging action, else to those before its first one."""
        track = self._get_live(agent)
        if track is not None and track.hanging is not None:
            track.hanging.reward += float(reward)
        elif float(reward):
            self._rewards_begin[agent] = self._rewards_begin.get(agent, 0.0) + float(reward)

    def _finish_step(
        self, agent: AgentID, observation: PyTree, info: Info, ends: tuple[bool, bool]
    ) -> None:
        """Complete an agent's step with its observation or its end, if there is either."""
        track = self._get_live(agent)
        if track is None:
            if any(ends):
                self._rewards_begin.pop(agent, None)
            elif observation is not None:
                self._begin(agent, observation, info)
            return
        if observation is None and not any(ends):
            return
        if track.hanging is None:
            self._end_without_action(agent, track, observation, ends)
            return
        if observation is None:
            if not ends[0]:
                raise EpisodeError(
                    f"The episode {self.id_} got no last observation of agent {agent!r}, which acted "
                    f"and was truncated at step {self.env_t}: its value would be unknown."
                )
            observation, info = track.episode.get_observations(-1), track.episode.get_infos(-1)
        hanging, track.hanging = track.hanging, None
        track.episode.add_env_step(
            observation,
            hanging.action,
            hanging.reward,
            info,
            terminated=ends[0],
            truncated=ends[1],
            extra_model_outputs=hanging.extra_model_outputs,
        )
        track.times.append(self.env_t)
        if any(ends):
            self._rewards_begin.pop(agent, None)

    def _end_without_action(
        self, agent: AgentID, track: AgentTrack, observation: PyTree, ends: tuple[bool, bool]
    ) -> None:
        """End an agent that did not act on its latest observation."""
        if not any(ends):
            raise EpisodeError(
                f"The episode {self.id_} got an observation of agent {agent!r} at step {self.env_t}, "
                "which has not acted on its last one."
            )
        self._rewards_begin.pop(agent, None)
        if track.episode.rewards.len_incl_lookback():
            track.episode.is_terminated, track.episode.is_truncated = ends
            return
        self._tracks[agent].pop()
        if not self._tracks[agent]:
            del self._tracks[agent]

    def module_for(self, agent_id: AgentID) -> str:
        """Return the module that plays an agent, the same to the episode's end."""
        if agent_id not in self._agent_to_module_mapping:
            module = self.agent_to_module_mapping_fn(agent_id, self)
            self._agent_to_module_mapping[agent_id] = module
        return self._agent_to_module_mapping[agent_id]

    def cut(self, len_lookback_buffer: int = 0) -> "MultiAgentEpisode":
        """Return the next chunk of the episode, which has no steps yet.

        Hanging actions and their rewards go along, and their steps are complete in the next chunk.
        Its lookback reaches back to the observations that they followed.

        Args:
            len_lookback_buffer: Number of steps of this chunk that the next one can look back to.

        Raises:
            EpisodeError: If the episode is done or has not begun.
        """
        if self.is_done or not self.is_reset or len_lookback_buffer < 0:
            raise EpisodeError(
                f"The episode {self.id_} cannot be cut with a lookback of {len_lookback_buffer}: "
                "the episode must be ongoing and the lookback at least 0."
            )
        live = {a: track for a in self._tracks if (track := self._get_live(a)) is not None}
        waiting = [track.times[-1] for track in live.values() if track.hanging is not None]
        since = max(
            min([self.env_t - len_lookback_buffer, *waiting]), self.env_t_started - self._lookback
        )
        chunk = self._make_chunk(self.env_t, self.env_t, self.env_t - since)
        chunk._tracks = {agent: [track.cut(since)] for agent, track in live.items()}
        chunk._rewards_begin = {}
        chunk.custom_data = copy.deepcopy(self.custom_data)
        return chunk

    def slice(
        self, slice_: slice, *, len_lookback_buffer: int | None = None
    ) -> "MultiAgentEpisode":
        """Return the steps of a slice as an episode; equivalent to `episode[a:b]`.

        A step of an agent belongs to the slice in which it is completed, so that consecutive slices
        hold every step once. One that is not completed by the end of the slice hangs there.

        Args:
            slice_: Slice of the steps of the environment in this chunk, without its lookback.
            len_lookback_buffer: Number of steps before the slice that it can look back to; None for
                that of this chunk.

        Raises:
            EpisodeError: If the slice's step is not 1.
        """
        if slice_.step not in (None, 1):
            raise EpisodeError(f"An episode has consecutive steps, but the slice is {slice_}.")
        start, stop, _ = slice_.indices(len(self))
        stop = max(start, stop)
        lookback = self._lookback if len_lookback_buffer is None else len_lookback_buffer
        lookback = min(lookback, self._lookback + start)
        start, stop = self.env_t_started + start, self.env_t_started + stop
        part = self._make_chunk(start, stop, lookback)
        for agent, tracks in self._tracks.items():
            parts = [track.slice(start, stop, start - lookback) for track in tracks]
            kept = [track for track in parts if track is not None]
            if kept:
                part._tracks[agent] = kept
        if stop == self.env_t:
            part.is_terminated, part.is_truncated = self.is_terminated, self.is_truncated
        return part

    def _make_chunk(self, env_t_started: int, env_t: int, lookback: int) -> "MultiAgentEpisode":
        """Return a chunk of this episode without data."""
        chunk = MultiAgentEpisode(
            self.id_,
            observation_space=self.observation_space,
            action_space=self.action_space,
            agent_module_ids=self._agent_to_module_mapping,
            agent_to_module_mapping_fn=self.agent_to_module_mapping_fn,
        )
        chunk.env_t_started, chunk.env_t, chunk._lookback = env_t_started, env_t, lookback
        return chunk

    def concat_episode(self, other: "MultiAgentEpisode") -> None:
        """Append the next chunk of the same episode, as `cut` began it.

        Raises:
            EpisodeError: If `other` belongs to another episode or does not follow directly.
        """
        if other.id_ != self.id_ or self.is_done or other.env_t_started != self.env_t:
            raise EpisodeError(
                f"The chunk of {other.id_} from step {other.env_t_started} on cannot be appended to "
                f"{self.id_}, which {'is done' if self.is_done else 'ends'} at step {self.env_t}."
            )
        for agent, tracks in other._tracks.items():
            mine = self._get_live(agent)
            for track in tracks:
                if mine is not None and track.episode.id_ == mine.episode.id_:
                    mine.append(track)
                else:
                    self._tracks.setdefault(agent, []).append(track)
        for agent, reward in other._rewards_begin.items():
            self._rewards_begin[agent] = self._rewards_begin.get(agent, 0.0) + reward
        self.env_t = other.env_t
        self.is_terminated, self.is_truncated = other.is_terminated, other.is_truncated
        self._agent_to_module_mapping.update(other._agent_to_module_mapping)
        self._last_step_time = other._last_step_time or self._last_step_time
        self.custom_data.update(other.custom_data)
        self.validate()

    def get_state(self) -> dict[str, Any]:
        """Return a state, from which `from_state` creates an equal episode.

        It can be pickled if the mapping function can.
        """
        return {
            **{name: copy.copy(vars(self)[name]) for name in _STATE_ATTRIBUTES},
            "tracks": [
                (agent, [track.get_state() for track in tracks])
                for agent, tracks in self._tracks.items()
            ],
        }

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> "MultiAgentEpisode":
        """Return the episode with the state that `get_state` returned."""
        episode = MultiAgentEpisode(state["id_"])
        vars(episode).update({name: copy.copy(state[name]) for name in _STATE_ATTRIBUTES})
        episode._tracks = {
            agent: [AgentTrack.from_state(track) for track in tracks]
            for agent, tracks in state["tracks"]
        }
        episode.validate()
        return episode

    def __getitem__(self, item: "slice") -> "MultiAgentEpisode":
        if not isinstance(item, slice):
            raise EpisodeError(f"Index an episode by a slice such as episode[2:5], got {item!r}.")
        return self.slice(item)

    def __repr__(self) -> str:
        returns = {agent: ep.get_return() for agent, ep in self.agent_episodes.items()}
        return f"MAEps(len={len(self)} done={self.is_done} Rs={returns} id_={self.id_})"


_STATE_ATTRIBUTES = (
    "id_",
    "agent_to_module_mapping_fn",
    "_agent_to_module_mapping",
    "observation_space",
    "action_space",
    "env_t_started",
    "env_t",
    "is_terminated",
    "is_truncated",
    "_lookback",
    "_rewards_begin",
    "_episode_ids",
    "custom_data",
    "_start_time",
    "_last_step_time",
)


def _map_to_default(agent_id: Hashable, episode: MultiAgentEpisode, **_: object) -> str:
    del agent_id, episode
    return DEFAULT_MODULE


def _to_flags(flags: AgentDict | bool) -> AgentDict:
    return {ALL: flags} if isinstance(flags, bool) else dict(flags)
