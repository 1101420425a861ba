"""Target policy on recorded episodes: probabilities of their actions, and its own actions."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Float

from jaxrl.config.settings.offline import FQESettings
from jaxrl.core.struct import pytree
from jaxrl.core.types import Columns, Key, PyTree
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import ConfigError
from jaxrl.estimation.episodes import WholeEpisodes
from jaxrl.estimation.fqe import FittedQ
from jaxrl.modules.rl_module import RLModule
from jaxrl.training.rollout import ActorCarry, ActorState, PolicyStep

MAX_ROWS = 2**14
"""Maximum number of rows of one call of the compiled program."""


@pytree
class TargetRows:
    """Target policy at all observations of an episode, `[L+1, ...]`; the last is after its end.

    Attributes:
        obs: Observations as the module sees them.
        log_prob: Log-probability of each recorded action, except in the last row.
        action: `n` probabilities of discrete actions, or K actions of a Box; None if not requested.
    """

    obs: PyTree
    log_prob: Float[Array, " rows"]
    action: Float[Array, "rows ..."] | None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """Policy whose return is estimated.

    Attributes:
        policy_step: Module and connectors.
        actor: Parameters and connector statistics; None if the policy is only checked.
        explore: Whether it samples its actions.
        num_actions: Number of actions that are sampled per observation of a Box's policy.
        compiled: Compiled functions, which copies with other parameters share.
    """

    policy_step: PolicyStep
    actor: ActorState | None
    explore: bool
    num_actions: int = 8
    compiled: dict[Any, Any] = dataclasses.field(default_factory=dict[Any, Any])

    @property
    def module(self) -> RLModule:
        """Module of the policy."""
        return self.policy_step.module

    @property
    def has_probability(self) -> bool:
        """True if the probability, or density, of an action is known."""
        if self.explore:
            return self.module.explores_by_distribution
        return isinstance(self.module.action_space, spaces.Discrete)

    @property
    def has_modeled_actions(self) -> bool:
        """True if a value function of the actions can be fitted."""
        return isinstance(self.module.action_space, spaces.Discrete | spaces.Box)

    def check(self, *, needs_probability: bool, needs_model: bool) -> None:
        """Check that the policy can be estimated.

        Raises:
            ConfigError: If it cannot.
        """
        space = self.module.action_space
        if self.explore and not self.module.explores_by_distribution:
            raise ConfigError(
                f"explore=True has no known probabilities for {type(self.module).__name__}, which "
                "explores in its own way: use explore=False, the policy without exploration."
            )
        if needs_probability and not self.has_probability:
            raise ConfigError(
                f"Importance sampling needs the probability of recorded actions of {space}, which "
                "a policy without exploration has no density of: use the methods dm and fqe, or "
                "explore=True."
            )
        if needs_model and not self.has_modeled_actions:
            raise ConfigError(
                f"The methods dm, dr and fqe need Discrete or Box actions, got {space}: use is, "
                "pdis, wis or wpdis."
            )

    def follow(self, episodes: WholeEpisodes, key: Key, *, needs_actions: bool) -> list[TargetRows]:
        """Compute the policy at the observations of all episodes, in NumPy.

        Args:
            episodes: Episodes with the module's actions.
            key: Key of sampled actions, which is consumed.
            needs_actions: Whether the policy's own actions are needed as well.
        """
        assert self.actor is not None
        longest = int(episodes.lengths.max())
        num_columns = max(1, min(len(episodes.parts), MAX_ROWS // (longest + 1)))
        compute = self.compiled.get(needs_actions)
        if compute is None:
            compute = jax.jit(partial(self._follow_columns, needs_actions=needs_actions))
            self.compiled[needs_actions] = compute
        rows: list[TargetRows] = []
        for first in range(0, len(episodes.parts), num_columns):
            parts = list(episodes.parts[first : first + num_columns])
            blank = [parts[0]] * (num_columns - len(parts))
            columns = _pad_columns([*parts, *blank], longest)
            out = jax.device_get(compute(self.actor, *columns, jax.random.fold_in(key, first)))
            rows += [
                jax.tree.map(lambda x, i=i, part=part: x[: len(part) + 1, i], out)
                for i, part in enumerate(parts)
            ]
        return rows

    def get_model(self, settings: FQESettings) -> FittedQ:
        """Return the value function with some settings."""
        if settings not in self.compiled:
            self.compiled[settings] = FittedQ(self.module, settings)
        return self.compiled[settings]

    def _follow_columns(
        self,
        actor: ActorState,
        obs: PyTree,
        action: PyTree,
        reward: Float[Array, "T B"],
        key: Key,
        *,
        needs_actions: bool,
    ) -> TargetRows:
        """Compute the policy at columns `[T, B]`, each of which is one episode."""
        num_columns = reward.shape[1]
        no_start = jnp.zeros((num_columns,), jnp.bool_)

        def step(
            carry: ActorCarry, row: tuple[PyTree, PyTree, Array, Bool[Array, " B"], Key]
        ) -> tuple[ActorCarry, TargetRows]:
            obs, action, reward, is_first, key = row
            out, seen = self.policy_step.follow(actor, obs, carry, is_first, action)
            rows = TargetRows(
                obs=seen,
                log_prob=self._compute_log_prob(out, seen, action),
                action=self._compute_actions(out, seen, key) if needs_actions else None,
            )
            return self.policy_step.advance(out[Columns.STATE_OUT], reward, no_start), rows

        first = jnp.zeros(reward.shape, jnp.bool_).at[0].set(True)
        keys = jax.random.split(key, len(reward))
        start = self.policy_step.initial_carry(num_columns)
        return jax.lax.scan(step, start, (obs, action, reward, first, keys))[1]

    def _compute_log_prob(
        self, out: dict[str, Array], obs: PyTree, action: PyTree
    ) -> Float[Array, " B"]:
        if not self.has_probability:
            return jnp.zeros(out[Columns.ACTIONS].shape[:1], jnp.float32)
        if self.explore:
            return self.module.action_dist(out[Columns.ACTION_DIST_INPUTS], obs).log_prob(action)
        return jnp.where(out[Columns.ACTIONS] == action, 0.0, -jnp.inf)

    def _compute_actions(
        self, out: dict[str, Array], obs: PyTree, key: Key
    ) -> Float[Array, "B ..."]:
        """Return probabilities `[B, n]` of discrete actions, or K actions `[B, K, ...]` of a Box."""
        space, greedy = self.module.action_space, out[Columns.ACTIONS]
        if isinstance(space, spaces.Discrete):
            if not self.explore:
                return jax.nn.one_hot(greedy, int(space.n), dtype=jnp.float32)
            dist = self.module.action_dist(out[Columns.ACTION_DIST_INPUTS], obs)
            choices = [dist.log_prob(jnp.full_like(greedy, i)) for i in range(int(space.n))]
            return jnp.exp(jnp.stack(choices, axis=-1))
        if not self.explore:
            return greedy[:, None]
        dist = self.module.action_dist(out[Columns.ACTION_DIST_INPUTS], obs)
        keys = jax.random.split(key, self.num_actions)
        return jnp.stack([dist.sample(each) for each in keys], axis=1)


def _pad_columns(parts: list[EpisodePart], longest: int) -> tuple[PyTree, PyTree, np.ndarray]:
    """Lay episodes out as columns `[longest + 1, B]` of observations, actions and rewards.

    Rows after an episode's end repeat its last one.
    """

    def lay(*leaves: np.ndarray) -> np.ndarray:
        rows = np.arange(longest + 1)
        return np.stack([leaf[np.minimum(rows, len(leaf) - 1)] for leaf in leaves], axis=1)

    obs = jax.tree.map(lay, *(part.obs for part in parts))
    action = jax.tree.map(lay, *(part.action for part in parts))
    return obs, action, lay(*(np.asarray(part.reward, np.float32) for part in parts))
