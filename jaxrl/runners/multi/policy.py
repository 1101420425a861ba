"""Acting of several modules on the host: one compiled call for all of them per vector step."""

from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt32

from jaxrl.core.struct import where_rows
from jaxrl.core.types import Columns, Keys, Progress, PyTree
from jaxrl.modules.rl_module import make_zeros
from jaxrl.runners.host_policy import HostPolicy, PrevStep
from jaxrl.runners.multi.groups import (
    ModuleGroup,
    describe_function,
    make_groups,
    stack,
    stack_traced,
)
from jaxrl.training.agent_rows import AgentRows
from jaxrl.training.multi_rollout import act_on_zeros
from jaxrl.training.rollout import RECORDED_COLUMNS, ActorCarry, ActorState, PolicyStep


class MultiHostPolicy(HostPolicy):
    """Compiled part of a runner of several agents: modules and connectors for `B` environments.

    What `HostPolicy` takes and returns for one module is here a dictionary by group of equal
    modules, of rows as `ModuleGroup` orders them; outputs are packed by environment, `[B, width,
    ...]`. The modules of a group are computed as one batch. Draws are those of the compiled program.

    Args:
        policies: Module and connectors by id.
        rows: Agents in the rows of modules.
        env_index: Global indices of the environments.
        explore: Whether to sample actions instead of taking the mode.
        hparams: Shapes of the hyperparameters of each module.
        critics: What is recorded for the central critic of each module, None without one.
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
        hparams: Mapping[str, PyTree],
        critics: Mapping[str, object],
        max_retraces: int | None = None,
        jit: bool = True,
    ) -> None:
        self._policies, self._rows = policies, rows
        self._before: dict[str, ActorCarry] = {}
        self._num_envs, self.explore = len(env_index), explore
        self.groups = make_groups(
            {m: self._describe(m, hparams[m], critics.get(m)) if jit else None for m in policies},
            {m: len(rows.get_positions(m)) for m in policies},
            self._num_envs,
        )
        super().__init__(
            cast("Any", None),  # each module has its own
            env_index,
            explore=explore,
            max_retraces=max_retraces,
            jit=jit,
        )

    def _describe(self, m: str, hparams: PyTree, critic: object) -> object:
        """Return a value that is equal for modules that act by the same function."""
        if len(self._policies) == 1:
            return None
        policy, rows = self._policies[m], self._num_envs * len(self._rows.get_positions(m))

        def act(actor: ActorState, drawn: PyTree, own: PyTree, index: PyTree) -> PyTree:
            out = self._act_alone(policy, actor, drawn, own, index)
            return out, policy.initial_carry(rows)

        def make_arguments() -> tuple[PyTree, ...]:
            actor = ActorState(
                params=policy.module.init(jax.random.key(0)),
                obs_state=policy.obs_pipeline.init(),
                hparams=jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), hparams),
                progress=Progress.zeros(),
            )
            draws = policy.module.draw(jax.random.split(jax.random.key(0), rows))
            obs = make_zeros(policy.obs_pipeline.space, (rows,))
            carry, last = policy.initial_carry(rows), make_blank_prev(rows)
            return actor, draws, (carry, obs, last), np.zeros(rows, np.int32)

        described = describe_function(act, *jax.eval_shape(make_arguments))
        return None if described is None else (described, critic)

    @property
    def carry_before(self) -> dict[str, ActorCarry]:
        """Carry of every group before the latest action, in NumPy."""
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
        """Unpack what each group records, `[*batch, R, ...]`, by group and column."""
        recorded = self.unpack_recorded(words)
        batch = words.ndim - 2
        return jax.tree.map(
            lambda x: x.reshape(*x.shape[:batch], -1, *x.shape[batch + 2 :]), recorded
        )

    def make_blank_obs(self) -> dict[str, PyTree]:
        """Return all-zero observations of every group's rows, in NumPy."""
        return self.unflatten_obs([np.zeros(x.shape, x.dtype) for x in self.obs_shapes])

    def make_blank_outputs(self) -> dict[str, PyTree]:
        """Return what each group records at a step, all-zero, in NumPy."""

        def record(group: ModuleGroup) -> PyTree:
            policy = self._get_policy(group)
            carry = policy.initial_carry(group.num_rows)
            return _select_recorded(act_on_zeros(policy, carry, group.num_rows))

        shapes = {id_: jax.eval_shape(partial(record, own)) for id_, own in self.groups.items()}
        return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)

    def _get_policy(self, group: ModuleGroup) -> PolicyStep:
        """Return the function that all modules of a group have."""
        return self._policies[group.id]

    def get_actor(self, module_id: str) -> ActorState | None:
        """Return the weights and statistics of a module to act with, None before some were set."""
        if self._actor is None:
            return None
        stacked = cast("dict[str, Any]", self._actor)
        own = next(group for group in self.groups.values() if module_id in group.modules)
        if own.is_single:
            return stacked[own.id]
        index = own.modules.index(module_id)
        return jax.tree.map(lambda x: x[index], stacked[own.id])

    def _arrange(self, actor: PyTree) -> PyTree:
        """Return the inputs of acting by group, stacked, given those by module."""
        stacked = {id_: stack([actor[m] for m in own.modules]) for id_, own in self.groups.items()}
        return jax.device_put(stacked, self.device) if len(stacked) < len(actor) else stacked

    def _make_blank_obs(self) -> PyTree:
        return {
            id_: make_zeros(self._get_policy(own).obs_pipeline.space, (own.num_rows,))
            for id_, own in self.groups.items()
        }

    def _make_first_carry(self) -> PyTree:
        return {
            id_: self._get_policy(own).initial_carry(own.num_rows)
            for id_, own in self.groups.items()
        }

    def _make_blank_prev(self) -> PyTree:
        return {id_: make_blank_prev(own.num_rows) for id_, own in self.groups.items()}

    def _draw_rows(self, action_key: Keys) -> PyTree:
        def draw(m: str) -> PyTree:
            return jax.vmap(self._policies[m].module.draw)(self._rows.derive_keys(action_key, m))

        return {
            id_: stack_traced((draw(m) for m in own.modules), axis=1)
            for id_, own in self.groups.items()
        }

    def _advance(self, carry: PyTree, last: PyTree) -> PyTree:
        if last is None:
            return carry
        return {
            id_: own.map(partial(_advance_alone, self._get_policy(own)), carry[id_], last[id_])
            for id_, own in self.groups.items()
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
        seen = jax.tree.map(jnp.asarray, self.unflatten_obs(obs))
        drawn = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, t, keepdims=False), draws)
        actions: dict[str, PyTree] = {}
        recorded: dict[str, PyTree] = {}
        after: dict[str, PyTree] = {}
        for id_, group in self.groups.items():
            flags = None if last is None else jax.tree.map(jnp.asarray, last[id_])
            rows = carry[id_], seen[id_], flags
            index = stack_traced(self._rows.number(env_index, m) for m in group.modules)
            act = partial(self._act_alone, self._get_policy(group))
            if group.is_single:
                out = act(actor[id_], drawn[id_], rows, index)
            else:
                split = jax.tree.map(group.split, rows)
                out = jax.vmap(act)(actor[id_], drawn[id_], split, index)
                out = jax.tree.map(group.merge, out)
            actions[id_], recorded[id_], after[id_] = out
        outputs = jax.tree.map(self._by_env, (actions, recorded))
        return outputs, after

    def _act_alone(
        self,
        policy: PolicyStep,
        actor: ActorState,
        drawn: PyTree,
        rows: tuple[ActorCarry, PyTree, PrevStep | None],
        index: Int[Array, " rows"],
    ) -> PyTree:
        """Act with one module: return actions, what is recorded, and the carry after it."""
        carry, obs, last = rows
        if last is None:
            starts = jnp.zeros(index.shape, bool)
            out = policy.act(actor, obs, carry, starts, index, drawn, self.explore)
            after = out[Columns.STATE_OUT]
        else:
            before = _advance_alone(policy, carry, last)
            starts = jnp.asarray(last.is_first)
            out = policy.act(actor, obs, before, starts, index, drawn, self.explore)
            after = where_rows(jnp.asarray(last.paused), before, out[Columns.STATE_OUT])
        return policy.action_pipeline(out[Columns.ACTIONS]), _select_recorded(out), after

    def _by_env(self, x: Array) -> Array:
        return x.reshape(self._num_envs, -1, *x.shape[1:])


def _advance_alone(policy: PolicyStep, carry: ActorCarry, last: PrevStep) -> ActorCarry:
    return policy.advance(carry, jnp.asarray(last.reward), jnp.asarray(last.is_first))


def make_blank_prev(rows: int) -> PrevStep:
    """Return the reward and flags of rows that have not begun an episode."""
    return PrevStep(
        reward=np.zeros(rows, np.float32),
        is_first=np.ones(rows, np.bool_),
        paused=np.zeros(rows, np.bool_),
    )


def _select_recorded(out: dict[str, Any]) -> dict[str, PyTree]:
    return {name: out[name] for name in (Columns.ACTIONS, *RECORDED_COLUMNS)}
