"""Recording of what a run samples, to a folder of data to learn from."""

import abc
import contextlib
import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import jax
import numpy as np
from jaxtyping import Int, UInt32

from jaxrl.assembly.assemble import Assembly
from jaxrl.assembly.multi_agent import MultiAgentAssembly
from jaxrl.config.agent_mapping import DRAWN
from jaxrl.core.struct import replace
from jaxrl.core.types import Key, PyTree, Rollout
from jaxrl.envs.registry import AnyMadeEnv
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import CheckpointError, DataError
from jaxrl.offline.manifest import MANIFEST, read_manifest
from jaxrl.offline.stitch import AgentRollout, AgentStitcher, PartStitcher
from jaxrl.offline.writer import EpisodeWriter
from jaxrl.runners.fragment import Fragment
from jaxrl.training.agent_rows import AgentRows, without_critics
from jaxrl.training.multi_rollout import MultiRollout
from jaxrl.training.rollout import ActorState, PolicyStep, make_blank_rollout
from jaxrl.training.train_step import TrainStep

if TYPE_CHECKING:
    from jaxrl.config.config import Config

logger = logging.getLogger("jaxrl")

OUTPUT_SECONDS = "output_s"
"""Key of the timer of how long the run waited for the recording."""
_QUEUE_SIZE = 2


class Converter(Protocol):
    """Conversion of what a recorder is given to parts of episodes, with a state of its own."""

    @property
    def add(self) -> Callable[..., list[EpisodePart]]:
        """Function of what the recorder is given that returns the parts that are completed."""
        ...

    def leave_episodes(self) -> list[EpisodePart]:
        """Return what is not yet part of any, of episodes that the next rows do not continue."""
        ...

    def flush(self) -> list[EpisodePart]:
        """Return what is not yet part of any."""
        ...

    def get_state(self) -> dict[str, Any]:
        """Return what `set_state` needs, as plain data."""
        ...

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go back to the time of `get_state`."""
        ...


class Recorder(abc.ABC):
    """Writers of what a run samples, each in a thread: one for each module.

    A single agent is recorded to the folder itself; of several, each module that acts has a folder
    there that is named by its id. A full queue blocks the run, and an error of a thread is raised by
    the next calls. The end of the process completes the last files. A run that was restored opens the
    folder with its first rows, so that evaluating a checkpoint changes nothing there.

    Args:
        config: Config of the run, with `output`.
        assembly: Functions of the run.

    Raises:
        DataError: If the folder has other data, or cannot be written.
    """

    def __init__(self, config: "Config", assembly: Assembly) -> None:
        self._config, self._assembly = config, assembly
        self._seconds = 0.0
        self._opened: tuple[Mapping[str, WriterThread], Callable[[], object]] | None = None
        self._pending: Mapping[str, Any] | None = None
        if assembly.should_train:
            self._open()

    @abc.abstractmethod
    def add_fragments(self, fragments: Sequence[Fragment]) -> None:
        """Add the fragments of a train batch.

        Raises:
            DataError: If the folder cannot be written.
        """

    @abc.abstractmethod
    def _make_converter(self, run: str, module: str) -> Converter:
        """Return what makes parts of episodes of a module, whose ids begin with the name of the run."""

    def _make_blank_part(self, assembly: Assembly) -> EpisodePart | None:
        """Return a part of zeros with the columns of a module's parts; None if they are not known."""
        return make_untrained_part(assembly)

    def _has_density(self, assembly: Assembly) -> bool:
        """Return whether all actions of a module have the probability in `ACTION_LOGP`."""
        return assembly.module.has_density and self._config.env_runners_settings.explore

    def _start(self) -> dict[str, "WriterThread"]:
        """Open the folders and start the threads that write to them."""
        config, modules = self._config, self._assembly.parts
        settings, seed = config.offline_data_settings, config.debugging_settings.run_seed
        assert settings.output is not None

        def make(m: str, own: Assembly, folder: Path) -> EpisodeWriter:
            return make_writer(config, own.made, folder, self._has_density(own), m or None)

        path = Path(settings.output).expanduser().absolute()
        with open_writers(modules, path, make) as writers:
            for m, writer in writers.items():
                part = self._make_blank_part(modules[m]) if writer.counts.num_steps else None
                if part is not None:
                    writer.check_columns(part)
            # The folders are locked now, so that no other run chooses the same name.
            folders = [writer.path for writer in writers.values()]
            run = choose_run_name(config.algo_name, seed, *folders)
        return {m: WriterThread(own, self._make_converter(run, m)) for m, own in writers.items()}

    def _open(self) -> Mapping[str, "WriterThread"]:
        """Return the threads, started on first use and set back to the restored state."""
        if self._opened is None:
            threads = self._start()
            self._opened = threads, weakref.finalize(self, _close_all, threads)
        threads, _ = self._opened
        if self._pending is not None:
            state, self._pending = self._pending, None
            _restore(threads, state)
        return threads

    def _put(self, items: Mapping[str, tuple[Any, ...]]) -> None:
        """Add an item to the thread of each module; raise the error of a thread, if there was one."""
        began = time.perf_counter()
        for m, thread in self._open().items():
            thread.put(items[m])
        self._seconds += time.perf_counter() - began

    def take_seconds(self) -> float:
        """Return the seconds that the run waited since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def get_state(self) -> dict[str, Any]:
        """Write everything that was added, and return what `set_state` needs, as plain data.

        Raises:
            DataError: If the folder cannot be written.
        """
        if self._pending is not None:
            return dict(self._pending)
        return {m: thread.get_state() for m, thread in self._open().items()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go back to the time of `get_state` with the next rows: what was recorded since is removed.

        The next call that adds something, or `get_state`, raises CheckpointError if the state is
        invalid, and DataError if the files of that time are missing.
        """
        self._pending = state

    def leave_episodes(self) -> None:
        """Cut the open episodes: the run goes on with others, from a state without a recording.

        Raises:
            DataError: If the folder cannot be written.
        """
        if self._opened is not None or self._pending is not None:
            for thread in self._open().values():
                thread.leave_episodes()

    def close(self) -> None:
        """Complete the last files; safe to call more than once.

        Raises:
            DataError: If the folder cannot be written.
        """
        if self._opened is not None:
            threads, finalize = self._opened
            finalize()
            for thread in threads.values():
                thread.raise_error()


