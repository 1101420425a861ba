"""Intrinsic rewards for exploration where the environment's are rare: ICM, RND and RE3.

Each is a learner connector of any algorithm: it adds a bonus to the rewards to learn from, and learns
from the rollout what the bonus of the next one is. Reported returns are the environment's.
"""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax
from gymnasium import spaces
from jaxtyping import Array, Float

from jaxrl.connectors.base import LearnerConnector
from jaxrl.connectors.learning import NormalizeRewards
from jaxrl.core.space_arrays import get_choices, one_hot_entries
from jaxrl.core.spaces import map_leaves, map_spaces
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Key, Metrics, Params, PyTree, Rollout
from jaxrl.errors import ConfigError, did_you_mean
from jaxrl.modules.encoder_module import EncoderModule
from jaxrl.modules.networks import MLP, Head, get_initializer
from jaxrl.modules.policy_and_critics import PolicyNetwork
from jaxrl.ops.losses import masked_moments
from jaxrl.ops.statistics import RunningMoments

COEFFICIENT = "intrinsic_reward_coeff"
"""Setting with the scale of the bonus."""
CLIP = 5.0
"""Bound of normalized observations, as in Burda et al. 2018, section 2.4."""
MAX_NEIGHBORS = 2048
"""Number of rows among which nearest neighbors are searched."""
NUM_MINIBATCHES = 4
"""Number of gradient steps in the one pass over a rollout, if it has so many rows."""


@pytree
class CuriosityState:
    """Parameters of the bonus and their optimizer, and what bonus and observations are divided by.

    `bonus` and `loss` are means over the latest rollout.
    """

    params: Params
    opt_state: PyTree
    scale: RunningMoments
    moments: PyTree
    bonus: Float[Array, ""]
    loss: Float[Array, ""]


class FeatureModule(EncoderModule):
    """Features of observations; `algorithm_config` has their number, `feature_dim`."""

    def setup(self) -> None:
        self.network = PolicyNetwork(
            encoder=self.make_encoder(),
            head=self.make_head("pi_head", self.algorithm_config["feature_dim"]),
        )

    def compute_features(self, params: Params, obs: PyTree) -> Float[Array, "*batch n"]:
        """Compute the features of normalized observations."""
        return self.apply("__call__", params, obs)


