"""Estimators under chex's variants: compiled, op by op, on a device, and over a batch."""

from typing import Any

import chex
import jax
import numpy as np

from tests.ops.test_returns import ESTIMATORS, TOLERANCE, _data


def by_column(reference: Any, arguments: list[Any]) -> Any:
    """The reference, which takes one environment at a time, of all columns."""
    columns = [reference(*(x[:, i] for x in arguments)) for i in range(arguments[0].shape[1])]
    return jax.tree.map(lambda *xs: np.stack(xs, axis=1), *columns)


class TestVariants(chex.TestCase):
    @chex.variants(with_jit=True, without_jit=True, with_device=True)
    def test_estimators_equal_their_references(self) -> None:
        data = _data()
        for name, (estimator, reference, columns) in ESTIMATORS.items():
            arguments = [data[column] for column in columns]
            got: Any = self.variant(estimator)(*arguments)
            want = by_column(reference, arguments)
            chex.assert_trees_all_equal_shapes(got, want)
            chex.assert_trees_all_close(got, want, custom_message=name, **TOLERANCE)

    @chex.variants(with_jit=True, without_jit=True)
    def test_a_batch_is_the_loop_over_its_members(self) -> None:
        members = [_data(seed) for seed in range(3)]
        for name, (estimator, _, columns) in ESTIMATORS.items():
            arguments = [np.stack([data[column] for data in members]) for column in columns]
            got = self.variant(jax.vmap(estimator))(*arguments)
            for i, data in enumerate(members):
                one = estimator(*(data[column] for column in columns))
                here = jax.tree.map(lambda x, i=i: x[i], got)
                chex.assert_trees_all_close(here, one, custom_message=name, **TOLERANCE)
