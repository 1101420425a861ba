"""Probes of what only several agents can break, each with known values.

As those of `jaxrl.envs.probes`: `value_tables` returns, for every agent, the values that a perfect
critic of the optimal policy predicts. Gamma counts an agent's own actions.

| id | what happens | mistake that it shows |
| --- | --- | --- |
| probe-turns-v0 | turns; a is paid for its action at b's step | a reward in the row of the step |
| probe-turns-gamma-v0 | 2, 3 or 4 steps between turns of a | gamma counted in steps |
| probe-cut-v0 | 5 turns, 3 and 2 rows an episode | a row lost or doubled at a cut |
| probe-death-v0 | b dies; then a is paid | rows of the dead, or values after death |
| probe-join-v0 | b joins, leaves, comes again | a bootstrap from the wrong observation |
| probe-teams-v0 | 1 to a team, -1 to the other | rows or rewards of the wrong team |
| probe-agents-v0 | the action is the agent's index | a wrong order of agents |
| probe-mask-turns-v0 | masks by agent and turn; illegal: -1 | a mask of another turn |
| probe-state-v0 | a reward that only the global state tells | a critic that does not see it |
| probe-recall-turns-v0 | a signal, and the answer two turns later | a memory moved off turn |
| probe-opponent-v0 | minus what the opponent plays | an opponent that changes or learns |
"""

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Float, Int

from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Key, PyTree
from jaxrl.envs.multi.base import ALL, Acting, MultiAgentJaxEnv, MultiStart, MultiStep, make_no_ends
from jaxrl.envs.probes import ValueTable


@pytree
class MultiProbeParams:
    """Empty: probes have no parameters."""


@pytree
class MultiProbeState:
    """The number of steps, what was drawn at the reset, and what a probe keeps from step to step."""

    time: Int[Array, ""]
    drawn: Float[Array, " n"]
    kept: Float[Array, " n"]


Obs = dict[str, PyTree]
Flags = dict[str, Bool[Array, ""]]
Rewards = dict[str, Float[Array, ""]]


class MultiProbe(MultiAgentJaxEnv[MultiProbeState, MultiProbeParams]):
    """Base class of probes: agents a and b, observations in [-1, 1], an end after `num_steps`."""

    possible_agents = ("a", "b")
    acting: Acting | None = "some"
    max_acting: int | None = 1
    num_steps = 1
    num_observed = 2
    num_actions = 2
    num_drawn = 2
    """Length of `drawn` and `kept`, one for each agent."""

    @property
    def default_params(self) -> MultiProbeParams:
        return MultiProbeParams()

    def observation_space(self, agent: str, params: MultiProbeParams) -> gymnasium.Space[Any]:
        return spaces.Box(-1.0, 1.0, (self.num_observed,), np.float32)

    def action_space(self, agent: str, params: MultiProbeParams) -> gymnasium.Space[Any]:
        return spaces.Discrete(self.num_actions)

    def reset(self, key: Key, params: MultiProbeParams) -> tuple[MultiProbeState, MultiStart]:
        state = MultiProbeState(
            time=jnp.zeros((), jnp.int32),
            drawn=self.draw(key),
            kept=jnp.zeros((self.num_drawn,), jnp.float32),
        )
        return state, MultiStart(obs=self.observe(state), acts=self.find_acting(state))

    def step(
        self,
        key: Key,
        state: MultiProbeState,
        actions: dict[str, PyTree],
        params: MultiProbeParams,
    ) -> tuple[MultiProbeState, MultiStep]:
        """Take the action of whoever acts."""
        kept, reward = self.play(key, state, actions)
        after = replace(state, time=state.time + 1, kept=kept)
        never = make_no_ends(self)
        terminated, truncated = self.find_ends(after)
        return after, MultiStep(
            obs=self.observe(after),
            acts=self.find_acting(after),
            reward=reward,
            terminated={**never, **terminated},
            truncated={**never, **truncated},
        )

    def draw(self, key: Key) -> Float[Array, " n"]:
        """Draw what differs between episodes, by default -1 or 1 for each agent."""
        coins = jax.random.bernoulli(key, jnp.float32(0.5), (self.num_drawn,))
        return jnp.where(coins, 1.0, -1.0).astype(jnp.float32)

    def observe(self, state: MultiProbeState) -> Obs:
        """Return every agent's observation."""
        raise NotImplementedError

    def find_acting(self, state: MultiProbeState) -> Flags:
        """Return who acts, by default in turns from the first agent on."""
        count = len(self.possible_agents)
        return {
            agent: state.time % count == index for index, agent in enumerate(self.possible_agents)
        }

    def play(
        self, key: Key, state: MultiProbeState, actions: dict[str, PyTree]
    ) -> tuple[Float[Array, " n"], Rewards]:
        """Return what is kept for the next step, and the rewards."""
        raise NotImplementedError

    def find_ends(self, state: MultiProbeState) -> tuple[Flags, Flags]:
        """Return who is terminated and who is truncated after a step."""
        return {ALL: state.time >= self.num_steps}, {}

    def value_tables(self, gamma: float) -> dict[str, ValueTable]:
        """Return the values of the optimal policy for a discount factor, by agent."""
        raise NotImplementedError


