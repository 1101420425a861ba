"""Custom modules, and which are refused before anything compiles."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from jaxrl import PPOConfig, RLModule, RLModuleSpec
from jaxrl.assembly.assemble import assemble
from jaxrl.assembly.opponents import describe_architecture
from jaxrl.core.types import Columns
from jaxrl.errors import ModuleError
from jaxrl.modules.actor_critic import ActorCriticModule
from jaxrl.modules.rl_module import check_module
from tests.core.modules import ACTION_SPACES, VECTOR, B, explore, params_of, some_obs


# A custom module, complete: a network, and its outputs by name.
class TinyNetwork(nn.Module):
    num_outputs: int

    @nn.compact
    def __call__(self, obs):
        x = nn.relu(nn.Dense(16)(obs))
        return nn.Dense(self.num_outputs)(x), nn.Dense(1)(x)[..., 0]


class TinyModule(RLModule):
    def setup(self):
        self.network = TinyNetwork(self.distribution.input_dim)

    def _forward(self, params, obs):
        inputs, values = self.network.apply({"params": params}, obs)
        return {Columns.ACTION_DIST_INPUTS: inputs, Columns.VF_PREDS: values}


@pytest.mark.parametrize("action", ACTION_SPACES)
def test_a_custom_module_of_a_dozen_lines(action):
    module = RLModuleSpec(
        module_class=TinyModule, observation_space=VECTOR, action_space=ACTION_SPACES[action]
    ).build()
    check_module(module, needs_values=True)
    params = params_of(module)
    assert explore(module, params, some_obs())[Columns.ACTION_LOGP].shape == (B,)
    assert module.forward_inference(params, some_obs())[Columns.ACTIONS].shape[0] == B
    assert module.compute_values(params, some_obs()).shape == (B,)


class LinearModule(RLModule):
    """Without flax, and with settings of its own."""

    def init(self, key):
        shape = (self.observation_space.shape[0], self.distribution.input_dim)
        return {"w": self.model_config["scale"] * jax.random.normal(key, shape)}

    def _forward(self, params, obs):
        return {Columns.ACTION_DIST_INPUTS: obs @ params["w"]}


def test_a_custom_module_without_flax_or_values():
    spec = RLModuleSpec(
        module_class=LinearModule,
        observation_space=VECTOR,
        action_space=ACTION_SPACES["box"],
        model_config={"scale": 0.1},
    )
    module = spec.build()
    assert explore(module, params_of(module), some_obs())[Columns.ACTIONS].shape == (B, 2)
    with pytest.raises(ModuleError, match="returns no 'vf_preds'"):
        check_module(module, needs_values=True)


class WrongWidth(TinyModule):
    def setup(self):
        self.network = TinyNetwork(self.distribution.input_dim + 1)


class ValueColumn(TinyModule):
    def _forward(self, params, obs):
        out = super()._forward(params, obs)
        return {**out, Columns.VF_PREDS: out[Columns.VF_PREDS][..., None]}


class NoInputs(TinyModule):
    def _forward(self, params, obs):
        return {"logits": super()._forward(params, obs)[Columns.ACTION_DIST_INPUTS]}


class IntegerInputs(TinyModule):
    def _forward(self, params, obs):
        return jax.tree.map(lambda x: x.astype(jnp.int32), super()._forward(params, obs))


class Raises(TinyModule):
    def _forward(self, params, obs):
        return {Columns.ACTION_DIST_INPUTS: obs @ jnp.ones((3, 3))}


class NoNetwork(RLModule):
    pass


@pytest.mark.parametrize(
    ("module_class", "message"),
    [
        (WrongWidth, r"'action_dist_inputs' of shape \(3, 4\).*Discrete\(3\) needs 3 numbers"),
        (ValueColumn, r"'vf_preds' of shape \(3, 1\).*one number per observation"),
        (NoInputs, "returns no 'action_dist_inputs'; it returns: logits"),
        (IntegerInputs, "dtype int32; it must be floating"),
        (Raises, "Raises cannot be traced"),
        (NoNetwork, "NoNetwork.network is None, not a flax linen module"),
        (TinyNetwork, "must be a subclass"),
        ("TinyModule", "must be a subclass"),
    ],
)
def test_modules_that_do_not_fit_are_refused_in_one_sentence(module_class, message):
    spec = RLModuleSpec(
        module_class=module_class, observation_space=VECTOR, action_space=ACTION_SPACES["discrete"]
    )
    with pytest.raises(ModuleError, match=message) as error:
        spec.build()
    assert "\n" not in str(error.value)


class Counted(ActorCriticModule):
    traced = 0

    def init(self, key):
        type(self).traced += 1
        return super().init(key)


def test_parameters_are_traced_once_to_check_them_and_once_to_compare_architectures():
    config = PPOConfig().environment("CartPole-v1")
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=Counted))
    policy = assemble(config).policy_step
    assert Counted.traced == 1
    described = describe_architecture(policy)
    assert described == describe_architecture(policy)
    assert Counted.traced == 2


def test_a_missing_space_is_named():
    with pytest.raises(ModuleError, match="action_space is None"):
        RLModuleSpec(observation_space=VECTOR).build()
