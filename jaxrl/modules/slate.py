"""Module of SlateQ: long-term values of items, and a model of the user's choice among them."""

from collections.abc import Mapping
from typing import Any, cast

import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float, Int

from jaxrl.core.struct import pytree
from jaxrl.core.types import Columns, Key, Keys, Params, PyTree
from jaxrl.distributions.base import mask_logits
from jaxrl.distributions.from_space import describe_space
from jaxrl.errors import ConfigError, SpaceError
from jaxrl.modules.exploration import compute_epsilons
from jaxrl.modules.networks import MLP, Head, torch_bias_init
from jaxrl.modules.rl_module import Moment, RLModule, make_zeros
from jaxrl.ops.slates import choose_best_slates, compute_slate_values

USER, DOC, RESPONSE, CLICK = "user", "doc", "response", "click"
"""Parts of an observation, and the part of a response to one item, with RecSim's names."""
CHOICE, VALUES = "choice", "values"
"""Parts of the parameters."""
ITEM_VALUES, CHOICE_SCORES = "item_values", "choice_scores"
"""Outputs for every candidate and, as the last, for the null item."""
_FORM = "user, doc and response, see the page of SlateQ"


class ItemValues(nn.Module):
    """Long-term values of a user's candidates, by one network for all, and of the null item.

    Parameters: `items`, `null`.
    """

    items: Head
    null: Head

    def __call__(
        self, user: Float[Array, "*batch u"], docs: Float[Array, "*batch n d"]
    ) -> Float[Array, "*batch m"]:
        users = jnp.broadcast_to(user[..., None, :], (*docs.shape[:-1], user.shape[-1]))
        items = self.items(jnp.concatenate([users, docs], axis=-1))[..., 0]
        return jnp.concatenate([items, self.null(user)], axis=-1)


class ChoiceModel(nn.Module):
    """Conditional logit: scores that are bilinear in user and document, and of no click in the user."""

    @nn.compact
    def __call__(
        self, user: Float[Array, "*batch u"], docs: Float[Array, "*batch n d"]
    ) -> Float[Array, "*batch m"]:
        width = docs.shape[-1] + 1
        weights = nn.Dense(width, kernel_init=nn.initializers.zeros, name="weights")(user)
        items = jnp.sum(weights[..., None, :-1] * docs, axis=-1)
        return jnp.concatenate([items, weights[..., -1:]], axis=-1)


class SlateNetwork(nn.Module):
    """Values and choice scores of candidates and the null item. Parameters: `values`, `choice`."""

    values: ItemValues
    choice: ChoiceModel

    def __call__(
        self, user: Float[Array, "*batch u"], docs: Float[Array, "*batch n d"]
    ) -> tuple[Float[Array, "*batch m"], Float[Array, "*batch m"]]:
        return self.values(user, docs), self.choice(user, docs)


@pytree
class SlateDraws:
    """Random draws of exploration for each environment, `[B, ...]`."""

    coin: Float[Array, " B"]
    slate: Int[Array, "B k"]


