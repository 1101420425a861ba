"""How each peer is started, and how a peer gets an environment of its own."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping

from benchmarks import recurrent_settings as recurrent
from benchmarks import replay_settings as replay
from benchmarks.worker import ROOT, Worker
from jaxrl.bench.peers import ensure_environment

OURS, HANDWRITTEN, TUNED, REJAX = "jaxrl", "handwritten", "handwritten-tuned", "rejax"
LIMITS = "limits"
"""No peer to be compared with: what the machine can do, measured in turn with the others."""

LOCAL, REMOTE, IMPALA = "jaxrl-local", "jaxrl-2x4", "jaxrl-impala"
GYMNASIUM, SB3, SB3_THREADS = "gymnasium", "sb3", "sb3-threads"
RLLIB_LOCAL, RLLIB_2X4, RLLIB_2X8 = "rllib-local", "rllib-2x4", "rllib-2x8"
RLLIB_2X16 = "rllib-2x16"
PEERS = (OURS, HANDWRITTEN, TUNED, REJAX, SB3)
HOST_PEERS = (LOCAL, REMOTE, GYMNASIUM, SB3, RLLIB_LOCAL, RLLIB_2X4, RLLIB_2X8)
"""Of a name such as 2x4, the first is the number of runners, the second their environments."""
OTHER_HOST_PEERS = (SB3_THREADS,)
"""Measured when they are named."""

ISOLATE = ROOT / ".ci" / "loopback"
"""Runs a command with no network but 127.0.0.1, where the system allows it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Peer:
    """A module to run.

    Args:
        module: With its arguments, for `python -m`.
        environment: The folder of `.peers` and of `benchmarks/peers` with its requirements; None
            runs in this environment.
        starts_ray: Then it gets no network but loopback: Ray asks several addresses where it is.
    """

    module: tuple[str, ...]
    environment: str | None = None
    starts_ray: bool = False


def _jaxrl_host(*arguments: str, starts_ray: bool = True) -> Peer:
    return Peer(module=("benchmarks.peers.jaxrl_host_worker", *arguments), starts_ray=starts_ray)


def _rllib(*arguments: str) -> Peer:
    module = ("benchmarks.peers.rllib.worker", *arguments)
    return Peer(module=module, environment="rllib", starts_ray=True)


_TABLE = {
    OURS: Peer(module=("benchmarks.peers.jaxrl_worker",)),
    HANDWRITTEN: Peer(module=("benchmarks.peers.handwritten_ppo.worker",)),
    TUNED: Peer(module=("benchmarks.peers.handwritten_ppo.worker", "--tuned")),
    REJAX: Peer(module=("benchmarks.peers.rejax.worker",), environment="rejax"),
    LOCAL: _jaxrl_host(starts_ray=False),
    REMOTE: _jaxrl_host("--runners", "2"),
    IMPALA: _jaxrl_host("--runners", "2", "--algorithm", "IMPALA"),
    GYMNASIUM: Peer(module=("benchmarks.peers.gymnasium_worker",)),
    SB3: Peer(module=("benchmarks.peers.sb3.worker", "--threads", "1"), environment="sb3"),
    SB3_THREADS: Peer(module=("benchmarks.peers.sb3.worker",), environment="sb3"),
    RLLIB_LOCAL: _rllib("--runners", "0", "--envs", "8"),
    RLLIB_2X4: _rllib("--runners", "2", "--envs", "4"),
    **dict.fromkeys(recurrent.IN_GRAPH, Peer(module=("benchmarks.peers.jaxrl_worker",))),
    recurrent.HOST_LSTM: _jaxrl_host(starts_ray=False),
    recurrent.RLLIB_LSTM: _rllib("--runners", "0", "--envs", "8"),
    RLLIB_2X8: _rllib("--runners", "2", "--envs", "8"),
    RLLIB_2X16: _rllib("--runners", "2", "--envs", "16"),
    LIMITS: Peer(module=("benchmarks.peers.limits_worker",)),
    replay.OURS: Peer(module=("benchmarks.peers.jaxrl_replay_worker",)),
    replay.SB3: Peer(
        module=("benchmarks.peers.sb3.replay_worker", "--threads", "1"), environment="sb3"
    ),
    replay.SB3_THREADS: Peer(module=("benchmarks.peers.sb3.replay_worker",), environment="sb3"),
    replay.SBX: Peer(module=("benchmarks.peers.sbx.worker",), environment="sbx"),
    replay.REJAX: Peer(module=("benchmarks.peers.rejax.replay_worker",), environment="rejax"),
    replay.PRODUCTS: Peer(module=("benchmarks.peers.products_worker",)),
}


def start(
    name: str, env: Mapping[str, str] | None = None, *, stop_when_idle: bool = False
) -> Worker:
    """The peer's process; makes its environment first if it needs one and has none.

    Args:
        name: Of the peer.
        env: Environment variables beside those of this process.
        stop_when_idle: See `Worker`; of use for peers that start Ray, and for no others.
    """
    peer = _TABLE[name]
    python = python_of(peer.environment)
    prefix = (str(ISOLATE),) if peer.starts_ray else ()
    command = [*prefix, python, "-m", *peer.module]
    return Worker(name, command, env=env, stop_when_idle=stop_when_idle and peer.starts_ray)


def python_of(environment: str | None) -> str:
    """The interpreter of a peer's environment, which is made if there is none; None is this one."""
    if environment is None:
        return sys.executable
    requirements = ROOT / "benchmarks" / "peers" / environment / "requirements.txt"
    return str(ensure_environment(ROOT / ".peers" / environment, requirements, _tell))


def _tell(note: str) -> None:
    print(note, file=sys.stderr, flush=True)
