"""MuZero's model, which is learned, and the planner that searches in it.

Schrittwieser et al. 2020 (https://arxiv.org/abs/1911.08265): the representation h of an observation is
the latent state at a search's root, the dynamics g go from there to the state and the reward after an
action, and the predictions f are the policy and the value of any latent state. Deviations: rewards and
values are categorical over symmetric logarithms (Hafner et al. 2023) instead of the paper's square
roots, and latent states are vectors.
"""

from typing import TYPE_CHECKING, Any, cast

import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Float, Int

from jaxrl.core.types import Columns, Key, Params, PyTree
from jaxrl.errors import ConfigError, SpaceError
from jaxrl.modules.encoder_module import AnyEncoder, EncoderModule
from jaxrl.modules.networks import MLP, Head
from jaxrl.modules.planner import Planner, Search, load_mctx
from jaxrl.ops.two_hot import symexp, symlog, two_hot_loss, two_hot_mean

if TYPE_CHECKING:
    import mctx

BINS = np.linspace(-12.0, 12.0, 97, dtype=np.float32)
"""Bins of the symlog of rewards and values, which reach to ±160,000."""


def decode(logits: Float[Array, "*n m"]) -> Float[Array, "*n"]:
    """Return the number that logits over `BINS` stand for, the mean bin's (appendix F)."""
    return symexp(two_hot_mean(logits, jnp.asarray(BINS)))


