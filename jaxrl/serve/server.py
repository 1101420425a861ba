"""Running of a server: sockets, TLS, signals, and reloads of the policy."""

import asyncio
import contextlib
import logging
import resource
import signal
import socket
import ssl
import threading
from collections.abc import AsyncGenerator, Callable

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from jaxrl.errors import ConfigError, JaxrlError
from jaxrl.serve.app import Message, PolicyApp, Receive, Send
from jaxrl.serve.backend import Backend, Load
from jaxrl.serve.settings import ServeSettings

logger = logging.getLogger(__name__)

BACKLOG = 2048
KEEP_ALIVE_S = 60
HEADER_S = 10.0
"""Seconds from the beginning of a connection, or of a further request on it, to the end of a header."""
GRACE_S = 10
"""Seconds for requests to be answered after a stop."""

_OWN_FILES = 64
"""Number of files that are open beside connections."""
_MAX_FILES = 2**16


class _Connection(HttpToolsProtocol):
    """Connection that ends without a header in time, and that gives way to a new one while it is idle.

    Otherwise, those on which nothing is asked would keep out all that ask: uvicorn counts them, and
    has a time limit for none before its first response.
    """

    _timer: asyncio.TimerHandle | None = None
    _is_in_header = _has_answered = False
    _idle_since = 0.0

    @property
    def _is_idle(self) -> bool:
        return bool(getattr(self.cycle, "response_complete", True))  # None before the first request

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        self._make_room()
        self._wait_for_header()

    def _make_room(self) -> None:
        """Close the connections that were idle for longest, first those that never asked anything."""
        limit = self.limit_concurrency
        while limit is not None and len(self.connections) >= limit:
            others = [
                other
                for other in self.connections
                if isinstance(other, _Connection) and other is not self and other._is_idle
            ]
            if not others:
                return  # all are asking: a further request is answered by 503
            longest = min(others, key=lambda x: (x._has_answered, x._idle_since))
            self.connections.discard(longest)
            longest.transport.abort()

    def _wait_for_header(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEADER_S, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def data_received(self, data: bytes) -> None:
        if self._is_idle:
            self._wait_for_header()
        super().data_received(data)

    def on_message_begin(self) -> None:
        self._is_in_header = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_header = False
        self._stop_waiting()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        self._has_answered, self._idle_since = True, self.loop.time()
        if self._is_in_header:  # of a request that began before this response
            self._wait_for_header()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)


