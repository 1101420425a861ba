"""The table of bad input: what is wrong, how it is met, and what must be said."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl import Algorithm, DQNConfig, DreamerV3Config, PPOConfig, RLModule, SACConfig
from jaxrl.config import get_algorithm_config
from jaxrl.core.types import Columns
from jaxrl.envs.classic.cartpole import CartPole


class TextObservations(CartPole):
    """Observes words."""

    def observation_space(self, params: Any) -> Any:
        return spaces.Text(5)


class DoubleActions(CartPole):
    """Takes actions of twice the precision."""

    def action_space(self, params: Any) -> Any:
        return spaces.Box(-1.0, 1.0, (1,), np.float64)


class VectorReward(CartPole):
    """Breaks the contract."""

    def step(self, key: Any, state: Any, action: Any, params: Any) -> Any:
        state, step = super().step(key, state, action, params)
        return state, dataclasses.replace(step, reward=jnp.ones((1,), jnp.float32))


class ThreeLogits(RLModule):
    """Gives three numbers where CartPole has two actions."""

    width = 3
    values = True

    def init(self, key: Any) -> Any:
        return {"w": jnp.zeros((4, self.width))}

    def _forward(self, params: Any, obs: Any) -> dict[str, Any]:
        out = {Columns.ACTION_DIST_INPUTS: obs @ params["w"]}
        return {**out, Columns.VF_PREDS: obs[..., 0]} if self.values else out


class NoValues(ThreeLogits):
    """Fits the actions, but has no value function, which PPO needs."""

    width = 2
    values = False


def three_arguments(algorithm: Any, workers: Any, more: Any) -> dict[str, Any]:
    return {}


@dataclasses.dataclass(frozen=True)
class Given:
    """Objects that a case may use; `checkpoint` is its own copy."""

    algorithm: Algorithm
    checkpoint: Path
    of_another_algorithm: Path
    folder: Path

    @property
    def file(self) -> Path:
        """Something that is no folder."""
        path = self.folder / "file"
        path.write_text("")
        return path


@dataclasses.dataclass(frozen=True)
class Case:
    """Mistake, the ways to make it in Python and on the command line, and the words of its error."""

    name: str
    make: Callable[[Given], Any]
    words: tuple[str, ...]
    command: Callable[[Given], list[str]] | None = None


def build(env: Any = "CartPole-v1", **settings: Any) -> Algorithm:
    return PPOConfig().environment(env).update_from_dict(settings).build()


def train(env: str = "CartPole-v1", algo: str = "PPO", **settings: Any) -> list[str]:
    return ["train", "--algo", algo, "--env", env, "--config", json.dumps(settings)]


def setting(name: str, words: tuple[str, ...], **settings: Any) -> Case:
    """A case of settings that are plain data."""
    return Case(name, lambda _: build(**settings), words, lambda _: train(**settings))


def replaying(name: str, words: tuple[str, ...], **settings: Any) -> Case:
    """A case of settings of DQN."""
    return Case(
        name,
        lambda _: DQNConfig().environment("CartPole-v1").update_from_dict(settings).build(),
        words,
        lambda _: train(algo="DQN", **settings),
    )


def damaged(damage: Callable[[Path], None]) -> Callable[[Given], Path]:
    def checkpoint(given: Given) -> Path:
        damage(given.checkpoint)
        return given.checkpoint

    return checkpoint


def saved(name: str, damage: Callable[[Path], None], words: tuple[str, ...]) -> Case:
    """A case of a checkpoint that something happened to."""
    path = damaged(damage)
    return Case(
        name,
        lambda given: Algorithm.from_checkpoint(path(given)),
        words,
        lambda given: ["evaluate", str(path(given))],
    )


def truncate(checkpoint: Path) -> None:
    files = [path for path in (checkpoint / "state").rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])


def cut_metadata(checkpoint: Path) -> None:
    file = checkpoint / "metadata" / "metadata"
    file.write_text(file.read_text()[:200])


def edit_metadata(**changes: Any) -> Callable[[Path], None]:
    def edit(checkpoint: Path) -> None:
        file = checkpoint / "metadata" / "metadata"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return edit


def yaml_file(given: Given) -> Path:
    path = given.folder / "bad.yaml"
    path.write_text("x:\n  run: PPO\n  env: CartPole-v1\n  config:\n    clip_parm: 0.2\n")
    return path


def experiment(given: Given) -> Any:
    from jaxrl.config.load import load_experiment

    return load_experiment(yaml_file(given))


CASES = [
    # unknown names
    setting("unknown setting", ("'clip_parm'", "Did you mean 'clip_param'?"), clip_parm=0.2),
    setting(
        "unknown model setting",
        ("'fcnet_hidens'", "Did you mean 'fcnet_hiddens'?"),
        model_config={"fcnet_hidens": [8]},
    ),
    setting(
        "unknown parameter of the environment",
        ("gravty", "Did you mean 'gravity'?"),
        env_config={"gravty": 1.0},
    ),
    Case(
        "unknown environment",
        lambda _: build("CartPol-v1"),
        ("'CartPol-v1'", "Did you mean 'CartPole-v1'?"),
        lambda _: train("CartPol-v1"),
    ),
    Case(
        "environment that runs on the host",
        lambda _: build("Blackjack-v1", placement="in_graph"),
        ("placement='in_graph'", "Blackjack-v1", "runs on the host", "placement='auto'"),
        lambda _: train("Blackjack-v1", placement="in_graph"),
    ),
    Case(
        "no environment",
        lambda _: PPOConfig().build(),
        ("env is not set", "CartPole-v1"),
    ),
    Case(
        "unknown algorithm",
        lambda _: get_algorithm_config("PP0"),
        ("'PP0'", "Did you mean 'PPO'?"),
        lambda _: ["train", "--algo", "PP0", "--env", "CartPole-v1"],
    ),
    Case(
        "unknown stop criterion",
        lambda given: given.algorithm.fit({"training_iteratio": 3}),
        ("'training_iteratio'", "Did you mean 'training_iteration'?"),
        lambda _: [*train(), "--stop", '{"training_iteratio": 3}'],
    ),
    Case(
        "unknown setting in a file",
        experiment,
        ("bad.yaml, line 5", "Did you mean 'clip_param'?"),
        lambda given: ["train", "file", str(yaml_file(given))],
    ),
    Case(
        "hook that nothing can call here",
        lambda _: PPOConfig().callbacks(on_episode_step=print).build("CartPole-v1"),
        ("'on_episode_step'", "inside the compiled program", "on_episode_end", "placement='host'"),
    ),
    # wrong type or range
    setting("wrong type", ("lr", "must be a number", "'3e-4'"), lr="3e-4"),
    setting("wrong range", ("gamma", "must be between 0 and 1", "1.5"), gamma=1.5),
    setting(
        "wrong word",
        ("observation_filter", "Did you mean 'MeanStdFilter'?"),
        observation_filter="MeanStdFiltr",
    ),
    setting("what this version has not", ("'num_gpus_per_env_runner'",), num_gpus_per_env_runner=1),
    Case(
        "evaluation function of three arguments",
        lambda _: PPOConfig().evaluation(custom_evaluation_function=three_arguments),
        ("custom_evaluation_function", "(algorithm, eval_workers)", "three_arguments"),
    ),
    # sizes
    setting(
        "minibatch larger than the batch",
        ("train_batch_size=400", "minibatch_size=512 is more than", "minibatch_size to 400"),
        train_batch_size=400,
        minibatch_size=512,
    ),
    setting(
        "environments times steps",
        (
            "4096 is not a multiple of",
            "=16 x rollout_fragment_length=100 = 1600",
            "to 3200 or 4800",
        ),
        train_batch_size=4096,
        num_envs_per_env_runner=16,
        rollout_fragment_length=100,
    ),
    setting(
        "indivisible shards",
        ("num_envs_per_env_runner=12", "num_shards=8"),
        num_envs_per_env_runner=12,
        num_shards=8,
        train_batch_size=1200,
    ),
    setting(
        "devices that do not divide the shards",
        ("num_devices=3", "must divide num_shards"),
        num_devices=3,
    ),
    setting(
        "more than fits in memory",
        ("train_batch_size=1048576", "needs at least", "GiB", "lower train_batch_size"),
        num_envs_per_env_runner=2**10,
        train_batch_size=2**20,
        minibatch_size=2**10,
    ),
    setting(
        "more rows than can be numbered",
        ("train_batch_size must be at least 1 and at most", f"{2**34}"),
        num_envs_per_env_runner=2**20,
        train_batch_size=2**34,
        minibatch_size=2**20,
    ),
    # replay
    replaying(
        "buffer of more than half of the memory",
        ("replay_buffer_config['capacity']=1000000", "MiB", "max_buffer_bytes='auto'", "32.00 MiB"),
        replay_buffer_config={"capacity": 10**6},
    ),
    replaying(
        "buffer of more than was allowed",
        ("['capacity']=1000 needs", "max_buffer_bytes=32768", "set the capacity to at most 558,"),
        replay_buffer_config={"capacity": 1000},
        num_steps_sampled_before_learning_starts=100,
        max_buffer_bytes=2**15,
    ),
    replaying(
        "unknown setting of the buffer",
        ("'capacty'", "Did you mean 'capacity'?"),
        replay_buffer_config={"capacty": 1000},
    ),
    replaying(
        "ratio of updates that is not whole",
        ("training_intensity=5.0", "rollout_fragment_length to 32"),
        training_intensity=5.0,
        rollout_fragment_length=4,
    ),
    replaying(
        "buffer in host memory for an environment in the program",
        ("replay_buffer_config['storage']='host'", "placement='host'"),
        replay_buffer_config={"storage": "host"},
    ),
    # spaces and modules
    Case(
        "unsupported observation space",
        lambda _: build(TextObservations),
        ("observation_space", "Text", "supported are Box"),
        lambda _: train("tests.bad_input_cases:TextObservations"),
    ),
    Case(
        "unsupported action space",
        lambda _: build(DoubleActions),
        ("action_space", "must be float32", "float64"),
        lambda _: train("tests.bad_input_cases:DoubleActions"),
    ),
    Case(
        "environment that breaks the contract",
        lambda _: build(VectorReward),
        ("the reward must be one number", "float32 of shape (1,)"),
    ),
    Case(
        "declared space that is not the environment's",
        lambda _: build(action_space=spaces.Discrete(3)),
        ("action_space is declared as Discrete(3)", "Discrete(2)"),
    ),
    Case(
        "module whose output does not fit the action space",
        lambda _: build(rl_module_spec=ThreeLogits),
        ("ThreeLogits", "(3, 3)", "(3, 2)", "Discrete(2) needs 2 numbers"),
    ),
    Case(
        "module without the values that are needed",
        lambda _: build(rl_module_spec=NoValues),
        ("NoValues", "'vf_preds'"),
    ),
    *(
        Case(
            f"module of another algorithm's class for {config.algo_name}",
            lambda _, config=config: (
                config().environment("CartPole-v1").rl_module(rl_module_spec=NoValues).build()
            ),
            ("module_class=NoValues is no subclass of", f"which {config.algo_name} trains"),
        )
        for config in (DQNConfig, SACConfig, DreamerV3Config)
    ),
    setting(
        "evaluation in another kind of environment",
        ("evaluation_config", "Pendulum-v1", "observation space", "same spaces"),
        evaluation_config={"env": "Pendulum-v1"},
    ),
    # observations from outside
    Case(
        "observation of another shape",
        lambda given: given.algorithm.compute_single_action([0.0, 0.0, 0.0]),
        ("obs has shape (3,)", "(4,)"),
    ),
    Case(
        "observation outside its space",
        lambda given: given.algorithm.compute_single_action([7.0, 0.0, 0.0, 0.0]),
        ("obs[0] is 7", "bounds [-4.8, 4.8]"),
    ),
    Case(
        "observation that is no number",
        lambda given: given.algorithm.compute_actions([[0.0, 0.0, np.nan, 0.0]]),
        ("obs has NaN at (2,)",),
    ),
    # folders
    Case(
        "results folder that cannot be written",
        lambda given: build(results_dir=str(given.file / "x")),
        ("results_dir", "not a folder"),
        lambda given: [*train(), "--results-dir", str(given.file / "x")],
    ),
    Case(
        "run name that is no folder's",
        lambda _: build(run_name="a/b"),
        ("'a/b'", "is not a valid folder name"),
        lambda _: [*train(), "--name", "a/b"],
    ),
    Case(
        "checkpoint folder that cannot be written",
        lambda given: given.algorithm.save(given.file),
        ("Checkpoints cannot be written",),
    ),
    # checkpoints
    Case(
        "no such checkpoint",
        lambda given: Algorithm.from_checkpoint(given.folder / "nothing"),
        ("nothing", "no such file or folder"),
        lambda given: ["evaluate", str(given.folder / "nothing")],
    ),
    Case(
        "folder that is no checkpoint",
        lambda given: Algorithm.from_checkpoint(given.folder),
        ("is not a jaxrl checkpoint",),
        lambda given: ["evaluate", str(given.folder)],
    ),
    saved("corrupt checkpoint", truncate, ("cannot be loaded",)),
    saved("corrupt metadata", cut_metadata, ("cannot be loaded",)),
    saved(
        "checkpoint whose metadata was edited",
        edit_metadata(checkpoint_version=99),
        ("cannot be loaded", "metadata/metadata"),
    ),
    Case(
        "checkpoint of another algorithm",
        lambda given: given.algorithm.restore(given.of_another_algorithm),
        ("was saved by A2C, but this algorithm is PPO",),
    ),
    Case(
        "checkpoint of another module shape",
        lambda given: given.algorithm.restore(given.checkpoint),
        ("does not fit", "float32[8", "float32[9"),
    ),
    Case(
        "component that does not exist",
        lambda given: given.algorithm.restore(given.checkpoint, component="rl_modul"),
        ("'rl_modul'", "Did you mean 'rl_module'?"),
    ),
]
