"""Modules with memory: learners see what the module saw when it acted."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import RLModule
from jaxrl.assembly.assemble import Assembly, assemble
from jaxrl.buffers.sequence import SequenceReplayBuffer
from jaxrl.core.struct import replace, where_rows
from jaxrl.core.types import Columns
from jaxrl.envs import MadeEnv
from jaxrl.errors import ConfigError, ModuleError
from jaxrl.modules.encoder_module import RecurrentEncoder
from jaxrl.training.train_state import RolloutBatch
from tests import actor_critics as ac
from tests.helpers import assert_close, assert_equal
from tests.recurrent import remembering, step_by_step

pytestmark = pytest.mark.allow_key_reuse

FRESH = ("PPO", "IMPALA", "APPO", "PQN")
INPUTS = Columns.ACTION_DIST_INPUTS


def short(config: Any) -> Any:
    """Episodes of five steps, cut by the clock, so that most rollouts hold an end and a start."""
    return config.environment(max_episode_steps=5)


def started(assembly: Assembly) -> Any:
    assert isinstance(assembly.made, MadeEnv)
    return jax.jit(assembly.run.init)(jax.random.key(0), assembly.made.params)


def sampled(assembly: Assembly, state: Any) -> tuple[Any, Any]:
    """The state after a rollout, nothing learned, and the rollout as the learner gets it."""
    runner, sampler = assembly.run, assembly.rollout_worker

    def roll(state: Any) -> Any:
        env, carry, raw, _ = sampler.rollout(
            runner.make_actor_state(state),
            state.env,
            state.carry,
            state.env_params,
            assembly.train_step.num_steps,
        )
        seen = sampler.preprocess_rollout(state.connectors.obs, raw)
        return replace(state, env=env, carry=carry), seen

    return jax.jit(roll)(state)


@pytest.mark.representatives("PPO")
@pytest.mark.parametrize("algo", FRESH)
def test_sequences_of_a_batch_give_what_acting_gave(algo: str) -> None:
    assembly = assemble(short(remembering(algo)))
    state, module = started(assembly), assembly.module
    assert module.sequence_length == 4
    state, _ = sampled(assembly, state)  # the second rollout begins within episodes
    state, rollout = sampled(assembly, state)
    assert bool((~rollout.is_first[0]).any())
    assert bool(rollout.is_first[1:].any())
    learner = assembly.train_step.learner

    @jax.jit
    def prepared(state: Any, rollout: Any) -> Any:
        batch, _ = learner.prepare(state.learner, rollout, state.progress)
        rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
        return rows, module.forward_train(state.learner.sgd.params, {Columns.OBS: rows.obs})

    rows, out = prepared(state, rollout)
    assert rows.obs.is_first.shape == (2 * 16, 4)
    acted = np.asarray(rollout.extras[INPUTS])  # [8, 16, n]: cut like the batch
    want = acted.reshape(2, 4, 16, -1).swapaxes(1, 2).reshape(32, 4, -1)
    np.testing.assert_allclose(out[INPUTS], want, rtol=1e-4, atol=1e-5)
    late = replace(rows.obs, is_first=jnp.roll(rows.obs.is_first, 1, axis=1))
    off = jax.jit(module.forward_train)(state.learner.sgd.params, {Columns.OBS: late})
    assert np.abs(np.asarray(off[INPUTS]) - want).max() > 1e-3


@pytest.mark.representatives("PPO")
@pytest.mark.parametrize("algo", ["PPO", "IMPALA"])
def test_truncated_rows_bootstrap_with_what_is_remembered_then(algo: str) -> None:
    """λ = 0: a row's value target is r + γ v(its successor), by the carry after the row."""
    config = short(remembering(algo, model={"vf_share_layers": True}))
    config.training(lambda_=0.0, gamma=0.9)
    if algo == "PPO":
        config.training(num_epochs=1, minibatch_size=128, normalize_advantages=False)
    else:
        config.training(vtrace=False)
    assembly = assemble(config)
    state, rollout = sampled(assembly, started(assembly))
    params, module = state.learner.sgd.params, assembly.module
    assert bool(rollout.truncated.any())
    learner = assembly.train_step.learner
    batch, _ = jax.jit(learner.prepare)(state.learner, rollout, state.progress)
    targets = np.asarray(batch.value_targets).swapaxes(1, 2).reshape(8, 16)
    steps = step_by_step(module, params, rollout.obs, rollout.carry_in, rollout.is_first)
    step = jax.jit(module._forward_step)  # pyright: ignore[reportPrivateUsage]
    for t in range(8):
        carry = jax.tree.map(lambda x, t=t: x[t], steps[Columns.STATE_OUT])
        following = step(params, rollout.final_obs[t], carry)[Columns.VF_PREDS]
        want = rollout.reward[t] + 0.9 * following * ~rollout.terminated[t]
        np.testing.assert_allclose(targets[t], want, rtol=1e-4, atol=1e-5)


