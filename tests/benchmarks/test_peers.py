"""Peers: their settings, their processes, and the limits of the machine."""

import dataclasses
import importlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import limits, machine, recurrent, soak
from benchmarks import settings as names
from benchmarks.limits import ARITHMETIC, STEPPING
from benchmarks.machine import ROOT
from benchmarks.offline_rows import write_rows
from benchmarks.peers import (
    gymnasium_worker,
    jaxrl_agents_worker,
    jaxrl_host_worker,
    jaxrl_offline_worker,
    jaxrl_replay_worker,
    jaxrl_team_worker,
    jaxrl_worker,
    launch,
    limits_worker,
)
from benchmarks.peers.jaxrl_multi_worker import JaxrlMultiPeer
from benchmarks.peers.launch import Worker
from benchmarks.report import build_limit_tables
from benchmarks.settings import PeerSetting, Setting, make_host_setting, parse_setting
from jaxrl.bench import peers as installation
from jaxrl.bench.markdown import render_document
from jaxrl.bench.peers import PeerError
from jaxrl.envs import list_multi_envs
from jaxrl.offline.recorded import open_data
from jaxrl.runtime.flops import count_flops

pytestmark = pytest.mark.allow_key_reuse  # a measurement is of the same environments each time
needs_proc = pytest.mark.skipif(not machine.PROC.exists(), reason="memory is read from /proc")

# --- settings ---

REPLAY = {
    f"{part}, {peer}": setting
    for part in names.REPLAY_STEPS
    for peer, setting in names.make_replay_settings(part).items()
}
RECURRENT = {
    f"{part}, {peer}": setting
    for part in recurrent.SUITE.parts
    for peer, setting in recurrent.make_settings(part).items()
}
IN_GRAPH = {text: parse_setting(text) for text in names.DEFAULT_SETTINGS}
OFFLINE, AGENTS = names.make_offline_settings(), names.make_agents_settings(10_000)
TRAININGS = names.make_train_settings(100_000)
PLAY = {"tag": names.PlaySetting(task="tag", num_envs=2, num_steps=3)}
ALL: dict[str, PeerSetting] = {
    **REPLAY,
    **RECURRENT,
    **IN_GRAPH,
    **OFFLINE,
    **AGENTS,
    **TRAININGS,
    **PLAY,
    "host": make_host_setting(),
}


@pytest.mark.parametrize("setting", ALL.values(), ids=ALL)
def test_a_setting_survives_json(setting: PeerSetting) -> None:
    assert type(setting).from_dict(json.loads(json.dumps(setting.to_dict()))) == setting


@pytest.mark.parametrize("text", ["64", "64x", "0x32", "axb", "3x3"])
def test_a_setting_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=text):
        parse_setting(text)


def test_a_measurement_is_of_whole_batches_and_updates() -> None:
    assert parse_setting("64x32", steps=100_000).num_updates == 49
    assert [make_host_setting(steps=steps).env_steps for steps in (1, 5_000)] == [2048, 4096]
    for steps, found in (("dqn", 104), ("sac", 101)):
        settings = names.make_replay_settings(steps, steps=101).values()
        assert {setting.env_steps for setting in settings} == {found}
        assert len({dataclasses.replace(setting, env_steps=1) for setting in settings}) == 1
    slow = names.adapt_to_peer(parse_setting("64x32"), is_slow=True)
    assert slow.env_steps == 10_240


@pytest.mark.parametrize("setting", [*IN_GRAPH.values(), *RECURRENT.values()])
def test_our_ppo_is_its_setting(setting: Setting) -> None:
    config = jaxrl_worker.make_config(setting)
    plan = config.plan()
    assert plan.num_envs == setting.num_envs
    assert (plan.num_epochs, plan.minibatch_size) == (4, setting.minibatch_size)
    model = config.rl_module_settings.model_config
    assert model.get("recurrent_layer_type", None) == setting.memory
    assert len(model["fcnet_hiddens"]) == (1 if setting.memory else 2)


def test_our_other_algorithms_are_their_settings() -> None:
    for setting in REPLAY.values():
        plan = jaxrl_replay_worker.make_config(setting).plan()
        assert plan.num_envs * plan.rollout_fragment_length == setting.steps_per_update
        assert (plan.num_minibatches, plan.minibatch_size) == (1, setting.batch_size)
    for setting in OFFLINE.values():
        config = jaxrl_offline_worker.make_config(setting, "data.npz")
        assert config.plan().train_batch_size == setting.batch_size
        config.validate()
    for setting in TRAININGS.values():
        plan = jaxrl_team_worker.make_config(setting).plan()
        sizes = plan.num_envs, plan.rollout_fragment_length
        assert sizes == (setting.num_envs, setting.num_steps)
    assert {ours for ours, _ in names.TASKS.values()} <= set(list_multi_envs())


