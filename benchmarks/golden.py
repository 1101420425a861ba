"""Digests of small runs of every kind, here and at an earlier commit: a change of structure changes none.

`python -m benchmarks.golden` prints a line for each run: a digest of all arrays of the training state after three
iterations, whatever they are called; one of what the results reported; whether a resumed run ends in the
same bytes; and steps per second. `--base REV` runs the same cases with the package of that commit and
lists what differs. Digests are of one machine: XLA's code depends on the processor. A case may also be
the name of a shipped config, such as classic/cartpole-ppo; `--shipped` runs all of them.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np

import jaxrl
from jaxrl.envs import MultiAgentEnv, make_multi_agent
from jaxrl.external import PolicyClient, RunEndedError

ROOT = Path(__file__).parent.parent
SMALL = {"fcnet_hiddens": [16], "head_fcnet_hiddens": []}
ITERATIONS = 3
TIMES = re.compile(
    r"time|seconds|_s$|_s/|per_s|date|hostname|pid|path|dir|throughput|fraction|wait|timers|fps|memory|version"
)


class OwnStep(jaxrl.PPO):
    """PPO whose training step is written by a user."""

    @staticmethod
    def compiled_training_step(flow: Any) -> None:
        flow.update(flow.sample())
        flow.sync_weights()


class OwnStepConfig(jaxrl.PPOConfig):
    """Config of it."""

    algo_class = OwnStep


class Pair(MultiAgentEnv):
    """Two agents on the host that are paid for choosing the sign of what they see."""

    def __init__(self, config: Any = None) -> None:
        del config
        self.agents = self.possible_agents = ["a", "b"]
        super().__init__()
        self.observation_spaces = dict.fromkeys(self.agents, gymnasium.spaces.Box(-1.0, 1.0, (2,)))
        self.action_spaces = dict.fromkeys(self.agents, gymnasium.spaces.Discrete(2))
        self.left = 0
        self.seen: dict[str, np.ndarray] = {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(4, 12))
        return self.observe(), {}

    def step(self, action_dict: Any) -> Any:
        rewards = {m: float((self.seen[m][0] > 0) == action) for m, action in action_dict.items()}
        self.left -= 1
        ended = {"__all__": self.left == 0}
        return self.observe(), rewards, ended, {"__all__": False}, {}

    def observe(self) -> dict[str, np.ndarray]:
        """Draw what each agent sees."""
        self.seen = {m: self.np_random.uniform(-1, 1, 2).astype(np.float32) for m in self.agents}
        return dict(self.seen)


Case = Callable[[Path], Any]
CASES: dict[str, Case] = {}
RAY: set[str] = set()


def case(name: str, *, ray: bool = False) -> Callable[[Case], Case]:
    """Register a function from a folder to a config."""

    def register(make: Case) -> Case:
        CASES[name] = make
        if ray:
            RAY.add(name)
        return make

    return register


def on_policy(algo: str, env: str = "CartPole-v1", **settings: Any) -> Any:
    """Make a config that learns from fresh batches of 64 steps."""
    config: Any = OwnStepConfig() if algo == "OwnStep" else getattr(jaxrl, f"{algo}Config")()
    config.environment(env).env_runners(num_envs_per_env_runner=4)
    given: dict[str, Any] = {
        "train_batch_size": 64,
        "minibatch_size": 32,
        "num_epochs": 2,
        **settings,
    }
    config.training(**{name: x for name, x in given.items() if name in config})
    return finish(config)


def searched(algo: str) -> Any:
    """Make a config whose environments are members of a population."""
    config = on_policy(algo).environment(max_episode_steps=16)
    return config.env_runners(rollout_fragment_length=16)


def replayed(algo: str, env: Any = "CartPole-v1", **settings: Any) -> Any:
    """Make a config that learns from a small replay buffer."""
    config = getattr(jaxrl, f"{algo}Config")()
    config.environment(env).env_runners(num_envs_per_env_runner=4, rollout_fragment_length=4)
    given = {
        "train_batch_size": 16,
        "training_intensity": 4,
        "num_steps_sampled_before_learning_starts": 32,
        "replay_buffer_config": {"type": "uniform", "capacity": 512},
        **settings,
    }
    config.training(**{name: x for name, x in given.items() if name in config})
    return finish(config)


def finish(config: Any) -> Any:
    """Make networks and iterations small."""
    config.rl_module(model_config=dict(SMALL))
    config.reporting(
        min_train_timesteps_per_iteration=0,
        min_sample_timesteps_per_iteration=64,
        min_time_s_per_iteration=0,
    )
    return config.debugging(seed=3, loggers=[])


def recorded(folder: Path, env: str, algo: str, **settings: Any) -> Any:
    """Make a config that learns from rows which PPO recorded."""
    data = folder / "data"
    if not data.exists():
        with on_policy("PPO", env).offline_data(output=str(data)).build() as recording:
            for _ in range(8):
                recording.train()
    config = getattr(jaxrl, f"{algo}Config")().environment(env)
    config.offline_data(input_=str(data), num_updates_per_iteration=4)
    config.training(train_batch_size=32, **settings)
    config.rl_module(model_config=dict(SMALL))
    return config.debugging(seed=3, loggers=[])


def several(config: Any, num_agents: int = 2, *, shared: bool = False) -> Any:
    """Give MultiAgentCartPole's agents a module each, or one."""
    config.environment(config.env, env_config={"num_agents": num_agents})
    if shared:
        return config
    return config.multi_agent(
        policies={f"p{i}" for i in range(num_agents)},
        policy_mapping_fn=lambda agent_id, *args, **kwargs: f"p{agent_id}",
    )


