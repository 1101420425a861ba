"""Modules with a policy and several critics, Q(s, a): those of SAC, TQC, TD3 and DDPG."""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float, Int

from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Columns, Key, Params, PyTree
from jaxrl.distributions.base import Distribution
from jaxrl.distributions.from_space import (
    ActionDistribution,
    action_distribution,
    describe_unsupported,
    finite_bounds,
)
from jaxrl.errors import ConfigError, SpaceError
from jaxrl.learners.multi_optimizer import CRITIC, POLICY
from jaxrl.modules.encoder_module import AnyEncoder, Encoder, EncoderModule
from jaxrl.modules.exploration import draw_random, random_action, warming_up
from jaxrl.modules.networks import MLP, Head
from jaxrl.modules.rl_module import zeros_of


class PolicyNetwork(nn.Module):
    """Parameters: `encoder`, `head`."""

    encoder: AnyEncoder
    head: Head

    def __call__(self, obs: Array) -> Float[Array, "*batch n"]:
        return self.head(self.encoder(obs))


class Critic(nn.Module):
    """One Q function: of observations, and of actions where they join before the dense layers."""

    encoder: AnyEncoder
    joint: MLP | None
    head: Head

    def __call__(
        self, obs: Array, action: Float[Array, "*batch a"] | None = None
    ) -> Float[Array, "*batch n"]:
        x = self.encoder(obs)
        if self.joint is not None:
            x = self.joint(jnp.concatenate([x, cast(Array, action)], axis=-1))
        return self.head(x)


class Critics(nn.Module):
    """Parameters: `critics_0`, `critics_1`, ...

    Each has matrices of its own: one batched product of all is a tenth slower on a CPU.
    """

    critics: tuple[Critic, ...]

    def __call__(
        self, obs: Array, action: Float[Array, "*batch a"] | None = None
    ) -> Float[Array, "critics *batch n"]:
        return jnp.stack([critic(obs, action) for critic in self.critics])

    def first(
        self, obs: Array, action: Float[Array, "*batch a"] | None = None
    ) -> Float[Array, "*batch n"]:
        return self.critics[0](obs, action)


@pytree
class PolicyDraws:
    """What exploration draws for each environment, `[B, ...]`."""

    noise: PyTree
    random: PyTree


