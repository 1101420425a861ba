"""Assembly of a league of several learners: its players, their slots and first opponents."""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import jax
import numpy as np

from jaxrl.assembly.assemble import Assembly
from jaxrl.assembly.learner_checks import replace_per_lane
from jaxrl.assembly.opponent_kinds import (
    check_opponent_id,
    check_snapshot_ids,
    find_kind,
    has_same_hparams,
    sort_kinds,
)
from jaxrl.config.agent_mapping import AgentMapping, LeagueDraw
from jaxrl.config.pbt import check_mutable, parse_mutations
from jaxrl.config.settings.multi_agent import Draw, League, SeveralLearners
from jaxrl.core.struct import has_same_form, replace
from jaxrl.errors import ConfigError
from jaxrl.learners.learner import LearnerState
from jaxrl.training.league_rules import Standing, weigh_draws
from jaxrl.training.league_tally import LeaguePlayers
from jaxrl.training.opponents import OpponentKind, list_names

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


def make_league_players(
    config: "AlgorithmConfig",
    agents: AgentMapping,
    kinds: Sequence[OpponentKind],
    modules: Mapping[str, Assembly],
) -> tuple[list[OpponentKind], LeaguePlayers]:
    """Return the kinds of opponents with the learners' slots, and the players of a league.

    Args:
        config: Config of the run.
        agents: Its agents.
        kinds: Kinds of the opponents that the config names, and of the learners.
        modules: Modules that are trained.

    Raises:
        ConfigError: If there is no room for snapshots, or learners cannot be exchanged.
    """
    league = config.multi_agent_settings.learners_league
    assert league is not None
    _check_learners(config, league, modules)
    _check_names(league, agents.drawn)
    firsts = {f"{main}_v0": main for main in league.mains} if isinstance(league, League) else {}
    found: list[OpponentKind] = []
    for kind in kinds:
        policies = {m: modules[m].policy_step for m in league.learners}
        learners = tuple(
            m
            for m in league.learners
            if find_kind([kind], policies[m]) is not None
            and has_same_hparams(modules[kind.learner], modules[m])
        )
        ids = (*kind.ids, *(name for name, main in firsts.items() if main in learners))
        snapshots = kind.capacity if isinstance(league, League) or not learners else 0
        if snapshots and learners:
            _check_room(snapshots, ids, learners)
        found.append(
            dataclasses.replace(
                kind, ids=ids, learners=learners, capacity=max(snapshots, len(ids)) + len(learners)
            )
        )
    return found, _make_players(league, agents, sort_kinds(found), firsts)


def _make_players(
    league: SeveralLearners,
    agents: AgentMapping,
    kinds: Sequence[OpponentKind],
    firsts: Mapping[str, str],
) -> LeaguePlayers:
    names = list_names(kinds)
    standing = Standing(
        names=tuple(names),
        learners=league.learners,
        recent=np.zeros((len(league.learners), len(names), 3), np.int32),
    )
    weights = [
        weigh_draws(league, standing, agents.patterns, get_learner(draw)) for draw in agents.draws
    ]
    returning = (
        (*league.exploiters_of_mains, *(league.exploiters_of_all if league.reset else ()))
        if isinstance(league, League)
        else ()
    )
    return LeaguePlayers(
        learners=league.learners,
        slots=tuple(names.index(name) for name in league.learners),
        first_versions=firsts,
        returning=returning,
        weights=np.array(weights, np.float32).reshape(len(weights), len(names)),
    )


def get_learner(draw: Draw) -> str:
    """Return the learner whose opponents are drawn."""
    assert isinstance(draw, LeagueDraw)
    return draw.learner


def _check_names(league: SeveralLearners, drawn: Sequence[str]) -> None:
    """Raise ConfigError if an opponent has the id of a snapshot, or nobody can meet it."""
    check_snapshot_ids(league.learners, drawn)
    if drawn and not isinstance(league, League):
        raise ConfigError(
            f"policies has {drawn[0]!r}, which plays nobody: the learners of league="
            f"{type(league).__name__}(...) play each other, so leave it out."
        )
    for learner in league.learners:
        check_opponent_id(f"{learner}_v99999")


def _check_room(capacity: int, ids: Sequence[str], learners: Sequence[str]) -> None:
    wanted = len(ids) + 2 * len(learners)
    if capacity < wanted:
        raise ConfigError(
            f"policy_map_capacity={capacity} is too small for league=League(...) of "
            f"{', '.join(learners)}: set {wanted} or more, for {', '.join(ids) or 'no others'} and two "
            "snapshots of each."
        )


def _check_learners(
    config: "AlgorithmConfig", league: SeveralLearners, modules: Mapping[str, Assembly]
) -> None:
    """Raise ConfigError if learners cannot be copied, or hyperparameters cannot change."""
    if isinstance(league, League) or league.pbt is None:
        return
    states = {m: _describe_learner(modules[m]) for m in league.learners}
    learned = {m: replace(own, hparams={}) for m, own in states.items()}
    first, *others = league.learners
    policies = {m: modules[m].policy_step for m in league.learners}
    kinds = [OpponentKind(name=first, policy=policies[first], capacity=1, ids=())]
    different = next((m for m in others if find_kind(kinds, policies[m]) is None), None)
    different = different or next(
        (m for m in others if not has_same_form(learned[m], learned[first])), None
    )
    if different is not None:
        raise ConfigError(
            f"pbt copies learners to one another, but {different!r} has another architecture or "
            f"optimizer than {first!r}: give all the same."
        )
    mutations = parse_mutations(config, league.pbt)
    for m in league.learners:
        check_mutable(mutations, states[m])


def _describe_learner(assembly: Assembly) -> LearnerState:
    """Return the shapes of a module's learner state."""
    step = replace_per_lane(assembly.train_step)
    init = partial(step.init_without_envs, total_envs=assembly.plan.total_envs)
    return jax.eval_shape(init, jax.random.key(0)).learner
