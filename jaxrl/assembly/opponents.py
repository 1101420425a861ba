"""Assembly of the opponents that a run draws from: their modules and connectors by architecture."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl.assembly.assemble import (
    Assembly,
    add_search,
    format_space,
    make_policy_step,
    replace_per_lane,
)
from jaxrl.config.agent_mapping import DRAWN, AgentMapping, LeagueDraw
from jaxrl.config.batch_plan import MultiAgentPlan, compute_module_sizes
from jaxrl.config.markers import Marker
from jaxrl.config.multi_agent import (
    find_searchers,
    get_module_overrides,
    has_own_spec,
    make_module_config,
)
from jaxrl.config.pbt import check_mutable, parse_mutations
from jaxrl.config.settings.multi_agent import Draw, League, SeveralLearners
from jaxrl.core.hparams import list_hparams
from jaxrl.core.spaces import is_same_space
from jaxrl.core.struct import has_same_form, replace
from jaxrl.envs.multi.made import MadeMultiEnv
from jaxrl.envs.registry import MadeEnv
from jaxrl.errors import ConfigError, JaxrlError
from jaxrl.learners.learner import LearnerState
from jaxrl.modules.planner import Planner, make_search
from jaxrl.training.agent_rows import AgentRows
from jaxrl.training.league import LeaguePlayers, Standing, find_version, weigh_draws
from jaxrl.training.opponents import MAX_ID_BYTES, OpponentKind, OpponentPool, list_names
from jaxrl.training.rollout import PolicyStep
from jaxrl.training.train_step import TrainStep

if TYPE_CHECKING:
    import gymnasium

    from jaxrl.config.config import Config


def check_opponent_id(module: str) -> None:
    """Raise ConfigError if an id is too long for a slot."""
    if len(module.encode()) > MAX_ID_BYTES:
        raise ConfigError(
            f"The id {module!r} has {len(module.encode())} bytes, and opponents have at most "
            f"{MAX_ID_BYTES}: shorten it."
        )


def check_snapshot_ids(learners: Sequence[str], drawn: Sequence[str]) -> None:
    """Raise ConfigError if an opponent has the id of a snapshot that a league takes."""
    for name in drawn:
        if any(find_version(learner, name) is not None for learner in learners):
            raise ConfigError(
                f"policies has {name!r}, which is the id of a snapshot of the league: choose another."
            )


def find_kind(kinds: Sequence[OpponentKind], policy: "PolicyStep") -> OpponentKind | None:
    """Return the kind of a module's architecture, None if there is none."""
    wanted = describe_architecture(policy)
    return next((k for k in kinds if describe_architecture(k.policy) == wanted), None)


def has_same_hparams(one: "Assembly", other: "Assembly") -> bool:
    """Return whether two modules have hyperparameters of the same names."""
    first, second = (list_hparams(own.train_step.learner.settings) for own in (one, other))
    return first == second


def describe_architecture(policy: "PolicyStep") -> tuple[Any, ...]:
    """Return what two modules have in common whose parameters may be exchanged."""
    module, shapes = policy.module, policy.param_shapes
    sizes = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(shapes)]
    acting = (type(module.inner), module.search) if isinstance(module, Planner) else ()
    return type(module), *acting, module.model_config, jax.tree.structure(shapes), sizes


def sort_kinds(kinds: Sequence[OpponentKind]) -> tuple[OpponentKind, ...]:
    """Return kinds in the order of their slots."""
    return tuple(sorted(kinds, key=lambda kind: kind.name))


def make_league_players(
    league: SeveralLearners,
    agents: AgentMapping,
    kinds: Sequence[OpponentKind],
    modules: Mapping[str, Assembly],
    mutations: Mapping[str, Marker],
) -> tuple[list[OpponentKind], LeaguePlayers]:
    """Return the kinds of opponents with the learners' slots, and the players of a league.

    Args:
        league: Setting of the league.
        agents: Agents of the run.
        kinds: Kinds of the opponents that the config names, and of the learners.
        modules: Modules that are trained.
        mutations: Distributions of the settings that population based training changes, by name.

    Raises:
        ConfigError: If there is no room for snapshots, or learners cannot be exchanged.
    """
    _check_learners(league, modules, mutations)
    _check_names(league, agents.drawn)
    firsts = {f"{main}_v0": main for main in league.mains} if isinstance(league, League) else {}
    found: list[OpponentKind] = []
    for kind in kinds:
        policies = {m: modules[m].policy_step for m in league.learners}
        learners = {
            m: m
            for m in league.learners
            if find_kind([kind], policies[m]) is not None
            and has_same_hparams(modules[kind.learner], modules[m])
        }
        ids = (*kind.ids, *(name for name, main in firsts.items() if main in learners))
        snapshots = kind.capacity if isinstance(league, League) or not learners else 0
        if snapshots and learners:
            _check_room(snapshots, ids, tuple(learners))
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
    league: SeveralLearners, modules: Mapping[str, Assembly], mutations: Mapping[str, Marker]
) -> None:
    """Raise ConfigError if learners cannot be copied, or hyperparameters cannot change."""
    if isinstance(league, League) or league.pbt is None:
        return
    states = {m: _describe_learner(modules[m].train_step) for m in league.learners}
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
    for m in league.learners:
        check_mutable(mutations, states[m])


