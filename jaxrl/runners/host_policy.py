"""Acting on the host: weights on one CPU device and one compiled call per vector step."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding
from jaxtyping import Array, Bool, Float, Int, UInt32

from jaxrl.core.struct import pytree, where_rows
from jaxrl.core.types import Columns, Device, Keys, Progress, PyTree
from jaxrl.envs.multi.base import Entry
from jaxrl.envs.vector import derive_transition_keys
from jaxrl.errors import ConfigError
from jaxrl.metrics import DEFAULT_MODULE
from jaxrl.modules.rl_module import RLModule, make_zeros
from jaxrl.runners.module_groups import (
    ModuleGroup,
    describe_function,
    make_groups,
    stack,
    stack_traced,
)
from jaxrl.runtime.program import Program
from jaxrl.training.agent_rows import AgentRows
from jaxrl.training.multi_rollout import act_on_zeros
from jaxrl.training.rollout import ActorCarry, ActorState, PolicyStep, select_recorded


@pytree
class PrevStep:
    """Reward that came with an observation, and whether the observation starts an episode.

    Paused environments are not acted in: their carry is kept.
    """

    reward: Float[np.ndarray, " B"]
    is_first: Bool[np.ndarray, " B"]
    paused: Bool[np.ndarray, " B"]


def make_blank_prev(rows: int) -> PrevStep:
    """Return the reward and flags of rows that have not begun an episode."""
    return PrevStep(
        reward=np.zeros(rows, np.float32),
        is_first=np.ones(rows, np.bool_),
        paused=np.zeros(rows, np.bool_),
    )


PrevSteps: TypeAlias = Mapping[str, PrevStep]
"""Rewards and flags of every group's rows."""
Carries: TypeAlias = dict[str, ActorCarry]
"""Carry of every group's rows."""


ONE_AGENT = AgentRows(
    entries=(Entry(key="agent_0", agents=("agent_0",)),), patterns=({"agent_0": DEFAULT_MODULE},)
)
"""Rows of environments of a single agent: one each, of the module `DEFAULT_MODULE`."""


