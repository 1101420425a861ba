"""Frozen, typed pytrees: the decorator used for every state and batch of the library."""

import dataclasses
from typing import Any, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

T = TypeVar("T")


def static(**kwargs: Any) -> Any:
    """Declare a field that is part of the tree's structure (hashed by jit) instead of a leaf."""
    return dataclasses.field(metadata={"static": True}, **kwargs)


@dataclass_transform(
    frozen_default=True, kw_only_default=True, field_specifiers=(static, dataclasses.field)
)
def pytree(cls: type[T]) -> type[T]:
    """Turn a class into a frozen, keyword-only dataclass whose fields are pytree children."""
    return jax.tree_util.register_dataclass(
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)  # pyright: ignore[reportArgumentType]
    )


replace = dataclasses.replace


def where_rows(condition: Bool[Array, " B"], new: T, old: T) -> T:
    """Select rows of tree `new` where the condition holds, else of `old`; leaves are `[B, ...]`."""

    def select(x: Array, y: Array) -> Array:
        return jnp.where(condition.reshape(condition.shape + (1,) * (x.ndim - 1)), x, y)

    return jax.tree.map(select, new, old)


def has_same_form(one: object, other: object) -> bool:
    """Return whether two trees have the same structure, with arrays of the same shapes and types."""

    def describe(tree: object) -> tuple[Any, ...]:
        leaves, structure = jax.tree.flatten(tree)
        return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]

    return describe(one) == describe(other)
