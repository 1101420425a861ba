"""What the machine can do at most, and the share of it that each peer reaches.

Two limits are told apart, both in environment steps a second:

- *arithmetic*: the rate of float32 matrix products at the shape of the network's middle layer, over
  the operations of one environment step, learning included. Nothing but the products of that layer
  is free of charge in it, so no peer with this network comes near 1.
- *stepping*: the rate of the environment alone, with random actions and no policy.

The lower one is a peer's limit. They are measured by a peer of their own, in turn with the others,
and a share is the median of the shares within a round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks import recurrent_settings as recurrent
from benchmarks import replay_settings as replay
from benchmarks.peers import launch
from benchmarks.replay_settings import ReplaySetting
from benchmarks.settings import Setting
from benchmarks.statistics import Estimate, paired_ratio

LIMITS = launch.LIMITS
ARITHMETIC, STEPPING = "arithmetic", "stepping"
GATES = {None: 1, "lstm": 4, "gru": 3, "lru": 1}
"""Blocks of columns in the product of a recurrent layer."""

NO_ENV = (replay.PRODUCTS,)
NO_LEARNING = (launch.GYMNASIUM,)
NUM_PROCESSES = {launch.REMOTE: 2, launch.RLLIB_2X4: 2, launch.RLLIB_2X8: 2}
"""Processes that step environments, where it is not one."""
ON_HOST = frozenset(
    [
        *launch.HOST_PEERS,
        *launch.OTHER_HOST_PEERS,
        *recurrent.HOST,
        replay.SB3,
        replay.SB3_THREADS,
        replay.SBX,
    ]
)
"""Peers whose environments are gymnasium's."""

AnySetting = Setting | ReplaySetting


def asked(settings: Mapping[str, AnySetting]) -> dict[str, Any]:
    """What the peer of the limits is asked for beside the others, and which figures are whose."""
    work: dict[str, Any] = {}
    for name, setting in settings.items():
        where = "host" if name in ON_HOST else "program"
        steps = None if name in NO_ENV else stepping_probe(where, setting.env, setting.num_envs)
        rows, inputs, outputs = middle_layer(setting)
        product = None if name in NO_LEARNING else product_probe(rows, inputs, outputs)
        work[name] = {
            "kind": "products" if name in NO_ENV else type(setting).__name__,
            "setting": setting.to_dict(),
            ARITHMETIC: product,
            STEPPING: steps,
        }
    return {"work": work}


def middle_layer(setting: AnySetting) -> tuple[int, int, int]:
    """Rows, inputs and outputs of the product of the second layer in one gradient step.

    A recurrent layer has a product for each row of a sequence, as wide as it has gates.
    """
    width = setting.hidden_size
    if isinstance(setting, ReplaySetting):
        return setting.batch_size, width, width
    rows, gates = setting.minibatch_size, GATES[setting.memory]
    if gates > 1:
        rows = max(1, rows // setting.max_seq_len)
    return rows, width, gates * (setting.second_size or width)


def product_probe(rows: int, inputs: int, outputs: int) -> str:
    """The name of a probe, from which the peer knows what to do."""
    return f"matmul {rows}x{inputs}x{outputs}"


def stepping_probe(where: str, env: str, num_envs: int) -> str:
    return f"stepping {where} {env} x{num_envs}"


def shares(measured: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """For each peer of one setting its limits in steps a second, which one counts, and its share.

    Empty where the limits were not measured.
    """
    limits = measured.get("limits")
    if limits is None:
        return {}
    found: dict[str, dict[str, Any]] = {}
    for name, peer in measured["peers"].items():
        rates = dict(_rates(name, limits))
        if not rates:
            continue
        kind = min(rates, key=lambda kind: median(rates[kind]))
        found[name] = {
            "flops_per_step": limits["flops_per_step"].get(name),
            "limits": {kind: median(values) for kind, values in rates.items()},
            "limit": kind,
            "share": paired_ratio(peer["steps_per_s"], rates[kind]),
        }
    return found


def share_in_words(share: Mapping[str, Any] | None) -> str:
    """For a table: "42 % of stepping"."""
    if share is None:
        return "-"
    estimate: Estimate = share["share"]
    return f"{100 * estimate.median:.0f} % of {share['limit']}"


def _rates(name: str, limits: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[float]]]:
    """The limits of a peer, round by round."""
    work = limits["work"][name]
    flops = limits["flops_per_step"].get(name)
    if work[ARITHMETIC] is not None and flops:
        yield ARITHMETIC, [rate / flops for rate in limits["rates"][work[ARITHMETIC]]]
    if work[STEPPING] is not None:
        processes = NUM_PROCESSES.get(name, 1)
        yield STEPPING, [rate * processes for rate in limits["rates"][work[STEPPING]]]
