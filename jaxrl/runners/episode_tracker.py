"""Episodes of a runner as Python objects, tracked only if callbacks need them."""

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import jax
import numpy as np
from jaxtyping import Bool

from jaxrl.core.types import Columns, PyTree
from jaxrl.envs.context import EnvContext
from jaxrl.envs.host import HostStep
from jaxrl.episodes import MultiAgentEpisode, SingleAgentEpisode
from jaxrl.runners.hooks import RunnerHooks
from jaxrl.runners.metrics_logger import log_custom_metrics

if TYPE_CHECKING:
    from jaxrl.runners.env_runner import EnvRunner
    from jaxrl.runners.host_runner import AnyRunner

Runner = TypeVar("Runner", bound="AnyRunner")
Episode = TypeVar("Episode", SingleAgentEpisode, MultiAgentEpisode)

EPISODE_HOOKS = (
    "on_episode_created",
    "on_episode_start",
    "on_episode_step",
    "on_episode_end",
    "on_sample_end",
)
"""Hooks whose listeners require a runner to track its episodes."""


class SubEnvironments(Protocol):
    """Vector of environments in Python, of one agent or several."""

    @property
    def num_envs(self) -> int:
        """Number of environments."""
        ...

    def get_sub_environments(self) -> list[Any]:
        """Return those that are in this process."""
        ...


class EnvsView:
    """Value of `env` in callbacks: the environments of a runner that are in its process."""

    def __init__(self, vector: SubEnvironments) -> None:
        self._vector = vector
        self.num_envs = vector.num_envs

    @property
    def envs(self) -> list[Any]:
        """Environments in the order of `env_index`; empty if they are in other processes."""
        return self._vector.get_sub_environments()

    def get_sub_environments(self) -> list[Any]:
        """Return `envs`, under the name of RLlib's older environments."""
        return self.envs

    @property
    def unwrapped(self) -> "EnvsView":
        """The view, for compatibility with gymnasium's vector environments."""
        return self


def is_tracking(hooks: RunnerHooks) -> bool:
    """Return whether a listener requires a runner to track its episodes."""
    return any(hooks.has_listeners(hook) for hook in EPISODE_HOOKS)


def announce_envs(runner: "AnyRunner", hooks: RunnerHooks) -> None:
    """Call `on_environment_created` for the environments of a runner."""
    context = EnvContext(
        runner.config.environment_settings.env_config,
        worker_index=runner.worker_index,
        num_workers=runner.num_workers,
    )
    hooks.call(
        "on_environment_created",
        env_runner=runner,
        metrics_logger=runner.metrics,
        env=runner.env,
        env_context=context,
    )


class TrackerBase(Generic[Runner, Episode], abc.ABC):
    """Builder of each environment's episode, step by step, that calls the episode hooks.

    The order is RLlib's: created, start (after the reset), step (after each one, including the
    last), end. An episode that ends with a fault is dropped, and a new one is created. In a share of an evaluation, only the share's episodes call hooks, and they are not cut at the
    end of a fragment.

    Args:
        runner: Runner of the environments.
        hooks: Hooks to call.
        lookback: Number of steps before a cut that the following chunk keeps.
    """

    def __init__(self, runner: Runner, hooks: RunnerHooks, lookback: int) -> None:
        self._runner, self._hooks, self._lookback = runner, hooks, lookback
        self._done: list[Episode] = []
        self._chunks: list[list[Episode]] = [[] for _ in range(runner.num_envs)]
        """Earlier chunks of the ongoing episodes."""
        self._is_in_share = False
        self._num_left: list[int] | None = None

    def begin_share(self, episodes: Sequence[int] | None) -> None:
        """Begin a share of an evaluation.

        Args:
            episodes: Number of episodes of each environment; None if the share is one of steps.
        """
        self._done, self._is_in_share = [], True
        self._num_left = None if episodes is None else list(episodes)

    @property
    def num_left(self) -> list[int]:
        """Number of episodes that each environment has yet to end in a share of episodes."""
        return list(self._num_left or ())

    def finish_share(self) -> list[Episode]:
        """Return the share's episodes; those that were not completed are cut."""
        self._is_in_share = False
        return self.finish_fragment()

    def end_share(self) -> None:
        """End a share that was finished, or that failed."""
        self._done, self._is_in_share, self._num_left = [], False, None

    def finish_fragment(self) -> list[Episode]:
        """Return the episodes and chunks since the last call; ongoing episodes are cut here."""
        if self._is_in_share:
            return []
        samples, self._done = self._done, []
        for row in range(self._runner.num_envs):
            chunk = self._cut(row) if self._is_counted(row) else None
            if chunk is not None:
                samples.append(chunk)
        self._hooks.call(
            "on_sample_end",
            env_runner=self._runner,
            metrics_logger=self._runner.metrics,
            samples=samples,
        )
        return samples

    def _is_counted(self, row: int) -> bool:
        return self._num_left is None or self._num_left[row] > 0

    def _note_created(self, row: int) -> None:
        """Call the hook of a new episode, before the reset."""
        self._chunks[row] = []
        self._call_hook("on_episode_created", row)

    def _note_step(self, row: int) -> None:
        """Call the hooks of a step that was added."""
        self._call_hook("on_episode_step", row)
        if not self._get(row).is_done or not self._is_counted(row):
            return
        self._call_hook("on_episode_end", row, prev_episode_chunks=self._chunks[row])
        log_custom_metrics(self._runner.metrics, self._get(row).custom_data)
        self._done.append(self._get(row).to_numpy())
        if self._num_left is not None:
            self._num_left[row] -= 1

    def _call_hook(self, hook: str, row: int, **more: object) -> None:
        if not self._is_counted(row):
            return
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

    def _cut(self, row: int) -> Episode | None:
        """Cut the episode of an environment and return the part before; None if there is none."""
        episode = self._get(row)
        if len(episode) == 0 or episode.is_done or not episode.is_reset:
            return None
        self._set(row, episode.cut(self._lookback))
        chunk = episode.to_numpy()
        self._chunks[row].append(chunk)
        return chunk

    @abc.abstractmethod
    def _get(self, row: int) -> Episode:
        """Return the current episode of an environment."""

    @abc.abstractmethod
    def _set(self, row: int, episode: Episode) -> None:
        """Replace the current episode of an environment by its next chunk."""


