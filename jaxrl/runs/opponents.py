"""Opponents in a run's state: adding, removing and weighing them, and the games of leagues."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl.config.agent_mapping import DRAWN, Mapped, Pattern, call_mapping, parse_mapping
from jaxrl.config.settings.multi_agent import Draw, Player, Seats
from jaxrl.core.struct import replace
from jaxrl.core.types import PyTree
from jaxrl.errors import ConfigError, UnknownNameError, did_you_mean
from jaxrl.runs.league_table import PayoffTable
from jaxrl.training.league import LeagueTally, Standing, get_learned
from jaxrl.training.opponents import (
    OpponentKind,
    OpponentPool,
    OpponentState,
    decode_names,
    encode_name,
    put,
    weigh_names,
)
from jaxrl.training.report import to_host
from jaxrl.training.rollout import ActorState
from jaxrl.training.train_state import TrainState

NewMapping = dict[str, Player] | list[dict[str, Player]] | Seats
"""Mapping that replaces the one of a run."""


def read_names(state: TrainState) -> list[str]:
    """Return the id in each slot."""
    return decode_names(to_host(state.opponents.names))


def list_opponents(state: TrainState) -> dict[str, int]:
    """Return the slot of each opponent; empty without opponents that are drawn."""
    if not isinstance(state.opponents, OpponentState):
        return {}
    names = read_names(state)
    return {name: slot for slot, name in enumerate(names) if name and name not in state.modules}


def find_slot(state: TrainState, module: str) -> int:
    """Return the slot of an opponent.

    Raises:
        UnknownNameError: If there is no such opponent.
    """
    slots = list_opponents(state)
    if module not in slots:
        raise UnknownNameError(
            f"There is no opponent {module!r}; there are {', '.join(slots)}."
            f"{did_you_mean(module, slots)}"
        )
    return slots[module]


def find_member(state: TrainState, slot: int) -> tuple[str, int]:
    """Return the kind of a slot, and its index in that kind's stack."""
    first, actors = 0, state.opponents.actors
    for kind in sorted(actors):
        capacity = jax.tree.leaves(actors[kind])[0].shape[0]
        if slot < first + capacity:
            return kind, slot - first
        first += capacity
    raise AssertionError(slot)


def get_opponent(state: TrainState, slot: int) -> ActorState:
    """Return the inputs of acting of an opponent."""
    kind, index = find_member(state, slot)
    return jax.tree.map(lambda x: x[index], state.opponents.actors[kind])


def write_actor(
    state: TrainState, slot: int, actor: ActorState, put: Callable[..., PyTree] = put
) -> TrainState:
    """Return the state with other inputs of acting in a slot.

    Args:
        state: State of the run.
        slot: The slot.
        actor: Inputs of acting.
        put: Function that writes a member of a stack.
    """
    opponents: OpponentState = state.opponents
    kind, index = find_member(state, slot)
    before = opponents.actors[kind]
    after = _place_like(put(before, np.int32(index), to_host(actor)), before)
    return replace(state, opponents=replace(opponents, actors={**opponents.actors, kind: after}))


def let_follow(state: TrainState, slot: int, *, follows: bool = True) -> TrainState:
    """Return the state in which an opponent explores as its learner does, or as it did."""
    before = np.array(to_host(state.opponents.follows))
    if before[slot] == follows:
        return state
    before[slot] = follows
    return replace_tables(state, follows=before)


def find_playing(pool: OpponentPool, state: TrainState) -> set[int]:
    """Return the slots that play an episode which goes on."""
    lengths = np.asarray(state.env.episode_length)
    rows = pool.rows.get_cells(DRAWN, len(lengths))[:, 0]
    slots = np.asarray(state.carry.opponents.slot)
    return set(slots[lengths[rows] > 0].tolist())


def find_free_slot(pool: OpponentPool, state: TrainState, kind: OpponentKind) -> int:
    """Return an empty slot of a kind that no episode plays against.

    Args:
        pool: Opponents of the run.
        state: State of the run.
        kind: Kind of the opponent.

    Raises:
        ConfigError: If there is none.
    """
    names = read_names(state)
    first = pool.first_slots[kind.name]
    empty, free = list_empty_slots(pool, state, kind)
    if free:
        return min(free)
    if empty:
        raise ConfigError(
            f"Every one of the {len(empty)} slots of removed opponents still plays an episode: train "
            "on before another one is added, or set a larger policy_map_capacity."
        )
    capacity = kind.capacity - len(kind.learners)
    held = [name for name in names[first : first + capacity] if name]
    raise ConfigError(
        f"policy_map_capacity={capacity} has no room for another opponent beside "
        f"{', '.join(held)}: remove_module one of them, or set a larger one."
    )