@pytest.mark.parametrize(("name", "policies"), [("2 policies", 2), ("8 policies", 8), ("simple_spread", 1)])  # fmt: skip
def test_our_agents_on_the_host_are_their_setting(name: str, policies: int) -> None:
    if name == "simple_spread":
        pytest.importorskip("mpe2")
    config = jaxrl_agents_worker.make_config(AGENTS[name])
    assert (config.plan().num_envs, config.plan().rollout_fragment_length) == (8, 128)
    assert (len(config.policies) if config.policies else 1) == policies


@pytest.mark.parametrize(("num_runners", "envs"), [(0, 8), (2, 4)])
def test_our_ppo_on_the_host_is_the_setting(num_runners: int, envs: int) -> None:
    setting = make_host_setting()
    plan = jaxrl_host_worker.make_ppo_config(setting, num_runners=num_runners).plan()
    assert (plan.envs_per_runner, plan.rollout_fragment_length) == (envs, 256)
    assert (plan.train_batch_size, plan.minibatch_size, plan.num_epochs) == (2048, 128, 4)
    plan = jaxrl_host_worker.make_impala_config(setting, num_runners=2).plan()
    assert (plan.train_batch_size, plan.fragments_per_batch, plan.num_env_runners) == (500, 2, 2)


def test_our_recommendation_is_the_shipped_config() -> None:
    config = jaxrl_worker.load_recommended_config()
    plan = config.plan()
    batch = f"{plan.num_envs} x {plan.rollout_fragment_length}"
    assert names.RECOMMENDATIONS[names.OURS].batch == batch
    assert config.evaluation_settings.evaluation_interval is None


# --- measurements ---


def test_random_play_goes_on_from_run_to_run() -> None:
    peer = JaxrlMultiPeer()
    setting = names.PlaySetting(task="spread", num_envs=4, num_steps=30)
    peer.setup({"setting": setting.to_dict()})
    first, second = peer.run({}), peer.run({})
    assert first["env_steps"] == 120
    assert first["reward_mean"] != second["reward_mean"]
    assert all(-6.0 < run["reward_mean"] < -1.0 for run in (first, second))  # of three agents


def test_gymnasium_alone_steps_as_often_as_it_says() -> None:
    peer = gymnasium_worker.GymnasiumPeer()
    peer.setup({"setting": make_host_setting(steps=2048).to_dict()})
    assert peer.run({})["env_steps"] == 2048


def test_our_reader_has_every_row_on_the_device(tmp_path: Path) -> None:
    path, number = tmp_path / "rows.parquet", 2 * names.EPISODE_LENGTH
    write_rows(path, number)
    reply = jaxrl_offline_worker.JaxrlOfflinePeer().read({"data": str(path)})
    assert reply["num_rows"] == number
    environment = jaxrl_offline_worker.make_config(names.READING, str(path)).environment_settings
    data = open_data(
        str(path),
        observation_space=environment.observation_space,
        action_space=environment.action_space,
    )
    first, second = data.iter_parts()
    rows = names.make_rows(number)
    assert first.truncated
    assert second.truncated
    np.testing.assert_array_equal(first.reward, rows["rewards"][: names.EPISODE_LENGTH])
    np.testing.assert_array_equal(second.action, rows["actions"][names.EPISODE_LENGTH :])


@pytest.mark.slow
def test_our_peers_train_as_many_steps_as_they_say() -> None:
    replay = names.make_replay_settings("dqn", steps=200)[names.REPLAY]
    replay = dataclasses.replace(replay, learning_starts=64, epsilon_steps=100)
    league = dataclasses.replace(names.make_train_settings(2048)["league of 4"], num_envs=4, num_steps=8)  # fmt: skip
    team = jaxrl_team_worker.JaxrlTeamPeer()
    host = jaxrl_host_worker.HostPeer("PPO", 0)
    for peer, setting in (
        (jaxrl_replay_worker.JaxrlReplayPeer(), replay),
        (team, league),
        (host, make_host_setting(steps=2048)),
    ):
        peer.setup({"setting": setting.to_dict()})
        assert peer.run({})["env_steps"] == setting.env_steps
    assert team.opponents == ["first", "main_v1", "main_v2", "main_v3"]
    trained = host.train_for({"seconds": 1e-3})
    assert trained["runners"] == [trained["driver"]]