class PolicyQModule(EncoderModule):
    """A policy and critics, networks apart; the base of the two kinds of policy.

    The parameters are `{"policy": ..., "critic": ...}`. `algorithm_config` says how many critics
    there are, `num_critics`, and of how many quantiles of the return each is, `num_quantiles`;
    without it a critic is one value.

    Where the policy remembers, so do the critics, each for itself. Nobody evaluates critics while
    acting, so they know nothing of what came before a sequence: give them a burn-in.
    """

    def setup(self) -> None:
        for name in ("vf_share_layers", "free_log_std"):
            if self.settings[name]:
                raise ConfigError(
                    f"{name}=True is for actor-critic modules with state values; the policy and "
                    "the critics of this algorithm have networks of their own: leave it out."
                )
        self.num_critics: int = self.algorithm_config.get("num_critics", 2)
        self.num_quantiles: int | None = self.algorithm_config.get("num_quantiles")
        self.network = PolicyNetwork(
            encoder=self.make_encoder(),
            head=self.make_head("pi_head", self.distribution.input_dim),
        )
        self.critics = Critics(tuple(self._make_critic() for _ in range(self.num_critics)))

    def _make_critic(self) -> Critic:
        encoder = self.make_encoder()
        if self.is_discrete:
            return Critic(encoder, None, self.make_head("vf_head", self.distribution.input_dim))
        head = self.make_head("vf_head", self.num_quantiles or 1)
        if isinstance(encoder, Encoder):
            return Critic(encoder.clone(mlp=MLP(hiddens=())), encoder.mlp, head)
        return Critic(encoder, self.make_features().mlp, head)

    @property
    def is_discrete(self) -> bool:
        """Whether critics give a value for each action instead of taking one."""
        return isinstance(self.action_space, spaces.Discrete)

    def init(self, key: Key) -> Params:
        policy_key, critic_key = jax.random.split(key)
        obs = self.blank_obs()
        action = None if self.is_discrete else self._flat(zeros_of(self.action_space, (1,)))
        policy = self.network.init(policy_key, obs)
        critics = cast(Any, self.critics.init(critic_key, obs, action))
        return {POLICY: cast(Any, policy)["params"], CRITIC: critics["params"]}

    def _forward(self, params: Params, obs: PyTree) -> dict[str, Any]:
        out, after = self.recall("__call__", params[POLICY], obs)
        return {Columns.ACTION_DIST_INPUTS: self.as_inputs(out), **after}

    def as_inputs(self, out: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
        """The distribution's inputs, of the policy network's outputs."""
        return out

    def policy_dist(self, policy: Params, obs: PyTree) -> Distribution:
        """The distribution of actions, masked.

        Args:
            policy: That part of the parameters.
            obs: With leading batch axes.
        """
        return self.action_dist(self._forward_policy({POLICY: policy}, obs), obs)

    def q_values(
        self, critic: Params, obs: PyTree, action: PyTree = None
    ) -> Float[Array, " critics *batch"]:
        """Of all critics, `[critics, *batch]`; with quantiles, or for each action, `[..., n]`.

        Args:
            critic: That part of the parameters.
            obs: With leading batch axes.
            action: The module's; not read where actions are discrete.
        """
        return self._q("__call__", critic, obs, action)

    def first_q_values(
        self, critic: Params, obs: PyTree, action: PyTree = None
    ) -> Float[Array, "*batch"]:
        """`q_values` of the first critic alone."""
        return self._q("first", critic, obs, action)

    def _q(self, method: str, critic: Params, obs: PyTree, action: PyTree) -> Array:
        flat = None if self.is_discrete else self._flat(action)
        variables = {"params": critic}
        out = self.critics.apply(variables, self.observed(obs), flat, method=method)
        q = cast(Array, out)
        return q if self.is_discrete or self.num_quantiles else q[..., 0]

    def _flat(self, action: Array) -> Float[Array, "*batch a"]:
        batch_ndim = action.ndim - len(self.distribution.event_shape)
        return action.reshape(*action.shape[:batch_ndim], -1)

    def draw(self, keys: Key) -> PolicyDraws:
        split = jax.vmap(jax.random.split)(keys)
        return PolicyDraws(
            noise=self.draw_noise(split[:, 0]), random=draw_random(self.action_space, split[:, 1])
        )

    def draw_noise(self, keys: Key) -> PyTree:
        """What the policy's exploration draws, of typed keys `[B]`. Consumes the keys."""
        return super().draw(keys)

    def with_warm_up(
        self, out: dict[str, Any], obs: PyTree, hparams: Mapping[str, Any], progress: Any, draw: Any
    ) -> dict[str, Any]:
        """The output of exploration, with uniformly random actions while the run warms up."""
        random, log_prob = random_action(self.action_space, draw, self.action_mask(obs))
        warm = warming_up(hparams, progress)
        return {
            **out,
            Columns.ACTIONS: jnp.where(warm, random, out[Columns.ACTIONS]),
            Columns.ACTION_LOGP: jnp.where(warm, log_prob, out[Columns.ACTION_LOGP]),
        }


class StochasticPolicyModule(PolicyQModule):
    """A normal squashed into a Box, or probabilities of discrete actions: SAC's and TQC's."""

    def make_distribution(self) -> ActionDistribution:
        super().make_distribution()  # reads the model settings
        if isinstance(self.action_space, spaces.Discrete):
            if self.algorithm_config.get("num_quantiles"):
                raise SpaceError(
                    f"TQC acts in a Box, not in {self.action_space}; use SAC or DQN there."
                )
            return action_distribution(self.action_space)
        return action_distribution(
            _box(self.action_space),
            continuous="squashed",
            log_std_clip=self.settings.log_std_clip_param,
        )

    def forward_exploration(
        self,
        params: Params,
        obs: PyTree,
        carry: PyTree,
        hparams: Mapping[str, Any],
        progress: Any,
        env_index: Int[Array, " B"],
        draws: PolicyDraws,
    ) -> dict[str, Any]:
        """Sampled actions, uniformly random ones during `hparams["initial_random_timesteps"]`."""
        out = super().forward_exploration(
            params, obs, carry, hparams, progress, env_index, draws.noise
        )
        return self.with_warm_up(out, obs, hparams, progress, draws.random)


@pytree
class ProcessAndMemory:
    """What a policy with both carries, `[B, ...]`."""

    process: Float[Array, "B ..."]
    memory: PyTree


class DeterministicPolicyModule(PolicyQModule):
    """One action for each observation, with noise to explore: TD3's and DDPG's.

    The network's output is squashed by tanh into the Box, which must have finite bounds.
    `algorithm_config["exploration_noise"]` is "gaussian", drawn anew at every step, or "ou", an
    Ornstein-Uhlenbeck process that starts at 0 in every episode. Noise is counted in halves of the
    action range.
    """

    trains_on_sequences: ClassVar[bool] = False

    def make_distribution(self) -> ActionDistribution:
        super().make_distribution()  # reads the model settings
        space = _box(self.action_space)
        low, high = (np.asarray(bound, np.float32) for bound in finite_bounds(space))
        self._low, self._high = low.reshape(space.shape), high.reshape(space.shape)
        return action_distribution(space, continuous="deterministic")

    def as_inputs(self, out: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
        unit = jnp.tanh(out)
        batch = unit.shape[:-1]
        low, high = self._bounds(len(batch))
        unit = unit.reshape(*batch, *self.distribution.event_shape)
        action = low + 0.5 * (high - low) * (unit + 1.0)
        # Rounding may step over the upper bound by one unit, which the space would refuse.
        return self._flat(jnp.clip(action, low, high))

    def policy_action(self, policy: Params, obs: PyTree) -> Float[Array, "*batch_and_event"]:
        """The actions of that part of the parameters."""
        return self.policy_dist(policy, obs).mode()

    def perturbed(
        self,
        action: Float[Array, "*batch_and_event"],
        noise: Float[Array, "*batch_and_event"],
    ) -> Float[Array, "*batch_and_event"]:
        """The actions with noise, in halves of the range, clipped into the space."""
        low, high = self._bounds(action.ndim - len(self.distribution.event_shape))
        return jnp.clip(action + 0.5 * (high - low) * noise, low, high)

    def _bounds(self, batch_ndim: int) -> tuple[Array, Array]:
        """Low and high, with so many leading axes."""
        shape = (1,) * batch_ndim + self._low.shape
        return jnp.asarray(self._low.reshape(shape)), jnp.asarray(self._high.reshape(shape))

    @property
    def _has_process(self) -> bool:
        return self.algorithm_config.get("exploration_noise", "gaussian") == "ou"

    def initial_carry(self, batch_size: int) -> PyTree:
        """The memory and the Ornstein-Uhlenbeck process at an episode's start, if there are any."""
        memory = super().initial_carry(batch_size)
        if not self._has_process:
            return memory
        process = zeros_of(self.action_space, (batch_size,))
        return process if memory is None else ProcessAndMemory(process=process, memory=memory)

    def memory_of(self, carry: PyTree) -> PyTree:
        return carry.memory if isinstance(carry, ProcessAndMemory) else carry

    def _policy_step(
        self, params: Params, obs: PyTree, carry: PyTree
    ) -> tuple[Float[Array, "B n"], PyTree]:
        """Of inference, which leaves the process as it is."""
        if not isinstance(carry, ProcessAndMemory):
            return super()._policy_step(params, obs, carry)
        inputs, memory = super()._policy_step(params, obs, carry.memory)
        return inputs, replace(carry, memory=memory)

    def draw_noise(self, keys: Key) -> Float[Array, "B ..."]:
        draw = partial(jax.random.normal, shape=self.distribution.event_shape)
        return jax.vmap(draw)(keys)

    def forward_exploration(
        self,
        params: Params,
        obs: PyTree,
        carry: PyTree,
        hparams: Mapping[str, Any],
        progress: Any,
        env_index: Int[Array, " B"],
        draws: PolicyDraws,
    ) -> dict[str, Any]:
        """The policy's actions with noise, uniformly random ones while the run warms up.

        σ ε, or x + σ ε − θ x of the process at x (Uhlenbeck & Ornstein 1930, a step of 1).
        `ACTION_LOGP` is 0: a policy that is one action has no density.

        Args:
            params: The module's.
            obs: `[B, ...]`.
            carry: The process, or None.
            hparams: `exploration_sigma`, `initial_random_timesteps`, and `ou_theta` of a process.
            progress: Of the run.
            env_index: Not read.
            draws: What `draw` made.
        """
        both = isinstance(carry, ProcessAndMemory)
        inputs, memory = super()._policy_step(params, obs, carry.memory if both else carry)
        noise = hparams["exploration_sigma"] * draws.noise
        if self._has_process:
            before = carry.process if both else carry
            noise = (1.0 - hparams["ou_theta"]) * before + noise
            carry = replace(carry, process=noise, memory=memory) if both else noise
        else:
            carry = memory
        action = self.perturbed(self.action_dist(inputs, obs).mode(), noise)
        out = {
            Columns.ACTIONS: action,
            Columns.ACTION_DIST_INPUTS: inputs,
            Columns.ACTION_LOGP: jnp.zeros(action.shape[:1], jnp.float32),
            Columns.STATE_OUT: carry,
        }
        return self.with_warm_up(out, obs, hparams, progress, draws.random)


def _box(space: Any) -> spaces.Box:
    if not isinstance(space, spaces.Box):
        raise SpaceError(
            f"Critics of this algorithm take actions of a Box, but action_space is "
            f"{describe_unsupported(space)}; use DQN for Discrete actions, and PPO for any."
        )
    return space