@pytest.mark.representatives("PPO")
@pytest.mark.parametrize("algo", ["PPO", "IMPALA"])
def test_the_gradient_of_sequences_is_that_of_rows_one_by_one(algo: str) -> None:
    """Parameters have changed since acting; each sequence begins with the carry of then.

    Slopes in logits and values are formulas in float64, which a walk over the rows carries to the
    parameters.
    """
    config = short(remembering(algo, entropy_coeff=0.02, gamma=0.9))
    if algo == "PPO":
        config.training(num_epochs=1, minibatch_size=128, use_kl_loss=False)
    assembly = assemble(config)
    state, module, learner = started(assembly), assembly.module, assembly.train_step.learner
    state, _ = sampled(assembly, state)
    state, rollout = sampled(assembly, state)
    batch, _ = jax.jit(learner.prepare)(state.learner, rollout, state.progress)
    batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)  # [2 * 16, 4]
    acting = state.learner.sgd.params
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda x: x + jnp.asarray(rng.normal(size=x.shape) * 0.2, jnp.float32), acting
    )
    values = learner.settings.at(state.learner.hparams, state.progress)
    if algo == "PPO":
        values = replace(values, kl_coeff=state.learner.kl_coeff)

    def loss(params: Any) -> Any:
        return learner.compute_loss(params, batch, values, jax.random.key(0))[0]

    found = jax.jit(jax.grad(loss))(params)

    carries = step_by_step(module, acting, rollout.obs, rollout.carry_in, rollout.is_first)
    middle = jax.tree.map(lambda x: jnp.asarray(x[3]), carries[Columns.STATE_OUT])
    blank = module.initial_carry(16)

    def walk(params: Any) -> Any:
        rows, carry = [], rollout.carry_in
        for t in range(8):
            carry = middle if t == 4 else carry
            carry = where_rows(rollout.is_first[t], blank, carry)
            out = module._forward_step(params, rollout.obs[t], carry)  # pyright: ignore
            carry = out[Columns.STATE_OUT]
            rows.append({name: out[name] for name in (INPUTS, Columns.VF_PREDS)})
        # [8, 16] as [2 * 16, 4], like the batch
        stacked = jax.tree.map(lambda *x: jnp.stack(x), *rows)
        return jax.tree.map(
            lambda x: x.reshape(2, 4, *x.shape[1:]).swapaxes(1, 2).reshape(32, 4, *x.shape[2:]),
            stacked,
        )

    out, pull_back = jax.jit(lambda p: jax.vjp(walk, p))(params)
    b, logits = jax.device_get(batch), out[INPUTS]
    weight = np.asarray(b.weight, np.float64) / b.weight.size
    error = np.asarray(out[Columns.VF_PREDS], np.float64) - b.value_targets
    if algo == "PPO":
        slopes = ac.surrogate_slopes(logits, b.action, b.log_prob, b.advantages, 0.3)
        value_slopes = np.where(np.square(error) > values.vf_clip_param, 0.0, 2.0 * error)
    else:
        one = np.eye(2)[b.action]
        policy = np.exp(ac.log_softmax(logits))
        slopes = -np.asarray(b.advantages, np.float64)[..., None] * (one - policy)
        value_slopes = error
    value_slopes = value_slopes * float(values.vf_loss_coeff)
    slopes = weight[..., None] * (slopes - 0.02 * ac.entropy_slopes(logits))
    expected = pull_back(
        {
            INPUTS: jnp.asarray(slopes, jnp.float32),
            Columns.VF_PREDS: jnp.asarray(weight * value_slopes, jnp.float32),
        }
    )[0]
    largest = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(expected))
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-5 * largest),
        found,
        expected,
    )


