"""Gymnasium's synchronous vector environment without what costs time and is not needed here."""

from typing import Any

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import SyncVectorEnv
from gymnasium.vector.utils import concatenate as stack_rows
from gymnasium.vector.utils import create_empty_array, iterate

from jaxrl.envs.adapters.barrier import FAULT
from jaxrl.envs.adapters.host_arrays import CopyInfos


class SyncCopies(SyncVectorEnv):
    """`SyncVectorEnv` in SAME_STEP mode, whose step gives the copies' infos as they are.

    Gymnasium merges them key by key into arrays and copies every observation twice; for small
    environments that costs as much as stepping them.
    """

    def step(self, actions: Any) -> Any:
        told: list[dict[str, Any]] = []
        infos = CopyInfos(rows=told)
        space = self.single_observation_space
        fresh: Any = create_empty_array(space, self.num_envs, np.empty)
        is_array = isinstance(space, Box)
        observations: list[Any] = []
        rewards: list[Any] = []
        terminations: list[bool] = []
        truncations: list[bool] = []
        rows = iterate(self.action_space, actions)
        for row, (copy, action) in enumerate(zip(self.envs, rows, strict=True)):
            obs, reward, terminated, truncated, info = copy.step(action)
            told.append(info)
            if FAULT in info:
                infos.faults[row] = info[FAULT]
            if terminated or truncated:
                infos.final_obs[row] = obs
                obs, first_info = copy.reset()
                if FAULT in first_info:
                    infos.faults[row] = first_info[FAULT]
            if is_array:
                fresh[row] = obs
            observations.append(obs)
            rewards.append(reward)
            terminations.append(terminated)
            truncations.append(truncated)
        self._env_obs = observations
        return (
            fresh if is_array else stack_rows(space, observations, fresh),
            np.array(rewards),
            np.array(terminations),
            np.array(truncations),
            infos,
        )