# --- processes ---


def test_every_peer_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    started: dict[str, tuple[list[str], bool]] = {}

    def worker(name: str, command: list[str], *, env: Any, stop_when_idle: bool) -> None:
        started[name] = (command, stop_when_idle)

    def environment(folder: Path, requirements: Path, tell: Any) -> Path:
        assert requirements.exists()
        return folder / "bin" / "python"

    monkeypatch.setattr(launch, "Worker", worker)
    monkeypatch.setattr(installation, "ensure_environment", environment)
    for name in launch.PEERS:
        launch.start(name, stop_when_idle=True)
    isolate = str(ROOT / ".ci" / "loopback")
    for name, (command, is_stopped) in started.items():
        module = command[command.index("-m") + 1].replace(".", "/")
        assert (ROOT / f"{module}.py").is_file()
        has_ray = launch.PEERS[name].starts_ray
        assert has_ray == is_stopped == (command[0] == isolate)
    assert ".peers/sb3/bin/python" in started[names.SB3][0][0]
    assert started[names.SB3][0][-2:] == ["--threads", "1"]
    assert started[names.OURS][0][0] == sys.executable


FAKE = [sys.executable, str(Path(__file__).with_name("fake_peer.py"))]
ENV = {"PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker("fake", FAKE, env=ENV, stop_when_idle=True) as fake:
        yield fake


def test_a_peer_answers_whatever_it_prints_and_after_errors(worker: Worker) -> None:
    for number in range(2):
        assert worker.ask("echo", number=number) == {"got": {"number": number}}
    assert worker.ask("noisy") == {"quiet": True}
    with pytest.raises(PeerError, match="fake failed in fail: ValueError: the setting is too"):
        worker.ask("fail")
    with pytest.raises(PeerError, match=r"unknown command 'rnu'.*'echo'"):
        worker.ask("rnu")
    assert worker.ask("echo") == {"got": {}}


@needs_proc
def test_an_idle_peer_is_stopped_and_its_memory_is_read(worker: Worker) -> None:
    child = worker.ask("start_child")["child"]
    assert is_soon(child, "T")
    assert worker.ask("echo") == {"got": {}}
    assert child in machine.list_descendants(os.getpid())
    usage = soak.read_usage({"driver": os.getpid(), "runners": [child]})
    assert set(usage) == {"driver", "actor 1", "driver and actors", "Ray's own processes"}
    resident, private = usage["actor 1"]
    assert resident >= private > 1.0
    assert usage["driver and actors"][0] == pytest.approx(usage["driver"][0] + resident)


def test_a_dead_peer_is_named_with_its_last_words(worker: Worker) -> None:
    with pytest.raises(PeerError, match=r"(?s)exit code 3.*out of memory"):
        worker.ask("die")
    with pytest.raises(PeerError):
        worker.ask("echo")


def test_a_peer_that_does_not_answer_is_ended() -> None:
    with (
        Worker("fake", FAKE, env=ENV, timeout_s=0.2) as worker,
        pytest.raises(PeerError, match=r"did not answer hang within 0\.2 s"),
    ):
        worker.ask("hang")


def is_soon(pid: int, state: str) -> bool:
    """Wait for a process to be in a state, a letter as in /proc."""
    end = time.monotonic() + 10.0
    while time.monotonic() < end:
        stat = (machine.PROC / str(pid) / "stat").read_text()
        if stat.rpartition(")")[2].split()[0] == state:
            return True
        time.sleep(0.01)
    return False


# --- limits ---

SMALL = Setting(num_envs=8, num_steps=4, num_updates=1, hidden_size=16)


def test_each_peer_has_the_limits_of_its_network_and_of_its_environment() -> None:
    setting = parse_setting("64x32")
    work = limits.make_request({names.OURS: setting, names.SB3: setting})["work"]
    assert work[names.OURS][ARITHMETIC] == work[names.SB3][ARITHMETIC] == "matmul 512x64x64"
    assert work[names.OURS][STEPPING] == "stepping program CartPole-v1 x64"
    assert work[names.SB3][STEPPING] == "stepping host CartPole-v1 x64"
    host = limits.make_request({names.GYMNASIUM: make_host_setting()})["work"]
    assert host[names.GYMNASIUM][ARITHMETIC] is None
    sac = limits.make_request(names.make_replay_settings("sac"))["work"]
    assert sac[names.PRODUCTS] | {STEPPING: None, ARITHMETIC: "matmul 256x256x256"} == sac[names.PRODUCTS]  # fmt: skip
    shapes = {
        name: limits.get_middle_layer_shape(setting)
        for name, setting in recurrent.make_settings("in_graph").items()
    }
    assert shapes["lstm"] == (32, 64, 256)
    assert shapes["gru"] == (32, 64, 192)


def test_a_share_is_of_the_lower_limit_of_the_same_round() -> None:
    work = {
        "jaxrl": {ARITHMETIC: "matmul", STEPPING: "stepping program"},
        "jaxrl-2x4": {ARITHMETIC: "matmul", STEPPING: "stepping host"},
        "gymnasium": {ARITHMETIC: None, STEPPING: "stepping host"},
    }
    rates = {
        "matmul": [200.0, 100.0, 200.0],
        "stepping program": [50.0, 50.0, 50.0],
        "stepping host": [9.0, 9.0, 9.0],
        "triad": [2e9, 3e9, 4e9],
    }
    flops = {"jaxrl": 10.0, "jaxrl-2x4": 10.0, "gymnasium": None}
    peers = {name: {"steps_per_s": [9.0, 9.0, 9.0]} for name in work}
    peers["jaxrl"] = {"steps_per_s": [10.0, 5.0, 2.0]}
    measured = {"peers": peers, "limits": {"work": work, "flops_per_step": flops, "rates": rates}}
    shares = limits.compute_shares(measured)
    ours, actors = shares["jaxrl"], shares["jaxrl-2x4"]
    assert (ours["limit"], ours["limits"]) == (ARITHMETIC, {ARITHMETIC: 20.0, STEPPING: 50.0})
    assert ours["share"].value == 0.5  # of 10/20, 5/10 and 2/20
    assert (actors["limit"], actors["limits"][STEPPING]) == (STEPPING, 18.0)  # of two processes
    shown, limit = map(render_document, build_limit_tables({"64x32": measured}))
    assert "| 64x32 | jaxrl | 0.0 | 20 | 50 | arithmetic | 0.500 | 0.100 - 0.500 |" in shown
    assert "| triad | 3.0 | 2.0 - 4.0 | GB/s |" in limit
    assert limits.compute_shares({"peers": peers}) == {}


def test_a_probe_is_repeated_until_it_takes_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"now": 0.0}
    monkeypatch.setattr(limits_worker.time, "perf_counter", lambda: clock["now"])

    def repeat(count: int) -> None:
        clock["now"] += 0.001 * count

    probe = limits_worker.Probe(work=5.0, repeat=repeat)
    probe.calibrate(0.2)
    assert probe.count == 200
    assert probe.measure_rate() == pytest.approx(5_000.0)