case("ppo")(lambda _: on_policy("PPO"))
case("ppo-continuous")(lambda _: on_policy("PPO", "Pendulum-v1"))
case("ppo-normalized")(
    lambda _: on_policy("PPO").env_runners(
        observation_filter="MeanStdFilter", normalize_rewards=True
    )
)
case("ppo-schedules")(
    lambda _: on_policy(
        "PPO", lr=[[0, 1e-3], [1000, 0.0]], entropy_coeff=[[0, 0.1], [500, 0.0]], grad_clip=0.5
    )
)
case("ppo-lstm")(
    lambda _: on_policy("PPO").rl_module(
        model_config={**SMALL, "use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 8}
    )
)
case("ppo-attention")(
    lambda _: on_policy("PPO").rl_module(
        model_config={**SMALL, "use_attention": True, "attention_dim": 8, "max_seq_len": 8}
    )
)
case("ppo-own-step")(lambda _: on_policy("OwnStep"))
case("a2c")(lambda _: on_policy("A2C"))
case("pqn")(lambda _: on_policy("PQN"))
case("impala")(lambda _: on_policy("IMPALA"))
case("appo")(lambda _: on_policy("APPO"))
case("ppo-rnd")(lambda _: on_policy("PPO", intrinsic_reward="rnd"))
case("es")(lambda _: searched("ES"))
case("ars")(lambda _: searched("ARS"))
case("linucb")(lambda _: on_policy("BanditLinUCB", "LinearBandit-v0").rl_module(model_config={}))
case("lints")(lambda _: on_policy("BanditLinTS", "LinearBandit-v0").rl_module(model_config={}))
case("alphazero")(lambda _: on_policy("AlphaZero", num_simulations=4))
case("alphazero-turns")(
    lambda _: on_policy("AlphaZero", "TicTacToe-v0", num_simulations=4).rl_module(
        model_config={**SMALL, "conv_filters": []}
    )
)
case("muzero")(lambda _: on_policy("MuZero", num_simulations=4))
case("slateq")(lambda _: replayed("SlateQ", "InterestEvolution-v0").rl_module(model_config={}))
case("dreamerv3")(
    lambda _: replayed(
        "DreamerV3", model_size="nano", batch_length_T=8, horizon_H=3, imagination_starts=4
    ).rl_module(model_config={})
)
case("dqn")(lambda _: replayed("DQN"))
case("dqn-prioritized")(
    lambda _: replayed(
        "DQN", n_step=3, replay_buffer_config={"type": "prioritized", "capacity": 512}
    )
)
case("rainbow")(lambda _: replayed("Rainbow"))
case("r2d2")(lambda _: replayed("R2D2", train_batch_size=80, training_intensity=20))
case("sac")(lambda _: replayed("SAC", "Pendulum-v1"))
case("crossq")(
    lambda _: replayed("CrossQ", "Pendulum-v1").rl_module(
        model_config={**SMALL, "critic_use_batchrenorm": True, "critic_fcnet_hiddens": [16]}
    )
)
case("td3")(lambda _: replayed("TD3", "Pendulum-v1"))
case("tqc")(lambda _: replayed("TQC", "Pendulum-v1"))
case("dqn-hindsight")(
    lambda _: replayed(
        "DQN", "BitFlip-v0", replay_buffer_config={"type": "hindsight", "capacity": 512}
    )
)
case("host-ppo")(lambda _: on_policy("PPO").env_runners(placement="host"))
case("host-ppo-gymnasium")(lambda _: on_policy("PPO", "gymnasium:CartPole-v1"))
case("host-ppo-lstm")(
    lambda _: on_policy("PPO", "gymnasium:CartPole-v1").rl_module(
        model_config={**SMALL, "use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 8}
    )
)
case("host-dqn")(lambda _: replayed("DQN", "gymnasium:CartPole-v1"))
case("host-dqn-host-memory")(
    lambda _: replayed(
        "DQN",
        "gymnasium:CartPole-v1",
        replay_buffer_config={"type": "prioritized", "capacity": 512, "storage": "host"},
    )
)
case("host-impala")(lambda _: on_policy("IMPALA", "gymnasium:CartPole-v1"))
case("ray-ppo", ray=True)(
    lambda _: on_policy("PPO", "gymnasium:CartPole-v1").env_runners(
        num_env_runners=2, num_envs_per_env_runner=2
    )
)
case("ray-learners-ppo", ray=True)(
    lambda _: on_policy("PPO", "gymnasium:CartPole-v1").learners(num_learners=2)
)
case("bc")(lambda folder: recorded(folder, "CartPole-v1", "BC"))
case("iql")(lambda folder: recorded(folder, "Pendulum-v1", "IQL"))
case("cql")(lambda folder: recorded(folder, "Pendulum-v1", "CQL"))
case("marwil-host-storage")(
    lambda folder: recorded(folder, "CartPole-v1", "MARWIL").offline_data(dataset_storage="host")
)
case("dqn-recorded")(lambda folder: recorded(folder, "CartPole-v1", "DQN"))


@case("dqn-mixed")
def _(folder: Path) -> Any:
    recorded(folder, "CartPole-v1", "BC")
    config = replayed("DQN")
    return config.offline_data(input_={"sampler": 0.5, str(folder / "data"): 0.5})


@case("host-dqn-mixed")
def _(folder: Path) -> Any:
    recorded(folder, "CartPole-v1", "BC")
    config = replayed("DQN", "gymnasium:CartPole-v1")
    return config.offline_data(input_={"sampler": 0.5, str(folder / "data"): 0.5})


@case("ppo-recording")
def _(folder: Path) -> Any:
    return on_policy("PPO").offline_data(output=str(folder / "output"))


case("agents-ppo")(lambda _: several(on_policy("PPO", "MultiAgentCartPole-v0")))
case("agents-ppo-shared")(lambda _: several(on_policy("PPO", "MultiAgentCartPole-v0"), shared=True))
case("agents-ppo-one")(lambda _: several(on_policy("PPO", "MultiAgentCartPole-v0"), 1, shared=True))
case("agents-dqn")(lambda _: several(replayed("DQN", "MultiAgentCartPole-v0")))
case("agents-turns-ppo")(lambda _: on_policy("PPO", "TicTacToe-v0"))
case("agents-mappo")(lambda _: on_policy("MAPPO", "SimpleSpread-v0"))
case("agents-qmix")(lambda _: replayed("QMIX", "TwoStepAnd-v0"))
case("agents-maddpg")(lambda _: replayed("MADDPG", make_multi_agent("Pendulum-v1")))
case("agents-league")(lambda _: league(on_policy("PPO", "TicTacToe-v0")))
case("host-agents-ppo")(lambda _: paired(on_policy("PPO", "Pair")))
case("host-agents-dqn")(lambda _: paired(replayed("DQN", "Pair")))
case("ray-agents-ppo", ray=True)(
    lambda _: paired(
        on_policy("PPO", "Pair").env_runners(num_env_runners=2, num_envs_per_env_runner=2)
    )
)
case("lanes-ppo")(lambda _: on_policy("PPO", lr=jaxrl.grid([1e-3, 1e-4])).sweep(seeds=2))
case("lanes-dqn")(lambda _: replayed("DQN").sweep(seeds=2))
case("simulator-ppo")(lambda _: simulated())


def paired(config: Any) -> Any:
    """Give each agent of Pair a module."""
    return config.environment(Pair).multi_agent(
        policies={"a", "b"}, policy_mapping_fn=lambda agent_id, *args, **kwargs: agent_id
    )


def league(config: Any) -> Any:
    """Play against versions of the learner and random moves."""
    config.multi_agent(
        policies={"main": None, "random": jaxrl.RandomRLModule},
        policies_to_train=["main"],
        mapping=[{"player_0": "main", "player_1": []}, {"player_0": [], "player_1": "main"}],
        league={"win_rate": 0.5, "least_games": 4},
        policy_map_capacity=2,
    )
    return config


def simulated() -> Any:
    """Learn from one simulator in a thread, in turns with it."""
    config = on_policy("PPO")
    config.environment(
        None,
        observation_space=gymnasium.spaces.Box(-10.0, 10.0, (2,), np.float32),
        action_space=gymnasium.spaces.Discrete(2),
    )
    config.env_runners(placement="external", num_envs_per_env_runner=1)
    return config.external(external_port=0)


def simulate(address: str) -> None:
    """Play a cart on a line until the run ends."""
    rng = np.random.default_rng(0)
    with PolicyClient(address, inference_mode="remote") as client:
        try:
            while True:
                position, speed = rng.uniform(-1.0, 1.0, 2)
                episode = client.start_episode()
                for _ in range(20):
                    action = client.get_action(episode, np.array([position, speed], np.float32))
                    speed = 0.9 * speed + (0.3 if action == 1 else -0.3)
                    position += 0.1 * speed
                    client.log_returns(episode, 1.0 - abs(position))
                obs = np.array([position, speed], np.float32)
                client.end_episode(episode, obs, terminated=False, truncated=True)
        except RunEndedError:
            return


def shipped(name: str) -> Any:
    """Load a shipped config without evaluations, with what a build would measure to decide fixed."""
    from jaxrl.datasets.make import make_missing

    config: Any = jaxrl.load_config(name)
    make_missing(config, lambda text: print(text, file=sys.stderr))
    config.evaluation(evaluation_interval=None).learners(num_devices=1)
    if config.learns and getattr(config, "microbatch_size", None) == "auto":
        config.update_from_dict({"microbatch_size": None})
    return config.debugging(log_sys_usage=False)


def list_shipped() -> list[str]:
    """List the shipped configs but sweeps, and those of actors, whose speed decides what they sample."""
    files = sorted((ROOT / "configs").glob("*/*.yaml"))
    actors = re.compile(r"num_(env_runners|learners): [1-9]")
    return [
        f"{file.parent.name}/{file.stem}"
        for file in files
        if file.parent.name != "sweeps" and not actors.search(file.read_text())
    ]


def list_arrays(tree: Any, path: str = "") -> dict[str, Any]:
    """List the arrays of nested dictionaries by their path."""
    if isinstance(tree, dict):
        found: dict[str, Any] = {}
        for name, value in tree.items():
            found |= list_arrays(value, f"{path}/{name}")
        return found
    return {path: np.asarray(tree)} if hasattr(tree, "dtype") else {}


def digest(arrays: dict[str, Any]) -> str:
    """Digest arrays as a multiset: their names do not count, and neither do empty ones."""
    each = sorted(
        hashlib.sha256(
            f"{x.dtype}{x.shape}".encode() + np.ascontiguousarray(x).tobytes()
        ).hexdigest()
        for x in arrays.values()
        if x.size
    )
    return hashlib.sha256("".join(each).encode()).hexdigest()[:16]


def read_state(algo: Any) -> dict[str, Any]:
    """Return the arrays of a run's state, or of all lanes of a sweep."""
    if hasattr(algo, "lanes"):
        found: dict[str, Any] = {}
        for index in range(len(algo.lanes)):
            with algo.lane(index) as lane:
                found |= {
                    f"{index}/{k}": x
                    for k, x in list_arrays(lane.get_state()["train_state"]).items()
                }
        return found
    return list_arrays(algo.get_state()["train_state"])


def flatten(result: Any, path: str = "") -> dict[str, str]:
    """List what a result reports, without times and places."""
    found: dict[str, str] = {}
    if isinstance(result, dict):
        for name, value in result.items():
            found |= flatten(value, f"{path}/{name}")
        return found
    if {"config", "compile", "system"} & set(path.split("/")) or TIMES.search(path):
        return {}
    return {path: repr(result)}


def run_case(name: str) -> dict[str, Any]:
    """Run one case; return its digests."""
    with tempfile.TemporaryDirectory() as folder:
        config = CASES[name](Path(folder)) if name in CASES else shipped(name)
        config.debugging(loggers=[], results_dir=str(Path(folder) / "runs"))
        reported: list[dict[str, str]] = []
        algo = config.build()
        try:
            if name.startswith("simulator"):
                address = algo.env_runner_group.address
                threading.Thread(target=simulate, args=(address,), daemon=True).start()
            seconds, path = 0.0, ""
            result: dict[str, Any] = {}
            for i in range(ITERATIONS):
                begin = time.perf_counter()
                result = algo.train()
                seconds = time.perf_counter() - begin
                reported.append(flatten(result))
                if i == ITERATIONS - 2:
                    path = (
                        algo.save()
                        if name.startswith("lanes")
                        else algo.save(str(Path(folder) / "saved"))
                    )
            arrays = read_state(algo)
        finally:
            algo.stop()
        steps = (
            result["num_env_steps_sampled_lifetime"] or result["num_env_steps_trained_lifetime"]
        ) / ITERATIONS
        told = json.dumps(reported, sort_keys=True)
        row: dict[str, Any] = {
            "state": digest(arrays),
            "report": hashlib.sha256(told.encode()).hexdigest()[:16],
            "steps_per_s": round(steps / seconds),
            "arrays": {k: digest({k: x}) for k, x in sorted(arrays.items())},
            "results": reported[-1],
        }
        if name.startswith(("lanes", "simulator", "agents-maddpg")):
            return row
        with jaxrl.Algorithm.from_checkpoint(path) as resumed:
            resumed.train()
            row["resumed"] = digest(read_state(resumed))
        return row


def run_here(names: list[str], out: Path) -> None:
    """Run cases with the package on the path, a line of JSON for each."""
    for name in names:
        jax.clear_caches()
        begin = time.perf_counter()
        try:
            row = run_case(name)
        except Exception as error:  # noqa: BLE001  (the others go on)
            row: dict[str, Any] = {"error": f"{type(error).__name__}: {error}"[:500]}
        row["seconds"] = round(time.perf_counter() - begin, 1)
        with out.open("a") as file:
            file.write(json.dumps({"name": name, **row}) + "\n")
        shown = {k: x for k, x in row.items() if k not in ("arrays", "results")}
        print(f"{name:24} {shown}", flush=True)


def compare(before: Path, after: Path) -> int:
    """Print what differs between two files of rows; return the number of cases that differ."""
    old, new = (
        {row["name"]: row for row in map(json.loads, path.read_text().splitlines())}
        for path in (before, after)
    )
    num_changed = 0
    for name, row in new.items():
        base = old.get(name)
        if base is None:
            continue
        changed = [
            key for key in ("state", "report", "resumed", "error") if row.get(key) != base.get(key)
        ]
        ratio = row.get("steps_per_s", 0) / (base.get("steps_per_s") or 1)
        print(
            f"{name:24} {'CHANGED ' + ', '.join(changed) if changed else 'equal'}   steps/s x {ratio:.2f}"
        )
        num_changed += bool(changed)
        for key in ("arrays", "results"):
            a, b = base.get(key, {}), row.get(key, {})
            told = [k for k in sorted(a.keys() & b.keys()) if a[k] != b[k]]
            gone, come = sorted(a.keys() - b.keys()), sorted(b.keys() - a.keys())
            for word, found in (("differs", told), ("gone", gone), ("new", come)):
                if found and changed:
                    print(
                        f"    {key} {word}: {', '.join(found[:12])}{' ...' if len(found) > 12 else ''}"
                    )
    return num_changed


def main() -> None:
    """Run the cases, here and at `--base`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="cases and shipped configs; all cases by default")
    parser.add_argument("--shipped", action="store_true", help="run all shipped configs")
    parser.add_argument("--base", help="commit to compare with")
    parser.add_argument("--against", type=Path, help="file of rows to compare with")
    parser.add_argument("--out", type=Path, help="file to append the rows to")
    parser.add_argument("--ray", action="store_true", help="run the cases with Ray actors too")
    args = parser.parse_args()
    names = (
        args.names
        or (list_shipped() if args.shipped else [])
        or [name for name in CASES if args.ray or name not in RAY]
    )
    with tempfile.TemporaryDirectory() as folder:
        out = args.out or Path(folder) / "after.jsonl"
        against = args.against
        if args.base:
            tree, against = Path(folder) / "tree", Path(folder) / "before.jsonl"
            tree.mkdir()
            archive = subprocess.run(
                ["git", "archive", args.base], cwd=ROOT, stdout=subprocess.PIPE, check=True
            )
            subprocess.run(["tar", "x", "-C", str(tree)], input=archive.stdout, check=True)
            command = [sys.executable, "-P", __file__, *names, "--out", str(against)]
            subprocess.run(
                command, env={**os.environ, "PYTHONPATH": str(tree)}, cwd=folder, check=True
            )
        run_here(names, out)
        if against is not None:
            sys.exit(bool(compare(against, out)))


if __name__ == "__main__":
    main()
