"""LinUCB and LinTS: contextual bandits whose rewards are linear in the context.

LinUCB is of Li et al. 2010 (https://arxiv.org/abs/1003.0146), LinTS of Agrawal & Goyal 2013
(https://arxiv.org/abs/1209.3352).

The posterior of each arm is its sufficient statistics, A = λ I + Σ x xᵀ and b = Σ r x, updated once
with every train batch; they are kept and solved, and no inverse is updated, whose error grows with
nearly collinear contexts. A context is the observation, with a model for each arm, or the features of
each arm, the part `item` `[K, d]` of a Dict, with one model for all.
"""

import abc
import dataclasses
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float, Int

from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.fields import field, fluent, non_negative, positive
from jaxrl.config.settings.training import Training
from jaxrl.core.hparams import Traced, build_hparams
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Columns, Key, Keys, Metrics, Params, Progress, PyTree, Rollout
from jaxrl.distributions.from_space import describe_space
from jaxrl.errors import ConfigError, SpaceError
from jaxrl.learners.gradients import NUM_NONFINITE_UPDATES, SgdState, select
from jaxrl.learners.learner import BaseLearner
from jaxrl.learners.policy_gradient import SgdLearnerState
from jaxrl.modules.rl_module import Moment, RLModule, RLModuleSpec

