"""Recording of what a run samples, to a folder of data to learn from."""

import abc
import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import jax
import numpy as np
from jaxtyping import Int, UInt32

from jaxrl.assembly.assemble import Assembly
from jaxrl.core.struct import replace
from jaxrl.core.types import Key, PyTree, Rollout
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import CheckpointError, DataError
from jaxrl.offline.manifest import read_manifest
from jaxrl.offline.stitch import PartStitcher
from jaxrl.offline.writer import EpisodeWriter
from jaxrl.runners.fragment import Fragment
from jaxrl.training.rollout import ActorState, PolicyStep, make_blank_rollout
from jaxrl.training.train_step import TrainStep

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

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


class Writing(Protocol):
    """Thread or threads that write what they are given, with a state to go back to."""

    def put(self, item: PyTree) -> None:
        """Add an item; raise the error of a thread, if there was one."""
        ...

    def leave_episodes(self) -> None:
        """Cut the open episodes: what is added next does not continue them."""
        ...

    def raise_error(self) -> None:
        """Raise the error of a thread, if there was one."""
        ...

    def get_state(self) -> dict[str, Any]:
        """Write everything, and return what `set_state` needs, as plain data."""
        ...

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise DataError if the files of the time of `get_state` are missing."""
        ...

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go back to the time of `get_state`."""
        ...

    def close(self) -> None:
        """Complete the last files."""
        ...


class Recorder(abc.ABC):
    """Writer of what a run samples, in a thread.

    A full queue blocks the run, and an error of the thread is raised by the next calls. The end of
    the process completes the last file. A run that was restored opens the folder with its first
    rows, so that evaluating a checkpoint changes nothing there.

    Args:
        config: Config of the run, with `output`.
        assembly: Functions of the run.

    Raises:
        DataError: If the folder has other data, or cannot be written.
    """

    def __init__(self, config: "AlgorithmConfig", assembly: Assembly) -> None:
        self._config, self._assembly = config, assembly
        self._seconds = 0.0
        self._opened: tuple[Writing, Callable[[], object]] | None = None
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
    def _start(self) -> Writing:
        """Open the folder and start what writes to it."""

    def _open(self) -> Writing:
        """Return what writes, started on first use and set back to the restored state."""
        if self._opened is None:
            thread = self._start()
            self._opened = thread, weakref.finalize(self, thread.close)
        thread, _ = self._opened
        if self._pending is not None:
            state, self._pending = self._pending, None
            _restore(thread, state)
        return thread

    def _put(self, item: PyTree) -> None:
        began = time.perf_counter()
        self._open().put(item)
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
        return dict(self._open().get_state() if self._pending is None else self._pending)

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
            self._open().leave_episodes()

    def close(self) -> None:
        """Complete the last file; safe to call more than once.

        Raises:
            DataError: If the folder cannot be written.
        """
        if self._opened is not None:
            thread, finalize = self._opened
            finalize()
            thread.raise_error()


class FolderRecorder(Recorder):
    """Recorder of a single agent, to one folder. See `Recorder`."""

    @abc.abstractmethod
    def _make_converter(self, run: str) -> Converter:
        """Return what makes parts of episodes, whose ids begin with the name of the run."""

    def _make_blank_part(self) -> EpisodePart | None:
        """Return a part of zeros with the columns of all parts; None if they are not known."""
        return None

    @property
    def _has_density(self) -> bool:
        """Return whether all recorded actions have the probability in `ACTION_LOGP`."""
        return self._assembly.module.has_density and self._config.env_runners_settings.explore

    def _start(self) -> "WriterThread":
        path = get_output_path(self._config)
        writer = make_writer(self._config, self._assembly, path, has_density=self._has_density)
        try:
            part = self._make_blank_part() if writer.counts.num_steps else None
            if part is not None:
                writer.check_columns(part)
        except BaseException:
            writer.close()
            raise
        # The folder is locked now, so that no other run chooses the same name.
        seed = self._config.debugging_settings.run_seed
        return WriterThread(
            writer, self._make_converter(choose_run_name(self._config.algo_name, seed, path))
        )


class RolloutRecorder(FolderRecorder):
    """Recorder of sampled rollouts, which have the environments' observations.

    Actions are the module's, whose memory is not recorded: modules that learn from the data compute
    their own. See `Recorder`.
    """

    def add(
        self,
        rollout: Rollout,
        env_index: Int[np.ndarray, " B"],
        version: int | Int[np.ndarray, "T B"] = -1,
        env_step: UInt32[np.ndarray, " B"] | None = None,
    ) -> None:
        """Add the next rows of environments.

        Args:
            rollout: Rows `[T, B, ...]` of NumPy arrays, which are not changed afterwards.
            env_index: Index of each column's environment within the run.
            version: Version of the weights that chose the actions.
            env_step: Number of steps of each column's environment before its first row, where rows
                may have been lost before; None if none are.

        Raises:
            DataError: If the folder cannot be written.
        """
        self._put((replace(rollout, carry_in=None), env_index, version, env_step))

    def add_fragments(self, fragments: Sequence[Fragment]) -> None:
        for fragment in sort_by_time(fragments):
            first = np.asarray(fragment.record.env_step[0])
            self.add(fragment.rollout, fragment.env_index, fragment.weights_version, first)

    def _make_converter(self, run: str) -> PartStitcher:
        return PartStitcher(run)

    def _make_blank_part(self) -> EpisodePart:
        return make_untrained_part(self._assembly)


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


def _restore(thread: Writing, state: Mapping[str, Any]) -> None:
    """Set what writes back to a saved state.

    Raises:
        CheckpointError: If the state is invalid.
        DataError: If the files of that time are missing.
    """
    try:
        thread.check_state(state)
        thread.set_state(state)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, DataError):
            raise
        raise CheckpointError(
            f"The state of the recording is damaged in the checkpoint ({error}): leave output out to "
            "continue the run without it."
        ) from error


def get_output_path(config: "AlgorithmConfig") -> Path:
    """Return the folder that a run is recorded to."""
    output = config.offline_data_settings.output
    assert output is not None
    return Path(output).expanduser().absolute()


def make_writer(
    config: "AlgorithmConfig",
    assembly: Assembly,
    path: Path,
    *,
    has_density: bool,
    module_id: str | None = None,
) -> EpisodeWriter:
    """Make the writer of a module's steps.

    Args:
        config: Config of the run.
        assembly: Functions of the module.
        path: Folder.
        has_density: Whether recorded actions have the probability in `ACTION_LOGP`.
        module_id: Id of the module in a run of several agents.
    """
    settings = config.offline_data_settings
    return EpisodeWriter(
        path,
        *assembly.made.spaces,
        env=assembly.made.id,
        algorithm=config.algo_name,
        seed=config.debugging_settings.run_seed,
        module_id=module_id,
        has_density=has_density,
        actions_are_normalized=True,
        max_file_bytes=settings.output_max_file_size,
        max_rows_per_file=settings.output_max_rows_per_file,
    )


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
