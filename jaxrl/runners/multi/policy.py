"""Acting of several modules on the host: one compiled call for all of them per vector step."""

from collections.abc import Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt32

from jaxrl.core.struct import where_rows
from jaxrl.core.types import Columns, Keys, PyTree
from jaxrl.modules.rl_module import make_zeros
from jaxrl.runners.host_policy import HostPolicy, PrevStep
from jaxrl.training.agent_rows import AgentRows
from jaxrl.training.multi_rollout import Actors, act_on_zeros
from jaxrl.training.rollout import RECORDED_COLUMNS, ActorCarry, PolicyStep

PrevSteps = dict[str, PrevStep]
"""Reward and flags of every module's rows; those of agents that do not act are paused."""


class MultiHostPolicy(HostPolicy):
    """Compiled part of a runner of several agents: modules and connectors for `B` environments.

    What `HostPolicy` takes and returns for one module is here a dictionary by module, of
    `[B * agents, ...]` rows; outputs are packed by environment, `[B, agents, ...]`. Draws are those
    of the compiled program.

    Args:
        policies: Module and connectors by id.
        rows: Agents in the rows of modules.
        env_index: Global indices of the environments.
        explore: Whether to sample actions instead of taking the mode.
        max_retraces: Maximum number of retraces, see `Program`.
        jit: Whether to compile; False runs operation by operation.
    """

    def __init__(
        self,
        policies: Mapping[str, PolicyStep],
        rows: AgentRows,
        env_index: Int[np.ndarray, " B"],
        *,
        explore: bool,
        max_retraces: int | None = None,
        jit: bool = True,
    ) -> None:
        self._policies, self._rows = policies, rows
        self._before: dict[str, ActorCarry] = {}
        super().__init__(
            cast("Any", None),  # each module has its own
            env_index,
            explore=explore,
            max_retraces=max_retraces,
            jit=jit,
        )

    def count_rows(self, module: str) -> int:
        """Return the number of rows of a module."""
        return self._num_envs * len(self._rows.get_positions(module))

    @property
    def carry_before(self) -> dict[str, ActorCarry]:
        """Carry of every module before the latest action, in NumPy."""
        return jax.tree.map(np.asarray, self._before)

    @property
    def has_carry(self) -> bool:
        """True if a module or a connector has memory."""
        return self._has_carry

    def act(self, obs: list[np.ndarray], prev_step: PyTree) -> UInt32[np.ndarray, "B width"]:
        """Compute a step's outputs, packed into words, for the leaves of the observations."""
        arguments = self._make_arguments(obs, prev_step)
        words, (self._before, self._carry) = cast("Any", self._compiled_act)(*arguments)
        self._t += 1
        return np.asarray(words)

    def unpack_rows(self, words: UInt32[np.ndarray, "*batch B width"]) -> dict[str, PyTree]:
        """Unpack what each module records, `[*batch, B * agents, ...]`, by module and column."""
        recorded = self.unpack_recorded(words)
        batch = words.ndim - 2
        return jax.tree.map(
            lambda x: x.reshape(*x.shape[:batch], -1, *x.shape[batch + 2 :]), recorded
        )

    def make_blank_obs(self) -> dict[str, PyTree]:
        """Return all-zero observations of every module's rows, in NumPy."""
        return self.unflatten_obs([np.zeros(x.shape, x.dtype) for x in self.obs_shapes])

    def make_blank_outputs(self) -> dict[str, PyTree]:
        """Return what each module records at a step, all-zero, in NumPy."""

        def record() -> dict[str, PyTree]:
            carry = self._make_first_carry()
            return {
                m: _select_recorded(act_on_zeros(policy, carry[m], self.count_rows(m)))
                for m, policy in self._policies.items()
            }

        return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), jax.eval_shape(record))

    def _make_blank_obs(self) -> PyTree:
        return {
            m: make_zeros(policy.obs_pipeline.space, (self.count_rows(m),))
            for m, policy in self._policies.items()
        }

    def _make_first_carry(self) -> PyTree:
        return {m: policy.initial_carry(self.count_rows(m)) for m, policy in self._policies.items()}

    def _make_blank_prev(self) -> PyTree:
        return {m: make_blank_prev(self.count_rows(m)) for m in self._policies}

    def _draw_rows(self, action_key: Keys) -> PyTree:
        return {
            m: jax.vmap(policy.module.draw)(self._rows.derive_keys(action_key, m))
            for m, policy in self._policies.items()
        }

    def _advance(self, carry: PyTree, last: PyTree) -> PyTree:
        if last is None:
            return carry
        return {
            m: policy.advance(carry[m], jnp.asarray(last[m].reward), jnp.asarray(last[m].is_first))
            for m, policy in self._policies.items()
        }

    def _act(
        self,
        read: list[Array],
        draws: PyTree,
        t: Int[Array, ""],
        carry: PyTree,
        obs: list[Array],
        last: PyTree,
        env_index: Int[Array, " B"],
    ) -> PyTree:
        words, after = super()._act(read, draws, t, carry, obs, last, env_index)
        return words, (self._advance(carry, last), after)

    def _step(
        self,
        actor: PyTree,
        draws: PyTree,
        t: Int[Array, ""],
        carry: PyTree,
        obs: list[Array],
        last: PyTree,
        env_index: Int[Array, " B"],
    ) -> PyTree:
        actors: Actors = actor
        seen = jax.tree.map(jnp.asarray, self.unflatten_obs(obs))
        drawn = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, t, keepdims=False), draws)
        before = self._advance(carry, last)
        actions: dict[str, PyTree] = {}
        recorded: dict[str, PyTree] = {}
        after: dict[str, PyTree] = {}
        for m, policy in self._policies.items():
            rows = self.count_rows(m)
            starts = jnp.zeros((rows,), bool) if last is None else jnp.asarray(last[m].is_first)
            index = self._rows.number(env_index, m)
            out = policy.act(actors[m], seen[m], before[m], starts, index, drawn[m], self._explore)
            actions[m] = policy.action_pipeline(out[Columns.ACTIONS])
            recorded[m] = _select_recorded(out)
            after[m] = out[Columns.STATE_OUT]
            if last is not None:
                after[m] = where_rows(jnp.asarray(last[m].paused), before[m], after[m])
        outputs = jax.tree.map(self._by_env, (actions, recorded))
        return outputs, after

    def _by_env(self, x: Array) -> Array:
        return x.reshape(self._num_envs, -1, *x.shape[1:])


def make_blank_prev(rows: int) -> PrevStep:
    """Return the reward and flags of rows that have not begun an episode."""
    return PrevStep(
        reward=np.zeros(rows, np.float32),
        is_first=np.ones(rows, np.bool_),
        paused=np.zeros(rows, np.bool_),
    )


def _select_recorded(out: dict[str, Any]) -> dict[str, PyTree]:
    return {name: out[name] for name in (Columns.ACTIONS, *RECORDED_COLUMNS)}
