"""For every algorithm of Discrete actions: no illegal action, in the program and on the host.

The observation has a mask beside parts of every kind. The illegal action, another one at every
state, pays 100, a legal one at most 1, so that what is best without the mask is what is never done.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.core.types import Columns
from jaxrl.envs.probes import ProbeMask, ProbeParams
from tests.helpers import ALGORITHMS, ENVS, small

ALGOS = [algo for algo in ALGORITHMS if algo not in ENVS or algo == "SAC"]
REPRESENTATIVES = ("PPO", "DQN", "SAC")
"""The others share their modules and rollouts, so that they are slow tests."""


class MaskAmongParts(ProbeMask):
    """The probe with a mask beside an image, a choice and the number."""

    name = "mask-among-parts"

    def observation_space(self, params: ProbeParams) -> spaces.Dict:
        return spaces.Dict(
            {
                "action_mask": spaces.MultiBinary(3),
                "image": spaces.Box(0, 255, (3, 3, 1), np.uint8),
                "rest": spaces.Tuple([spaces.Discrete(2, start=3), spaces.Box(-1.0, 1.0, (1,))]),
            }
        )

    def add_mask(self, obs: Any) -> dict[str, Any]:
        bit = (obs[0] > 0).astype(jnp.int32)
        return {
            "action_mask": super().add_mask(obs)["action_mask"],
            "image": jnp.full((3, 3, 1), 200 * bit, jnp.uint8),
            "rest": (bit + 3, obs),
        }


def config_for(algo: str, placement: str) -> Any:
    config = small(algo, env=MaskAmongParts).env_runners(placement=placement)
    config.rl_module(model_config={"fcnet_hiddens": [8], "fusionnet_hiddens": [8]})
    config.reporting(min_sample_timesteps_per_iteration=128 * 4)
    config.checkpointing(checkpoint_at_end=False)
    return config.debugging(loggers=[])


@pytest.mark.representatives("PPO-host")
@pytest.mark.parametrize("placement", ["in_graph", "host"])
@pytest.mark.parametrize(
    "algo",
    [
        pytest.param(algo, marks=[] if algo in REPRESENTATIVES else [pytest.mark.slow])
        for algo in ALGOS
    ],
)
def test_no_illegal_action_is_taken_and_learning_stays_finite(algo: str, placement: str) -> None:
    with config_for(algo, placement).build() as algorithm:
        result = algorithm.train()
        returns = result["env_runners"]
        assert returns["num_episodes"] >= 128 * 4
        assert -1.0 <= returns["episode_return_min"] <= returns["episode_return_max"] <= 1.0
        losses = [x for x in jax.tree.leaves(result["learners"]) if isinstance(x, float)]
        assert losses
        assert np.isfinite(losses).all()
        check_what_is_illegal(algorithm)


def check_what_is_illegal(algorithm: Any) -> None:
    """Its probability is 0, its entropy and divergence finite, and it is no arg-max."""
    module = algorithm._assembly.module
    sides = jnp.array([[-1.0], [1.0]])
    obs = algorithm._assembly.policy_step.obs_pipeline(
        algorithm.state.connectors.obs, jax.vmap(MaskAmongParts().add_mask)(sides)
    )
    illegal = np.array([2, 0])

    @jax.jit
    def run(params: Any, obs: Any) -> Any:
        out = module.forward_train(params, {Columns.OBS: obs})
        tempting = out[Columns.ACTION_DIST_INPUTS] + 1e3 * jax.nn.one_hot(illegal, 3)
        dist = module.action_dist(tempting, obs)
        sampled = jax.vmap(dist.sample)(jax.random.split(jax.random.key(0), 64))
        return dist.log_prob(illegal), dist.mode(), sampled, dist.entropy(), dist.kl(dist)

    log_prob, mode, sampled, entropy, kl = run(algorithm.state.learner.sgd.params, obs)
    assert (np.exp(log_prob) == 0.0).all()
    assert (np.asarray(mode) != illegal).all()
    assert (np.asarray(sampled) != illegal).all()
    assert np.isfinite([entropy, kl]).all()
    for side, wrong in zip(sides, illegal, strict=True):
        seen = jax.device_get(MaskAmongParts().add_mask(side))
        drawn = algorithm.compute_actions([seen] * 32, explore=True)
        assert wrong not in drawn
        assert algorithm.compute_single_action(seen, explore=False) != wrong


@pytest.mark.slow
def test_the_test_would_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the mask in the distribution the illegal action is taken."""
    from jaxrl.modules.rl_module import RLModule

    monkeypatch.setattr(RLModule, "action_mask", lambda self, obs: None)
    with config_for("PPO", "in_graph").build() as algorithm:
        assert algorithm.train()["env_runners"]["episode_return_max"] == 100.0
