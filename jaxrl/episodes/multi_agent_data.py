"""Accessors of the data of an episode of several agents, RLlib's."""

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any, Self, TypeAlias

from jaxrl.compat.lookup import RLlibEpisode
from jaxrl.core.types import PyTree
from jaxrl.episodes.agent_track import AgentTrack
from jaxrl.episodes.lookback import Indices, LookbackBuffer, stack_items
from jaxrl.episodes.single_agent import SingleAgentEpisode
from jaxrl.errors import EpisodeError

AgentID: TypeAlias = Hashable
AgentDict: TypeAlias = dict[Any, Any]
AgentIds: TypeAlias = AgentID | Collection[AgentID] | None

ALL = "__all__"
SKIP_ENV_TS_TAG = "S"
"""Mark of a time step of the environment at which an agent has no observation, RLlib's."""


class MultiAgentEpisodeData(RLlibEpisode):
    """Data of several agents by time of the environment, or by each agent's own steps.

    The accessors take `indices` (an index, a list, a slice, or None for everything) of time steps
    of the environment, at which only those agents have a value that had an observation; with
    `env_steps=False`, of each agent's own steps. Actions, rewards and model outputs are those that
    follow the observation of their time, and a reward is all that the agent got until its next
    observation. An action that waits for an observation is the last one, except for all of an
    agent's own steps (`indices=None`), which are the complete ones. `agent_ids` is one agent, or
    several; None is all. `fill` replaces what is missing. With `return_list`, the result is a list
    with a dictionary for each time step, otherwise it is a dictionary of agents' values.
    """

    id_: str
    env_t: int
    env_t_started: int
    is_terminated: bool
    is_truncated: bool
    _tracks: dict[AgentID, list[AgentTrack]]
    _lookback: int
    _rewards_begin: dict[AgentID, float]
    _start_time: float | None
    _last_step_time: float | None

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
    def is_done(self) -> bool:
        """Return whether the episode has ended; single agents may end before."""
        return self.is_terminated or self.is_truncated

    def get_duration_s(self) -> float:
        """Return the seconds from the first observation to the latest step."""
        if self._start_time is None or self._last_step_time is None:
            return 0.0
        return self._last_step_time - self._start_time

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
            total += sum(t.hanging.reward for t in self._all_tracks() if t.hanging is not None)
        return total

    def env_steps(self) -> int:
        """Return the number of steps of the environment in this chunk."""
        return len(self)

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

    def get_observations(
        self,
        indices: Indices = None,
        agent_ids: AgentIds = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: object = None,
        one_hot_discrete: bool = False,
        return_list: bool = False,
    ) -> AgentDict | list[AgentDict]:
        """Return observations; index 0 is the one before the first step of this chunk."""
        return self._get(
            "observations", indices, agent_ids, env_steps, neg_index_as_lookback, fill,
            one_hot_discrete=one_hot_discrete, return_list=return_list,
        )  # fmt: skip

    def get_infos(
        self,
        indices: Indices = None,
        agent_ids: AgentIds = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: object = None,
        return_list: bool = False,
    ) -> AgentDict | list[AgentDict]:
        """Return the environment's infos; index 0 belongs to the first observation."""
        return self._get(
            "infos", indices, agent_ids, env_steps, neg_index_as_lookback, fill,
            return_list=return_list,
        )  # fmt: skip

    def get_actions(
        self,
        indices: Indices = None,
        agent_ids: AgentIds = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: object = None,
        one_hot_discrete: bool = False,
        return_list: bool = False,
    ) -> AgentDict | list[AgentDict]:
        """Return actions."""
        return self._get(
            "actions", indices, agent_ids, env_steps, neg_index_as_lookback, fill,
            one_hot_discrete=one_hot_discrete, return_list=return_list,
        )  # fmt: skip

    def get_rewards(
        self,
        indices: Indices = None,
        agent_ids: AgentIds = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: object = None,
        return_list: bool = False,
    ) -> AgentDict | list[AgentDict]:
        """Return rewards."""
        return self._get(
            "rewards", indices, agent_ids, env_steps, neg_index_as_lookback, fill,
            return_list=return_list,
        )  # fmt: skip

    def get_extra_model_outputs(
        self,
        key: str | None = None,
        indices: Indices = None,
        agent_ids: AgentIds = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: object = None,
        return_list: bool = False,
    ) -> AgentDict | list[AgentDict]:
        """Return the module's outputs of a name, other than actions.

        Args:
            key: Name of the outputs; None for a dictionary of all, which needs an index or
                `return_list`.
            indices: Time steps.
            agent_ids: Agents.
            env_steps: Whether time steps are those of the environment.
            neg_index_as_lookback: Whether negative indices count backwards from time step 0.
            fill: Value of what is missing.
            return_list: Whether to return a list of dictionaries.

        Raises:
            EpisodeError: If all outputs are asked for at several time steps at once.
        """
        if key is None and not return_list and not isinstance(indices, int):
            raise EpisodeError(
                f"The model outputs of {self.id_} at several time steps need a key, or "
                "return_list=True."
            )
        return self._get(
            "extra_model_outputs", indices, agent_ids, env_steps, neg_index_as_lookback, fill,
            key=key, return_list=return_list,
        )  # fmt: skip

    def set_observations(
        self,
        *,
        new_data: Mapping[Any, PyTree],
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
    ) -> None:
        """Replace observations of agents at their own time steps."""
        self._set(
            lambda episode, data: episode.set_observations(
                new_data=data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback
            ),
            new_data,
        )

    def set_actions(
        self,
        *,
        new_data: Mapping[Any, PyTree],
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
    ) -> None:
        """Replace actions of agents at their own time steps."""
        self._set(
            lambda episode, data: episode.set_actions(
                new_data=data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback
            ),
            new_data,
        )

    def set_rewards(
        self,
        *,
        new_data: Mapping[Any, PyTree],
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
    ) -> None:
        """Replace rewards of agents at their own time steps."""
        self._set(
            lambda episode, data: episode.set_rewards(
                new_data=data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback
            ),
            new_data,
        )

    def set_extra_model_outputs(
        self,
        *,
        key: str,
        new_data: Mapping[Any, PyTree],
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
    ) -> None:
        """Replace the module's outputs of a name, of agents at their own time steps."""
        self._set(
            lambda episode, data: episode.set_extra_model_outputs(
                key=key,
                new_data=data,
                at_indices=at_indices,
                neg_index_as_lookback=neg_index_as_lookback,
            ),
            new_data,
        )

    def _set(
        self, set_of: Callable[[SingleAgentEpisode, PyTree], None], new_data: Mapping[Any, PyTree]
    ) -> None:
        for agent, data in new_data.items():
            self._check_agent(agent)
            set_of(self._tracks[agent][-1].episode, data)

    def _check_agent(self, agent: AgentID) -> None:
        if agent not in self._tracks:
            raise EpisodeError(
                f"The episode {self.id_} has no agent {agent!r}; it has {list(self._tracks)}."
            )

    def _get(
        self,
        what: str,
        indices: Indices,
        agent_ids: AgentIds,
        env_steps: bool,
        neg_index_as_lookback: bool,
        fill: object,
        *,
        key: str | None = None,
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
            return self._get_by_agent_steps(
                what, indices, agents, neg_index_as_lookback, fill, key, one_hot_discrete
            )
        times = self._find_times(what, indices, neg_index_as_lookback, fill)
        if not isinstance(times, list):
            return self._get_at(what, times, agents, fill, key, one_hot_discrete)
        rows = [self._get_at(what, t, agents, fill, key, one_hot_discrete) for t in times]
        if return_list:
            return rows
        found: AgentDict = {}
        for agent in agents:
            values = [row[agent] for row in rows if agent in row]
            is_stacked = what != "infos" and self._tracks[agent][-1].episode.is_numpy
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
        self, what: str, indices: Indices, neg_index_as_lookback: bool, fill: object
    ) -> int | list[int]:
        """Return times of the environment for indices; those outside are one that no agent has."""
        last = self.env_t + (what in ("observations", "infos"))
        clock = LookbackBuffer(
            list(range(self.env_t_started - self._lookback, last)), self._lookback
        )
        outside = None if fill is None else last + 1
        return clock.get(indices, neg_index_as_lookback=neg_index_as_lookback, fill=outside)

    def _get_at(
        self,
        what: str,
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
            if place is not None and place[0].has_value(what, place[1]):
                track, position = place
                found[agent] = track.get_value(
                    what, position, key, one_hot_discrete=one_hot_discrete
                )
            elif fill is not None:
                buffer = self._tracks[agent][-1].get_buffer(what, key)
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

    def _get_by_agent_steps(
        self,
        what: str,
        indices: Indices,
        agents: list[AgentID],
        neg_index_as_lookback: bool,
        fill: object,
        key: str | None,
        one_hot_discrete: bool,
    ) -> AgentDict:
        found: AgentDict = {}
        for agent in agents:
            track = self._tracks[agent][-1]
            is_all = indices is None
            buffer = (track.get_buffer if is_all else track.get_with_hanging)(what, key)
            value = buffer.get(
                indices,
                neg_index_as_lookback=neg_index_as_lookback,
                fill=fill,
                one_hot_discrete=one_hot_discrete,
            )
            if not (isinstance(value, list) and not value):
                found[agent] = value
        return found
