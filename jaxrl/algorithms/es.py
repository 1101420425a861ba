"""ES and ARS: learning from the returns of perturbed policies, without gradients.

ES is of Salimans et al. 2017 (https://arxiv.org/abs/1703.03864), ARS of Mania et al. 2018
(https://arxiv.org/abs/1803.07055).

Each copy of the environment is a member of the population: it acts with the parameters plus noise,
two neighbors with the same noise of opposite signs. Noise is a function of the run, the train batch
and the member, computed where it is needed, so that none is stored or sent. Deviations from the
papers: a member's fitness is the mean return of all episodes that fit into the rollout, and equal
returns have equal ranks.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from gymnasium import spaces
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.fields import count, field, finite, fluent, non_negative, positive
from jaxrl.config.settings.training import Training
from jaxrl.core.hparams import Hyperparameter, Traced
from jaxrl.core.keys import make_key
from jaxrl.core.spaces import map_leaves
from jaxrl.core.struct import pytree, replace, static
from jaxrl.core.types import (
    Columns,
    Counter,
    Key,
    Keys,
    Metrics,
    Params,
    Progress,
    PyTree,
    Rollout,
)
from jaxrl.distributions.from_space import ActionDistribution, make_action_distribution
from jaxrl.errors import ConfigError
from jaxrl.learners.gradients import apply_gradients
from jaxrl.learners.learner import BaseLearner
from jaxrl.learners.policy_gradient import SgdLearnerState
from jaxrl.modules.encoder_module import EncoderModule
from jaxrl.modules.policy_and_critics import PolicyNetwork
from jaxrl.modules.rl_module import Moment, RLModuleSpec

NOISE_SEED = "noise_seed"
"""Name of the seed of a run's noise, among the hyperparameters that acting and learning share."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvolutionTraining(Training):
    """Settings of ES and ARS."""

    noise_stdev: Traced[float] = field(
        default=0.02, check=positive, doc="Standard deviation of the noise on the parameters."
    )
    action_noise_std: Traced[float] = field(
        default=0.0,
        off=0.0,
        check=non_negative,
        doc="Standard deviation of the noise on continuous actions while training, in units of the "
        "module's actions.",
    )

    def at(self, hparams: Mapping[str, Hyperparameter], progress: Progress) -> "EvolutionTraining":
        own = {name: value for name, value in hparams.items() if name != NOISE_SEED}
        return super().at(own, progress)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ESTraining(EvolutionTraining):
    """Settings of Salimans et al. 2017."""

    l2_coeff: Traced[float] = field(
        default=0.005, check=non_negative, doc="Coefficient of the parameters' decay."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ARSTraining(EvolutionTraining):
    """Settings of Mania et al. 2018."""

    rollouts_used: int | None = field(
        default=None,
        check=count,
        doc="Number of pairs to learn from, those with the best returns; None is all of them.",
    )
    offset: Traced[float] = field(
        default=0.0,
        check=finite,
        doc="Number that is subtracted from the reward of each step, such as a bonus for survival.",
    )


@pytree
class Members:
    """Parameters of a population, `[B, ...]`: a set for each environment."""

    params: Params


def draw_direction(
    hparams: Mapping[str, Any], progress: Progress, pair: Int[Array, ""], size: int
) -> Float[Array, " P"]:
    """Draw the direction ε `[size]` in which a pair of members is perturbed in this train batch.

    Args:
        hparams: Hyperparameters of the moment, of which `NOISE_SEED` is read.
        progress: Progress of the run, of which the number of train batches is read.
        pair: Number of the pair.
        size: Number of parameters.
    """
    seed, batches = hparams[NOISE_SEED], progress.train_batches
    key = make_key(jnp.stack([seed.low, seed.high]))
    for number in (batches.low, batches.high, pair):
        key = jax.random.fold_in(key, number)
    return jax.random.normal(key, (size,), jnp.float32)


class PerturbedModule(EncoderModule):
    """Policy without values, each environment of which explores with its own parameters."""

    without_critic = "ES and ARS, which learn no values"

    def make_distribution(self) -> ActionDistribution:
        super().make_distribution()  # reads the model settings
        return make_action_distribution(self.action_space, continuous="deterministic")

    def setup(self) -> None:
        settings = self.settings
        if settings.is_recurrent:
            raise ConfigError(
                "use_lstm and use_attention need gradients through time, which ES and ARS do not "
                "take: leave them out."
            )
        for name in ("vf_share_layers", "free_log_std", "autoregressive_actions"):
            if settings[name]:
                raise ConfigError(
                    f"{name}=True has no effect on ES and ARS, which learn the most likely actions "
                    "alone: leave it out."
                )
        self.network = PolicyNetwork(
            encoder=self.make_policy_encoder(),
            head=self.make_head("pi_head", self.distribution.input_dim),
        )

    @property
    def has_density(self) -> bool:
        """False: the action of a member is one point."""
        return False

    def _forward(self, params: Params, obs: PyTree) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self.apply("__call__", params, obs)}

    def make_acting_params(self, params: Params, moment: Moment) -> Members:
        """Return the parameters of each environment, θ + σ ε or θ − σ ε."""
        flat, unravel = ravel_pytree(params)

        def perturb(member: Int[Array, ""]) -> Params:
            pair, sign = member // 2, 1.0 - 2.0 * (member % 2)
            direction = draw_direction(moment.hparams, moment.progress, pair, flat.size)
            return unravel(flat + sign * moment.hparams["noise_stdev"] * direction)

        return Members(params=jax.vmap(perturb)(moment.env_index))

    def draw(self, keys: Keys) -> PyTree:
        """Draw noise for the parts of an action that are numbers. Consumes the keys."""

        def draw_one(key: Key) -> PyTree:
            leaves = map_leaves(lambda leaf: leaf, self.action_space)
            leaves, structure = jax.tree.flatten(
                leaves, is_leaf=lambda x: isinstance(x, spaces.Space)
            )
            drawn = [
                jax.random.normal(jax.random.fold_in(key, i), leaf.shape, jnp.float32)
                if isinstance(leaf, spaces.Box)
                else jnp.zeros((), jnp.float32)
                for i, leaf in enumerate(leaves)
            ]
            return structure.unflatten(drawn)

        return jax.vmap(draw_one)(keys)

    def _explore(
        self, params: Params, obs: PyTree, carry: PyTree, draws: PyTree, moment: Moment
    ) -> dict[str, Any]:
        """Return each member's actions, with noise if there is any."""

        def forward(own: Params, row: PyTree) -> Float[Array, " n"]:
            one = jax.tree.map(lambda x: x[None], row)
            return self._forward(own, one)[Columns.ACTION_DIST_INPUTS][0]

        if isinstance(params, Members):
            inputs = jax.vmap(forward)(params.params, obs)
        else:
            inputs = self._forward(params, obs)[Columns.ACTION_DIST_INPUTS]
        actions = self.action_dist(inputs, obs).mode()
        if (stdev := moment.hparams.get("action_noise_std")) is not None:
            actions = jax.tree.map(
                lambda x, noise: x + stdev * noise if jnp.issubdtype(x.dtype, jnp.floating) else x,
                actions,
                draws,
            )
        return {
            Columns.ACTIONS: actions,
            Columns.ACTION_DIST_INPUTS: inputs,
            Columns.ACTION_LOGP: jnp.zeros(inputs.shape[0], jnp.float32),
            Columns.STATE_OUT: carry,
        }


