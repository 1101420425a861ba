"""DreamerV3 (Hafner et al. 2023, https://arxiv.org/abs/2301.04104): a policy learned in imagination.

A world model is learned from replayed sequences, and an actor and a critic from trajectories that it
imagines. Names, sizes and defaults are those of RLlib's DreamerV3; `imagination_starts` is an addition.

Deviations from the paper: reward and continuation are predicted from the state and the action, before the
next observation (`modules.world_model`), so that trajectories start from states that are not terminal and
need no flag. Rewards and values are means over bins that are equally spaced in symlog space, as in the
paper's later version, instead of the symexp of a mean. One step of three optimizers trains all parts, and
gradients of one never reach another. There is no loss of the critic on replayed rows, which the later
version adds.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.fields import (
    Schedule,
    count,
    field,
    fluent,
    non_negative,
    positive,
    unit_interval,
)
from jaxrl.config.settings.actor_critic import ActorCriticTraining
from jaxrl.config.settings.replay import parse_n_step
from jaxrl.core.hparams import HParams, Traced
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import (
    Columns,
    Key,
    Keys,
    Metrics,
    ObsSequence,
    Params,
    Progress,
    PyTree,
    Transition,
)
from jaxrl.errors import ConfigError
from jaxrl.learners.gradients import NUM_NONFINITE_UPDATES, SgdState, sgd_step
from jaxrl.learners.learner import BaseLearner
from jaxrl.learners.optimizers import Optimizers
from jaxrl.learners.target_network import TargetNetwork, init_target, update_target
from jaxrl.modules.rl_module import RLModuleSpec
from jaxrl.modules.sequences import swap_leading_axes
from jaxrl.modules.world_model import (
    ACTOR,
    BINS,
    CRITIC,
    WORLD_MODEL,
    DreamerModule,
    Latents,
    ObservedSequence,
    draw_latents,
)
from jaxrl.ops.returns import discounted_lambda_returns
from jaxrl.ops.two_hot import two_hot_loss, two_hot_mean

ModelSize = Literal["nano", "micro", "mini", "XXS", "XS", "S", "M", "L", "XL"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DreamerV3Training(ActorCriticTraining):
    """Settings of Hafner et al. 2023; names and defaults are RLlib's."""

    model_size: ModelSize = field(
        default="XS",
        doc="Size of the networks, from the paper's 'XS' to 'XL', and smaller ones; model_config "
        "overrides single numbers.",
    )
    batch_length_T: int = field(  # noqa: N815  (RLlib's name)
        default=64,
        check=count,
        doc="Number of successive rows that are replayed together; train_batch_size is a multiple.",
    )
    horizon_H: int = field(  # noqa: N815  (RLlib's name)
        default=15, check=count, doc="Number of steps of imagined trajectories."
    )
    imagination_starts: int | None = field(
        default=None,
        check=count,
        doc="Number of rows of each replayed sequence, drawn anew for each update, from which "
        "trajectories are imagined; None for all.",
    )
    gae_lambda: Traced[float] = field(
        default=0.95, check=unit_interval, doc="Weight λ of longer imagined returns."
    )
    entropy_scale: Traced[float] = field(
        default=3e-4, check=non_negative, doc="Weight of the policy's entropy."
    )
    return_normalization_decay: Traced[float] = field(
        default=0.99,
        check=unit_interval,
        doc="Decay of the range of imagined returns, which divides advantages.",
    )
    world_model_lr: Traced[Schedule | Callable[[Any], Any]] = field(
        default=1e-4, check=non_negative, doc="Learning rate of the world model, in any form of lr."
    )
    world_model_grad_clip_by_global_norm: float | None = field(
        default=1000.0, check=positive, doc="Largest norm of the world model's gradient."
    )
    actor_grad_clip_by_global_norm: float | None = field(
        default=100.0, check=positive, doc="Largest norm of the policy's gradient."
    )
    critic_grad_clip_by_global_norm: float | None = field(
        default=100.0, check=positive, doc="Largest norm of the critic's gradient."
    )

    @property
    def starts_sequences_at_zero(self) -> bool:
        return True


