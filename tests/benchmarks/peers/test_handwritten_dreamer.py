"""The hand-written DreamerV3 has the parameters of the shipped config, and learns."""

from functools import partial

import jax
import pytest

from benchmarks.peers.handwritten_dreamer import dreamer
from benchmarks.peers.jaxrl_dreamer_worker import CONFIG
from jaxrl import load_config

STEPS = 10_000


def list_shapes(params: object) -> list[tuple[int, ...]]:
    return sorted(x.shape for x in jax.tree.leaves(params))


def test_the_parameters_are_as_many_as_ours() -> None:
    with load_config(CONFIG).evaluation(evaluation_interval=None).build() as algorithm:
        ours = list_shapes(algorithm.get_weights())
    assert list_shapes(jax.eval_shape(dreamer.init, jax.random.key(0)).params) == ours


@pytest.mark.slow
@pytest.mark.allow_key_reuse  # of vmapped environments
def test_episodes_grow_longer() -> None:
    with jax.numpy_rank_promotion("allow"):  # which a plain script does
        state = jax.jit(dreamer.init)(jax.random.key(0))
        warm_up = partial(dreamer.train, num_iterations=dreamer.WARMUP_ITERATIONS, num_updates=0)
        state, _ = jax.jit(warm_up)(state)
        learn = partial(dreamer.train, num_iterations=STEPS // dreamer.NUM_ENVS, num_updates=1)
        _, metrics = jax.jit(learn)(state)
    late = jax.tree.map(lambda x: x[-x.size // 4 :].sum(), metrics)
    assert float(late.length_sum / late.num_episodes) > 60.0
