"""Modules of teams: a group's observation, the values of QMIX and VDN, and the policies of MADDPG."""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, cast

import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Float, Int

from jaxrl.core.space_arrays import flatten, get_flat_size
from jaxrl.core.struct import replace
from jaxrl.core.types import (
    Columns,
    Key,
    Keys,
    ObsSequence,
    ObsWithCarry,
    Params,
    PyTree,
    SuccessorObs,
    map_obs,
    obs_only,
)
from jaxrl.distributions.from_space import ActionDistribution, describe_space
from jaxrl.errors import ConfigError, SpaceError
from jaxrl.modules.encoder_module import Encoder, split_obs_parts
from jaxrl.modules.exploration import (
    compute_epsilons,
    draw_random_noise,
    make_random_action,
)
from jaxrl.modules.networks import MLP, MomentRows, get_initializer, resolve_bias_init
from jaxrl.modules.policy_and_critics import CRITIC, POLICY, Critic, DeterministicPolicyModule
from jaxrl.modules.q_network import QDraws, QModule, QNetwork
from jaxrl.modules.rl_module import ACTION_MASK, Moment, has_action_mask
from jaxrl.ops.value_losses import batched_index

MEMBERS, MEMBER_MASK = "obs", "member_mask"
MEMBER_REWARDS, GLOBAL_STATE = "member_rewards", "global_state"
"""Parts of a group's observation: its members', who acts, what each was paid, and the global state."""


@dataclasses.dataclass(frozen=True)
class MemberSpaces:
    """Spaces of the members of a group, which have equal ones.

    Attributes:
        size: Number of members.
        obs: Observation space of one member.
        state: Space of the global state, None without one.
    """

    size: int
    obs: gymnasium.Space[Any]
    state: gymnasium.Space[Any] | None

    @staticmethod
    def from_group(space: gymnasium.Space[Any]) -> "MemberSpaces":
        """Return the members' spaces of a group's, which the module observes.

        Raises:
            SpaceError: If it is not the observation of a group of equal members.
        """
        parts = get_parts(space.spaces) if isinstance(space, spaces.Dict) else {}
        if not {MEMBERS, MEMBER_MASK} <= set(parts):
            raise SpaceError(
                f"A team is observed with the parts '{MEMBERS}' and '{MEMBER_MASK}', but the module "
                f"observes {describe_space(space)}: leave out connectors that join these parts, "
                "stack frames, or add actions and rewards."
            )
        members = parts[MEMBERS]
        if isinstance(members, spaces.Tuple):
            raise SpaceError(
                "Members of a team have networks of one shape, so their observation spaces must be equal, "
                f"got {describe_space(members)}: pad them to one space in the environment."
            )
        size = int(parts[MEMBER_MASK].shape[0])
        return MemberSpaces(size, take_member_space(members), parts.get(GLOBAL_STATE))

    def acting(self, obs: PyTree) -> Bool[Array, "*batch m"]:
        """Return which members act on the group's observations."""
        return get_parts(obs_only(obs))[MEMBER_MASK].astype(jnp.bool_)

    def flatten_obs(self, obs: PyTree) -> Float[Array, "*batch m n"]:
        """Return each member's bare observations as a vector."""
        return flatten(self.obs, get_parts(obs)[MEMBERS])

    def flatten_state(self, obs: PyTree) -> Float[Array, "*batch s"]:
        """Return the global state as a vector; there is one."""
        assert self.state is not None
        return flatten(self.state, get_parts(obs)[GLOBAL_STATE])

    @property
    def obs_width(self) -> int:
        """Size of a member's flat observation."""
        return get_flat_size(self.obs)

    @property
    def state_width(self) -> int:
        """Size of the flat global state, 0 without one."""
        return 0 if self.state is None else get_flat_size(self.state)


