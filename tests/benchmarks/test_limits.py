"""The machine's limits: what is asked for, what a share is, and that probes do what they count."""

import json
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from benchmarks import limits, recurrent, replay_settings
from benchmarks.limits import ARITHMETIC, STEPPING
from benchmarks.peers import jaxrl_worker, launch, limits_worker
from benchmarks.peers.limits_worker import LimitsPeer, Probe
from benchmarks.report import build_limit_tables
from benchmarks.settings import Setting, make_host_setting, parse_setting
from jaxrl.bench.markdown import render_document
from jaxrl.runtime.flops import count_flops

SMALL = Setting(num_envs=8, num_steps=4, num_updates=1, hidden_size=16)


def test_each_peer_has_the_limits_of_its_network_and_of_its_environment() -> None:
    setting = parse_setting("64x32")
    work = limits.make_request({launch.OURS: setting, launch.SB3: setting})["work"]
    assert work[launch.OURS][ARITHMETIC] == work[launch.SB3][ARITHMETIC] == "matmul 512x64x64"
    assert work[launch.OURS][STEPPING] == "stepping program CartPole-v1 x64"
    assert work[launch.SB3][STEPPING] == "stepping host CartPole-v1 x64"
    assert json.loads(json.dumps(work)) == work


def test_what_does_not_learn_or_step_has_one_limit() -> None:
    work = limits.make_request(
        {launch.LOCAL: make_host_setting(), launch.GYMNASIUM: make_host_setting()}
    )["work"]
    assert work[launch.GYMNASIUM][ARITHMETIC] is None
    assert work[launch.LOCAL][ARITHMETIC] == "matmul 128x64x64"
    products = replay_settings.PRODUCTS
    sac = limits.make_request(replay_settings.make_replay_settings("sac"))["work"]
    assert sac[products][STEPPING] is None
    assert sac[products][ARITHMETIC] == "matmul 256x256x256"
    assert sac[replay_settings.OURS][STEPPING] == "stepping program Pendulum-v1 x1"


@pytest.mark.parametrize(
    ("peer", "shape"),
    [("feedforward", (512, 64, 64)), ("lstm", (32, 64, 256)), ("gru", (32, 64, 192))],
)
def test_a_recurrent_layer_has_a_product_for_each_row(
    peer: str, shape: tuple[int, int, int]
) -> None:
    assert limits.get_middle_layer_shape(recurrent.make_settings("in_graph")[peer]) == shape


def measured(**changes: Any) -> dict[str, Any]:
    """One setting: 200 products of 1 operation a second, environments of 50 and of 10 steps."""
    work = {
        "jaxrl": {ARITHMETIC: "matmul", STEPPING: "stepping program"},
        "jaxrl-2x4": {ARITHMETIC: "matmul", STEPPING: "stepping host"},
        "gymnasium": {ARITHMETIC: None, STEPPING: "stepping host"},
    }
    found = {
        "work": work,
        "flops_per_step": {"jaxrl": 10.0, "jaxrl-2x4": 10.0, "gymnasium": None},
        "rates": {
            "matmul": [200.0, 100.0, 200.0],
            "stepping program": [50.0, 50.0, 50.0],
            "stepping host": [9.0, 9.0, 9.0],
        },
        "compile_s": 1.0,
    }
    peers = {
        "jaxrl": {"steps_per_s": [10.0, 5.0, 2.0]},
        "jaxrl-2x4": {"steps_per_s": [9.0, 9.0, 9.0]},
        "gymnasium": {"steps_per_s": [9.0, 9.0, 9.0]},
    }
    return {"peers": peers, "limits": {**found, **changes}}


