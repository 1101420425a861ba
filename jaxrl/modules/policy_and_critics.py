"""Modules with a policy and several critics Q(s, a), for SAC, TQC, TD3 and DDPG."""

from functools import partial
from typing import Any, ClassVar, cast

import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float

from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Columns, Key, Keys, Params, PyTree
from jaxrl.distributions.base import Distribution
from jaxrl.distributions.from_space import (
    ActionDistribution,
    describe_space,
    get_finite_bounds,
    make_action_distribution,
)
from jaxrl.errors import ConfigError, SpaceError
from jaxrl.modules.encoder_module import (
    AnyEncoder,
    Encoder,
    EncoderModule,
    refuse_batchrenorm,
)
from jaxrl.modules.exploration import (
    compute_env_position,
    draw_random_noise,
    is_warming_up,
    make_random_action,
)
from jaxrl.modules.networks import MLP, MOMENTS, AnyMLP, Head, MomentRows
from jaxrl.modules.rl_module import Moment, make_zeros
from jaxrl.ops.value_losses import batched_index, categorical_mean

POLICY, CRITIC, VALUE = "policy", "critic", "value"
"""Parts of the parameters; the last is a value function beside the critics."""


class PolicyNetwork(nn.Module):
    """Policy network with the parameters `encoder` and `head`."""

    encoder: AnyEncoder
    head: Head

    def __call__(self, obs: Array) -> Float[Array, "*batch n"]:
        return self.head(self.encoder(obs))


class Critic(nn.Module):
    """Q function of observations, and of actions where these are joined before the dense layers.

    In a training step, `rows` are those that a `BatchRenorm` of the dense layers learns from.
    """

    encoder: AnyEncoder
    joint: AnyMLP | None
    head: Head

    def __call__(
        self,
        obs: Array,
        action: Float[Array, "*batch a"] | None = None,
        rows: MomentRows | None = None,
    ) -> Float[Array, "*batch n"]:
        x = self.encoder(obs)
        if self.joint is not None:
            x = x if action is None else jnp.concatenate([x, action], axis=-1)
            x = self.joint(x) if rows is None else cast(MLP, self.joint)(x, rows)
        return self.head(x)


class Critics(nn.Module):
    """Ensemble of critics with the parameters `critics_0`, `critics_1`, ...

    Each has its own matrices: one batched product of all is a tenth slower on a CPU.
    """

    critics: tuple[Critic, ...]

    def __call__(
        self,
        obs: Array,
        action: Float[Array, "*batch a"] | None = None,
        rows: MomentRows | None = None,
    ) -> Float[Array, "critics *batch n"]:
        return jnp.stack([critic(obs, action, rows) for critic in self.critics])

    def first(
        self, obs: Array, action: Float[Array, "*batch a"] | None = None
    ) -> Float[Array, "*batch n"]:
        return self.critics[0](obs, action)


@pytree
class PolicyDraws:
    """Random draws of exploration for each environment, `[B, ...]`."""

    noise: PyTree
    random: PyTree


