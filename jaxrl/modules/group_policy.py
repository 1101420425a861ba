"""Module of MADDPG: a policy and critics for every member of a group, with networks of their own."""

from functools import partial
from typing import Any, ClassVar, cast

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float

from jaxrl.core.types import Columns, Key, Params, PyTree
from jaxrl.distributions.from_space import ActionDistribution, describe_space
from jaxrl.errors import ConfigError, SpaceError
from jaxrl.modules.encoder_module import Encoder
from jaxrl.modules.group_obs import MEMBER_REWARDS, MemberSpaces, get_parts
from jaxrl.modules.networks import MLP, MomentRows
from jaxrl.modules.policy_and_critics import CRITIC, POLICY, Critic, DeterministicPolicyModule


class GroupPolicyModule(DeterministicPolicyModule):
    """Deterministic policies of a group's members, and critics of all that they see and do.

    It observes a group (`jaxrl.envs.group_agents` with `member_mask` and `member_rewards`), and its
    actions are those of all members, `[*batch, m, ...]`, a Box. A member's policy sees its own
    observation, its critics all observations, the global state if there is one, and all actions, of
    which those of members that do not act are 0. Parameters are stacked, `[m, ...]`.
    """

    renorms_critics: ClassVar[bool] = False
    without_critic = (
        "the policies of a team: its critics alone see the environment's global state, so put what the "
        "policies must not see there"
    )

    members: MemberSpaces

    def make_distribution(self) -> ActionDistribution:
        self.members = MemberSpaces.from_group(self.observation_space)
        if not isinstance(self.action_space, spaces.Box):
            raise SpaceError(
                "Members of this algorithm's team take actions of a Box, but action_space is "
                f"{describe_space(self.action_space)}: use QMIX or VDN for Discrete actions, and MAPPO "
                "for any."
            )
        return super().make_distribution()

    def setup(self) -> None:
        if self.settings.is_recurrent:
            raise ConfigError(
                "use_lstm and use_attention are not supported by the policies of a team: leave them "
                "out, or use QMIX, whose members have memory."
            )
        super().setup()
        self.network = self.network.clone(
            head=self.make_head("pi_head", self.distribution.input_dim // self.members.size)
        )

    def get_network_obs_space(self) -> gymnasium.Space[Any]:
        """Return the space of what the policy sees of one member."""
        super().get_network_obs_space()
        return spaces.Box(-np.inf, np.inf, (self.members.obs_width,), np.float32)

    def _make_critic(self) -> Critic:
        encoder = Encoder(obs_ndim=1, scale=None, cnn=None, mlp=MLP(hiddens=()))
        return Critic(encoder, self._make_fcnet("critic"), self.make_head("vf_head", 1))

    def init(self, key: Key) -> Params:
        """Make fresh parameters of all members, `[m, ...]`. Consumes the key."""
        policy_key, critic_key = jax.random.split(key)
        members, size = self.members, self.members.size
        joint = jnp.zeros((1, size * members.obs_width + members.state_width), jnp.float32)
        action = jnp.zeros((1, self.distribution.input_dim), jnp.float32)

        def init_policy(key: Key) -> Params:
            return self.network.init(key, joint[:, : members.obs_width])["params"]

        def init_critics(key: Key) -> Params:
            return self.critics.init(key, joint, action)["params"]

        return {
            POLICY: jax.vmap(init_policy)(jax.random.split(policy_key, size)),
            CRITIC: jax.vmap(init_critics)(jax.random.split(critic_key, size)),
        }

    def _forward(self, params: Params, obs: PyTree) -> dict[str, Any]:
        def apply(policy: Params, own: Array) -> Array:
            return cast(Array, self.network.apply({"params": policy}, own))

        out = jax.vmap(apply, (0, -2), -2)(params[POLICY], self.members.flatten_obs(obs))
        flat = out.reshape(*out.shape[:-2], -1)
        return {Columns.ACTION_DIST_INPUTS: self.to_dist_inputs(flat)}

    def _apply_critics(
        self,
        method: str,
        critic: Params,
        obs: PyTree,
        action: PyTree,
        rows: MomentRows | None = None,
    ) -> tuple[Array, Params]:
        """Apply the critics of each member, whose values are last: `[(critics,) *batch, m]`."""
        del rows
        joint = self._join_obs(obs)
        flat = self._join_actions(obs, action)
        apply = partial(self._apply_one, method)
        return jax.vmap(apply, (0, None, None), -1)(critic, joint, flat), {}

    def _apply_one(self, method: str, critic: Params, joint: Array, flat_action: Array) -> Array:
        out = cast(Array, self.critics.apply({"params": critic}, joint, flat_action, method=method))
        return out[..., 0]

    def compute_own_q_values(
        self, critic: Params, obs: PyTree, action: PyTree, own: PyTree
    ) -> Float[Array, "*batch m"]:
        """Compute each member's first critic, where the member does `own` and the others `action`.

        Args:
            critic: Parameters of the critics.
            obs: Bare observations of the group.
            action: Actions of all members.
            own: Other actions of all members, of which a member's critic is given the member's.
        """
        index = jnp.arange(self.members.size, dtype=jnp.int32)
        shape = (-1,) + (1,) * (len(self.distribution.event_shape) - 1)

        def apply(critic: Params, member: Array) -> Array:
            chosen = jnp.where((index == member).reshape(shape), own, action)
            return self._apply_one(
                "first", critic, self._join_obs(obs), self._join_actions(obs, chosen)
            )

        return jax.vmap(apply, 0, -1)(critic, index)

    def _join_obs(self, obs: PyTree) -> Float[Array, "*batch n"]:
        """Return what every critic sees beside the actions."""
        own = self.members.flatten_obs(obs)
        joint = own.reshape(*own.shape[:-2], -1)
        if self.members.state_width == 0:
            return joint
        return jnp.concatenate([joint, self.members.flatten_state(obs)], axis=-1)

    def _join_actions(self, obs: PyTree, action: Array) -> Float[Array, "*batch a"]:
        acts = self.members.acting(obs)
        acts = acts.reshape(*acts.shape, *(1,) * (action.ndim - acts.ndim))
        return self._flatten_action(jnp.where(acts, action, 0.0))

    def get_member_rewards(self, obs: PyTree) -> Float[Array, "*batch m"]:
        """Return what each member was paid in the step before the observations."""
        return get_parts(obs)[MEMBER_REWARDS]
