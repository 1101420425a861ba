"""Processes of an asynchronous vector environment: start and shutdown."""

import contextlib
import signal
import time
from collections.abc import Callable, Generator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import cloudpickle
import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv

from jaxrl.envs.adapters.host_spaces import logger
from jaxrl.errors import EnvError

CLOSE_TIMEOUT_S = 5.0
REAP_TIMEOUT_S = 0.05
"""Time that a process may take to exit after it has closed its pipe."""


class RemoteTraceback(Exception):  # noqa: N818  (the cause of an error)
    """Traceback of an exception in another process, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def start_processes(
    name: str,
    barriers: Sequence[Callable[[], gymnasium.Env[Any, Any]]],
    autoreset_mode: AutoresetMode,
) -> AsyncVectorEnv:
    """Start one process for each barrier, in which its copy is made and stepped.

    Raises:
        EnvError: If the copies cannot be pickled, or the processes do not start.
    """
    dump_for_processes(name, barriers)
    try:
        # Never a fork: JAX has threads by now, whose locks a forked process inherits.
        with block_terminal_signals():
            return AsyncVectorEnv(barriers, context="spawn", autoreset_mode=autoreset_mode)
    except (EOFError, BrokenPipeError, ConnectionResetError, RuntimeError) as error:
        raise make_start_error(name) from error


def dump_for_processes(name: str, value: object) -> bytes:
    """Pickle what the process of a copy is started with.

    Raises:
        EnvError: If it cannot be pickled.
    """
    try:
        return cloudpickle.dumps(value)
    except Exception as error:
        raise EnvError(
            f"{name}: gym_env_vectorize_mode='async' sends the environment's creator to other "
            f"processes, but it cannot be pickled ({error}); use 'sync', or a creator that makes "
            f"its own objects."
        ) from error


def make_start_error(name: str) -> EnvError:
    """Return the error of processes that did not start."""
    return EnvError(
        f"{name}: the processes of gym_env_vectorize_mode='async' did not start; a script "
        f"that trains must do so under `if __name__ == '__main__':`."
    )


@contextlib.contextmanager
def block_terminal_signals() -> Generator[None]:
    """Block a terminal's Ctrl-C and hangup in processes started here: they end when this one does.

    A terminal sends both to all processes of its group; an environment interrupted within a step
    would end the run in the middle of an iteration. The mask of blocked signals is inherited from
    the first instruction on; a signal that arrives meanwhile reaches this process right after.
    """
    blocked_signals = {signal.SIGINT, signal.SIGHUP}
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, blocked_signals)
    try:
        resource_tracker.ensure_running()  # which unblocks SIGINT when it has started
        signal.pthread_sigmask(signal.SIG_BLOCK, blocked_signals)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


def get_processes(vector: VectorEnv[Any, Any, Any]) -> Sequence[BaseProcess]:
    """Return the processes of a vector environment, if it has one for each copy."""
    return vector.processes if isinstance(vector, AsyncVectorEnv) else []


def describe_dead_processes(processes: Sequence[BaseProcess]) -> str:
    """Describe which copies have lost their processes, and how the processes ended."""
    dead: list[str] = []
    time.sleep(REAP_TIMEOUT_S)
    for index, process in enumerate(processes):
        code = process.exitcode
        if code is not None:
            how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
            dead.append(f"vector_index={index} ({how})")
    return (
        f"the process of a copy died: {', '.join(dead)}" if dead else "the process of a copy died"
    )


def close_processes(vector: AsyncVectorEnv) -> None:
    """End the copies' processes, by force if they do not respond."""
    end_processes(vector.parent_pipes, vector.processes)
    vector.closed = True


def end_processes(all_pipes: Sequence[Connection | None], processes: Sequence[BaseProcess]) -> None:
    """Ask processes to close their copies, and end those that do not respond by force."""
    deadline = time.monotonic() + CLOSE_TIMEOUT_S
    pipes = [pipe for pipe in all_pipes if pipe is not None and not pipe.closed]
    for pipe in pipes:
        try:
            pipe.send(("close", None))
        except OSError:
            logger.debug("a process had ended before it was closed", exc_info=True)
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        for end in (process.terminate, process.kill):
            if process.is_alive():
                end()
                process.join(1.0)
    for pipe in pipes:
        pipe.close()
