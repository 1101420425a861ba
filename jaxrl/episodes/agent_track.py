"""One agent's part of an episode of several agents, on the time of the environment."""

import bisect
import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, TypeAlias

from jaxrl.core.types import PyTree
from jaxrl.episodes.lookback import LookbackBuffer, one_hot
from jaxrl.episodes.single_agent import SingleAgentEpisode

StepColumn: TypeAlias = str
"""Name of what an agent has once a step, "actions", "rewards", or of a model output."""

_STATES = ("observations", "infos")


@dataclasses.dataclass
class Hanging:
    """An action that is not followed by an observation yet, and the rewards since."""

    action: PyTree
    reward: float
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

    def has_value(self, what: str, position: int) -> bool:
        """Return whether there is a value at an observation's position."""
        if what in _STATES:
            return position < len(self.times)
        last = len(self.times) - 1
        return position < last or (position == last and self.hanging is not None)

    def get_value(
        self, what: str, position: int, key: str | None = None, *, one_hot_discrete: bool = False
    ) -> PyTree:
        """Return the value at an observation's position; of all model outputs if `key` is None."""
        if what == "extra_model_outputs" and key is None:
            keys = self._get_output_names()
            return {name: self.get_value(what, position, name) for name in keys}
        buffer = self.get_buffer(what, key)
        if what in _STATES or position < len(self.times) - 1:
            index = position - buffer.lookback
            return buffer.get(index, neg_index_as_lookback=True, one_hot_discrete=one_hot_discrete)
        value = self._get_hanging(what, key)
        return one_hot(buffer.space, value) if one_hot_discrete else value

    def get_buffer(self, what: str, key: str | None = None) -> LookbackBuffer:
        """Return the agent's data of one kind, without what hangs."""
        if what == "extra_model_outputs":
            return self.episode.extra_model_outputs.get(str(key), LookbackBuffer())
        return getattr(self.episode, what)

    def get_with_hanging(self, what: str, key: str | None = None) -> LookbackBuffer:
        """Return the agent's data of one kind, followed by what hangs."""
        buffer = self.get_buffer(what, key)
        if self.hanging is None or what in _STATES:
            return buffer
        data = list(buffer.data) if not buffer.finalized else buffer.data
        extended = LookbackBuffer(data, buffer.lookback, buffer.space)
        extended.append(self._get_hanging(what, key))
        return extended

    def _get_hanging(self, what: str, key: str | None) -> PyTree:
        assert self.hanging is not None
        if what == "actions":
            return self.hanging.action
        if what == "rewards":
            return self.hanging.reward
        return self.hanging.extra_model_outputs.get(str(key))

    def _get_output_names(self) -> list[str]:
        if self.episode.extra_model_outputs or self.hanging is None:
            return list(self.episode.extra_model_outputs)
        return list(self.hanging.extra_model_outputs)

    def cut(self, since: int) -> "AgentTrack":
        """Return the continuation, without steps of its own; what hangs goes along.

        Args:
            since: Earliest time of the environment that is looked back to.
        """
        lookback = sum(time >= since for time in self.times[:-1])
        return AgentTrack(
            self.episode.cut(lookback), self.times[-lookback - 1 :], copy.deepcopy(self.hanging)
        )

    def slice(self, start: int, stop: int, since: int) -> "AgentTrack | None":
        """Return the part between two times of the environment, None if there is nothing.

        A step belongs to the part in which it is completed. An action that is not followed by an
        observation until `stop` hangs, with all of its reward.

        Args:
            start: Time at which the part begins.
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
        kept = sum(time >= since for time in self.times[:first])
        part = self.episode.slice(
            slice(first - lookback, last - lookback), len_lookback_buffer=kept
        )
        hanging = copy.deepcopy(self.hanging)
        if last < len(self.times) - 1:
            hanging = Hanging(
                self.get_value("actions", last),
                float(self.get_value("rewards", last)),
                self.get_value("extra_model_outputs", last),
            )
        return AgentTrack(part, self.times[first - kept : last + 1], hanging)

    def append(self, other: "AgentTrack") -> None:
        """Append the track that `cut` began, or the next slice."""
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
