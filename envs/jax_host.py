"""JAX environments stepped by the host, with the draws that the compiled loop would make."""

from typing import Any

import jax
import numpy as np

from jaxrl.core.types import PyTree
from jaxrl.envs.base import ResetMode
from jaxrl.envs.host import HostFault, HostStep
from jaxrl.envs.registry import MadeEnv
from jaxrl.envs.vector import FAULT_NAMES, NO_FAULT, StepInputs, VectorEnv, VectorState, VectorStep


class JaxHostVector:
    """`B` copies of a `JaxEnv` as a `HostVector`: one jitted call a step.

    First states, transitions and resets draw from the keys that the in-graph runner would use for
    the same seed and the same global indices, so both see the same transitions.
    """

    def __init__(
        self, made: MadeEnv, *, num_envs: int, first_index: int, seed: int, reset_mode: ResetMode
    ) -> None:
        """Compiles nothing yet.

        Args:
            made: The environment, whose parameters stay as they are.
            num_envs: How many copies.
            first_index: The place of the first among all copies of the run.
            seed: The run's.
            reset_mode: As in the in-graph runner; the data do not depend on it.
        """
        self.num_envs = num_envs
        self._made = made
        self._params = made.params
        self._seed = seed
        self._index = np.arange(first_index, first_index + num_envs, dtype=np.int32)
        self._env = VectorEnv(made.env, reset_mode)
        self._jit_reset = jax.jit(self._first_state)
        self._jit_step = jax.jit(self._next_state)
        self._state: VectorState | None = None

    def reset(self) -> PyTree:
        self._state = self._jit_reset(np.uint32(self._seed), self._index, self._params)
        return jax.device_get(self._state.obs)

    def step(self, action: PyTree) -> HostStep:
        self._state, step = self._jit_step(self._state, action, self._params)
        obs, starts, step = jax.device_get((self._state.obs, self._state.is_first, step))
        return HostStep(
            obs=obs,
            reward=step.reward,
            terminated=step.terminated,
            truncated=step.truncated,
            final_obs=step.final_obs,
            mask=step.mask,
            starts=starts,
            faults=() if step.mask.all() else self._faults(step),
        )

    def get_state(self) -> VectorState:
        assert self._state is not None, "reset comes first"
        return self._state

    def set_state(self, state: PyTree) -> None:
        self._state = state

    def envs(self) -> list[Any]:
        return [self._made.env]

    def close(self) -> None:
        self._state = None

    def _first_state(self, seed: Any, index: Any, params: PyTree) -> VectorState:
        env_key = jax.random.split(jax.random.key(seed), 3)[1]
        return self._env.reset(env_key, index, params)

    def _next_state(
        self, state: VectorState, action: PyTree, params: PyTree
    ) -> tuple[VectorState, VectorStep]:
        inputs: StepInputs = self._env.inputs(state, 1, params)
        return self._env.step(state, action, jax.tree.map(lambda x: x[0], inputs), params)

    def _faults(self, step: VectorStep) -> tuple[HostFault, ...]:
        rows = np.flatnonzero(np.asarray(step.fault) != NO_FAULT)
        faults: list[HostFault] = []
        for row in rows:
            what = FAULT_NAMES[int(step.fault[row])]
            detail = f"{self._made.id}: the {what} is not finite."
            faults.append(HostFault(row=int(row), what=what, detail=detail))
        return tuple(faults)
