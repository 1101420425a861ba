"""Games of a league of several learners, counted in the compiled program."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from jaxrl.config.agent_mapping import DRAWN
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import PyTree
from jaxrl.training.agent_rows import AgentRows
from jaxrl.training.train_state import TrainState


@pytree
class LeagueTally:
    """Games of all players of a league by slot, and when its learners were last changed.

    Attributes:
        games: Numbers of games won, drawn and lost by each player against each other one. Both
            have every game: `games[a, b]` is `games[b, a]` in reverse.
        recent: Games of each learner in the two latest windows, the older one first.
        slots: Slot of each learner.
        since: Environment steps of the run since each learner's latest snapshot, modulo 2**32.
        last_round: Time of the latest round of population based training.
        first: First learner state and connectors' statistics of the learners that return to them.
    """

    games: Int[Array, "S S 3"]
    recent: Int[Array, "L 2 S 3"]
    slots: Int[Array, " L"]
    since: UInt32[Array, " L"]
    last_round: UInt32[Array, ""]
    first: dict[str, PyTree]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LeaguePlayers:
    """Players of a league of several learners, as its program is built for them.

    Attributes:
        learners: Ids of the learners, in the order of `LeagueTally.slots`.
        slots: Slot of each.
        first_versions: Learner whose first parameters each opponent of the start has, by its id.
        returning: Learners that may return to their first parameters.
        weights: Weight of each slot in each learner's Draw at the start of a run.
    """

    learners: tuple[str, ...]
    slots: tuple[int, ...]
    first_versions: Mapping[str, str]
    returning: tuple[str, ...]
    weights: Float[np.ndarray, "D S"]

    def init(self, num_slots: int, modules: Mapping[str, TrainState]) -> LeagueTally:
        """Return the tally of no games, given the initial states of the learners."""
        number = len(self.learners)
        return LeagueTally(
            games=jnp.zeros((num_slots, num_slots, 3), jnp.int32),
            recent=jnp.zeros((number, 2, num_slots, 3), jnp.int32),
            slots=jnp.asarray(self.slots, jnp.int32),
            since=jnp.zeros((number,), jnp.uint32),
            last_round=jnp.zeros((), jnp.uint32),
            first={m: jax.tree.map(jnp.copy, get_learned(modules[m])) for m in self.returning},
        )

    def list_counted(self, rows: AgentRows, num_envs: int) -> np.ndarray:
        """Return the environment and an agent of each copy whose games count, int32 `[C, 2]`.

        It is the agent that is drawn, and of two learners the second.
        """
        found: list[tuple[int, int]] = []
        for env in range(num_envs):
            pattern = rows.patterns[env % len(rows.patterns)]
            one, other = (pattern[agent] for agent in rows.agents)
            if one != other:
                found.append((env, 0 if one == DRAWN else 1))
        return np.array(found, np.int32).reshape(-1, 2)

    def find_met(self, rows: AgentRows, drawn: Int[Array, " R"], num_envs: int) -> Int[Array, " C"]:
        """Return the slot that plays each counted agent, given the slots of those that are drawn."""
        met = np.zeros((num_envs, len(rows.agents)), np.int32)
        for learner, slot in zip(self.learners, self.slots, strict=True):
            met[tuple(rows.get_cells(learner, num_envs).T)] = slot
        table = jnp.asarray(met).at[tuple(rows.get_cells(DRAWN, num_envs).T)].set(drawn)
        return table[tuple(self.list_counted(rows, num_envs).T)]

    def find_homes(self, rows: AgentRows, num_envs: int) -> np.ndarray:
        """Return the slot of the learner that each counted agent meets, int32 `[C]`."""
        slots = dict(zip(self.learners, self.slots, strict=True))
        others = (
            rows.patterns[env % len(rows.patterns)][rows.agents[1 - agent]]
            for env, agent in self.list_counted(rows, num_envs).tolist()
        )
        return np.array([slots[other] for other in others], np.int32)


def get_learned(state: TrainState) -> dict[str, PyTree]:
    """Return what a module has learned: its learner state and its connectors' statistics."""
    connectors = state.connectors
    return {"learner": state.learner, "obs": connectors.obs, "rewards": connectors.learner}


def add_games(
    tally: LeagueTally,
    homes: Int[np.ndarray, " C"],
    games: Int[Array, "C S 3"],
    steps: UInt32[Array, ""],
    axis_name: str | None,
) -> LeagueTally:
    """Return a tally with the games of a train batch.

    A learner's games against itself do not count.

    Args:
        tally: Tally so far.
        homes: Slot of the learner of each copy of the environment whose games count.
        games: Its games against each slot.
        steps: Environment steps of the batch, over all devices.
        axis_name: Mesh axis that copies are sharded over, or None.
    """
    number = tally.games.shape[0]
    own = jnp.zeros_like(tally.games).at[homes].add(games)
    if axis_name is not None:
        own = jax.lax.psum(own, axis_name)
    own = own + jnp.swapaxes(own, 0, 1)[..., ::-1]
    own = jnp.where(jnp.eye(number, dtype=bool)[..., None], 0, own)
    return replace(
        tally,
        games=tally.games + own,
        recent=tally.recent.at[:, 1].add(own[tally.slots]),
        since=tally.since + steps,
    )
