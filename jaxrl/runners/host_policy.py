"""Acting on the host: weights on one CPU device, one compiled call for each vector step."""

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
from jaxrl.core.types import Columns, Device, Key, PyTree
from jaxrl.envs.vector import transition_keys
from jaxrl.errors import ConfigError
from jaxrl.modules.rl_module import zeros_of
from jaxrl.runtime.program import Program
from jaxrl.training.rollout import RECORDED, Acting, Actor, Carry


@pytree
class Last:
    """What came with an observation: the reward, and whether the observation starts an episode.

    An environment that is `held` is not acted in: its carry stays as it is.
    """

    reward: Float[np.ndarray, " B"]
    starts: Bool[np.ndarray, " B"]
    held: Bool[np.ndarray, " B"]


class HostActing:
    """The compiled part of a runner: a module and its connectors for `B` environments.

    The draws of a whole fragment are made by one call, from the keys that the compiled loop uses.
    All that a step returns is one array, which is fetched by one transfer; the environments'
    actions come first in it.

    Args:
        acting: Module and connectors.
        env_index: Global indices of the environments.
        explore: Sample actions, or take the mode.
        max_retraces: See `Program`.
        jit: False runs operation by operation.
    """

    def __init__(
        self,
        acting: Acting,
        env_index: Int[np.ndarray, " B"],
        *,
        explore: bool,
        max_retraces: int | None = None,
        jit: bool = True,
    ) -> None:
        self.acting = acting
        self.device = cpu_device()
        self._place = SingleDeviceSharding(self.device)
        self._explore = explore
        self._rows = len(env_index)
        shapes = jax.eval_shape(lambda: zeros_of(acting.obs_pipeline.space, (self._rows,)))
        self.obs_shapes, self._structure = jax.tree.flatten(shapes)
        self._env_index = jax.device_put(np.asarray(env_index, np.int32), self.device)
        self._steps: dict[int, Array] = {}
        self._numbers: list[Array] = []
        self._actor: Actor | None = None
        self._read: list[int] = []
        self._what_is_read: list[Array] = []
        self._outputs: Packing | None = None
        self._actions: Packing | None = None
        self._draw_program = Program("host_draw", self._draw, enabled=jit)
        self._act_program = Program(
            "host_act", self._act, max_retraces=max_retraces, waited_for=True, enabled=jit
        )
        self.set_carry(None)
        self._carries = bool(jax.tree.leaves(self._carry))

    @property
    def programs(self) -> list[Program]:
        """What is compiled."""
        return [self._draw_program, self._act_program]

    def set_actor(self, actor: Actor) -> None:
        """Act with these weights and statistics from now on; copied to the device if need be."""
        if not all(self._is_here(leaf) for leaf in jax.tree.leaves(actor)):
            actor = jax.device_put(actor, self.device)
        self._actor = actor
        self._choose_what_is_read()

    def _is_here(self, leaf: Any) -> bool:
        return isinstance(leaf, jax.Array) and leaf.sharding == self._place

    def set_carry(self, carry: Carry | None) -> None:
        """Go on from a carry; None for that of episode starts."""
        blank = self.acting.initial_carry(self._rows) if carry is None else carry
        self._carry = jax.device_put(blank, self.device)

    @property
    def carry(self) -> Carry:
        """The carry after the latest action, NumPy."""
        return jax.tree.map(np.asarray, self._carry)

    def leaves(self, obs: PyTree) -> list[Any]:
        """The parts of the environments' observations, in the order of `obs_shapes`."""
        return self._structure.flatten_up_to(obs)

    def tree(self, leaves: Sequence[Any]) -> PyTree:
        """Observations of these parts."""
        return self._structure.unflatten(leaves)

    def begin(self, key: Key, count: UInt32[np.ndarray, " B"], num_steps: int, last: Last) -> Carry:
        """Draw for the next `num_steps` calls of `act`; the carry that the first starts from.

        Args:
            key: The environments' streams.
            count: Their transitions so far.
            num_steps: As many calls of `act` may follow.
            last: What came with the observations to act on first.

        Raises:
            ConfigError: There are no weights yet.
        """
        if self._actor is None:
            raise ConfigError("The runner has no weights yet: call set_weights() before sampling.")
        if num_steps not in self._steps:
            steps = np.arange(num_steps, dtype=np.uint32)
            self._steps[num_steps] = jax.device_put(steps, self.device)
        came = last if self._carries else None
        self._draws, self._carry = self._draw_program(
            key, count, self._steps[num_steps], self._carry, came
        )
        self._t = 0
        for number in range(len(self._numbers), num_steps):
            self._numbers.append(jax.device_put(np.int32(number), self.device))
        obs = [np.zeros(shape.shape, shape.dtype) for shape in self.obs_shapes]
        if self._outputs is None:
            self._lay_out()
            self._find_what_is_read(obs, last)
        start = self.carry
        self._run = self._act_program.compiled_for(*self._arguments(obs, last))
        return start

    def act(self, obs: list[np.ndarray], last: Last) -> UInt32[np.ndarray, "B width"]:
        """The words of what the module returns for the leaves of the observations."""
        words, self._carry = self._run(*self._arguments(obs, last))
        self._t += 1
        return np.asarray(words)

    @property
    def width(self) -> int:
        """Words of one environment's step; known once `begin` was called."""
        assert self._outputs is not None
        return self._outputs.width

    def env_action(self, words: UInt32[np.ndarray, "B width"]) -> PyTree:
        """The environments' actions, in memory of their own: environments may write to it."""
        assert self._actions is not None
        return self._actions.unpack(words[:, : self._actions.width].copy())

    def recorded(self, words: UInt32[np.ndarray, "*batch width"]) -> dict[str, PyTree]:
        """The module's actions and what else is recorded, by column."""
        assert self._outputs is not None
        return self._outputs.unpack(words)[1]

    def _arguments(self, obs: list[np.ndarray], last: Last) -> tuple[Any, ...]:
        came, t = last if self._carries else None, self._numbers[self._t]
        return (self._what_is_read, self._draws, t, self._carry, obs, came, self._env_index)

    def _find_what_is_read(self, obs: list[np.ndarray], last: Last) -> None:
        """Which leaves of the actor a step reads: passing the others would cost as much as it.

        Acting needs no parameters of the value function, and few hyperparameters if any.
        """
        leaves = jax.tree.leaves(self._actor)
        self._read = list(range(len(leaves)))
        self._choose_what_is_read()
        jaxpr = jax.make_jaxpr(self._act)(*self._arguments(obs, last)).jaxpr
        inputs = [id(atom) for equation in jaxpr.eqns for atom in equation.invars]
        read = {*inputs, *(id(atom) for atom in jaxpr.outvars)}
        self._read = [i for i in self._read if id(jaxpr.invars[i]) in read]
        self._choose_what_is_read()

    def _choose_what_is_read(self) -> None:
        leaves = jax.tree.leaves(self._actor)
        self._what_is_read = [leaves[i] for i in self._read]

    def _actor_of(self, read: list[Array]) -> Actor:
        """The actor again; what no step reads is zero in it."""
        leaves, structure = jax.tree.flatten(self._actor)
        filled: list[Any] = [jnp.zeros(leaf.shape, leaf.dtype) for leaf in leaves]
        for i, leaf in zip(self._read, read, strict=True):
            filled[i] = leaf
        return jax.tree.unflatten(structure, filled)

    def _draw(
        self,
        key: Key,
        count: UInt32[Array, " B"],
        steps: UInt32[Array, " T"],
        carry: Carry,
        last: Last | None,
    ) -> tuple[PyTree, Carry]:
        action_key = transition_keys(key, count, steps)[0]
        return jax.vmap(self.acting.module.draw)(action_key), self._advanced(carry, last)

    def _advanced(self, carry: Carry, last: Last | None) -> Carry:
        """With what came with an observation; adding the same again changes nothing."""
        if last is None:
            return carry
        return self.acting.advance(carry, jnp.asarray(last.reward), jnp.asarray(last.starts))

    def _act(
        self,
        read: list[Array],
        draws: PyTree,
        t: Int[Array, ""],
        carry: Carry,
        obs: list[Array],
        last: Last | None,
        env_index: Int[Array, " B"],
    ) -> tuple[UInt32[Array, "B width"], Carry]:
        assert self._outputs is not None
        actor = self._actor_of(read)
        outputs, carry = self._step(actor, draws, t, carry, obs, last, env_index)
        return self._outputs.pack(outputs), carry

    def _step(
        self,
        actor: Actor,
        draws: PyTree,
        t: Int[Array, ""],
        carry: Carry,
        obs: list[Array],
        last: Last | None,
        env_index: Int[Array, " B"],
    ) -> tuple[tuple[PyTree, dict[str, PyTree]], Carry]:
        def now(x: Array) -> Array:
            return jax.lax.dynamic_index_in_dim(x, t, keepdims=False)

        carry = self._advanced(carry, last)
        starts = jnp.zeros((self._rows,), bool) if last is None else jnp.asarray(last.starts)
        out = self.acting.act(
            actor,
            jax.tree.map(jnp.asarray, self.tree(obs)),
            carry,
            starts,
            env_index,
            jax.tree.map(now, draws),
            self._explore,
        )
        action = out[Columns.ACTIONS]
        recorded = {Columns.ACTIONS: action, **{name: out[name] for name in RECORDED}}
        after = out[Columns.STATE_OUT]
        if last is not None:
            after = where_rows(jnp.asarray(last.held), carry, after)
        return (self.acting.action_pipeline(action), recorded), after

    def _lay_out(self) -> None:
        nobody = np.zeros(self._rows, np.bool_)
        last = Last(reward=np.zeros(self._rows, np.float32), starts=nobody, held=nobody)
        arguments = self._arguments(self.obs_shapes, last)[1:]
        outputs, _ = jax.eval_shape(self._step, self._actor, *arguments)
        self._outputs, self._actions = Packing(outputs), Packing(outputs[0])