def _close_all(threads: "Mapping[str, WriterThread]") -> None:
    for thread in threads.values():
        thread.close()


class RolloutRecorder(Recorder):
    """Recorder of sampled rollouts, which have the environments' observations.

    Actions are the module's, whose memory is not recorded: modules that learn from the data compute
    their own. Rows of several agents are their own steps, and opponents that are drawn by episode are
    not recorded. See `Recorder`.
    """

    def add(
        self,
        rollout: Rollout | MultiRollout,
        env_index: Int[np.ndarray, " B"],
        version: int | Int[np.ndarray, "T B"] = -1,
        *,
        begins_episodes: bool = False,
        env_step: UInt32[np.ndarray, " B"] | None = None,
    ) -> None:
        """Add the next rows of environments.

        Args:
            rollout: Rows `[T, B, ...]` of NumPy arrays, which are not changed afterwards.
            env_index: Index of each environment within the run.
            version: Version of the weights at each step.
            begins_episodes: Whether all environments began anew with these rows, of several agents.
            env_step: Number of each environment's steps before its first row, where rows may have
                been lost before; None if none are.

        Raises:
            DataError: If the folder cannot be written.
        """
        if not isinstance(rollout, MultiRollout):
            self._put({"": (replace(rollout, carry_in=None), env_index, version, env_step)})
            return
        assert isinstance(self._assembly, MultiAgentAssembly)
        rows = split_rollout(
            rollout, self._assembly.agent_rows, begins_episodes=begins_episodes, env_step=env_step
        )
        self._put({m: (own, env_index, version) for m, own in rows.items()})

    def add_fragments(self, fragments: Sequence[Fragment]) -> None:
        for fragment in sort_by_time(fragments):
            rollout = fragment.rollout
            if fragment.completed is not None:
                rollout = replace(rollout, completed=fragment.completed)
            self.add(
                rollout,
                fragment.env_index,
                fragment.weights_version,
                begins_episodes=fragment.begins_episodes,
                env_step=np.asarray(fragment.record.env_step[0]),
            )

    def _make_converter(self, run: str, module: str) -> PartStitcher | AgentStitcher:
        return make_stitcher(self._assembly, run, module)


