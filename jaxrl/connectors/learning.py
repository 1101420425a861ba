"""Learner connectors: reward clipping and reward normalization."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl.connectors.base import LearnerConnector
from jaxrl.core.struct import replace
from jaxrl.core.types import Key, PyTree, Rollout
from jaxrl.ops.statistics import RunningMoments


@dataclasses.dataclass(frozen=True)
class ClipRewards(LearnerConnector):
    """Clips rewards to `[low, high]`, or replaces them by their sign if `low` is None."""

    low: float | None
    high: float | None

    def __call__(
        self, state: PyTree, per_env: PyTree, rollout: Rollout, axis_name: str | None
    ) -> tuple[PyTree, PyTree, Rollout]:
        del axis_name
        return state, per_env, replace(rollout, reward=self.clip(rollout.reward))

    def clip(self, reward: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Return clipped rewards."""
        return jnp.sign(reward) if self.low is None else jnp.clip(reward, self.low, self.high)


@dataclasses.dataclass(frozen=True)
class NormalizeRewards(LearnerConnector):
    """Divides rewards by the running standard deviation of the discounted return so far.

    As in OpenAI baselines' VecNormalize, the running sum `R_t = gamma R_{t-1} + r_t` is reset with
    each episode; its standard deviation, without its mean, scales the reward, which is clipped to
    ±`clip`.

    Args:
        gamma: Discount factor of the running sum; None for the run's current one.
        clip: Bound of the output.
    """

    gamma: float | Float[Array, ""] | None = None
    clip: float = 10.0

    def at(self, values: Mapping[str, Float[Array, ""]]) -> "NormalizeRewards":
        return self if self.gamma is not None else dataclasses.replace(self, gamma=values["gamma"])

    def init(self, key: Key) -> RunningMoments:
        del key
        return RunningMoments.zeros(())

    def init_per_env(self, num_envs: int) -> Float[Array, " B"]:
        return jnp.zeros((num_envs,), jnp.float32)

    def __call__(
        self,
        state: RunningMoments,
        per_env: Float[Array, " B"],
        rollout: Rollout,
        axis_name: str | None,
    ) -> tuple[RunningMoments, Float[Array, " B"], Rollout]:
        gamma = self.gamma
        assert gamma is not None  # set by `at`

        def step(
            running: Float[Array, " B"], row: tuple[Array, Array, Array, Array]
        ) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
            reward, is_first, ended, is_transition = row
            # An episode may begin without a previous end: after a resume, in a restarted actor.
            after = gamma * jnp.where(is_first, 0.0, running) + reward
            after = jnp.where(is_transition, after, running)  # no time passes in other rows
            return jnp.where(ended, 0.0, after), after

        ended = rollout.terminated | rollout.truncated
        rows = rollout.reward, rollout.is_first, ended, rollout.mask
        per_env, returns = jax.lax.scan(step, per_env, rows)
        state = state.update(returns, rollout.mask, axis_name)
        scaled = jnp.clip(rollout.reward / (state.std() + 1e-8), -self.clip, self.clip)
        return state, per_env, replace(rollout, reward=scaled)


def default_learner_connectors(
    clip_rewards: bool | float | tuple[float, float] | None, normalize_rewards: bool
) -> tuple[LearnerConnector, ...]:
    """Return the default connectors for the settings: clipping first, then normalization."""
    connectors: list[LearnerConnector] = []
    if clip_rewards is True:
        connectors.append(ClipRewards(None, None))
    elif isinstance(clip_rewards, (int, float)) and clip_rewards is not False:
        connectors.append(ClipRewards(-float(clip_rewards), float(clip_rewards)))
    elif isinstance(clip_rewards, (tuple, list)):
        connectors.append(ClipRewards(float(clip_rewards[0]), float(clip_rewards[1])))
    if normalize_rewards:
        connectors.append(NormalizeRewards())
    return tuple(connectors)
