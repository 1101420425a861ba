"""Commands that start the peers, and creation of their virtual environments."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping

from benchmarks import multi_settings as multi
from benchmarks import offline_settings as offline
from benchmarks import replay_settings as replay
from benchmarks.machine import ROOT
from benchmarks.worker import Worker
from jaxrl.bench.peers import prepare_python

OURS, HANDWRITTEN, TUNED, REJAX = "jaxrl", "handwritten", "handwritten-tuned", "rejax"
LIMITS = "limits"
"""Peer that measures the machine's limits, in turn with the others, and is not compared."""

LOCAL, REMOTE, IMPALA = "jaxrl-local", "jaxrl-2x4", "jaxrl-impala"
GYMNASIUM, SB3, SB3_THREADS = "gymnasium", "sb3", "sb3-threads"
RLLIB_LOCAL, RLLIB_2X4, RLLIB_2X8 = "rllib-local", "rllib-2x4", "rllib-2x8"
RLLIB_2X16 = "rllib-2x16"
RLLIB_EXTERNAL = "rllib-external"

FEEDFORWARD, WIDE, LSTM, GRU, LRU = "feedforward", "feedforward-512", "lstm", "gru", "lru"
HOST_LSTM, RLLIB_LSTM = "jaxrl-local-lstm", "rllib-local-lstm"

PEERS = (OURS, HANDWRITTEN, TUNED, REJAX, SB3)
HOST_PEERS = (LOCAL, REMOTE, GYMNASIUM, SB3, RLLIB_LOCAL, RLLIB_2X4, RLLIB_2X8)
"""Peers on the host. In a name such as 2x4, 2 is the number of runners and 4 that of environments
per runner."""
OTHER_HOST_PEERS = (SB3_THREADS,)
"""Peers that are measured only if they are named."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Peer:
    """Module that runs as a peer.

    Args:
        module: Module and arguments for `python -m`.
        environment: Name of the folder in `.peers` with the peer's virtual environment, and of the
            folder in `benchmarks/peers` with its requirements. None runs the peer in the current
            environment.
        starts_ray: Whether the peer starts Ray.
    """

    module: tuple[str, ...]
    environment: str | None = None
    starts_ray: bool = False


def _make_jaxrl_host_peer(*arguments: str, starts_ray: bool = True) -> Peer:
    return Peer(module=("benchmarks.peers.jaxrl_host_worker", *arguments), starts_ray=starts_ray)


def _make_rllib_peer(*arguments: str, worker: str = "worker") -> Peer:
    module = (f"benchmarks.peers.rllib.{worker}", *arguments)
    return Peer(module=module, environment="rllib", starts_ray=True)


_PEERS_BY_NAME = {
    OURS: Peer(module=("benchmarks.peers.jaxrl_worker",)),
    HANDWRITTEN: Peer(module=("benchmarks.peers.handwritten_ppo.worker",)),
    TUNED: Peer(module=("benchmarks.peers.handwritten_ppo.worker", "--tuned")),
    REJAX: Peer(module=("benchmarks.peers.rejax.worker",), environment="rejax"),
    LOCAL: _make_jaxrl_host_peer(starts_ray=False),
    REMOTE: _make_jaxrl_host_peer("--runners", "2"),
    IMPALA: _make_jaxrl_host_peer("--runners", "2", "--algorithm", "IMPALA"),
    GYMNASIUM: Peer(module=("benchmarks.peers.gymnasium_worker",)),
    SB3: Peer(module=("benchmarks.peers.sb3.worker", "--threads", "1"), environment="sb3"),
    SB3_THREADS: Peer(module=("benchmarks.peers.sb3.worker",), environment="sb3"),
    RLLIB_LOCAL: _make_rllib_peer("--runners", "0", "--envs", "8"),
    RLLIB_2X4: _make_rllib_peer("--runners", "2", "--envs", "4"),
    RLLIB_2X8: _make_rllib_peer("--runners", "2", "--envs", "8"),
    RLLIB_2X16: _make_rllib_peer("--runners", "2", "--envs", "16"),
    RLLIB_EXTERNAL: _make_rllib_peer(worker="external_worker"),
    **dict.fromkeys(
        (FEEDFORWARD, WIDE, LSTM, GRU, LRU), Peer(module=("benchmarks.peers.jaxrl_worker",))
    ),
    HOST_LSTM: _make_jaxrl_host_peer(starts_ray=False),
    RLLIB_LSTM: _make_rllib_peer("--runners", "0", "--envs", "8"),
    LIMITS: Peer(module=("benchmarks.peers.limits_worker",)),
    replay.OURS: Peer(module=("benchmarks.peers.jaxrl_replay_worker",)),
    replay.SB3: Peer(
        module=("benchmarks.peers.sb3.replay_worker", "--threads", "1"), environment="sb3"
    ),
    replay.SB3_THREADS: Peer(module=("benchmarks.peers.sb3.replay_worker",), environment="sb3"),
    replay.SBX: Peer(module=("benchmarks.peers.sbx.worker",), environment="sbx"),
    replay.REJAX: Peer(module=("benchmarks.peers.rejax.replay_worker",), environment="rejax"),
    replay.PRODUCTS: Peer(module=("benchmarks.peers.products_worker",)),
    multi.OURS: Peer(module=("benchmarks.peers.jaxrl_multi_worker",)),
    multi.JAXMARL: Peer(module=("benchmarks.peers.jaxmarl.worker",), environment="jaxmarl"),
    **{
        name: Peer(module=("benchmarks.peers.pgx.worker", game), environment="pgx")
        for name, game in (
            (multi.OURS_GAME, "own"),
            (multi.PGX_ADAPTER, "adapter"),
            (multi.PGX, "pgx"),
        )
    },
    multi.OURS_TRAINS: Peer(module=("benchmarks.peers.jaxrl_team_worker",)),
    multi.JAXMARL_TRAINS: Peer(
        module=("benchmarks.peers.jaxmarl.train_worker",), environment="jaxmarl"
    ),
    multi.OURS_HOST: Peer(module=("benchmarks.peers.jaxrl_agents_worker",)),
    multi.RLLIB_HOST: _make_rllib_peer(worker="multi_worker"),
    multi.SB3_HOST: Peer(
        module=("benchmarks.peers.sb3_pettingzoo.worker",), environment="sb3_pettingzoo"
    ),
    offline.OURS: Peer(module=("benchmarks.peers.jaxrl_offline_worker",)),
    offline.HANDWRITTEN: Peer(module=("benchmarks.peers.handwritten_offline.worker",)),
    offline.JAX_CORL: Peer(module=("benchmarks.peers.jax_corl.worker",)),
    offline.D3RLPY: Peer(
        module=("benchmarks.peers.d3rlpy.worker", "--threads", "1"), environment="d3rlpy"
    ),
    offline.D3RLPY_THREADS: Peer(module=("benchmarks.peers.d3rlpy.worker",), environment="d3rlpy"),
    offline.RLLIB: _make_rllib_peer("--threads", "1", worker="offline_worker"),
    offline.RLLIB_THREADS: _make_rllib_peer(worker="offline_worker"),
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
    peer = _PEERS_BY_NAME[name]
    python = get_python(peer.environment, starts_ray=peer.starts_ray)
    command = [*python, "-m", *peer.module]
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