def _describe_learner(train_step: TrainStep) -> LearnerState:
    """Return the shapes of a module's learner state."""
    step = replace_per_lane(train_step)
    init = partial(step.init_without_envs, total_envs=step.num_envs)
    return jax.eval_shape(init, jax.random.key(0)).learner


def make_opponent_pool(
    config: "Config",
    env: MadeEnv,
    rows: AgentRows,
    plan: MultiAgentPlan,
    modules: Mapping[str, Assembly],
    critic_space: "gymnasium.Space[Any] | None",
) -> OpponentPool:
    """Make the opponents that a run draws from.

    Args:
        config: Config of the run.
        env: Environment as they see it.
        rows: Agents in rows.
        plan: Sizes of the run.
        modules: Modules with rows of their own.
        critic_space: What the central critics of modules that are trained see, None without.

    Raises:
        ConfigError: If there are more opponents than slots, or a setting of theirs has no effect.
    """
    agents, settings = plan.agents, config.multi_agent_settings
    if settings.observe_agent_id:
        raise ConfigError(
            "observe_agent_id=True is not supported where opponents are drawn: put the seat into the "
            "observation, or leave it out."
        )
    trained = {m: modules[m] for m in sorted(agents.trained)}
    kinds = _find_learner_kinds(trained, env, settings.policy_map_capacity)
    of_training = config.get_name_table().groups["training_settings"]
    searchers = find_searchers(settings.policies)
    for module in agents.drawn:
        check_opponent_id(module)
        if module in searchers:
            kinds.append(_make_searcher(config, env, trained, module, searchers[module]))
            continue
        unused = [name for name in get_module_overrides(settings, module) if name in of_training]
        if unused:
            raise ConfigError(
                f"{unused[0]} of {module!r} has no effect, because modules that are drawn are not "
                "trained: leave it out."
            )
        sizes = compute_module_sizes(config, agents, plan, DRAWN, plan.num_shards)
        own = make_module_config(config, agents, module, sizes)
        own.critic_space = critic_space
        kinds = _add_opponent(own, env, agents.trained, kinds, module)
    if settings.self_play is not None:
        _check_self_play(agents, kinds, modules)
    players, league = None, settings.learners_league
    if league is not None:
        mutations = (
            {}
            if isinstance(league, League)
            else parse_mutations(config.get_name_table(), config.trust, league.pbt)
        )
        kinds, players = make_league_players(league, agents, kinds, modules, mutations)
    for kind in kinds:
        if len(kind.ids) > kind.capacity - len(kind.learners):
            raise ConfigError(
                f"policy_map_capacity={kind.capacity} has no room for the {len(kind.ids)} opponents "
                f"{', '.join(kind.ids)}: set {len(kind.ids)} or more."
            )
    return OpponentPool(
        kinds=sort_kinds(kinds),
        draws=agents.draws,
        patterns=tuple(
            {agent: own if isinstance(own, Draw) else None for agent, own in pattern.items()}
            for pattern in agents.patterns
        ),
        rows=rows,
        counts_games=settings.any_league is not None,
        players=players,
    )


def _check_self_play(
    agents: AgentMapping, kinds: list[OpponentKind], modules: Mapping[str, Assembly]
) -> None:
    """Raise ConfigError if a league has no learner opposite every opponent, or nothing to weigh."""
    if len(agents.agents) != 2 or len(agents.trained) != 1:
        raise ConfigError(
            "league=SelfPlay(...) is of two agents and one module that is trained, but there are the "
            f"agents {', '.join(agents.agents)} and the trained modules "
            f"{', '.join(sorted(agents.trained))}: name one in policies_to_train."
        )
    if agents.draws != (Draw(),):
        raise ConfigError(
            "league=SelfPlay(...) weighs opponents itself: give one Draw() without ids in the mapping, "
            f"such as Seats({min(agents.trained)!r}, Draw()), got {list(agents.draws)}."
        )
    (learner,) = agents.trained
    if any(DRAWN in own.values() and learner not in own.values() for own in agents.players):
        raise ConfigError(
            f"league=SelfPlay(...) counts the games of {learner!r}: let it play opposite every Draw, "
            f"such as Seats({learner!r}, Draw())."
        )
    kind = find_kind(kinds, modules[learner].policy_step)
    if kind is None or kind.capacity == 1:
        raise ConfigError(
            f"league=SelfPlay(...) takes snapshots of {learner!r}, which needs the spaces of the agents "
            "that are drawn, and policy_map_capacity above 1."
        )
    if kind.capacity <= len(kind.ids):
        raise ConfigError(
            f"policy_map_capacity={kind.capacity} leaves league=SelfPlay(...) no room for a snapshot of "
            f"{learner!r} beside {', '.join(kind.ids)}: set {len(kind.ids) + 1} or more."
        )
    check_snapshot_ids([learner], agents.drawn)
    check_opponent_id(f"{learner}_v99999")


