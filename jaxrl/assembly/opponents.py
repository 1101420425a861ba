"""Assembly of the opponents that a run draws from: their modules and connectors by architecture."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import jax

from jaxrl.assembly.assemble import Assembly, format_space, make_policy_step
from jaxrl.assembly.learners_league import make_league_players
from jaxrl.assembly.opponent_kinds import (
    check_opponent_id,
    check_snapshot_ids,
    find_kind,
    has_same_hparams,
    sort_kinds,
)
from jaxrl.config.agent_mapping import DRAWN, AgentMapping
from jaxrl.config.batch_plan import MultiAgentPlan, compute_module_sizes
from jaxrl.config.multi_agent import get_module_overrides, make_module_config
from jaxrl.config.settings.multi_agent import Draw
from jaxrl.core.spaces import is_same_space
from jaxrl.envs.multi.made import MadeMultiEnv
from jaxrl.envs.registry import MadeEnv
from jaxrl.errors import ConfigError, JaxrlError
from jaxrl.training.agent_rows import AgentRows
from jaxrl.training.opponents import OpponentKind, OpponentPool
from jaxrl.training.rollout import PolicyStep

if TYPE_CHECKING:
    import gymnasium

    from jaxrl.config.base import AlgorithmConfig


def make_opponent_pool(
    config: "AlgorithmConfig",
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
    agents = plan.agents
    if config.multi_agent_settings.observe_agent_id:
        raise ConfigError(
            "observe_agent_id=True is not supported where opponents are drawn: put the seat into the "
            "observation, or leave it out."
        )
    kinds = _find_learner_kinds(config, agents, env, modules)
    for module in agents.drawn:
        _check_id(config, module)
        own = _make_opponent_config(config, plan, module)
        own.critic_space = critic_space
        kinds = _add_opponent(own, env, agents.trained, kinds, module)
    _check_league(config, agents, kinds, modules)
    players = None
    if config.multi_agent_settings.learners_league is not None:
        kinds, players = make_league_players(config, agents, kinds, modules)
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
        counts_games=config.multi_agent_settings.any_league is not None,
        players=players,
    )


def _check_league(
    config: "AlgorithmConfig",
    agents: AgentMapping,
    kinds: list[OpponentKind],
    modules: Mapping[str, Assembly],
) -> None:
    """Raise ConfigError if a league has no learner opposite every opponent, or nothing to weigh."""
    if config.multi_agent_settings.self_play is None:
        return
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


def describe_opponents(assembly: Assembly) -> list[str]:
    """Return a note on the memory of the opponents of a run; none without."""
    worker = getattr(assembly.train_step, "rollout_worker", None)
    pool = getattr(worker, "pool", None)
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


def _check_id(config: "AlgorithmConfig", module: str) -> None:
    check_opponent_id(module)
    training = config.get_name_table().group_by_setting
    for name in get_module_overrides(config.multi_agent_settings, module):
        if training.get(name) == "training_settings":
            raise ConfigError(
                f"{name} of {module!r} has no effect, because modules that are drawn are not trained: "
                "leave it out."
            )


def _find_learner_kinds(
    config: "AlgorithmConfig",
    agents: AgentMapping,
    env: MadeEnv,
    modules: Mapping[str, Assembly],
) -> list[OpponentKind]:
    """Return the architectures of modules that are trained and could play where is drawn.

    Modules with other hyperparameters, such as a grad_clip that others do not have, are kinds of
    their own.
    """
    kinds: list[OpponentKind] = []
    capacity = config.multi_agent_settings.policy_map_capacity
    for name in sorted(agents.trained):
        policy, spaces = modules[name].policy_step, modules[name].made.spaces
        fits = all(is_same_space(x, y) for x, y in zip(spaces, env.spaces, strict=True))
        same = [kind for kind in kinds if has_same_hparams(modules[kind.name], modules[name])]
        if fits and find_kind(same, policy) is None:
            kinds.append(
                OpponentKind(name=name, policy=policy, capacity=capacity, ids=(), learner=name)
            )
    return kinds


def _make_opponent_config(
    config: "AlgorithmConfig", plan: MultiAgentPlan, module: str
) -> "AlgorithmConfig":
    sizes = compute_module_sizes(config, plan.agents, plan, DRAWN, plan.num_shards)
    return make_module_config(config, plan.agents, module, sizes)


def _add_opponent(
    own: "AlgorithmConfig",
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