def cpu_device() -> Device:
    """Where runners act.

    Raises:
        ConfigError: JAX was told to leave the CPU out.
    """
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        raise ConfigError(
            "Environments on the host are acted in on the CPU, which JAX was told to leave out: "
            f"set JAX_PLATFORMS to e.g. 'cuda,cpu' ({error})."
        ) from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Leaf:
    """Where a leaf `[B, *shape]` lies among the words of a row, and in which type."""

    start: int
    stop: int
    shape: tuple[int, ...]
    wide: np.dtype[Any]
    dtype: np.dtype[Any]


class Packing:
    """The layout of a tree of arrays `[B, ...]` in one array of 32-bit words `[B, width]`.

    Bits are kept as they are. Types of fewer than 32 bits take a word each.
    """

    def __init__(self, shapes: PyTree) -> None:
        """Lays out what `jax.eval_shape` says of a tree."""
        leaves, self._structure = jax.tree.flatten(shapes)
        self._leaves: list[_Leaf] = []
        start = 0
        for leaf in leaves:
            dtype, shape = np.dtype(leaf.dtype), tuple(leaf.shape[1:])
            wide = _wide(dtype)
            stop = start + math.prod(shape) * wide.itemsize // 4
            self._leaves.append(_Leaf(start=start, stop=stop, shape=shape, wide=wide, dtype=dtype))
            start = stop
        self.width = start

    def pack(self, tree: PyTree) -> UInt32[Array, "B width"]:
        """The words of a tree of this layout; to be traced."""
        parts: list[Array] = []
        for leaf, spec in zip(jax.tree.leaves(tree), self._leaves, strict=True):
            words = jax.lax.bitcast_convert_type(jnp.asarray(leaf, spec.wide), jnp.uint32)
            parts.append(words.reshape(leaf.shape[0], spec.stop - spec.start))
        return jnp.concatenate(parts, axis=1)

    def unpack(self, words: UInt32[np.ndarray, "*batch width"]) -> PyTree:
        """The tree, NumPy, with the batch axes of the words; may share their memory."""
        batch = words.shape[:-1]
        leaves: list[np.ndarray] = []
        for spec in self._leaves:
            leaf = words[..., spec.start : spec.stop].view(spec.wide).reshape(*batch, *spec.shape)
            leaves.append(leaf if spec.wide == spec.dtype else leaf.astype(spec.dtype))
        return jax.tree.unflatten(self._structure, leaves)


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type of 32 or 64 bits that holds every value of another."""
    if dtype.itemsize >= 4:
        return dtype
    return np.dtype(np.float32 if jnp.issubdtype(dtype, jnp.floating) else np.int32)