def test_a_share_is_of_the_lower_limit_of_the_same_round() -> None:
    shares = limits.compute_shares(measured())
    ours = shares["jaxrl"]
    assert (ours["limit"], ours["limits"]) == (ARITHMETIC, {ARITHMETIC: 20.0, STEPPING: 50.0})
    assert ours["share"].value == 0.5  # of 10/20, 5/10 and 2/20
    actors = shares["jaxrl-2x4"]
    assert (actors["limit"], actors["limits"][STEPPING]) == (STEPPING, 18.0)  # of two processes
    assert actors["share"].value == 0.5
    assert shares["gymnasium"]["limits"] == {STEPPING: 9.0}
    assert limits.format_share(ours) == "50 % of arithmetic"
    assert limits.format_share(None) == "-"


def test_without_limits_there_are_no_shares() -> None:
    before = {"peers": measured()["peers"]}
    assert limits.compute_shares(before) == {}
    assert build_limit_tables({"64x32": before}) == []


def test_tables_say_which_limit_it_is() -> None:
    found = measured()
    found["limits"]["rates"]["triad"] = [2e9, 3e9, 4e9]
    shares, machine = map(render_document, build_limit_tables({"64x32": found}))
    assert "| 64x32 | jaxrl | 0.0 | 20 | 50 | arithmetic | 0.500 | 0.100 - 0.500 |" in shares
    assert "| 64x32 | gymnasium | - | - | 9 | stepping | 1.000 |" in shares
    assert "| triad | 3.0 | 2.0 - 4.0 | GB/s |" in machine


def test_a_probe_is_repeated_until_it_takes_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"now": 0.0}
    monkeypatch.setattr(limits_worker.time, "perf_counter", lambda: clock["now"])

    def repeat(count: int) -> None:
        clock["now"] += 0.001 * count

    probe = Probe(work=5.0, repeat=repeat)
    probe.calibrate(0.2)
    assert probe.count == 200
    assert probe.measure_rate() == pytest.approx(5_000.0)


@pytest.mark.slow
@pytest.mark.allow_key_reuse  # a measurement is of the same environments each time
def test_the_peer_measures_what_it_is_asked_for() -> None:
    peer = LimitsPeer(machine_probes=("matmul 4x8x4", "triad"), target_s=1e-3, triad_rows=2**12)
    asked = limits.make_request({launch.OURS: SMALL, launch.SB3: SMALL, launch.GYMNASIUM: SMALL})
    reply = peer.setup({"setting": asked})
    rates = peer.run({})["rates"]
    assert set(rates) == {
        "matmul 4x8x4",
        "triad",
        "matmul 8x16x16",
        "stepping program CartPole-v1 x8",
        "stepping host CartPole-v1 x8",
    }
    assert all(rate > 0 for rate in rates.values())
    flops = reply["flops_per_step"]
    assert flops[launch.OURS] == flops[launch.SB3] > 0
    assert flops[launch.GYMNASIUM] is None
    assert json.loads(json.dumps(reply)) == reply


def test_operations_of_a_step_are_those_of_the_network() -> None:
    """Twice the epochs cost twice as much but for the rollout; products alone are most of it."""
    flops = limits_worker.count_flops_per_step(jaxrl_worker.make_config(SMALL))
    products = 2.0 * 2 * (4 * 16 + 16 * 16) + 2.0 * (16 * 2 + 16)  # one row through both networks
    updates = SMALL.num_epochs * 3 * products
    assert 1.0 < flops / (updates + 2 * products) < 1.8


def test_products_and_environments_are_as_many_as_they_say() -> None:
    count = len(jax.local_devices())
    assert limits_worker.make_product_probe(4, 8, 16).work == 2 * 2.0 * 4 * 8 * 16 * count
    x = jnp.ones((4, 8))
    forth, back = jnp.ones((8, 16)), jnp.ones((16, 8))
    counted = count_flops(jax.make_jaxpr(lambda x: (x @ forth) @ back)(x))
    assert counted == 2 * 2.0 * 4 * 8 * 16
    assert limits_worker.make_stepping_probe("CartPole-v1", 8).work == 8 * limits_worker.CHUNK


def test_an_unknown_probe_is_refused() -> None:
    with pytest.raises(ValueError, match=re.escape("'matmul 3x4'")):
        LimitsPeer()._make_probe("matmul 3x4")
