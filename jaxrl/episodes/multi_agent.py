"""Episode of several agents, or a chunk of one, with RLlib's accessors."""

import bisect
import copy
import dataclasses
import uuid
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self, SupportsFloat, TypeAlias, Unpack

import gymnasium

from jaxrl.core.types import PyTree
from jaxrl.episodes.episode import DiscreteReading, Episode, Reading, Writing
from jaxrl.episodes.lookback import Indices, LookbackBuffer, one_hot, stack_items
from jaxrl.episodes.single_agent import SingleAgentEpisode
from jaxrl.errors import EpisodeError
from jaxrl.metrics import DEFAULT_MODULE

AgentID: TypeAlias = Hashable
AgentDict: TypeAlias = dict[Any, Any]
AgentIds: TypeAlias = AgentID | Collection[AgentID] | None
MappingFunction: TypeAlias = Callable[..., str]
"""Function of an agent and an episode that returns the id of a module."""
Info: TypeAlias = dict[str, Any] | None
Spaces: TypeAlias = "Mapping[Any, gymnasium.Space[Any]] | gymnasium.spaces.Dict | None"

ALL = "__all__"
SKIP_ENV_TS_TAG = "S"
"""Mark of a time step of the environment at which an agent has no observation, RLlib's."""

_STATES = ("observations", "infos")


class AgentReading(Reading, total=False):
    """Options with which data of several agents are read, see `MultiAgentEpisode`."""

    env_steps: bool
    return_list: bool


class DiscreteAgentReading(AgentReading, DiscreteReading, total=False):
    """Options with which data of several agents are read that may be discrete."""


@dataclasses.dataclass
class Hanging:
    """An action that is not followed by an observation yet, and the rewards since."""

    actions: PyTree
    rewards: float
    extra_model_outputs: dict[str, Any]


