"""RLlib's policy behind Ray Serve, in RLlib's virtual environment, as a peer of `jaxrl serve`.

`python -m benchmarks.peers.rllib.serve_worker` prints a title and the address, and stops when its input
ends. The deployment is one replica with the RLModule of PPO for CartPole-v1, untrained, which computes
actions as RLlib's guide does: `forward_inference`, and the most likely action.
"""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

import gymnasium
import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from ray import serve
from ray.rllib.algorithms.ppo import PPOConfig  # pyright: ignore[reportMissingImports]
from ray.rllib.core.rl_module.default_model_config import (  # pyright: ignore[reportMissingImports]
    DefaultModelConfig,
)

from benchmarks.peers.ray_start import start_ray


class Actions:
    """Actions of RLlib's module for one observation or several, as JSON."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        config = PPOConfig().environment("CartPole-v1")
        model = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh")
        config = config.rl_module(model_config=model)
        self._module = config.get_rl_module_spec(env=gymnasium.make("CartPole-v1")).build()

    async def __call__(self, request: Any) -> dict[str, Any]:
        """Answer a body of `jaxrl serve` with `action` or `actions`."""
        body = json.loads(await request.body())
        is_one = "observation" in body
        rows = [body["observation"]] if is_one else body["observations"]
        obs = torch.from_numpy(np.asarray(rows, np.float32))
        with torch.no_grad():
            logits = self._module.forward_inference({"obs": obs})["action_dist_inputs"]
        actions = logits.argmax(-1).tolist()
        return {"action": actions[0]} if is_one else {"actions": actions}


def main() -> None:
    """Serve until the input ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start_ray()
    serve.start(
        http_options={"host": "127.0.0.1", "port": port}, logging_config={"log_level": "ERROR"}
    )
    deployment = serve.deployment(max_ongoing_requests=64)(Actions)
    serve.run(deployment.bind(), route_prefix="/v1/actions")
    print(f"RLlib in Ray Serve\nhttp://127.0.0.1:{port}", flush=True)
    sys.stdin.read()
    serve.shutdown()


if __name__ == "__main__":
    main()
