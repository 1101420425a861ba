"""Probe environments: tiny tasks with known values, one for each component that can be broken.

After Andy Jones, "Debugging RL, Without the Agonizing Pain". The first five have variants with
discrete and with continuous actions (`...-continuous-v0`). `value_table` returns the values that a
perfect critic of the optimal policy predicts:

| id | observation | actions | reward | values |
| --- | --- | --- | --- | --- |
| probe-value-v0 | 0 | no effect | 1, one step | 1 |
| probe-obs-value-v0 | random -1 or 1 | no effect | the observation, one step | -1, 1 |
| probe-discount-v0 | 0, then 1 | no effect | 0, then 1 | gamma, 1 |
| probe-action-v0 | 0 | 1, or 0.5 | see below, one step | 1 |
| probe-obs-action-v0 | random -1 or 1 | 0 or 1, or half the observation | see below | 1, 1 |
| probe-multidiscrete-v0 | random -1 or 1 | (0, 0) or (1, 2) | 0.5 per correct part | 1, 1 |
| probe-mask-v0 | random -1 or 1, and a mask | 0 or 2, the legal one | 1; illegal 100 | 1, 1 |
| probe-recall-v0 | -1 or 1, then 0 | the first observation, at the end | 1, after `delay` steps | |
| probe-truncation-v0 | 0 | no effect | 1, truncated at step 10 | 1 / (1 - gamma) |

A correct discrete action earns 1 and a wrong one -1; a continuous action earns
`1 - (action - target)**2`. `probe-truncation-v0` never terminates: a runner that treats truncation
as termination learns 1 + gamma + ... with at most ten terms. In `probe-recall-v0`, a policy without
memory is correct half of the time, whatever it does: its best return is 0.
"""

import dataclasses
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, PyTree, TimeStep
from jaxrl.envs.base import JaxEnv
from jaxrl.errors import EnvError


@pytree
class ProbeParams:
    """Empty: probes have no parameters."""