@dataclasses.dataclass
class AgentTrack:
    """An agent-episode and the time of the environment at each of its observations.

    Attributes:
        episode: Observations and complete steps of the agent.
        times: Time step of the environment of each observation, those of the lookback included.
        hanging: The agent's latest action while it waits for an observation, None otherwise.
    """

    episode: SingleAgentEpisode
    times: list[int]
    hanging: Hanging | None = None

    def find(self, env_t: int) -> int | None:
        """Return the position of the observation of a time, counted with lookback, if any."""
        position = bisect.bisect_left(self.times, env_t)
        found = position < len(self.times) and self.times[position] == env_t
        return position if found else None

    def has_value(self, column: str, position: int) -> bool:
        """Return whether there is a value at an observation's position."""
        last = len(self.times) - 1
        is_known = column in _STATES or self.hanging is not None
        return position < last or (position == last and is_known)

    def get_value(
        self, column: str, position: int, key: str | None = None, *, one_hot_discrete: bool = False
    ) -> PyTree:
        """Return the value at an observation's position; of all model outputs if `key` is None."""
        if column == "extra_model_outputs" and key is None:
            names = self.episode.extra_model_outputs
            if not names and self.hanging is not None:
                names = self.hanging.extra_model_outputs
            return {name: self.get_value(column, position, name) for name in names}
        buffer = self.get_buffer(column, key)
        if column in _STATES or position < len(self.times) - 1:
            index = position - buffer.lookback
            return buffer.get(index, neg_index_as_lookback=True, one_hot_discrete=one_hot_discrete)
        value = self._get_hanging(column, key)
        return one_hot(buffer.space, value) if one_hot_discrete else value

    def get_buffer(self, column: str, key: str | None = None) -> LookbackBuffer:
        """Return the agent's data of a column, without the hanging action."""
        if column == "extra_model_outputs":
            return self.episode.extra_model_outputs.get(str(key), LookbackBuffer())
        return getattr(self.episode, column)

    def get_with_hanging(self, column: str, key: str | None = None) -> LookbackBuffer:
        """Return the agent's data of a column, followed by those of the hanging action."""
        buffer = self.get_buffer(column, key)
        if self.hanging is None or column in _STATES:
            return buffer
        data = buffer.data if buffer.finalized else list(buffer.data)
        extended = LookbackBuffer(data, buffer.lookback, buffer.space)
        extended.append(self._get_hanging(column, key))
        return extended

    def _get_hanging(self, column: str, key: str | None) -> PyTree:
        value = getattr(self.hanging, column)
        return value.get(str(key)) if column == "extra_model_outputs" else value

    def slice(self, start: int, stop: int, since: int) -> "AgentTrack | None":
        """Return the steps between two times of the environment, None if there are none.

        A step belongs to the slice in which it is completed. An action that is not followed by an
        observation until `stop` hangs, with all of its reward.

        Args:
            start: Time at which the slice begins.
            stop: Time at which it ends, the last observation's.
            since: Earliest time that is looked back to.
        """
        lookback = self.episode.rewards.lookback
        number = bisect.bisect_right(self.times, stop)
        has_ended = self.episode.is_done and self.times[-1] <= start
        if not number or has_ended:
            return None
        first = max(bisect.bisect_right(self.times, start) - 1, lookback)
        last = max(number - 1, first)
        before = sum(time >= since for time in self.times[:first])
        episode = self.episode.slice(
            slice(first - lookback, last - lookback), len_lookback_buffer=before
        )
        hanging = copy.deepcopy(self.hanging)
        if last < len(self.times) - 1:
            hanging = Hanging(
                self.get_value("actions", last),
                float(self.get_value("rewards", last)),
                self.get_value("extra_model_outputs", last),
            )
        return AgentTrack(episode, self.times[first - before : last + 1], hanging)

    def append(self, other: "AgentTrack") -> None:
        """Append the next slice."""
        self.episode.concat_episode(other.episode)
        skipped = other.episode.rewards.lookback + 1
        self.times += other.times[skipped:]
        self.hanging = copy.deepcopy(other.hanging)

    def get_state(self) -> dict[str, Any]:
        """Return plain data for `from_state`."""
        hanging = None if self.hanging is None else dataclasses.asdict(self.hanging)
        return {
            "episode": self.episode.get_state(),
            "times": list(self.times),
            "hanging": copy.deepcopy(hanging),
        }

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> "AgentTrack":
        """Return the track with the state that `get_state` returned."""
        hanging = state["hanging"]
        return AgentTrack(
            SingleAgentEpisode.from_state(state["episode"]),
            list(state["times"]),
            None if hanging is None else Hanging(**copy.deepcopy(hanging)),
        )