def _normalize_space(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    """Return the space of normalized observations, in which every Box has numbers around 0."""
    return map_spaces(
        lambda leaf: (
            spaces.Box(-CLIP, CLIP, leaf.shape, np.float32)
            if isinstance(leaf, spaces.Box)
            else leaf
        ),
        space,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class IntrinsicReward(LearnerConnector, abc.ABC):
    """Base of bonuses: normalization, scaling, and one pass over each rollout.

    The bonus is divided by the running standard deviation of its discounted sum, which episodes do
    not end (Burda et al. 2018, sections 2.3 and 2.4), multiplied by `intrinsic_reward_coeff` and
    added to the reward after the latter was clipped and normalized.

    Attributes:
        observation_space: Space of the module's observations.
        action_space: Space of the module's actions.
        gamma: Discount factor of the running sum; set by `at`.
        coeff: Scale of the bonus; set by `at`.
    """

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    lr: float = 1e-3
    gamma: float | Float[Array, ""] | None = None
    coeff: float | Float[Array, ""] = 1.0

    learns: ClassVar[bool] = True

    @classmethod
    def check(
        cls, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> None:
        """Raise ConfigError if the bonus is not defined for the spaces."""

    def at(self, values: Mapping[str, Float[Array, ""]]) -> "IntrinsicReward":
        coeff = values.get(COEFFICIENT, self.coeff)
        return dataclasses.replace(self, gamma=values["gamma"], coeff=coeff)

    def make_features(self, feature_dim: int, model_config: Mapping[str, Any]) -> FeatureModule:
        """Make the network of features of normalized observations."""
        return FeatureModule(
            observation_space=_normalize_space(self.observation_space),
            action_space=self.action_space,
            model_config=dict(model_config),
            algorithm_config={"feature_dim": feature_dim},
        )

    @abc.abstractmethod
    def init_params(self, key: Key) -> Params:
        """Return the initial parameters. Consumes the key."""

    @abc.abstractmethod
    def compute_bonus(
        self, params: Params, obs: PyTree, action: PyTree, next_obs: PyTree
    ) -> Float[Array, " N"]:
        """Compute the bonus of rows, before it is scaled."""

    def compute_losses(
        self, params: Params, obs: PyTree, action: PyTree, next_obs: PyTree
    ) -> Float[Array, " N"]:
        """Compute the loss of each row."""
        return self.compute_bonus(params, obs, action, next_obs)

    def get_trained(self, params: Params) -> Params:
        """Return the part of the parameters that is trained."""
        return params

    def init(self, key: Key) -> CuriosityState:
        params = self.init_params(key)
        zero = jnp.zeros((), jnp.float32)
        return CuriosityState(
            params=params,
            opt_state=optax.adam(self.lr).init(params) if self.learns else (),
            scale=RunningMoments.zeros(()),
            moments=map_leaves(
                lambda leaf: (
                    RunningMoments.zeros(leaf.shape) if isinstance(leaf, spaces.Box) else None
                ),
                self.observation_space,
            ),
            bonus=zero,
            loss=zero,
        )

    def init_per_env(self, num_envs: int) -> Float[Array, " B"]:
        return jnp.zeros((num_envs,), jnp.float32)

    def compute_metrics(self, state: CuriosityState) -> Metrics:
        metrics = {"intrinsic_reward_mean": state.bonus}
        return {**metrics, "intrinsic_reward_loss": state.loss} if self.learns else metrics

    def __call__(
        self,
        state: CuriosityState,
        per_env: Float[Array, " B"],
        rollout: Rollout,
        axis_name: str | None,
    ) -> tuple[CuriosityState, Float[Array, " B"], Rollout]:
        moments = self._update_moments(state.moments, rollout, axis_name)
        num_rows = rollout.mask.size

        def flatten(tree: PyTree) -> PyTree:
            return jax.tree.map(lambda x: x.reshape(num_rows, *x.shape[2:]), tree)

        rows = (
            flatten(self._normalize(moments, rollout.obs)),
            flatten(rollout.action),
            flatten(self._normalize(moments, rollout.final_obs)),
        )
        mask = rollout.mask.reshape(num_rows)
        bonus = self.compute_bonus(state.params, *rows).reshape(rollout.reward.shape)
        bonus = jnp.where(rollout.mask, bonus, 0.0)
        endless = jnp.zeros_like(rollout.mask)
        alone = replace(
            rollout, reward=bonus, terminated=endless, truncated=endless, is_first=endless
        )
        scale, per_env, scaled = NormalizeRewards(gamma=self.gamma)(
            state.scale, per_env, alone, axis_name
        )
        params, opt_state, loss = state.params, state.opt_state, state.loss
        if self.learns:
            params, opt_state, loss = self._learn(state, rows, mask, axis_name)
        after = CuriosityState(
            params=params,
            opt_state=opt_state,
            scale=scale,
            moments=moments,
            bonus=masked_moments(bonus, rollout.mask, axis_name).mean,
            loss=loss,
        )
        reward = rollout.reward + self.coeff * jnp.where(rollout.mask, scaled.reward, 0.0)
        return after, per_env, replace(rollout, reward=reward)

    def _update_moments(self, moments: PyTree, rollout: Rollout, axis_name: str | None) -> PyTree:
        return jax.tree.map(
            lambda known, x: (
                known
                if known is None
                else known.update(x.astype(jnp.float32), rollout.mask, axis_name)
            ),
            moments,
            rollout.final_obs,
            is_leaf=_is_moments,
        )

    def _normalize(self, moments: PyTree, obs: PyTree) -> PyTree:
        def normalize(known: RunningMoments | None, x: Array) -> Array:
            if known is None:
                return x
            return known.normalize(x, clip=CLIP)

        return jax.tree.map(normalize, moments, obs, is_leaf=_is_moments)

    def _learn(
        self,
        state: CuriosityState,
        rows: tuple[PyTree, PyTree, PyTree],
        mask: Array,
        axis_name: str | None,
    ) -> tuple[Params, PyTree, Float[Array, ""]]:
        """Take one gradient step on each of a few equal parts of the rows."""
        num_rows = mask.size
        number = next(n for n in range(NUM_MINIBATCHES, 0, -1) if num_rows % n == 0)
        parts = jax.tree.map(
            lambda x: jnp.moveaxis(x.reshape(num_rows // number, number, *x.shape[1:]), 1, 0),
            (rows, mask),
        )
        optimizer = optax.adam(self.lr)

        def step(
            carry: tuple[Params, PyTree], part: tuple[tuple[PyTree, PyTree, PyTree], Array]
        ) -> tuple[tuple[Params, PyTree], Float[Array, ""]]:
            params, opt_state = carry
            own, valid = part

            def compute_loss(params: Params) -> Float[Array, ""]:
                losses = jnp.where(valid, self.compute_losses(params, *own), 0.0)
                return losses.sum() / jnp.maximum(valid.sum(), 1)

            loss, gradients = jax.value_and_grad(compute_loss)(params)
            if axis_name is not None:
                loss, gradients = jax.lax.pmean((loss, gradients), axis_name)
            updates, after = optimizer.update(gradients, opt_state, params)
            is_finite = jnp.isfinite(loss) & jnp.isfinite(optax.tree.norm(gradients))
            new = optax.apply_updates(params, updates), after
            return jax.tree.map(lambda x, y: jnp.where(is_finite, x, y), new, carry), loss

        (params, opt_state), losses = jax.lax.scan(step, (state.params, state.opt_state), parts)
        return params, opt_state, losses.mean()


def _is_moments(tree: object) -> bool:
    return tree is None or isinstance(tree, RunningMoments)


def _make_dense(hiddens: Sequence[int], num_outputs: int) -> Head:
    """Make dense layers with a linear output."""
    return Head(
        num_outputs=num_outputs,
        hidden=MLP(tuple(hiddens), activation=jax.nn.relu),
        kernel_init=get_initializer(None),
        dense=nn.Dense,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ICM(IntrinsicReward):
    """Intrinsic curiosity module (Pathak et al. 2017, https://arxiv.org/abs/1705.05363).

    The bonus is ½ ‖φ̂(s') − φ(s')‖² (equation 6), the error of a forward model; features φ are
    learned by predicting the action from φ(s) and φ(s') (equations 2 and 3). The loss is
    (1 − β) L_inverse + β L_forward (equation 7), of which L_forward trains the forward model alone.
    """

    feature_dim: int = 288
    feature_net_config: Mapping[str, Any] = dataclasses.field(
        default_factory=lambda: {"fcnet_hiddens": [256], "fcnet_activation": "relu"}
    )
    inverse_net_hiddens: tuple[int, ...] = (256,)
    forward_net_hiddens: tuple[int, ...] = (256,)
    beta: float = 0.2

    @classmethod
    def check(
        cls, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> None:
        if not isinstance(action_space, spaces.Discrete | spaces.MultiDiscrete):
            raise ConfigError(
                f"intrinsic_reward 'icm' predicts which action was chosen, and {action_space} is not "
                "Discrete or MultiDiscrete: set 'rnd', which needs no actions."
            )

    def _make_networks(self) -> tuple[FeatureModule, Head, Head]:
        features = self.make_features(self.feature_dim, self.feature_net_config)
        inverse = _make_dense(self.inverse_net_hiddens, sum(n for n, _ in self._choices))
        return features, inverse, _make_dense(self.forward_net_hiddens, self.feature_dim)

    @property
    def _choices(self) -> tuple[tuple[int, int], ...]:
        """Numbers of choices of each entry of an action; a module's choices begin with 0."""
        return tuple((number, 0) for number, _ in get_choices(self.action_space)[1])

    def _encode_action(self, action: Array) -> list[Float[Array, "N n"]]:
        ndim = get_choices(self.action_space)[0]
        return one_hot_entries((ndim, self._choices), action)

    def init_params(self, key: Key) -> Params:
        features, inverse, forward = self._make_networks()
        feature_key, inverse_key, forward_key = jax.random.split(key, 3)
        pair = jnp.zeros((1, 2 * self.feature_dim), jnp.float32)
        joined = jnp.zeros((1, self.feature_dim + sum(n for n, _ in self._choices)), jnp.float32)
        return {
            "features": features.init(feature_key),
            "inverse": inverse.init(inverse_key, pair)["params"],
            "forward": forward.init(forward_key, joined)["params"],
        }

    def _compute_errors(
        self, params: Params, obs: PyTree, action: PyTree, next_obs: PyTree
    ) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
        """Compute the errors of the forward and of the inverse model."""
        features, inverse, forward = self._make_networks()
        first, second = (features.compute_features(params["features"], x) for x in (obs, next_obs))
        chosen = self._encode_action(action)
        known = jax.lax.stop_gradient(jnp.concatenate([first, *chosen], axis=-1))
        predicted = cast(Array, forward.apply({"params": params["forward"]}, known))
        error = 0.5 * jnp.sum(jnp.square(predicted - jax.lax.stop_gradient(second)), axis=-1)
        both = jnp.concatenate([first, second], axis=-1)
        logits = cast(Array, inverse.apply({"params": params["inverse"]}, both))
        ends = np.cumsum([number for number, _ in self._choices])[:-1].tolist()
        likelihoods = [
            jnp.sum(hot * jax.nn.log_softmax(own), axis=-1)
            for hot, own in zip(chosen, jnp.split(logits, ends, axis=-1), strict=True)
        ]
        return error, -sum(likelihoods[1:], likelihoods[0])

    def compute_bonus(
        self, params: Params, obs: PyTree, action: PyTree, next_obs: PyTree
    ) -> Float[Array, " N"]:
        return self._compute_errors(params, obs, action, next_obs)[0]

    def compute_losses(
        self, params: Params, obs: PyTree, action: PyTree, next_obs: PyTree
    ) -> Float[Array, " N"]:
        forward, inverse = self._compute_errors(params, obs, action, next_obs)
        return (1.0 - self.beta) * inverse + self.beta * forward


@dataclasses.dataclass(frozen=True, kw_only=True)
class RND(IntrinsicReward):
    """Random network distillation (Burda et al. 2018, https://arxiv.org/abs/1810.12894).

    The bonus is the mean squared error of a predictor of a fixed random network's features of s',
    whose observations are normalized and clipped (section 2.4). Deviations: the bonus is part of the
    one reward, which has one value function and ends with the episode.
    """

    feature_dim: int = 128
    feature_net_config: Mapping[str, Any] = dataclasses.field(
        default_factory=lambda: {"fcnet_hiddens": [256, 256], "fcnet_activation": "relu"}
    )

    def init_params(self, key: Key) -> Params:
        target_key, predictor_key = jax.random.split(key)
        features = self.make_features(self.feature_dim, self.feature_net_config)
        return {"target": features.init(target_key), "predictor": features.init(predictor_key)}

    def compute_bonus(
        self, params: Params, obs: PyTree, action: PyTree, next_obs: PyTree
    ) -> Float[Array, " N"]:
        del obs, action
        features = self.make_features(self.feature_dim, self.feature_net_config)
        fixed = jax.lax.stop_gradient(features.compute_features(params["target"], next_obs))
        predicted = features.compute_features(params["predictor"], next_obs)
        return jnp.mean(jnp.square(predicted - fixed), axis=-1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RE3(IntrinsicReward):
    """Random encoders for efficient exploration (Seo et al. 2021, https://arxiv.org/abs/2102.09430).

    The bonus is log(1 + ‖y − y_k‖), y the fixed random features of s' and y_k their k-th nearest
    neighbor among the rows of the rollout (equation 3), of which at most `MAX_NEIGHBORS` evenly spaced
    ones are searched. Nothing is learned.
    """

    embeds_dim: int = 128
    k_nn: int = 50
    encoder_net_config: Mapping[str, Any] = dataclasses.field(
        default_factory=lambda: {"fcnet_hiddens": [256], "fcnet_activation": "relu"}
    )

    learns: ClassVar[bool] = False

    def init_params(self, key: Key) -> Params:
        return self.make_features(self.embeds_dim, self.encoder_net_config).init(key)

    def compute_bonus(
        self, params: Params, obs: PyTree, action: PyTree, next_obs: PyTree
    ) -> Float[Array, " N"]:
        del obs, action
        module = self.make_features(self.embeds_dim, self.encoder_net_config)
        features = module.compute_features(params, next_obs)
        stride = -(-features.shape[0] // MAX_NEIGHBORS)
        others = features[::stride]
        if others.shape[0] <= self.k_nn:
            raise ConfigError(
                f"intrinsic_reward 're3' searches the k_nn={self.k_nn} nearest of the rows of a "
                f"rollout, which has {features.shape[0]}: set a smaller k_nn, or longer rollouts."
            )
        products = features @ others.T
        own, other = (jnp.sum(jnp.square(x), axis=-1) for x in (features, others))
        squares = own[:, None] + other[None] - 2.0 * products
        distances = jnp.sqrt(jnp.maximum(squares, 0.0))
        # Rows are among those that are searched, unless some are left out: the nearest is the row.
        place = self.k_nn if stride == 1 else self.k_nn - 1
        nearest = -jax.lax.top_k(-distances, place + 1)[0][:, place]
        return jnp.log1p(nearest)


INTRINSIC_REWARDS: Mapping[str, type[IntrinsicReward]] = {"icm": ICM, "rnd": RND, "re3": RE3}
"""Bonuses by the `type` of `intrinsic_reward`."""

_SET_BY_RUN = ("observation_space", "action_space", "gamma", "coeff")


def find_intrinsic_problem(setting: object) -> str | None:
    """Return the problem with a setting `intrinsic_reward` as a sentence, or None if it is valid."""
    if not isinstance(setting, str | Mapping):
        return "It must be 'icm', 'rnd', 're3', or a dictionary with such a 'type'."
    arguments = {"type": setting} if isinstance(setting, str) else cast(Mapping[str, Any], setting)
    kind = str(arguments.get("type"))
    if kind not in INTRINSIC_REWARDS:
        known = ", ".join(map(repr, INTRINSIC_REWARDS))
        return f"Its type is {kind!r}; known are {known}.{did_you_mean(kind, INTRINSIC_REWARDS)}"
    annotations = {
        field.name: field.type
        for field in dataclasses.fields(INTRINSIC_REWARDS[kind])
        if field.name not in _SET_BY_RUN
    }
    for name, value in arguments.items():
        if name == "eta":
            return f"Its scale 'eta' is the setting {COEFFICIENT}."
        if name != "type" and name not in annotations:
            return (
                f"'{kind}' has no argument {name!r}.{did_you_mean(str(name), annotations)} It has "
                f"{', '.join(annotations)}."
            )
        if name != "type" and (wanted := _find_mismatch(annotations[name], value)) is not None:
            return f"{name} of '{kind}' must be {wanted}, got {value!r}."
    return None


def _find_mismatch(annotation: object, value: object) -> str | None:
    """Return the form of an argument's values that a value does not have, None if it has it."""

    def is_number(x: Any, kind: Any) -> bool:
        return isinstance(x, kind) and not isinstance(x, bool) and x > 0

    if annotation is float:
        return None if is_number(value, int | float) else "a number above 0"
    if annotation is int:
        return None if is_number(value, int) else "a whole number above 0"
    if annotation == tuple[int, ...]:
        entries = cast(list[Any], value) if isinstance(value, list | tuple) else [0]
        return None if all(is_number(x, int) for x in entries) else "a list of sizes"
    return None if isinstance(value, Mapping) else "a dictionary of model settings"


def make_intrinsic_reward(
    setting: str | Mapping[str, Any],
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
) -> IntrinsicReward:
    """Make the connector of a valid setting `intrinsic_reward`.

    Raises:
        ConfigError: If the bonus is not defined for the spaces.
    """
    arguments: dict[str, Any] = {"type": setting} if isinstance(setting, str) else {**setting}
    kind = INTRINSIC_REWARDS[arguments.pop("type")]
    kind.check(observation_space, action_space)
    return kind(observation_space=observation_space, action_space=action_space, **arguments)
