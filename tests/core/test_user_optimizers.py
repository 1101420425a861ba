"""Optimizers and hooks of a user's own learner, against optax by hand and counts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl import Algorithm, DQNConfig, SACConfig
from jaxrl.algorithms.dqn import DQNLearner, DQNState
from jaxrl.algorithms.ppo import PPOLearner
from jaxrl.algorithms.sac import SACLearner
from jaxrl.assembly.assemble import assemble, check_learner
from jaxrl.core.struct import pytree
from jaxrl.core.types import Progress
from jaxrl.errors import LossError
from jaxrl.learners.gradients import SgdState, apply_gradients
from tests.helpers import assert_close, assert_equal, small
from tests.replays import replaying

TINY = {"fcnet_hiddens": [4]}


class TwoRates(PPOLearner):
    """Heads at the setting's rate, the policy's encoder at a tenth, the value's encoder frozen."""

    def configure_optimizers_for_module(self, module_id: Any, values: Any) -> Any:
        assert module_id == "default_policy"
        return {
            "slow": self.make_optimizer(0.1 * values.lr),
            "frozen": optax.set_to_zero(),
            "heads": optax.sgd(values.lr, momentum=0.9),
        }

    def label_params(self, params: Any) -> Any:
        labels = {"pi_encoder": "slow", "vf_encoder": "frozen"}
        return {name: labels.get(name, "heads") for name in params}


def learner_of(learner_class: Any, **training: Any) -> Any:
    config = small("PPO", **training).learners(learner_class=learner_class)
    return assemble(config.rl_module(model_config=TINY)).train_step.learner


def pick(tree: Any, *names: str) -> Any:
    return {name: tree[name] for name in names}


def test_every_label_is_optimized_and_clipped_alone() -> None:
    learner = learner_of(TwoRates, lr=[[0, 0.1], [1000, 0.2]], grad_clip=0.5, optimizer="adam")
    state = learner.init(jax.random.key(0))
    params, opt_state = state.sgd.params, state.sgd.opt_state
    heads = ("pi_head", "vf_head")
    by_hand: dict[str, Any] = {
        "slow": (("pi_encoder",), lambda lr: optax.adam(0.1 * lr)),
        "heads": (heads, lambda lr: optax.sgd(lr, momentum=0.9)),
    }
    want = dict(params)
    states = {label: make(0.1).init(pick(want, *names)) for label, (names, make) in by_hand.items()}

    @jax.jit
    def apply(grads: Any, progress: Progress, sgd: SgdState) -> Any:
        values = learner.settings.at(state.hparams, progress)
        optimizer = learner.configure_optimizer(values, sgd.params)
        return apply_gradients(((jnp.zeros(()), {}), grads), optimizer, sgd)

    for step, env_steps in enumerate((0, 500)):
        progress = replace(Progress.zeros(), env_steps=Progress.zeros().env_steps.add(env_steps))
        grads = jax.tree.map(lambda x, k=step: jnp.cos(x + k) + k, params)
        sgd, metrics = apply(grads, progress, SgdState(params=params, opt_state=opt_state))
        params, opt_state = sgd.params, sgd.opt_state
        assert metrics["num_nonfinite_updates"] == 0.0
        for label, (names, make) in by_hand.items():
            own = pick(grads, *names)
            norm = np.sqrt(sum(np.square(leaf).sum() for leaf in jax.tree.leaves(own)))
            assert norm > 0.5
            clipped = jax.tree.map(lambda g, n=norm: g * 0.5 / n, own)
            lr = 0.1 + 0.1 * env_steps / 1000
            updates, states[label] = make(lr).update(clipped, states[label], pick(want, *names))
            want |= optax.apply_updates(pick(want, *names), updates)
    assert_close(params, want, rtol=1e-5)
    assert_equal(params["vf_encoder"], state.sgd.params["vf_encoder"])


def test_one_transformation_and_the_names_of_parts_need_no_labels() -> None:
    class Alone(PPOLearner):
        def configure_optimizers_for_module(self, module_id: Any, values: Any) -> Any:
            return optax.chain(optax.add_decayed_weights(0.1), self.make_optimizer(values.lr))

    class ByName(PPOLearner):
        def configure_optimizers_for_module(self, module_id: Any, values: Any) -> Any:
            names = ("pi_encoder", "pi_head", "vf_encoder", "vf_head")
            return {name: self.make_optimizer(values.lr) for name in names}

    for learner_class in (Alone, ByName):
        learner = learner_of(learner_class)
        state = jax.eval_shape(learner.init, jax.random.key(0))
        names = len(jax.tree.leaves(state.sgd.opt_state))
        assert names == 2 * len(jax.tree.leaves(state.sgd.params)) + (
            1 if learner_class is Alone else 4
        )