def make_stitcher(assembly: Assembly, run: str, module: str) -> PartStitcher | AgentStitcher:
    """Make what joins rows of a module, or of a single agent, to parts of episodes."""
    if isinstance(assembly, MultiAgentAssembly):
        return AgentStitcher(run, module, assembly.agent_rows.agents)
    return PartStitcher(run)


def sort_by_time(fragments: Sequence[Fragment]) -> list[Fragment]:
    """Return fragments with those of the same environments in order of time, in each other's places.

    Where a runner is late, others do its share, and their later fragments may be before earlier ones.
    """
    places: dict[int, list[int]] = {}
    for place, fragment in enumerate(fragments):
        places.setdefault(int(fragment.env_index[0]), []).append(place)
    ordered = list(fragments)
    for own in places.values():
        by_time = sorted(own, key=lambda place: int(fragments[place].record.env_step[0].min()))
        for place, source in zip(own, by_time, strict=True):
            ordered[place] = fragments[source]
    return ordered


def make_untrained_part(assembly: Assembly) -> EpisodePart:
    """Make a part of one step of zeros, without observations, as a run's module is recorded."""
    train_step, plan = assembly.train_step, assembly.plan
    assert isinstance(train_step, TrainStep)

    def make_actor(key: Key) -> ActorState:
        return train_step.make_actor_state(train_step.init_without_envs(key, plan.total_envs))

    return make_blank_part(assembly.policy_step, make_actor)


def make_blank_part(
    policy_step: PolicyStep, make_actor: Callable[[Key], ActorState]
) -> EpisodePart:
    """Make a part of one step of zeros, without observations, as the policy is recorded.

    Args:
        policy_step: Module and connectors of the policy.
        make_actor: Function of a key that returns what it acts with, which is only traced.
    """
    rows = jax.eval_shape(
        lambda key: make_blank_rollout(policy_step, make_actor(key), 1, 1), jax.random.key(0)
    )

    def blank(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: np.zeros(leaf.shape[1:], leaf.dtype), tree)

    return EpisodePart(
        episode_id="",
        t_started=0,
        obs=None,
        action=blank(rows.action),
        reward=np.zeros(1, np.float32),
        extras=blank(rows.extras),
        version=np.zeros(1, np.int64),
    )


def restore_recording(recorder: Recorder, state: Mapping[str, Any] | None) -> None:
    """Go back to a saved state of the recording; without one, leave the episodes it is in."""
    if state is None:
        recorder.leave_episodes()
    else:
        recorder.set_state(state)


def _restore(threads: "Mapping[str, WriterThread]", state: Mapping[str, Any]) -> None:
    """Set what writes back to a saved state.

    Raises:
        CheckpointError: If the state is invalid.
        DataError: If the files of that time are missing.
    """
    try:
        for m, thread in threads.items():
            thread.check_state(state[m])
        for m, thread in threads.items():
            thread.set_state(state[m])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, DataError):
            raise
        raise CheckpointError(
            f"The state of the recording is damaged in the checkpoint ({error}): leave output out to "
            "continue the run without it."
        ) from error


def make_writer(
    config: "Config",
    made: AnyMadeEnv,
    path: Path,
    has_density: bool,
    module_id: str | None = None,
) -> EpisodeWriter:
    """Make the writer of a module's steps.

    Args:
        config: Config of the run.
        made: Environment of the module.
        path: Folder.
        has_density: Whether recorded actions have the probability in `ACTION_LOGP`.
        module_id: Id of the module in a run of several agents.
    """
    settings = config.offline_data_settings
    return EpisodeWriter(
        path,
        *made.spaces,
        env=made.id,
        algorithm=config.algo_name,
        seed=config.debugging_settings.run_seed,
        module_id=module_id,
        has_density=has_density,
        actions_are_normalized=True,
        max_file_bytes=settings.output_max_file_size,
        max_rows_per_file=settings.output_max_rows_per_file,
    )


