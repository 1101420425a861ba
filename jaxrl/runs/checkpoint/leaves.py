"""A state as named arrays, and named arrays put back into a state."""

import zlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import PyTree


def named_leaves(tree: PyTree) -> dict[str, Any]:
    """Every leaf under its path, `learner.sgd.params.pi.kernel`; leaves without entries left out.

    Typed keys stand as their words, under `<path>:<implementation>`.
    """
    leaves: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = leaf_name(path)
        if _is_key(leaf):
            leaves[f"{name}:{jax.random.key_impl(leaf)}"] = jax.random.key_data(leaf)
        elif np.size(leaf):
            leaves[name] = leaf
    return leaves


def leaf_name(path: Any) -> str:
    """A path of JAX's tree functions in words."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def host_leaves(tree: PyTree) -> dict[str, np.ndarray]:
    """The named leaves as NumPy copies."""
    return {name: np.array(leaf) for name, leaf in jax.device_get(named_leaves(tree)).items()}


def describe(leaves: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Shape, dtype and checksum of every leaf."""
    return {
        name: {
            "shape": list(leaf.shape),
            "dtype": str(leaf.dtype),
            "crc32": zlib.crc32(np.ascontiguousarray(leaf).tobytes()),
        }
        for name, leaf in leaves.items()
    }


def first_difference(
    template: PyTree, leaves: Mapping[str, np.ndarray], prefixes: tuple[str, ...] = ("",)
) -> str | None:
    """What does not fit, in words that name the first differing leaf; None if all fits."""
    wanted = named_leaves(template)
    for name, leaf in wanted.items():
        if not _selected(name, prefixes):
            continue
        if name not in leaves:
            return f"{name} is missing"
        got, want = leaves[name], leaf
        if tuple(got.shape) != tuple(want.shape) or str(got.dtype) != str(want.dtype):
            return (
                f"{name} is {got.dtype}{list(got.shape)} there and "
                f"{want.dtype}{list(want.shape)} here"
            )
    for name in leaves:
        if _selected(name, prefixes) and name not in wanted:
            return f"{name} has no place here"
    return None


def _selected(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == p or not p or name.startswith(f"{p}.") for p in prefixes)


def fill(
    template: PyTree, leaves: Mapping[str, np.ndarray], prefixes: tuple[str, ...] = ("",)
) -> PyTree:
    """The template with the selected leaves replaced, each put where the template's leaf lies."""

    def place(path: Any, old: Any) -> Any:
        name = leaf_name(path)
        if not _selected(name, prefixes):
            return old
        if _is_key(old):
            impl = str(jax.random.key_impl(old))
            new = jax.random.wrap_key_data(jnp.asarray(leaves[f"{name}:{impl}"]), impl=impl)
        elif not np.size(old):
            return old
        else:
            new = leaves[name]
        return jax.device_put(new, old.sharding) if isinstance(old, jax.Array) else new

    return jax.tree_util.tree_map_with_path(place, template)