class HostPolicy:
    """Compiled part of a runner: modules and their connectors for the agents of `B` environments.

    Observations, rewards with flags (`PrevStep`), carries and outputs are dictionaries by group of
    equal modules, of rows `[R, ...]` as `ModuleGroup` orders them; a single agent has the one group
    `DEFAULT_MODULE`, whose rows are the environments. The modules of a group are computed as one
    batch. The random draws of a whole fragment are made by one call, from the same keys as in the
    compiled loop. A step returns a single array, fetched in one transfer, which begins with the
    actions for the environments.

    Args:
        policies: Module and connectors by id.
        rows: Agents in the rows of modules.
        env_index: Global indices of the environments.
        explore: Whether to sample actions instead of taking the mode.
        hparams: Shapes of the hyperparameters of each module, if there are several.
        critics: Description of what is recorded for a module's central critic, of those that have one.
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
        hparams: Mapping[str, PyTree] = MappingProxyType({}),
        critics: Mapping[str, object] = MappingProxyType({}),
        max_retraces: int | None = None,
        jit: bool = True,
    ) -> None:
        self._policies, self._rows = policies, rows
        self._num_envs, self.explore = len(env_index), explore
        has_several = jit and len(policies) > 1
        self.groups = make_groups(
            {
                m: self._describe(m, hparams[m], critics.get(m)) if has_several else None
                for m in policies
            },
            {m: len(rows.get_positions(m)) for m in policies},
            self._num_envs,
        )
        self.device = get_cpu_device()
        self._sharding = SingleDeviceSharding(self.device)
        self.obs_shapes, self._treedef = jax.tree.flatten(jax.eval_shape(self._make_zero_obs))
        self._env_index = jax.device_put(np.asarray(env_index, np.int32), self.device)
        self._step_ranges: dict[int, Array] = {}
        self._step_indices: list[Array] = []
        self._actor: dict[str, ActorState] | None = None
        self._acting: dict[str, ActorState] | None = None
        self._has_own_params = any(
            type(policy.module).make_acting_params is not RLModule.make_acting_params
            for policy in policies.values()
        )
        self._read_indices: list[int] = []
        self._read_leaves: list[Array] = []
        self._output_packing: PackedLayout | None = None
        self._action_packing: PackedLayout | None = None
        self._begin_program = Program("host_begin", self._begin, enabled=jit)
        self._draw_program = Program("host_draw", self._draw, enabled=jit)
        self._act_program = Program(
            "host_act", self._act, max_retraces=max_retraces, low_latency=True, enabled=jit
        )
        self._before: Carries = {}
        self.set_carry(None)
        self.has_carry = bool(jax.tree.leaves(self._carry))
        """Whether a module or a connector has memory."""

    def _describe(self, m: str, hparams: PyTree, critic: object) -> object:
        """Return a value that is equal for modules that act by the same function."""
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
            obs = make_zeros(policy.observation_space, (rows,))
            carry, last = policy.initial_carry(rows), make_blank_prev(rows)
            return actor, draws, (carry, obs, last), np.zeros(rows, np.int32)

        described = describe_function(act, *jax.eval_shape(make_arguments))
        return None if described is None else (described, critic)

    def _make_zero_obs(self) -> dict[str, PyTree]:
        return {
            g: make_zeros(self._policies[g].observation_space, (group.num_rows,))
            for g, group in self.groups.items()
        }

    @property
    def programs(self) -> list[Program]:
        """Compiled programs."""
        begins = [self._begin_program] if self._has_own_params else []
        return [*begins, self._draw_program, self._act_program]

    def set_actor(self, actor: Mapping[str, ActorState]) -> None:
        """Set each module's weights and statistics, copied to the device if necessary."""
        if not all(self._is_on_device(leaf) for leaf in jax.tree.leaves(actor)):
            actor = jax.device_put(actor, self.device)
        stacked = {g: stack([actor[m] for m in own.modules]) for g, own in self.groups.items()}
        if len(stacked) < len(actor):
            stacked = jax.device_put(stacked, self.device)
        self._actor = stacked
        self._acting = self._begin_rollouts(stacked)
        self._select_read_leaves()

    def _begin_rollouts(self, actor: dict[str, ActorState]) -> dict[str, ActorState]:
        """Return the inputs of acting with the weights that were set."""
        if not (self.explore and self._has_own_params):
            return actor
        return self._begin_program(actor, self._env_index)

    def _begin(
        self, actor: dict[str, ActorState], env_index: Int[Array, " B"]
    ) -> dict[str, ActorState]:
        begun = dict(actor)
        for g, group in self.groups.items():
            policy, index = (
                self._policies[g],
                [self._rows.number(env_index, m) for m in group.modules],
            )
            begun[g] = (
                policy.begin_rollout(actor[g], index[0])
                if group.is_single
                else jax.vmap(policy.begin_rollout)(actor[g], stack_traced(index))
            )
        return begun

    def get_actor(self, module_id: str) -> ActorState | None:
        """Return the weights and statistics of a module to act with, None before some were set."""
        if self._actor is None:
            return None
        own = next(group for group in self.groups.values() if module_id in group.modules)
        if own.is_single:
            return self._actor[own.id]
        index = own.modules.index(module_id)
        return jax.tree.map(lambda x: x[index], self._actor[own.id])

    def _is_on_device(self, leaf: object) -> bool:
        return isinstance(leaf, jax.Array) and leaf.sharding == self._sharding

    def set_env_index(self, env_index: Int[np.ndarray, " B"]) -> None:
        """Replace the indices of the environments, of which there are as many as before."""
        self._env_index = jax.device_put(np.asarray(env_index, np.int32), self.device)

    def set_carry(self, carry: Carries | None) -> None:
        """Set the carry to continue from; None for the carry of episode starts."""
        if carry is None:
            carry = {
                g: self._policies[g].initial_carry(group.num_rows)
                for g, group in self.groups.items()
            }
        self._carry: Carries = jax.device_put(carry, self.device)

    @property
    def carry(self) -> Carries:
        """Carry after the latest action, in NumPy."""
        return jax.tree.map(np.asarray, self._carry)

    @property
    def carry_before(self) -> Carries:
        """Carry before the latest action, in NumPy."""
        return jax.tree.map(np.asarray, self._before)

    def make_blank_obs(self) -> dict[str, PyTree]:
        """Return all-zero observations of every group's rows, in NumPy."""
        return self.unflatten_obs([np.zeros(x.shape, x.dtype) for x in self.obs_shapes])

    def make_blank_outputs(self) -> dict[str, PyTree]:
        """Return what each group records at a step, all-zero, in NumPy."""

        def record(group: ModuleGroup) -> PyTree:
            policy = self._policies[group.id]
            carry = policy.initial_carry(group.num_rows)
            return _select_outputs(act_on_zeros(policy, carry, group.num_rows))

        shapes = {g: jax.eval_shape(partial(record, own)) for g, own in self.groups.items()}
        return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)

    def flatten_obs(self, obs: PyTree) -> list[Any]:
        """Return the leaves of observations, in the order of `obs_shapes`."""
        return self._treedef.flatten_up_to(obs)

    def unflatten_obs(self, leaves: Sequence[Any]) -> PyTree:
        """Return the observations with these leaves, in the order of `obs_shapes`."""
        return self._treedef.unflatten(leaves)

    def begin_fragment(
        self, key: Keys, count: UInt32[np.ndarray, " B"], num_steps: int, prev_step: PrevSteps
    ) -> Carries:
        """Make the random draws for the next `num_steps` calls of `act`.

        Args:
            key: Random keys of the environments.
            count: Number of transitions of each environment so far.
            num_steps: Maximum number of following calls of `act`.
            prev_step: Reward and flags that came with the first observations to act on.

        Returns:
            Carry before the first of these steps.

        Raises:
            ConfigError: If no weights have been set.
        """
        if self._actor is None:
            raise ConfigError("The runner has no weights yet: call set_weights() before sampling.")
        if num_steps not in self._step_ranges:
            steps = np.arange(num_steps, dtype=np.uint32)
            self._step_ranges[num_steps] = jax.device_put(steps, self.device)
        used = prev_step if self.has_carry else None
        self._draws, self._carry = self._draw_program(
            key, count, self._step_ranges[num_steps], self._carry, used
        )
        self._t = 0
        for t in range(len(self._step_indices), num_steps):
            self._step_indices.append(jax.device_put(np.int32(t), self.device))
        obs = [np.zeros(shape.shape, shape.dtype) for shape in self.obs_shapes]
        if self._output_packing is None:
            self._init_layouts()
            self._find_read_leaves(obs, prev_step)
        start = self.carry
        self._compiled_act = self._act_program.get_executable(*self._make_arguments(obs, prev_step))
        return start

    def act(self, obs: list[np.ndarray], prev_step: PrevSteps) -> UInt32[np.ndarray, "B width"]:
        """Compute a step's outputs, packed into words, for the leaves of the observations."""
        words, self._before, self._carry = self._compiled_act(*self._make_arguments(obs, prev_step))
        self._t += 1
        return np.asarray(words)

    @property
    def num_words(self) -> int:
        """Number of words per environment and step, known once a fragment was begun."""
        assert self._output_packing is not None
        return self._output_packing.num_words

    def unpack_env_action(self, words: UInt32[np.ndarray, "B width"]) -> dict[str, PyTree]:
        """Unpack the actions for the environments, as a copy that environments may write to."""
        assert self._action_packing is not None
        return self._action_packing.unpack(words[:, : self._action_packing.num_words].copy())

    def unpack_recorded(
        self, words: UInt32[np.ndarray, "*batch B width"]
    ) -> dict[str, dict[str, PyTree]]:
        """Unpack modules' actions and the other recorded outputs `[*batch, R, ...]`, by column."""
        assert self._output_packing is not None
        return self._output_packing.unpack(words)[1]

    def _make_arguments(self, obs: list[np.ndarray], last: PrevSteps) -> tuple[Any, ...]:
        used, t = last if self.has_carry else None, self._step_indices[self._t]
        return (self._read_leaves, self._draws, t, self._carry, obs, used, self._env_index)

    def _find_read_leaves(self, obs: list[np.ndarray], last: PrevSteps) -> None:
        """Find the actor leaves that a step reads; passing the others would double its cost.

        Acting needs no parameters of the value function, and few hyperparameters if any.
        """
        leaves = jax.tree.leaves(self._acting)
        self._read_indices = list(range(len(leaves)))
        self._select_read_leaves()
        jaxpr = jax.make_jaxpr(self._act)(*self._make_arguments(obs, last)).jaxpr
        inputs = [id(atom) for equation in jaxpr.eqns for atom in equation.invars]
        read = {*inputs, *(id(atom) for atom in jaxpr.outvars)}
        self._read_indices = [i for i in self._read_indices if id(jaxpr.invars[i]) in read]
        self._select_read_leaves()

    def _select_read_leaves(self) -> None:
        leaves = jax.tree.leaves(self._acting)
        self._read_leaves = [leaves[i] for i in self._read_indices]

    def _rebuild_actor(self, read: list[Array]) -> dict[str, ActorState]:
        """Rebuild the actor from the leaves that a step reads, with zeros for the others."""
        leaves, structure = jax.tree.flatten(self._acting)
        filled: list[Any] = [jnp.zeros(leaf.shape, leaf.dtype) for leaf in leaves]
        for i, leaf in zip(self._read_indices, read, strict=True):
            filled[i] = leaf
        return jax.tree.unflatten(structure, filled)

    def _draw(
        self,
        key: Keys,
        count: UInt32[Array, " B"],
        steps: UInt32[Array, " T"],
        carry: Carries,
        last: PrevSteps | None,
    ) -> tuple[PyTree, Carries]:
        action_key = derive_transition_keys(key, count, steps)[0]

        def draw(m: str) -> PyTree:
            return jax.vmap(self._policies[m].module.draw)(self._rows.derive_keys(action_key, m))

        draws = {
            g: stack_traced((draw(m) for m in group.modules), axis=1)
            for g, group in self.groups.items()
        }
        return draws, self._advance(carry, last)

    def _advance(self, carry: Carries, last: PrevSteps | None) -> Carries:
        """Advance the carry by the rewards and flags of observations (idempotent)."""
        if last is None:
            return carry
        return {
            g: group.map(partial(_advance_alone, self._policies[g]), carry[g], last[g])
            for g, group in self.groups.items()
        }

    def _act(
        self,
        read: list[Array],
        draws: PyTree,
        t: Int[Array, ""],
        carry: Carries,
        obs: list[Array],
        last: PrevSteps | None,
        env_index: Int[Array, " B"],
    ) -> tuple[UInt32[Array, "B width"], Carries, Carries]:
        """Return packed outputs, and the carry before and after the step."""
        assert self._output_packing is not None
        actor = self._rebuild_actor(read)
        outputs, after = self._step(actor, draws, t, carry, obs, last, env_index)
        before = {} if last is None else self._advance(carry, last)
        return self._output_packing.pack(outputs), before, after

    def _step(
        self,
        actor: dict[str, ActorState],
        draws: PyTree,
        t: Int[Array, ""],
        carry: Carries,
        obs: list[Array],
        last: PrevSteps | None,
        env_index: Int[Array, " B"],
    ) -> tuple[tuple[dict[str, PyTree], dict[str, PyTree]], Carries]:
        seen = jax.tree.map(jnp.asarray, self.unflatten_obs(obs))
        drawn = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, t, keepdims=False), draws)
        actions: dict[str, PyTree] = {}
        recorded: dict[str, PyTree] = {}
        after: Carries = {}
        for g, group in self.groups.items():
            flags = None if last is None else jax.tree.map(jnp.asarray, last[g])
            rows = carry[g], seen[g], flags
            index = stack_traced(self._rows.number(env_index, m) for m in group.modules)
            act = partial(self._act_alone, self._policies[g])
            if group.is_single:
                out = act(actor[g], drawn[g], rows, index)
            else:
                split = jax.tree.map(group.split, rows)
                out = jax.vmap(act)(actor[g], drawn[g], split, index)
                out = jax.tree.map(group.merge, out)
            actions[g], recorded[g], after[g] = out
        return (actions, recorded), after

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
        return policy.action_pipeline(out[Columns.ACTIONS]), _select_outputs(out), after

    def _init_layouts(self) -> None:
        last = {g: make_blank_prev(group.num_rows) for g, group in self.groups.items()}
        arguments = self._make_arguments(self.obs_shapes, last)[1:]
        outputs, _ = jax.eval_shape(self._step, self._acting, *arguments)
        self._output_packing = PackedLayout(outputs, self._num_envs)
        self._action_packing = PackedLayout(outputs[0], self._num_envs)


