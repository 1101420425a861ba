"""Episodes of several agents as Python objects, tracked only if callbacks need them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl.core.types import Columns, PyTree
from jaxrl.envs.multi.base import ALL
from jaxrl.envs.multi.checked import HostMultiStart, HostMultiStep
from jaxrl.envs.multi.host_env import AgentID
from jaxrl.envs.multi.host_vector import CopyStep
from jaxrl.episodes import MultiAgentEpisode
from jaxrl.runners.episode_tracker import TrackerBase
from jaxrl.runners.hooks import RunnerHooks

if TYPE_CHECKING:
    from jaxrl.runners.multi.env_runner import MultiEnvRunner


class MultiEpisodeTracker(TrackerBase["MultiEnvRunner", MultiAgentEpisode]):
    """Builder of the episodes of several agents, which the runner has."""

    def __init__(self, runner: "MultiEnvRunner", hooks: RunnerHooks, lookback: int) -> None:
        super().__init__(runner, hooks, lookback)
        rows = range(runner.num_envs)
        self._actions: list[dict[Any, PyTree]] = [{} for _ in rows]
        self._outputs: list[dict[Any, dict[str, PyTree]]] = [{} for _ in rows]

    def create_episode(self, row: int) -> None:
        """Call the hook of an episode that has just been made."""
        self._note_created(row)

    def start_episode(self, row: int, start: HostMultiStart) -> None:
        """Add the observations of a reset."""
        self._get(row).add_env_reset(
            observations=self._name(row, start.obs), infos=self._name(row, start.infos)
        )
        self._call_hook("on_episode_start", row)

    def begin_steps(
        self, actions: Sequence[Mapping[str, PyTree]], outputs: Mapping[str, dict[str, PyTree]]
    ) -> None:
        """Add the actions of a vector step, before it is taken.

        Args:
            actions: Agents that act, by copy.
            outputs: What each group recorded, by column, `[R, ...]`.
        """
        for row, acting in enumerate(actions):
            self._actions[row], self._outputs[row] = {}, {}
            for agent in acting:
                group, place = self._runner.slots.find(row, agent)
                own = jax.tree.map(lambda x, place=place: np.array(x[place]), outputs[group])
                name = self._get_id(row, agent)
                self._actions[row][name] = own.pop(Columns.ACTIONS)
                self._outputs[row][name] = own

    def add_steps(self, steps: Mapping[int, CopyStep]) -> None:
        """Add the results of steps by copy; the episodes that they end are the current ones."""
        for row, copy in steps.items():
            if copy.step is not None:
                self._add_step(row, copy.step)
                self._note_step(row)

    def _add_step(self, row: int, step: HostMultiStep) -> None:
        own = step.own_ids
        self._get(row).add_env_step(
            self._name(row, step.obs, own),
            self._actions[row],
            self._name(row, step.reward, own),
            self._name(row, step.infos, own),
            terminateds=self._name(row, step.terminated, own),
            truncateds=self._name(row, step.truncated, own),
            extra_model_outputs=self._outputs[row],
        )

    def resume_episode(self, row: int, length: int, obs: Mapping[str, PyTree]) -> None:
        """Continue an episode that began before the environments' state was restored.

        Args:
            row: The environment.
            length: Number of steps of the episode.
            obs: What the agents observe that act next.
        """
        self._chunks[row] = []
        before = self._get(row)
        episode = MultiAgentEpisode(
            before.id_,
            observations=[self._name(row, obs)] if obs else None,
            env_t_started=length,
            len_lookback_buffer=0,
            agent_module_ids=self._runner.slots.get_modules(row),
            agent_to_module_mapping_fn=before.agent_to_module_mapping_fn,
        )
        self._set(row, episode)

    def _name(
        self, row: int, values: Mapping[str, Any], own: Mapping[str, AgentID] | None = None
    ) -> dict[Any, Any]:
        """Return values by the environment's own ids, which may be ints.

        Args:
            row: The environment.
            values: Values by agent.
            own: Ids that are not those of the moment, since another episode has begun.
        """
        known = {ALL: ALL, **(own or {})}
        return {
            known[name] if name in known else self._get_id(row, name): x
            for name, x in values.items()
        }

    def _get(self, row: int) -> MultiAgentEpisode:
        return self._runner.slots.episodes[row]

    def _set(self, row: int, episode: MultiAgentEpisode) -> None:
        self._runner.slots.set_episode(row, episode)

    def _get_id(self, row: int, agent: str) -> AgentID:
        return self._runner.vector.get_own_id(row, agent)