class SlateModule(RLModule):
    """Slates of distinct candidates: the one of the largest value, or epsilon-greedy to explore.

    Observations are a Dict of `user`, a vector; `doc`, the candidates' vectors as one Box `[n, d]` or
    as a Dict of Boxes `[d]` from "0" to "n-1"; and `response`, what the user clicked on the previous
    slate: MultiBinary(k), with 1 at the position that was clicked, or RLlib's Tuple of k Dicts, of
    which only the part `click` is read. No more than one item is clicked. Actions are
    `MultiDiscrete([n] * k)`. `algorithm_config` has `fcnet_hiddens_per_candidate`.

    `ACTION_DIST_INPUTS` are certain of the best slate; `ITEM_VALUES` and `CHOICE_SCORES` are `[*batch,
    n + 1]`, the null item's last.
    """

    num_candidates: int
    slate_size: int

    @property
    def explores_by_distribution(self) -> bool:
        """False: slates are epsilon-greedy."""
        return False

    def setup(self) -> None:
        """Check the spaces and build the networks.

        Raises:
            SpaceError: If the observations or actions have another form.
            ConfigError: If there are model settings, which have no effect.
        """
        if self.model_config:
            given = ", ".join(map(str, cast(Mapping[str, Any], self.model_config)))
            raise ConfigError(
                f"model_config has {given}, but the networks of slates are those of "
                "training(fcnet_hiddens_per_candidate=...), without memory: leave it out."
            )
        self.num_candidates, self.slate_size = read_slate_size(self.action_space)
        check_slate_obs(self.observation_space, self.num_candidates, self.slate_size)
        hiddens = tuple(self.algorithm_config.get("fcnet_hiddens_per_candidate", (256, 32)))
        values = ItemValues(items=_make_head(hiddens), null=_make_head(hiddens))
        self.network = SlateNetwork(values=values, choice=ChoiceModel())

    def init(self, key: Key) -> Params:
        user, docs = self._split_obs(make_zeros(self.observation_space, (1,)))
        return cast(Params, self.network.init(key, user, docs)["params"])

    def _split_obs(
        self, obs: PyTree
    ) -> tuple[Float[Array, "*batch u"], Float[Array, "*batch n d"]]:
        docs = obs[DOC]
        if isinstance(docs, Mapping):
            docs = jnp.stack([docs[str(i)] for i in range(self.num_candidates)], axis=-2)
        return obs[USER].astype(jnp.float32), docs.astype(jnp.float32)

    def compute_items(
        self, params: Params, obs: PyTree
    ) -> tuple[Float[Array, "*batch m"], Float[Array, "*batch m"]]:
        """Compute values and choice scores of the candidates and, as the last, of the null item."""
        return cast(Any, self.network.apply({"params": params}, *self._split_obs(obs)))

    def read_choices(self, obs: PyTree) -> Float[Array, "*batch s"]:
        """Return 1 for what was chosen of the slate before an observation, its last entry no click."""
        response = obs[RESPONSE]
        if isinstance(response, tuple):
            parts = cast(tuple[Mapping[str, Array], ...], response)
            response = jnp.stack([part[CLICK] for part in parts], axis=-1)
        clicks = response.astype(jnp.float32)
        return jnp.concatenate([clicks, 1.0 - jnp.sum(clicks, axis=-1, keepdims=True)], axis=-1)

    def _forward(self, params: Params, obs: PyTree) -> dict[str, Any]:
        values, scores = self.compute_items(params, obs)
        slates = choose_best_slates(scores, values, self.slate_size)
        is_chosen = jax.nn.one_hot(slates, self.num_candidates, dtype=bool)
        logits = mask_logits(jnp.zeros(is_chosen.shape, jnp.float32), is_chosen)
        return {
            Columns.ACTION_DIST_INPUTS: logits.reshape(*slates.shape[:-1], -1),
            Columns.ACTIONS: slates,
            ITEM_VALUES: values,
            CHOICE_SCORES: scores,
        }

    def compute_values(self, params: Params, obs: PyTree) -> Float[Array, "*batch"]:
        """Compute the values of the best slates."""
        out = self._forward(params, obs)
        return compute_slate_values(out[CHOICE_SCORES], out[ITEM_VALUES], out[Columns.ACTIONS])

    def draw(self, keys: Keys) -> SlateDraws:
        def draw_one(key: Key) -> SlateDraws:
            coin_key, slate_key = jax.random.split(key)
            order = jax.random.uniform(slate_key, (self.num_candidates,), jnp.float32)
            return SlateDraws(
                coin=jax.random.uniform(coin_key, (), jnp.float32),
                slate=jax.lax.top_k(order, self.slate_size)[1],
            )

        return jax.vmap(draw_one)(keys)

    def _infer(self, params: Params, obs: PyTree, carry: PyTree, draws: PyTree) -> dict[str, Any]:
        """Return the best slates `[B, k]`; their log-probability is 0."""
        out = self._forward(params, obs)
        log_probs = jnp.zeros(out[Columns.ACTIONS].shape[:-1], jnp.float32)
        return {**out, Columns.ACTION_LOGP: log_probs, Columns.STATE_OUT: carry}

    def _explore(
        self, params: Params, obs: PyTree, carry: PyTree, draws: SlateDraws, moment: Moment
    ) -> dict[str, Any]:
        """Return epsilon-greedy slates `[B, k]`; a random one is of distinct items in random order.

        Hyperparameters are `epsilon`, `initial_random_timesteps` if there is a warm-up, and
        `epsilon_ladder` if epsilon differs between environments.
        """
        out = self._forward(params, obs)
        greedy = out[Columns.ACTIONS]
        epsilon = compute_epsilons(moment, self.algorithm_config)
        actions = jnp.where((draws.coin < epsilon)[:, None], draws.slate, greedy)
        orders = np.prod(np.arange(self.num_candidates, 0, -1, dtype=np.float64)[: self.slate_size])
        is_greedy = jnp.all(actions == greedy, axis=-1)
        probability = epsilon / jnp.float32(orders) + (1.0 - epsilon) * is_greedy
        return {
            Columns.ACTIONS: actions,
            Columns.ACTION_DIST_INPUTS: out[Columns.ACTION_DIST_INPUTS],
            Columns.ACTION_LOGP: jnp.log(probability),
            Columns.STATE_OUT: carry,
        }


