"""Ray Serve: an exported policy as a deployment (`pip install 'jaxrl[ray-serve]'`).

`jaxrl serve` needs less and answers faster; use this where a service in Ray Serve stands already. The
replicas run the policy in NumPy, without JAX.
"""

import argparse
import json
import tempfile
import urllib.request
from pathlib import Path

from ray import serve
from starlette.requests import Request

from jaxrl import PPOConfig
from jaxrl.export.numpy_program import NumpyPolicy


class Actions:
    """Actions of an exported policy for batches of observations."""

    def __init__(self, folder: str) -> None:
        self.policy = NumpyPolicy(folder)

    async def __call__(self, request: Request) -> dict[str, list[int]]:
        """Answer `{"observations": [...]}` with `{"actions": [...]}`."""
        result = self.policy.step((await request.json())["observations"])
        return {"actions": result.actions.tolist()}


def main(replicas: int, port: int) -> None:
    """Export a policy, serve it, and ask for two actions."""
    config = PPOConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=8)
    config.training(train_batch_size=256, minibatch_size=64, num_epochs=2)
    config.rl_module(model_config={"fcnet_hiddens": [16]})
    with tempfile.TemporaryDirectory() as name:
        with config.build() as algo:
            algo.train()
            folder = algo.export(Path(name) / "policy")
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(serve.deployment(num_replicas=replicas)(Actions).bind(folder))
        body = json.dumps({"observations": [[0.0, 0.1, 0.02, -0.1], [0.0, -0.1, -0.02, 0.1]]})
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", body.encode()) as answer:
            print("actions", json.load(answer)["actions"])
        serve.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--port", type=int, default=8000)
    main(**vars(parser.parse_args()))
