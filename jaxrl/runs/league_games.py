"""Games of a league of several learners in a run's state: what snapshots take over, and windows."""

from typing import Any

import jax
import numpy as np

from jaxrl.core.struct import replace
from jaxrl.core.types import PyTree
from jaxrl.runs.league_table import PayoffTable
from jaxrl.training.league_rules import Standing
from jaxrl.training.league_tally import LeagueTally, get_learned
from jaxrl.training.opponents import decode_names
from jaxrl.training.report import to_host
from jaxrl.training.train_state import TrainState


def get_tally(state: TrainState) -> LeagueTally:
    """Return the games of a run's league."""
    return state.opponents.league


def _read(state: TrainState, name: str) -> np.ndarray:
    return np.array(to_host(getattr(get_tally(state), name)))


def _replace_games(state: TrainState, **changes: np.ndarray) -> TrainState:
    before = get_tally(state)
    after: dict[str, Any] = {
        name: jax.device_put(value, getattr(before, name).sharding)
        for name, value in changes.items()
    }
    league = replace(before, **after)
    return replace(state, opponents=replace(state.opponents, league=league))


def read_names(state: TrainState) -> list[str]:
    """Return the id in each slot."""
    return decode_names(to_host(state.opponents.names))


def list_learners(state: TrainState) -> tuple[str, ...]:
    """Return the ids of the learners."""
    names = read_names(state)
    return tuple(names[slot] for slot in _read(state, "slots").tolist())


def make_payoff_table(state: TrainState) -> PayoffTable:
    """Return the pay-off matrix of a run."""
    names = np.asarray(to_host(state.opponents.names))
    games, recent = _read(state, "games"), _read(state, "recent")
    return PayoffTable.from_arrays(list_learners(state), names, games, recent)


def make_standing(state: TrainState) -> Standing:
    """Return the learners with their latest games."""
    return Standing(
        names=tuple(read_names(state)),
        learners=list_learners(state),
        recent=_read(state, "recent").sum(axis=1, dtype=np.int32),
    )


def count_steps(state: TrainState) -> dict[str, int]:
    """Return the environment steps since each learner's latest snapshot."""
    return dict(zip(list_learners(state), _read(state, "since").tolist(), strict=True))


def read_last_round(state: TrainState) -> int:
    """Return the time of the latest round of population based training."""
    return int(_read(state, "last_round"))


def forget_slot(state: TrainState, slot: int) -> TrainState:
    """Return the state without the games of whoever was in a slot before."""
    games, recent = _read(state, "games"), _read(state, "recent")
    games[slot], games[:, slot], recent[:, :, slot] = 0, 0, 0
    return _replace_games(state, games=games, recent=recent)


def take_over_games(state: TrainState, learner: str, slot: int) -> TrainState:
    """Return the state in which a snapshot has its learner's games, which begin anew."""
    games, since = _read(state, "games"), _read(state, "since")
    index = list_learners(state).index(learner)
    own = int(_read(state, "slots")[index])
    games[slot], games[:, slot] = games[own], games[:, own]
    games[own], games[:, own] = 0, 0
    since[index] = 0
    return _replace_games(state, games=games, since=since)


def begin_anew(state: TrainState, learner: str) -> TrainState:
    """Return the state without the games of a learner, which has become another player."""
    index = list_learners(state).index(learner)
    slot = int(_read(state, "slots")[index])
    state, recent = forget_slot(state, slot), _read(state, "recent")
    recent[index], recent[:, :, slot] = 0, 0
    return _replace_games(state, recent=recent)


def begin_round(state: TrainState, time: int) -> TrainState:
    """Return the state at a round of population based training: all games begin anew."""
    games, recent = _read(state, "games"), _read(state, "recent")
    return _replace_games(
        state,
        games=np.zeros_like(games),
        recent=np.zeros_like(recent),
        last_round=np.asarray(time % 2**32, np.uint32),
    )


def advance_learner_windows(state: TrainState, num_games: int) -> TrainState:
    """Return the state with a new window of games against whom the latest one has so many."""
    recent = _read(state, "recent")
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
