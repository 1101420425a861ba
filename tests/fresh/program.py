"""Program that tests run in a process of its own: `train FOLDER` and `restore RUN`.

Nothing but JAX's and jaxrl's own rules decides here how many devices there are, and the first thing
that a restoring process does is to restore.
"""

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxrl.assembly.device_trial import ALWAYS_FASTER_ROWS
from jaxrl.config.batch_plan import MIN_ROWS_PER_CPU_DEVICE
from jaxrl.runtime.cores import count_usable_cores
from jaxrl.runtime.devices import MAX_CPU_DEVICES

ROWS = ALWAYS_FASTER_ROWS * min(MAX_CPU_DEVICES, count_usable_cores())
"""Rows of a minibatch: enough to be shared by all devices without a trial."""


def configs() -> dict[str, Any]:
    """A small config of each kind of run."""
    from jaxrl.algorithms.dqn import DQNConfig
    from jaxrl.algorithms.ppo import PPOConfig

    def ppo(rows: int = ROWS, **env_runners: Any) -> Any:
        config = PPOConfig().environment("CartPole-v1").env_runners(**env_runners)
        config.env_runners(num_envs_per_env_runner=64, observation_filter="MeanStdFilter")
        config.training(train_batch_size=rows, minibatch_size=rows, num_epochs=1)
        return config.rl_module(model_config={"fcnet_hiddens": [8]})

    lstm = {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 4}
    dqn = DQNConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=64)
    dqn.env_runners(rollout_fragment_length=4).rl_module(model_config={"fcnet_hiddens": [8]})
    dqn.training(train_batch_size=ROWS, num_steps_sampled_before_learning_starts=256)
    dqn.training(replay_buffer_config={"capacity": 2048})
    return {
        "ppo": ppo(),
        "dqn": dqn,
        "lstm": ppo().rl_module(model_config=lstm),
        "host": ppo(placement="host"),
        "tried": ppo(MIN_ROWS_PER_CPU_DEVICE * min(MAX_CPU_DEVICES, count_usable_cores())),
        "sweep": ppo().sweep(seeds=8),
    }


def outcome(run: Any, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that must be the same in every process."""
    lanes = [lane.algorithm for lane in run._runs] if hasattr(run, "lanes") else [run]
    digest = hashlib.sha256()
    for lane in lanes:
        for name, leaf in sorted(lane.get_state()["train_state"].items()):
            digest.update(f"{name} {leaf.dtype} {leaf.shape}".encode() + leaf.tobytes())
    compiled = result["lanes"][0]["compile"] if "lanes" in result else result["compile"]
    return {
        "devices": len(run.devices),
        "iteration": run.iteration,
        "digest": digest.hexdigest(),
        "cache_hits": {name: figures["cache_hit"] for name, figures in compiled.items()},
        "compile_s": {name: figures["compile_s"] for name, figures in compiled.items()},
    }


def train(folder: Path, kinds: list[str]) -> dict[str, Any]:
    """Each kind: an iteration and a checkpoint, and another iteration that is not saved."""
    outcomes: dict[str, Any] = {}
    for kind, config in configs().items():
        if kind not in kinds:
            continue
        config.debugging(results_dir=str(folder), run_name=kind, loggers=["json"], seed=3)
        config.evaluation(evaluation_duration=4)
        with config.build() as run:
            run.fit({"training_iteration": 1})
            evaluated = run.evaluate()
            result = run.train()
            outcomes[kind] = {**outcome(run, result), "evaluated": evaluated}
    return outcomes


def restore(path: Path) -> dict[str, Any]:
    """The run of a folder, an iteration further."""
    from jaxrl import Algorithm, Population

    kind = Population if (path / "sweep.json").exists() else Algorithm
    with kind.from_checkpoint(path, loggers=[]) as run:
        return outcome(run, run.train())


def restore_trainable(path: Path) -> dict[str, Any]:
    """The run of a folder as a trial of Ray Tune goes on with it, an iteration further."""
    from jaxrl.tune import PPO

    trainable = PPO(configs()["ppo"].debugging(loggers=[], seed=3).to_dict())
    trainable.restore(str(path))
    result = trainable.train()
    try:
        return outcome(trainable.algorithm, result)
    finally:
        trainable.stop()


def main(verb: str, path: str, *kinds: str) -> None:
    """Print the outcome, as JSON, in the last line."""
    if verb == "train":
        print(json.dumps(train(Path(path), list(kinds))))
    else:
        does = {"restore": restore, "restore-trainable": restore_trainable}[verb]
        print(json.dumps(does(Path(path))))


if __name__ == "__main__":
    main(*sys.argv[1:])
