"""Server that simulators connect to: sockets, handshake, limits, and what each message does."""

import asyncio
import contextlib
import dataclasses
import logging
import secrets
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from jaxrl.errors import ConfigError
from jaxrl.external.frames import (
    HEADER,
    MINOR,
    NONCE_BYTES,
    Arrays,
    BusyError,
    FrameError,
    Head,
    Kind,
    Limits,
    LinkError,
    decode_header,
    decode_payload,
    encode,
    is_proof,
    make_proof,
)
from jaxrl.external.spaces import check_array
from jaxrl.runners.external.acting import ActingThread, ActRequest, Answer, PolicyExporter
from jaxrl.runners.external.schema import Schema
from jaxrl.runners.external.sessions import BadPartError, Inbox, Session, Sessions

T = TypeVar("T")

logger = logging.getLogger("jaxrl")

MAX_HANDSHAKES = 32
"""Number of connections in addition to `max_clients` that may be in their handshake."""
MAX_UNSENT_BYTES = 16 * 2**20
"""Bytes that a client may leave unread, beside a policy, before its connection is closed."""
_MAX_AUTH_BYTES = 2**18
_EXPIRE_INTERVAL_S = 0.25
_DRAIN_TIMEOUT_S = 1.0
"""Seconds that clients have to read that the run has ended, and to leave."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Options of a server.

    Args:
        host: Address to listen on.
        port: Port; 0 chooses a free one.
        token: Token that clients must have; empty for none.
        ssl_context: Context of TLS; None is without.
        max_clients: Maximum number of connected clients.
        resume_window_s: Seconds in which a client may return.
        idle_timeout_s: Seconds of silence after which a connection is closed.
        handshake_timeout_s: Seconds for a handshake.
        frame_timeout_s: Seconds from the beginning of a message to its end.
    """

    host: str
    port: int
    token: str = ""
    ssl_context: ssl.SSLContext | None = None
    max_clients: int = 64
    resume_window_s: float = 60.0
    idle_timeout_s: float = 60.0
    handshake_timeout_s: float = 5.0
    frame_timeout_s: float = 30.0


@dataclasses.dataclass(kw_only=True, eq=False)
class _Connection:
    """Connection of a client whose handshake is done."""

    session: Session
    writer: asyncio.StreamWriter


