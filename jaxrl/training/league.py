"""Games of a league of several learners, counted in the compiled program."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from jaxrl.config.agent_mapping import DRAWN, Pattern, list_own_pairs
from jaxrl.config.settings.multi_agent import Draw, League, PopulationPlay, SeveralLearners
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


Shares = Float[np.ndarray, " S"]
_LEAST_SUM = 1e-10
"""Sum of weights below which all are taken as equal."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standing:
    """Learners of a league with their latest games.

    Attributes:
        names: Id in each slot, "" in an empty one.
        learners: Ids of the learners, which have slots of their own.
        recent: Latest games of each learner against each slot: won, drawn, lost.
    """

    names: tuple[str, ...]
    learners: tuple[str, ...]
    recent: Int[np.ndarray, "L S 3"]

    def smooth_shares(self, learner: str) -> Shares:
        """Return the shares won, with one win and one loss more; 1/2 without a game."""
        won, drawn, lost = self.recent[self.learners.index(learner)].T
        return (won + 0.5 * drawn + 1.0) / (won + drawn + lost + 2.0)

    def find(self, names: Iterable[str]) -> Int[np.ndarray, " n"]:
        """Return the slots of players."""
        return np.array([self.names.index(name) for name in names], int)

    def list_past(self) -> Int[np.ndarray, " n"]:
        """Return the slots of all players that do not learn."""
        found = [s for s, name in enumerate(self.names) if name and name not in self.learners]
        return np.array(found, int)

    def list_versions(self, learners: Iterable[str]) -> Int[np.ndarray, " n"]:
        """Return the slots of the snapshots of learners, the oldest of each first."""
        found: list[int] = []
        for learner in learners:
            own = [(find_version(learner, name), s) for s, name in enumerate(self.names)]
            found += [s for _, s in sorted((n, s) for n, s in own if n is not None)]
        return np.array(found, int)


def find_version(learner: str, name: str) -> int | None:
    """Return the number of a learner's snapshot, None if it is none of it."""
    number = name.removeprefix(f"{learner}_v")
    return int(number) if number != name and number.isdecimal() else None


def prioritize(
    shares: Shares, chosen: Int[np.ndarray, " n"], weigh: Callable[[Shares], Shares]
) -> Shares:
    """Return the probabilities of prioritized fictitious self-play, over all slots.

    Args:
        shares: Share of games won against each slot.
        chosen: Slots to draw from.
        weigh: Weight of a share (Vinyals et al. 2019, Methods, "Prioritized fictitious self-play").
    """
    found = np.zeros_like(shares)
    if len(chosen):
        weights = weigh(shares[chosen])
        total = weights.sum()
        found[chosen] = weights / total if total >= _LEAST_SUM else 1.0 / len(chosen)
    return found


def weigh_by_variance(share: Shares) -> Shares:
    """Return `p * (1 - p)`, which prefers opponents of the same level."""
    return share * (1.0 - share)


def weigh_capped(share: Shares) -> Shares:
    """Return `min(1/2, 1 - p)`."""
    return np.minimum(0.5, 1.0 - share)


def want_shares(league: SeveralLearners, standing: Standing, learner: str) -> Shares:
    """Return the share of a learner's games that are to be against each slot."""
    p = standing.smooth_shares(learner)
    if isinstance(league, PopulationPlay):
        others = standing.find(name for name in league.learners if name != learner)
        power = league.power if league.opponents == "pfsp" else 0.0
        return prioritize(p, others, lambda share: (1.0 - share) ** power)
    if learner in league.mains:
        return _want_of_main(league, standing, p, learner)
    past = standing.list_past()
    if learner in league.exploiters_of_all:
        return prioritize(p, past, weigh_capped)
    found = np.zeros_like(p)
    for main in league.mains:
        current, versions = _choose(p, standing, main), standing.list_versions([main])
        if p[standing.find([main])[0]] < league.curriculum_below and len(versions):
            easier = prioritize(p, versions, weigh_by_variance)
            current = (1.0 - league.curriculum) * current + league.curriculum * easier
        found += current / len(league.mains)
    return found


def _want_of_main(league: League, standing: Standing, p: Shares, learner: str) -> Shares:
    def weigh(share: Shares) -> Shares:
        return (1.0 - share) ** league.power

    found = league.pfsp * prioritize(p, standing.list_past(), weigh)
    omitted = 1.0 - league.pfsp - league.self_play
    exploiters = standing.list_versions(league.exploiters_of_mains)
    is_exploited = len(exploiters) > 0 and p[exploiters].min() < league.strong
    for main in league.mains:
        alike = _choose(p, standing, main)
        versions = standing.list_versions([main])
        is_other = main != learner
        if is_other and p[standing.find([main])[0]] < league.strong and len(versions):
            alike = prioritize(p, versions, weigh_by_variance)
        lost = exploiters if is_exploited else _find_forgotten(p, versions, league.win_rate)
        verified = prioritize(p, lost, weigh) if len(lost) else alike
        found += (league.self_play * alike + omitted * verified) / len(league.mains)
    return found


def _choose(p: Shares, standing: Standing, name: str) -> Shares:
    found = np.zeros_like(p)
    found[standing.find([name])] = 1.0
    return found


def _find_forgotten(
    p: Shares, versions: Int[np.ndarray, " n"], win_rate: float
) -> Int[np.ndarray, " n"]:
    """Return the past versions to meet again, if one of them is no longer beaten.

    The latest versions, among which the shares only fall, are not yet beaten rather than forgotten.
    """
    rises = np.flatnonzero(p[versions][:-1] < p[versions][1:])
    known = versions[: rises[-1] + 2] if len(rises) else versions[:0]
    return known if len(known) and p[known].min() < win_rate else known[:0]


def weigh_draws(
    league: SeveralLearners, standing: Standing, patterns: Sequence[Pattern], learner: str
) -> Shares:
    """Return the weights of a learner's Draw: what its fixed pairs leave of the shares it wants.

    Args:
        league: The league.
        standing: Its players.
        patterns: Mapping of the run.
        learner: Id of the learner.
    """
    wanted = want_shares(league, standing, learner)
    pairs = list_own_pairs(league, patterns, learner)
    fixed = np.zeros_like(wanted)
    for name in pairs:
        if not isinstance(name, Draw):
            fixed[standing.find([name])] += 1.0
    left = np.maximum(wanted * len(pairs) - fixed, 0.0)
    return left / left.sum() if left.sum() >= _LEAST_SUM else wanted


def is_due(league: League, standing: Standing, learner: str, steps: int) -> bool:
    """Return whether a learner's snapshot is to be taken.

    Args:
        league: The league.
        standing: Its players.
        learner: Id of the learner.
        steps: Environment steps since its latest one.
    """
    if league.max_steps is not None and steps >= league.max_steps:
        return True
    if steps < league.min_steps:
        return False
    is_of_main = learner in league.exploiters_of_mains
    others = standing.find(league.mains) if is_of_main else standing.list_past()
    won, drawn, lost = standing.recent[standing.learners.index(learner)][others].T
    number = won + drawn + lost
    if not len(others) or (number < league.least_games).any():
        return False
    return bool(((won + 0.5 * drawn) / number >= league.win_rate).all())
