"""Module with a policy of the agent's own observation and a critic of what it does not observe."""

from typing import Any, cast

import jax.numpy as jnp
from gymnasium import spaces
from jaxtyping import Array, Float

from jaxrl.core.types import CentralObs, Columns, Key, Params, PyTree, map_obs, obs_only
from jaxrl.errors import ConfigError, ModuleError
from jaxrl.modules.actor_critic import ActorCriticModule, ActorCriticNetwork
from jaxrl.modules.encoder_module import AnyEncoder
from jaxrl.modules.rl_module import make_zeros


class CentralCriticNetwork(ActorCriticNetwork):
    """Networks of `ActorCriticNetwork`, of which the value network has inputs of its own."""

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, obs: PyTree, state: Float[Array, "*batch n"]
    ) -> dict[str, Array]:
        pi = cast(AnyEncoder, self.pi_encoder)(obs)
        return {
            Columns.ACTION_DIST_INPUTS: self._compute_dist_inputs(pi),
            Columns.VF_PREDS: self.value(state),
        }


class CentralCriticModule(ActorCriticModule):
    """Module of MAPPO (Yu et al. 2021), with the networks of the default module.

    The policy sees an agent's own observation, and the value network `CentralObs.state`, a vector
    of the space `algorithm_config["critic_space"]`. Without it, for bare observations, there are
    no values. The critic has no memory, also where the policy has: it sees the state of the moment.
    """

    def setup(self) -> None:
        if self.settings.vf_share_layers:
            raise ConfigError(
                "vf_share_layers=True shares layers between policy and values, but a central critic "
                "sees something else than the policy: leave it out."
            )
        space = self.algorithm_config.get("critic_space")
        if not isinstance(space, spaces.Box):
            raise ModuleError(
                f"{type(self).__name__} needs the space of its critic's input, "
                f"algorithm_config['critic_space'], got {space!r}: use it with MAPPOConfig, for "
                "several agents."
            )
        self.critic_space: spaces.Box = space
        num_free = self._num_free_log_std()
        self.network = CentralCriticNetwork(
            pi_encoder=self.make_policy_encoder(),
            vf_encoder=self._make_box_encoder(space, self._make_fcnet("critic")),
            encoder=None,
            pi_head=self.make_head("pi_head", self.distribution.input_dim - num_free),
            vf_head=self.make_head("vf_head", 1),
            num_free_log_std=num_free,
        )

    def make_learner_obs(self, num_rows: int) -> PyTree:
        state = jnp.zeros((num_rows, *self.critic_space.shape), jnp.float32)
        return CentralObs(obs=make_zeros(self.observation_space, (num_rows,)), state=state)

    def init(self, key: Key) -> Params:
        state = jnp.zeros((1, *self.critic_space.shape), jnp.float32)
        return cast(Params, self.network.init(key, self.make_dummy_obs(), state)["params"])

    def _forward(self, params: Params, obs: PyTree) -> dict[str, Any]:
        seen = obs_only(obs)
        if isinstance(seen, CentralObs):
            out, carries = self.apply_recurrent("__call__", params, obs, seen.state)
            return {**out, **carries}
        inputs, carries = self.apply_recurrent("policy", params, obs)
        return {Columns.ACTION_DIST_INPUTS: inputs, **carries}

    def compute_values(self, params: Params, obs: PyTree) -> Float[Array, "*batch"]:
        seen = obs_only(obs)
        if not isinstance(seen, CentralObs):
            raise ModuleError(
                f"The values of a {type(self).__name__} are those of CentralObs(obs=..., state=...), "
                "with what the critic sees as state: an agent's own observation has none."
            )
        variables = {"params": params}
        return cast(Array, self.network.apply(variables, seen.state, method="value"))

    def select_network_obs(self, obs: PyTree) -> PyTree:
        return super().select_network_obs(map_obs(_drop_state, obs))

    def action_mask(self, obs: PyTree | None) -> PyTree:
        return super().action_mask(None if obs is None else map_obs(_drop_state, obs))


def _drop_state(obs: PyTree) -> PyTree:
    """Return an agent's own part of its observations."""
    return obs.obs if isinstance(obs, CentralObs) else obs
