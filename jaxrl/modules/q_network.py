"""Module of value-based algorithms: a value or a return distribution for each action."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from gymnasium import spaces
from jaxtyping import Array, Float

from jaxrl.core.keys import draw_normal_rows
from jaxrl.core.struct import pytree
from jaxrl.core.types import Columns, Key, Keys, ObsWithCarry, Params, PyTree
from jaxrl.distributions.from_space import ActionDistribution, describe_space
from jaxrl.errors import ConfigError, SpaceError
from jaxrl.modules.encoder_module import AnyEncoder, EncoderModule
from jaxrl.modules.exploration import (
    NOISE,
    NoisyDense,
    as_noise,
    compute_epsilons,
    draw_noise,
    draw_random_noise,
    get_noise_sizes,
    get_noise_width,
    make_random_action,
)
from jaxrl.modules.networks import Head
from jaxrl.modules.rl_module import Moment
from jaxrl.ops.value_losses import batched_index, categorical_mean

ATOM_LOGITS = "atom_logits"
QUANTILES = "quantiles"


class QNetwork(nn.Module):
    """Encoder with one head, or with the two heads of a dueling network.

    Parameters: `encoder`, `q_head`; with dueling `vf_head` too, and `q_head` outputs advantages.
    """

    encoder: AnyEncoder
    q_head: Head
    vf_head: Head | None
    num_actions: int
    width: int

    def __call__(self, obs: Array) -> Float[Array, "*batch actions width"]:
        """Compute Q = V + A − mean A  (Wang et al. 2016, eq. 9), per atom or quantile."""
        x = self.encoder(obs)
        advantage = self.q_head(x)
        advantage = advantage.reshape(*advantage.shape[:-1], self.num_actions, self.width)
        if self.vf_head is None:
            return advantage
        value = self.vf_head(x)[..., None, :]
        return value + advantage - jnp.mean(advantage, axis=-2, keepdims=True)


@pytree
class QDraws:
    """Random draws of exploration for each environment, `[B, ...]`."""

    coin: Float[Array, " B *members"]
    random: PyTree
    noise: PyTree


class QModule(EncoderModule):
    """Action values of a Discrete action space; greedy, or epsilon-greedy to explore.

    `algorithm_config` selects the kind of values: `dueling`; `num_atoms` above 1 for probabilities
    of the returns `support` (C51); `num_quantiles` above 1 for quantiles of the return (QR-DQN);
    `noisy` dense layers with `sigma0`. `ACTION_DIST_INPUTS` are always the expected values, so that
    the most likely action is the best one; `ATOM_LOGITS` or `QUANTILES` are returned in addition,
    as `[*batch, actions, width]`. In exploration every environment has its own noise; in inference
    there is none.
    """

    without_critic = (
        "an algorithm of action values, which has no policy apart from them: leave it out, or use one "
        "with both, such as PPO or SAC"
    )

    @property
    def has_density(self) -> bool:
        """False with noisy layers, by which actions are chosen without a known probability."""
        return not self.is_noisy

    @property
    def explores_by_distribution(self) -> bool:
        """False: actions are epsilon-greedy, and the inputs of their distribution are values."""
        return False

    def make_distribution(self) -> ActionDistribution:
        self.check_action_space()
        distribution = super().make_distribution()
        if self.settings.critic_fcnet_hiddens is not None:
            raise ConfigError(
                f"critic_fcnet_hiddens={list(self.settings.critic_fcnet_hiddens)} sizes critics "
                "beside a policy, but action values are one network: set fcnet_hiddens."
            )
        return distribution

    def check_action_space(self) -> None:
        """Raise SpaceError unless the module can value the actions of the space."""
        if not isinstance(self.action_space, spaces.Discrete):
            raise SpaceError(
                "Action values need a Discrete action space, but action_space is "
                f"{describe_space(self.action_space)}; use an algorithm with a policy, such "
                "as PPO."
            )

    def setup(self) -> None:
        config = self.algorithm_config
        self.num_atoms: int = config.get("num_atoms", 1)
        self.num_quantiles: int = config.get("num_quantiles", 1)
        self.is_noisy: bool = config.get("noisy", False)
        if self.is_noisy and self.is_stateful:
            raise ConfigError(
                "noisy=True is not supported for recurrent networks; explore with epsilon, or "
                "leave out use_lstm and use_attention."
            )
        width = max(self.num_atoms, self.num_quantiles)
        num_actions = self.distribution.input_dim
        self.network = QNetwork(
            encoder=self.make_encoder(),
            q_head=self.make_head("vf_head", num_actions * width),
            vf_head=self.make_head("vf_head", width) if config.get("dueling", False) else None,
            num_actions=num_actions,
            width=width,
        )
        shapes = jax.eval_shape(self.init, jax.random.key(0)) if self.is_noisy else {}
        self._noise_sizes = get_noise_sizes(shapes)

    def make_dense(self) -> Callable[..., nn.Module]:
        if not self.algorithm_config.get("noisy", False):
            return super().make_dense()
        return partial(NoisyDense, sigma0=self.algorithm_config.get("sigma0", 0.5))

    @property
    def support(self) -> Float[Array, " atoms"]:
        """Returns whose probabilities C51 learns, from v_min to v_max."""
        config = self.algorithm_config
        low, high = config.get("v_min", -10.0), config.get("v_max", 10.0)
        return jnp.linspace(low, high, self.num_atoms, dtype=jnp.float32)

    def draw_noise(self, key: Key, num_rows: int, axis_name: str | None = None) -> PyTree:
        """Draw the noise of a forward pass of this device's rows; None without noisy layers."""
        if not self.is_noisy:
            return None
        shape = (num_rows, get_noise_width(self._noise_sizes))
        return as_noise(self._noise_sizes, draw_normal_rows(key, shape, axis_name))

    def draw(self, keys: Keys) -> QDraws:
        split = jax.vmap(partial(jax.random.split, num=3))(keys)
        noise = None
        if self.is_noisy:
            noise = jax.vmap(partial(draw_noise, self._noise_sizes))(split[:, 2])
        return QDraws(
            coin=jax.vmap(partial(jax.random.uniform, dtype=jnp.float32))(split[:, 0]),
            random=draw_random_noise(self.action_space, split[:, 1]),
            noise=noise,
        )

    def _forward(self, params: Params, obs: PyTree, noise: PyTree = None) -> dict[str, Any]:
        collections = {} if noise is None else {NOISE: noise}
        out, state = self.apply_recurrent("__call__", params, obs, **collections)
        if self.num_atoms > 1:
            expected = categorical_mean(out, self.support)
            return {Columns.ACTION_DIST_INPUTS: expected, ATOM_LOGITS: out, **state}
        if self.num_quantiles > 1:
            return {Columns.ACTION_DIST_INPUTS: jnp.mean(out, axis=-1), QUANTILES: out, **state}
        return {Columns.ACTION_DIST_INPUTS: out[..., 0], **state}

    def forward_train(self, params: Params, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Compute all outputs for `batch["obs"]`, with the noise `batch["noise"]` if present."""
        return self._forward(params, batch[Columns.OBS], batch.get(NOISE))

    def compute_values(self, params: Params, obs: PyTree) -> Float[Array, "*batch"]:
        """Compute the values of the best legal actions."""
        values = self._forward_policy(params, obs)
        best = self.action_dist(values, obs).mode()
        return batched_index(values, best)

    def _infer(self, params: Params, obs: PyTree, carry: PyTree, draws: PyTree) -> dict[str, Any]:
        """Return the best legal actions `[B]` by the mean weights; their log-probability is 0."""
        out = super()._infer(params, obs, carry, draws)
        return {**out, Columns.ACTION_LOGP: jnp.zeros(out[Columns.ACTIONS].shape, jnp.float32)}

    def _explore(
        self, params: Params, obs: PyTree, carry: PyTree, draws: QDraws, moment: Moment
    ) -> dict[str, Any]:
        """Return epsilon-greedy actions `[B]`, all of them random while the run warms up.

        Hyperparameters are `epsilon`, `initial_random_timesteps` if there is a warm-up, and
        `epsilon_ladder` if epsilon differs between environments.
        """
        network_obs = ObsWithCarry(obs=obs, carry=carry) if self.is_stateful else obs
        out = self._forward(params, network_obs, draws.noise)
        values = out[Columns.ACTION_DIST_INPUTS]
        greedy = self.action_dist(values, obs).mode()
        random, random_log_prob = make_random_action(
            self.action_space, draws.random, self.action_mask(obs)
        )
        epsilon = compute_epsilons(moment, self.algorithm_config)
        actions = jnp.where(draws.coin < epsilon, random, greedy)
        probability = epsilon * jnp.exp(random_log_prob) + (1.0 - epsilon) * (actions == greedy)
        return {
            Columns.ACTIONS: actions,
            Columns.ACTION_DIST_INPUTS: values,
            Columns.ACTION_LOGP: jnp.log(probability),
            Columns.STATE_OUT: out.get(Columns.STATE_OUT, carry),
        }