def make_row(*numbers: Any) -> Float[Array, " n"]:
    """Return numbers as one float32 vector."""
    return jnp.stack([jnp.asarray(number, jnp.float32) for number in numbers])


def make_table(
    rows: Mapping[tuple[float, ...], float], actions: Callable[..., int] | None = None
) -> ValueTable:
    """Return a table of values by observation; `actions` gives the correct action for each."""
    obs = np.array(list(rows), np.float32)
    best = None if actions is None else np.array([actions(*row) for row in rows], np.int32)
    return ValueTable(obs=obs, values=np.array(list(rows.values()), np.float32), actions=best)


def score_action(action: Array, coin: Array) -> Float[Array, ""]:
    """Return 1 for action 1 after a 1 and 0 after a -1, else -1."""
    return jnp.where(action == (coin > 0), 1.0, -1.0).astype(jnp.float32)


class ProbeTurns(MultiProbe):
    """Two turns each; a is paid for its action at the step of b, and b half as much at its own.

    Observed are a coin, the turn, and who one is. The correct action is that of the coin.
    """

    name = "probe-turns-v0"
    num_steps = 4
    num_observed = 3

    def observe(self, state: MultiProbeState) -> Obs:
        return {
            "a": make_row(state.drawn[0], jnp.minimum((state.time + 1) // 2, 1), 0),
            "b": make_row(state.drawn[1], jnp.minimum(state.time // 2, 1), 1),
        }

    def play(self, key: Key, state: MultiProbeState, actions: dict[str, PyTree]) -> Any:
        is_a = state.time % 2 == 0
        owed = jnp.where(is_a, score_action(actions["a"], state.drawn[0]), 0.0)
        own = jnp.where(is_a, 0.0, 0.5 * score_action(actions["b"], state.drawn[1]))
        return make_row(owed, 0), {"a": state.kept[0], "b": own}

    def value_tables(self, gamma: float) -> dict[str, ValueTable]:
        def correct(coin: float, turn: float, agent: float) -> int:
            return int(coin > 0)

        tables: dict[str, ValueTable] = {}
        for index, (agent, pay) in enumerate((("a", 1.0), ("b", 0.5))):
            rows = {
                (coin, float(turn), float(index)): pay * (1.0 + gamma if turn == 0 else 1.0)
                for coin in (-1.0, 1.0)
                for turn in (0, 1)
            }
            tables[agent] = make_table(rows, correct)
        return tables


class ProbeTurnsGamma(MultiProbe):
    """Turns of a at the first and the last step; b acts in the one to three steps in between.

    Both earn 1 at the last step. Observed are a's turn or the number of b's turns left, by 4, and
    who one is.
    """

    name = "probe-turns-gamma-v0"

    def draw(self, key: Key) -> Float[Array, " n"]:
        gap = jax.random.randint(key, (), 2, 5, jnp.int32)
        return make_row(gap, gap)

    def observe(self, state: MultiProbeState) -> Obs:
        left = jnp.clip(state.drawn[1] - state.time, 0, 4) / 4
        return {"a": make_row(state.time > 0, 0), "b": make_row(left, 1)}

    def find_acting(self, state: MultiProbeState) -> Flags:
        is_a = (state.time == 0) | (state.time == state.drawn[0])
        return {"a": is_a, "b": ~is_a}

    def play(self, key: Key, state: MultiProbeState, actions: dict[str, PyTree]) -> Any:
        last = (state.time == state.drawn[0]).astype(jnp.float32)
        return state.kept, {"a": last, "b": last}

    def find_ends(self, state: MultiProbeState) -> tuple[Flags, Flags]:
        return {ALL: state.time > state.drawn[0]}, {}

    def value_tables(self, gamma: float) -> dict[str, ValueTable]:
        return {
            "a": make_table({(0.0, 0.0): gamma, (1.0, 0.0): 1.0}),
            "b": make_table({(left / 4, 1.0): gamma ** (left - 1) for left in (1, 2, 3)}),
        }


class ProbeCut(MultiProbe):
    """Five turns, three of a and two of b; each earns 1 for an action one step later, or at the end.

    An episode has exactly three rows of a and two of b, wherever recording is cut. Observed is the
    number of the turn, from 0 to 1, and who one is.
    """

    name = "probe-cut-v0"
    num_steps = 5
    rows_per_episode: Mapping[str, int] = {"a": 3, "b": 2}

    def observe(self, state: MultiProbeState) -> Obs:
        a = jnp.minimum((state.time + 1) // 2, 2)
        return {"a": make_row(a / 2, 0), "b": make_row(jnp.minimum(state.time // 2, 1), 1)}

    def play(self, key: Key, state: MultiProbeState, actions: dict[str, PyTree]) -> Any:
        is_b = state.time % 2 == 1
        last = state.time == self.num_steps - 1
        a = is_b | last
        b = ~is_b & (state.time > 0)
        return state.kept, {"a": a.astype(jnp.float32), "b": b.astype(jnp.float32)}

    def value_tables(self, gamma: float) -> dict[str, ValueTable]:
        a = {(0.0, 0.0): 1 + gamma + gamma**2, (0.5, 0.0): 1 + gamma, (1.0, 0.0): 1.0}
        return {"a": make_table(a), "b": make_table({(0.0, 1.0): 1 + gamma, (1.0, 1.0): 1.0})}


class ProbeDeath(MultiProbe):
    """Death of b after one to four steps, each of which it earns 1; then a earns 1 until step six.

    What the dead would observe and earn is 1 and 100. Observed are the steps to b's death, by 6,
    and the steps to the end, by 6, or 1 for b.
    """

    name = "probe-death-v0"
    acting: Acting | None = "all"
    max_acting = None
    num_steps = 6

    def draw(self, key: Key) -> Float[Array, " n"]:
        death = jax.random.randint(key, (), 1, 5, jnp.int32)
        return make_row(death, death)

    def observe(self, state: MultiProbeState) -> Obs:
        life = jnp.maximum(state.drawn[1] - state.time, 0) / 6
        end = jnp.maximum(self.num_steps - state.time, 0) / 6
        dead = jnp.where(state.time > state.drawn[1], 1.0, life)
        return {"a": make_row(life, end), "b": make_row(dead, 1)}

    def find_acting(self, state: MultiProbeState) -> Flags:
        return {"a": jnp.ones((), bool), "b": state.time < state.drawn[1]}

    def play(self, key: Key, state: MultiProbeState, actions: dict[str, PyTree]) -> Any:
        lives = state.time < state.drawn[1]
        a = jnp.where(lives, 0.0, 1.0).astype(jnp.float32)
        return state.kept, {"a": a, "b": jnp.where(lives, 1.0, 100.0).astype(jnp.float32)}

    def find_ends(self, state: MultiProbeState) -> tuple[Flags, Flags]:
        return {"b": state.time == state.drawn[1], ALL: state.time >= self.num_steps}, {}

    def value_tables(self, gamma: float) -> dict[str, ValueTable]:
        a = {
            (life / 6, end / 6): sum(gamma**k for k in range(life, end))
            for life in range(5)
            for end in range(life + 1, 7)
            if (life > 0 and 1 <= life + 6 - end <= 4) or (life == 0 and end <= 5)
        }
        b = {(life / 6, 1.0): sum(gamma**k for k in range(life)) for life in range(1, 5)}
        return {"a": make_table(a), "b": make_table(b)}


class ProbeJoin(MultiProbe):
    """Rewards of 1 for whoever is present; b joins at step 2, leaves at 5 and is back from 7 on.

    Nobody is terminated: b is truncated where it leaves, and the episode at step 10, so all values
    are those of endless rewards. While b is away, it would observe 1 and earn -100.
    """

    name = "probe-join-v0"
    acting: Acting | None = "all"
    max_acting = None
    max_episode_steps = 10
    num_observed = 1

    def observe(self, state: MultiProbeState) -> Obs:
        here = self._is_here(state.time) | (state.time == 5)
        return {"a": make_row(0), "b": make_row(jnp.where(here, 0.0, 1.0))}

    def find_acting(self, state: MultiProbeState) -> Flags:
        return {"a": jnp.ones((), bool), "b": self._is_here(state.time)}

    def play(self, key: Key, state: MultiProbeState, actions: dict[str, PyTree]) -> Any:
        b = jnp.where(self._is_here(state.time), 1.0, -100.0).astype(jnp.float32)
        return state.kept, {"a": jnp.ones((), jnp.float32), "b": b}

    def find_ends(self, state: MultiProbeState) -> tuple[Flags, Flags]:
        return {}, {"b": state.time == 5}

    def value_tables(self, gamma: float) -> dict[str, ValueTable]:
        endless = make_table({(0.0,): 1.0 / (1.0 - gamma)})
        return {"a": endless, "b": endless}

    @staticmethod
    def _is_here(time: Int[Array, ""]) -> Bool[Array, ""]:
        return ((time >= 2) & (time < 5)) | (time >= 7)


class ProbeTeams(MultiProbe):
    """One step that earns 1 for the red team and -1 for the blue one; all observe the same.

    The teams are of unequal size, so that no reversal or rotation of the agents keeps them.
    """

    name = "probe-teams-v0"
    possible_agents = ("a", "b", "c", "d")
    teams: Mapping[str, tuple[str, ...]] = {"red": ("a", "b", "d"), "blue": ("c",)}
    acting: Acting | None = "all"
    max_acting = None
    num_observed = 1

    def observe(self, state: MultiProbeState) -> Obs:
        return dict.fromkeys(self.possible_agents, make_row(0))

    def find_acting(self, state: MultiProbeState) -> Flags:
        return dict.fromkeys(self.possible_agents, jnp.ones((), bool))

    def play(self, key: Key, state: MultiProbeState, actions: dict[str, PyTree]) -> Any:
        red = self.teams["red"]
        pays = {agent: 1.0 if agent in red else -1.0 for agent in self.possible_agents}
        return state.kept, {agent: jnp.asarray(pay, jnp.float32) for agent, pay in pays.items()}

    def value_tables(self, gamma: float) -> dict[str, ValueTable]:
        red = self.teams["red"]
        return {
            agent: make_table({(0.0,): 1.0 if agent in red else -1.0})
            for agent in self.possible_agents
        }


class ProbeAgents(MultiProbe):
    """One step in which an agent's index is its correct action, worth 1; others cost 1.

    The agent of index i observes i + 1 zeros and has i + 2 actions. Their names are not in order.
    """

    name = "probe-agents-v0"
    possible_agents = ("zulu", "mike", "alpha")
    acting: Acting | None = "all"
    max_acting = None

    def observation_space(self, agent: str, params: MultiProbeParams) -> gymnasium.Space[Any]:
        size = self.possible_agents.index(agent) + 1
        return spaces.Box(-1.0, 1.0, (size,), np.float32)

    def action_space(self, agent: str, params: MultiProbeParams) -> gymnasium.Space[Any]:
        return spaces.Discrete(self.possible_agents.index(agent) + 2)

    def observe(self, state: MultiProbeState) -> Obs:
        return {
            agent: jnp.zeros((index + 1,), jnp.float32)
            for index, agent in enumerate(self.possible_agents)
        }

    def find_acting(self, state: MultiProbeState) -> Flags:
        return dict.fromkeys(self.possible_agents, jnp.ones((), bool))

    def play(self, key: Key, state: MultiProbeState, actions: dict[str, PyTree]) -> Any:
        return state.kept, {
            agent: jnp.where(actions[agent] == index, 1.0, -1.0).astype(jnp.float32)
            for index, agent in enumerate(self.possible_agents)
        }

    def value_tables(self, gamma: float) -> dict[str, ValueTable]:
        return {
            agent: make_table({(0.0,) * (index + 1): 1.0}, lambda *obs, index=index: index)
            for index, agent in enumerate(self.possible_agents)
        }


LEGAL = np.array([[[1, 1, 0, 0], [0, 0, 1, 1]], [[0, 1, 1, 0], [1, 0, 0, 1]]], np.int8)
"""Masks of the mask probe by agent and turn."""


class ProbeMaskTurns(MultiProbe):
    """Two turns each with masks that differ by agent and turn; every legal action earns 1.

    An illegal action costs 1 and ends the episode. Who waits sees the mask of its next turn.
    """

    name = "probe-mask-turns-v0"
    num_steps = 4
    num_actions = 4

    def observation_space(self, agent: str, params: MultiProbeParams) -> spaces.Dict:
        box = super().observation_space(agent, params)
        return spaces.Dict({"action_mask": spaces.MultiBinary(4), "obs": box})

    def observe(self, state: MultiProbeState) -> Obs:
        turns = self._find_turns(state)
        return {
            agent: {"action_mask": jnp.asarray(LEGAL)[index, turn], "obs": make_row(turn, index)}
            for index, (agent, turn) in enumerate(zip(("a", "b"), turns, strict=True))
        }

    def play(self, key: Key, state: MultiProbeState, actions: dict[str, PyTree]) -> Any:
        turns, acts = self._find_turns(state), self.find_acting(state)
        rewards: Rewards = {}
        failed = jnp.zeros((), bool)
        for index, agent in enumerate(self.possible_agents):
            legal = jnp.asarray(LEGAL)[index, turns[index], actions[agent]] > 0
            pay = jnp.where(acts[agent], jnp.where(legal, 1.0, -1.0), 0.0)
            rewards[agent] = pay.astype(jnp.float32)
            failed = failed | (acts[agent] & ~legal)
        return make_row(failed, 0), rewards

    def find_ends(self, state: MultiProbeState) -> tuple[Flags, Flags]:
        return {ALL: (state.time >= self.num_steps) | (state.kept[0] > 0)}, {}

    def value_tables(self, gamma: float) -> dict[str, ValueTable]:
        return {
            agent: make_table(
                {(0.0, float(index)): 1.0 + gamma, (1.0, float(index)): 1.0},
                lambda turn, index: int(np.argmax(LEGAL[int(index), int(turn)])),
            )
            for index, agent in enumerate(self.possible_agents)
        }

    @staticmethod
    def _find_turns(state: MultiProbeState) -> tuple[Array, Array]:
        return jnp.minimum((state.time + 1) // 2, 1), jnp.minimum(state.time // 2, 1)


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
    has_hidden_state = True
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