def wrong(configured: Any = None, labels: Any = None) -> Any:
    class Mine(PPOLearner):
        def configure_optimizers_for_module(self, module_id: Any, values: Any) -> Any:
            return configured(self, values) if callable(configured) else configured

        def label_params(self, params: Any) -> Any:
            return super().label_params(params) if labels is None else labels(params)

    return Mine


def of_rllib(body: Any) -> Any:
    class Mine(PPOLearner):
        def configure_optimizers_for_module(self, module_id: Any, config: Any = None) -> Any:  # pyright: ignore
            return body(self)

    return Mine


def registering(learner: Any, values: Any) -> Any:
    learner.register_optimizer(optimizer=values)


def sgd_by(*names: str) -> Any:
    return {name: optax.sgd(0.1) for name in names}


def heads(params: Any) -> Any:
    return {name: "head" if "head" in name else "encoder" for name in params}


CASES = [
    (wrong(None), r"must return an optax transformation, such as .*by label, got None\."),
    (wrong(lambda self, values: optax.adam), r"must return an optax transformation"),
    (wrong({"a": 0.1}), r"returned 0.1 for 'a'; it must be an optax transformation"),
    (
        wrong(sgd_by("head", "encodr"), heads),
        r"labels the parameter pi_encoder.* 'encoder', .* Did you mean 'encodr'\? It has 'encodr', 'h",
    ),
    (
        wrong(sgd_by("head", "encoder", "hed"), heads),
        r"has an optimizer for 'hed', a label of no parameter. Did you mean 'head'\?",
    ),
    (
        wrong(sgd_by("head"), lambda params: dict.fromkeys(params)),
        r"labels the parameter pi_encoder.* None, for which",
    ),
    (
        wrong(sgd_by("head"), lambda params: {"pi_head": "head"}),
        r"label_params must return a tree of strings with the structure of params",
    ),
    (
        of_rllib(lambda self: None),
        r"must take \(module_id, values\) and return .*, got configure_.*config: Any = None\)",
    ),
    (
        wrong(registering),
        r"Mine has no 'register_optimizer': return the optax transformation from configure_opt",
    ),
    (
        type("Mine", (PPOLearner,), {"compute_loss_for_module": lambda self, **_: 0}),
        r"Mine.compute_loss_for_module is never called here: override compute_loss",
    ),
]


@pytest.mark.parametrize(("learner_class", "message"), CASES)
def test_wrong_optimizers_are_one_sentence_before_anything_is_compiled(
    learner_class: Any, message: str
) -> None:
    with pytest.raises(LossError, match=message):
        learner_of(learner_class)


def test_parts_of_actor_critics_can_have_their_own() -> None:
    class Mine(SACLearner):
        def configure_optimizers_for_module(self, module_id: Any, values: Any) -> Any:
            own: Any = super().configure_optimizers_for_module(module_id, values)
            return {**own, "log_alpha": optax.sgd(10 * values.alpha_lr, momentum=0.5)}

    def opt_states(learner_class: Any) -> Any:
        config = SACConfig().environment("Pendulum-v1").rl_module(model_config=TINY)
        config.learners(learner_class=learner_class)
        state = jax.eval_shape(assemble(config).train_step.learner.init, jax.random.key(0))
        return state.sgd.opt_state, state.temperature.opt_state

    sgd, temperature = opt_states(Mine)
    assert set(sgd) == {"policy", "critic"}
    assert len(jax.tree.leaves(temperature)) == 1  # the trace of the momentum alone

    class Missing(SACLearner):
        def configure_optimizers_for_module(self, module_id: Any, values: Any) -> Any:
            return {"policy": optax.adam(0.1), "qf": optax.adam(0.1)}

    message = r"one optimizer for each of 'critic', 'log_alpha', 'policy', got 'policy', 'qf'"
    with pytest.raises(LossError, match=message):
        opt_states(Missing)


# --- hooks ---


class Hooked(TwoRates):
    """Adds each batch's timesteps to the KL weight before it, and one half after it."""

    def before_gradient_based_update(self, state: Any, progress: Any) -> Any:
        kl_coeff = jnp.where(progress.updates.low == 0, 0.0, state.kl_coeff)
        return replace(state, kl_coeff=kl_coeff + progress.env_steps.as_float())

    def after_gradient_based_update(self, state: Any, metrics: Any, progress: Any) -> Any:
        return replace(state, kl_coeff=state.kl_coeff + jnp.where(metrics["entropy"] > 0, 0.5, 0.0))