def categorical_loss(logits: Float[Array, "*n m"], x: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Compute the cross-entropy of logits over `BINS` to numbers, which carry no gradient."""
    return two_hot_loss(logits, symlog(x), jnp.asarray(BINS))


def scale_latent(x: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
    """Scale a latent state to [0, 1], the range of actions (appendix G)."""
    low, high = x.min(axis=-1, keepdims=True), x.max(axis=-1, keepdims=True)
    return (x - low) / (high - low + 1e-5)


class LatentNetwork(nn.Module):
    """Representation, dynamics and predictions.

    Parameters: `encoder`, `latent`, `transition`, `change`, `reward_head`, `pi_head`, `vf_head`.
    """

    encoder: AnyEncoder
    latent: nn.Module
    transition: MLP
    change: nn.Module
    reward_head: Head
    pi_head: Head
    vf_head: Head

    def represent(self, obs: PyTree) -> Float[Array, "*batch n"]:
        """Return the latent state h of observations."""
        return scale_latent(self.latent(self.encoder(obs)))

    def step(
        self, state: Float[Array, "*batch n"], action: Float[Array, "*batch a"]
    ) -> tuple[Float[Array, "*batch n"], Float[Array, "*batch m"]]:
        """Return the latent state g after an action, one-hot, and the logits of the reward."""
        features = self.transition(jnp.concatenate([state, action], axis=-1))
        return scale_latent(state + self.change(features)), self.reward_head(features)

    def predict(
        self, state: Float[Array, "*batch n"]
    ) -> tuple[Float[Array, "*batch a"], Float[Array, "*batch m"]]:
        """Return the policy's logits and those of the value of latent states."""
        return self.pi_head(state), self.vf_head(state)

    def __call__(self, obs: PyTree, action: Float[Array, "*batch a"]) -> None:
        """Compute everything once, for its parameters."""
        state, _ = self.step(self.represent(obs), action)
        self.predict(state)


class LatentModule(EncoderModule):
    """Policy and values of latent states, with the model that leads from one to the next.

    The encoder is that of `model_config`; a latent state has as many numbers as its last layer, and the
    dynamics have layers of the same sizes.
    """

    def setup(self) -> None:
        settings = self.settings
        if not isinstance(self.action_space, spaces.Discrete):
            raise SpaceError(
                f"MuZero chooses one of several actions, a Discrete action space, not {self.action_space}: "
                "use SAC for a Box, and PPO for any space."
            )
        if settings.is_recurrent:
            raise ConfigError(
                "use_lstm and use_attention add a memory, which a search does not carry through the "
                "steps that it imagines: leave them out."
            )
        if not settings.fcnet_hiddens:
            raise ConfigError(
                "fcnet_hiddens=[] leaves no layer for a latent state, which is as wide as the last: set "
                "for example [128, 128]."
            )
        for name in (
            *("free_log_std", "autoregressive_actions", "critic_fcnet_hiddens"),
            *("critic_only_observations", "critic_use_batchrenorm"),
        ):
            if settings[name]:
                raise ConfigError(
                    f"{name}={settings[name]!r} has no effect on MuZero, whose policy and values share "
                    "the encoder: leave it out."
                )
        initializer = settings.vf_head_kernel_initializer
        if initializer != type(settings)().vf_head_kernel_initializer:
            raise ConfigError(
                f"vf_head_kernel_initializer={initializer!r} has no effect on MuZero, whose rewards and "
                "values begin at 0: leave it out."
            )
        width = settings.fcnet_hiddens[-1]
        self.num_actions = int(self.action_space.n)
        self.network = LatentNetwork(
            encoder=self.make_encoder(),
            latent=nn.Dense(width),
            transition=self._make_mlp("fcnet"),
            change=nn.Dense(width),
            reward_head=self._make_zero_head(),
            pi_head=self.make_head("pi_head", self.num_actions),
            vf_head=self._make_zero_head(),
        )

    def _make_zero_head(self) -> Head:
        """Make a head of bins that are equally likely at first, so that it stands for 0."""
        return self.make_head("vf_head", len(BINS)).clone(kernel_init=nn.initializers.zeros)

    def init(self, key: Key) -> Params:
        obs = self.make_dummy_obs()
        action = jnp.zeros((1, self.num_actions), jnp.float32)
        return cast(Params, self.network.init(key, obs, action)["params"])

    def _apply(self, method: str, params: Params, *args: PyTree) -> PyTree:
        return self.network.apply({"params": params}, *args, method=method)

    def represent(self, params: Params, obs: PyTree) -> Float[Array, "*batch n"]:
        """Return the latent states of observations."""
        return self._apply("represent", params, self.select_network_obs(obs))

    def step(
        self, params: Params, state: Float[Array, "*batch n"], action: Int[Array, "*batch"]
    ) -> tuple[Float[Array, "*batch n"], Float[Array, "*batch m"]]:
        """Return the latent states after actions, and the logits of the rewards."""
        one_hot = jax.nn.one_hot(action, self.num_actions, dtype=jnp.float32)
        return self._apply("step", params, state, one_hot)

    def predict(
        self, params: Params, state: Float[Array, "*batch n"]
    ) -> tuple[Float[Array, "*batch a"], Float[Array, "*batch m"]]:
        """Return the policy's logits of latent states, and the logits of the values."""
        return self._apply("predict", params, state)

    def _forward(self, params: Params, obs: PyTree) -> dict[str, Any]:
        logits, values = self.predict(params, self.represent(params, obs))
        return {Columns.ACTION_DIST_INPUTS: logits, Columns.VF_PREDS: decode(values)}


class LatentPlanner(Planner):
    """Planner that searches in the model that its `inner` module has learned.

    All actions are legal but at the root, as in the paper: an environment's mask is not predicted.
    Episodes have no end in the search either; after one, rewards and values were learned to be 0.
    """

    inner: LatentModule

    def __init__(
        self, *, inner: LatentModule, search: Search, observation_space: gymnasium.Space[Any]
    ) -> None:
        super().__init__(
            inner=inner, search=search, model=None, observation_space=observation_space
        )

    def get_seen(self, obs: PyTree) -> PyTree:
        return obs

    def make_root(
        self, params: Params, obs: PyTree
    ) -> tuple["mctx.RootFnOutput", Bool[Array, "B n"]]:
        state = self.inner.represent(params, obs)
        logits, values = self.inner.predict(params, state)
        mask = self.action_mask(obs)
        is_illegal = jnp.zeros(logits.shape, bool) if mask is None else ~mask.astype(bool)
        root = load_mctx().RootFnOutput(prior_logits=logits, value=decode(values), embedding=state)
        return root, is_illegal

    def imagine(
        self,
        params: Params,
        key: Key,
        action: Int[Array, " B"],
        node: PyTree,
        *,
        gamma: float | Float[Array, ""],
    ) -> tuple["mctx.RecurrentFnOutput", PyTree]:
        """Take a step from latent states; it is deterministic. Does not consume the key."""
        del key
        state, reward = self.inner.step(params, node, action)
        logits, values = self.inner.predict(params, state)
        out = load_mctx().RecurrentFnOutput(
            reward=decode(reward),
            discount=jnp.full(action.shape, gamma, jnp.float32),
            prior_logits=logits,
            value=decode(values),
        )
        return out, state
