"""The recurrent state starts anew exactly where an episode does."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.assembly.assemble import assemble
from jaxrl.core.types import Columns
from jaxrl.envs.registry import make
from jaxrl.envs.vector import VectorEnv
from jaxrl.errors import ModuleError
from jaxrl.modules.actor_critic import ActorCriticModule
from jaxrl.training.rollout import ActorState
from tests.helpers import small

pytestmark = pytest.mark.allow_key_reuse


class Counting(ActorCriticModule):
    """Its carry counts the steps of the episode, and is what it acts by."""

    def initial_carry(self, batch_size: int) -> Any:
        return jnp.zeros((batch_size,), jnp.float32)

    def forward_exploration(self, params: Any, obs: Any, carry: Any, *args: Any) -> Any:
        out = super().forward_exploration(params, obs, carry, *args)
        return {**out, Columns.STATE_OUT: carry + 1.0, Columns.ACTION_LOGP: carry}


def test_the_carry_is_zero_exactly_at_episode_starts() -> None:
    plain = assemble(small()).rollout_worker
    module = Counting(
        observation_space=plain.module.observation_space,
        action_space=plain.module.action_space,
        model_config={"fcnet_hiddens": [4]},
    )
    made = make("CartPole-v1", max_episode_steps=7)
    sampler = dataclasses.replace(plain, env=VectorEnv(made.env), module=module)
    progress: Any = None

    def run(key: Any) -> Any:
        actor = ActorState(params=module.init(key), obs_state=(), hparams={}, progress=progress)
        state = sampler.env.reset(key, jnp.arange(6), made.params)
        first = sampler.rollout(actor, state, sampler.initial_carry(6), made.params, 20)
        second = sampler.rollout(actor, first[0], first[1], made.params, 20)
        return first[2], second[2]

    rollouts = jax.jit(run)(jax.random.key(0))
    carry = np.concatenate([np.asarray(r.extras[Columns.ACTION_LOGP]) for r in rollouts])
    is_first = np.concatenate([np.asarray(r.is_first) for r in rollouts])
    want = np.zeros(6)
    for t in range(40):
        want = np.where(is_first[t], 0.0, want)
        np.testing.assert_array_equal(carry[t], want)
        want = want + 1.0
    assert is_first[1:].sum() > 20
    np.testing.assert_array_equal(np.asarray(rollouts[1].carry_in.module), carry[20])


def test_a_recurrent_module_is_refused_by_learners_that_would_ignore_it() -> None:
    config: PPOConfig = small().rl_module(rl_module_spec=Counting)
    with pytest.raises(ModuleError, match="recurrent"):
        config.build()
    assert assemble(small()).is_in_graph
