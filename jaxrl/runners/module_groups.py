"""Modules that compute the same function, whose rows a policy on the host computes together."""

import dataclasses
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core
from jaxtyping import Array

from jaxrl.core.types import PyTree


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModuleGroup:
    """Modules that compute the same function of parameters and rows of the same shapes.

    Their rows are one block, in which those of an environment are neighbors, module by module:
    `row = (env * number of modules + index of the module) * size + place`.

    Attributes:
        modules: Ids of the modules.
        num_envs: Number of environments B.
        size: Number of agents of each module.
    """

    modules: tuple[str, ...]
    num_envs: int
    size: int

    @property
    def id(self) -> str:
        """Id of the first module, which names the group."""
        return self.modules[0]

    @property
    def is_single(self) -> bool:
        """True if there is one module."""
        return len(self.modules) == 1

    @property
    def width(self) -> int:
        """Number of rows of an environment."""
        return len(self.modules) * self.size

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.num_envs * self.width

    def split(self, rows: Array) -> Array:
        """Return rows `[R, ...]` by module, `[modules, rows of each, ...]`."""
        shape = rows.shape[1:]
        by_env = rows.reshape(self.num_envs, len(self.modules), self.size, *shape)
        return by_env.swapaxes(0, 1).reshape(len(self.modules), -1, *shape)

    def merge(self, by_module: Array) -> Array:
        """Undo `split`."""
        shape = by_module.shape[2:]
        own = by_module.reshape(len(self.modules), self.num_envs, self.size, *shape)
        return own.swapaxes(0, 1).reshape(self.num_rows, *shape)

    def map(self, function: Callable[..., PyTree], *rows: PyTree) -> PyTree:
        """Apply a function of one module's rows, trees `[rows of one, ...]`, to all modules."""
        if self.is_single:
            return function(*rows)
        split = (jax.tree.map(self.split, tree) for tree in rows)
        return jax.tree.map(self.merge, jax.vmap(function)(*split))

    def select(self, tree: PyTree, module: str, axis: int = 0) -> PyTree:
        """Return a module's rows of arrays that have the group's along an axis, in NumPy."""
        if self.is_single:
            return tree

        def choose(x: np.ndarray) -> np.ndarray:
            shape = *x.shape[:axis], self.num_envs, self.width, *x.shape[axis + 1 :]
            own = x.reshape(shape)[(*[slice(None)] * (axis + 1), self._get_places(module))]
            return own.reshape(*x.shape[:axis], -1, *x.shape[axis + 1 :])

        return jax.tree.map(choose, tree)

    def join(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the group's rows, given those of each module."""
        if self.is_single:
            return rows[self.id]
        return np.asarray(self.merge(np.stack([rows[m] for m in self.modules])))  # pyright: ignore[reportArgumentType]

    def split_state(self, state: PyTree) -> dict[str, PyTree]:
        """Return each module's part of arrays `[B, width, ...]`."""
        return {
            m: jax.tree.map(operator.itemgetter((slice(None), self._get_places(m))), state)
            for m in self.modules
        }

    def join_state(self, states: Mapping[str, PyTree]) -> PyTree:
        """Undo `split_state`."""
        own = [states[m] for m in self.modules]
        return jax.tree.map(lambda *xs: np.concatenate([np.asarray(x) for x in xs], axis=1), *own)

    def _get_places(self, module: str) -> slice:
        first = self.modules.index(module) * self.size
        return slice(first, first + self.size)


_OPAQUE = "callback", "call_exported", "ffi_call"
"""Parts of the names of operations of which a program does not show what they compute."""


def make_groups(
    keys: Mapping[str, object], sizes: Mapping[str, int], num_envs: int
) -> dict[str, ModuleGroup]:
    """Group modules whose keys are equal, by the ids of the groups.

    Args:
        keys: What a module computes, see `describe_function`; None for one that is on its own.
        sizes: Number of agents of each module.
        num_envs: Number of environments.
    """
    found: dict[object, list[str]] = {}
    for m in sorted(keys):
        key = m if keys[m] is None else (keys[m], sizes[m])
        found.setdefault(key, []).append(m)
    groups = (
        ModuleGroup(modules=tuple(own), num_envs=num_envs, size=sizes[own[0]])
        for own in found.values()
    )
    return {group.id: group for group in groups}


def describe_function(function: Callable[..., PyTree], *arguments: PyTree) -> object:
    """Return a value that is equal for functions that compute the same of such arguments.

    It is None for a function that calls back into Python, which no batch may change, and for one
    that calls what its program does not show, such as an exported function.
    """
    traced, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    text = str(traced.jaxpr)
    if traced.effects or any(name in text for name in _OPAQUE):
        return None
    arrays = *traced.consts, *_collect_constants(traced.jaxpr)
    constants = tuple(_describe_constant(x) for x in arrays)
    return text, constants, str(jax.tree.structure((arguments, shapes)))


def _collect_constants(jaxpr: jex_core.Jaxpr) -> list[object]:
    """Return the arrays within a traced program, of which its text has the shapes alone."""
    found: list[object] = []
    for eqn in jaxpr.eqns:
        found += [x.val for x in eqn.invars if isinstance(x, jex_core.Literal) and np.ndim(x.val)]
        parts = jax.tree.leaves(list(eqn.params.values()))
        found += [x for x in parts if isinstance(x, np.ndarray)]
        for part in parts:
            if isinstance(part, jex_core.ClosedJaxpr):
                found += [*part.consts, *_collect_constants(part.jaxpr)]
            elif isinstance(part, jex_core.Jaxpr):
                found += _collect_constants(part)
    return found


def _describe_constant(value: object) -> tuple[object, ...]:
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    array = np.asarray(value)
    return array.shape, str(array.dtype), array.tobytes()


def stack(trees: Sequence[PyTree]) -> PyTree:
    """Return trees of equal structure as one with a leading axis; a single tree as it is."""
    if len(trees) == 1:
        return trees[0]
    return jax.tree.map(lambda *xs: np.stack([np.asarray(x) for x in xs]), *trees)


def stack_traced(trees: Iterable[PyTree], axis: int = 0) -> PyTree:
    """Return traced trees of equal structure as one with another axis; a single one as it is."""
    given = list(trees)
    if len(given) == 1:
        return given[0]
    return jax.tree.map(lambda *xs: jnp.stack(xs, axis=axis), *given)