ITEM = "item"
"""Part of a Dict observation with the features of each arm, as in RLlib."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BanditTraining(Training):
    """Settings of linear bandits."""

    lambda_: float = field(
        default=1.0, check=positive, doc="Weight λ of the ridge, the precision before any reward."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinUCBTraining(BanditTraining):
    """Settings of Li et al. 2010."""

    alpha: Traced[float] = field(
        default=1.0, check=non_negative, doc="Width of the confidence bound; 0 is greedy."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinTSTraining(BanditTraining):
    """Settings of Agrawal & Goyal 2013."""

    noise_scale: Traced[float] = field(
        default=0.1,
        check=positive,
        doc="Scale v of the posterior's standard deviation, at best that of the rewards' noise.",
    )


@pytree
class LinearModels:
    """Statistics of M linear models, which are the parameters of the module."""

    precision: Float[Array, "M d d"]
    reward_sum: Float[Array, "M d"]


@pytree
class SolvedModels:
    """Means θ = A⁻¹ b of M linear models, and the Cholesky factors L of A = L Lᵀ."""

    mean: Float[Array, "M d"]
    factor: Float[Array, "M d d"]


def solve_models(models: LinearModels | SolvedModels) -> SolvedModels:
    """Return the means and factors of linear models, as they are if they are solved."""
    if isinstance(models, SolvedModels):
        return models
    factor = jnp.linalg.cholesky(models.precision)
    mean = jax.vmap(lambda low, b: jax.scipy.linalg.cho_solve((low, True), b))(
        factor, models.reward_sum
    )
    return SolvedModels(mean=mean, factor=factor)


class LinearModule(RLModule, abc.ABC):
    """Linear models of rewards, of which the arm with the best score is chosen.

    `algorithm_config` has `lambda_`.
    """

    @property
    def has_density(self) -> bool:
        """False: how likely an arm was is not known."""
        return False

    def setup(self) -> None:
        arms, space = self.action_space, self.observation_space
        if not isinstance(arms, spaces.Discrete):
            raise SpaceError(
                f"Bandits choose one of several arms, a Discrete action space, not {arms}: use PPO "
                "or SAC."
            )
        if self.model_config:
            raise ConfigError(
                f"model_config={self.model_config!r} has no effect on bandits, whose models are "
                "linear: leave it out."
            )
        self.num_arms = int(arms.n)
        parts = space.spaces if isinstance(space, spaces.Dict) else {"": space}
        items = parts.get(ITEM)
        self.has_items = items is not None
        if items is not None and items.shape is not None and len(items.shape) == 2:
            self.num_models, self.size = 1, int(items.shape[1])
            if items.shape[0] != self.num_arms:
                raise SpaceError(
                    f"The observation's 'item' has the features of {items.shape[0]} arms, and the "
                    f"action space {arms} has {self.num_arms}: give a row to each arm."
                )
            return
        context = self._find_context(parts)
        is_choice = isinstance(context, spaces.Discrete)
        self.num_models = self.num_arms
        self.size = int(cast(Any, context).n) if is_choice else int(np.prod(context.shape))
        self.context = context

    def _find_context(self, parts: Any) -> Any:
        """Return the space of the only part that is a context.

        Raises:
            SpaceError: If there is none, or one that is no vector.
        """
        contexts = [space for name, space in parts.items() if name != "action_mask"]
        is_vector = len(contexts) == 1 and (
            isinstance(contexts[0], spaces.Discrete)
            or (isinstance(contexts[0], spaces.Box) and len(contexts[0].shape) == 1)
        )
        if not is_vector or self.has_items:
            raise SpaceError(
                "Bandits observe one vector, one Discrete, or a Dict with the features of each arm "
                f"as 'item' [arms, n], not {describe_space(self.observation_space)}: set "
                "flatten_observations=True, or use PPO with episodes of one step."
            )
        return contexts[0]

    def init(self, key: Key) -> Params:
        """Return the statistics before any reward. Does not consume the key."""
        scaled = self.algorithm_config.get("lambda_", 1.0) * jnp.eye(self.size, dtype=jnp.float32)
        return LinearModels(
            precision=jnp.tile(scaled, (self.num_models, 1, 1)),
            reward_sum=jnp.zeros((self.num_models, self.size), jnp.float32),
        )

    def make_acting_params(self, params: Params, moment: Moment) -> SolvedModels:
        """Solve the models once for a rollout."""
        del moment
        return solve_models(params)

    def get_contexts(self, obs: PyTree) -> Float[Array, "*batch K d"]:
        """Return the context of each arm."""
        if self.has_items:
            return jnp.asarray(obs[ITEM], jnp.float32)
        if isinstance(self.observation_space, spaces.Dict):
            obs = next(value for name, value in obs.items() if name != "action_mask")
        if isinstance(self.context, spaces.Discrete):
            obs = jax.nn.one_hot(obs - int(self.context.start), self.size, dtype=jnp.float32)
        context = jnp.asarray(obs, jnp.float32)
        return jnp.broadcast_to(
            context[..., None, :], (*context.shape[:-1], self.num_arms, self.size)
        )

    def _solve_by_arm(self, params: Params) -> SolvedModels:
        """Return the solved model of each arm, which may be the same for all."""
        solved = solve_models(params)
        return SolvedModels(
            mean=jnp.broadcast_to(solved.mean, (self.num_arms, self.size)),
            factor=jnp.broadcast_to(solved.factor, (self.num_arms, self.size, self.size)),
        )

    def _forward(self, params: Params, obs: PyTree) -> dict[str, Any]:
        """Return the expected reward of each arm as the distribution's inputs."""
        mean = self._solve_by_arm(params).mean
        expected = jnp.einsum("...kd,kd->...k", self.get_contexts(obs), mean)
        return {Columns.ACTION_DIST_INPUTS: expected}

    @abc.abstractmethod
    def compute_scores(
        self,
        solved: SolvedModels,
        contexts: Float[Array, "B K d"],
        draws: PyTree,
        moment: Moment,
    ) -> Float[Array, "B K"]:
        """Compute the score of each arm to explore by."""

    def _explore(
        self, params: Params, obs: PyTree, carry: PyTree, draws: PyTree, moment: Moment
    ) -> dict[str, Any]:
        """Return the legal arms with the best scores."""
        solved = self._solve_by_arm(params)
        scores = self.compute_scores(solved, self.get_contexts(obs), draws, moment)
        return {
            Columns.ACTIONS: self.action_dist(scores, obs).mode(),
            Columns.ACTION_DIST_INPUTS: scores,
            Columns.ACTION_LOGP: jnp.zeros(scores.shape[0], jnp.float32),
            Columns.STATE_OUT: carry,
        }