def list_empty_slots(
    pool: OpponentPool, state: TrainState, kind: OpponentKind
) -> tuple[set[int], set[int]]:
    """Return the empty slots of a kind, and those of them that no episode plays against."""
    names = read_names(state)
    first = pool.first_slots[kind.name]
    empty = {slot for slot in range(first, first + kind.capacity) if not names[slot]}
    return empty, empty - find_playing(pool, state)


def write_opponent(
    state: TrainState,
    slot: int,
    module: str,
    actor: ActorState,
    put: Callable[..., PyTree],
    *,
    follows: bool,
) -> TrainState:
    """Return the state with an opponent in a slot, which joins the Draws that are open.

    Args:
        state: State of the run.
        slot: The slot.
        module: Id of the opponent.
        actor: Its inputs of acting.
        put: Function that writes a member of a stack.
        follows: Whether it explores as its learner does; see `OpponentState.follows`.
    """
    state = let_follow(write_actor(state, slot, actor, put), slot, follows=follows)
    opponents: OpponentState = state.opponents
    names, weights = (np.array(to_host(x)) for x in (opponents.names, opponents.weights))
    names[slot] = encode_name(module)
    weights[:, slot] = np.asarray(to_host(opponents.is_open), np.float32)
    return _forget_games(replace_tables(state, names=names, weights=weights), slot)


def _forget_games(state: TrainState, slot: int) -> TrainState:
    """Return the state without the games of whoever was in a slot before."""
    if state.opponents.league is not None:
        return forget_slot(state, slot)
    if state.opponents.games is None:
        return state
    games, played = read_games(state)
    games[slot], games[:, slot] = 0, 0
    games[-3:, slot] = played[slot]
    return replace_tables(state, games=games)


def read_games(state: TrainState) -> tuple[np.ndarray, np.ndarray]:
    """Return `OpponentState.games`, and what the learner has ever played, int32 `[S, 3]`."""
    games = np.array(to_host(state.opponents.games))
    return games, np.asarray(to_host(state.carry.opponents.games)).sum(axis=0, dtype=np.int32)


def record_snapshot(state: TrainState, slot: int, searchers: Collection[str]) -> TrainState:
    """Return the state in which a snapshot has the learner's games, which begin anew.

    Args:
        state: State of the run.
        slot: Slot of the snapshot.
        searchers: Opponents that search with the learner's parameters, so that they change with it:
            their games are forgotten.
    """
    games, played = read_games(state)
    changing = np.array([name in searchers for name in read_names(state)])
    games[slot] = np.where(changing[:, None], 0, played - games[-1])
    games[-3:] = played
    return replace_tables(state, games=games)


def advance_windows(state: TrainState, num_games: int) -> TrainState:
    """Return the state with a new window of games against whom the latest one has so many."""
    games, played = read_games(state)
    is_full = (played - games[-2]).sum(axis=1) >= num_games
    if not is_full.any():
        return state
    games[-3, is_full], games[-2, is_full] = games[-2, is_full], played[is_full]
    return replace_tables(state, games=games)


def weigh_slots(state: TrainState, weights: Mapping[str, float]) -> TrainState:
    """Return the state with a weight for every opponent, used from the next episodes on."""
    names = read_names(state)
    row = np.array([weights.get(name, 0.0) for name in names], np.float32)
    before = np.asarray(to_host(state.opponents.weights))
    if (before == row).all():
        return state
    return replace_tables(state, weights=np.broadcast_to(row, before.shape).copy())


def remove_opponent(state: TrainState, module: str) -> TrainState:
    """Return the state without an opponent, which plays the episodes on that it has begun.

    Raises:
        UnknownNameError: If there is no such opponent.
        ConfigError: If nothing would be left to draw.
    """
    slot, opponents = find_slot(state, module), state.opponents
    names, weights = (np.array(to_host(x)) for x in (opponents.names, opponents.weights))
    names[slot] = encode_name("")
    weights[:, slot] = 0.0
    if not (weights.sum(axis=1) > 0.0).all():
        raise ConfigError(
            f"remove_module({module!r}) leaves nothing to draw: add another opponent first, or give "
            "a mapping that draws others."
        )
    return replace_tables(state, names=names, weights=weights)


