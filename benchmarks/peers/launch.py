"""Table of the peers, their virtual environments, and their processes."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from benchmarks import settings as names
from benchmarks.machine import PROC, ROOT, list_descendants
from jaxrl.bench.peers import PeerError, prepare_python


class Peer(NamedTuple):
    """Module that runs as a peer.

    Args:
        module: Module of this package, with its arguments.
        environment: Name of the folder in `.peers` with the peer's virtual environment, and of the
            folder in `benchmarks/peers` with its requirements. None runs the peer in the current
            environment.
        starts_ray: Whether the peer starts Ray.
    """

    module: str
    environment: str | None = None
    starts_ray: bool = False


_JAXRL, _HOST = Peer("jaxrl_worker"), Peer("jaxrl_host_worker")
_RLLIB_LOCAL = Peer("rllib.worker --runners 0 --envs 8", "rllib", starts_ray=True)
PEERS = {
    names.OURS: _JAXRL,
    names.HANDWRITTEN: Peer("handwritten_ppo.worker"),
    names.TUNED: Peer("handwritten_ppo.worker --tuned"),
    names.REJAX: Peer("rejax.worker", "rejax"),
    names.LIMITS: Peer("limits_worker"),
    names.LOCAL: _HOST,
    names.REMOTE: Peer("jaxrl_host_worker --runners 2", starts_ray=True),
    names.IMPALA: Peer("jaxrl_host_worker --runners 2 --algorithm IMPALA", starts_ray=True),
    names.GYMNASIUM: Peer("gymnasium_worker"),
    names.SB3: Peer("sb3.worker --threads 1", "sb3"),
    names.SB3_THREADS: Peer("sb3.worker", "sb3"),
    names.RLLIB_LOCAL: _RLLIB_LOCAL,
    **{
        name: Peer(f"rllib.worker --runners 2 --envs {envs}", "rllib", starts_ray=True)
        for name, envs in ((names.RLLIB_2X4, 4), (names.RLLIB_2X8, 8), (names.RLLIB_2X16, 16))
    },
    names.RLLIB_EXTERNAL: Peer("rllib.external_worker", "rllib", starts_ray=True),
    **dict.fromkeys((names.FEEDFORWARD, names.WIDE, names.LSTM, names.GRU, names.LRU), _JAXRL),
    names.HOST_LSTM: _HOST,
    names.RLLIB_LSTM: _RLLIB_LOCAL,
    names.REPLAY: Peer("jaxrl_replay_worker"),
    names.SB3_REPLAY: Peer("sb3.replay_worker --threads 1", "sb3"),
    names.SB3_REPLAY_THREADS: Peer("sb3.replay_worker", "sb3"),
    names.SBX: Peer("sbx.worker", "sbx"),
    names.REJAX_REPLAY: Peer("rejax.replay_worker", "rejax"),
    names.PRODUCTS: Peer("products_worker"),
    names.MULTI: Peer("jaxrl_multi_worker"),
    names.JAXMARL: Peer("jaxmarl.worker", "jaxmarl"),
    names.OURS_GAME: Peer("pgx.worker own", "pgx"),
    names.PGX_ADAPTER: Peer("pgx.worker adapter", "pgx"),
    names.PGX: Peer("pgx.worker pgx", "pgx"),
    names.TEAMS: Peer("jaxrl_team_worker"),
    names.JAXMARL_TRAINS: Peer("jaxmarl.train_worker", "jaxmarl"),
    names.AGENTS: Peer("jaxrl_agents_worker"),
    names.RLLIB_AGENTS: Peer("rllib.multi_worker", "rllib", starts_ray=True),
    names.SB3_PETTINGZOO: Peer("sb3_pettingzoo.worker", "sb3_pettingzoo"),
    names.OFFLINE: Peer("jaxrl_offline_worker"),
    names.HANDWRITTEN_OFFLINE: Peer("handwritten_offline.worker"),
    names.JAX_CORL: Peer("jax_corl.worker"),
    names.DREAMER: Peer("jaxrl_dreamer_worker"),
    names.HANDWRITTEN_DREAMER: Peer("handwritten_dreamer.worker"),
    names.D3RLPY: Peer("d3rlpy.worker --threads 1", "d3rlpy"),
    names.D3RLPY_THREADS: Peer("d3rlpy.worker", "d3rlpy"),
    names.RLLIB_OFFLINE: Peer("rllib.offline_worker --threads 1", "rllib", starts_ray=True),
    names.RLLIB_OFFLINE_THREADS: Peer("rllib.offline_worker", "rllib", starts_ray=True),
}


def start(
    name: str, env: Mapping[str, str] | None = None, *, stop_when_idle: bool = False
) -> Worker:
    """Start the process of a peer, after creating its virtual environment if necessary.

    Args:
        name: Name of the peer.
        env: Environment variables in addition to those of this process.
        stop_when_idle: Whether to stop the process between commands, as in `Worker`; applies only
            to peers that start Ray.
    """
    peer = PEERS[name]
    python = get_python(peer.environment, starts_ray=peer.starts_ray)
    module, *arguments = peer.module.split()
    command = [*python, "-m", f"benchmarks.peers.{module}", *arguments]
    return Worker(name, command, env=env, stop_when_idle=stop_when_idle and peer.starts_ray)


def get_python(environment: str | None, *, starts_ray: bool = False) -> list[str]:
    """Return the command of the interpreter of a peer's virtual environment, created if missing.

    Args:
        environment: Name of the environment; None for the current interpreter.
        starts_ray: Whether the process starts Ray.
    """
    return prepare_python(ROOT / "benchmarks" / "peers", environment, log, starts_ray=starts_ray)


def log(text: str) -> None:
    """Print progress to stderr."""
    print(text, file=sys.stderr, flush=True)


class Worker:
    """Process of a peer, which runs until `close`. Its stderr is kept for error messages.

    Args:
        name: Name of the peer, for messages.
        command: Command line of the process.
        env: Environment variables in addition to those of this process.
        timeout_s: Maximum seconds until a reply.
        stop_when_idle: Whether to stop the process and its descendants between commands, so that
            they do not slow down other peers: an idle Ray uses several percent of a core. Linux
            only.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 900.0,
        stop_when_idle: bool = False,
    ) -> None:
        self.name = name
        self._timeout_s = timeout_s
        self._stop_when_idle = stop_when_idle and PROC.exists()
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed in close)
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            cwd=ROOT,
            env={**os.environ, **(env or {})},
        )

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a command and return the reply.

        Raises:
            PeerError: If the command failed, the peer crashed, or the reply took too long.
        """
        self._signal(signal.SIGCONT)
        reply = self._exchange(command, arguments)
        self._signal(signal.SIGSTOP)
        if "error" in reply:
            raise self._make_error(f"failed in {command}: {reply['error']}")
        return reply["ok"]

    def _exchange(self, command: str, arguments: dict[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            print(json.dumps({"command": command, **arguments}), file=stdin, flush=True)
        except BrokenPipeError:
            raise self._make_error(f"was no longer running before {command}") from None
        if not select.select([stdout], [], [], self._timeout_s)[0]:
            self._process.kill()
            raise self._make_error(f"did not answer {command} within {self._timeout_s:g} s")
        line = stdout.readline()
        if not line:
            raise self._make_error(f"ended during {command}, exit code {self._process.wait()}")
        return json.loads(line)

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and its descendants if idle peers are stopped."""
        if not self._stop_when_idle or self._process.poll() is not None:
            return
        for pid in (self._process.pid, *list_descendants(self._process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def close(self) -> None:
        """End the process if it has not ended."""
        self._signal(signal.SIGCONT)
        if self._process.poll() is None:
            try:
                self._process.communicate('{"command": "quit"}\n', timeout=30)
            except (BrokenPipeError, subprocess.TimeoutExpired):
                self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # input that a dead peer did not read
                    stream.close()
        self._stderr.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _make_error(self, problem: str) -> PeerError:
        self._stderr.seek(0)
        return PeerError(f"the peer {self.name} {problem}", self._stderr.read())
