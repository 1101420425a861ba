"""Write the golden files of RLlib's formats, with RLlib itself (2.60) and its own recorder.

Run in an environment with `ray[rllib]` and `msgpack_numpy`: `python tests/offline/data/make_rllib.py`.
"""

import json
import shutil
import tempfile
from pathlib import Path

import gymnasium
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
from ray.rllib.algorithms.bc import BCConfig
from ray.rllib.offline.json_writer import JsonWriter
from ray.rllib.offline.offline_env_runner import OfflineSingleAgentEnvRunner
from ray.rllib.policy.sample_batch import SampleBatch

HERE = Path(__file__).parent


def record(env: str, name: str, *, episodes: bool, packed: bool) -> None:
    """Record two short episodes with RLlib's runner, and keep its file and the data as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        config = (
            BCConfig()
            .environment(env)
            .env_runners(num_env_runners=0, num_envs_per_env_runner=1)
            .debugging(seed=0)
            .offline_data(
                output=folder,
                output_write_episodes=episodes,
                output_max_rows_per_file=None,
                output_compress_columns=["obs", "new_obs"] if packed else [],
            )
        )
        runner = OfflineSingleAgentEnvRunner(config=config, worker_index=0)
        samples = runner.sample(num_episodes=2, random_actions=True)
        runner.stop()
        written = sorted(Path(folder).rglob("*.parquet"))
        (HERE / name).mkdir(exist_ok=True)
        print([str(path.relative_to(folder)) for path in written][:3], len(written))
        table = pa.concat_tables([pq.read_table(path) for path in written])
        pq.write_table(table, HERE / name / "0.parquet")
    expected = [
        {
            "id": episode.id_,
            "obs": np.asarray(episode.get_observations()).tolist(),
            "actions": np.asarray(episode.get_actions()).tolist(),
            "rewards": np.asarray(episode.get_rewards()).tolist(),
            "terminated": bool(episode.is_terminated),
            "truncated": bool(episode.is_truncated),
        }
        for episode in samples
    ]
    (HERE / name / "metadata.json").write_text(json.dumps(expected))


def write_json(*, packed: bool) -> None:
    """Write lines of sample batches."""
    env = gymnasium.make("CartPole-v1")
    rows: dict[str, list[object]] = {
        name: []
        for name in ("obs", "actions", "rewards", "terminateds", "truncateds", "new_obs", "eps_id")
    }
    for episode in range(2):
        obs, _ = env.reset(seed=episode)
        ended = False
        while not ended:
            action = len(rows["obs"]) % 2
            following, reward, terminated, truncated, _ = env.step(action)
            row = (obs, action, reward, terminated, truncated, following, episode)
            for name, value in zip(rows, row, strict=True):
                rows[name].append(value)
            obs, ended = following, terminated or truncated
    batch = SampleBatch({name: np.asarray(values) for name, values in rows.items()})
    columns = ["obs", "new_obs"] if packed else []
    with tempfile.TemporaryDirectory() as folder:
        JsonWriter(folder, compress_columns=columns).write(batch)
        (written,) = Path(folder).glob("*.json")
        name = "rllib_json_packed.json" if packed else "rllib_json.json"
        shutil.copy(written, HERE / name)


if __name__ == "__main__":
    ray.init(num_cpus=1, include_dashboard=False)
    record("CartPole-v1", "rllib_columns", episodes=False, packed=False)
    record("CartPole-v1", "rllib_packed", episodes=False, packed=True)
    record("CartPole-v1", "rllib_episodes", episodes=True, packed=False)
    write_json(packed=False)
    write_json(packed=True)
