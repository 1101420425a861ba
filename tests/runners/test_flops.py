"""Operations are counted as often as they run."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from jaxrl.assembly.assemble import assemble
from jaxrl.runtime.flops import count_flops
from tests.helpers import small

M, K, N = 3, 5, 7
MATMUL = 2.0 * M * K * N


def flops_of(fn: Any, *args: Any) -> float:
    return count_flops(jax.make_jaxpr(fn)(*args))


def test_products_are_two_operations_each() -> None:
    assert flops_of(jnp.dot, jnp.ones((M, K)), jnp.ones((K, N))) == MATMUL
    batched = flops_of(jax.vmap(jnp.dot), jnp.ones((4, M, K)), jnp.ones((4, K, N)))
    assert batched == 4 * MATMUL


def test_elementwise_operations_count_their_results() -> None:
    assert flops_of(lambda x: jnp.tanh(x) * x, jnp.ones((M, N))) == 2 * M * N
    assert flops_of(lambda x: x.reshape(-1)[::2], jnp.ones((M, N))) == 0.0


@pytest.mark.parametrize("length", [1, 6, 1000])
def test_a_scan_counts_its_body_as_often_as_it_runs(length: int) -> None:
    square = jnp.ones((M, M))

    def body(x: Any, _: Any) -> tuple[Any, None]:
        return x @ square, None

    def looped(x: Any) -> Any:
        return jax.lax.scan(body, x, length=length)[0]

    assert flops_of(looped, square) == length * 2.0 * M**3
    assert flops_of(jax.jit(looped), square) == length * 2.0 * M**3

    def twice(x: Any) -> Any:
        return jax.lax.scan(lambda y, _: (looped(y), None), x, length=2)[0]

    assert flops_of(twice, square) == 2 * length * 2.0 * M**3


def test_a_convolution() -> None:
    """Each of 8 x 8 x 4 results sums 3 x 3 x 2 products."""

    def convolve(image: Any, kernel: Any) -> Any:
        return jax.lax.conv_general_dilated(
            image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    got = flops_of(convolve, jnp.ones((1, 8, 8, 2)), jnp.ones((3, 3, 2, 4)))
    assert got == 2.0 * (8 * 8 * 4) * (3 * 3 * 2)


def test_a_branch_counts_as_the_dearest() -> None:
    square = jnp.ones((M, M))

    def branch(index: Any, x: Any) -> Any:
        return jax.lax.switch(index, [lambda y: y, lambda y: y @ y @ y, lambda y: y @ y], x)

    got = flops_of(branch, jnp.int32(0), square)
    assert 2 * 2.0 * M**3 <= got <= 2 * 2.0 * M**3 + 2  # and the clamp of the index


@pytest.mark.slow
def test_an_epoch_of_ppo_costs_the_same_each_time() -> None:
    counts = []
    for epochs in (1, 2, 4):
        assembly = assemble(small(num_epochs=epochs))
        state = jax.eval_shape(assembly.run.init, jax.random.key(0), assembly.made.params)
        counts.append(flops_of(assembly.run.step, state))
    rest = 2 * counts[0] - counts[1]  # rollout and targets
    epoch = counts[1] - counts[0]
    assert 0 < rest < counts[0]
    assert counts[2] == pytest.approx(rest + 4 * epoch, rel=0.01)
    # 128 rows through two nets of 4 x 8 and their heads (2 and 1): forward, and twice as much back
    products = 2.0 * 128 * (2 * 4 * 8 + 8 * 2 + 8 * 1)
    assert 2 * products < epoch < 6 * products


def test_a_program_over_devices_counts_the_work_of_all() -> None:
    """Each device has a product of its own rows: the same work as one device with all of them."""
    mesh = Mesh(np.asarray(jax.devices()[:4]), ("x",))
    rows, weights = jnp.ones((8, K)), jnp.ones((K, N))
    along, whole = PartitionSpec("x"), PartitionSpec()
    divided = jax.shard_map(jnp.dot, mesh=mesh, in_specs=(along, whole), out_specs=along)
    assert flops_of(divided, rows, weights) == flops_of(jnp.dot, rows, weights) == 2.0 * 8 * K * N