def weigh_opponents(
    pool: OpponentPool,
    state: TrainState,
    mapping: NewMapping | Mapped,
    trained: Sequence[str],
) -> TrainState:
    """Return the state with the weights of another mapping, used from the next episodes on.

    Raises:
        ConfigError: If the mapping gives another seat to a module, which is compiled.
        UnknownNameError: If it names an opponent that there is not.
    """
    agents = pool.rows.agents
    patterns = (
        call_mapping(mapping, agents, trained)
        if callable(mapping)
        else parse_mapping(mapping, agents)
    )
    draws = _match_draws(pool, patterns)
    slots = list_opponents(state)
    for name in (name for draw in draws for name in draw.ids):
        if name not in slots:
            raise UnknownNameError(
                f"The mapping draws {name!r}, but the opponents are {', '.join(slots)}."
                f"{did_you_mean(name, slots)}"
            )
    names = read_names(state)
    weights = np.stack([weigh_names(draw, names) for draw in draws])
    is_open = np.array([not draw.ids for draw in draws])
    return replace_tables(state, weights=weights, is_open=is_open)


def _match_draws(pool: OpponentPool, patterns: tuple[Pattern, ...]) -> list[Draw]:
    """Return the Draw that replaces each of a run's.

    A single id where a run draws is a Draw of it alone.
    """
    if len(pool.patterns) % len(patterns):
        raise ConfigError(
            f"The new mapping has {len(patterns)} patterns of copies of the environment, and the run "
            f"has {len(pool.patterns)}: give as many."
        )
    found: dict[Draw, Draw] = {}
    for i, before in enumerate(pool.patterns):
        new = patterns[i % len(patterns)]
        for agent, draw in before.items():
            own = new[agent]
            player = pool.rows.patterns[i][agent]
            if draw is None and own == player:
                continue
            if draw is None or (isinstance(own, str) and own in pool.rows.modules):
                raise ConfigError(
                    f"The new mapping gives the agent {agent!r} to {own!r} where the run has "
                    f"{player if draw is None else 'opponents'!r}: who has which seat is part of the "
                    "compiled program, and only the opponents that are drawn may change."
                )
            wanted = own if isinstance(own, Draw) else Draw((own,))
            if found.setdefault(draw, wanted) != wanted:
                raise ConfigError(
                    f"The new mapping draws {wanted} for {agent!r} and {found[draw]} for another "
                    "agent, where the run has one Draw for both: give both the same."
                )
    return [found[draw] for draw in pool.draws]


def replace_tables(state: TrainState, **tables: np.ndarray) -> TrainState:
    """Return the state with other tables of its opponents."""
    before: OpponentState = state.opponents
    after: dict[str, Any] = {
        name: jax.device_put(value, getattr(before, name).sharding)
        for name, value in tables.items()
    }
    return replace(state, opponents=replace(before, **after))


def _place_like(tree: PyTree, like: PyTree) -> PyTree:
    return jax.tree.map(lambda x, old: jax.device_put(x, old.sharding), tree, like)


# --- games of a league of several learners ---


def get_tally(state: TrainState) -> LeagueTally:
    """Return the games of a run's league."""
    return state.opponents.league


def _read_tally(state: TrainState, name: str) -> np.ndarray:
    return np.array(to_host(getattr(get_tally(state), name)))


def _replace_games(state: TrainState, **changes: np.ndarray) -> TrainState:
    before = get_tally(state)
    after: dict[str, Any] = {
        name: jax.device_put(value, getattr(before, name).sharding)
        for name, value in changes.items()
    }
    league = replace(before, **after)
    return replace(state, opponents=replace(state.opponents, league=league))


def list_learners(state: TrainState) -> tuple[str, ...]:
    """Return the ids of the learners."""
    names = read_names(state)
    return tuple(names[slot] for slot in _read_tally(state, "slots").tolist())


def make_payoff_table(state: TrainState) -> PayoffTable:
    """Return the pay-off matrix of a run."""
    names = np.asarray(to_host(state.opponents.names))
    games, recent = _read_tally(state, "games"), _read_tally(state, "recent")
    return PayoffTable.from_arrays(list_learners(state), names, games, recent)


def make_standing(state: TrainState) -> Standing:
    """Return the learners with their latest games."""
    return Standing(
        names=tuple(read_names(state)),
        learners=list_learners(state),
        recent=_read_tally(state, "recent").sum(axis=1, dtype=np.int32),
    )


def count_steps(state: TrainState) -> dict[str, int]:
    """Return the environment steps since each learner's latest snapshot."""
    return dict(zip(list_learners(state), _read_tally(state, "since").tolist(), strict=True))


