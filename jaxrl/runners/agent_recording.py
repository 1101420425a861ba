"""Recording of several agents: each module's rows to a folder of its own."""

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from jaxtyping import Int, UInt32

from jaxrl.assembly.assemble import Assembly
from jaxrl.assembly.multi_agent import MultiAgentAssembly
from jaxrl.config.agent_mapping import DRAWN
from jaxrl.core.struct import replace
from jaxrl.errors import DataError
from jaxrl.offline.manifest import MANIFEST
from jaxrl.offline.stitch import AgentRollout, AgentStitcher
from jaxrl.runners.fragment import Fragment
from jaxrl.runners.recording import (
    Recorder,
    WriterThread,
    choose_run_name,
    get_output_path,
    make_untrained_part,
    make_writer,
    sort_by_time,
)
from jaxrl.training.agent_rows import AgentRows
from jaxrl.training.agent_views import without_critics
from jaxrl.training.multi_rollout import MultiRollout

if TYPE_CHECKING:
    from jaxrl.offline.writer import EpisodeWriter


class AgentsRecorder(Recorder):
    """Recorder of the rows of every module, which are agents' own steps.

    The folder has a folder for each module that acts, named by its id. Opponents that are drawn by
    episode are not recorded. See `Recorder`.
    """

    def add(
        self,
        rollout: MultiRollout,
        env_index: Int[np.ndarray, " B"],
        version: int | Int[np.ndarray, "T B"] = -1,
        *,
        begins_episodes: bool = False,
        env_step: UInt32[np.ndarray, " B"] | None = None,
    ) -> None:
        """Add the next rows of all modules.

        Args:
            rollout: Rollouts of NumPy arrays, which are not changed afterwards.
            env_index: Index of each environment within the run.
            version: Version of the weights at each step.
            begins_episodes: Whether all environments began anew with these rows.
            env_step: Number of each environment's steps before its first row, where rows may have
                been lost before; None if none are.

        Raises:
            DataError: If the folder cannot be written.
        """
        rows = split_rollout(rollout, self._rows, begins_episodes=begins_episodes)
        rows = {m: dataclasses.replace(own, env_step=env_step) for m, own in rows.items()}
        self._put({m: (own, env_index, version) for m, own in rows.items()})

    def add_fragments(self, fragments: Sequence[Fragment]) -> None:
        for fragment in sort_by_time(fragments):
            rollout = cast("MultiRollout", fragment.rollout)
            rollout = replace(rollout, completed=fragment.completed)
            self.add(
                rollout,
                fragment.env_index,
                fragment.weights_version,
                begins_episodes=fragment.begins_episodes,
                env_step=np.asarray(fragment.record.env_step[0]),
            )

    @property
    def _rows(self) -> AgentRows:
        assert isinstance(self._assembly, MultiAgentAssembly)
        return self._assembly.agent_rows

    def _start(self) -> "_WriterThreads":
        modules, path = self._assembly.parts, get_output_path(self._config)
        explores = self._config.env_runners_settings.explore

        def make(m: str, own: Assembly, folder: Path) -> "EpisodeWriter":
            has_density = own.module.has_density and explores
            return make_writer(self._config, own, folder, has_density=has_density, module_id=m)

        with open_module_writers(modules, path, make) as writers:
            for m, writer in writers.items():
                if writer.counts.num_steps:
                    writer.check_columns(make_untrained_part(modules[m]))
            seed = self._config.debugging_settings.run_seed
            folders = [writer.path for writer in writers.values()]
            run = choose_run_name(self._config.algo_name, seed, *folders)
        agents = self._rows.agents
        return _WriterThreads(
            {
                m: WriterThread(writer, AgentStitcher(run, m, agents))
                for m, writer in writers.items()
            }
        )


class _WriterThreads:
    """Threads that write, one for each module."""

    def __init__(self, threads: Mapping[str, WriterThread]) -> None:
        self._threads = threads

    def put(self, item: Mapping[str, tuple[Any, ...]]) -> None:
        for m, thread in self._threads.items():
            thread.put(item[m])

    def leave_episodes(self) -> None:
        for thread in self._threads.values():
            thread.leave_episodes()

    def raise_error(self) -> None:
        for thread in self._threads.values():
            thread.raise_error()

    def get_state(self) -> dict[str, Any]:
        return {m: thread.get_state() for m, thread in self._threads.items()}

    def check_state(self, state: Mapping[str, Any]) -> None:
        for m, thread in self._threads.items():
            thread.check_state(state[m])

    def set_state(self, state: Mapping[str, Any]) -> None:
        for m, thread in self._threads.items():
            thread.set_state(state[m])

    def close(self) -> None:
        for thread in self._threads.values():
            thread.close()


@contextlib.contextmanager
def open_module_writers(
    modules: Mapping[str, Assembly],
    path: Path,
    make: "Callable[[str, Assembly, Path], EpisodeWriter]",
) -> "Generator[dict[str, EpisodeWriter]]":
    """Open the writers of all modules, which are closed again if the block raises.

    Args:
        modules: Functions of each module.
        path: Folder of their folders.
        make: Function of a module's id, its functions and its folder that makes its writer.

    Raises:
        DataError: If the folder has the data of a single agent, or a module's id names no folder.
    """
    if (path / MANIFEST).exists():
        raise DataError(
            f"{path} has data of a single agent, and modules are recorded in folders of their own: "
            "record into another folder."
        )
    with contextlib.ExitStack() as stack:
        writers: dict[str, EpisodeWriter] = {}
        for m, own in modules.items():
            if Path(m).name != m or m.startswith("."):
                raise DataError(f"The module {m!r} names no folder to record it in: rename it.")
            writers[m] = make(m, own, path / m)
            stack.callback(writers[m].close)
        yield writers
        stack.pop_all()


def split_rollout(
    rollout: MultiRollout, rows: AgentRows, *, begins_episodes: bool = False
) -> dict[str, AgentRollout]:
    """Return the rows of each module as they are recorded, without what critics see."""
    record, num_envs, completed = rollout.record, rollout.mask.shape[1], rollout.completed
    assert completed is not None
    env_ended = np.asarray(record.ended | ~rollout.mask)  # a step that failed is masked
    agent_ended = np.asarray(rollout.agents.ended)
    found: dict[str, AgentRollout] = {}
    for m, own in rollout.rollouts.items():
        if m == DRAWN:
            continue
        found[m] = AgentRollout(
            rollout=without_critics(own),
            completed=np.asarray(completed[m]),
            cells=rows.get_cells(m, num_envs),
            env_ended=env_ended,
            agent_ended=agent_ended,
            begins_episodes=begins_episodes,
        )
    return found