def replayed(algo: str, **training: Any) -> Any:
    config = short(remembering(algo, **training))
    config.training(train_batch_size=64, replay_buffer_config={"type": "uniform"})
    return config


@pytest.mark.representatives("settings0")
@pytest.mark.parametrize(
    "settings", [{}, {"burn_in_len": 3}, {"zero_init_states": True, "burn_in_len": 2}]
)
def test_replayed_sequences_begin_with_what_was_remembered(settings: dict[str, Any]) -> None:
    assembly = assemble(replayed("DQN", n_step=3, **settings))
    runner, module = assembly.run, assembly.module
    replay: Any = assembly.train_step.experience
    assert isinstance(replay, SequenceReplayBuffer)
    state = started(assembly)
    buffer, params = state.buffer, state.learner.sgd.params
    by_time: list[Any] = []

    @jax.jit
    def put(state: Any, buffer: Any) -> Any:
        env, carry, raw, record = assembly.rollout_worker.rollout(
            runner.make_actor_state(state),
            state.env,
            state.carry,
            state.env_params,
            assembly.train_step.num_steps,
        )
        data = RolloutBatch(
            rollout=raw,
            record=record,
            env_index=jnp.arange(16, dtype=jnp.int32),
            num_env_steps=jnp.asarray(128, jnp.uint32),
        )
        kept = assembly.train_step.receive(state, data)[1].rollout
        buffer = replay.add(buffer, kept, data.env_index, record.env_step)
        return replace(state, env=env, carry=carry), buffer, raw

    for _ in range(3):
        state, buffer, raw = put(state, buffer)
        by_time.append(raw)
    rows: Any = jax.tree.map(lambda *x: np.concatenate(x), *by_time)

    @jax.jit
    def draw(buffer: Any) -> Any:
        shards = jnp.arange(replay.num_shards, dtype=jnp.int32)
        gamma = jnp.asarray(0.9)
        drawn = replay.sample(buffer, None, jax.random.key(1), shards, jnp.zeros(()))
        batch = replay.gather_transitions(buffer, drawn, gamma, shards, jax.random.key(2))
        return drawn, batch, module.forward_train(params, {Columns.OBS: batch.obs})

    drawn, batch, out = jax.device_get(draw(buffer))
    burn_in = settings.get("burn_in_len", 0)
    assert batch.reward.shape == out[INPUTS].shape[:2] == (16, 4)
    for i, (env, start) in enumerate(zip(drawn.env, drawn.time, strict=True)):
        times = start + burn_in + np.arange(4)
        is_known = np.ones(4, bool)
        if settings.get("zero_init_states"):
            # Only what lies behind a start within the sequence is as it was when acting.
            starts = rows.is_first[start : start + burn_in + 4, env]
            is_known = np.logical_or.accumulate(starts)[burn_in:]
        acted = rows.extras[INPUTS][times, env]
        np.testing.assert_allclose(out[INPUTS][i][is_known], acted[is_known], rtol=1e-4, atol=1e-5)
        _check_fold(rows, env, times, batch, i)