class PolicyQModule(EncoderModule):
    """Policy and critics with separate networks; base of the two kinds of policy.

    The parameters are `{"policy": ..., "critic": ...}`. `algorithm_config` has the number of
    critics, `num_critics`, and what each of them outputs: `num_quantiles` of the return, or with
    `num_atoms` above 1 the logits of the returns `support`; without them one value.

    If the policy is recurrent, so is each critic, with its own carry. Critics are not evaluated
    while acting, so a sequence has no stored carry for them: use a burn-in.
    """

    renorms_critics: ClassVar[bool] = True

    def setup(self) -> None:
        for name in ("vf_share_layers", "free_log_std"):
            if self.settings[name]:
                raise ConfigError(
                    f"{name}=True is for actor-critic modules with state values; the policy and "
                    "the critics of this algorithm have separate networks: leave it out."
                )
        config = self.algorithm_config
        self.num_critics: int = config.get("num_critics", 2)
        self.num_quantiles: int | None = config.get("num_quantiles")
        self.num_atoms: int = config.get("num_atoms", 1)
        self.has_batchrenorm: bool = self.settings.critic_use_batchrenorm
        if self.has_batchrenorm and not config.get("renorms_critics", True):
            refuse_batchrenorm("this algorithm learns its critics otherwise")
        if self.has_batchrenorm and self.is_stateful:
            refuse_batchrenorm("use_lstm or use_attention makes sequences of them")
        if self.is_stateful and not config.get("use_target_network", True):
            raise ConfigError(
                "use_target_network=False joins single rows with what follows them, and use_lstm or "
                "use_attention makes sequences of them: leave one of the two out."
            )
        self.network = PolicyNetwork(
            encoder=self.make_policy_encoder(),
            head=self.make_head("pi_head", self.distribution.input_dim),
        )
        self.critics = Critics(tuple(self._make_critic() for _ in range(self.num_critics)))

    def _make_critic(self) -> Critic:
        encoder = self.make_encoder("critic")
        width = self.distribution.input_dim if self.is_discrete else self.output_width
        head = self.make_head("vf_head", width)
        if self.is_discrete and not self.has_batchrenorm:
            return Critic(encoder, None, head)
        if isinstance(encoder, Encoder):
            joint = encoder.mlp
            if isinstance(joint, MLP) and self.has_batchrenorm:
                joint = joint.clone(use_batchrenorm=True)
            return Critic(encoder.clone(mlp=MLP(hiddens=())), joint, head)
        return Critic(encoder, self.make_feature_encoder("critic").mlp, head)

    @property
    def output_width(self) -> int:
        """Number of outputs of a critic of actions of a Box."""
        return self.num_quantiles or self.num_atoms

    @property
    def support(self) -> Float[Array, " atoms"] | None:
        """Returns whose logits critics output, from v_min to v_max; None if they output no logits."""
        if self.num_atoms == 1:
            return None
        low, high = self.algorithm_config["v_min"], self.algorithm_config["v_max"]
        return jnp.linspace(low, high, self.num_atoms, dtype=jnp.float32)

    @property
    def is_discrete(self) -> bool:
        """Return whether critics output a value for each action instead of taking one as input."""
        return isinstance(self.action_space, spaces.Discrete)

    def init(self, key: Key) -> Params:
        policy_key, critic_key = jax.random.split(key)
        obs = self.make_dummy_obs()
        action = (
            None if self.is_discrete else self._flatten_action(make_zeros(self.action_space, (1,)))
        )
        policy = self.network.init(policy_key, obs)
        critics = cast(Any, self.critics.init(critic_key, obs, action))
        return {POLICY: cast(Any, policy)["params"], CRITIC: critics["params"]}

    def _forward(self, params: Params, obs: PyTree) -> dict[str, Any]:
        out, state = self.apply_recurrent("__call__", params[POLICY], obs)
        return {Columns.ACTION_DIST_INPUTS: self.to_dist_inputs(out), **state}

    def to_dist_inputs(self, out: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
        """Convert the policy network's outputs to the distribution's inputs."""
        return out

    def policy_dist(self, policy: Params, obs: PyTree) -> Distribution:
        """Return the distribution of actions, masked.

        Args:
            policy: Parameters of the policy.
            obs: Observations with leading batch axes.
        """
        return self.action_dist(self._forward_policy({POLICY: policy}, obs), obs)

    def compute_q_values(
        self, critic: Params, obs: PyTree, action: PyTree = None
    ) -> Float[Array, " critics *batch"]:
        """Compute the values of all critics, `[critics, *batch]`.

        With quantiles, or for each discrete action, they are `[critics, *batch, n]`. A `BatchRenorm`
        uses its running moments.

        Args:
            critic: Parameters of the critics.
            obs: Observations with leading batch axes.
            action: The module's actions; unused where actions are discrete.
        """
        return self.to_values(self.compute_critic_outputs(critic, obs, action))

    def compute_critic_outputs(
        self, critic: Params, obs: PyTree, action: PyTree = None
    ) -> Float[Array, " critics *out"]:
        """Compute the outputs of all critics: values, or `[critics, *batch, n]` numbers of a return.

        The arguments are those of `compute_q_values`.
        """
        return self._apply_critics("__call__", critic, obs, action)[0]

    def train_critics(
        self, critic: Params, obs: PyTree, action: PyTree, rows: MomentRows
    ) -> tuple[Float[Array, "critics N *n"], Params]:
        """Compute the outputs of all critics in a training step.

        Args:
            critic: Parameters of the critics.
            obs: Observations, `[N, ...]`.
            action: The module's actions; unused where actions are discrete.
            rows: Rows that a `BatchRenorm` computes moments from.

        Returns:
            The outputs, and the parameters of a `BatchRenorm` that are moments, after the step.
        """
        return self._apply_critics("__call__", critic, obs, action, rows)

    def to_values(self, out: Float[Array, "*out"]) -> Float[Array, "*values"]:
        """Convert outputs of critics to values: the logits of returns to their mean."""
        return out if self.support is None else categorical_mean(out, self.support)

    def compute_taken_q_values(
        self, critic: Params, obs: PyTree, action: PyTree
    ) -> Float[Array, " critics *batch"]:
        """Compute the values of given actions, also discrete ones; critics have no quantiles.

        Args:
            critic: Parameters of the critics.
            obs: Observations with leading batch axes.
            action: The module's actions.
        """
        return self.select_taken(self.compute_q_values(critic, obs, action), action)

    def select_taken(self, out: Float[Array, " critics *out"], action: PyTree) -> Array:
        """Return the outputs of critics for given actions, of which a Box's critic has no others."""
        if not self.is_discrete:
            return out
        return batched_index(out, jnp.broadcast_to(action[None], out.shape[:-1]))

    def compute_first_q_values(
        self, critic: Params, obs: PyTree, action: PyTree = None
    ) -> Float[Array, "*batch"]:
        """Compute `q_values` of the first critic alone."""
        return self.to_values(self._apply_critics("first", critic, obs, action)[0])

    def _apply_critics(
        self,
        method: str,
        critic: Params,
        obs: PyTree,
        action: PyTree,
        rows: MomentRows | None = None,
    ) -> tuple[Array, Params]:
        """Return outputs, and the moments after a training step on the rows."""
        flat_action = None if self.is_discrete else self._flatten_action(action)
        inputs, variables = (self.select_network_obs(obs), flat_action), {"params": critic}
        if rows is None or not self.has_batchrenorm:
            out, moments = self.critics.apply(variables, *inputs, method=method), {}
        else:
            out, collections = self.critics.apply(
                variables, *inputs, rows, method=method, mutable=[MOMENTS]
            )
            moments = collections[MOMENTS]
        q = cast(Array, out)
        has_one = not (self.is_discrete or self.num_quantiles or self.num_atoms > 1)
        return (q[..., 0] if has_one else q), moments

    def _flatten_action(self, action: Array) -> Float[Array, "*batch a"]:
        batch_ndim = action.ndim - len(self.distribution.event_shape)
        return action.reshape(*action.shape[:batch_ndim], -1)

    def draw(self, keys: Keys) -> PolicyDraws:
        split = jax.vmap(jax.random.split)(keys)
        return PolicyDraws(
            noise=self.draw_noise(split[:, 0]),
            random=draw_random_noise(self.action_space, split[:, 1]),
        )

    def draw_noise(self, keys: Keys) -> PyTree:
        """Draw the noise of the policy's exploration from typed keys `[B]`. Consumes the keys."""
        return super().draw(keys)

    def apply_warm_up(
        self, out: dict[str, Any], obs: PyTree, moment: Moment, draw: PyTree
    ) -> dict[str, Any]:
        """Replace actions by uniformly random ones while the run warms up."""
        random, log_prob = make_random_action(self.action_space, draw, self.action_mask(obs))
        is_warm_up = is_warming_up(moment.hparams, moment.progress)
        return {
            **out,
            Columns.ACTIONS: jnp.where(is_warm_up, random, out[Columns.ACTIONS]),
            Columns.ACTION_LOGP: jnp.where(is_warm_up, log_prob, out[Columns.ACTION_LOGP]),
        }


class StochasticPolicyModule(PolicyQModule):
    """Module of SAC and TQC: a normal squashed into a Box, or probabilities of discrete actions."""

    def make_distribution(self) -> ActionDistribution:
        super().make_distribution()  # reads the model settings
        if isinstance(self.action_space, spaces.Discrete):
            if self.algorithm_config.get("num_quantiles"):
                raise SpaceError(
                    f"TQC acts in a Box, not in {self.action_space}; use SAC or DQN there."
                )
            if (number := self.algorithm_config.get("num_atoms", 1)) > 1:
                raise SpaceError(
                    f"num_atoms={number} is for critics of actions of a Box, not of "
                    f"{self.action_space}; set 1, or use DQN there."
                )
            return make_action_distribution(self.action_space)
        return make_action_distribution(
            _require_box(self.action_space),
            continuous="squashed",
            log_std_clip=self.settings.log_std_clip_param,
        )

    def _explore(
        self, params: Params, obs: PyTree, carry: PyTree, draws: PolicyDraws, moment: Moment
    ) -> dict[str, Any]:
        """Sample actions, uniformly at random during `initial_random_timesteps`."""
        out = super()._explore(params, obs, carry, draws.noise, moment)
        return self.apply_warm_up(out, obs, moment, draws.random)


class PolicyAndValueModule(StochasticPolicyModule):
    """Module of IQL: that of SAC with a value function V(s) of its own, the part "value"."""

    renorms_critics: ClassVar[bool] = False

    def setup(self) -> None:
        super().setup()
        self.value = Critic(self.make_encoder("critic"), None, self.make_head("vf_head", 1))

    def init(self, key: Key) -> Params:
        parts_key, value_key = jax.random.split(key)
        value = cast(Any, self.value.init(value_key, self.make_dummy_obs()))
        return {**super().init(parts_key), VALUE: value["params"]}

    def compute_values(self, params: Params, obs: PyTree) -> Float[Array, "*batch"]:
        """Compute state values; of the parameters, the part "value" is used alone."""
        variables = {"params": params[VALUE]}
        return cast(Array, self.value.apply(variables, self.select_network_obs(obs)))[..., 0]


@pytree
class ProcessAndCarry:
    """Carry of a recurrent policy with an Ornstein-Uhlenbeck process, `[B, ...]`."""

    process: Float[Array, "B ..."]
    memory: PyTree


class DeterministicPolicyModule(PolicyQModule):
    """Module of TD3 and DDPG: one action for each observation, with noise to explore.

    The network's output is squashed by tanh into the Box, which must have finite bounds.
    `algorithm_config["exploration_noise"]` is "gaussian", independent at every step, or "ou", an
    Ornstein-Uhlenbeck process that starts at 0 in every episode. Noise is in units of half the
    action range.
    """

    trains_on_sequences: ClassVar[bool] = False

    @property
    def has_density(self) -> bool:
        """False: the action of an observation is one point."""
        return False

    def make_distribution(self) -> ActionDistribution:
        super().make_distribution()  # reads the model settings
        space = _require_box(self.action_space)
        low, high = (np.asarray(bound, np.float32) for bound in get_finite_bounds(space))
        self._low, self._high = low.reshape(space.shape), high.reshape(space.shape)
        return make_action_distribution(space, continuous="deterministic")

    def to_dist_inputs(self, out: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
        unit = jnp.tanh(out)
        batch = unit.shape[:-1]
        low, high = self._broadcast_bounds(len(batch))
        unit = unit.reshape(*batch, *self.distribution.event_shape)
        action = low + 0.5 * (high - low) * (unit + 1.0)
        # Rounding may exceed the upper bound by one ulp, which is outside of the space.
        return self._flatten_action(jnp.clip(action, low, high))

    def compute_policy_action(
        self, policy: Params, obs: PyTree
    ) -> Float[Array, "*batch_and_event"]:
        """Compute the policy's actions."""
        return self.policy_dist(policy, obs).mode()

    def perturb(
        self,
        action: Float[Array, "*batch_and_event"],
        noise: Float[Array, "*batch_and_event"],
    ) -> Float[Array, "*batch_and_event"]:
        """Add noise, in units of half the range, to the actions and clip them to the space."""
        low, high = self._broadcast_bounds(action.ndim - len(self.distribution.event_shape))
        return jnp.clip(action + 0.5 * (high - low) * noise, low, high)

    def compute_distance(
        self,
        action: Float[Array, "*batch_and_event"],
        other: Float[Array, "*batch_and_event"],
    ) -> Float[Array, "*batch"]:
        """Compute the mean squared difference of two actions, in units of half the range."""
        event_ndim = len(self.distribution.event_shape)
        low, high = self._broadcast_bounds(action.ndim - event_ndim)
        difference = 2.0 * (action - other) / (high - low)
        return jnp.mean(jnp.square(difference), axis=tuple(range(-event_ndim, 0)))

    def _broadcast_bounds(self, batch_ndim: int) -> tuple[Array, Array]:
        """Return low and high, with the given number of leading axes."""
        shape = (1,) * batch_ndim + self._low.shape
        return jnp.asarray(self._low.reshape(shape)), jnp.asarray(self._high.reshape(shape))

    @property
    def _has_process(self) -> bool:
        return self.algorithm_config.get("exploration_noise", "gaussian") == "ou"

    def initial_carry(self, batch_size: int) -> PyTree:
        """Return the recurrent state and the Ornstein-Uhlenbeck process at an episode's start.

        The result is None if the module has neither.
        """
        memory = super().initial_carry(batch_size)
        if not self._has_process:
            return memory
        process = make_zeros(self.action_space, (batch_size,))
        return process if memory is None else ProcessAndCarry(process=process, memory=memory)

    def get_recurrent_carry(self, carry: PyTree) -> PyTree:
        return carry.memory if isinstance(carry, ProcessAndCarry) else carry

    def _policy_step(
        self, params: Params, obs: PyTree, carry: PyTree
    ) -> tuple[Float[Array, "B n"], PyTree]:
        """Compute the distribution's inputs and the next carry, without advancing the process."""
        if not isinstance(carry, ProcessAndCarry):
            return super()._policy_step(params, obs, carry)
        inputs, memory = super()._policy_step(params, obs, carry.memory)
        return inputs, replace(carry, memory=memory)

    def draw_noise(self, keys: Keys) -> Float[Array, "B ..."]:
        draw = partial(jax.random.normal, shape=self.distribution.event_shape, dtype=jnp.float32)
        return jax.vmap(draw)(keys)

    def _explore(
        self, params: Params, obs: PyTree, carry: PyTree, draws: PolicyDraws, moment: Moment
    ) -> dict[str, Any]:
        """Return the policy's actions with noise, uniformly random ones while the run warms up.

        The noise is σ ε, or x + σ ε − θ x of the process at x (Uhlenbeck & Ornstein 1930, a step of
        1). `ACTION_LOGP` is 0: a deterministic policy has no density.

        Hyperparameters are `exploration_sigma`, `exploration_sigma_max` if it differs between
        environments, `initial_random_timesteps`, and `ou_theta` of a process.
        """
        has_both = isinstance(carry, ProcessAndCarry)
        inputs, memory = super()._policy_step(params, obs, carry.memory if has_both else carry)
        noise = self.compute_sigmas(moment) * draws.noise
        if self._has_process:
            previous = carry.process if has_both else carry
            noise = (1.0 - moment.hparams["ou_theta"]) * previous + noise
            carry = replace(carry, process=noise, memory=memory) if has_both else noise
        else:
            carry = memory
        action = self.perturb(self.action_dist(inputs, obs).mode(), noise)
        out = {
            Columns.ACTIONS: action,
            Columns.ACTION_DIST_INPUTS: inputs,
            Columns.ACTION_LOGP: jnp.zeros(action.shape[:1], jnp.float32),
            Columns.STATE_OUT: carry,
        }
        return self.apply_warm_up(out, obs, moment, draws.random)

    def compute_sigmas(self, moment: Moment) -> Float[Array, "B ..."]:
        """Compute σ, or σ + (σ_max − σ) i / (N − 1) of environment i of N (Li et al. 2023).

        It broadcasts with actions `[B, ...]`.
        """
        hparams, index = moment.hparams, moment.env_index
        sigma = jnp.broadcast_to(hparams["exploration_sigma"], index.shape)
        if "exploration_sigma_max" in hparams:
            position = compute_env_position(index, self.algorithm_config["num_envs"])
            sigma = sigma + (hparams["exploration_sigma_max"] - sigma) * position
        return sigma.reshape(-1, *(1,) * len(self.distribution.event_shape))


def _require_box(space: gymnasium.Space[Any]) -> spaces.Box:
    if not isinstance(space, spaces.Box):
        raise SpaceError(
            f"Critics of this algorithm take actions of a Box, but action_space is "
            f"{describe_space(space)}; use DQN for Discrete actions, and PPO for any."
        )
    return space
