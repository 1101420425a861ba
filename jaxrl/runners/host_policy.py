"""Acting on the host: weights on one CPU device and one compiled call per vector step."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding
from jaxtyping import Array, Bool, Float, Int, UInt32

from jaxrl.core.struct import pytree, where_rows
from jaxrl.core.types import Columns, Device, Keys, PyTree
from jaxrl.envs.vector import derive_transition_keys
from jaxrl.errors import ConfigError
from jaxrl.modules.rl_module import make_zeros
from jaxrl.runtime.program import Program
from jaxrl.training.rollout import RECORDED_COLUMNS, ActorCarry, ActorState, PolicyStep


@pytree
class PrevStep:
    """Reward that came with an observation, and whether the observation starts an episode.

    Paused environments are not acted in: their carry is kept.
    """

    reward: Float[np.ndarray, " B"]
    is_first: Bool[np.ndarray, " B"]
    paused: Bool[np.ndarray, " B"]


class HostPolicy:
    """Compiled part of a runner: a module and its connectors for `B` environments.

    The random draws of a whole fragment are made by one call, from the same keys as in the compiled
    loop. A step returns a single array, fetched in one transfer, which begins with the actions for
    the environments.

    Args:
        policy_step: Module and connectors.
        env_index: Global indices of the environments.
        explore: Whether to sample actions instead of taking the mode.
        max_retraces: Maximum number of retraces, see `Program`.
        jit: Whether to compile; False runs operation by operation.
    """

    def __init__(
        self,
        policy_step: PolicyStep,
        env_index: Int[np.ndarray, " B"],
        *,
        explore: bool,
        max_retraces: int | None = None,
        jit: bool = True,
    ) -> None:
        self.policy_step = policy_step
        self.device = get_cpu_device()
        self._sharding = SingleDeviceSharding(self.device)
        self.explore = explore
        self._num_envs = len(env_index)
        self.obs_shapes, self._treedef = jax.tree.flatten(jax.eval_shape(self._make_blank_obs))
        self._env_index = jax.device_put(np.asarray(env_index, np.int32), self.device)
        self._step_ranges: dict[int, Array] = {}
        self._step_indices: list[Array] = []
        self._actor: ActorState | None = None
        self._read_indices: list[int] = []
        self._read_leaves: list[Array] = []
        self._output_packing: PackedLayout | None = None
        self._action_packing: PackedLayout | None = None
        self._draw_program = Program("host_draw", self._draw, enabled=jit)
        self._act_program = Program(
            "host_act", self._act, max_retraces=max_retraces, low_latency=True, enabled=jit
        )
        self.set_carry(None)
        self._has_carry = bool(jax.tree.leaves(self._carry))

    def _make_blank_obs(self) -> PyTree:
        """Return all-zero observations of all environments."""
        return make_zeros(self.policy_step.observation_space, (self._num_envs,))

    def _make_first_carry(self) -> ActorCarry:
        """Return the carry of episode starts."""
        return self.policy_step.initial_carry(self._num_envs)

    def _make_blank_prev(self) -> PrevStep:
        """Return rewards and flags that are all zero."""
        none = np.zeros(self._num_envs, np.bool_)
        return PrevStep(reward=np.zeros(self._num_envs, np.float32), is_first=none, paused=none)

    @property
    def programs(self) -> list[Program]:
        """Compiled programs."""
        return [self._draw_program, self._act_program]

    def set_actor(self, actor: ActorState) -> None:
        """Set the weights and statistics to act with, copied to the device if necessary."""
        if not all(self._is_on_device(leaf) for leaf in jax.tree.leaves(actor)):
            actor = jax.device_put(actor, self.device)
        self._actor = self._arrange(actor)
        self._select_read_leaves()

    def get_actor(self, module_id: str) -> ActorState | None:
        """Return the weights and statistics of a module to act with, None before some were set."""
        del module_id  # there is one
        return self._actor

    def _arrange(self, actor: PyTree) -> PyTree:
        """Return the weights and statistics in the form that a step takes."""
        return actor

    def _is_on_device(self, leaf: object) -> bool:
        return isinstance(leaf, jax.Array) and leaf.sharding == self._sharding

    def set_env_index(self, env_index: Int[np.ndarray, " B"]) -> None:
        """Replace the indices of the environments, of which there are as many as before."""
        self._env_index = jax.device_put(np.asarray(env_index, np.int32), self.device)

    def set_carry(self, carry: ActorCarry | None) -> None:
        """Set the carry to continue from; None for the carry of episode starts."""
        new = self._make_first_carry() if carry is None else carry
        self._carry = jax.device_put(new, self.device)

    @property
    def carry(self) -> ActorCarry:
        """Carry after the latest action, in NumPy."""
        return jax.tree.map(np.asarray, self._carry)

    def flatten_obs(self, obs: PyTree) -> list[Any]:
        """Return the leaves of observations, in the order of `obs_shapes`."""
        return self._treedef.flatten_up_to(obs)

    def unflatten_obs(self, leaves: Sequence[Any]) -> PyTree:
        """Return the observations with these leaves, in the order of `obs_shapes`."""
        return self._treedef.unflatten(leaves)

    def begin_fragment(
        self, key: Keys, count: UInt32[np.ndarray, " B"], num_steps: int, prev_step: PrevStep
    ) -> ActorCarry:
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
        used = prev_step if self._has_carry else None
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

    def act(self, obs: list[np.ndarray], prev_step: PrevStep) -> UInt32[np.ndarray, "B width"]:
        """Compute a step's outputs, packed into words, for the leaves of the observations."""
        words, self._carry = self._compiled_act(*self._make_arguments(obs, prev_step))
        self._t += 1
        return np.asarray(words)

    @property
    def num_words(self) -> int:
        """Number of words per environment and step, known once a fragment was begun."""
        assert self._output_packing is not None
        return self._output_packing.num_words

    def unpack_env_action(self, words: UInt32[np.ndarray, "B width"]) -> PyTree:
        """Unpack the actions for the environments, as a copy that environments may write to."""
        assert self._action_packing is not None
        return self._action_packing.unpack(words[:, : self._action_packing.num_words].copy())

    def unpack_recorded(self, words: UInt32[np.ndarray, "*batch width"]) -> dict[str, PyTree]:
        """Unpack the module's actions and the other recorded outputs, by column."""
        assert self._output_packing is not None
        return self._output_packing.unpack(words)[1]

    def _make_arguments(self, obs: list[np.ndarray], last: PrevStep) -> tuple[Any, ...]:
        used, t = last if self._has_carry else None, self._step_indices[self._t]
        return (self._read_leaves, self._draws, t, self._carry, obs, used, self._env_index)

    def _find_read_leaves(self, obs: list[np.ndarray], last: PrevStep) -> None:
        """Find the actor leaves that a step reads; passing the others would double its cost.

        Acting needs no parameters of the value function, and few hyperparameters if any.
        """
        leaves = jax.tree.leaves(self._actor)
        self._read_indices = list(range(len(leaves)))
        self._select_read_leaves()
        jaxpr = jax.make_jaxpr(self._act)(*self._make_arguments(obs, last)).jaxpr
        inputs = [id(atom) for equation in jaxpr.eqns for atom in equation.invars]
        read = {*inputs, *(id(atom) for atom in jaxpr.outvars)}
        self._read_indices = [i for i in self._read_indices if id(jaxpr.invars[i]) in read]
        self._select_read_leaves()

    def _select_read_leaves(self) -> None:
        leaves = jax.tree.leaves(self._actor)
        self._read_leaves = [leaves[i] for i in self._read_indices]

    def _rebuild_actor(self, read: list[Array]) -> ActorState:
        """Rebuild the actor from the leaves that a step reads, with zeros for the others."""
        leaves, structure = jax.tree.flatten(self._actor)
        filled: list[Any] = [jnp.zeros(leaf.shape, leaf.dtype) for leaf in leaves]
        for i, leaf in zip(self._read_indices, read, strict=True):
            filled[i] = leaf
        return jax.tree.unflatten(structure, filled)

    def _draw(
        self,
        key: Keys,
        count: UInt32[Array, " B"],
        steps: UInt32[Array, " T"],
        carry: ActorCarry,
        last: PrevStep | None,
    ) -> tuple[PyTree, ActorCarry]:
        action_key = derive_transition_keys(key, count, steps)[0]
        return self._draw_rows(action_key), self._advance(carry, last)

    def _draw_rows(self, action_key: Keys) -> PyTree:
        """Make the module's random draws, given the keys `[T, B]` of transitions."""
        return jax.vmap(self.policy_step.module.draw)(action_key)

    def _advance(self, carry: ActorCarry, last: PrevStep | None) -> ActorCarry:
        """Advance the carry by the reward and flag of an observation (idempotent)."""
        if last is None:
            return carry
        return self.policy_step.advance(carry, jnp.asarray(last.reward), jnp.asarray(last.is_first))

    def _act(
        self,
        read: list[Array],
        draws: PyTree,
        t: Int[Array, ""],
        carry: ActorCarry,
        obs: list[Array],
        last: PrevStep | None,
        env_index: Int[Array, " B"],
    ) -> tuple[UInt32[Array, "B width"], ActorCarry]:
        assert self._output_packing is not None
        actor = self._rebuild_actor(read)
        outputs, carry = self._step(actor, draws, t, carry, obs, last, env_index)
        return self._output_packing.pack(outputs), carry

    def _step(
        self,
        actor: ActorState,
        draws: PyTree,
        t: Int[Array, ""],
        carry: ActorCarry,
        obs: list[Array],
        last: PrevStep | None,
        env_index: Int[Array, " B"],
    ) -> tuple[tuple[PyTree, dict[str, PyTree]], ActorCarry]:
        def now(x: Array) -> Array:
            return jax.lax.dynamic_index_in_dim(x, t, keepdims=False)

        carry = self._advance(carry, last)
        starts = jnp.zeros((self._num_envs,), bool) if last is None else jnp.asarray(last.is_first)
        out = self.policy_step.act(
            actor,
            jax.tree.map(jnp.asarray, self.unflatten_obs(obs)),
            carry,
            starts,
            env_index,
            jax.tree.map(now, draws),
            self.explore,
        )
        action = out[Columns.ACTIONS]
        recorded = {Columns.ACTIONS: action, **{name: out[name] for name in RECORDED_COLUMNS}}
        after = out[Columns.STATE_OUT]
        if last is not None:
            after = where_rows(jnp.asarray(last.paused), carry, after)
        return (self.policy_step.action_pipeline(action), recorded), after

    def _init_layouts(self) -> None:
        arguments = self._make_arguments(self.obs_shapes, self._make_blank_prev())[1:]
        outputs, _ = jax.eval_shape(self._step, self._actor, *arguments)
        self._output_packing, self._action_packing = PackedLayout(outputs), PackedLayout(outputs[0])


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
    """Position of a leaf `[B, *shape]` in the words of a row, and its types."""

    start: int
    stop: int
    shape: tuple[int, ...]
    packed: np.dtype[Any]
    dtype: np.dtype[Any]