class PolicyServer:
    """HTTP server of a policy.

    Args:
        backend: Policy.
        settings: Settings.
        load: Function that loads the newest policy, in a thread; None if there are no others.
        get_newest: Function that returns the name of the newest policy without loading it; it is
            asked every `follow_interval_s`. None follows nothing.
        follow_interval_s: Seconds between two questions.

    Raises:
        ConfigError: If the certificate and its key cannot be used.
    """

    def __init__(
        self,
        backend: Backend,
        settings: ServeSettings,
        *,
        load: Load | None = None,
        get_newest: Callable[[], str] | None = None,
        follow_interval_s: float = 2.0,
    ) -> None:
        _check_certificate(settings)
        self.app = PolicyApp(backend, settings)
        self._settings = settings
        self._load, self._get_newest = load, get_newest
        self._follow_interval_s = follow_interval_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reloading = threading.Lock()
        self._is_reload_waiting = False
        self._failed_version: str | None = None
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._answer,
                host=settings.host,
                port=settings.port,
                http=_Connection,
                interface="asgi3",
                ws="none",
                loop="asyncio",
                lifespan="on",
                access_log=False,
                log_config=None,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                limit_concurrency=_limit_connections(settings.max_connections),
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=GRACE_S,
                ssl_certfile=settings.certfile,
                ssl_keyfile=settings.keyfile,
            )
        )

    def bind(self) -> socket.socket:
        """Bind the address and return the socket, whose port may have been chosen freely.

        Raises:
            ConfigError: If the address cannot be bound.
        """
        host, port = self._settings.host, self._settings.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # asyncio sends answers at once (TCP_NODELAY) only where the protocol is given.
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((host, port))
            bound.listen(BACKLOG)  # whoever connects from now on is answered
        except OSError as error:
            bound.close()
            raise ConfigError(
                f"{host}:{port} cannot be bound: {error.strerror or error}; give another --host or "
                "--port."
            ) from error
        return bound

    def run(self, bound: socket.socket) -> None:
        """Serve until `stop`, SIGINT or SIGTERM, and close the socket.

        Args:
            bound: Socket that `bind` returned.
        """
        with contextlib.closing(bound):
            self._server.run(sockets=[bound])

    @property
    def is_running(self) -> bool:
        """Return whether requests are answered."""
        return self._server.started and not self._server.should_exit

    def stop(self) -> None:
        """Stop the server from another thread; requests that have arrived are answered."""
        self._server.should_exit = True

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            return await self.app(scope, receive, send)
        await receive()
        async with self._running():
            await send({"type": "lifespan.startup.complete"})
            await receive()
        return await send({"type": "lifespan.shutdown.complete"})

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncGenerator[None]:
        self._loop = loop = asyncio.get_running_loop()
        await self.app.start()
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and self._load is not None:
            loop.add_signal_handler(signal.SIGHUP, self.reload_later)
        following = asyncio.create_task(self._follow()) if self._get_newest else None
        try:
            yield
        finally:
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
            await self.app.stop()

    # --- reloads ---

    def reload_later(self) -> None:
        """Reload the policy in a thread, after the reload that is running."""
        if self._is_reload_waiting:
            return
        self._is_reload_waiting = True
        threading.Thread(target=self.reload, name="jaxrl-reload", daemon=True).start()

    def reload(self) -> bool:
        """Load the newest policy, and serve it from the next batch on.

        A policy that cannot be loaded is logged, and the previous one stays.

        Returns:
            Whether it is served now.
        """
        with self._reloading:
            self._is_reload_waiting = False
            if self._load is None:
                return False
            try:
                backend = self._load(self.app.backend)
            except JaxrlError as error:
                return self._report_failure(str(error))
            except Exception as error:
                logger.exception("a reload failed")
                return self._report_failure(repr(error))

            async def replace() -> None:
                self.app.backend = backend

            assert self._loop is not None
            asyncio.run_coroutine_threadsafe(replace(), self._loop).result()
            self.app.metrics.reloads.labels("success").inc()
            logger.info("serving %s", backend.version)
            return True

    def _report_failure(self, why: str) -> bool:
        self.app.metrics.reloads.labels("failure").inc()
        logger.error("still serving %s: %s", self.app.backend.version, why)
        return False

    async def _follow(self) -> None:
        """Reload whenever there is a newer policy; one that failed is not tried again."""
        assert self._get_newest is not None
        while True:
            await asyncio.sleep(self._follow_interval_s)
            try:
                newest = await asyncio.to_thread(self._get_newest)
            except JaxrlError as error:
                self._report_failure(str(error))
                continue
            if newest not in (self.app.backend.version, self._failed_version):
                is_served = await asyncio.to_thread(self.reload)
                self._failed_version = None if is_served else newest


def _check_certificate(settings: ServeSettings) -> None:
    """Check that the files for TLS, if there are any, are a certificate and its key."""
    if settings.certfile is None:
        return

    def refuse() -> str:
        raise ValueError("the key is protected by a password")

    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(settings.certfile, settings.keyfile, refuse)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"certfile={settings.certfile} and keyfile={settings.keyfile} cannot be used for TLS "
            f"({str(error)[:200]}): give a certificate and its key, both as PEM, without a password."
        ) from error


def _limit_connections(wanted: int) -> int:
    """Return how many connections may be open, after a raise of the limit of open files.

    It is raised further than to their number, as those that still shake hands for TLS do not count.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard > _MAX_FILES:
        allowed = _MAX_FILES if 0 <= soft < _MAX_FILES else soft
    else:
        allowed = hard
    if soft != allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    number = wanted if allowed < 0 else min(wanted, max(2, allowed - _OWN_FILES))
    if number < wanted:
        logger.warning(
            "%d connections are kept open in place of %d, as this process may have %d open files "
            "(ulimit -n).",
            *(number, wanted, allowed),
        )
    return number