def check_drawn_spaces(made: MadeMultiEnv, agents: list[str]) -> None:
    """Raise ConfigError if agents that opponents are drawn for have different spaces."""
    for agent in agents[1:]:
        for name, spaces in (
            ("observation", made.observation_spaces),
            ("action", made.action_spaces),
        ):
            if not is_same_space(spaces[agents[0]], spaces[agent]):
                raise ConfigError(
                    f"Opponents are drawn for {agents[0]!r} and {agent!r}, whose {name} spaces differ "
                    f"({format_space(spaces[agents[0]])} and {format_space(spaces[agent])}): draw for "
                    "agents with the same spaces."
                )


def describe_opponents(pool: OpponentPool | None) -> list[str]:
    """Return a note on the memory of the opponents of a run; none without."""
    if pool is None:
        return []
    stacks = [k for k in pool.kinds if pool.draws and k.capacity - len(k.learners) > 1]
    sizes = [kind.capacity * count_bytes(kind.policy) for kind in stacks]
    return [
        f"opponents: {kind.capacity - len(kind.learners)} slots for versions of "
        f"{' and '.join(kind.learners) or kind.name!r}, {size / 2**20:.3g} MiB."
        for kind, size in zip(stacks, sizes, strict=True)
    ]


def count_bytes(policy: PolicyStep) -> int:
    """Return the size of a module's parameters in bytes."""
    leaves = jax.tree.leaves(policy.param_shapes)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def _find_learner_kinds(
    trained: Mapping[str, Assembly], env: MadeEnv, capacity: int
) -> list[OpponentKind]:
    """Return the architectures of modules that are trained and could play where is drawn.

    Modules with other hyperparameters, such as a grad_clip that others do not have, are kinds of
    their own.
    """
    kinds: list[OpponentKind] = []
    for name, own in trained.items():
        policy, spaces = own.policy_step, own.made.spaces
        fits = all(is_same_space(x, y) for x, y in zip(spaces, env.spaces, strict=True))
        same = [kind for kind in kinds if has_same_hparams(trained[kind.name], own)]
        if fits and find_kind(same, policy) is None:
            kinds.append(
                OpponentKind(name=name, policy=policy, capacity=capacity, ids=(), learner=name)
            )
    return kinds


def _add_opponent(
    own: "Config",
    env: MadeEnv,
    trained: Collection[str],
    kinds: list[OpponentKind],
    module: str,
) -> list[OpponentKind]:
    """Return the kinds with one more opponent."""
    try:
        policy = make_policy_step(own, env)
    except JaxrlError as error:
        raise type(error)(f"The module {module!r}: {error}") from error
    same = find_kind([kind for kind in kinds if kind.name in trained], policy)
    if same is None:
        new = OpponentKind(
            name=module, policy=policy, capacity=1, ids=(module,), learner=min(trained)
        )
        return [*kinds, new]
    more = dataclasses.replace(same, ids=(*same.ids, module))
    return [more if kind is same else kind for kind in kinds]


def _make_searcher(
    config: "Config",
    env: MadeEnv,
    trained: Mapping[str, Assembly],
    module: str,
    spec: Mapping[str, Any],
) -> OpponentKind:
    """Return the kind of an opponent that searches with the present parameters of a learner.

    Args:
        config: Config of the run.
        env: Environment as opponents see it.
        trained: Modules that are trained.
        module: Id of the opponent.
        spec: `{"of": learner, "num_simulations": 64}`, and `"search"` as in AlphaZero.

    Raises:
        JaxrlError: If the learner cannot search, or a setting of the opponent has no effect.
    """
    learner = spec["of"]
    if get_module_overrides(config.multi_agent_settings, module) or has_own_spec(config, module):
        raise ConfigError(
            f"The module {module!r} is {learner!r} with a search, so a module or settings of its own "
            f"have no effect: leave them out of rl_module_specs and "
            "algorithm_config_overrides_per_module."
        )
    own = trained[learner]
    if not all(is_same_space(x, y) for x, y in zip(own.made.spaces, env.spaces, strict=True)):
        raise ConfigError(
            f"The module {module!r} plays as {learner!r}, whose spaces are others than those of the "
            "agents that are drawn: map it where it could play itself."
        )
    assert env.model is not None
    try:
        setting = {name: value for name, value in spec.items() if name != "of"}
        search = make_search(setting, own.policy_step.module)
        if search is None:
            raise ConfigError(
                f"num_simulations=0 is {learner!r} without search: set 1 or more, or draw a snapshot."
            )
        policy = add_search(own.policy_step, env.model, env.spaces[0], search)
    except JaxrlError as error:
        raise type(error)(f"The module {module!r}: {error}") from error
    return OpponentKind(
        name=module,
        policy=policy,
        capacity=1,
        ids=(),
        learner=learner,
        learners={module: learner},
    )