def get_parts(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a group's observation other than the action mask."""
    others = {name: part for name, part in parts.items() if name != ACTION_MASK}
    if ACTION_MASK in parts and len(others) == 1:
        (inner,) = others.values()
        inner = inner.spaces if isinstance(inner, spaces.Dict) else inner
        return dict(inner) if isinstance(inner, Mapping) else {}
    return others


def take_member_space(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    """Return the space of one member, given that of all of them stacked, `[m, ...]`."""
    match space:
        case spaces.Dict():
            return spaces.Dict({k: take_member_space(part) for k, part in space.spaces.items()})
        case spaces.Tuple():
            return spaces.Tuple([take_member_space(part) for part in space.spaces])
        case spaces.MultiDiscrete() if space.nvec.ndim == 1:
            return spaces.Discrete(int(space.nvec[0]), start=int(space.start[0]))
        case spaces.MultiDiscrete():
            return spaces.MultiDiscrete(space.nvec[0], start=space.start[0])
        case spaces.MultiBinary():
            return spaces.MultiBinary(space.shape[1:])
        case _:
            assert isinstance(space, spaces.Box)
            return spaces.Box(space.low[0], space.high[0], dtype=space.dtype.type)


_MIXER = "mixer"


class MonotonicMixer(nn.Module):
    """Mixer of QMIX: a network of the members' values whose weights depend on the state.

    Q_tot = W₂ᵀ elu(W₁ᵀ Q + b₁) + b₂, with W₁, W₂ the absolute values of a hypernetwork's outputs, so
    that ∂Q_tot / ∂Qᵢ ≥ 0 (Rashid et al. 2018, section 4). b₁ is linear in the state, and b₂ a
    network with one hidden layer.

    Attributes:
        embed_dim: Number of hidden units.
        hypernet_embed: Hidden units of the hypernetworks of W₁ and W₂; None for linear ones, which
            are the paper's.
    """

    embed_dim: int
    hypernet_embed: int | None = None

    @nn.compact
    def __call__(
        self, values: Float[Array, "*batch m"], state: Float[Array, "*batch s"]
    ) -> Float[Array, "*batch"]:
        size, embed_dim = values.shape[-1], self.embed_dim
        first = jnp.abs(self._hypernet("first", size * embed_dim, state))
        first = first.reshape(*first.shape[:-1], size, embed_dim)
        hidden = nn.elu(
            jnp.sum(values[..., None] * first, axis=-2) + _dense("first_bias", embed_dim, state)
        )
        last = jnp.abs(self._hypernet("last", embed_dim, state))
        bias = _dense("last_bias", 1, nn.relu(_dense("last_bias_hidden", embed_dim, state)))
        return jnp.sum(hidden * last, axis=-1) + bias[..., 0]

    def _hypernet(
        self, name: str, num_outputs: int, state: Float[Array, "*batch s"]
    ) -> Float[Array, "*batch n"]:
        if self.hypernet_embed is not None:
            state = nn.relu(_dense(f"{name}_hidden", self.hypernet_embed, state))
        return _dense(name, num_outputs, state)


def _dense(name: str, num_outputs: int, x: Float[Array, "*batch n"]) -> Float[Array, "*batch k"]:
    """Apply a dense layer of the module that calls, initialized as torch's are.

    Biases are not zero: those of a hypernetwork are the weights for a state of zeros.
    """
    bias_init = resolve_bias_init(get_initializer("default", for_bias=True), x.shape[-1])
    kernel_init = get_initializer("default")
    return nn.Dense(num_outputs, kernel_init=kernel_init, bias_init=bias_init, name=name)(x)


class GroupQModule(QModule):
    """Action values of each member of a group, and their mixture.

    It observes a group (`jaxrl.envs.group_agents` with `member_mask`) and acts for all of its
    members, `[*batch, m]`. One network values the actions of each member on its own observation,
    with a one-hot of the member if `obs_agent_id`, and each member explores by itself.
    `ACTION_DIST_INPUTS` are the values of all members one after another, `[*batch, m * actions]`.
    With memory, each member has a carry, `[B, m, ...]`, from the episode's start on; one that is
    absent observes zeros. `algorithm_config["mixer"]` is "vdn", "qmix" or None.
    """

    members: MemberSpaces

    def check_action_space(self) -> None:
        space = self.action_space
        parts = list(space.spaces) if isinstance(space, spaces.Tuple) else []
        if all(isinstance(part, spaces.Discrete) and part == parts[0] for part in parts):
            self.members = MemberSpaces.from_group(self.observation_space)
            if isinstance(space, spaces.MultiDiscrete) and space.nvec.shape == (self.members.size,):
                return
        raise SpaceError(
            "Members of a team are valued by one network, and need equal Discrete action spaces, but "
            f"action_space is {describe_space(space)}: give each the largest of them, with an "
            "'action_mask' of what is legal."
        )

    def setup(self) -> None:
        config = self.algorithm_config
        self.num_atoms = self.num_quantiles = 1
        self.is_noisy = False
        assert isinstance(self.action_space, spaces.MultiDiscrete)
        self.num_actions = int(self.action_space.nvec[0])
        self.mixer_name: str | None = config.get("mixer", "qmix")
        self.mixer = MonotonicMixer(
            embed_dim=config.get("mixing_embed_dim", 32),
            hypernet_embed=config.get("hypernet_embed"),
        )
        self.network = QNetwork(
            encoder=self.make_encoder(),
            q_head=self.make_head("vf_head", self.num_actions),
            vf_head=self.make_head("vf_head", 1) if config.get("dueling", False) else None,
            num_actions=self.num_actions,
            width=1,
        )

    def init(self, key: Key) -> Params:
        """Make fresh parameters; those of QMIX's mixer are in `mixer`. Consumes the key."""
        if self.mixer_name != "qmix":
            return super().init(key)
        q_key, mixer_key = jax.random.split(key)
        values = jnp.zeros((1, self.members.size), jnp.float32)
        state = jnp.zeros((1, self._state_size), jnp.float32)
        mixer = self.mixer.init(mixer_key, values, state)["params"]
        return {**cast(dict[str, Any], super().init(q_key)), _MIXER: mixer}

    # --- what a member observes ---

    @property
    def _observes_id(self) -> bool:
        return bool(self.algorithm_config.get("obs_agent_id", True))

    @property
    def _keeps_parts(self) -> bool:
        """Return whether members' observations have images, which are not flattened."""
        with_images = self.settings.conv_filters != ()
        return bool(split_obs_parts(self.members.obs, with_images=with_images).images)

    def get_network_obs_space(self) -> gymnasium.Space[Any]:
        """Return the space of what the network sees of one member."""
        super().get_network_obs_space()
        size, own = self.members.size, self.members.obs
        if self._keeps_parts:
            if not self._observes_id:
                return own
            return spaces.Dict({"member": spaces.Discrete(size), MEMBERS: own})
        width = self.members.obs_width + (size if self._observes_id else 0)
        return spaces.Box(-np.inf, np.inf, (width,), np.float32)

    def select_network_obs(self, obs: PyTree) -> PyTree:
        """Return the observations as they are: `_forward` prepares them for the network."""
        return obs

    def _observe_members(self, obs: PyTree) -> PyTree:
        """Return what the network sees of each member, `[*batch, m, ...]`, of bare observations."""
        parts, size = get_parts(obs), self.members.size
        batch = parts[MEMBER_MASK].shape
        if self._keeps_parts:
            if not self._observes_id:
                return parts[MEMBERS]
            member = jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), batch)
            return {"member": member, MEMBERS: parts[MEMBERS]}
        own = self.members.flatten_obs(obs)
        if not self._observes_id:
            return own
        one_hot = jnp.broadcast_to(jnp.eye(size, dtype=jnp.float32), (*batch, size))
        return jnp.concatenate([own, one_hot], axis=-1)

    def _fold(self, obs: PyTree) -> PyTree:
        """Return observations with a carry, `[N, (L,) m, ...]`, as rows of members, `[N * m, ...]`."""
        size = self.members.size
        match obs:
            case ObsWithCarry():
                return ObsWithCarry(
                    obs=_merge_members(obs.obs, 1), carry=_merge_members(obs.carry, 1)
                )
            case ObsSequence():
                return replace(
                    obs,
                    obs=_merge_members(obs.obs, 2),
                    carry=_merge_members(obs.carry, 1),
                    is_first=jnp.repeat(obs.is_first, size, axis=0),
                )
            case SuccessorObs():
                return replace(
                    obs,
                    obs=_merge_members(obs.obs, 2),
                    after=jnp.repeat(obs.after, size, axis=0),
                    sequence=self._fold(obs.sequence),
                )
            case _:
                return obs

    def _unfold(self, rows: PyTree, num_rows: int) -> PyTree:
        """Return outputs of members' rows, `[N * m, (L,) ...]`, as `[N, (L,) m, ...]`."""
        return jax.tree.map(lambda x: x.reshape(num_rows, -1, *x.shape[1:]), rows)

    def acting_members(self, obs: PyTree) -> Bool[Array, "*batch m"]:
        """Return which members act on the observations."""
        return self.members.acting(obs)

    @property
    def _state_size(self) -> int:
        members = self.members
        return members.state_width or members.size * members.obs_width

    def get_state(self, obs: PyTree) -> Float[Array, "*batch s"]:
        """Return what the mixer sees: the global state, or all observations where there is none."""
        rows = obs_only(obs)
        if self.members.state_width:
            return self.members.flatten_state(rows)
        own = self.members.flatten_obs(rows)
        return own.reshape(*own.shape[:-2], -1)

    # --- forward passes ---

    def initial_carry(self, batch_size: int) -> PyTree:
        """Return the carries of all members at an episode's start, `[B, m, ...]`."""
        return self._unfold(super().initial_carry(batch_size * self.members.size), batch_size)

    def _forward(self, params: Params, obs: PyTree, noise: PyTree = None) -> dict[str, Any]:
        assert noise is None, "members have no noisy layers"
        seen = map_obs(self._observe_members, obs)
        out, state = self.apply_recurrent("__call__", params, self._fold(seen))
        values = out[..., 0]
        if isinstance(obs, ObsWithCarry | ObsSequence | SuccessorObs):
            num_rows = values.shape[0] // self.members.size
            values, state = self._unfold((values, state), num_rows)
            if not isinstance(obs, ObsWithCarry):
                values, state = jax.tree.map(lambda x: jnp.swapaxes(x, 1, 2), (values, state))
        flat = values.reshape(*values.shape[:-2], -1)
        return {Columns.ACTION_DIST_INPUTS: flat, **state}

    def compute_member_values(
        self, params: Params, obs: PyTree
    ) -> Float[Array, "*batch m actions"]:
        """Compute the values of all actions of each member."""
        flat = self.forward_train(params, {Columns.OBS: obs})[Columns.ACTION_DIST_INPUTS]
        return flat.reshape(*flat.shape[:-1], self.members.size, self.num_actions)

    def choose_best(
        self, values: Float[Array, "*batch m actions"], obs: PyTree
    ) -> Int[Array, "*batch m"]:
        """Return each member's best legal action."""
        return self.action_dist(values.reshape(*values.shape[:-2], -1), obs).mode()

    def mix(
        self, params: Params, values: Float[Array, "*batch m"], obs: PyTree
    ) -> Float[Array, "*batch k"]:
        """Compute the value of the members' actions together, `k = 1`; a member that does not act adds 0.

        Without a mixer these are the members' own values, `k = m`.
        """
        values = jnp.where(self.acting_members(obs), values, 0.0)
        if self.mixer_name == "vdn":
            return jnp.sum(values, axis=-1, keepdims=True)
        if self.mixer_name == "qmix":
            variables = {"params": params[_MIXER]}
            return cast(Array, self.mixer.apply(variables, values, self.get_state(obs)))[..., None]
        return values

    def weigh_values(self, obs: PyTree) -> Float[Array, "*batch k"]:
        """Return the shares of the values of `mix` in a row's loss, which add up to 1.

        They are equal for the members that act, and 1 for a mixture.
        """
        acts = self.acting_members(obs).astype(jnp.float32)
        if self.mixer_name is not None:
            return jnp.ones((*acts.shape[:-1], 1), jnp.float32)
        return acts / jnp.maximum(acts.sum(axis=-1, keepdims=True), 1.0)

    def compute_values(self, params: Params, obs: PyTree) -> Float[Array, "*batch"]:
        """Compute the values of the best legal actions; without a mixer, the members' mean."""
        values = self.compute_member_values(params, obs)
        best = batched_index(values, self.choose_best(values, obs))
        return jnp.sum(self.mix(params, best, obs) * self.weigh_values(obs), axis=-1)

    # --- exploration ---

    def draw(self, keys: Keys) -> QDraws:
        split = jax.vmap(lambda key: jax.random.split(key, 2))(keys)
        size = (self.members.size,)
        return QDraws(
            coin=jax.vmap(lambda key: jax.random.uniform(key, size, jnp.float32))(split[:, 0]),
            random=draw_random_noise(self.action_space, split[:, 1]),
            noise=None,
        )

    def _explore(
        self, params: Params, obs: PyTree, carry: PyTree, draws: QDraws, moment: Moment
    ) -> dict[str, Any]:
        """Return actions `[B, m]`, epsilon-greedy for each member by itself.

        The log-probability is that of the members that act.
        """
        network_obs = ObsWithCarry(obs=obs, carry=carry) if self.is_stateful else obs
        out = self._forward(params, network_obs)
        values, mask = out[Columns.ACTION_DIST_INPUTS], self.action_mask(obs)
        greedy = self.action_dist(values, obs).mode()
        random, _ = make_random_action(self.action_space, draws.random, mask)
        epsilon = compute_epsilons(moment, self.algorithm_config)[:, None]
        actions = jnp.where(draws.coin < epsilon, random, greedy)
        probability = epsilon / self._count_legal(mask) + (1.0 - epsilon) * (actions == greedy)
        log_prob = jnp.where(self.acting_members(obs), jnp.log(probability), 0.0)
        return {
            Columns.ACTIONS: actions,
            Columns.ACTION_DIST_INPUTS: values,
            Columns.ACTION_LOGP: jnp.sum(log_prob, axis=-1),
            Columns.STATE_OUT: out.get(Columns.STATE_OUT, carry),
        }

    def _count_legal(self, mask: PyTree) -> Float[Array, "*batch m"] | int:
        """Return the number of actions that a random member chooses from: all if none is legal."""
        if mask is None or not has_action_mask(self.observation_space):
            return self.num_actions
        legal = mask.astype(jnp.bool_).reshape(*mask.shape[:-1], -1, self.num_actions).sum(axis=-1)
        return jnp.where(legal == 0, self.num_actions, legal).astype(jnp.float32)


def _merge_members(tree: PyTree, axis: int) -> PyTree:
    """Merge the members at an axis into the first one, as the inner of both."""

    def merge(x: Array) -> Array:
        x = jnp.moveaxis(x, axis, 1)
        return x.reshape(-1, *x.shape[2:])

    return jax.tree.map(merge, tree)


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
