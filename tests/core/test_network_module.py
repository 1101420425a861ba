"""Networks without a subclass of RLModule: linen, nnx, functions; what is refused; checkpoints."""

from pathlib import Path
from typing import Any

import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium import spaces

from jaxrl import Algorithm, PPOConfig, RLModule, RLModuleSpec
from jaxrl.errors import CheckpointError, ConfigError, ModuleError
from jaxrl.modules.network_module import make_network_module
from jaxrl.runs import checkpoint as ckpt
from tests.helpers import slow_but, small

OBS = spaces.Box(-1.0, 1.0, (4,), np.float32)


class Linen(nn.Module):
    num_outputs: int = 2
    width: int = 8

    @nn.compact
    def __call__(self, obs: Any) -> Any:
        x = nn.tanh(nn.Dense(self.width)(obs))
        return nn.Dense(self.num_outputs)(x), nn.Dense(1)(x)[..., 0]


class Nnx(nnx.Module):
    def __init__(self, num_outputs: int, width: int = 8, *, rngs: nnx.Rngs) -> None:
        self.bodies = nnx.List([nnx.Linear(4, width, rngs=rngs)])
        self.policy = nnx.Linear(width, num_outputs, rngs=rngs)
        self.value = nnx.Linear(width, 1, rngs=rngs)

    def __call__(self, obs: Any) -> Any:
        x = nnx.tanh(self.bodies[0](obs))
        return self.policy(x), self.value(x)[..., 0]


def made_linen(num_outputs: int, action_space: Any) -> nn.Module:
    assert action_space.n == num_outputs
    return Linen(num_outputs, width=3)


def init(key: Any, obs: Any) -> Any:
    return {"w": 0.1 * jax.random.normal(key, (obs.shape[-1], 3))}


def apply(params: Any, obs: Any) -> Any:
    out = obs @ params["w"]
    return out[..., :2], out[..., 2]


def built(network: Any, action_space: Any = None, **model_config: Any) -> RLModule:
    return RLModuleSpec(
        module_class=make_network_module(network),
        observation_space=OBS,
        action_space=action_space or spaces.Discrete(2),
        model_config=model_config,
    ).build()


@pytest.mark.parametrize("network", [Linen(), Linen, Nnx, made_linen, (init, apply)])
def test_networks_of_every_kind_are_modules(network: Any) -> None:
    module = built(network)
    first, again = module.init(jax.random.key(0)), module.init(jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    other = module.init(jax.random.key(1))
    assert any(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a != b).any()), first, other)))
    obs = jnp.ones((3, 5, 4))
    out = jax.jit(lambda p: module.forward_train(p, {"obs": obs}))(first)
    assert out["action_dist_inputs"].shape == (3, 5, 2)
    assert out["vf_preds"].shape == (3, 5)
    grads = jax.grad(lambda p: module.compute_values(p, obs).sum())(first)
    assert any(bool((g != 0).any()) for g in jax.tree.leaves(grads))
    assert "parameters:" in module.summary()


def test_an_nnx_network_is_the_function_that_flax_would_apply() -> None:
    module = built(Nnx, width=5)
    obs = jnp.linspace(-1.0, 1.0, 8).reshape(2, 4)
    out = module.forward_train(module.init(jax.random.key(3)), {"obs": obs})
    policy, value = Nnx(2, 5, rngs=nnx.Rngs(jax.random.key(3)))(obs)
    np.testing.assert_allclose(out["action_dist_inputs"], policy, rtol=1e-6)
    np.testing.assert_allclose(out["vf_preds"], value, rtol=1e-6)


class Normed(nn.Module):
    @nn.compact
    def __call__(self, obs: Any) -> Any:
        x = nn.BatchNorm(use_running_average=True)(obs)
        return nn.Dense(2)(x), x[..., 0]


class LinenDropped(nn.Module):
    @nn.compact
    def __call__(self, obs: Any) -> Any:
        x = nn.Dropout(0.5, deterministic=False)(obs)
        return nn.Dense(2)(x), x[..., 0]


class Dropped(Nnx):
    def __init__(self, num_outputs: int, *, rngs: nnx.Rngs) -> None:
        super().__init__(num_outputs, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)


class Recurrent(nn.Module):
    @nn.compact
    def __call__(self, carry: Any, obs: Any) -> Any:
        return nn.GRUCell(2)(carry, obs)


def of_three(params: Any, obs: Any, carry: Any) -> Any:
    return obs, obs[..., 0], carry


def with_carry(params: Any, obs: Any) -> Any:
    return obs[..., :2], obs[..., 0], obs


def branching(params: Any, obs: Any) -> Any:
    return (obs[..., :2], obs[..., 0]) if obs[0, 0] > 0 else None