class LinUCBModule(LinearModule):
    """Module of LinUCB, which explores by upper confidence bounds."""

    def draw(self, keys: Keys) -> PyTree:
        """Draw nothing; the choice is deterministic. Does not consume the keys."""
        return jnp.zeros(keys.shape, jnp.float32)

    def compute_scores(
        self,
        solved: SolvedModels,
        contexts: Float[Array, "B K d"],
        draws: PyTree,
        moment: Moment,
    ) -> Float[Array, "B K"]:
        """Compute θₐᵀ x + α √(xᵀ Aₐ⁻¹ x) (Li et al. 2010, equation 5)."""
        del draws
        by_arm = jnp.moveaxis(contexts, 0, -1)  # [K, d, B]
        halves = jax.vmap(lambda low, x: jax.scipy.linalg.solve_triangular(low, x, lower=True))(
            solved.factor, by_arm
        )
        width = jnp.sqrt(jnp.sum(jnp.square(halves), axis=1)).T
        expected = jnp.einsum("bkd,kd->bk", contexts, solved.mean)
        return expected + moment.hparams["alpha"] * width


class LinTSModule(LinearModule):
    """Module of LinTS, which explores by samples of the posterior."""

    def draw(self, keys: Keys) -> PyTree:
        """Draw standard normals for every model's coefficients. Consumes the keys."""
        shape = (self.num_models, self.size)
        return jax.vmap(lambda key: jax.random.normal(key, shape, jnp.float32))(keys)

    def compute_scores(
        self,
        solved: SolvedModels,
        contexts: Float[Array, "B K d"],
        draws: PyTree,
        moment: Moment,
    ) -> Float[Array, "B K"]:
        """Compute xᵀ θ̃ₐ, with θ̃ₐ ~ N(θₐ, v² Aₐ⁻¹) (Agrawal & Goyal 2013, algorithm 1)."""
        noise = jnp.moveaxis(
            jnp.broadcast_to(draws, (draws.shape[0], self.num_arms, self.size)), 0, -1
        )
        offsets = jax.vmap(
            lambda low, z: jax.scipy.linalg.solve_triangular(low, z, lower=True, trans=1)
        )(solved.factor, noise)
        scaled = moment.hparams["noise_scale"] * jnp.moveaxis(offsets, -1, 0)
        sampled = solved.mean[None] + scaled
        return jnp.sum(contexts * sampled, axis=-1)


@pytree
class BanditBatch:
    """Train batch, `[T, B, ...]` or `[N, ...]`; `weight` is 0 where a row is not a transition."""

    obs: PyTree
    action: Int[Array, "*batch"]
    reward: Float[Array, "*batch"]
    weight: Float[Array, "*batch"]