def hooked(**training: Any) -> Any:
    given = {"use_kl_loss": False, "lr": [[0, 0.01], [1000, 0.02]], "grad_clip": 0.5, **training}
    config = small("PPO", **given).learners(learner_class=Hooked)
    return config.rl_module(model_config=TINY).reporting(log_gradients=True)


def test_hooks_run_once_per_train_batch_and_checkpoints_restore_every_optimizer(
    tmp_path: Path,
) -> None:
    with hooked(microbatch_size=8).build() as algorithm:
        before = jax.device_get(algorithm.state.learner.sgd.params)
        algorithm.train()
        steps = int(algorithm.state.progress.env_steps)
        assert float(algorithm.state.learner.kl_coeff) == steps + 0.5
        path = algorithm.save(tmp_path / "saved")
        result = algorithm.train()["learners"]["default_policy"]
        after = jax.device_get(algorithm.state.learner.sgd)
        assert float(algorithm.state.learner.kl_coeff) == 3 * steps + 1.0
    assert result["grad_norm/vf_encoder.mlp.dense_0.kernel"] > 0.0
    assert_equal(after.params["vf_encoder"], before["vf_encoder"])
    assert not np.array_equal(
        after.params["pi_head"]["out"]["kernel"], before["pi_head"]["out"]["kernel"]
    )
    with Algorithm.from_checkpoint(path) as again:
        again.train()
        assert_equal(jax.device_get(again.state.learner.sgd), after)


@pytest.mark.slow
def test_the_number_of_devices_does_not_matter() -> None:
    def train(**learners: Any) -> Any:
        with hooked().learners(num_shards=2, **learners).build() as algorithm:
            algorithm.train()
            return jax.device_get(algorithm.state.learner)

    one, two = train(num_devices=1), train(num_devices=2)
    assert_close(two, one, rtol=1e-4)


@pytree
class CountingState(DQNState):
    """State with counts of hooks: before, after, and of updates that were finite."""

    counts: Any


class Counting(DQNLearner):
    def init(self, key: Any) -> Any:
        return CountingState(**vars(super().init(key)), counts=jnp.zeros((3,)))

    def before_gradient_based_update(self, state: Any, progress: Any) -> Any:
        return replace(state, counts=state.counts.at[0].add(1.0))

    def after_gradient_based_update(self, state: Any, metrics: Any, progress: Any) -> Any:
        counts = state.counts.at[1].add(1.0).at[2].add(1.0 - metrics["num_nonfinite_updates"])
        return replace(state, counts=counts)


@pytest.mark.slow
def test_with_replay_hooks_run_for_each_batch_that_is_drawn() -> None:
    with replaying().learners(learner_class=Counting).build() as algorithm:
        algorithm.train()
        updates = int(algorithm.state.progress.updates)
        assert updates > 2
        np.testing.assert_array_equal(algorithm.state.learner.counts, np.full(3, updates))


HOOKS: list[tuple[str, Any, str]] = [
    (
        "before_gradient_based_update",
        lambda self, *, timesteps: None,
        r"must take \(state, progress\) and return .*timesteps, got before_.*\(\*, timesteps\)\.",
    ),
    (
        "after_gradient_based_update",
        lambda self, state, metrics, progress: None,
        r"must take \(state, metrics, progress\) and return the new state; .*, got None\.",
    ),
    (
        "after_gradient_based_update",
        lambda self, state, metrics, progress: replace(state, kl_coeff=jnp.zeros(2)),
        r"must keep the state's types: kl_coeff was float32\[\] and became float32\[2\]",
    ),
]


@pytest.mark.parametrize(("name", "hook", "message"), HOOKS)
def test_wrong_hooks_are_one_sentence(name: str, hook: Any, message: str) -> None:
    with pytest.raises(LossError, match=message):
        learner_of(type("Mine", (PPOLearner,), {name: hook}))


def test_a_python_number_from_a_hook_is_as_good_as_an_array() -> None:
    hook = {"after_gradient_based_update": lambda self, state, m, p: replace(state, kl_coeff=0.25)}
    check_learner(
        assemble(small("PPO").learners(learner_class=type("Mine", (PPOLearner,), hook))).train_step
    )


def test_a_buffer_in_host_memory_does_not_hide_a_wrong_optimizer() -> None:
    class Mine(DQNLearner):
        def configure_optimizers_for_module(self, module_id: Any, values: Any) -> Any:
            return None

    config = DQNConfig().environment("CartPole-v1").learners(learner_class=Mine)
    config.env_runners(placement="host").training(replay_buffer_config={"storage": "host"})
    with pytest.raises(LossError, match=r"must return an optax transformation"):
        assemble(config)
