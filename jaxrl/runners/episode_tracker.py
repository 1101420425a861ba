"""The episodes of a runner as Python objects, kept only where callbacks want them."""

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Bool

from jaxrl.core.types import Columns, PyTree
from jaxrl.envs.host import HostStep, HostVector
from jaxrl.episodes import SingleAgentEpisode
from jaxrl.runners.hooks import RunnerHooks

if TYPE_CHECKING:
    from jaxrl.runners.env_runner import EnvRunner

EPISODE_HOOKS = (
    "on_episode_created",
    "on_episode_start",
    "on_episode_step",
    "on_episode_end",
    "on_sample_end",
)
"""Whoever listens to one of these makes a runner keep its episodes."""


class EnvsView:
    """What callbacks get as `env`: the copies of a runner as far as they are in its process."""

    def __init__(self, vector: HostVector) -> None:
        self._vector = vector
        self.num_envs = vector.num_envs

    @property
    def envs(self) -> list[Any]:
        """The environments, in the order of `env_index`; empty where they are elsewhere."""
        return self._vector.envs()

    @property
    def unwrapped(self) -> "EnvsView":
        """Itself."""
        return self


class EpisodeTracker:
    """Builds each environment's episode step by step and calls the hooks of episodes.

    The order is RLlib's: created, start (after the reset), step (after each, also the last), end.
    An episode that a fault ended is dropped, and another is created.
    """

    def __init__(self, runner: "EnvRunner", hooks: RunnerHooks, lookback: int) -> None:
        self._runner, self._hooks, self._lookback = runner, hooks, lookback
        self._ongoing: list[SingleAgentEpisode] = []
        self._earlier: list[list[SingleAgentEpisode]] = []
        self._done: list[SingleAgentEpisode] = []

    def create(self) -> None:
        """A new episode in every environment, before they are reset."""
        rows = range(self._runner.num_envs)
        self._ongoing = [self._new() for _ in rows]
        self._earlier = [[] for _ in rows]
        for row in rows:
            self._call("on_episode_created", row)

    def start(self, obs: PyTree) -> None:
        """The environments have been reset."""
        for row in range(self._runner.num_envs):
            self._start(row, obs, {})

    def go_on(self, obs: PyTree, lengths: np.ndarray) -> None:
        """The environments stand within episodes that were begun elsewhere."""
        self._ongoing = [
            self._new(observations=[_row(obs, row)], t_started=int(length), len_lookback_buffer=0)
            for row, length in enumerate(lengths)
        ]
        self._earlier = [[] for _ in self._ongoing]

    def step(
        self, outputs: dict[str, PyTree], step: HostStep, held: Bool[np.ndarray, " B"]
    ) -> None:
        """One vector step.

        Args:
            outputs: What the module put out, `[B, ...]`, by column.
            step: What the environments returned.
            held: Environments that did not take part.
        """
        rows = range(self._runner.num_envs)
        taking_part = [row for row in rows if not held[row]]
        for row in taking_part:
            if step.mask[row]:
                self._add(row, outputs, step)
            elif step.truncated[row]:
                self._replace(row)
        for row in taking_part:
            if step.mask[row]:
                self._call("on_episode_step", row)
                if self._ongoing[row].is_done:
                    self._call("on_episode_end", row, prev_episode_chunks=self._earlier[row])
                    self._done.append(self._ongoing[row].to_numpy())
                    self._replace(row)
            if step.starts[row]:
                self._start(row, step.obs, {} if step.mask[row] else step.infos(row))

    def finish(self) -> list[SingleAgentEpisode]:
        """The episodes, and parts of them, since the last call; ongoing ones are cut here."""
        samples, self._done = self._done, []
        for row, episode in enumerate(self._ongoing):
            if len(episode) == 0:
                continue
            self._ongoing[row] = episode.cut(self._lookback)
            part = episode.to_numpy()
            self._earlier[row].append(part)
            samples.append(part)
        self._hooks.call(
            "on_sample_end",
            env_runner=self._runner,
            metrics_logger=self._runner.metrics,
            samples=samples,
        )
        return samples

    def _new(self, **data: Any) -> SingleAgentEpisode:
        acting = self._runner.acting
        return SingleAgentEpisode(
            observation_space=acting.obs_pipeline.space,
            action_space=acting.action_pipeline.module_space,
            **data,
        )

    def _replace(self, row: int) -> None:
        self._ongoing[row], self._earlier[row] = self._new(), []
        self._call("on_episode_created", row)

    def _start(self, row: int, obs: PyTree, infos: dict[str, Any]) -> None:
        self._ongoing[row].add_env_reset(_row(obs, row), infos)
        self._call("on_episode_start", row)

    def _add(self, row: int, outputs: dict[str, PyTree], step: HostStep) -> None:
        extra = {name: _row(x, row) for name, x in outputs.items() if name != Columns.ACTIONS}
        self._ongoing[row].add_env_step(
            _row(step.final_obs, row),
            _row(outputs[Columns.ACTIONS], row),
            step.reward[row],
            step.infos(row),
            terminated=step.terminated[row],
            truncated=step.truncated[row],
            extra_model_outputs=extra,
        )

    def _call(self, hook: str, row: int, **more: Any) -> None:
        runner = self._runner
        self._hooks.call(
            hook,
            episode=self._ongoing[row],
            env_runner=runner,
            metrics_logger=runner.metrics,
            env=runner.env,
            env_index=row,
            rl_module=runner.module,
            **more,
        )


def _row(tree: PyTree, row: int) -> PyTree:
    """One environment's part, in memory of its own."""
    return jax.tree.map(lambda leaf: np.array(leaf[row]), tree)