@dataclasses.dataclass(frozen=True, eq=False)
class BanditLearner(BaseLearner[SgdLearnerState]):
    """Sums of contexts and rewards, which need no gradient."""

    module: LinearModule
    settings: BanditTraining

    def init(self, key: Key) -> SgdLearnerState:
        sgd = SgdState(params=self.module.init(key), opt_state=())
        return SgdLearnerState(sgd=sgd, hparams=build_hparams(self.settings))

    def prepare(
        self, state: SgdLearnerState, rollout: Rollout, progress: Progress
    ) -> tuple[BanditBatch, Metrics]:
        """Return the rows, and the share of rounds after which an episode went on."""
        del state, progress
        weight = rollout.mask.astype(jnp.float32)
        goes_on = weight * ~(rollout.terminated | rollout.truncated)
        share = goes_on.sum() / jnp.maximum(weight.sum(), 1.0)
        if self.axis_name is not None:
            share = jax.lax.pmean(share, self.axis_name)
        batch = BanditBatch(
            obs=rollout.obs, action=rollout.action, reward=rollout.reward, weight=weight
        )
        return batch, {"unfinished_episodes": share}

    def update(
        self, state: SgdLearnerState, batch: BanditBatch, progress: Progress, key: Key
    ) -> tuple[SgdLearnerState, Metrics]:
        """Add the rows to the statistics of the chosen arms. Does not consume the key."""
        del progress, key
        models, module = state.sgd.params, self.module
        contexts = jnp.take_along_axis(
            module.get_contexts(batch.obs), batch.action[:, None, None], axis=1
        )[:, 0]
        arm = jnp.zeros_like(batch.action) if module.num_models == 1 else batch.action
        chosen = jax.nn.one_hot(arm, module.num_models, dtype=jnp.float32) * batch.weight[:, None]
        error = jnp.sum(contexts * solve_models(models).mean[arm], axis=-1) - batch.reward
        found = (
            jnp.einsum("nm,ni,nj->mij", chosen, contexts, contexts),
            jnp.einsum("nm,ni,n->mi", chosen, contexts, batch.reward),
            jnp.sum(batch.weight * jnp.square(error)),
            jnp.sum(batch.weight),
        )
        if self.axis_name is not None:
            found = jax.lax.psum(found, self.axis_name)
        precision, reward_sum, squares, number = found
        after = LinearModels(
            precision=models.precision + precision, reward_sum=models.reward_sum + reward_sum
        )
        leaves = jnp.concatenate([x.ravel() for x in jax.tree.leaves(after)])
        is_finite = jnp.isfinite(leaves).all()
        zero = jnp.zeros((), jnp.float32)
        return replace(
            state, sgd=SgdState(params=select(is_finite, after, models), opt_state=())
        ), {
            "total_loss": squares / jnp.maximum(number, 1.0),
            "grad_norm": zero,
            NUM_NONFINITE_UPDATES: 1.0 - is_finite.astype(jnp.float32),
        }

    def finish(
        self, state: SgdLearnerState, metrics: Metrics, progress: Progress
    ) -> SgdLearnerState:
        """Return the state unchanged."""
        del metrics, progress
        return state


_UNUSED = ("lr", "gamma", "grad_clip", "grad_clip_by", "optimizer")


class BanditLinUCBConfig(AlgorithmConfig):
    """Configuration of LinUCB."""

    algo_name = "BanditLinUCB"
    env_runners_settings = dataclasses.replace(
        AlgorithmConfig.env_runners_settings, num_envs_per_env_runner=1, rollout_fragment_length=1
    )
    reporting_settings = dataclasses.replace(
        AlgorithmConfig.reporting_settings, min_sample_timesteps_per_iteration=100
    )
    training_settings: BanditTraining = LinUCBTraining(train_batch_size=1)
    training = fluent("training_settings", LinUCBTraining)

    def get_default_learner_class(self) -> type[BanditLearner]:
        return BanditLearner

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=LinUCBModule)

    def get_module_settings(self) -> dict[str, Any]:
        return {**super().get_module_settings(), "lambda_": self.training_settings.lambda_}

    def check_time_limit(self, env_id: str, max_episode_steps: int | None) -> None:
        if max_episode_steps is not None and max_episode_steps > 1:
            raise ConfigError(
                f"{self.algo_name} ignores the steps after the first, and an episode of {env_id} has up "
                f"to {max_episode_steps}: use DQN, or set max_episode_steps=1."
            )

    def validate(self) -> None:
        super().validate()
        for name in _UNUSED:
            if name in self.explicit:
                raise ConfigError(
                    f"{name}={self[name]!r} has no effect on {self.algo_name}, which sums rewards "
                    "and takes no gradient: leave it out."
                )
        if self.is_multi_agent:
            raise ConfigError(f"{self.algo_name} is for a single agent: use PPO for several.")


class BanditLinTSConfig(BanditLinUCBConfig):
    """Configuration of LinTS."""

    algo_name = "BanditLinTS"
    training_settings: BanditTraining = LinTSTraining(train_batch_size=1)
    training = fluent("training_settings", LinTSTraining)

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=LinTSModule)