def read_last_round(state: TrainState) -> int:
    """Return the time of the latest round of population based training."""
    return int(_read_tally(state, "last_round"))


def forget_slot(state: TrainState, slot: int) -> TrainState:
    """Return the state without the games of whoever was in a slot before."""
    games, recent = _read_tally(state, "games"), _read_tally(state, "recent")
    games[slot], games[:, slot], recent[:, :, slot] = 0, 0, 0
    return _replace_games(state, games=games, recent=recent)


def take_over_games(state: TrainState, learner: str, slot: int) -> TrainState:
    """Return the state in which a snapshot has its learner's games, which begin anew."""
    games, since = _read_tally(state, "games"), _read_tally(state, "since")
    index = list_learners(state).index(learner)
    own = int(_read_tally(state, "slots")[index])
    games[slot], games[:, slot] = games[own], games[:, own]
    games[own], games[:, own] = 0, 0
    since[index] = 0
    return _replace_games(state, games=games, since=since)


def begin_anew(state: TrainState, learner: str) -> TrainState:
    """Return the state without the games of a learner, which has become another player."""
    index = list_learners(state).index(learner)
    slot = int(_read_tally(state, "slots")[index])
    state, recent = forget_slot(state, slot), _read_tally(state, "recent")
    recent[index], recent[:, :, slot] = 0, 0
    return _replace_games(state, recent=recent)


def begin_round(state: TrainState, time: int) -> TrainState:
    """Return the state at a round of population based training: all games begin anew."""
    games, recent = _read_tally(state, "games"), _read_tally(state, "recent")
    return _replace_games(
        state,
        games=np.zeros_like(games),
        recent=np.zeros_like(recent),
        last_round=np.asarray(time % 2**32, np.uint32),
    )


def advance_learner_windows(state: TrainState, num_games: int) -> TrainState:
    """Return the state with a new window of games against whom the latest one has so many."""
    recent = _read_tally(state, "recent")
    is_full = recent[:, 1].sum(axis=-1) >= num_games
    if not is_full.any():
        return state
    recent[:, 0] = np.where(is_full[..., None], recent[:, 1], recent[:, 0])
    recent[:, 1] = np.where(is_full[..., None], 0, recent[:, 1])
    return _replace_games(state, recent=recent)


def return_to_first(state: TrainState, learner: str) -> TrainState:
    """Return the state in which a learner has its first parameters, optimizer and statistics.

    Hyperparameters stay as they are.
    """
    learned = dict(get_tally(state).first[learner])
    hparams = state.modules[learner].learner.hparams
    learned["learner"] = replace(learned["learner"], hparams=hparams)
    return put_learned(state, learner, learned)


def put_learned(state: TrainState, module: str, learned: dict[str, PyTree]) -> TrainState:
    """Return the state in which a module has learned something else; see `get_learned`.

    Args:
        state: State of the run.
        module: Id of the module.
        learned: What it has learned, of which copies are made.
    """
    own = state.modules[module]
    before = get_learned(own)
    after = jax.tree.map(_copy_to, learned, before)
    connectors = replace(own.connectors, obs=after["obs"], learner=after["rewards"])
    changed = replace(own, learner=after["learner"], connectors=connectors)
    if own.behaviour is not None:
        params = jax.tree.map(_copy_to, learned["learner"].sgd.params, own.behaviour)
        changed = replace(changed, behaviour=params)
    if own.guard.snapshot is not None:
        snapshot = jax.tree.map(_copy_to, learned["learner"], own.guard.snapshot)
        changed = replace(changed, guard=replace(own.guard, snapshot=snapshot))
    return replace(state, modules={**state.modules, module: changed})


def _copy_to(new: PyTree, old: jax.Array) -> jax.Array:
    """Return a copy of an array through the host, placed like another, without compiling."""
    return jax.device_put(to_host(new), old.sharding)


def remember_first(state: TrainState, modules: list[str]) -> TrainState:
    """Return a state, in which nothing was trained yet, whose learners return to what they are.

    Args:
        state: State of the run.
        modules: Modules whose parameters were set.
    """
    tally = getattr(state.opponents, "league", None)
    if tally is None or int(state.progress.train_batches):
        return state
    first = dict(tally.first)
    for module in set(modules) & set(first):
        learned = get_learned(state.modules[module])
        first[module] = jax.tree.map(_copy_to, learned, first[module])
    return replace(state, opponents=replace(state.opponents, league=replace(tally, first=first)))
