"""Arrays of a step in frames, and their conversion to the trees that a rollout is made of."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import jax
import numpy as np

from jaxrl.core.space_arrays import count_bytes
from jaxrl.core.spaces import map_spaces
from jaxrl.core.types import PyTree, TreeStructure
from jaxrl.errors import ConfigError
from jaxrl.external.frames import Arrays, Limits, LinkError
from jaxrl.external.spaces import (
    SpaceLeaves,
    check_array,
    describe_space,
    hash_spaces,
    without_parts,
)
from jaxrl.modules.rl_module import make_zeros
from jaxrl.training.rollout import ActorState, PolicyStep, make_blank_rollout

_STEPS_PER_MESSAGE = 10_000
_MIN_MESSAGE_BYTES = 2**20
_MAX_MESSAGE_BYTES = 64 * 2**20
_HEAD_BYTES, _HEAD_BYTES_PER_ARRAY, _STEP_BYTES = 2**12, 64, 12
"""Room for a head, with its padding, and for the reward and the version of a step."""
_PROGRAM_BYTES = 64 * 2**20
"""Room for the program of a policy and its constants, beside its weights."""


@dataclasses.dataclass(frozen=True)
class NamedLeaves:
    """Tree of arrays of one step, by names in frames.

    Args:
        names: Names of the leaves, in order.
        shapes: Shape and dtype of each leaf.
        structure: Structure of the tree.
    """

    names: tuple[str, ...]
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    structure: TreeStructure

    @staticmethod
    def from_shapes(name: str, tree: PyTree, num_axes: int) -> "NamedLeaves":
        """Name the leaves of a tree of shapes, without their first `num_axes` axes."""
        leaves, structure = jax.tree.flatten(tree)
        shapes = tuple(jax.ShapeDtypeStruct(x.shape[num_axes:], x.dtype) for x in leaves)
        return NamedLeaves(tuple(f"{name}.{i}" for i in range(len(leaves))), shapes, structure)

    def flatten(self, tree: PyTree) -> Arrays:
        """Return the arrays of a tree by name."""
        leaves = self.structure.flatten_up_to(tree)
        return {
            name: np.asarray(leaf, shape.dtype)
            for name, leaf, shape in zip(self.names, leaves, self.shapes, strict=True)
        }

    def unflatten(self, arrays: Arrays, prefix: str = "") -> PyTree:
        """Return the tree of arrays in a frame."""
        return self.structure.unflatten([arrays[prefix + name] for name in self.names])

    def check(self, arrays: Arrays, prefix: str, number: int) -> None:
        """Check the arrays of several steps.

        Raises:
            LinkError: If one is missing, of another type, or not finite.
        """
        for name, shape in zip(self.names, self.shapes, strict=True):
            dtype = np.dtype(shape.dtype)
            check_array(arrays, prefix + name, dtype, (number, *shape.shape))
            values = arrays[prefix + name]
            if dtype.kind == "f" and not (is_finite := np.isfinite(values)).all():
                index = tuple(np.argwhere(~is_finite)[0].tolist())
                raise LinkError(f"{name} is {values[index]} at {list(index)}, which is not finite.")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Schema:
    """Everything about a run's steps that clients and server agree on.

    `state` is empty for a policy without memory, whose `blank_carry` has no arrays either. Boxes
    of `module_action_leaves` have no bounds, as the module's actions are clipped after it. Parts of
    observations that only critics read may have any values in episodes that are not trained on.
    """

    observation: dict[str, Any]
    action: dict[str, Any]
    obs_leaves: SpaceLeaves
    env_action_leaves: SpaceLeaves
    obs: NamedLeaves
    env_action: NamedLeaves
    module_action: NamedLeaves
    module_action_leaves: SpaceLeaves
    extras: NamedLeaves
    state: NamedLeaves
    limits: Limits
    max_part_length: int
    max_policy_bytes: int
    policy_step: PolicyStep
    critic_only_parts: tuple[str, ...]

    @staticmethod
    def from_run(
        policy_step: PolicyStep,
        init: Callable[[jax.Array], ActorState],
        spaces: tuple[gymnasium.Space[Any], gymnasium.Space[Any]],
        max_message_bytes: int | str,
    ) -> "Schema":
        """Derive the schema from a run's functions.

        Args:
            policy_step: Module and connectors of the run.
            init: Function that makes the parameters that act from a key.
            spaces: Observation and action space of the environment.
            max_message_bytes: Limit of messages, or 'auto'.

        Raises:
            ConfigError: If a message cannot hold the steps of the spaces.
        """
        observation_space, action_space = spaces

        def record(key: jax.Array) -> PyTree:
            actor = init(key)
            return actor, make_blank_rollout(policy_step, actor, 1, 1)

        actor, rows = jax.eval_shape(record, jax.random.key(0))
        observation, action = describe_space(observation_space), describe_space(action_space)
        env_action = jax.eval_shape(lambda: make_zeros(action_space, (1,)))
        recorded = rows.action, rows.extras, rows.carry_in
        step_bytes = count_bytes(observation_space) + _count_bytes(recorded)
        limits = Limits(max_message_bytes=_choose_max_bytes(max_message_bytes, step_bytes))
        return Schema(
            observation=observation,
            action=action,
            obs_leaves=_make_leaves(observation_space, "obs"),
            env_action_leaves=_make_leaves(action_space, "env_action"),
            obs=NamedLeaves.from_shapes("obs", rows.obs, 2),
            env_action=NamedLeaves.from_shapes("env_action", env_action, 1),
            module_action=NamedLeaves.from_shapes("action", rows.action, 2),
            module_action_leaves=_make_leaves(
                map_spaces(_remove_bounds, policy_step.action_pipeline.module_space), "action"
            ),
            extras=_name_extras(rows.extras),
            state=NamedLeaves.from_shapes("state", rows.carry_in, 1),
            limits=limits,
            max_part_length=_count_steps(
                limits.max_message_bytes, step_bytes, jax.tree.leaves((rows.obs, recorded))
            ),
            max_policy_bytes=_PROGRAM_BYTES + 2 * _count_bytes(actor),
            policy_step=policy_step,
            critic_only_parts=policy_step.without_unread().absent_names,
        )

    @property
    def has_state(self) -> bool:
        """Return whether a step's outcome depends on the episode's earlier steps."""
        return bool(self.state.names)

    def make_blank_carry(self, number: int) -> PyTree:
        """Return the carry of episode starts, in NumPy."""
        return jax.tree.map(np.asarray, self.policy_step.initial_carry(number))

    def describe_columns(self) -> dict[str, Any]:
        """Return dtype and shape of the arrays that a step records, by name."""
        return {
            name: [np.dtype(shape.dtype).str, list(shape.shape)]
            for leaves in (self.module_action, self.extras, self.state)
            for name, shape in zip(leaves.names, leaves.shapes, strict=True)
        }

    def describe(self) -> dict[str, Any]:
        """Return the entries of WELCOME that describe steps."""
        return {
            "observation_space": self.observation,
            "action_space": self.action,
            "spaces_hash": hash_spaces(self.observation, self.action),
            "critic_only_parts": list(self.critic_only_parts),
            "columns": self.describe_columns(),
        }

    def has_spaces(self, spaces_hash: str) -> bool:
        """Return whether a hash is that of the spaces, with or without parts for critics alone."""
        acted_on = without_parts(self.observation, self.critic_only_parts)
        return any(hash_spaces(x, self.action) == spaces_hash for x in (self.observation, acted_on))

    def read_columns(self, arrays: Arrays, prefix: str, number: int) -> dict[str, PyTree]:
        """Return the fields of an `EpisodePart` from recorded columns, after checking them.

        Raises:
            LinkError: If a value is missing or invalid.
        """
        for leaves in (self.module_action_leaves, self.extras, self.state):
            leaves.check(arrays, prefix, number)
        return {
            "action": self.module_action.unflatten(arrays, prefix),
            "extras": self.extras.unflatten(arrays, prefix),
            "carry": self.state.unflatten(arrays, prefix) if self.has_state else None,
        }

    def read_own_actions(self, arrays: Arrays, prefix: str, number: int) -> dict[str, PyTree]:
        """Return the fields of an `EpisodePart` from actions that a simulator chose itself.

        Raises:
            LinkError: If an action is not in the space, or has no counterpart in the module's.
        """
        self.env_action_leaves.check(arrays, prefix, number)
        try:
            action = self.policy_step.action_pipeline.inverse(
                self.env_action.unflatten(arrays, prefix)
            )
        except NotImplementedError as error:
            raise LinkError(
                f"log_action() needs action connectors with an inverse: {error}."
            ) from None
        self.module_action_leaves.check(self.module_action.flatten(action), "", number)
        extras = {
            name: np.zeros((number, *shape.shape), shape.dtype)
            for name, shape in zip(self.extras.names, self.extras.shapes, strict=True)
        }
        return {
            "action": jax.tree.map(np.asarray, action),
            "extras": self.extras.unflatten(extras),
            "carry": None,
        }


def _make_leaves(space: gymnasium.Space[Any], name: str) -> SpaceLeaves:
    """Return the leaves of a space with all of its bounds, of which clients are not told many."""
    return SpaceLeaves(describe_space(space, math.inf), name)


def _remove_bounds(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    if isinstance(space, gymnasium.spaces.Box):
        return gymnasium.spaces.Box(-np.inf, np.inf, space.shape, np.float32)
    return space


def _count_bytes(shapes: PyTree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def _name_extras(extras: dict[str, jax.ShapeDtypeStruct]) -> NamedLeaves:
    leaves = NamedLeaves.from_shapes("extras", extras, 2)
    return dataclasses.replace(leaves, names=tuple(f"extras.{name}" for name in sorted(extras)))


def _choose_max_bytes(setting: int | str, step_bytes: int) -> int:
    """Return the limit of messages; 'auto' holds some thousand steps."""
    if isinstance(setting, int):
        if setting < 2 * step_bytes + _HEAD_BYTES:
            raise ConfigError(
                f"max_message_bytes={setting} cannot hold one step of these spaces, which takes "
                f"{2 * step_bytes + _HEAD_BYTES} bytes: raise it, or leave it at 'auto'."
            )
        return setting
    wanted = max(_STEPS_PER_MESSAGE * step_bytes, _MIN_MESSAGE_BYTES)
    return max(min(wanted, _MAX_MESSAGE_BYTES), 2 * step_bytes + _HEAD_BYTES)


def _count_steps(max_bytes: int, step_bytes: int, leaves: Sequence[object]) -> int:
    """Return the number of steps of the longest part that a message holds, with its successor."""
    room = max_bytes - _HEAD_BYTES - _HEAD_BYTES_PER_ARRAY * len(leaves)
    return max(1, room // (step_bytes + _STEP_BYTES) - 1)
