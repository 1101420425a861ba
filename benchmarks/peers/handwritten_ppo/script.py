"""Hand-written PPO as a researcher would run it.

`python -m benchmarks.peers.handwritten_ppo.script STEPS [--tuned]` compiles, trains, prints the
mean return of the last episodes, and writes no files. `--tuned` selects the tuned form of `ppo.py`,
with the cores as devices.
"""

from __future__ import annotations

import argparse

import jax
import numpy as np

from benchmarks.peers.handwritten_ppo import ppo
from benchmarks.settings import parse_setting


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("steps", type=int, help="environment steps")
    parser.add_argument("--tuned", action="store_true", help="bijective shuffle, cores as devices")
    options = parser.parse_args()
    if options.tuned:
        from jaxrl.runtime.cores import (
            count_usable_cores,  # the plain form imports nothing of jaxrl
        )

        jax.config.update("jax_num_cpu_devices", min(count_usable_cores(), 8))
    setting = parse_setting("4x128", steps=options.steps)
    program = ppo.PPO(setting, ppo.make_device_mesh(setting) if options.tuned else None)
    init = jax.jit(program.init, out_shardings=program.get_shardings())
    train = jax.jit(program.train, donate_argnums=0)
    metrics = jax.block_until_ready(train(init(jax.random.key(setting.seed))))[1]
    last = setting.num_updates // 10
    episodes = max(1, int(np.sum(metrics.num_episodes[-last:])))
    print(f"{setting.env_steps} {float(np.sum(metrics.return_sum[-last:])) / episodes}")


if __name__ == "__main__":
    main()