ModuleT = TypeVar("ModuleT")


@contextlib.contextmanager
def open_writers(
    modules: Mapping[str, ModuleT],
    path: Path,
    make: Callable[[str, ModuleT, Path], EpisodeWriter],
) -> Generator[dict[str, EpisodeWriter]]:
    """Open the writers of all modules, which are closed again if the block raises.

    Args:
        modules: Modules by id; "" is that of a single agent, whose folder is the path itself.
        path: Folder of their folders.
        make: Function of a module's id, the module and its folder that makes its writer.

    Raises:
        DataError: If the folder has the data of a single agent, or a module's id names no folder.
    """
    if "" not in modules and (path / MANIFEST).exists():
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


def choose_run_name(algorithm: str, seed: int, *folders: Path) -> str:
    """Return a name for the ids of episodes that no other data in the folders have.

    Args:
        algorithm: Name of the algorithm.
        seed: Seed of the run.
        *folders: Folders that are recorded to.
    """
    manifests = [read_manifest(path) for path in folders if path.is_dir()]
    numbers = [manifest.next_number for manifest in manifests if manifest is not None]
    name = f"{algorithm}-{seed}"
    return f"{name}-{max(numbers)}" if numbers else name


class WriterThread:
    """Thread that makes parts of episodes and writes them."""

    def __init__(self, writer: EpisodeWriter, converter: Converter) -> None:
        self._writer, self._converter = writer, converter
        self._queue: queue.Queue[Any] = queue.Queue(_QUEUE_SIZE)
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="jaxrl-output", daemon=True)
        self._thread.start()

    def put(self, item: tuple[Any, ...]) -> None:
        self.raise_error()
        self._queue.put(item)

    def leave_episodes(self) -> None:
        self._queue.join()
        self.raise_error()
        self._writer.add_parts(self._converter.leave_episodes())

    def raise_error(self) -> None:
        """Raise the error of the thread, if there was one."""
        if self._error is not None:
            raise self._error

    def get_state(self) -> dict[str, Any]:
        self._queue.join()
        self.raise_error()
        if parts := self._converter.flush():  # none, if the run has been stopped
            self._writer.add_parts(parts)
        return {"writer": self._writer.get_state(), "stitcher": self._converter.get_state()}

    def check_state(self, state: Mapping[str, Any]) -> None:
        self._queue.join()
        self.raise_error()
        self._writer.check_state(state["writer"])

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._queue.join()
        self.raise_error()
        self._writer.set_state(state["writer"])
        self._converter.set_state(state["stitcher"])

    def close(self) -> None:
        if not self._thread.is_alive():
            return
        self._queue.put(None)
        self._thread.join()

    def _finish(self) -> None:
        """Complete the last file, with all that was added before an error."""
        try:
            if self._error is None:
                self._writer.add_parts(self._converter.flush())
        finally:
            self._writer.close()

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            try:
                if item is None:
                    self._finish()
                elif self._error is None:
                    self._writer.add_parts(self._converter.add(*item))
            except Exception as error:  # noqa: BLE001  the run raises it
                logger.error("The recording has ended: %s", error or type(error).__name__)
                self._error = error
            finally:
                self._queue.task_done()
            if item is None:
                return


def join_batches(rollouts: PyTree, number: int) -> PyTree:
    """Return the first train batches of `[n, T, B, ...]` rollouts as one rollout."""
    return jax.tree.map(lambda x: np.asarray(x)[:number].reshape((-1, *x.shape[2:])), rollouts)


def split_rollout(
    rollout: MultiRollout,
    rows: AgentRows,
    *,
    begins_episodes: bool = False,
    env_step: UInt32[np.ndarray, " B"] | None = None,
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
            env_step=env_step,
        )
    return found