class MultiAgentEpisode(Episode):
    """Episodes of several agents on one clock, the time step of the environment.

    Each agent has a `SingleAgentEpisode` on its own clock. An agent that acted and waits for its
    next observation has a hanging action, which is in no `SingleAgentEpisode` yet; `cut` takes it
    along, so that no step is lost at a cut. An agent that ended may come again, which begins
    another `SingleAgentEpisode`.

    The accessors take `indices` (an index, a list, a slice, or None for everything) of time steps
    of the environment, at which only those agents have a value that had an observation; with
    `env_steps=False`, of each agent's own steps. Actions, rewards and model outputs are those that
    follow the observation of their time, and a reward is all that the agent got until its next
    observation. An action that waits for an observation is the last one, except for all of an
    agent's own steps (`indices=None`), which are the complete ones. `agent_ids` is one agent, or
    several; None is all. `fill` replaces what is missing. With `return_list`, the result is a list
    with a dictionary for each time step, otherwise it is a dictionary of agents' values.

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
        super().__init__(id_ or uuid.uuid4().hex)
        self.agent_to_module_mapping_fn = agent_to_module_mapping_fn or _map_to_default
        self._agent_to_module_mapping: dict[Any, str] = dict(agent_module_ids or {})
        self.observation_space = dict(observation_space or {})
        self.action_space = dict(action_space or {})
        self.env_t = self.env_t_started = 0
        self._tracks: dict[AgentID, list[AgentTrack]] = {}
        self._lookback = 0
        self._rewards_begin: dict[AgentID, float] = {}
        self._episode_ids = dict(agent_episode_ids or {})
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
            self._add_reward(agent, reward)
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

    def __len__(self) -> int:
        """Return the number of steps of the environment in this chunk."""
        return self.env_t - self.env_t_started

    @property
    def length(self) -> int:
        """Number of steps of the environment so far, by the name of RLlib's older episodes."""
        return self.env_t

    @property
    def agent_episodes(self) -> dict[Any, SingleAgentEpisode]:
        """Latest episode of each agent."""
        return {agent: tracks[-1].episode for agent, tracks in self._tracks.items()}

    @property
    def env_t_to_agent_t(self) -> dict[Any, LookbackBuffer]:
        """Time step of each agent at each of the environment; `"S"` where it had no observation."""
        found = {}
        for agent in self._tracks:
            items: list[Any] = []
            for env_t in range(self.env_t_started - self._lookback, self.env_t + 1):
                place = self._find(agent, env_t)
                if place is None:
                    items.append(SKIP_ENV_TS_TAG)
                    continue
                track, position = place
                episode = track.episode
                items.append(position + episode.t_started - episode.rewards.lookback)
            found[agent] = LookbackBuffer(items, self._lookback)
        return found

    @property
    def is_reset(self) -> bool:
        """Return whether the episode has begun."""
        return bool(self._tracks) or self.env_t > 0

    @property
    def is_numpy(self) -> bool:
        """Return whether the data are stored as arrays."""
        return all(t.episode.is_numpy for t in self._all_tracks() if len(t.episode))

    @property
    def agent_ids(self) -> set[Any]:
        """Agents that have taken part."""
        return set(self._tracks)

    @property
    def agent_episode_ids(self) -> dict[Any, str]:
        """Identifier of each agent's latest episode."""
        return {agent: episode.id_ for agent, episode in self.agent_episodes.items()}

    def to_numpy(self) -> Self:
        """Stack lists to arrays in place; infos remain lists of dictionaries."""
        for track in self._all_tracks():
            track.episode.to_numpy()
        return self

    def validate(self) -> None:
        """Check that the lengths of the data are consistent.

        Raises:
            EpisodeError: If they are not.
        """
        for agent, tracks in self._tracks.items():
            for track in tracks:
                track.episode.validate()
                if len(track.times) != track.episode.observations.len_incl_lookback():
                    raise EpisodeError(
                        f"The episode {self.id_} has {len(track.times)} times of agent {agent!r} and "
                        f"{track.episode.observations.len_incl_lookback()} observations."
                    )

    def get_terminateds(self) -> dict[Any, bool]:
        """Return whether agents, and `"__all__"`, have ended."""
        ended = {agent: episode.is_terminated for agent, episode in self.agent_episodes.items()}
        return {**ended, ALL: self.is_terminated}

    def get_truncateds(self) -> dict[Any, bool]:
        """Return whether agents, and `"__all__"`, were cut off."""
        ended = {agent: episode.is_truncated for agent, episode in self.agent_episodes.items()}
        return {**ended, ALL: self.is_truncated}

    def get_return(self, include_hanging_rewards: bool = False) -> float:
        """Return the sum of all agents' rewards of this chunk.

        Args:
            include_hanging_rewards: Whether rewards count that belong to no complete step.
        """
        total = sum(track.episode.get_return() for track in self._all_tracks())
        if include_hanging_rewards:
            total += sum(self._rewards_begin.values())
            total += sum(t.hanging.rewards for t in self._all_tracks() if t.hanging is not None)
        return total

    def agent_steps(self) -> int:
        """Return the number of complete steps of all agents in this chunk."""
        return sum(len(track.episode) for track in self._all_tracks())

    def _all_tracks(self) -> list[AgentTrack]:
        return [track for tracks in self._tracks.values() for track in tracks]

    def print(self) -> None:
        """Print a table of the time steps at which the agents have observations."""
        print(self.format_table())  # noqa: T201  (what the method is for)

    def format_table(self) -> str:
        """Return a table of the time steps at which the agents have observations."""
        width = max([2, *(len(str(agent)) for agent in self._tracks)])
        times = range(-self._lookback, len(self) + 1)
        cells = max(len(str(moment)) for moment in (times[0], times[-1])) + 1
        lines = ["ts".ljust(width) + "".join(str(moment).rjust(cells) for moment in times)]
        for agent in self._tracks:
            places = [self._find(agent, self.env_t_started + moment) for moment in times]
            marks = "".join(("" if place is None else "x").rjust(cells) for place in places)
            lines.append((str(agent).ljust(width) + marks).rstrip())
        return "\n".join(lines)

    def _get_live(self, agent: AgentID) -> AgentTrack | None:
        """Return the track of an agent that has not ended, None if there is none."""
        tracks = self._tracks.get(agent)
        return None if not tracks or tracks[-1].episode.is_done else tracks[-1]

    def get_agents_to_act(self) -> set[Any]:
        """Return the agents whose actions the next step takes."""
        return {
            agent
            for agent in self.get_agents_that_stepped()
            if (track := self._get_live(agent)) is not None and track.hanging is None
        }

    def get_agents_that_stepped(self) -> set[Any]:
        """Return the agents with an observation at the latest step, those that ended included."""
        return {a for a, tracks in self._tracks.items() if tracks[-1].times[-1] == self.env_t}

    def add_env_reset(self, *, observations: AgentDict, infos: AgentDict | None = None) -> None:
        """Add the return values of the environment's `reset`.

        Raises:
            EpisodeError: If the episode has already begun.
        """
        self._begin()
        for agent, observation in observations.items():
            self._add_agent(agent, observation, (infos or {}).get(agent))

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
            self._add_reward(agent, rewards.get(agent, 0.0))
            self._finish_step(agent, observations.get(agent), (infos or {}).get(agent), ends)
        self._note_step()

    def _add_agent(self, agent: AgentID, observation: PyTree, info: Info) -> None:
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

    def _add_reward(self, agent: AgentID, reward: SupportsFloat) -> None:
        """Add a reward to an agent's hanging action, else to those before its first one."""
        track = self._get_live(agent)
        if track is not None and track.hanging is not None:
            track.hanging.rewards += float(reward)
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
                self._add_agent(agent, observation, info)
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
            hanging.actions,
            hanging.rewards,
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
        self._check_cut(len_lookback_buffer)
        live = {a: track for a in self._tracks if (track := self._get_live(a)) is not None}
        waiting = [track.times[-1] for track in live.values() if track.hanging is not None]
        since = max(
            min([self.env_t - len_lookback_buffer, *waiting]), self.env_t_started - self._lookback
        )
        chunk = self.slice(slice(len(self), None), len_lookback_buffer=self.env_t - since)
        for agent, track in live.items():
            chunk._tracks[agent][0].episode.continue_from(track.episode)
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
        start, stop = self._read_slice(slice_)
        lookback = self._lookback if len_lookback_buffer is None else len_lookback_buffer
        lookback = min(lookback, self._lookback + start)
        start, stop = self.env_t_started + start, self.env_t_started + stop
        chunk = MultiAgentEpisode(
            self.id_,
            observation_space=self.observation_space,
            action_space=self.action_space,
            agent_module_ids=self._agent_to_module_mapping,
            agent_to_module_mapping_fn=self.agent_to_module_mapping_fn,
        )
        chunk.env_t_started, chunk.env_t, chunk._lookback = start, stop, lookback
        for agent, tracks in self._tracks.items():
            slices = [track.slice(start, stop, start - lookback) for track in tracks]
            if found := [track for track in slices if track is not None]:
                chunk._tracks[agent] = found
        if stop == self.env_t:
            chunk.is_terminated, chunk.is_truncated = self.is_terminated, self.is_truncated
        return chunk

    def concat_episode(self, other: "MultiAgentEpisode") -> None:
        """Append the next chunk of the same episode, as `cut` began it.

        Raises:
            EpisodeError: If `other` belongs to another episode or does not follow directly.
        """
        self._check_next(other, start=other.env_t_started, end=self.env_t)
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
        self._take_over(other)
        self._agent_to_module_mapping.update(other._agent_to_module_mapping)
        self.validate()

    def get_observations(
        self,
        indices: Indices = None,
        agent_ids: AgentIds = None,
        **options: Unpack[DiscreteAgentReading],
    ) -> AgentDict | list[AgentDict]:
        """Return observations; index 0 is the one before the first step of this chunk."""
        return self._get("observations", indices, agent_ids, **options)

    def get_infos(
        self,
        indices: Indices = None,
        agent_ids: AgentIds = None,
        **options: Unpack[AgentReading],
    ) -> AgentDict | list[AgentDict]:
        """Return the environment's infos; index 0 belongs to the first observation."""
        return self._get("infos", indices, agent_ids, **options)

    def get_actions(
        self,
        indices: Indices = None,
        agent_ids: AgentIds = None,
        **options: Unpack[DiscreteAgentReading],
    ) -> AgentDict | list[AgentDict]:
        """Return actions."""
        return self._get("actions", indices, agent_ids, **options)

    def get_rewards(
        self,
        indices: Indices = None,
        agent_ids: AgentIds = None,
        **options: Unpack[AgentReading],
    ) -> AgentDict | list[AgentDict]:
        """Return rewards."""
        return self._get("rewards", indices, agent_ids, **options)

    def get_extra_model_outputs(
        self,
        key: str | None = None,
        indices: Indices = None,
        agent_ids: AgentIds = None,
        **options: Unpack[AgentReading],
    ) -> AgentDict | list[AgentDict]:
        """Return the module's outputs of a name, other than actions.

        Args:
            key: Name of the outputs; None for a dictionary of all, which needs an index or
                `return_list`.
            indices: Time steps.
            agent_ids: Agents.
            **options: As for the other accessors.

        Raises:
            EpisodeError: If all outputs are asked for at several time steps at once.
        """
        if key is None and not options.get("return_list") and not isinstance(indices, int):
            raise EpisodeError(
                f"The model outputs of {self.id_} at several time steps need a key, or "
                "return_list=True."
            )
        return self._get("extra_model_outputs", indices, agent_ids, key=key, **options)

    def set_observations(
        self, *, new_data: Mapping[Any, PyTree], **options: Unpack[Writing]
    ) -> None:
        """Replace observations of agents at their own time steps."""
        for episode, data in self._select_episodes(new_data):
            episode.set_observations(new_data=data, **options)

    def set_actions(self, *, new_data: Mapping[Any, PyTree], **options: Unpack[Writing]) -> None:
        """Replace actions of agents at their own time steps."""
        for episode, data in self._select_episodes(new_data):
            episode.set_actions(new_data=data, **options)

    def set_rewards(self, *, new_data: Mapping[Any, PyTree], **options: Unpack[Writing]) -> None:
        """Replace rewards of agents at their own time steps."""
        for episode, data in self._select_episodes(new_data):
            episode.set_rewards(new_data=data, **options)

    def set_extra_model_outputs(
        self, *, key: str, new_data: Mapping[Any, PyTree], **options: Unpack[Writing]
    ) -> None:
        """Replace the module's outputs of a name, of agents at their own time steps."""
        for episode, data in self._select_episodes(new_data):
            episode.set_extra_model_outputs(key=key, new_data=data, **options)

    def _select_episodes(
        self, new_data: Mapping[Any, PyTree]
    ) -> Iterator[tuple[SingleAgentEpisode, PyTree]]:
        for agent, data in new_data.items():
            if agent not in self._tracks:
                raise EpisodeError(
                    f"The episode {self.id_} has no agent {agent!r}; it has {list(self._tracks)}."
                )
            yield self._tracks[agent][-1].episode, data

    def _get(
        self,
        column: str,
        indices: Indices,
        agent_ids: AgentIds,
        *,
        key: str | None = None,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: object = None,
        one_hot_discrete: bool = False,
        return_list: bool = False,
    ) -> AgentDict | list[AgentDict]:
        agents = self._select(agent_ids)
        if not env_steps:
            if return_list:
                raise EpisodeError(
                    "return_list=True gives a dictionary for each time step of the environment, so "
                    "env_steps must be True."
                )
            found: AgentDict = {}
            for agent in agents:
                track = self._tracks[agent][-1]
                read = track.get_buffer if indices is None else track.get_with_hanging
                value = read(column, key).get(
                    indices,
                    neg_index_as_lookback=neg_index_as_lookback,
                    fill=fill,
                    one_hot_discrete=one_hot_discrete,
                )
                if not (isinstance(value, list) and not value):
                    found[agent] = value
            return found
        times = self._find_times(column, indices, neg_index_as_lookback, fill)
        if not isinstance(times, list):
            return self._get_at(column, times, agents, fill, key, one_hot_discrete)
        rows = [self._get_at(column, t, agents, fill, key, one_hot_discrete) for t in times]
        if return_list:
            return rows
        found = {}
        for agent in agents:
            values = [row[agent] for row in rows if agent in row]
            is_stacked = column != "infos" and self._tracks[agent][-1].episode.is_numpy
            if values:
                found[agent] = stack_items(values) if is_stacked else values
        return found

    def _select(self, agent_ids: AgentIds) -> list[AgentID]:
        if agent_ids is None:
            return list(self._tracks)
        if isinstance(agent_ids, Collection) and not isinstance(agent_ids, str | bytes):
            chosen = list(agent_ids) or list(self._tracks)
        else:
            chosen = [agent_ids]
        return [agent for agent in self._tracks if agent in chosen]

    def _find_times(
        self, column: str, indices: Indices, neg_index_as_lookback: bool, fill: object
    ) -> int | list[int]:
        """Return times of the environment for indices; those outside are one that no agent has."""
        last = self.env_t + (column in ("observations", "infos"))
        clock = LookbackBuffer(
            list(range(self.env_t_started - self._lookback, last)), self._lookback
        )
        outside = None if fill is None else last + 1
        return clock.get(indices, neg_index_as_lookback=neg_index_as_lookback, fill=outside)

    def _get_at(
        self,
        column: str,
        env_t: int,
        agents: list[AgentID],
        fill: object,
        key: str | None,
        one_hot_discrete: bool,
    ) -> AgentDict:
        """Return the values of agents at a time of the environment."""
        found: AgentDict = {}
        for agent in agents:
            place = self._find(agent, env_t)
            if place is not None and place[0].has_value(column, place[1]):
                track, position = place
                found[agent] = track.get_value(
                    column, position, key, one_hot_discrete=one_hot_discrete
                )
            elif fill is not None:
                buffer = self._tracks[agent][-1].get_buffer(column, key)
                beyond = buffer.len_incl_lookback()
                found[agent] = buffer.get(beyond, fill=fill, one_hot_discrete=one_hot_discrete)
        return found

    def _find(self, agent: AgentID, env_t: int) -> tuple[AgentTrack, int] | None:
        """Return the agent-episode with an observation at a time, and its position there."""
        for track in reversed(self._tracks[agent]):
            position = track.find(env_t)
            if position is not None:
                return track, position
        return None

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