class ExternalServer:
    """Server in a thread of its own, with an event loop.

    Args:
        options: Where to listen, and limits.
        schema: Arrays of a step.
        sessions: Clients, which this thread alone uses.
        inbox: Queue of what is trained on.
        acting: Policy for remote inference.
        policies: Policy for local inference.
        described: Further entries of WELCOME.

    Raises:
        ConfigError: If the address cannot be listened on.
    """

    def __init__(
        self,
        options: ServerOptions,
        schema: Schema,
        sessions: Sessions,
        inbox: Inbox,
        acting: ActingThread,
        policies: PolicyExporter,
        described: Head,
    ) -> None:
        self.options, self._schema, self._sessions = options, schema, sessions
        self._inbox, self._acting, self._policies = inbox, acting, policies
        self.welcome = {**schema.describe(), **described}
        self.connections: dict[Session, _Connection] = {}
        self.num_open = 0
        self._loop = asyncio.new_event_loop()
        self._failure: BaseException | None = None
        self._is_stopped = False
        self.port = 0
        started = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(
            target=self._run, args=(started,), name="jaxrl-external", daemon=True
        )
        self._thread.start()
        started.wait()
        if self._failure is not None:
            self._thread.join()
            raise ConfigError(
                f"external_host={options.host!r} and external_port={options.port} cannot be "
                f"listened on ({self._failure}): choose another port, or 0 for a free one."
            ) from self._failure

    # --- for the training loop's thread ---

    def publish(self, version: int) -> None:
        """Tell all clients that there are new weights."""
        self._call(lambda: self._broadcast(encode(Kind.NEW_VERSION, {"version": version})))

    def grant(self) -> None:
        """Grant credit for the room that training has made in the queue."""
        self._call(self._grant)

    def ask(self, function: Callable[[Sessions], T]) -> T:
        """Call a function with the sessions in the server's thread, and return the result."""

        async def call() -> T:
            return function(self._sessions)

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(timeout=10.0)

    def stop(self) -> None:
        """Tell all clients that the run has ended, and stop; safe to call more than once."""
        if not self._is_stopped:
            self._is_stopped = True
            self._call(self._stop.set)
            self._thread.join()

    def _call(self, function: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function)

    # --- thread ---

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._main(started))
        except BaseException as error:  # noqa: BLE001  (raised where the run waits)
            self._failure = error
            self._inbox.fail(error)
        finally:
            started.set()
            self._loop.close()

    async def _main(self, started: threading.Event) -> None:
        options = self.options
        server = await asyncio.start_server(
            self._accept, options.host, options.port, ssl=options.ssl_context
        )
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        while not self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), _EXPIRE_INTERVAL_S)
            self._sessions.expire_lost(time.monotonic(), options.resume_window_s)
        server.close()
        self._broadcast(encode(Kind.DRAIN, {}))
        tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        # A connection closed with unread input is reset, and the client may lose what it was told.
        if tasks:
            await asyncio.wait(tasks, timeout=_DRAIN_TIMEOUT_S)
        for connection in list(self.connections.values()):
            connection.writer.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session: Session | None = None
        self.num_open += 1
        try:
            session = await asyncio.wait_for(
                self._shake_hands(reader, writer), self.options.handshake_timeout_s
            )
            await self._serve(session, reader, writer)
        except LinkError as error:
            head: Head = {"error": str(error), "closes": True}
            if isinstance(error, BusyError):
                head["is_temporary"] = True
            self._write(writer, Kind.REFUSED, head)
        except (OSError, EOFError, TimeoutError):
            pass  # the connection is lost; the client may return
        except asyncio.CancelledError:
            if not self._stop.is_set():
                raise
        finally:
            self.num_open -= 1
            self._forget(session, writer)
            with contextlib.suppress(OSError):
                writer.close()

    def _forget(self, session: Session | None, writer: asyncio.StreamWriter) -> None:
        """Note that a connection is lost, unless another one has taken its place."""
        if session is None:
            return
        if self._is_current(session, writer):
            del self.connections[session]
            if self._sessions.by_id.get(session.client_id) is session:
                self._sessions.disconnect(session, time.monotonic())

    def _is_current(self, session: Session, writer: asyncio.StreamWriter) -> bool:
        connection = self.connections.get(session)
        return connection is not None and connection.writer is writer

    # --- handshake ---

    async def _shake_hands(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Session:
        options = self.options
        limits = Limits(max_message_bytes=2**17)
        if self.num_open > options.max_clients + MAX_HANDSHAKES:
            raise BusyError("Too many connections are open: try again later.")
        _, hello, _ = await self._read(reader, limits, Kind.HELLO)
        client_id, nonce, minor = hello.get("client_id"), hello.get("nonce"), hello.get("minor")
        if not isinstance(client_id, str) or not 0 < len(client_id) <= limits.max_id_length:
            raise LinkError("HELLO needs a client_id of 1 to 200 characters.")
        if not isinstance(nonce, str) or len(nonce) != 2 * NONCE_BYTES or type(minor) is not int:
            raise LinkError("HELLO needs a nonce of 32 bytes in hexadecimal, and a minor version.")
        minor = min(MINOR, max(0, minor))
        nonces = nonce, secrets.token_hex(NONCE_BYTES)
        needs_token = bool(options.token)
        challenge = {"minor": minor, "nonce": nonces[1], "needs_token": needs_token}
        self._write(writer, Kind.CHALLENGE, challenge)
        # Room for the names of as many episodes as may be open.
        limits = Limits(max_message_bytes=_MAX_AUTH_BYTES, max_head_bytes=_MAX_AUTH_BYTES)
        _, auth, _ = await self._read(reader, limits, Kind.AUTH)
        # Without a token of its own, a server asks for none, and a client's proves nothing.
        token = options.token.encode()
        expected = make_proof(token, "client", client_id, minor, nonces)
        if needs_token and not is_proof(expected, auth.get("proof")):
            raise LinkError("The token is not that of the run: see JAXRL_EXTERNAL_TOKEN.")
        self._check_spaces(auth)
        self._check_room(client_id)
        session = self._sessions.open(client_id, auth)
        if (former := self.connections.pop(session, None)) is not None:
            former.writer.close()
        self.connections[session] = _Connection(session=session, writer=writer)
        self._grant(but=session)
        proof = make_proof(token, "server", client_id, minor, nonces)
        self._write(writer, Kind.WELCOME, {**self._describe(session), "proof": proof})
        return session

    def _check_spaces(self, auth: Head) -> None:
        theirs = auth.get("spaces_hash")
        if theirs is not None and not self._schema.has_spaces(theirs):
            raise LinkError(
                "The simulator's spaces are not those of the run, which has "
                f"observation_space={self._schema.observation!s:.300} and "
                f"action_space={self._schema.action!s:.300}."
            )

    def _check_room(self, client_id: str) -> None:
        known = self._sessions.by_id.get(client_id)
        is_new = known is None or known.lost_at is not None
        if is_new and self._sessions.num_connected >= self.options.max_clients:
            raise LinkError(
                f"max_clients={self.options.max_clients} are connected: raise it in the run's "
                "external(max_clients=...)."
            )

    def _describe(self, session: Session) -> Head:
        limits = self._schema.limits
        return {
            **self.welcome,
            "secret": session.secret,
            "weights_version": self._inbox.version,
            "num_received": session.num_received,
            "max_steps": session.max_steps,
            "limits": {
                "max_message_bytes": limits.max_message_bytes,
                "max_policy_bytes": self._schema.max_policy_bytes,
                "max_parts": limits.max_parts,
                "max_open_episodes": limits.max_open_episodes,
            },
        }

    # --- messages ---

    async def _read(
        self, reader: asyncio.StreamReader, limits: Limits, *kinds: Kind
    ) -> tuple[Kind, Head, Arrays]:
        """Read a message.

        Raises:
            FrameError: If it is none of the protocol, or of another kind.
            TimeoutError: If nothing arrives, or not all of it.
        """
        options = self.options
        header = await asyncio.wait_for(reader.readexactly(HEADER.size), options.idle_timeout_s)
        kind, length = decode_header(header, limits)
        payload = await asyncio.wait_for(reader.readexactly(length), options.frame_timeout_s)
        if kinds and kind not in kinds:
            raise FrameError(f"A message {kind.name} came where {kinds[0].name} was expected.")
        return (kind, *decode_payload(payload, limits))

    async def _serve(
        self, session: Session, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        handlers = {
            Kind.EPISODES: self._handle_episodes,
            Kind.ACT: self._handle_act,
            Kind.GET_POLICY: self._handle_get_policy,
            Kind.PING: self._handle_ping,
        }
        while True:
            kind, head, arrays = await self._read(reader, self._schema.limits)
            if self._stop.is_set():
                continue  # what is not acknowledged stays with the client
            if not self._is_current(session, writer):
                return  # the client has connected again, and sends this again
            if kind == Kind.BYE:
                self._sessions.note_recorded(session, head)
                session.num_recorded = min(session.num_recorded, head.get("num_recorded", 0))
                self._sessions.expire(session)
                self._grant()
                return
            handler = handlers.get(kind)
            if handler is None:
                raise FrameError(f"A client does not send {kind.name}.")
            handler(session, head, arrays)

    def _handle_episodes(self, session: Session, head: Head, arrays: Arrays) -> None:
        refused = self._sessions.receive(session, head, arrays)
        for error in refused:
            self._refuse(session, error, episode_id=error.episode_id)
        self._grant(but=session)
        self._acknowledge(session)

    def _handle_act(self, session: Session, head: Head, arrays: Arrays) -> None:
        request = head.get("request")
        if type(request) is not int:
            raise LinkError("ACT needs the number of its request.")
        try:
            self._sessions.note_recorded(session, head)
            episodes = self._sessions.get_acting(session, head)
            number = len(episodes)
            self._schema.obs_leaves.check(arrays, "", number)
            check_array(arrays, "reward", np.dtype("<f4"), (number,))
            if not np.isfinite(arrays["reward"]).all():
                raise LinkError("ACT has a reward that is not finite.")
        except BadPartError as error:
            return self._refuse(session, error, request=request, episode_id=error.episode_id)
        except LinkError as error:
            return self._refuse(session, error, request=request)
        obs = [arrays[name] for name in self._schema.obs.names]

        def answer(answers: Sequence[Answer]) -> None:
            names = answers[0].arrays
            stacked = {name: np.stack([each.arrays[name] for each in answers]) for name in names}
            version = min(each.version for each in answers)
            frame = encode(Kind.ACTIONS, {"request": request, "version": version}, stacked)
            self._call(lambda: self._send_frame(session, frame))

        self._acting.submit(
            ActRequest(
                episodes=episodes,
                t=head["t"],
                obs=[[leaf[i] for leaf in obs] for i in range(number)],
                reward=arrays["reward"],
                answer=answer,
                fail=self._inbox.fail,
            )
        )
        return None

    def _handle_get_policy(self, session: Session, head: Head, arrays: Arrays) -> None:
        del arrays
        request, has_program = head.get("request"), bool(head.get("has_program"))
        if type(request) is not int:
            raise LinkError("GET_POLICY needs the number of its request.")

        def answer() -> None:
            """Export in a thread that may wait, as tracing takes seconds."""
            try:
                weights = self._acting.wait_for_weights()
                if weights is None:
                    return
                frame = self._policies.make_frame(weights, request, has_program)
            except LinkError as error:
                refusal = error
                self._call(lambda: self._refuse(session, refusal, request=request))
            except Exception as error:  # noqa: BLE001  (the training loop raises it)
                self._inbox.fail(error)
            else:
                self._call(lambda: self._send_frame(session, frame))

        self._loop.run_in_executor(None, answer)

    def _handle_ping(self, session: Session, head: Head, arrays: Arrays) -> None:
        del arrays
        self._sessions.note_recorded(session, head)
        self._sessions.note_open(session, head)
        self._grant()
        self._send(session, Kind.PONG, {})

    def _refuse(self, session: Session, error: LinkError, **about: object) -> None:
        self._send(session, Kind.REFUSED, {"error": str(error), "closes": False, **about})

    # --- writing ---

    def _grant(self, but: Session | None = None) -> None:
        """Grant credit, and tell those clients that got more."""
        for session in self._sessions.grant():
            if session is not but:
                self._acknowledge(session)

    def _acknowledge(self, session: Session) -> None:
        counts = {"num_received": session.num_received, "max_steps": session.max_steps}
        self._send(session, Kind.ACK, counts)

    def _broadcast(self, frame: bytes) -> None:
        for session in list(self.connections):
            self._send_frame(session, frame)

    def _send(self, session: Session, kind: Kind, head: Head) -> None:
        self._send_frame(session, encode(kind, head))

    def _send_frame(self, session: Session, frame: bytes) -> None:
        connection = self.connections.get(session)
        if connection is None:
            return
        transport = connection.writer.transport
        if transport.get_write_buffer_size() > MAX_UNSENT_BYTES + self._schema.max_policy_bytes:
            transport.abort()
        elif not transport.is_closing():
            connection.writer.write(frame)

    @staticmethod
    def _write(writer: asyncio.StreamWriter, kind: Kind, head: Head) -> None:
        if not writer.transport.is_closing():
            writer.write(encode(kind, head))
