"""Limits of the machine, and the share of them that each peer reaches.

There are two limits, both in environment steps per second:

- *arithmetic*: the rate of float32 matrix products with the shape of the network's middle layer,
  divided by the operations of one environment step, including learning. Everything other than the
  products of that layer costs extra time, so no peer with this network comes near 1.
- *stepping*: the rate of the environment alone, with random actions and no policy.

The lower one is a peer's limit. The limits are measured by a separate peer in turn with the others,
and a share is the median of the shares within a round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.settings import (
    GYMNASIUM,
    HOST_LSTM,
    HOST_PEERS,
    OTHER_HOST_PEERS,
    PRODUCTS,
    REMOTE,
    RLLIB_2X4,
    RLLIB_2X8,
    RLLIB_LSTM,
    SB3_REPLAY,
    SB3_REPLAY_THREADS,
    SBX,
    ReplaySetting,
    Setting,
)
from benchmarks.statistics import estimate_ratio

ARITHMETIC, STEPPING = "arithmetic", "stepping"
NUM_GATES = {None: 1, "lstm": 4, "gru": 3, "lru": 1}
"""Number of column blocks in the product of a recurrent layer."""

PEERS_WITHOUT_ENV = (PRODUCTS,)
PEERS_WITHOUT_LEARNING = (GYMNASIUM,)
NUM_PROCESSES = {REMOTE: 2, RLLIB_2X4: 2, RLLIB_2X8: 2}
"""Number of processes that step environments, for peers with more than one."""
HOST_ENV_PEERS = frozenset(
    [
        *HOST_PEERS,
        *OTHER_HOST_PEERS,
        HOST_LSTM,
        RLLIB_LSTM,
        SB3_REPLAY,
        SB3_REPLAY_THREADS,
        SBX,
    ]
)
"""Peers that step gymnasium's environments."""

AnySetting = Setting | ReplaySetting


def make_request(settings: Mapping[str, AnySetting]) -> dict[str, Any]:
    """Return the request to the peer that measures limits: the probes for each other peer."""
    work: dict[str, Any] = {}
    for name, setting in settings.items():
        where = "host" if name in HOST_ENV_PEERS else "program"
        steps = (
            None
            if name in PEERS_WITHOUT_ENV
            else format_stepping_probe(where, setting.env, setting.num_envs)
        )
        rows, inputs, outputs = get_middle_layer_shape(setting)
        product = (
            None if name in PEERS_WITHOUT_LEARNING else format_product_probe(rows, inputs, outputs)
        )
        work[name] = {
            "kind": "products" if name in PEERS_WITHOUT_ENV else type(setting).__name__,
            "setting": setting.to_dict(),
            ARITHMETIC: product,
            STEPPING: steps,
        }
    return {"work": work}


def get_middle_layer_shape(setting: AnySetting) -> tuple[int, int, int]:
    """Return the rows, inputs, and outputs of the second layer's product in one gradient step.

    A recurrent layer has one product per row of a sequence, with one block of columns per gate.
    """
    width = setting.hidden_size
    if isinstance(setting, ReplaySetting):
        return setting.batch_size, width, width
    rows, gates = setting.minibatch_size, NUM_GATES[setting.memory]
    if gates > 1:
        rows = max(1, rows // setting.max_seq_len)
    return rows, width, gates * (setting.second_size or width)


def format_product_probe(rows: int, inputs: int, outputs: int) -> str:
    """Return the name of a probe of matrix products, which the peer parses."""
    return f"matmul {rows}x{inputs}x{outputs}"


def format_stepping_probe(where: str, env: str, num_envs: int) -> str:
    """Return the name of a probe of environments, which the peer parses."""
    return f"stepping {where} {env} x{num_envs}"


def compute_shares(measured: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return each peer's limits in steps per second, the lower one's name, and its share of it.

    Returns:
        Limits and shares by peer, empty if the limits were not measured.
    """
    limits = measured.get("limits")
    if limits is None:
        return {}
    found: dict[str, dict[str, Any]] = {}
    for name, peer in measured["peers"].items():
        rates = dict(_iter_limits(name, limits))
        if not rates:
            continue
        kind = min(rates, key=lambda kind: median(rates[kind]))
        found[name] = {
            "flops_per_step": limits["flops_per_step"].get(name),
            "limits": {kind: median(values) for kind, values in rates.items()},
            "limit": kind,
            "share": estimate_ratio(peer["steps_per_s"], rates[kind]),
        }
    return found


def format_share(share: Mapping[str, Any] | None) -> str:
    """Format a share for a table, as in "42 % of stepping"."""
    if share is None:
        return "-"
    return f"{100 * share['share'].value:.0f} % of {share['limit']}"


def _iter_limits(name: str, limits: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[float]]]:
    """Yield the limits of a peer with their values in each round."""
    work = limits["work"][name]
    flops = limits["flops_per_step"].get(name)
    if work[ARITHMETIC] is not None and flops:
        yield ARITHMETIC, [rate / flops for rate in limits["rates"][work[ARITHMETIC]]]
    if work[STEPPING] is not None:
        processes = NUM_PROCESSES.get(name, 1)
        yield STEPPING, [rate * processes for rate in limits["rates"][work[STEPPING]]]