@pytest.mark.parametrize(
    ("network", "config", "message"),
    [
        (3, {}, "network is 3; it must be a flax linen module"),
        ((init,), {}, "two functions"),
        (RLModule, {}, "RLModule, an RLModule: pass it as rl_module_spec instead"),
        (Nnx(2, rngs=nnx.Rngs(0)), {}, "object of Nnx, whose parameters are already drawn"),
        (lambda: 3, {}, "makes a int; it must be a flax linen module"),
        (lambda rngs: 3, {}, "makes a int; it must be a flax linen module"),
        (lambda width: Linen(2, width), {}, r"cannot be constructed \(TypeError: .*width"),
        (
            Linen,
            {"wide": 3},
            "model_config has 'wide', which Linen does not take; it takes num_o",
        ),
        ((init, apply), {"width": 3}, r"it takes nothing: rl_module\(model_config={}\) clears"),
        (Linen(num_outputs=3), {}, r"'action_dist_inputs' of shape \(3, 3\)"),
        (Normed, {}, r"has variables other than parameters \(batch_stats\)"),
        (
            LinenDropped,
            {},
            "LinenDropped draws random numbers in its forward pass.*leave out dropo",
        ),
        (Dropped, {}, r"has variables other than parameters \(RngCount, RngKey\)"),
        (nn.GRUCell(2), {}, "is a recurrent cell: a network sees one observation at a time"),
        (Recurrent, {}, "must be callable with observations alone.*RLModule with _forward_step"),
        ((init, of_three), {}, "callable with the parameters and observations.*_forward_step"),
        ((init, with_carry), {}, "must return \\(action_dist_inputs, value\\), two arrays, got"),
        ((init, branching), {}, r"branching cannot be traced.*test_network_module.py:\d+"),
    ],
)
def test_what_is_no_network_is_one_sentence(network: Any, config: Any, message: str) -> None:
    with pytest.raises(ModuleError, match=message):
        built(network, **config)


def test_where_a_network_can_stand() -> None:
    with pytest.raises(ModuleError, match=r"^Dense must return \(action_dist_inputs, value\), and"):
        small().rl_module(network=nn.Dense(2), model_config={}).build()
    with pytest.raises(ConfigError, match=r"rl_module\(network=...\)"):
        PPOConfig().rl_module(rl_module_spec=Linen).validate()
    with pytest.raises(ConfigError, match="DQN trains a QModule"):
        small("DQN").rl_module(network=Linen, model_config={}).validate()
    config = PPOConfig().rl_module(network=Linen, rl_module_spec=RLModule)
    with pytest.raises(ConfigError, match="network and rl_module_spec both define"):
        config.validate()

    class NotLinen(RLModule):
        def setup(self) -> None:
            self.network: Any = Nnx

    with pytest.raises(ModuleError, match=r"NotLinen.network is .* not a flax linen module"):
        NotLinen(observation_space=OBS, action_space=spaces.Discrete(2)).init(jax.random.key(0))


@pytest.mark.parametrize("network", [Nnx, *slow_but(of=[(init, apply), Linen(width=3)])])
def test_a_network_trains_and_is_restored(network: Any, tmp_path: Path) -> None:
    config = small().rl_module(network=network, model_config={}).learners(num_devices=1)
    obs = np.array([0.1, -0.2, 0.03, 0.4], np.float32)

    def outputs(algorithm: Algorithm) -> Any:
        _, _, out = algorithm.compute_single_action(obs, explore=False, full_fetch=True)
        return out["action_dist_inputs"]

    with config.build() as algorithm:
        before = outputs(algorithm)
        algorithm.train()
        checkpoint, after = algorithm.save(tmp_path), outputs(algorithm)
        assert not np.array_equal(before, after)
    with Algorithm.from_checkpoint(checkpoint) as again:
        np.testing.assert_array_equal(outputs(again), after)


def test_a_network_without_a_path_is_supplied_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ckpt, "_warn_of_missing", ckpt._warn_of_missing.__wrapped__)

    def local(num_outputs: int) -> nn.Module:
        return Linen(num_outputs)

    config = small().rl_module(network=local, model_config={}).learners(num_devices=1)
    with config.build() as algorithm:
        assert algorithm.get_state()["metadata"]["not_saved"] == ["network"]
        assert "do not contain" not in caplog.text
        checkpoint, weights = algorithm.save(tmp_path), algorithm.get_weights()
    assert "do not contain network, which has no import path" in caplog.text
    with pytest.raises(CheckpointError, match="network"):
        Algorithm.from_checkpoint(checkpoint)
    with Algorithm.from_checkpoint(checkpoint, network=local) as again:
        jax.tree.map(np.testing.assert_array_equal, again.get_weights(), weights)


def test_continuous_actions_and_several_parts(tmp_path: Path) -> None:
    class Parts(nn.Module):
        num_outputs: int

        @nn.compact
        def __call__(self, obs: Any) -> Any:
            x = jnp.concatenate([obs["a"], obs["b"]], axis=-1)
            return nn.Dense(self.num_outputs)(x), nn.Dense(1)(x)[..., 0]

    space: gymnasium.Space[Any] = spaces.Dict({"a": OBS, "b": OBS})
    module = make_network_module(Parts)(
        observation_space=space, action_space=spaces.Box(-1.0, 1.0, (3,), np.float32)
    )
    obs = {"a": jnp.ones((2, 4)), "b": jnp.ones((2, 4))}
    out = module.forward_train(module.init(jax.random.key(0)), {"obs": obs})
    assert out["action_dist_inputs"].shape == (2, 6)


def test_a_spec_of_ones_own_builds_as_it_says() -> None:
    class Own(RLModuleSpec):
        def build(self) -> RLModule:
            return super().build()

    config = small().rl_module(rl_module_spec=Own())
    with config.build() as algorithm:
        assert isinstance(algorithm.get_module(), RLModule)