class EpisodeTracker(TrackerBase["EnvRunner", SingleAgentEpisode]):
    """Builder of the episodes of a single agent."""

    def __init__(self, runner: "EnvRunner", hooks: RunnerHooks, lookback: int) -> None:
        super().__init__(runner, hooks, lookback)
        self._ongoing = [self._make_episode() for _ in range(runner.num_envs)]

    def create_episodes(self) -> None:
        """Create a new episode for every environment, before the reset."""
        for row in range(self._runner.num_envs):
            self._create_episode(row)

    def start_episodes(self, obs: PyTree) -> None:
        """Start all episodes with the observations of the reset."""
        for row in range(self._runner.num_envs):
            self._start_episode(row, obs)

    def resume_episodes(self, obs: PyTree, lengths: np.ndarray) -> None:
        """Continue episodes that began before the environments' state was restored."""
        self._ongoing = [
            self._make_episode([_copy_row(obs, row)], int(length))
            for row, length in enumerate(lengths)
        ]
        self._chunks = [[] for _ in self._ongoing]

    def add_step(
        self, outputs: dict[str, PyTree], step: HostStep, paused: Bool[np.ndarray, " B"]
    ) -> None:
        """Add a vector step, before copies whose episodes it ended are reset.

        Args:
            outputs: Outputs of the module by column, `[B, ...]`.
            step: Results of the environments.
            paused: Whether each environment was paused, `[B]`.
        """
        rows = range(self._runner.num_envs)
        active = [row for row in rows if not paused[row]]
        for row in active:
            if step.mask[row]:
                self._add_step(row, outputs, step)
            elif step.truncated[row]:
                self._create_episode(row)
        for row in active:
            if step.mask[row]:
                self._note_step(row)
                if self._ongoing[row].is_done:
                    self._create_episode(row)

    def begin_episodes(self, step: HostStep, paused: Bool[np.ndarray, " B"]) -> None:
        """Start the episodes that began with the observations of a vector step."""
        for row in np.flatnonzero(step.starts & ~paused):
            self._start_episode(int(row), step.obs)

    def _get(self, row: int) -> SingleAgentEpisode:
        return self._ongoing[row]

    def _set(self, row: int, episode: SingleAgentEpisode) -> None:
        self._ongoing[row] = episode

    def _make_episode(
        self, observations: list[PyTree] | None = None, t_started: int = 0
    ) -> SingleAgentEpisode:
        acting = self._runner.policy_step
        return SingleAgentEpisode(
            observation_space=acting.observation_space,
            action_space=acting.action_pipeline.module_space,
            observations=observations,
            t_started=t_started,
            len_lookback_buffer=0,
        )

    def _create_episode(self, row: int) -> None:
        self._ongoing[row] = self._make_episode()
        self._note_created(row)

    def _start_episode(self, row: int, obs: PyTree) -> None:
        info = self._runner.vector.get_reset_info(row)
        self._ongoing[row].add_env_reset(_copy_row(obs, row), info)
        self._call_hook("on_episode_start", row)

    def _add_step(self, row: int, outputs: dict[str, PyTree], step: HostStep) -> None:
        extra = {name: _copy_row(x, row) for name, x in outputs.items() if name != Columns.ACTIONS}
        self._ongoing[row].add_env_step(
            _copy_row(step.final_obs, row),
            _copy_row(outputs[Columns.ACTIONS], row),
            step.reward[row],
            step.infos(row),
            terminated=step.terminated[row],
            truncated=step.truncated[row],
            extra_model_outputs=extra,
        )


def _copy_row(tree: PyTree, row: int) -> PyTree:
    """Copy the row of one environment."""
    return jax.tree.map(lambda leaf: np.array(leaf[row]), tree)
