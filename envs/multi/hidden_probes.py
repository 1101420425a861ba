"""Probes of what an agent's observation does not tell: a global state, the past, an opponent."""

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array

from jaxrl.core.struct import replace
from jaxrl.core.types import Key, PyTree
from jaxrl.envs.multi.base import Acting, MultiStart
from jaxrl.envs.multi.probes import (
    Flags,
    MultiProbe,
    MultiProbeParams,
    MultiProbeState,
    Obs,
    Rewards,
    make_row,
    make_table,
    score_action,
)
from jaxrl.envs.probes import ValueTable


class ProbeState(MultiProbe):
    """One step that earns a coin for both agents; they observe 0, the global state is the coin."""

    name = "probe-state-v0"
    acting: Acting | None = "all"
    max_acting = None
    num_observed = 1

    def state_space(self, params: MultiProbeParams) -> gymnasium.Space[Any]:
        return spaces.Box(-1.0, 1.0, (1,), np.float32)

    def global_state(self, state: MultiProbeState, params: MultiProbeParams) -> Array:
        return state.drawn[:1]

    def observe(self, state: MultiProbeState) -> Obs:
        return {"a": make_row(0), "b": make_row(0)}

    def find_acting(self, state: MultiProbeState) -> Flags:
        return {"a": jnp.ones((), bool), "b": jnp.ones((), bool)}

    def play(self, key: Key, state: MultiProbeState, actions: dict[str, PyTree]) -> Any:
        return state.kept, {"a": state.drawn[0], "b": state.drawn[0]}

    def value_tables(self, gamma: float) -> dict[str, ValueTable]:
        """Return the values by global state; by observation, the value is 0."""
        table = make_table({(-1.0,): -1.0, (1.0,): 1.0})
        return {"a": table, "b": table}


class ProbeRecallTurns(MultiProbe):
    """A coin at an agent's first turn, asked for at its third: 1 if it is recalled, else -1.

    Observed are the coin or 0, and the turn, by 2. Who waits observes random coins, so that a
    memory that is moved off turn loses the right one. Without memory, the best return is 0.
    """

    name = "probe-recall-turns-v0"
    num_steps = 6

    def reset(self, key: Key, params: MultiProbeParams) -> tuple[MultiProbeState, MultiStart]:
        key_coins, key_noise = jax.random.split(key)
        state, _ = super().reset(key_coins, params)
        state = replace(state, kept=self.draw(key_noise))
        return state, MultiStart(obs=self.observe(state), acts=self.find_acting(state))

    def observe(self, state: MultiProbeState) -> Obs:
        acts = self.find_acting(state)
        obs: Obs = {}
        for index, agent in enumerate(self.possible_agents):
            turn = jnp.minimum((state.time + 1 - index) // 2, 2)
            own = jnp.where(turn == 0, state.drawn[index], 0.0)
            obs[agent] = make_row(jnp.where(acts[agent], own, state.kept[index]), turn / 2)
        return obs

    def play(self, key: Key, state: MultiProbeState, actions: dict[str, PyTree]) -> Any:
        rewards: Rewards = {}
        for index, agent in enumerate(self.possible_agents):
            answers = state.time == 4 + index
            score = score_action(actions[agent], state.drawn[index])
            rewards[agent] = jnp.where(answers, score, 0.0)
        return self.draw(key), rewards

    def value_tables(self, gamma: float) -> dict[str, ValueTable]:
        """Return the values of a policy that recalls."""
        rows = {
            **{(coin, 0.0): gamma**2 for coin in (-1.0, 1.0)},
            (0.0, 0.5): gamma,
            (0.0, 1.0): 1.0,
        }
        return {"a": make_table(rows), "b": make_table(rows)}


class ProbeOpponent(MultiProbe):
    """Three steps that earn a minus the action of b, by 4, and b that action.

    For a frozen b that plays one action throughout an episode, the values of a are known. Observed
    is the number of steps left, by 3.
    """

    name = "probe-opponent-v0"
    acting: Acting | None = "all"
    max_acting = None
    num_steps = 3
    num_observed = 1
    num_actions = 5

    def observe(self, state: MultiProbeState) -> Obs:
        left = make_row((self.num_steps - state.time) / 3)
        return {"a": left, "b": left}

    def find_acting(self, state: MultiProbeState) -> Flags:
        return {"a": jnp.ones((), bool), "b": jnp.ones((), bool)}

    def play(self, key: Key, state: MultiProbeState, actions: dict[str, PyTree]) -> Any:
        amount = actions["b"].astype(jnp.float32) / 4
        return state.kept, {"a": -amount, "b": amount}

    def value_tables(self, gamma: float, constant: int = 4) -> dict[str, ValueTable]:
        """Return the values where b plays `constant`, by default its own optimum."""
        sums = {left: sum(gamma**k for k in range(left)) * constant / 4 for left in (1, 2, 3)}
        return {
            "a": make_table({(left / 3,): -total for left, total in sums.items()}),
            "b": make_table(
                {(left / 3,): total for left, total in sums.items()}, lambda left: constant
            ),
        }
