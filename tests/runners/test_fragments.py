"""Train batches of several fragments of each environment: columns, borders, devices, placements."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.assembly.assemble import Assembly, assemble
from jaxrl.core.struct import replace
from jaxrl.core.types import Columns, Progress
from jaxrl.modules.sequences import forward_rollout
from jaxrl.runners.fragment import concatenate_fragments
from jaxrl.testing import references
from jaxrl.training.sharding import make_runner_programs
from tests.contract.test_algorithms import started
from tests.helpers import assert_close, assert_equal, small

pytestmark = pytest.mark.allow_key_reuse

ENVS, STEPS, ROUNDS = 2, 8, 5
BATCH = ENVS * STEPS * ROUNDS


def config_of(algo: str = "PPO", steps: int = STEPS, envs: int = ENVS, **training: Any) -> Any:
    """Whole batches in one update, with short episodes and rewards that a connector scales."""
    if algo == "PPO":
        training = {"num_epochs": 1, "minibatch_size": None, "optimizer": "sgd", **training}
    config = small(algo, **training).training(train_batch_size=BATCH, gamma=0.9, lr=0.3)
    config.env_runners(
        num_envs_per_env_runner=envs, rollout_fragment_length=steps, normalize_rewards=True
    )
    return config.environment(max_episode_steps=11).rl_module(model_config={"fcnet_hiddens": [4]})


def collect(assembly: Assembly) -> tuple[Any, Any, Any]:
    """The state, the recorded rollout, and the columns to learn from."""
    runner = assembly.run

    def run() -> Any:
        state, data = runner.collect(started(assembly))
        received, batch = runner.learning.receive(state, data)
        return received, data.rollout, batch.rollout

    return jax.jit(run)()


def test_a_column_is_a_fragment_of_an_environment_in_order_of_time() -> None:
    short, long = (assemble(config_of(steps=n)) for n in (STEPS, STEPS * ROUNDS))
    assert short.plan.fragments_per_env == ROUNDS
    assert long.plan.fragments_per_env == 1
    state, recorded, columns = collect(short)
    whole_state, whole, seen = collect(long)
    assert_equal(replace(recorded, carry_in=None), replace(whole, carry_in=None))
    assert_equal(state.env, whole_state.env)
    assert_equal(state.connectors, whole_state.connectors)
    for env in range(ENVS):
        for i in range(ROUNDS):
            got = columns.reward[:, env * ROUNDS + i]
            np.testing.assert_array_equal(got, seen.reward[i * STEPS : (i + 1) * STEPS, env])
    cut_inside_an_episode = columns.is_first[0].sum() < ENVS * ROUNDS
    assert cut_inside_an_episode
    assert columns.truncated.sum() == seen.truncated.sum()
    assert columns.terminated.sum() == seen.terminated.sum()


@pytest.mark.representatives("PPO")
@pytest.mark.parametrize("algo", ["PPO", "IMPALA"])
def test_fragments_bootstrap_at_their_borders_as_in_numpy(algo: str) -> None:
    assembly = assemble(config_of(algo, lambda_=0.8))
    state, _, columns = collect(assembly)
    module = assembly.module
    params = jax.tree.map(lambda x: x + 0.1, state.learner.sgd.params)
    learner = replace(state.learner, sgd=replace(state.learner.sgd, params=params))
    batch, _ = assembly.train_step.on_policy_learner.prepare(learner, columns, Progress.zeros())

    values, next_values = (
        np.asarray(module.compute_values(params, x)) for x in (columns.obs, columns.final_obs)
    )
    rows = (columns.reward, values, next_values)
    ends = (columns.terminated, columns.truncated, columns.mask)

    def by_column(reference: Any, *arrays: Any) -> Any:
        """Targets of each column alone, which knows nothing of what follows it."""
        arrays = tuple(np.asarray(array) for array in arrays)
        found = [reference(*(a[:, i] for a in arrays)) for i in range(ENVS * ROUNDS)]
        return np.stack(found, axis=1)

    if algo == "PPO":
        advantages = by_column(lambda *row: references.gae(*row, 0.9, 0.8), *rows, *ends)
        targets = advantages + values
    else:
        out = module.forward_train(params, {Columns.OBS: columns.obs})
        dist = module.action_dist(out[Columns.ACTION_DIST_INPUTS], columns.obs)
        rho = np.exp(dist.log_prob(columns.action) - columns.extras[Columns.ACTION_LOGP])
        targets = by_column(
            lambda *row: references.vtrace(*row, 0.9, 0.8, 1.0, 1.0)[0], *rows, rho, *ends
        )
    np.testing.assert_allclose(batch.value_targets, targets, rtol=2e-4, atol=2e-5)


def train_once(config: Any) -> Any:
    assembly = assemble(config)
    programs = make_runner_programs(
        assembly.run,
        jax.eval_shape(lambda: started(assembly)),
        jax.local_devices()[:1],
        max_retraces=None,
        jit=True,
    )
    return programs.run(started(assembly), jnp.int32(1), jnp.int32(1))[0]


@pytest.mark.slow
def test_where_borders_do_not_matter_one_fragment_gives_the_same_update() -> None:
    """With lambda 0 an advantage is one TD error."""
    short, long = (train_once(config_of(steps=n, lambda_=0.0)) for n in (STEPS, STEPS * ROUNDS))
    assert_close(short.learner.sgd.params, long.learner.sgd.params, rtol=1e-4)
    assert_equal(short.connectors, long.connectors)
    assert_equal(short.ring, long.ring)
    kernels = [
        train_once(config_of(steps=n, lambda_=1.0)).learner.sgd.params["vf_head"]["out"]["kernel"]
        for n in (STEPS, STEPS * ROUNDS)
    ]
    assert np.abs(kernels[0] - kernels[1]).max() > 1e-3  # where they do


@pytest.mark.slow
def test_the_compiled_program_and_a_host_runner_learn_the_same() -> None:
    def train(placement: str) -> Any:
        with config_of().env_runners(placement=placement).build() as algorithm:
            algorithm.train()
            assert int(algorithm.state.progress.env_steps) == BATCH
            return jax.device_get((algorithm.state.learner.sgd, algorithm.state.connectors))

    (sgd, connectors), (host_sgd, host_connectors) = train("in_graph"), train("host")
    assert_close(sgd.params, host_sgd.params, rtol=1e-4)
    assert_close(connectors, host_connectors, rtol=1e-4)


@pytest.mark.slow
def test_the_number_of_devices_changes_nothing() -> None:
    config = config_of(envs=4, steps=4, minibatch_size=40, num_epochs=2)
    config.rl_module(model_config={"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4})

    def train(num_devices: int) -> Any:
        own = config.copy(copy_frozen=False).learners(num_shards=4, num_devices=num_devices)
        with own.build() as algorithm:
            algorithm.train()
            return jax.device_get(algorithm.state)

    one, four = train(1), train(4)
    assert_close(four.learner.sgd.params, one.learner.sgd.params, rtol=1e-3)
    assert_equal(four.env, one.env)


def test_recurrent_columns_start_with_the_carry_of_their_fragment() -> None:
    config = config_of()
    config.rl_module(model_config={"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": STEPS})
    assembly = assemble(config)
    state, _, columns = collect(assembly)
    out = forward_rollout(assembly.module, state.learner.sgd.params, columns)
    assert jax.tree.leaves(columns.carry_in)[0].shape == (ENVS * ROUNDS, 4)
    assert not np.allclose(jax.tree.leaves(columns.carry_in)[0], 0.0)
    np.testing.assert_allclose(  # as they were computed while acting
        out[Columns.ACTION_DIST_INPUTS],
        columns.extras[Columns.ACTION_DIST_INPUTS],
        rtol=1e-4,
        atol=1e-5,
    )


def test_fragments_of_a_host_runner_follow_one_another() -> None:
    with config_of().env_runners(placement="host").build() as algorithm:
        group: Any = algorithm.env_runner_group
        group.sync_weights(algorithm.learner_group.get_weights(0))
        fragments = group.next_batch()
    assert [fragment.number for fragment in fragments] == list(range(ROUNDS))
    data = concatenate_fragments(fragments)
    assert data.rollout.reward.shape == (STEPS, ENVS * ROUNDS)
    np.testing.assert_array_equal(data.env_index, np.tile(np.arange(ENVS), ROUNDS))
    ended = data.record.ended.reshape((STEPS, ROUNDS, ENVS))
    is_first = data.rollout.is_first.reshape((STEPS, ROUNDS, ENVS))
    np.testing.assert_array_equal(is_first[0, 1:], ended[-1, :-1])
