"""Gymnasium's synchronous vector environment without its overhead."""

from copy import deepcopy
from typing import Any, SupportsFloat

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import SyncVectorEnv
from gymnasium.vector.utils import concatenate as stack_rows
from gymnasium.vector.utils import create_empty_array, iterate

from jaxrl.core.types import PyTree
from jaxrl.envs.adapters.barrier import FAULT_KEY
from jaxrl.envs.adapters.host_arrays import SubEnvInfos


class FastSyncVectorEnv(SyncVectorEnv):
    """`SyncVectorEnv` in SAME_STEP mode, whose step returns the copies' infos unmerged.

    Gymnasium merges them key by key into arrays and copies every observation twice; for small
    environments that costs as much as stepping them.
    """

    def step(self, actions: PyTree) -> Any:
        row_infos: list[dict[str, Any]] = []
        infos = SubEnvInfos(rows=row_infos)
        space = self.single_observation_space
        fresh: PyTree = create_empty_array(space, self.num_envs, np.empty)
        is_array = isinstance(space, Box)
        observations: list[PyTree] = []
        rewards: list[SupportsFloat] = []
        terminations: list[bool] = []
        truncations: list[bool] = []
        action_rows = iterate(self.action_space, actions)
        for row, (copy, action) in enumerate(zip(self.envs, action_rows, strict=True)):
            obs, reward, terminated, truncated, info = copy.step(action)
            row_infos.append(info)
            if FAULT_KEY in info:
                infos.faults[row] = info[FAULT_KEY]
            if terminated or truncated:
                infos.final_obs[row] = deepcopy(obs)  # the reset may write into its arrays
                obs, first_info = copy.reset()
                if FAULT_KEY in first_info:
                    infos.faults[row] = first_info[FAULT_KEY]
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
