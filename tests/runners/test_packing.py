"""Packing: every type goes to words and back with its bits."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.runners.host_policy import PackedLayout


def test_every_type_comes_back() -> None:
    rng = np.random.default_rng(0)
    tree: Any = {
        "float32": rng.normal(size=(3,)).astype(np.float32),
        "nested": (
            rng.integers(-(2**31), 2**31 - 1, (3, 2, 2)).astype(np.int32),
            rng.integers(0, 2**32 - 1, (3, 1)).astype(np.uint32),
        ),
        "bool": np.array([[True, False], [False, False], [True, True]]),
        "int8": np.array([-128, 0, 127], np.int8),
        "uint8": np.array([[0, 255]] * 3, np.uint8),
        "float16": np.array([np.inf, -1.5, 0.1], np.float16),
        "nan": np.array([np.nan, -0.0, np.inf], np.float32),
    }
    packing = PackedLayout(jax.eval_shape(lambda: jax.tree.map(jnp.asarray, tree)), num_envs=3)
    words = np.asarray(jax.jit(packing.pack)(tree))
    assert words.shape == (3, packing.num_words)
    assert packing.num_words == 1 + 4 + 1 + 2 + 1 + 2 + 1 + 1
    stacked = np.stack([words, words])
    for batch, lead in ((words, ()), (stacked, (0,))):
        unpacked = packing.unpack(batch)
        assert jax.tree.structure(unpacked) == jax.tree.structure(tree)
        for got, want in zip(jax.tree.leaves(unpacked), jax.tree.leaves(tree), strict=True):
            assert got.dtype == want.dtype
            assert got[lead].tobytes() == want.tobytes()