@pytree
class DreamerState:
    """State of the learner; `slow` is that of the critic, `scale` the range of imagined returns."""

    sgd: SgdState
    hparams: HParams
    slow: TargetNetwork
    scale: Float[Array, ""]


@pytree
class ImaginationDraws:
    """Random draws of imagined steps: uniform numbers of the latents, and noise of the actions."""

    latents: Float[Array, "*batch k"]
    action: PyTree


@pytree
class SequenceDraws:
    """Random draws for each of N replayed sequences, `[N, ...]`.

    Attributes:
        latents: Uniform numbers of the latents of its L rows.
        imagined: Draws of H steps from each of K rows, `[N, K, H, ...]`.
    """

    latents: Float[Array, "N L k"]
    imagined: ImaginationDraws


@pytree
class ImaginedTrajectories:
    """Trajectories of M starts, `[H, M, ...]`; there is one more row of `features`, of the last state.

    `discount` is γ times the probability of a continuation.
    """

    features: Float[Array, "H+1 M f"]
    action: PyTree
    reward: Float[Array, "H M"]
    discount: Float[Array, "H M"]


@dataclasses.dataclass(frozen=True, eq=False)
class DreamerV3Learner(BaseLearner[DreamerState]):
    """World model from replayed sequences, actor and critic from what it imagines."""

    module: DreamerModule
    settings: DreamerV3Training
    lr_names: ClassVar[Mapping[str, str]] = {
        WORLD_MODEL: "world_model_lr",
        ACTOR: "actor_lr",
        CRITIC: "critic_lr",
    }

    def configure_optimizers_for_module(
        self, module_id: str, values: DreamerV3Training
    ) -> Optimizers:
        """Return the optimizers of world model, actor and critic, with the clipping of each."""
        del module_id
        optimizers: dict[str, optax.GradientTransformation] = {}
        for part, name in self.lr_names.items():
            optimizer = self.make_optimizer(values[name])
            clip = values[f"{part}_grad_clip_by_global_norm"]
            if clip is not None:
                optimizer = optax.chain(optax.clip_by_global_norm(clip), optimizer)
            optimizers[part] = optimizer
        return optimizers

    def init(self, key: Key) -> DreamerState:
        sgd, hparams = self.init_sgd(key)
        slow = init_target(sgd.params[CRITIC])
        return DreamerState(sgd=sgd, hparams=hparams, slow=slow, scale=jnp.zeros((), jnp.float32))

    def draw(self, key: Key, num_sequences: int, num_starts: int) -> SequenceDraws:
        """Draw all that is random in an update. Consumes the key.

        Args:
            key: Key of the update, the same on all devices.
            num_sequences: Sequences of this device.
            num_starts: Rows of each from which trajectories are imagined.
        """
        config, settings = self.module.config, self.settings
        shape = (num_starts, settings.horizon_H)
        inputs = jnp.zeros((*shape, self.module.distribution.input_dim), jnp.float32)

        def draw_one(key: Key) -> SequenceDraws:
            latent_key, imagined_key, action_key = jax.random.split(key, 3)
            rows = (settings.batch_length_T, config.num_z_categoricals)
            steps = (*shape, config.num_z_categoricals)
            return SequenceDraws(
                latents=jax.random.uniform(latent_key, rows, jnp.float32),
                imagined=ImaginationDraws(
                    latents=jax.random.uniform(imagined_key, steps, jnp.float32),
                    action=self.module.action_dist(inputs).sample_noise(action_key),
                ),
            )

        return jax.vmap(draw_one)(self._split_key(key, num_sequences))

    def _split_key(self, key: Key, number: int) -> Keys:
        """Return a key for each of this device's sequences, the same on any number of devices."""
        if self.axis_name is None:
            return jax.random.split(key, number)
        keys = jax.random.split(key, number * jax.lax.axis_size(self.axis_name))
        first = jax.lax.axis_index(self.axis_name) * number
        return jax.lax.dynamic_slice_in_dim(keys, first, number)

    def compute_world_model_loss(
        self, params: Params, batch: Transition, uniform: Float[Array, "N L k"]
    ) -> tuple[Float[Array, "L N"], ObservedSequence, Metrics]:
        """Compute the losses of rows (equations 4 and 5), the states, and metrics.

            −log p(x) − log p(r) − log p(c) + max(1, KL(sg(q) ‖ p)) + 0.1 max(1, KL(q ‖ sg(p)))

        Args:
            params: Parameters of the module.
            batch: Sequences `[N, L, ...]`.
            uniform: Uniform numbers that latents are drawn with.
        """
        module, sequence = self.module, batch.obs
        assert isinstance(sequence, ObsSequence)
        vector, images = swap_leading_axes(module.split_obs(sequence.obs))
        encoded = module.apply_world(params, "encode", vector, images)
        action = module.flatten_action(swap_leading_axes(batch.action))
        is_first, uniform = swap_leading_axes((sequence.is_first, uniform))
        seen = module.observe(params, encoded, action, is_first, uniform)

        decoded_vector, decoded_images = module.apply_world(params, "decode", seen.latents)
        errors = [jnp.sum(jnp.square(decoded_vector - vector), -1)] if vector.shape[-1] else []
        for decoded, image in zip(decoded_images, images, strict=True):
            errors.append(jnp.sum(jnp.square(decoded - image), (-3, -2, -1)))
        reward, is_continued = swap_leading_axes(
            (batch.reward, (batch.discount > 0.0).astype(jnp.float32))
        )
        reward_logits, continue_logit = module.apply_world(params, "predict_outcome", seen.next_h)
        stop = jax.lax.stop_gradient
        terms = {
            "decoder_loss": sum(errors[1:], errors[0]),
            "reward_loss": two_hot_loss(reward_logits, reward, jnp.asarray(BINS)),
            "continue_loss": optax.sigmoid_binary_cross_entropy(continue_logit, is_continued),
            "dynamics_loss": jnp.maximum(1.0, _compute_kl(stop(seen.posterior), seen.prior)),
            "representation_loss": 0.1
            * jnp.maximum(1.0, _compute_kl(seen.posterior, stop(seen.prior))),
        }
        weight = swap_leading_axes(batch.weight)
        metrics = {name: jnp.mean(weight * term) for name, term in terms.items()}
        return sum(terms.values(), start=jnp.zeros_like(weight)), seen, metrics

    def imagine(
        self, params: Params, start: Latents, draws: ImaginationDraws, gamma: Float[Array, ""]
    ) -> ImaginedTrajectories:
        """Imagine trajectories of the policy from states `[M, ...]`; nothing carries a gradient.

        Args:
            params: Parameters of the module.
            start: States to start from.
            draws: Draws with leading axes `[H, M]`.
            gamma: Discount factor.
        """
        module, params = self.module, jax.lax.stop_gradient(params)

        def step(
            latents: Latents, draws: ImaginationDraws
        ) -> tuple[Latents, tuple[Array, PyTree, Array]]:
            features = latents.features
            inputs = module.compute_dist_inputs(params, features)
            action = module.action_dist(inputs).from_noise(draws.action)
            h = module.apply_world(params, "advance", latents, module.flatten_action(action))
            z = draw_latents(module.apply_world(params, "prior", h), draws.latents)
            return Latents(h=h, z=z), (features, action, h)

        last, (features, action, next_h) = jax.lax.scan(step, start, draws)
        reward_logits, continue_logit = module.apply_world(params, "predict_outcome", next_h)
        return jax.lax.stop_gradient(
            ImaginedTrajectories(
                features=jnp.concatenate([features, last.features[None]]),
                action=action,
                reward=two_hot_mean(reward_logits, jnp.asarray(BINS)),
                discount=gamma * jax.nn.sigmoid(continue_logit),
            )
        )

    def compute_behavior_loss(
        self,
        params: Params,
        state: DreamerState,
        imagined: ImaginedTrajectories,
        weight: Float[Array, " M"],
        values: DreamerV3Training,
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute the losses of actor and critic (equations 9 to 12), and metrics.

        The critic learns the distribution of λ-returns and, as a regularizer, the slow critic's mean.
        The actor's gradient is REINFORCE's, with advantages that are divided by the range of returns
        from the 5th to the 95th percentile, if that is above 1. Steps are weighted by the probability
        that the trajectory goes on to them.

        Args:
            params: Parameters of the module.
            state: State before the update.
            imagined: Imagined trajectories.
            weight: Weight of each.
            values: Settings with the values of the moment.
        """
        module, bins, stop = self.module, jnp.asarray(BINS), jax.lax.stop_gradient
        logits = module.compute_value_logits(params[CRITIC], imagined.features)
        value = stop(two_hot_mean(logits, bins))
        returns = discounted_lambda_returns(
            imagined.reward, imagined.discount, value[1:], values.gae_lambda
        )
        scale = self._update_scale(state.scale, returns, values.return_normalization_decay)
        advantage = (returns - value[:-1]) / jnp.maximum(1.0, scale)
        reached = jnp.cumprod(imagined.discount, axis=0) / imagined.discount
        weight = weight[None] * reached
        features = imagined.features[:-1]
        dist = module.action_dist(module.compute_dist_inputs(params, features))
        entropy = dist.entropy()
        actor_loss = -jnp.mean(
            weight * (dist.log_prob(imagined.action) * advantage + values.entropy_scale * entropy)
        )
        slow = two_hot_mean(module.compute_value_logits(state.slow.params, features), bins)
        critic_loss = jnp.mean(
            weight
            * (two_hot_loss(logits[:-1], returns, bins) + two_hot_loss(logits[:-1], slow, bins))
        )
        return actor_loss + critic_loss, {
            "actor_loss": actor_loss,
            "critic_loss": critic_loss,
            "entropy": jnp.mean(entropy),
            "imagined_return": jnp.mean(returns),
            "imagined_reward": jnp.mean(imagined.reward),
            "return_scale": scale,
        }

    def _update_scale(
        self, scale: Float[Array, ""], returns: Float[Array, "H M"], decay: Float[Array, ""]
    ) -> Float[Array, ""]:
        """Compute the decaying mean of the range of all devices' returns."""
        if self.axis_name is not None:
            returns = jax.lax.all_gather(returns, self.axis_name)
        low, high = jnp.percentile(returns, jnp.asarray([5.0, 95.0], jnp.float32))
        return decay * scale + (1.0 - decay) * (high - low)

    def update(
        self, state: DreamerState, batch: Transition, progress: Progress, key: Key
    ) -> tuple[DreamerState, Metrics]:
        values, settings = self.settings.at(state.hparams, progress), self.settings
        draw_key, start_key = jax.random.split(key)
        num_sequences, length = batch.weight.shape
        num_starts = settings.imagination_starts or length
        draws = self.draw(draw_key, num_sequences, num_starts)
        rows = jnp.arange(length, dtype=jnp.int32)
        if num_starts < length:
            rows = jax.random.permutation(start_key, rows)[:num_starts]

        def merge(x: Array) -> Array:
            """Reshape rows `[K, N, ...]` to `[M, ...]`."""
            return x[rows].reshape(-1, *x.shape[2:])

        def order(x: Array) -> Array:
            """Reshape draws `[N, K, H, ...]` to `[H, M, ...]`."""
            return x.transpose(2, 1, 0, *range(3, x.ndim)).reshape(x.shape[2], -1, *x.shape[3:])

        def loss_fn(params: Params) -> tuple[Float[Array, ""], Metrics]:
            losses, seen, metrics = self.compute_world_model_loss(params, batch, draws.latents)
            weight = swap_leading_axes(batch.weight)
            start = jax.lax.stop_gradient(jax.tree.map(merge, seen.latents))
            imagined = self.imagine(
                params, start, jax.tree.map(order, draws.imagined), values.gamma
            )
            behavior_loss, others = self.compute_behavior_loss(
                params, state, imagined, merge(weight), values
            )
            return jnp.mean(weight * losses) + behavior_loss, {
                **metrics,
                **others,
                Columns.TD_ERROR: swap_leading_axes(losses),
            }

        sgd, metrics = sgd_step(
            loss_fn,
            self.configure_optimizer(values, state.sgd.params),
            state.sgd,
            self.axis_name,
            self.log_gradients,
        )
        slow = update_target(
            state.slow,
            sgd.params[CRITIC],
            metrics,
            progress,
            values.tau,
            settings.target_network_update_freq,
        )
        is_finite = metrics[NUM_NONFINITE_UPDATES] < 0.5
        scale = jnp.where(is_finite, metrics["return_scale"], state.scale)
        metrics = {**metrics, **{f"curr_{name}": values[name] for name in self.lr_names.values()}}
        return replace(state, sgd=sgd, slow=slow, scale=scale), metrics


def _compute_kl(
    log_p: Float[Array, "*batch k n"], log_q: Float[Array, "*batch k n"]
) -> Float[Array, "*batch"]:
    """Compute the divergence of all latents together."""
    return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=(-2, -1))