@pytree
class EvolutionBatch:
    """Fitness of the members of a train batch, `[T, B]`; that of a column is in its first row."""

    member: Int[Array, "*batch"]
    fitness: Float[Array, "*batch"]
    num_members: int = static()


@dataclasses.dataclass(frozen=True, eq=False)
class ESLearner(BaseLearner[SgdLearnerState]):
    """Estimate of the gradient of the expected return from ranks of antithetic pairs.

        g = 1 / (2 n σ) Σᵢ (F⁺ᵢ − F⁻ᵢ) εᵢ,  F the returns' ranks, from −0.5 to 0.5

    over n pairs (Salimans et al. 2017, algorithm 2 and section 2.1).
    """

    settings: EvolutionTraining

    def init(self, key: Key) -> SgdLearnerState:
        params_key, noise_key = jax.random.split(key)
        sgd, hparams = self.init_sgd(params_key)
        low, high = jax.random.bits(noise_key, (2,))
        return SgdLearnerState(
            sgd=sgd, hparams={**hparams, NOISE_SEED: Counter(low=low, high=high)}
        )

    def prepare(
        self, state: SgdLearnerState, rollout: Rollout, progress: Progress
    ) -> tuple[EvolutionBatch, Metrics]:
        """Compute each member's fitness, the mean return of its episodes without discount."""
        values = self.settings.at(state.hparams, progress)
        rewards = self.compute_rewards(rollout.reward, values) * rollout.mask
        num_here = rollout.mask.shape[1]
        if num_here % 2:
            raise ConfigError(
                f"Pairs have opposite noise, and {num_here} environments on each device are an odd "
                "number: set num_envs_per_env_runner to an even multiple of the devices."
            )
        ended = (rollout.terminated | rollout.truncated) & rollout.mask
        fitness = rewards.sum(axis=0) / jnp.maximum(ended.sum(axis=0), 1)
        first, num_members = 0, num_here
        if self.axis_name is not None:
            num_members = num_here * jax.lax.psum(1, self.axis_name)
            first = jax.lax.axis_index(self.axis_name) * num_here
        member = jnp.broadcast_to(first + jnp.arange(num_here, dtype=jnp.int32), rewards.shape)
        everyone = self._gather(member[0], fitness, num_members)
        batch = EvolutionBatch(
            member=member,
            fitness=jnp.zeros_like(rewards).at[0].set(fitness),
            num_members=num_members,
        )
        return batch, {
            "fitness_mean": everyone.mean(),
            "fitness_max": everyone.max(),
            "fitness_min": everyone.min(),
            "curr_lr": values.lr,
        }

    def compute_rewards(
        self, reward: Float[Array, "T B"], values: EvolutionTraining
    ) -> Float[Array, "T B"]:
        """Return the rewards that fitness is the sum of."""
        del values
        return reward

    def _gather(
        self, member: Int[Array, " N"], fitness: Float[Array, " N"], num_members: int
    ) -> Float[Array, " members"]:
        """Return the fitness of all members, those of other devices included."""
        total = jnp.zeros((num_members,), jnp.float32).at[member].add(fitness)
        return total if self.axis_name is None else jax.lax.psum(total, self.axis_name)

    def compute_pair_weights(
        self, up: Float[Array, " n"], down: Float[Array, " n"], values: EvolutionTraining
    ) -> Float[Array, " n"]:
        """Return the weight of each pair's direction in the estimate of the gradient.

        Args:
            up: Fitness of the members θ + σ ε.
            down: Fitness of the members θ − σ ε.
            values: Settings with the values of the moment.
        """
        ranks = compute_centered_ranks(jnp.concatenate([up, down]))
        up, down = jnp.split(ranks, 2)
        return (up - down) / (2 * up.size * values.noise_stdev)

    def compute_decay(
        self, params: Float[Array, " P"], values: EvolutionTraining
    ) -> Float[Array, " P"]:
        """Return the gradient of the parameters' decay."""
        return values["l2_coeff"] * params

    def update(
        self, state: SgdLearnerState, batch: EvolutionBatch, progress: Progress, key: Key
    ) -> tuple[SgdLearnerState, Metrics]:
        """Take one step up the estimated gradient. Does not consume the key."""
        del key
        values, params = self.settings.at(state.hparams, progress), state.sgd.params
        fitness = self._gather(batch.member, batch.fitness, batch.num_members)
        weights = self.compute_pair_weights(fitness[::2], fitness[1::2], values)
        num_devices = 1 if self.axis_name is None else jax.lax.psum(1, self.axis_name)
        pairs = jnp.arange(weights.size // num_devices, dtype=jnp.int32)
        if self.axis_name is not None:
            pairs = pairs + jax.lax.axis_index(self.axis_name) * pairs.size
        flat, unravel = ravel_pytree(params)
        directions = jax.vmap(
            lambda pair: draw_direction(state.hparams, progress, pair, flat.size)
        )(pairs)
        # Gradients are averaged over devices, each of which has a part of the sum.
        ascent = num_devices * weights[pairs] @ directions
        gradients = unravel(self.compute_decay(flat, values) - ascent)
        loss = -fitness.mean()
        sgd, metrics = apply_gradients(
            ((loss, {}), gradients),
            self.configure_optimizer(values, params),
            state.sgd,
            self.axis_name,
            self.log_gradients,
        )
        return replace(state, sgd=sgd), {**metrics, "weights_norm": jnp.linalg.norm(flat)}

    def finish(
        self, state: SgdLearnerState, metrics: Metrics, progress: Progress
    ) -> SgdLearnerState:
        """Return the state unchanged."""
        del metrics, progress
        return state


def compute_centered_ranks(values: Float[Array, " n"]) -> Float[Array, " n"]:
    """Return the ranks of numbers, scaled from −0.5 to 0.5; equal ones have their mean rank."""
    ordered = jnp.sort(values)
    below = jnp.searchsorted(ordered, values, side="left")
    up_to = jnp.searchsorted(ordered, values, side="right")
    ranks = 0.5 * (below + up_to - 1).astype(jnp.float32)
    return ranks / (values.size - 1) - 0.5


@dataclasses.dataclass(frozen=True, eq=False)
class ARSLearner(ESLearner):
    """Estimate from the best pairs, in units of their returns' standard deviation.

        g = 1 / (b σ_R) Σᵢ (F⁺ᵢ − F⁻ᵢ) εᵢ

    over the b pairs with the largest max(F⁺, F⁻) (Mania et al. 2018, algorithm 2, V2-t).
    """

    settings: ARSTraining

    def compute_rewards(
        self, reward: Float[Array, "T B"], values: EvolutionTraining
    ) -> Float[Array, "T B"]:
        return reward - values["offset"]

    def compute_pair_weights(
        self, up: Float[Array, " n"], down: Float[Array, " n"], values: EvolutionTraining
    ) -> Float[Array, " n"]:
        number = up.size if self.settings.rollouts_used is None else self.settings.rollouts_used
        used = jax.lax.top_k(jnp.maximum(up, down), number)[1]
        spread = jnp.std(jnp.concatenate([up[used], down[used]]))
        chosen = jnp.zeros_like(up).at[used].set(1.0)
        return chosen * (up - down) / (number * jnp.where(spread > 0.0, spread, 1.0))

    def compute_decay(
        self, params: Float[Array, " P"], values: EvolutionTraining
    ) -> Float[Array, " P"]:
        del values
        return jnp.zeros_like(params)


class ESConfig(AlgorithmConfig):
    """Configuration of ES."""

    algo_name = "ES"
    env_runners_settings = dataclasses.replace(
        AlgorithmConfig.env_runners_settings,
        batch_mode="complete_episodes",
        observation_filter="MeanStdFilter",
        num_envs_per_env_runner=64,
    )
    training_settings: EvolutionTraining = ESTraining(
        lr=0.01, noise_stdev=0.02, action_noise_std=0.01, train_batch_size=10_000
    )
    training = fluent("training_settings", ESTraining)

    def get_default_learner_class(self) -> type[ESLearner]:
        return ESLearner

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        """Return the spec of a network whose outputs begin near zero, as in the authors' code."""
        small_outputs = {
            "pi_head_kernel_initializer": "orthogonal",
            "pi_head_kernel_initializer_kwargs": {"gain": 0.01},
        }
        return RLModuleSpec(module_class=PerturbedModule, model_config=small_outputs)

    def validate(self) -> None:
        super().validate()
        runners, name = self.env_runners_settings, self.algo_name
        if self.is_multi_agent:
            raise ConfigError(
                f"{name} perturbs the parameters of one policy in each copy of the environment, and "
                "several agents in it would share them: train a single agent, or use PPO."
            )
        if runners.placement == "external":
            raise ConfigError(
                f"placement='external' sends fragments of a fixed length, and {name} compares the "
                "returns of whole episodes: step the environment here, or use PPO."
            )
        if runners.batch_mode != "complete_episodes":
            raise ConfigError(
                f"{name} compares the returns of whole episodes, got batch_mode="
                f"{runners.batch_mode!r}: leave it at 'complete_episodes'."
            )
        if not runners.explore:
            raise ConfigError(
                f"explore=False perturbs no parameters, which {name} learns from: leave it out, and "
                "evaluate() plays the unperturbed policy."
            )
        if "gamma" in self.explicit and not runners.normalize_rewards:
            raise ConfigError(
                f"gamma={self.training_settings.gamma!r} has no effect on {name}, which sums the "
                "rewards of an episode without discount: leave it out."
            )
        self._check_population()

    def _check_population(self) -> None:
        """Raise ConfigError if there are not two members for each direction."""
        total = self.plan().total_envs
        if total % 2:
            raise ConfigError(
                f"{self.algo_name} has two members for each direction of its noise, and "
                f"{total} environments are an odd number: set num_envs_per_env_runner to "
                f"{self.plan().envs_per_runner + 1}."
            )


class ARSConfig(ESConfig):
    """Configuration of ARS."""

    algo_name = "ARS"
    training_settings: EvolutionTraining = ARSTraining(
        lr=0.01, noise_stdev=0.02, optimizer="sgd", train_batch_size=10_000
    )
    training = fluent("training_settings", ARSTraining)

    def get_default_learner_class(self) -> type[ARSLearner]:
        return ARSLearner

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        """Return the spec of a linear policy that begins at zero, as the paper's."""
        linear = {"fcnet_hiddens": [], "pi_head_kernel_initializer": "zeros"}
        return RLModuleSpec(module_class=PerturbedModule, model_config=linear)

    def _check_population(self) -> None:
        super()._check_population()
        used, pairs = self.training_settings["rollouts_used"], self.plan().total_envs // 2
        if used is not None and used > pairs:
            raise ConfigError(
                f"rollouts_used={used} of {pairs} pairs, which {2 * pairs} environments are: set at "
                f"most {pairs}, or num_envs_per_env_runner={2 * used}."
            )
