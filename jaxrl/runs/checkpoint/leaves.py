"""Conversion between a state and named arrays."""

import zlib
from collections.abc import Mapping
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxrl.core.types import PyTree


def get_named_leaves(tree: PyTree) -> dict[str, Any]:
    """Return the leaves of a tree by path, such as `learner.sgd.params.pi.kernel`.

    Leaves without entries are omitted. Typed keys are converted to their key data, named
    `<path>:<implementation>`.
    """
    leaves: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = format_leaf_name(path)
        if _is_key(leaf):
            leaves[f"{name}:{jax.random.key_impl(leaf)}"] = jax.random.key_data(leaf)
        elif np.size(leaf):
            leaves[name] = leaf
    return leaves


def format_leaf_name(path: jax.tree_util.KeyPath[Any]) -> str:
    """Return the name of a leaf from its JAX key path."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _is_key(leaf: object) -> TypeGuard[jax.Array]:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def is_key_name(name: str) -> bool:
    """Return whether a name is that of random keys, and not one with a colon of its own."""
    return name.rpartition(":")[2] == str(jax.random.key_impl(jax.random.key(0)))


def fetch_leaves(tree: PyTree) -> dict[str, np.ndarray]:
    """Return the named leaves as NumPy copies."""
    return {name: np.array(leaf) for name, leaf in jax.device_get(get_named_leaves(tree)).items()}


def describe_leaves(leaves: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Return the shape, dtype and checksum of every leaf."""
    return {
        name: {
            "shape": list(leaf.shape),
            "dtype": str(leaf.dtype),
            "crc32": zlib.crc32(np.ascontiguousarray(leaf).tobytes()),
        }
        for name, leaf in leaves.items()
    }


def find_first_difference(
    template: PyTree, leaves: Mapping[str, np.ndarray], prefixes: tuple[str, ...] = ("",)
) -> str | None:
    """Describe the first leaf that does not match a template.

    Args:
        template: Tree with the expected leaves.
        leaves: Leaves by name.
        prefixes: Prefixes of the names to compare; others are ignored.

    Returns:
        A phrase that names the leaf; None if all match.
    """
    expected = get_named_leaves(template)
    for name, leaf in expected.items():
        if not _is_selected(name, prefixes):
            continue
        if name not in leaves:
            return _describe_other_keys(name, leaves) or f"{name} is missing"
        got, want = leaves[name], leaf
        if tuple(got.shape) != tuple(want.shape) or str(got.dtype) != str(want.dtype):
            return (
                f"{name} is {got.dtype}{list(got.shape)}, expected {want.dtype}{list(want.shape)}"
            )
    for name in leaves:
        if _is_selected(name, prefixes) and name not in expected:
            return f"{name} is unexpected"
    return None


def _describe_other_keys(name: str, leaves: Mapping[str, np.ndarray]) -> str | None:
    """Describe random keys that a state has in another implementation; None if it has none."""
    path, _, impl = name.rpartition(":")
    found = [n for n in leaves if n.rpartition(":")[0] == path] if is_key_name(name) else []
    if not found:
        return None
    other = found[0].rpartition(":")[2]
    return (
        f"{path} has keys of {other}, expected {impl}; set JAX_DEFAULT_PRNG_IMPL={other} in the "
        "environment of this process, or restore the weights alone"
    )


def _is_selected(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == p or not p or name.startswith(f"{p}.") for p in prefixes)


def fill(
    template: PyTree, leaves: Mapping[str, np.ndarray], prefixes: tuple[str, ...] = ("",)
) -> PyTree:
    """Replace the selected leaves of a template, keeping the sharding of its leaves.

    Args:
        template: Tree with leaves to replace.
        leaves: New leaves by name.
        prefixes: Prefixes of the names to replace; other leaves of the template are kept.
    """

    def replace_leaf(path: jax.tree_util.KeyPath[Any], old: ArrayLike) -> ArrayLike:
        name = format_leaf_name(path)
        if not _is_selected(name, prefixes):
            return old
        if _is_key(old):
            impl = str(jax.random.key_impl(old))
            new = jax.random.wrap_key_data(jnp.asarray(leaves[f"{name}:{impl}"]), impl=impl)
        elif not np.size(old):
            return old
        else:
            new = leaves[name]
        return jax.device_put(new, old.sharding) if isinstance(old, jax.Array) else new

    return jax.tree_util.tree_map_with_path(replace_leaf, template)
