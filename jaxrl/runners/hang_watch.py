"""Warnings about what takes long in this process: environments that hang, and streams that stall."""

import abc
import logging
import sys
import threading
import time
import weakref
from typing import Self

logger = logging.getLogger("jaxrl")

FIRST_CALL_FACTOR = 10.0
"""Multiple of the time limit that is allowed for the first call, which compiles the policy."""


class SlowWatch(abc.ABC):
    """Context manager that warns, once, if its block takes too long.

    Args:
        limit_s: Duration in seconds after which it warns.
        first_factor: Multiple of the limit that is allowed for the first block.
    """

    def __init__(self, limit_s: float, first_factor: float = 1.0) -> None:
        self._limit_s = limit_s
        self._since: float | None = None
        self._thread_id, self._factor = 0, first_factor
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @abc.abstractmethod
    def warn(self) -> None:
        """Log the warning; called in the thread that watches."""

    def __enter__(self) -> Self:
        self._since, self._thread_id = time.monotonic(), threading.get_ident()
        if self._thread is None:
            watch = weakref.ref(self)
            arguments = (watch, self._stopped, self._limit_s)
            self._thread = threading.Thread(target=_watch, args=arguments, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._since, self._factor = None, 1.0

    def check(self) -> None:
        """Log a warning if the block has exceeded its limit."""
        since = self._since
        if since is None or time.monotonic() - since < self._factor * self._limit_s:
            return
        self._since = None  # warn only once
        self.warn()

    def stop(self) -> None:
        """Stop the watching thread; safe to call more than once."""
        self._stopped.set()


class HangWatch(SlowWatch):
    """Watch of an environment, that logs the current source line.

    Args:
        name: Name of the environment.
        limit_s: Value of the setting sample_timeout_s.
    """

    def __init__(self, name: str, limit_s: float) -> None:
        super().__init__(limit_s, FIRST_CALL_FACTOR)
        self._name = name

    def warn(self) -> None:
        logger.warning(
            "%s: no fragment within sample_timeout_s=%g seconds, so an environment hangs or is "
            "slow, %s. It cannot be terminated from outside of this process: Ctrl-C twice ends the "
            "run, which can be resumed from its newest checkpoint; with "
            "gym_env_vectorize_mode='async' it would be an error, and with num_env_runners=1 it "
            "would be restarted.",
            *(self._name, self._limit_s, _describe_location(self._thread_id)),
        )


def _watch(watch: "weakref.ref[SlowWatch]", stopped: threading.Event, limit_s: float) -> None:
    while not stopped.wait(min(limit_s / 4, 5.0)):
        alive = watch()
        if alive is None:
            return
        alive.check()


def _describe_location(thread: int) -> str:
    """Return the source line that a thread is executing."""
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]
    if frame is None:
        return "at an unknown place"
    return f"at {frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