@pytree
class ProbeState:
    """The observation, and the number of steps since the reset."""

    obs: Float[Array, "*batch 1"]
    num_steps: Int[Array, "*batch"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ValueTable:
    """Observations `[n, 1]`, their values `[n]`, and the correct actions, if there are any."""

    obs: np.ndarray
    values: np.ndarray
    actions: np.ndarray | None = None


class Probe(JaxEnv[ProbeState, ProbeParams]):
    """Base class of probes: one observed number in [-1, 1]; two actions, or one in [-1, 1]."""

    num_steps = 1

    def __init__(self, continuous: bool = False) -> None:
        """Create the probe with discrete or continuous actions."""
        self.continuous = continuous

    @property
    def default_params(self) -> ProbeParams:
        return ProbeParams()

    def observation_space(self, params: ProbeParams) -> gymnasium.Space[Any]:
        return gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def action_space(self, params: ProbeParams) -> gymnasium.Space[Any]:
        if self.continuous:
            return gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        return gymnasium.spaces.Discrete(2)

    def reset(self, key: Key, params: ProbeParams) -> tuple[ProbeState, Float[Array, "1"]]:
        obs = self.first_obs(key)
        return ProbeState(obs=obs, num_steps=jnp.zeros((), jnp.int32)), obs

    def step(
        self, key: Key, state: ProbeState, action: Array, params: ProbeParams
    ) -> tuple[ProbeState, TimeStep]:
        obs = self.next_obs(state.obs)
        num_steps = state.num_steps + 1
        return ProbeState(obs=obs, num_steps=num_steps), TimeStep(
            obs=obs,
            reward=self.reward(state.obs[0], action),
            terminated=num_steps >= self.num_steps,
            truncated=jnp.zeros((), bool),
            info={},
        )

    def first_obs(self, key: Key) -> Float[Array, "1"]:
        """Return the first observation, by default 0."""
        return jnp.zeros((1,), jnp.float32)

    def next_obs(self, obs: Float[Array, "1"]) -> Float[Array, "1"]:
        """Return the successor of an observation, by default the same."""
        return obs

    def reward(self, obs: Float[Array, ""], action: Array) -> Float[Array, ""]:
        """Return the reward, by default 1."""
        return jnp.ones((), jnp.float32)

    def value_table(self, gamma: float) -> ValueTable:
        """Return the values of the optimal policy for a discount factor."""
        return ValueTable(obs=np.zeros((1, 1), np.float32), values=np.ones(1, np.float32))

    def score_action(self, action: Array, target: Array, index: Array) -> Float[Array, ""]:
        """Return an action's reward; `index` is correct if discrete, `target` if continuous."""
        if self.continuous:
            return 1.0 - (action[0] - target) ** 2
        return jnp.where(action == index, 1.0, -1.0).astype(jnp.float32)


def _flip_coin(key: Key) -> Float[Array, "1"]:
    return jnp.where(jax.random.bernoulli(key, jnp.float32(0.5), (1,)), 1.0, -1.0).astype(
        jnp.float32
    )


_BOTH_OBS = np.array([[-1.0], [1.0]], np.float32)


class ProbeValue(Probe):
    """Constant reward of 1: the value head must learn a constant."""

    name = "probe-value-v0"


class ProbeObsValue(Probe):
    """Reward equal to the observation: the value head must use its input."""

    name = "probe-obs-value-v0"

    def first_obs(self, key: Key) -> Float[Array, "1"]:
        return _flip_coin(key)

    def reward(self, obs: Float[Array, ""], action: Array) -> Float[Array, ""]:
        return obs

    def value_table(self, gamma: float) -> ValueTable:
        return ValueTable(obs=_BOTH_OBS, values=_BOTH_OBS[:, 0])


class ProbeDiscount(Probe):
    """Reward of 1 after two steps: the first value must be discounted."""

    name = "probe-discount-v0"
    num_steps = 2

    def next_obs(self, obs: Float[Array, "1"]) -> Float[Array, "1"]:
        return jnp.ones((1,), jnp.float32)

    def reward(self, obs: Float[Array, ""], action: Array) -> Float[Array, ""]:
        return obs

    def value_table(self, gamma: float) -> ValueTable:
        obs = np.array([[0.0], [1.0]], np.float32)
        return ValueTable(obs=obs, values=np.array([gamma, 1.0], np.float32))


class ProbeAction(Probe):
    """Reward that depends on the action alone: the policy must improve."""

    name = "probe-action-v0"

    def reward(self, obs: Float[Array, ""], action: Array) -> Float[Array, ""]:
        return self.score_action(action, jnp.asarray(0.5, jnp.float32), jnp.asarray(1, jnp.int32))

    def value_table(self, gamma: float) -> ValueTable:
        best = np.array([[0.5]], np.float32) if self.continuous else np.array([1], np.int32)
        obs, values = np.zeros((1, 1), np.float32), np.ones(1, np.float32)
        return ValueTable(obs=obs, values=values, actions=best)


class ProbeObsAction(Probe):
    """Reward that depends on observation and action: the policy must use its input."""

    name = "probe-obs-action-v0"

    def first_obs(self, key: Key) -> Float[Array, "1"]:
        return _flip_coin(key)

    def reward(self, obs: Float[Array, ""], action: Array) -> Float[Array, ""]:
        return self.score_action(action, 0.5 * obs, (obs > 0).astype(jnp.int32))

    def value_table(self, gamma: float) -> ValueTable:
        best = 0.5 * _BOTH_OBS if self.continuous else np.array([0, 1], np.int32)
        return ValueTable(obs=_BOTH_OBS, values=np.ones(2, np.float32), actions=best)


class ProbeMultiDiscrete(Probe):
    """Two discrete actions, with two and three values, each worth 0.5 if correct."""

    name = "probe-multidiscrete-v0"

    def __init__(self) -> None:
        """Create the probe; it has no continuous variant."""
        super().__init__(continuous=False)

    def action_space(self, params: ProbeParams) -> gymnasium.spaces.MultiDiscrete:
        return gymnasium.spaces.MultiDiscrete([2, 3])

    def first_obs(self, key: Key) -> Float[Array, "1"]:
        return _flip_coin(key)

    def reward(self, obs: Float[Array, ""], action: Array) -> Float[Array, ""]:
        right = jnp.where(obs > 0, jnp.array([1, 2]), jnp.array([0, 0]))
        return jnp.mean((action == right).astype(jnp.float32))

    def value_table(self, gamma: float) -> ValueTable:
        best = np.array([[0, 0], [1, 2]], np.int32)
        return ValueTable(obs=_BOTH_OBS, values=np.ones(2, np.float32), actions=best)


class ProbeMask(Probe):
    """Three actions, of which the illegal one pays best: a policy that ignores the mask takes it.

    The observation is a Dict of the `action_mask` and `obs`, which determines the correct action.
    """

    name = "probe-mask-v0"

    def __init__(self) -> None:
        """Create the probe; it has no continuous variant."""
        super().__init__(continuous=False)

    def observation_space(self, params: ProbeParams) -> gymnasium.spaces.Dict:
        box = super().observation_space(params)
        return gymnasium.spaces.Dict({"action_mask": gymnasium.spaces.MultiBinary(3), "obs": box})

    def action_space(self, params: ProbeParams) -> gymnasium.Space[Any]:
        return gymnasium.spaces.Discrete(3)

    def reset(self, key: Key, params: ProbeParams) -> tuple[ProbeState, PyTree]:
        state, obs = super().reset(key, params)
        return state, self.add_mask(obs)

    def step(
        self, key: Key, state: ProbeState, action: Array, params: ProbeParams
    ) -> tuple[ProbeState, TimeStep]:
        state, step = super().step(key, state, action, params)
        return state, dataclasses.replace(step, obs=self.add_mask(step.obs))

    def first_obs(self, key: Key) -> Float[Array, "1"]:
        return _flip_coin(key)

    def add_mask(self, obs: Float[Array, "1"]) -> dict[str, Array]:
        """Return the observation together with its mask."""
        legal = jnp.arange(3, dtype=jnp.int32) != self.get_illegal_action(obs[0])
        return {"action_mask": legal.astype(jnp.int8), "obs": obs}

    def get_illegal_action(self, obs: Float[Array, ""]) -> Int[Array, ""]:
        """Return the illegal action."""
        return jnp.where(obs > 0, 0, 2).astype(jnp.int32)

    def reward(self, obs: Float[Array, ""], action: Array) -> Float[Array, ""]:
        wrong = jnp.where(action == self.get_illegal_action(obs), 100.0, -1.0)
        return jnp.where(action == 2 - self.get_illegal_action(obs), 1.0, wrong).astype(jnp.float32)

    def value_table(self, gamma: float) -> ValueTable:
        best = np.array([0, 2], np.int32)
        return ValueTable(obs=_BOTH_OBS, values=np.ones(2, np.float32), actions=best)


class ProbeTruncation(Probe):
    """Endless rewards of 1, truncated every ten steps: the value must look beyond the cut."""

    name = "probe-truncation-v0"
    max_episode_steps = 10

    def step(
        self, key: Key, state: ProbeState, action: Array, params: ProbeParams
    ) -> tuple[ProbeState, TimeStep]:
        state, step = super().step(key, state, action, params)
        return state, dataclasses.replace(step, terminated=jnp.zeros((), bool))

    def value_table(self, gamma: float) -> ValueTable:
        obs = np.zeros((1, 1), np.float32)
        return ValueTable(obs=obs, values=np.array([1.0 / (1.0 - gamma)], np.float32))


class ProbeRecall(Probe):
    """Correct action determined by the first observation, `delay` steps earlier.

    The observation is -1 or 1 at the start and 0 afterwards. Only the last action of an episode
    counts: it earns 1 if it is 0 after a -1 or 1 after a 1, otherwise -1.
    """

    name = "probe-recall-v0"
    has_hidden_state = True

    def __init__(self, delay: int = 8) -> None:
        """Create the probe with `delay` observations of 0 after the first one.

        Raises:
            EnvError: If `delay` is not a positive integer.
        """
        if isinstance(delay, bool) or not isinstance(delay, int) or delay < 1:
            raise EnvError(f"delay={delay!r} must be a positive integer.")
        super().__init__(continuous=False)
        self.delay = delay

    def first_obs(self, key: Key) -> Float[Array, "1"]:
        return _flip_coin(key)

    def step(
        self, key: Key, state: ProbeState, action: Array, params: ProbeParams
    ) -> tuple[ProbeState, TimeStep]:
        ends = state.num_steps >= self.delay
        right = jnp.where(action == (state.obs[0] > 0), 1.0, -1.0)
        return dataclasses.replace(state, num_steps=state.num_steps + 1), TimeStep(
            obs=jnp.zeros((1,), jnp.float32),
            reward=jnp.where(ends, right, 0.0).astype(jnp.float32),
            terminated=ends,
            truncated=jnp.zeros((), bool),
            info={},
        )