@pytest.mark.slow
def test_limits_are_measured_as_requested() -> None:
    probes = ("matmul 4x8x4", "triad")
    peer = limits_worker.LimitsPeer(machine_probes=probes, target_s=1e-3, triad_rows=2**12)
    setting = limits.make_request({names.OURS: SMALL, names.SB3: SMALL, names.GYMNASIUM: SMALL})
    reply = peer.setup({"setting": setting})
    rates = peer.run({})["rates"]
    steps = {f"stepping {where} CartPole-v1 x8" for where in ("program", "host")}
    assert set(rates) == {*probes, "matmul 8x16x16", *steps}
    assert all(rate > 0 for rate in rates.values())
    flops = reply["flops_per_step"]
    assert flops[names.OURS] == flops[names.SB3] > 0
    assert flops[names.GYMNASIUM] is None


def test_operations_of_a_step_are_those_of_the_network() -> None:
    """Twice the epochs cost twice as much but for the rollout; products alone are most of it."""
    flops = limits_worker.count_flops_per_step(jaxrl_worker.make_config(SMALL))
    products = 2.0 * 2 * (4 * 16 + 16 * 16) + 2.0 * (16 * 2 + 16)  # one row through both networks
    updates = SMALL.num_epochs * 3 * products
    assert 1.0 < flops / (updates + 2 * products) < 1.8
    x, forth, back = jnp.ones((4, 8)), jnp.ones((8, 16)), jnp.ones((16, 8))
    counted = count_flops(jax.make_jaxpr(lambda x: (x @ forth) @ back)(x))
    count = len(jax.local_devices())
    assert limits_worker.make_product_probe(4, 8, 16).work == counted * count == 2 * 2.0 * 4 * 8 * 16 * count  # fmt: skip


def test_modules_of_peers_in_this_environment_can_be_imported() -> None:
    for peer in launch.PEERS.values():
        if peer.environment is None:
            importlib.import_module(f"benchmarks.peers.{peer.module.split()[0]}")