class DreamerV3Config(AlgorithmConfig):
    """Configuration of DreamerV3."""

    algo_name = "DreamerV3"
    window_setting = "batch_length_T"
    training_settings: DreamerV3Training = DreamerV3Training(
        gamma=0.997,
        critic_lr=3e-5,
        tau=0.02,
        train_batch_size=1024,
        training_intensity=1024.0,
        zero_init_states=True,
        replay_buffer_config={"type": "uniform", "capacity": 1_000_000},
    )
    training = fluent("training_settings", DreamerV3Training)

    def get_default_learner_class(self) -> type[DreamerV3Learner]:
        return DreamerV3Learner

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=DreamerModule, model_config={})

    def get_module_settings(self) -> dict[str, Any]:
        return super().get_module_settings() | {"model_size": self.training_settings.model_size}

    @property
    def rows_per_window(self) -> int | None:
        return self.training_settings.batch_length_T

    def validate(self) -> None:
        """Check the constraints between settings.

        Raises:
            ConfigError: If settings contradict each other, or have no effect.
        """
        super().validate()
        training = self.training_settings
        starts, length = training.imagination_starts, training.batch_length_T
        if starts is not None and starts > length:
            raise ConfigError(
                f"imagination_starts={starts} is a number of rows of each sequence, which has "
                f"batch_length_T={length}; set it to at most that, or to None for all."
            )
        if parse_n_step(training.n_step) != (1, 1):
            raise ConfigError(
                f"n_step={training.n_step!r} is not supported by DreamerV3, whose world model learns "
                "single steps; set n_step=1, and gae_lambda for the length of imagined returns."
            )
        if training.burn_in_len:
            raise ConfigError(
                f"burn_in_len={training.burn_in_len} is not supported by DreamerV3, whose world model "
                "learns from all rows of a sequence; leave it out, or raise batch_length_T."
            )
        if training.initial_random_timesteps:
            raise ConfigError(
                f"initial_random_timesteps={training.initial_random_timesteps} has no effect on DreamerV3, "
                "whose policy draws at random until it learns; set num_steps_sampled_before_learning_starts."
            )
        if not training.zero_init_states:
            raise ConfigError(
                "zero_init_states=False is not supported by DreamerV3, whose sequences start at the "
                "learned first state of an episode; leave it out."
            )
        if training.grad_clip is not None:
            raise ConfigError(
                f"grad_clip={training.grad_clip} is not supported by DreamerV3, whose parts have their "
                "own: set world_model_grad_clip_by_global_norm, actor_... and critic_...."
            )
