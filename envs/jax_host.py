"""JAX environments stepped by the host, with the draws that the compiled loop would make."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from jaxrl.core.seeds import seed_key, seed_words
from jaxrl.core.struct import replace, where_rows
from jaxrl.core.types import PyTree
from jaxrl.envs.base import ResetMode
from jaxrl.envs.host import HostFault, HostStep
from jaxrl.envs.registry import MadeEnv
from jaxrl.envs.vector import FAULT_NAMES, NO_FAULT, StepInputs, VectorEnv, VectorState, VectorStep
from jaxrl.errors import EnvError


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
        self._jit_reset_to = jax.jit(self._first_state_of_seeds)
        self._jit_step = jax.jit(self._next_state)
        self._jit_step_but_held = jax.jit(self._next_state_but_held)
        self._held = np.zeros(num_envs, np.bool_)
        self._state: VectorState | None = None

    def reset(self, seeds: Sequence[int] | None = None) -> PyTree:
        if seeds is None:
            self._state = self._jit_reset(seed_words(self._seed), self._index, self._params)
        else:
            words = np.stack([seed_words(seed) for seed in seeds])
            self._state = self._jit_reset_to(words, self._index, self._params)
        return jax.device_get(self._now().obs)

    def step(self, action: PyTree) -> HostStep:
        now = self._now()
        if self._held.any():
            state, step = self._jit_step_but_held(now, action, self._params, self._held)
        else:
            state, step = self._jit_step(now, action, self._params)
        self._state = state
        obs, starts, step = jax.device_get((state.obs, state.is_first, step))
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

    def hold(self, held: Bool[np.ndarray, " B"]) -> None:
        self._held = np.asarray(held, np.bool_)

    def get_state(self) -> PyTree:
        """The `VectorState` as NumPy arrays, keys as their words."""
        return jax.tree.map(_words, self._now())

    def set_state(self, state: PyTree) -> None:
        like = jax.eval_shape(self._first_state, seed_words(0), self._index, self._params)
        self._state = jax.tree.map(_like, state, like)

    def envs(self) -> list[Any]:
        return [self._made.env]

    def close(self) -> None:
        self._state = None

    def _now(self) -> VectorState:
        if self._state is None:
            raise EnvError(f"{self._made.id}: reset comes before step, and nothing after close.")
        return self._state

    def _first_state(self, words: Any, index: Any, params: PyTree) -> VectorState:
        env_key = jax.random.split(seed_key(words), 3)[1]
        return self._env.reset(env_key, index, params)

    def _first_state_of_seeds(self, words: Any, index: Any, params: PyTree) -> VectorState:
        def one(words: Any, index: Any) -> VectorState:
            return self._env.reset(seed_key(words), index[None], params)

        return jax.tree.map(lambda x: x[:, 0], jax.vmap(one)(words, index))

    def _next_state(
        self, state: VectorState, action: PyTree, params: PyTree
    ) -> tuple[VectorState, VectorStep]:
        inputs: StepInputs = self._env.inputs(state, 1, params)
        return self._env.step(state, action, jax.tree.map(lambda x: x[0], inputs), params)

    def _next_state_but_held(
        self, state: VectorState, action: PyTree, params: PyTree, held: Any
    ) -> tuple[VectorState, VectorStep]:
        new_state, step = self._next_state(state, action, params)
        new_state = replace(
            where_rows(held, replace(state, key=None), replace(new_state, key=None)), key=state.key
        )
        return new_state, replace(
            step,
            reward=jnp.where(held, 0.0, step.reward),
            terminated=step.terminated & ~held,
            truncated=step.truncated & ~held,
            final_obs=where_rows(held, state.obs, step.final_obs),
            mask=step.mask & ~held,
            fault=jnp.where(held, NO_FAULT, step.fault),
        )

    def _faults(self, step: VectorStep) -> tuple[HostFault, ...]:
        rows = np.flatnonzero(np.asarray(step.fault) != NO_FAULT)
        faults: list[HostFault] = []
        for row in rows:
            what = FAULT_NAMES[int(step.fault[row])]
            detail = f"{self._made.id}: the {what} is not finite."
            faults.append(HostFault(row=int(row), what=what, detail=detail))
        return tuple(faults)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _words(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _like(leaf: Any, like: Any) -> Any:
    """A leaf of `get_state` as it was: a key where the state has one."""
    array = jnp.asarray(leaf)
    return jax.random.wrap_key_data(array) if _is_key(like) else array
