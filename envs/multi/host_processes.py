"""Copies of a Python environment of several agents in one process each."""

import multiprocessing
import time
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, NoReturn

import cloudpickle

from jaxrl.core.types import PyTree
from jaxrl.envs.adapters.gym_processes import (
    RemoteTraceback,
    block_terminal_signals,
    describe_dead_processes,
    dump_for_processes,
    end_processes,
    make_start_error,
)
from jaxrl.envs.multi.host_copy import CopySpec, CopyStep, EnvCopy
from jaxrl.errors import EnvError, summarize_exception


class ProcessCopies:
    """Copies in one process each, which take their steps at the same time.

    Args:
        specs: Recipes of the copies.
        timeout_s: Time limit in seconds of a call, None for no limit.

    Raises:
        EnvError: If the copies cannot be pickled, or the processes do not start.
    """

    def __init__(self, specs: Sequence[CopySpec], timeout_s: float | None) -> None:
        first = specs[0]
        self._name = f"{first.made.id} (worker_index={first.context.worker_index})"
        self._timeout_s = timeout_s
        self._has_failed = False
        packed = [dump_for_processes(first.made.id, spec) for spec in specs]
        context = multiprocessing.get_context("spawn")  # never a fork: JAX has threads by now
        self._pipes: list[Connection] = []
        self._processes: list[SpawnProcess] = []
        self._finalizer = weakref.finalize(self, end_processes, self._pipes, self._processes)
        try:
            with block_terminal_signals():
                for spec in packed:
                    own, other = context.Pipe()
                    self._pipes.append(own)
                    process = context.Process(target=_serve, args=(other, spec), daemon=True)
                    process.start()
                    self._processes.append(process)
                    other.close()
            for pipe in self._pipes:
                pipe.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError, RuntimeError) as error:
            self.close()
            raise make_start_error(first.made.id) from error
        except BaseException:
            self.close()
            raise

    def call(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Call a method of copies at the same time; see `Copies`.

        Raises:
            EnvError: If a copy raises it, its process has died, or it does not reply in time.
        """
        if self._has_failed and method == "get_state":
            return dict.fromkeys(arguments)
        if self._has_failed:
            raise EnvError(
                f"{self._name}: an earlier call of its processes failed or was interrupted; build the "
                "run again."
            )
        try:
            for row, own in arguments.items():
                self._pipes[row].send((method, own))
            deadline = None if self._timeout_s is None else time.monotonic() + self._timeout_s
            replies = {row: self._receive(row, deadline) for row in arguments}
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            self._has_failed = True
            raise EnvError(
                f"{self._name}: {describe_dead_processes(self._processes)}; check its output, or use "
                "gym_env_vectorize_mode='sync'."
            ) from error
        except BaseException:
            self._has_failed = True  # replies of other copies may be left in their pipes
            raise
        failures = [value for is_error, value in replies.values() if is_error]
        if failures:
            self._raise(*failures[0])
        return {row: value for row, (_, value) in replies.items()}

    def advance(
        self,
        actions: Mapping[int, Mapping[str, PyTree]],
        on_steps: Callable[[Mapping[int, CopyStep]], None],
    ) -> dict[int, CopyStep]:
        """Take steps and begin episodes in one message each; see `Copies`."""
        steps = self.call("advance", {row: (own,) for row, own in actions.items()})
        on_steps(steps)
        return steps

    def _receive(self, row: int, deadline: float | None) -> tuple[bool, Any]:
        pipe = self._pipes[row]
        if deadline is not None and not pipe.poll(max(0.0, deadline - time.monotonic())):
            raise EnvError(
                f"{self._name}: the process of a copy (vector_index={row}) has not responded within "
                f"sample_timeout_s={self._timeout_s:g} seconds, so its environment hangs; increase "
                "sample_timeout_s if it is only slow."
            )
        return pipe.recv()

    def _raise(self, message: str, trace: str) -> NoReturn:
        self._has_failed = True
        raise EnvError(message) from (RemoteTraceback(trace) if trace else None)

    def get_sub_environments(self) -> list[Any]:
        """Return an empty list, because the environments are in other processes."""
        return []

    def close(self) -> None:
        """Close all copies and end their processes, by force if they do not respond."""
        self._finalizer()


def _serve(pipe: Connection, packed: bytes) -> None:
    """Answer calls of a copy until its pipe is closed, in the copy's own process."""
    copy = EnvCopy(cloudpickle.loads(packed))
    pipe.send(None)
    try:
        while True:
            method, arguments = pipe.recv()
            if method == "close":
                return
            _reply(pipe, method, *_call(copy, method, arguments))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the process that trains has ended
    finally:
        copy.close()


def _call(copy: EnvCopy, method: str, arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    """Return whether a call raised, and its result, or the message and the cause's traceback."""
    try:
        return False, getattr(copy, method)(*arguments)
    except EnvError as error:
        cause = error.__cause__
        trace = "" if cause is None else "".join(traceback.format_exception(cause))
        return True, (str(error), trace)


def _reply(pipe: Connection, method: str, is_error: bool, value: object) -> None:
    try:
        pipe.send((is_error, value))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise
    except Exception as error:  # noqa: BLE001  (what an environment returns may raise anything)
        message = (
            f"What an environment returned from {method} cannot be sent from its process, because it "
            f"cannot be pickled ({summarize_exception(error)}): return plain values in infos, or use "
            "gym_env_vectorize_mode='sync'."
        )
        pipe.send((True, (message, "")))
