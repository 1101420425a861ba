"""Gymnasium's synchronous vector environment without its overhead."""

from collections.abc import Callable, Sequence
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate as stack_rows
from gymnasium.vector.utils import create_empty_array, iterate

from jaxrl.core.types import PyTree
from jaxrl.envs.adapters.barrier import FAULT_KEY
from jaxrl.envs.adapters.host_arrays import SubEnvInfos


class FastSyncVectorEnv(SyncVectorEnv):
    """`SyncVectorEnv` in DISABLED mode, which returns the copies' infos unmerged.

    Gymnasium merges them key by key into arrays and copies every observation twice; for small
    environments that costs as much as stepping them. Copies are reset by a mask after the step, so
    that what looks at them in between sees how the episode ended.
    """

    def __init__(self, copies: Sequence[Callable[[], gymnasium.Env[Any, Any]]]) -> None:
        super().__init__(copies, autoreset_mode=AutoresetMode.DISABLED)

    def step(self, actions: PyTree) -> Any:
        infos: list[dict[str, Any]] = []
        observations: list[PyTree] = []
        rewards: list[SupportsFloat] = []
        terminations: list[bool] = []
        truncations: list[bool] = []
        action_rows = iterate(self.action_space, actions)
        for copy, action in zip(self.envs, action_rows, strict=True):
            obs, reward, terminated, truncated, info = copy.step(action)
            infos.append(info)
            observations.append(obs)
            rewards.append(reward)
            terminations.append(terminated)
            truncations.append(truncated)
        self._env_obs = observations
        return (
            self._stack(),
            np.array(rewards),
            np.array(terminations),
            np.array(truncations),
            _collect_infos(infos),
        )

    def reset(
        self, *, seed: Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> Any:
        """Reset the copies of `options["reset_mask"]`, or all; `seed` is a list of their seeds."""
        seeds = [None] * self.num_envs if seed is None else seed
        rows = range(self.num_envs) if options is None else np.flatnonzero(options["reset_mask"])
        infos: list[dict[str, Any]] = [{} for _ in self.envs]
        for row in rows:
            self._env_obs[row], infos[row] = self.envs[row].reset(seed=seeds[row])
        return self._stack(), _collect_infos(infos)

    def _stack(self) -> PyTree:
        """Copy the latest observations into one new batch."""
        space = self.single_observation_space
        fresh: PyTree = create_empty_array(space, self.num_envs, np.empty)
        if not isinstance(space, Box):
            return stack_rows(space, self._env_obs, fresh)
        for row, obs in enumerate(self._env_obs):
            fresh[row] = obs
        return fresh


def _collect_infos(infos: list[dict[str, Any]]) -> SubEnvInfos:
    faults = {row: info[FAULT_KEY] for row, info in enumerate(infos) if FAULT_KEY in info}
    return SubEnvInfos(rows=infos, first_rows=infos, faults=faults)