def _advance_alone(policy: PolicyStep, carry: ActorCarry, last: PrevStep) -> ActorCarry:
    return policy.advance(carry, jnp.asarray(last.reward), jnp.asarray(last.is_first))


def _select_outputs(out: dict[str, Any]) -> dict[str, PyTree]:
    return {Columns.ACTIONS: out[Columns.ACTIONS], **select_recorded(out)}


def get_cpu_device() -> Device:
    """Return the CPU device on which host runners act.

    Raises:
        ConfigError: If JAX is configured without the CPU backend.
    """
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        raise ConfigError(
            "Actions for environments on the host are computed on the CPU, which JAX is configured "
            f"to exclude: set JAX_PLATFORMS to e.g. 'cuda,cpu' ({error})."
        ) from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Leaf:
    """Position of a leaf `[B * width, *shape]` in the words of an environment, and its types."""

    start: int
    stop: int
    width: int
    shape: tuple[int, ...]
    packed: np.dtype[Any]
    dtype: np.dtype[Any]


class PackedLayout:
    """Layout of a tree of arrays `[R, ...]` in a single array of 32-bit words `[B, words]`.

    Each environment has the same number of rows of a leaf, which are neighbors. Values are stored
    bit by bit. Types of fewer than 32 bits take a word per value.
    """

    def __init__(self, shapes: PyTree, num_envs: int) -> None:
        """Compute the layout from the result of `jax.eval_shape` for a tree of `B` environments."""
        self._num_envs = num_envs
        leaves, self._treedef = jax.tree.flatten(shapes)
        self._leaves: list[_Leaf] = []
        start = 0
        for leaf in leaves:
            dtype, shape = np.dtype(leaf.dtype), tuple(leaf.shape[1:])
            packed = _widen(dtype)
            width = leaf.shape[0] // num_envs
            stop = start + width * math.prod(shape) * packed.itemsize // 4
            self._leaves.append(
                _Leaf(start=start, stop=stop, width=width, shape=shape, packed=packed, dtype=dtype)
            )
            start = stop
        self.num_words = start

    def pack(self, tree: PyTree) -> UInt32[Array, "B width"]:
        """Pack a tree of this layout into words; call it under tracing."""
        parts: list[Array] = []
        for leaf, spec in zip(jax.tree.leaves(tree), self._leaves, strict=True):
            words = jax.lax.bitcast_convert_type(jnp.asarray(leaf, spec.packed), jnp.uint32)
            parts.append(words.reshape(self._num_envs, spec.stop - spec.start))
        return jnp.concatenate(parts, axis=1)

    def unpack(self, words: UInt32[np.ndarray, "*batch B words"]) -> PyTree:
        """Unpack words into a NumPy tree with the same batch axes, which may share their memory."""
        *batch, num_envs, _ = words.shape
        leaves: list[np.ndarray] = []
        for spec in self._leaves:
            leaf = words[..., spec.start : spec.stop].view(spec.packed)
            leaf = leaf.reshape(*batch, num_envs * spec.width, *spec.shape)
            leaves.append(leaf if spec.packed == spec.dtype else leaf.astype(spec.dtype))
        return jax.tree.unflatten(self._treedef, leaves)


def _widen(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the 32-bit or 64-bit type that represents every value of a type."""
    if dtype.itemsize >= 4:
        return dtype
    return np.dtype(np.float32 if jnp.issubdtype(dtype, jnp.floating) else np.int32)
