"""Contracts of every algorithm: a new one takes part by being registered."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.assembly.assemble import Assembly, assemble
from jaxrl.buffers.replay import ReplayBuffer
from jaxrl.errors import RetraceError
from jaxrl.runs.checkpoint import fetch_leaves
from jaxrl.training.train_state import TrainState
from tests.helpers import ENVS, assert_close, assert_equal, differs, every_algorithm, small

pytestmark = [
    pytest.mark.allow_key_reuse,
    pytest.mark.parametrize("algo", every_algorithm()),
]


def started(assembly: Assembly, seed: int = 0) -> TrainState:
    """The first state, as every program here takes it."""
    return jax.jit(assembly.run.init)(jax.random.key(seed), assembly.made.params)


@pytest.mark.representatives("DQN")
def test_the_second_call_does_not_recompile(algo: str) -> None:
    config = small(algo).debugging(max_retraces=0)
    with config.build() as algorithm:
        algorithm.train()
        algorithm.train()
        report = algorithm.train()["compile"]
        assert report["train"]["num_compilations"] == 1
        assert report["train"]["donated_bytes"] > 0
        algorithm.state = dataclasses.replace(algorithm.state, carry=None)
        with pytest.raises(RetraceError, match=r"max_retraces=0.*structure"):
            algorithm.train()


@pytest.mark.slow
def test_parameters_change_and_stay_finite(algo: str) -> None:
    kind = "-continuous" if algo in ENVS else ""
    assembly = assemble(small(algo, env=f"jaxrl:probe-obs-action{kind}-v0"))
    before = started(assembly)
    after, metrics = jax.jit(assembly.run.step)(before)
    assert differs(before.learner.sgd.params, after.learner.sgd.params)
    for name, leaf in {**fetch_leaves(after), **fetch_leaves(metrics)}.items():
        if np.issubdtype(leaf.dtype, np.floating) and ".hparams." not in f".{name}":
            assert np.isfinite(leaf).all(), name


@pytest.mark.representatives("DQN")
def test_chunks_do_not_matter_bit_for_bit(algo: str) -> None:
    runner = assemble(small(algo)).run
    run = jax.jit(runner.run_batches)
    start = started(assemble(small(algo)))
    together, _ = run(start, jnp.int32(5))
    apart = start
    for number in (2, 1, 2):
        apart, _ = run(apart, jnp.int32(number))
    assert_equal(together, apart)


@pytest.mark.slow
def test_jit_equals_eager(algo: str) -> None:
    """One update from the same batch (a whole run differs by rounding, soon by much)."""
    assembly = assemble(small(algo))
    state = started(assembly)
    batch = jax.jit(lambda s: prepared(assembly, s))(state)
    args = (state.learner, batch, state.progress, jax.random.key(5))
    compiled = jax.jit(assembly.train_step.learner.update)(*args)
    assert_close(compiled, assembly.train_step.learner.update(*args), atol=1e-5)


def prepared(assembly: Assembly, state: TrainState) -> Any:
    """A train batch as one flat minibatch."""
    runner = assembly.train_step
    _, _, raw, record = assembly.rollout_worker.rollout(
        runner.make_actor_state(state), state.env, state.carry, state.env_params, runner.num_steps
    )
    if isinstance(runner.experience, ReplayBuffer):
        replay, index = runner.experience, jnp.arange(16, dtype=jnp.int32)
        buffer = replay.add(state.buffer, raw, index, record.env_step)
        shards, steps = jnp.arange(replay.num_shards, dtype=jnp.int32), jnp.zeros(())
        draw_key, fold_key = jax.random.split(jax.random.key(3))
        drawn = replay.sample(buffer, buffer.priorities, draw_key, shards, steps)
        return replay.gather_transitions(buffer, drawn, jnp.asarray(0.99), shards, fold_key)
    rollout = assembly.rollout_worker.preprocess_rollout(state.connectors.obs, raw)
    batch, _ = runner.learner.prepare(state.learner, rollout, state.progress)
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
