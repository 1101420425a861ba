"""JAX environments stepped from the host, with the random draws of the compiled loop."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from jaxrl.core.keys import make_key
from jaxrl.core.seeds import split_seed
from jaxrl.core.struct import replace, where_rows
from jaxrl.core.types import PyTree
from jaxrl.envs.base import ResetMode
from jaxrl.envs.host import HostFault, HostStep
from jaxrl.envs.registry import MadeEnv
from jaxrl.envs.vector import FAULT_NAMES, NO_FAULT, StepInputs, VectorEnv, VectorState, VectorStep
from jaxrl.errors import EnvError


class JaxHostVector:
    """`B` copies of a `JaxEnv` as a `HostVector`, with one jitted call per step.

    First states, transitions and resets draw from the keys that the in-graph runner uses for the
    same seed and the same global indices, so both produce the same transitions.
    """

    def __init__(
        self, made: MadeEnv, *, num_envs: int, first_index: int, seed: int, reset_mode: ResetMode
    ) -> None:
        """Set up the jitted functions; nothing is compiled yet.

        Args:
            made: Environment, with its first parameters.
            num_envs: Number of copies.
            first_index: Index of the first copy among all copies of the run.
            seed: Seed of the run.
            reset_mode: Auto-reset mode, as in the in-graph runner; it does not affect the data.
        """
        self.num_envs, self.can_pause = num_envs, True
        self._made = made
        self._params = made.params
        self._seed = seed
        self._index = np.arange(first_index, first_index + num_envs, dtype=np.int32)
        self._env = VectorEnv(made.env, reset_mode)
        self._jit_reset = jax.jit(self._reset)
        self._jit_reset_to_seeds = jax.jit(self._reset_to_seeds)
        self._jit_step = jax.jit(self._step)
        self._jit_step_with_paused = jax.jit(self._step_with_paused)
        self._paused = np.zeros(num_envs, np.bool_)
        self._state: VectorState | None = None

    def reset(self, seeds: Sequence[int] | None = None) -> PyTree:
        if seeds is None:
            self._state = self._jit_reset(split_seed(self._seed), self._index, self._params)
        else:
            words = np.stack([split_seed(seed) for seed in seeds])
            self._state = self._jit_reset_to_seeds(words, self._index, self._params)
        return jax.device_get(self._current_state().obs)

    def get_reset_info(self, row: int) -> dict[str, Any]:
        del row
        return {}

    def step(self, action: PyTree, on_step: Callable[[HostStep], None] | None = None) -> HostStep:
        current = self._current_state()
        if self._paused.any():
            state, step = self._jit_step_with_paused(current, action, self._params, self._paused)
        else:
            state, step = self._jit_step(current, action, self._params)
        self._state = state
        obs, starts, step = jax.device_get((state.obs, state.is_first, step))
        host_step = HostStep(
            obs=obs,
            reward=step.reward,
            terminated=step.terminated,
            truncated=step.truncated,
            final_obs=step.final_obs,
            mask=step.mask,
            starts=starts,
            faults=() if step.mask.all() else self._build_faults(step),
        )
        if on_step is not None:
            on_step(host_step)
        return host_step

    def pause(self, paused: Bool[np.ndarray, " B"]) -> None:
        self._paused = np.asarray(paused, np.bool_)

    def get_state(self) -> PyTree:
        """Return the `VectorState` as NumPy arrays, with keys as raw words."""
        return jax.tree.map(_to_numpy, self._current_state())

    def set_state(self, state: PyTree) -> None:
        reference = jax.eval_shape(self._reset, split_seed(0), self._index, self._params)
        self._state = jax.tree.map(_from_numpy, state, reference)

    def set_task(self, task: PyTree) -> None:
        self._params = task

    def call_task_method(self, name: str, *args: int) -> PyTree:
        raise EnvError(
            f"{self._made.id} has no method {name}, which only Python environments have."
        )

    def get_sub_environments(self) -> list[Any]:
        return [self._made.env] * self.num_envs

    def close(self) -> None:
        self._state = None

    def _current_state(self) -> VectorState:
        if self._state is None:
            raise EnvError(f"{self._made.id}: call reset before step, and nothing after close.")
        return self._state

    def _reset(self, words: Array, index: Array, params: PyTree) -> VectorState:
        env_key = jax.random.split(make_key(words), 3)[1]
        return self._env.reset(env_key, index, params)

    def _reset_to_seeds(self, words: Array, index: Array, params: PyTree) -> VectorState:
        def reset_one(words: Array, index: Array) -> VectorState:
            return self._env.reset(make_key(words), index[None], params)

        return jax.tree.map(lambda x: x[:, 0], jax.vmap(reset_one)(words, index))

    def _step(
        self, state: VectorState, action: PyTree, params: PyTree
    ) -> tuple[VectorState, VectorStep]:
        inputs: StepInputs = self._env.make_step_inputs(state, 1, params)
        return self._env.step(state, action, jax.tree.map(lambda x: x[0], inputs), params)

    def _step_with_paused(
        self, state: VectorState, action: PyTree, params: PyTree, paused: Array
    ) -> tuple[VectorState, VectorStep]:
        new_state, step = self._step(state, action, params)
        new_state = replace(
            where_rows(paused, replace(state, key=None), replace(new_state, key=None)),
            key=state.key,
        )
        return new_state, replace(
            step,
            reward=jnp.where(paused, 0.0, step.reward),
            terminated=step.terminated & ~paused,
            truncated=step.truncated & ~paused,
            final_obs=where_rows(paused, state.obs, step.final_obs),
            mask=step.mask & ~paused,
            fault=jnp.where(paused, NO_FAULT, step.fault),
        )

    def _build_faults(self, step: VectorStep) -> tuple[HostFault, ...]:
        rows = np.flatnonzero(np.asarray(step.fault) != NO_FAULT)
        faults: list[HostFault] = []
        for row in rows:
            what = FAULT_NAMES[int(step.fault[row])]
            detail = f"{self._made.id}: the {what} is not finite."
            faults.append(HostFault(row=int(row), what=what, detail=detail))
        return tuple(faults)


def _is_key(leaf: Array | jax.ShapeDtypeStruct) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _to_numpy(leaf: Array) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _from_numpy(leaf: np.ndarray, reference: jax.ShapeDtypeStruct) -> Array:
    """Convert a leaf of `get_state` back, to a key where the reference is one."""
    array = jnp.asarray(leaf)
    return jax.random.wrap_key_data(array) if _is_key(reference) else array