def _check_fold(rows: Any, env: int, times: Any, batch: Any, i: int) -> None:
    """Three steps of rewards at most, cut by ends and by the sequence's own."""
    for j, t in enumerate(times):
        reward, last = 0.0, t
        for k in range(3):
            reward += 0.9**k * rows.reward[t + k, env]
            last = t + k
            ended = rows.terminated[last, env] or rows.truncated[last, env]
            if ended or last == times[-1]:
                break
        np.testing.assert_allclose(batch.reward[i, j], reward, rtol=1e-5)
        want = 0.9 ** (last - t + 1) * (not rows.terminated[last, env])
        np.testing.assert_allclose(batch.discount[i, j], want, rtol=1e-5)
        assert batch.next_obs.after[i, j] == last - times[0]
        np.testing.assert_array_equal(batch.next_obs.obs[i, j], rows.final_obs[last, env])


SLOW = pytest.mark.slow


@pytest.mark.slow
@pytest.mark.parametrize(
    "algo", ["PPO", "DQN", pytest.param("SAC", marks=SLOW), pytest.param("TD3", marks=SLOW)]
)
def test_a_run_goes_on_bit_for_bit(algo: str, tmp_path: Any) -> None:
    def config() -> Any:
        extra: dict[str, Any] = {"exploration_noise": "ou"} if algo == "TD3" else {}
        return short(remembering(algo, **extra))

    with config().build() as algorithm:
        algorithm.train()
        path = algorithm.save(tmp_path)
        algorithm.train()
        want = algorithm.state
        with type(algorithm).from_checkpoint(path) as restored:
            restored.train()
            assert_equal(restored.state, want)
    carries = [leaf for leaf in jax.tree.leaves(want.carry.module) if leaf.ndim == 2]
    assert carries
    assert all(np.abs(np.asarray(leaf)).max() > 0 for leaf in carries)


def test_a_custom_module_that_remembers_learns_from_sequences() -> None:
    class Sums(RLModule):
        """The sum of the episode's observations, weighted."""

        def init(self, key: Any) -> Any:
            width = self.distribution.input_dim + 1
            return {"w": 0.1 * jax.random.normal(key, (4, width))}

        def initial_carry(self, batch_size: int) -> Any:
            return jnp.zeros((batch_size, 4))

        def _forward_step(self, params: Any, obs: Any, carry: Any) -> Any:
            carry = carry + obs
            out = carry @ params["w"]
            return {INPUTS: out[:, 1:], Columns.VF_PREDS: out[:, 0], Columns.STATE_OUT: carry}

    config = short(remembering()).rl_module(rl_module_spec=Sums, model_config=None)
    config.training(num_epochs=1, minibatch_size=128)
    with config.build() as algorithm:
        before = np.asarray(algorithm.get_weights()["default_policy"]["w"])
        learned = algorithm.train()["learners"]["default_policy"]
        assert abs(learned["approx_kl"]) < 1e-9  # the ratio is 1 before the first update
        assert (np.asarray(algorithm.get_weights()["default_policy"]["w"]) != before).any()


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["PPO", pytest.param("DQN", marks=SLOW)])
def test_devices_change_nothing(algo: str) -> None:
    training = {"num_epochs": 1, "minibatch_size": None} if algo == "PPO" else {}

    def after(num_devices: int) -> Any:
        config = remembering(algo, **training)
        if algo == "DQN":
            config.training(train_batch_size=64, target_network_update_freq=8)
        config.learners(num_shards=8, num_devices=num_devices)
        with config.build() as algorithm:
            algorithm.train()
            return algorithm.state.learner

    assert_close(after(1), after(2), rtol=1e-4, atol=1e-5)


def test_statelessness_of_a_carry_that_matters_is_refused() -> None:
    class Forgetful(RLModule):
        def init(self, key: Any) -> Any:
            return {"w": jnp.zeros((4, 2))}

        def initial_carry(self, batch_size: int) -> Any:
            return jnp.zeros((batch_size, 1))

        def _forward(self, params: Any, obs: Any) -> Any:
            return {INPUTS: obs @ params["w"], Columns.VF_PREDS: obs[..., 0]}

    config = remembering().rl_module(rl_module_spec=Forgetful, model_config=None)
    with pytest.raises(ModuleError, match="implement _forward_step"):
        config.build()