def _make_head(hiddens: tuple[int, ...]) -> Head:
    hidden = MLP(hiddens, activation=nn.relu, bias_init=torch_bias_init)
    return Head(num_outputs=1, hidden=hidden)


def read_slate_size(space: gymnasium.Space[Any]) -> tuple[int, int]:
    """Return the number of candidates n and the size k of a slate, of `MultiDiscrete([n] * k)`.

    Raises:
        SpaceError: If the actions are no slates.
    """
    sizes = np.asarray(space.nvec) if isinstance(space, spaces.MultiDiscrete) else np.zeros(0)
    is_slate = sizes.ndim == 1 and sizes.size > 0 and np.all(sizes == sizes[0])
    if not is_slate or np.any(cast(spaces.MultiDiscrete, space).start != 0):
        raise SpaceError(
            "Slates of k out of n candidates are actions of MultiDiscrete([n] * k), but action_space is "
            f"{describe_space(space)}; PPO takes every MultiDiscrete."
        )
    if sizes.size > sizes[0]:
        raise SpaceError(
            f"A slate is of distinct candidates, but action_space is {describe_space(space)}, slates of "
            f"{sizes.size} out of {sizes[0]}; there must be at least {sizes.size}."
        )
    return int(sizes[0]), int(sizes.size)


def check_slate_obs(space: gymnasium.Space[Any], num_candidates: int, slate_size: int) -> None:
    """Check that observations have a user, candidates and the response to the previous slate.

    Args:
        space: Space of the observations.
        num_candidates: Number of candidates n.
        slate_size: Size of a slate k.

    Raises:
        SpaceError: If a part is missing, is of another form, or would not be read.
    """
    parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {}
    if set(parts) != {USER, DOC, RESPONSE}:
        found = f"a Dict of {', '.join(parts)}" if parts else describe_space(space)
        raise SpaceError(
            f"Observations for slates are a Dict of {_FORM}, but the space is {found}."
        )
    user, docs, response = parts[USER], parts[DOC], parts[RESPONSE]
    if not _is_vector(user):
        raise SpaceError(f"Part 'user' of the observation must be a Box [u], got {user}.")
    is_array = isinstance(docs, spaces.Box) and docs.shape[:-1] == (num_candidates,)
    if not is_array and not _is_dict_of_docs(docs, num_candidates):
        raise SpaceError(
            f"Part 'doc' of the observation must be a Box [{num_candidates}, d], or a Dict of Boxes [d] "
            f"from '0' to '{num_candidates - 1}', because slates are out of {num_candidates} candidates, "
            f"got {docs}."
        )
    is_binary = isinstance(response, spaces.MultiBinary) and response.shape == (slate_size,)
    if not is_binary and not _is_tuple_of_clicks(response, slate_size):
        raise SpaceError(
            f"Part 'response' of the observation must be a MultiBinary({slate_size}), or a Tuple of "
            f"{slate_size} Dicts with a 'click' that is Discrete(2), one for each item on the slate, got "
            f"{response}."
        )


def _is_vector(space: object) -> bool:
    return isinstance(space, spaces.Box) and len(space.shape) == 1


def _is_dict_of_docs(docs: object, num_candidates: int) -> bool:
    """Return whether candidates are vectors of one size, by number."""
    if not isinstance(docs, spaces.Dict):
        return False
    shapes = {doc.shape for doc in docs.spaces.values()}
    names = {str(i) for i in range(num_candidates)}
    return set(docs.spaces) == names and len(shapes) == 1 and all(map(_is_vector, docs.values()))


def _is_tuple_of_clicks(response: object, slate_size: int) -> bool:
    """Return whether there is a click, or none, for each item on the slate."""
    if not isinstance(response, spaces.Tuple) or len(response.spaces) != slate_size:
        return False
    parts = [part.spaces if isinstance(part, spaces.Dict) else {} for part in response.spaces]
    return all(part.get(CLICK) == spaces.Discrete(2) for part in parts)