class PackedLayout:
    """Layout of a tree of arrays `[B, ...]` in a single array of 32-bit words `[B, width]`.

    Values are stored bit by bit. Types of fewer than 32 bits take a word per value.
    """

    def __init__(self, shapes: PyTree) -> None:
        """Compute the layout from the result of `jax.eval_shape` for a tree."""
        leaves, self._treedef = jax.tree.flatten(shapes)
        self._leaves: list[_Leaf] = []
        start = 0
        for leaf in leaves:
            dtype, shape = np.dtype(leaf.dtype), tuple(leaf.shape[1:])
            packed = _widen(dtype)
            stop = start + math.prod(shape) * packed.itemsize // 4
            self._leaves.append(
                _Leaf(start=start, stop=stop, shape=shape, packed=packed, dtype=dtype)
            )
            start = stop
        self.num_words = start

    def pack(self, tree: PyTree) -> UInt32[Array, "B width"]:
        """Pack a tree of this layout into words; call it under tracing."""
        parts: list[Array] = []
        for leaf, spec in zip(jax.tree.leaves(tree), self._leaves, strict=True):
            words = jax.lax.bitcast_convert_type(jnp.asarray(leaf, spec.packed), jnp.uint32)
            parts.append(words.reshape(leaf.shape[0], spec.stop - spec.start))
        return jnp.concatenate(parts, axis=1)

    def unpack(self, words: UInt32[np.ndarray, "*batch width"]) -> PyTree:
        """Unpack words into a NumPy tree with the same batch axes, which may share their memory."""
        batch = words.shape[:-1]
        leaves: list[np.ndarray] = []
        for spec in self._leaves:
            leaf = words[..., spec.start : spec.stop].view(spec.packed).reshape(*batch, *spec.shape)
            leaves.append(leaf if spec.packed == spec.dtype else leaf.astype(spec.dtype))
        return jax.tree.unflatten(self._treedef, leaves)


def _widen(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the 32-bit or 64-bit type that represents every value of a type."""
    if dtype.itemsize >= 4:
        return dtype
    return np.dtype(np.float32 if jnp.issubdtype(dtype, jnp.floating) else np.int32)
