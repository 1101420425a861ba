"""Episodes of several agents as Python objects, tracked only if callbacks need them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Bool

from jaxrl.core.types import Columns, PyTree
from jaxrl.envs.multi.base import ALL
from jaxrl.envs.multi.host_steps import HostMultiStart, HostMultiStep
from jaxrl.envs.multi.host_vector import CopyStep, MultiHostVector
from jaxrl.episodes import MultiAgentEpisode, SingleAgentEpisode
from jaxrl.runners.hooks import RunnerHooks

if TYPE_CHECKING:
    from jaxrl.runners.multi_env_runner import MultiEnvRunner


class MultiEnvsView:
    """Value of `env` in callbacks: the environments of a runner, which are in its process."""

    def __init__(self, vector: MultiHostVector) -> None:
        self._vector = vector
        self.num_envs = vector.num_envs

    @property
    def envs(self) -> list[Any]:
        """Environments in the order of `env_index`."""
        return self._vector.get_sub_environments()

    def get_sub_environments(self) -> list[Any]:
        """Return `envs`, under the name of RLlib's older environments."""
        return self.envs

    @property
    def unwrapped(self) -> "MultiEnvsView":
        """The view, for compatibility with gymnasium's vector environments."""
        return self


class _Hanging:
    """Action of an agent whose step is not complete, with what has been paid for it so far."""

    def __init__(self, action: PyTree, extra: dict[str, PyTree]) -> None:
        self.action, self.extra, self.reward = action, extra, 0.0


class MultiEpisodeTracker:
    """Builder of each environment's episode that calls the episode hooks, in RLlib's order.

    That is created, start (after the reset), step (after each one, including the last), end. An
    episode that ends with a fault is dropped, and a new one is created.
    """

    def __init__(self, runner: "MultiEnvRunner", hooks: RunnerHooks, lookback: int) -> None:
        self._runner, self._hooks, self._lookback = runner, hooks, lookback
        rows = range(runner.num_envs)
        self._hanging: list[dict[Any, _Hanging]] = [{} for _ in rows]
        self._chunks: list[list[MultiAgentEpisode]] = [[] for _ in rows]
        self._done: list[MultiAgentEpisode] = []

    def create_episode(self, row: int) -> None:
        """Call the hook of an episode that has just been made, before the reset."""
        self._hanging[row], self._chunks[row] = {}, []
        self._call_hook("on_episode_created", row)

    def start_episode(self, row: int, start: HostMultiStart) -> None:
        """Add the observations of a reset."""
        for agent, obs in start.obs.items():
            self._begin_agent(row, agent, obs, start.infos.get(agent))
        self._call_hook("on_episode_start", row)

    def begin_steps(
        self,
        actions: Sequence[Mapping[str, PyTree]],
        outputs: Mapping[str, dict[str, PyTree]],
    ) -> None:
        """Add the actions of a vector step, before it is taken.

        Args:
            actions: Agents that act, by copy.
            outputs: What each module recorded, by column, `[R, ...]`.
        """
        for row, acting in enumerate(actions):
            for agent in acting:
                module, place = self._runner.find_row(row, agent)
                own = jax.tree.map(lambda x, place=place: np.array(x[place]), outputs[module])
                action = own.pop(Columns.ACTIONS)
                self._hanging[row][agent] = _Hanging(action, own)

    def add_steps(self, steps: Sequence[CopyStep], paused: Bool[np.ndarray, " B"]) -> None:
        """Add the results of a vector step; the episodes that it ends are still the current ones."""
        for row, copy in enumerate(steps):
            if paused[row] or copy.step is None:
                continue
            self._add_step(row, copy.step)
            self._call_hook("on_episode_step", row)
            if copy.step.is_over:
                self._call_hook("on_episode_end", row, prev_episode_chunks=self._chunks[row])
                self._done.append(self._get(row).to_numpy())

    def _add_step(self, row: int, step: HostMultiStep) -> None:
        episode, hanging = self._get(row), self._hanging[row]
        episode.env_t += 1
        for agent, reward in step.reward.items():
            if agent in hanging:
                hanging[agent].reward += reward
            else:
                episode.add_reward_without_action(reward)
        for agent in step.present:
            terminated, truncated = step.terminated[agent], step.truncated[agent]
            if agent in hanging and (terminated or truncated or step.acts[agent]):
                self._finish_agent(row, agent, step)
        for agent in step.joined:
            self._begin_agent(row, agent, step.obs[agent], step.infos.get(agent))
        episode.is_terminated, episode.is_truncated = step.terminated[ALL], step.truncated[ALL]

    def _finish_agent(self, row: int, agent: str, step: HostMultiStep) -> None:
        """Complete the step of an agent."""
        began = self._hanging[row].pop(agent)
        own = self._get(row).agent_episodes[self._get_id(row, agent)]
        obs = step.obs[agent] if agent in step.obs else own.get_observations(-1)
        own.add_env_step(
            jax.tree.map(np.array, obs),
            began.action,
            began.reward,
            step.infos.get(agent, {}),
            terminated=step.terminated[agent],
            truncated=step.truncated[agent],
            extra_model_outputs=began.extra,
        )

    def _begin_agent(self, row: int, agent: str, obs: PyTree, info: dict[str, Any] | None) -> None:
        episode, name = self._get(row), self._get_id(row, agent)
        module = episode.module_for(name)
        before = episode.agent_episodes.get(name)
        if before is not None and len(before):
            episode.ended_agent_episodes.append(before)
        policy = self._runner.policy_step.policies[module]
        own = SingleAgentEpisode(
            observation_space=policy.obs_pipeline.space,
            action_space=policy.action_pipeline.module_space,
        )
        own.add_env_reset(jax.tree.map(np.array, obs), info or {})
        episode.agent_episodes[name] = own

    def finish_fragment(self) -> list[MultiAgentEpisode]:
        """Return the episodes and chunks since the last call; ongoing episodes are cut here."""
        samples, self._done = self._done, []
        for row in range(self._runner.num_envs):
            episode = self._get(row)
            if len(episode) == 0:
                continue
            self._runner.set_episode(row, episode.cut(self._lookback))
            chunk = episode.to_numpy()
            self._chunks[row].append(chunk)
            samples.append(chunk)
        self._hooks.call(
            "on_sample_end",
            env_runner=self._runner,
            metrics_logger=self._runner.metrics,
            samples=samples,
        )
        return samples

    def resume_episode(self, row: int, length: int, obs: Mapping[str, PyTree]) -> None:
        """Continue an episode that began before the environments' state was restored.

        Args:
            row: The environment.
            length: Number of steps of the episode.
            obs: What the agents observe that have observed anything.
        """
        self._hanging[row], self._chunks[row] = {}, []
        episode = self._get(row)
        episode.env_t = episode.env_t_started = length
        for agent, value in obs.items():
            self._begin_agent(row, agent, value, None)

    def _get(self, row: int) -> MultiAgentEpisode:
        return self._runner.get_episode(row)

    def _get_id(self, row: int, agent: str) -> Any:
        return self._runner.vector.get_own_id(row, agent)

    def _call_hook(self, hook: str, row: int, **more: object) -> None:
        runner = self._runner
        self._hooks.call(
            hook,
            episode=self._get(row),
            env_runner=runner,
            metrics_logger=runner.metrics,
            env=runner.env,
            env_index=row,
            rl_module=runner.module,
            **more,
        )
