"""The suite of algorithms with replay: what peers are asked for, and what the tables say."""

import dataclasses
import json
import math
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import pytest

from benchmarks import replay, speed
from benchmarks import replay_settings as peers
from benchmarks.machine import ROOT
from benchmarks.peers import launch, products_worker
from benchmarks.peers.jaxrl_replay_worker import JaxrlReplayPeer, make_config
from benchmarks.replay_settings import (
    MEASUREMENT_STEPS,
    SETTING_NAMES,
    ReplaySetting,
    make_replay_settings,
)
from jaxrl.bench import peers as installation
from tests.benchmarks.fake_workers import FakeWorker, start_fakes

RATES = {
    peers.OURS: 30_000.0,
    peers.SB3: 1_000.0,
    peers.SB3_THREADS: 1_500.0,
    peers.SBX: 2_500.0,
    peers.REJAX: 20_000.0,
    peers.PRODUCTS: 50_000.0,
}


class FakeReplayWorker(FakeWorker):
    """Makes as many steps as it is asked for."""

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        if command == "setup" and self.name != launch.LIMITS:
            self.env_steps = ReplaySetting.from_dict(arguments["setting"]).env_steps
        return super().ask(command, **arguments)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Record the requests to peers, none of which is started."""
    return start_fakes(monkeypatch, RATES, FakeReplayWorker)


def test_a_run_writes_json_and_the_table_it_prints(
    asked: list[tuple[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert speed.main(["--suite", "replay", "--pairs", "3", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for row in (
        "| dqn | jaxrl-replay / sb3-replay | 30.00 | 30.00 - 30.00 | 3 | at least 15.0: yes |",
        "| dqn | jaxrl-replay / sbx | 12.00 | 12.00 - 12.00 | 3 | at least 15.0: no |",
        "| dqn-4 | jaxrl-replay / rejax-replay | 1.50 | 1.50 - 1.50 | 3 | at least 1.2: yes |",
        "| sac | jaxrl-replay / products | 0.60 | 0.60 - 0.60 | 3 | at least 0.5: yes |",
        f"| sac | products | 0.020 | {MEASUREMENT_STEPS['sac'][peers.PRODUCTS]:,} |",
        f"| dqn | sb3-replay | 4.000 | {MEASUREMENT_STEPS['dqn'][peers.SB3]:,} | 2.00 |",
        "| sac | jaxrl-replay | 1.0 | 2,000,000 | 120,000 | stepping | 0.250 | 0.250 - 0.250 |",
        "| sac | products | 1.0 | 2,000,000 | - | arithmetic | 0.025 | 0.025 - 0.025 |",
    ):
        assert row in printed
    assert (tmp_path / "replay.md").read_text().strip() == printed.strip()
    results = json.loads((tmp_path / "replay.json").read_text())
    assert set(results["throughput"]) == set(SETTING_NAMES)
    for part, measured in results["throughput"].items():
        assert set(measured["peers"]) == set(MEASUREMENT_STEPS[part])
        assert all(len(peer["steps_per_s"]) == 3 for peer in measured["peers"].values())


def test_settings_and_peers_can_be_named(asked: list[tuple[str, str]], tmp_path: Path) -> None:
    options = ["--parts", "dqn,sac", "--peers", f"{peers.OURS},{peers.REJAX}", "--pairs", "1"]
    speed.main(["--suite", "replay", *options, "--out", str(tmp_path)])
    results = json.loads((tmp_path / "replay.json").read_text())["throughput"]
    assert {part: list(measured["peers"]) for part, measured in results.items()} == {
        "dqn": [peers.OURS],
        "sac": [peers.OURS, peers.REJAX],
    }


def test_peers_of_a_setting_differ_in_the_length_of_a_measurement_alone() -> None:
    for name in SETTING_NAMES:
        settings = make_replay_settings(name)
        assert len({dataclasses.replace(s, env_steps=1) for s in settings.values()}) == 1
        assert all(s.env_steps % s.steps_per_update == 0 for s in settings.values())


def test_a_measurement_is_of_whole_updates() -> None:
    assert {s.env_steps for s in make_replay_settings("dqn", steps=101).values()} == {104}
    assert {s.env_steps for s in make_replay_settings("sac", steps=101).values()} == {101}


def test_warming_up_ends_after_the_first_updates() -> None:
    setting = make_replay_settings("dqn")[peers.OURS]
    late = dataclasses.replace(setting, learning_starts=5_000)
    assert late.warmup_steps > late.learning_starts + late.steps_per_update
    assert setting.warmup_steps > setting.epsilon_steps


def test_every_peer_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    started: dict[str, list[str]] = {}

    def worker(name: str, command: list[str], **_: Any) -> None:
        started[name] = command

    def environment(folder: Path, requirements: Path, tell: Any) -> Path:
        assert requirements.exists()
        return folder / "bin" / "python"

    monkeypatch.setattr(launch, "Worker", worker)
    monkeypatch.setattr(installation, "ensure_environment", environment)
    for name in replay.PEERS:
        launch.start(name)
    assert ".peers/sbx/bin/python" in started[peers.SBX][0]
    assert started[peers.OURS][0] == sys.executable
    assert started[peers.SB3][-2:] == ["--threads", "1"]


@pytest.mark.parametrize("name", SETTING_NAMES)
def test_our_config_is_the_setting(name: str) -> None:
    setting = make_replay_settings(name)[peers.OURS]
    plan = make_config(setting).plan()
    assert plan.num_envs == setting.num_envs
    assert plan.num_envs * plan.rollout_fragment_length == setting.steps_per_update
    assert (plan.num_minibatches, plan.minibatch_size) == (1, setting.batch_size)


@pytest.mark.slow
def test_our_peer_trains_as_many_steps_as_it_says() -> None:
    setting = make_replay_settings("dqn", steps=200)[peers.OURS]
    setting = dataclasses.replace(setting, learning_starts=64, epsilon_steps=100)
    peer = JaxrlReplayPeer()
    peer.setup({"setting": setting.to_dict()})
    reply = peer.run({})
    peer.close()
    assert reply["env_steps"] == 200


def test_the_products_are_those_of_the_gradients_of_sac() -> None:
    setting = make_replay_settings("sac")[peers.PRODUCTS]
    networks, batches = products_worker.make_arguments(setting, obs_size=3, action_size=1)
    batch = [rows[0] for rows in batches]
    products = _products(products_worker.compute_update, networks, batch)
    assert products == _products(_linear_sac, networks, batch)
    assert products[256**3] == 16
    assert 2 * sum(size * count for size, count in products.items()) == pytest.approx(
        550e6, rel=0.03
    )


def test_no_product_is_left_out_of_the_loop() -> None:
    """They are of other numbers in each turn, so the loop of 32 has the results of the last."""
    setting = dataclasses.replace(make_replay_settings("sac")[peers.PRODUCTS], hidden_size=8)
    networks, batches = products_worker.make_arguments(setting, obs_size=3, action_size=1)
    looped = jax.jit(lambda *args: products_worker.run_updates(*args, 32))(networks, batches)
    once = products_worker.compute_update(networks, [rows[31 % len(rows)] for rows in batches])
    chex.assert_trees_all_close(looped, once, rtol=1e-4, atol=1e-4)


def _linear_sac(networks: Any, batch: Any) -> Any:
    """Gradients of SAC's losses, with networks of matrices alone and no noise in the actions."""
    inputs, next_inputs = batch

    def critic_loss(critics: Any) -> Any:
        next_obs, policy = next_inputs[:, :3], networks["policy"]
        action = products_worker.forward(policy, next_obs)[-1][:, :1]
        following = jnp.concatenate([next_obs, action], axis=-1)
        target = sum(
            products_worker.forward(target, following)[-1] for target in networks["targets"]
        )
        values = [products_worker.forward(critic, inputs)[-1] for critic in critics]
        return sum(jnp.sum((value - target) ** 2) for value in values)

    def policy_loss(policy: Any) -> Any:
        action = products_worker.forward(policy, inputs[:, :3])[-1][:, :1]
        chosen = jnp.concatenate([inputs[:, :3], action], axis=-1)
        values = [products_worker.forward(critic, chosen)[-1] for critic in networks["critics"]]
        return sum(jnp.sum(value**2) for value in values)

    return jax.grad(critic_loss)(networks["critics"]), jax.grad(policy_loss)(networks["policy"])


def _products(fn: Any, *arguments: Any) -> Counter[int]:
    """Count the matrix products of a function by their number of multiplications."""
    text = jax.jit(fn).lower(*arguments).as_text()
    shapes = re.findall(r"dot_general .*: \(tensor<(.*?)>, tensor<(.*?)>\) -> tensor<(.*?)>", text)
    sizes = [
        math.isqrt(math.prod(int(n) for shape in three for n in shape.split("x")[:-1]))
        for three in shapes  # MK, KN and MN numbers
    ]
    return Counter(sizes)


@pytest.mark.slow
def test_a_quick_run_measures_everything_of_ours(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.speed", "--suite", "replay", "--quick"]
    names = ["--peers", f"{peers.OURS},{peers.PRODUCTS}", "--out", str(tmp_path)]
    subprocess.run([*command, *names], cwd=ROOT, check=True, timeout=500)
    results = json.loads((tmp_path / "replay.json").read_text())
    assert set(results["throughput"]) == set(SETTING_NAMES)
    assert results["throughput"]["sac"]["ratios"][peers.PRODUCTS]["median"] > 0
