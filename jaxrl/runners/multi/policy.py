"""Acting of several modules on the host: one compiled call for all of them per vector step."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from jaxrl.core.struct import where_rows
from jaxrl.core.types import CentralObs, Columns, Keys, Progress, PyTree
from jaxrl.envs.multi.checked import HostMultiStart, HostMultiStep
from jaxrl.envs.multi.host_vector import CopyStep
from jaxrl.modules.rl_module import make_zeros
from jaxrl.runners.host_policy import HostPolicy, PrevStep, get_cpu_device
from jaxrl.runners.multi.slots import (
    ModuleGroup,
    describe_function,
    make_groups,
    stack,
    stack_traced,
)
from jaxrl.runtime.program import Program
from jaxrl.training.agent_rows import AgentRows, AgentView, CriticInputs, Scene
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


CriticRows = dict[str, Float[np.ndarray, "R n"]]
"""Input of the critic of each row, by module."""


class CriticScenes:
    """Moments of all copies, of which the compiled program's function makes critics' inputs.

    There are two moments of a copy, which differ where an episode ends: that after the latest step,
    before any reset, and that at which agents act next. An agent that has no observation at a
    moment, because it is not its turn, has its latest one there.

    Args:
        critics: Inputs of each module's critic.
        rows: Agents in the rows of modules.
        num_envs: Number of copies B.
        jit: Whether to compile; False runs operation by operation.
    """

    def __init__(
        self, critics: Mapping[str, CriticInputs], rows: AgentRows, num_envs: int, *, jit: bool
    ) -> None:
        self._critics, self._rows, self._num_envs = dict(critics), rows, num_envs
        first = next(iter(self._critics.values()))
        self._device = get_cpu_device()
        self._obs = {a: _make_zeros(first.observed[a], 2 * num_envs) for a in rows.agents}
        self._is_there = np.zeros((2 * num_envs, len(rows.agents)), np.bool_)
        self._state: PyTree = None
        if first.reads_state:
            assert first.state_space is not None
            self._state = _make_zeros(first.state_space, 2 * num_envs)
        self._position = {agent: i for i, agent in enumerate(rows.agents)}
        self.program = Program("host_critic_inputs", self._compute, low_latency=True, enabled=jit)

    @staticmethod
    def make_if(
        views: Mapping[str, AgentView], rows: AgentRows, num_envs: int, *, jit: bool
    ) -> "CriticScenes | None":
        """Return the moments of copies, None if no module has a central critic."""
        critics = {m: view.critic for m, view in views.items() if view.critic is not None}
        return CriticScenes(critics, rows, num_envs, jit=jit) if critics else None

    def make_blank(self) -> CriticRows:
        """Return all-zero inputs."""
        return {
            m: np.zeros(
                (self._num_envs * len(self._rows.get_positions(m)), *critic.space.shape), np.float32
            )
            for m, critic in self._critics.items()
        }

    def watch(self, steps: Sequence[CopyStep]) -> tuple[CriticRows, CriticRows]:
        """Add what happened in the copies.

        Returns:
            Inputs of the critics after the step, and those at which agents act next.
        """
        for env, copy in enumerate(steps):
            if copy.step is not None:
                self._add_step(env, copy.step)
            if copy.start is not None:
                self._add_start(self._num_envs + env, copy.start)
        arguments = self._obs, self._is_there, self._state
        found = jax.device_get(self.program(*jax.device_put(arguments, self._device)))
        after: CriticRows = {m: rows[: len(rows) // 2] for m, rows in found.items()}
        return after, {m: rows[len(rows) // 2 :] for m, rows in found.items()}

    def _compute(self, obs: PyTree, is_there: Bool[Array, "B A"], state: PyTree) -> PyTree:
        flags = {agent: is_there[:, i] for agent, i in self._position.items()}
        scene = Scene(obs=obs, is_there=flags, global_state=state)
        return {m: critic(scene) for m, critic in self._critics.items()}

    def _add_start(self, row: int, start: HostMultiStart) -> None:
        self._is_there[row] = False
        for agent, obs in start.obs.items():
            self._is_there[row, self._position[agent]] = True
            _write(self._obs[agent], row, obs)
        _write(self._state, row, start.global_state)

    def _add_step(self, env: int, step: HostMultiStep) -> None:
        """Add a step, by the rules of `Scene.after`."""
        before = self._num_envs + env
        died, left = step.terminated, step.truncated
        stays = [agent for agent in step.present if not (died[agent] or left[agent])]
        acts = [agent for agent, flag in step.acts.items() if flag]
        goes_on = list(dict.fromkeys((*stays, *acts)))
        there = goes_on or [agent for agent in step.present if not died[agent]]
        for agent, obs in step.obs.items():
            _write(self._obs[agent], before, obs)
        for tree in self._obs.values():
            jax.tree.map(lambda leaf: _copy_row(leaf, before, env), tree)
        for row, agents in ((env, there), (before, goes_on)):
            self._is_there[row] = False
            self._is_there[row, [self._position[agent] for agent in agents]] = True
            _write(self._state, row, step.global_state)

    def get_state(self) -> PyTree:
        """Return the moments at which agents act next, as arrays `[B, ...]`."""
        tree = self._obs, self._is_there, self._state
        return jax.tree.map(lambda leaf: leaf[self._num_envs :].copy(), tree)

    def set_state(self, state: PyTree) -> None:
        """Restore what `get_state` returned."""

        def fill(to: np.ndarray, saved: np.ndarray) -> None:
            to[self._num_envs :] = np.asarray(saved)

        jax.tree.map(fill, (self._obs, self._is_there, self._state), state)


def with_central(unflatten: Callable[[Sequence[Any]], PyTree]) -> Callable[[Sequence[Any]], PyTree]:
    """Return a function of leaves, the last of which is what a central critic sees."""

    def build(leaves: Sequence[Any]) -> CentralObs:
        return CentralObs(obs=unflatten(leaves[:-1]), state=leaves[-1])

    return build


def _make_zeros(space: gymnasium.Space[Any], rows: int) -> PyTree:
    shapes = jax.eval_shape(lambda: make_zeros(space, (rows,)))
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)


def _write(tree: PyTree, row: int, value: PyTree) -> None:
    """Write a value into a row of a tree, which may have no leaves."""
    for to, leaf in zip(jax.tree.leaves(tree), jax.tree.leaves(value), strict=tree is not None):
        to[row] = leaf


def _copy_row(leaf: np.ndarray, source: int, to: int) -> None:
    leaf[to] = leaf[source]