@pytest.mark.parametrize(
    ("algo", "model", "training", "message"),
    [
        ("PPO", {"max_seq_len": 8}, {"minibatch_size": 2}, "max_seq_len=8 must allow sequences"),
        ("PPO", {"lstm_cell_size": 0}, {}, "lstm_cell_size is 0"),
        ("PPO", {"use_attention": True}, {}, "exclude each other"),
        ("PPO", {"attention_dim": 32}, {}, "attention_dim=32 has no effect without use_att"),
        ("PPO", {"recurrent_layer_type": "lstn"}, {}, "Did you mean 'lstm'"),
        ("DQN", {"max_seq_len": 7}, {}, "train_batch_size=128 must be whole sequences"),
        ("DQN", {}, {"noisy": True}, "noisy=True is not supported for recurrent networks"),
        ("DQN", {}, {"use_h_function": True, "num_atoms": 3}, "use_h_function=True rescales"),
        ("DQN", {}, {"burn_in_len": 1000}, "burn_in_len=1000"),
    ],
)
def test_what_does_not_go_is_one_sentence(
    algo: str, model: dict[str, Any], training: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        remembering(algo, model=model, **training).build()


def test_replay_settings_of_sequences_need_a_memory() -> None:
    for name, value in (("burn_in_len", 2), ("zero_init_states", True)):
        config = remembering("DQN", **{name: value})
        config.rl_module(model_config={"use_lstm": False, "lstm_cell_size": 256, "max_seq_len": 20})
        with pytest.raises(ConfigError, match=f"{name}={value} has no effect"):
            config.build()


@pytest.mark.slow
def test_previous_actions_and_rewards_are_observed() -> None:
    config = remembering(model={"lstm_use_prev_action": True, "lstm_use_prev_reward": True})
    assembly = assemble(config)
    assert assembly.policy_step.obs_pipeline.spaces[-1].shape == (4 + 2 + 1,)
    assert assemble(remembering()).policy_step.obs_pipeline.spaces[-1].shape == (4,)
    attention = {"use_attention": True, "attention_use_n_prev_actions": 3, "fcnet_hiddens": [8]}
    config = remembering(model={"use_lstm": False, "lstm_cell_size": 256, **attention})
    assert assemble(config).policy_step.obs_pipeline.spaces[-1].shape == (4 + 3 * 2,)


@pytest.mark.representatives("truncate_episodes")
@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
def test_host_batches_reproduce_what_acted(
    batch_mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first and only gradient step the policy is the one that acted: its KL is 0."""

    def kl_of_the_first_step() -> float:
        config = remembering("PPO", "gymnasium:CartPole-v1", model={"lstm_use_prev_action": True})
        config.env_runners(num_envs_per_env_runner=4, batch_mode=batch_mode)
        config.training(train_batch_size=128, minibatch_size=128, num_epochs=1)
        config.training(use_kl_loss=True, kl_coeff=0.2)
        config.debugging(loggers=[]).checkpointing(checkpoint_at_end=False)
        with config.build() as algorithm:
            learned = algorithm.train()["learners"]["default_policy"]
        return learned["mean_kl_loss"]

    assert abs(kl_of_the_first_step()) < 1e-7
    if batch_mode == "truncate_episodes":
        return
    honest = RecurrentEncoder._unroll

    def late(self: Any, sequence: Any) -> Any:
        is_first = jnp.pad(sequence.is_first[:, :-1], ((0, 0), (1, 0)))
        return honest(self, replace(sequence, is_first=is_first))

    monkeypatch.setattr(RecurrentEncoder, "_unroll", late)
    assert kl_of_the_first_step() > 1e-6
