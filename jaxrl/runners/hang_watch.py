"""Telling of environments that hang in this process, where nothing can end them from outside."""

import logging
import sys
import threading
import time
import weakref
from typing import Self

logger = logging.getLogger("jaxrl")

FIRST = 10.0
"""So many times the limit is allowed the first time, when what acts is compiled."""


class HangWatch:
    """Says where this process is when what is done under it takes too long; once each time.

    Args:
        name: Of the environment.
        limit_s: The setting sample_timeout_s.
    """

    def __init__(self, name: str, limit_s: float) -> None:
        self._name, self._limit_s = name, limit_s
        self._since: float | None = None
        self._place, self._share = 0, FIRST
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._since, self._place = time.monotonic(), threading.get_ident()
        if self._thread is None:
            watch = weakref.ref(self)
            arguments = (watch, self._ended, self._limit_s)
            self._thread = threading.Thread(target=_look, args=arguments, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._since, self._share = None, 1.0

    def look(self) -> None:
        """Say what is to be said now."""
        since = self._since
        if since is None or time.monotonic() - since < self._share * self._limit_s:
            return
        self._since = None  # once is enough
        logger.warning(
            "%s: no fragment within sample_timeout_s=%g seconds, so an environment hangs or is slow, "
            "%s. Nothing can end it from outside of this process: Ctrl-C twice ends the run, which "
            "goes on from its newest checkpoint; with gym_env_vectorize_mode='async' it would be an "
            "error, and with num_env_runners=1 it would be started again.",
            *(self._name, self._limit_s, _where(self._place)),
        )

    def stop(self) -> None:
        """End the watching; may be called twice."""
        self._ended.set()


def _look(watch: "weakref.ref[HangWatch]", ended: threading.Event, limit_s: float) -> None:
    while not ended.wait(min(limit_s / 4, 5.0)):
        alive = watch()
        if alive is None:
            return
        alive.look()


def _where(thread: int) -> str:
    """The line that a thread is at."""
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]
    if frame is None:
        return "at an unknown place"
    return f"at {frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
