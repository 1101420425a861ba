"""Agents and modules of a config: the mapping, the modules to train and each module's settings."""

import dataclasses
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from jaxrl.config.agent_mapping import (
    DRAWN,
    AgentMapping,
    Choices,
    LeagueDraw,
    Mapped,
    Pattern,
    accept_worker,
    call_host_mapping,
    call_mapping,
    check_agents_named,
    check_league_settings,
    find_agents,
    list_choices,
    make_league_patterns,
    name_draws,
    parse_mapping,
    read_choices,
    take_first,
)
from jaxrl.config.markers import find_markers
from jaxrl.config.settings.multi_agent import (
    Draw,
    MultiAgentSettings,
    Player,
    PolicySpec,
    SetValues,
)
from jaxrl.config.settings.replay import OffPolicyTraining
from jaxrl.config.settings.training import EnvironmentSettings
from jaxrl.core.types import PyTree
from jaxrl.envs.adapters.barrier import close_quietly
from jaxrl.envs.adapters.host_spaces import to_runner_actions, to_runner_space
from jaxrl.envs.adapters.precheck import make_checked, sample_actions
from jaxrl.envs.context import EnvContext
from jaxrl.envs.contract import check_agents
from jaxrl.envs.model import with_state
from jaxrl.envs.multi.host_made import MadeMultiHostEnv
from jaxrl.envs.multi.host_slots import AgentSlotPlan, SpacePair
from jaxrl.envs.registry import (
    MadeEnv,
    MadeMultiEnv,
    is_multi_agent_spec,
    make_any,
    make_multi,
)
from jaxrl.errors import ConfigError, did_you_mean
from jaxrl.metrics import ALL_MODULES, DEFAULT_MODULE

if TYPE_CHECKING:
    from jaxrl.config.config import Config
    from jaxrl.modules.rl_module import RLModuleSpec


LIVE_SETTINGS = ("policies_to_train", "policy_mapping_fn")
"""Settings that may be set on the config of a runner or a learner while a run goes on."""

_MODULE_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")


def has_several_agents(env: object, settings: MultiAgentSettings) -> bool:
    """Return whether a run is of several agents, by its environment or its modules."""
    if settings.mapping is not None or _list_ids(settings.policies) not in ([], [DEFAULT_MODULE]):
        return True
    if settings.policy_mapping_fn is not None:
        return True
    return env is not None and is_multi_agent_spec(env)


AnyMadeMulti = MadeMultiEnv | MadeMultiHostEnv


def make_agents_env(environment: EnvironmentSettings, settings: MultiAgentSettings) -> AnyMadeMulti:
    """Make the environment of several agents, written in JAX or in Python.

    Raises:
        JaxrlError: If it cannot be made, or has a single agent.
    """
    if environment.env is None:
        raise ConfigError(
            "env is not set: name one of several agents with .environment(env=...), or a class that "
            "make_multi_agent makes."
        )
    limit = environment.max_episode_steps
    made = make_any(environment.env, environment.env_config, max_episode_steps=limit)
    if isinstance(made, MadeMultiEnv):
        check_agents(made.env, made.id)
    if environment.observe_state and not isinstance(made, MadeMultiEnv | MadeEnv):
        raise make_state_error(made.id)
    if isinstance(made, MadeMultiHostEnv):
        return made if settings.max_agents is None else _give_slots(settings, made)
    if settings.max_agents is not None and isinstance(made, MadeMultiEnv):
        raise ConfigError(
            f"max_agents={settings.max_agents!r} has no effect: {made.id} is written in JAX and names its agents; "
            "leave it out."
        )
    made = make_multi(environment.env, environment.env_config, max_episode_steps=limit)
    return with_state(made) if environment.observe_state else made


def make_state_error(env_id: str) -> ConfigError:
    """Return the error of an environment whose state cannot be observed."""
    return ConfigError(
        f"Search goes on from the state of an environment in JAX, and {env_id} is stepped in Python: name "
        "one in JAX, such as 'CartPole-v1', 'TicTacToe-v0' or 'pgx:othello', or use MuZero or PPO."
    )


def resolve_agents(
    environment: EnvironmentSettings,
    settings: MultiAgentSettings,
    made: AnyMadeMulti | None = None,
) -> AgentMapping:
    """Return the agents of a run, with the module of each.

    Args:
        environment: Settings of the environment.
        settings: Settings of the agents.
        made: The environment; None makes it where there is no mapping.

    Raises:
        ConfigError: If an agent has no module, or a module is unknown or not a valid id.
    """
    ids = _list_ids(settings.policies)
    for module in ids:
        check_module_id(module)
    for module, spec in _find_dictionaries(settings.policies).items():
        if "of" not in spec:
            raise ConfigError(
                f"policies[{module!r}]={dict(spec)!r} must be None, a PolicySpec or a module; settings of "
                "its own go into algorithm_config_overrides_per_module, and an opponent that searches is "
                "{'of': 'main', 'num_simulations': 64}."
            )
    league, searchers = settings.learners_league, find_searchers(settings.policies)
    if ids and league is not None:
        ids = sorted({*ids, *league.learners})
    agents = find_agents(settings.mapping)
    if made is None and agents is None:
        made = make_agents_env(environment, settings)
    if made is not None:
        agents = made.possible_agents
    assert agents is not None
    check_league_settings(settings, agents)
    if searchers:
        _check_search(environment, settings, made, next(iter(searchers)))
    patterns, choices = _map_agents(settings, agents, made, ids)
    alone = {module: Draw((module,)) for module in searchers}
    patterns = tuple(
        {a: alone.get(own, own) if isinstance(own, str) else own for a, own in pattern.items()}
        for pattern in patterns
    )
    players = [own for pattern in patterns for own in pattern.values()]
    chosen = {module for names in choices.values() for module in names}
    modules = tuple(sorted(chosen | {own for own in players if not isinstance(own, Draw)}))
    drawn = _find_drawn([own for own in players if isinstance(own, Draw)], modules, ids)
    unused = [module for module in ids if module not in (*modules, *drawn)]
    if unused:
        raise ConfigError(
            f"policies has {unused[0]!r}, which plays none of the agents {', '.join(agents)}: map an "
            "agent to it, or leave it out."
        )
    trained = _find_trained(settings.policies_to_train, modules, drawn)
    for module, spec in searchers.items():
        _check_searcher(module, spec, trained)
    return AgentMapping(
        patterns=patterns, modules=modules, trained=trained, drawn=drawn, choices=choices
    )


def find_searchers(policies: object) -> dict[str, Mapping[str, Any]]:
    """Return the opponents that search with the parameters of a learner, and the dictionary of each."""
    return {module: spec for module, spec in _find_dictionaries(policies).items() if "of" in spec}


def _find_dictionaries(policies: object) -> dict[str, Mapping[str, Any]]:
    if not isinstance(policies, Mapping):
        return {}
    given = cast("Mapping[str, Any]", policies)
    return {module: spec for module, spec in given.items() if isinstance(spec, Mapping)}


def _check_search(
    environment: EnvironmentSettings,
    settings: MultiAgentSettings,
    made: AnyMadeMulti | None,
    module: str,
) -> None:
    """Raise ConfigError if no opponent can search in an environment, or in a league."""
    if isinstance(made, MadeMultiHostEnv):
        raise make_state_error(made.id)
    if not environment.observe_state:
        raise ConfigError(
            f"policies has {module!r}, which searches from the state of the environment: set "
            "environment(observe_state=True), so that observations have it."
        )
    league = settings.learners_league
    if league is not None:
        raise ConfigError(
            f"policies has {module!r}, which searches with the present parameters of a learner, and "
            f"league={type(league).__name__}(...) weighs past players alone: use SelfPlay(...), or "
            "evaluate(planner=...)."
        )


def _check_searcher(module: str, spec: Mapping[str, Any], trained: Collection[str]) -> None:
    """Raise ConfigError if an opponent does not search with the parameters of a learner."""
    learner = spec["of"]
    if not isinstance(learner, str) or learner not in trained:
        raise ConfigError(
            f"policies[{module!r}] searches with the parameters of a module that is trained, such as "
            f"{{'of': {min(trained)!r}, 'num_simulations': 64}}, got {dict(spec)!r}."
            f"{did_you_mean(str(learner), trained)}"
        )


def _find_drawn(draws: list[Draw], modules: tuple[str, ...], ids: list[str]) -> tuple[str, ...]:
    """Return the modules to draw from, sorted.

    Raises:
        ConfigError: If there is none, or one has rows of its own.
    """
    drawn = {module for draw in draws for module in draw.ids}
    if any(not draw.ids for draw in draws):
        drawn |= set(ids) - set(modules)
    both = sorted(drawn & set(modules))
    if both:
        raise ConfigError(
            f"Draw names {both[0]!r}, which plays an agent of its own: draw from modules that are not "
            "trained, such as snapshots of it."
        )
    if draws and not drawn and not isinstance(draws[0], LeagueDraw):
        raise ConfigError(
            "Draw has no module to draw from: name one that is there from the start, such as "
            "policies={'random': RandomRLModule, ...}, before snapshots are added."
        )
    for module in drawn:
        check_module_id(module)
    return tuple(sorted(drawn))


def _list_ids(policies: object) -> list[str]:
    """Return the ids of modules as the user gave them."""
    if policies is None:
        return []
    if isinstance(policies, str) or not isinstance(policies, Iterable):
        raise ConfigError(
            "policies must be a list or set of module ids, or a dictionary from an id to a "
            f"PolicySpec, got {policies!r}."
        )
    return sorted(str(name) for name in cast("Iterable[Any]", policies))


def is_module_id(module: str) -> bool:
    """Return whether an id could name files."""
    return bool(_MODULE_ID.fullmatch(module))


def check_module_id(module: str) -> None:
    """Raise ConfigError if an id could not name files, or names something else in results."""
    if module == ALL_MODULES:
        raise ConfigError(
            f"policies has the id {module!r}, below which results have the sums over all modules: give "
            "the module another one."
        )
    if not isinstance(module, str) or not is_module_id(module):
        raise ConfigError(
            f"policies has the id {module!r}, which names files and parts of a checkpoint: use "
            "letters, digits, '_' and '-'."
        )


def _map_agents(
    settings: MultiAgentSettings, agents: tuple[str, ...], made: AnyMadeMulti | None, ids: list[str]
) -> tuple[tuple[Pattern, ...], Choices]:
    """Return the patterns of a mapping, and the modules that a function chooses from by episode."""
    choices: Choices = {}
    league = settings.learners_league
    if isinstance(made, MadeMultiHostEnv):
        if league is not None:
            raise ConfigError(
                f"league={type(league).__name__}(...) is part of the compiled program, and {made.id} "
                "is written in Python: write it as a MultiAgentJaxEnv, or leave league out."
            )
        if made.slots is not None:
            for module in made.slots.spaces:
                check_module_id(module)
            return (dict(made.slots.modules),), choices
    if settings.mapping is not None:
        patterns, choices = _read_mapping(settings, agents, made)
        source = "mapping"
        if league is not None:
            patterns = name_draws(league, patterns)
    elif league is not None:
        patterns, source = make_league_patterns(league, agents), "league"
    elif settings.policy_mapping_fn is not None:
        source = "policy_mapping_fn"
        if isinstance(made, MadeMultiHostEnv):
            choices = call_host_mapping(settings.policy_mapping_fn, made, ids)
            patterns = (take_first(choices),)
        else:
            named = settings.policies_to_train
            trained = [] if named is None or callable(named) else [str(name) for name in named]
            patterns = call_mapping(settings.policy_mapping_fn, agents, trained)
    elif len(ids) > 1:
        raise ConfigError(
            f"policies has {', '.join(ids)}, and nothing says which agents they play: set mapping, "
            f"such as {{{agents[0]!r}: {ids[0]!r}, ...}}, or policy_mapping_fn."
        )
    else:
        everybody: Pattern = dict.fromkeys(agents, ids[0] if ids else DEFAULT_MODULE)
        patterns = (everybody,)
        source = "policies"
    for pattern in patterns:
        for agent, own in pattern.items():
            for module in own.ids if isinstance(own, Draw) else choices.get(agent, (own,)):
                _check_mapped(source, agent, module, ids)
    return patterns, {agent: names for agent, names in choices.items() if len(names) > 1}


def _read_mapping(
    settings: MultiAgentSettings, agents: tuple[str, ...], made: AnyMadeMulti | None
) -> tuple[tuple[Pattern, ...], Choices]:
    """Return what the setting `mapping` says; a list of ids is a Draw, or those of a function."""
    mapping, has_function = settings.mapping, settings.policy_mapping_fn is not None
    assert mapping is not None
    on_host = isinstance(made, MadeMultiHostEnv)
    if isinstance(mapping, dict):
        check_agents_named(mapping, agents)
        has_lists = any(isinstance(own, list) for own in mapping.values())
        chooses = has_lists and has_function and not isinstance(made, MadeMultiEnv)
        if chooses or (on_host and has_lists):
            choices = read_choices(mapping, agents, has_function=has_function)
            return (take_first(choices),), choices
    if has_function:
        raise ConfigError(
            "mapping and policy_mapping_fn both say which module plays an agent; set one."
        )
    patterns = parse_mapping(mapping, agents)
    draws = any(isinstance(own, Draw) for pattern in patterns for own in pattern.values())
    if on_host and (draws or len(patterns) > 1):
        raise ConfigError(
            f"mapping={mapping!r} is part of the compiled program, and this environment is written in "
            "Python: choose by policy_mapping_fn, which is called in every episode."
        )
    return patterns, {}


def _check_mapped(source: str, agent: str, module: str, ids: list[str]) -> None:
    check_module_id(module)
    if ids and module not in ids:
        raise ConfigError(
            f"{source} gives the agent {agent!r} the module {module!r}, but policies has "
            f"{', '.join(ids)}.{did_you_mean(module, ids)}"
        )


def _find_trained(
    setting: Iterable[str] | Callable[..., Any] | None,
    modules: tuple[str, ...],
    drawn: tuple[str, ...],
) -> frozenset[str]:
    if setting is None:
        return frozenset(modules)
    if callable(setting):
        chosen = [module for module in modules if is_trained(setting, module)]
    else:
        chosen = [str(module) for module in setting]
        fixed = next((module for module in chosen if module in drawn), None)
        if fixed is not None:
            raise ConfigError(
                f"policies_to_train names {fixed!r}, which is drawn, and modules that are drawn are "
                f"not trained: the others are {', '.join(modules)}."
            )
        unknown = next((module for module in chosen if module not in modules), None)
        if unknown is not None:
            raise ConfigError(
                f"policies_to_train names {unknown!r}, but the modules are {', '.join(modules)}."
                f"{did_you_mean(unknown, modules)}"
            )
    if not chosen:
        raise ConfigError(
            f"policies_to_train leaves none of {', '.join(modules)} to train: name one of them, or "
            "evaluate instead."
        )
    return frozenset(chosen)


def make_agent_setup(
    config: "Config",
    policies: object,
    spaces: Mapping[str, tuple[Any, Any]],
    module_class: type[Any] | None,
) -> tuple[dict[str, PolicySpec], Callable[..., bool]]:
    """Return complete specifications of all modules, and a function of an id: is it trained?

    Args:
        config: Config of the run.
        policies: Value of `policies`; None for the config's.
        spaces: Spaces by module, in the place of the environment's.
        module_class: Class of modules without one; None is the algorithm's.
    """
    if policies is not None:
        config = config.copy(copy_frozen=False).multi_agent(policies=policies)
    settings = config.multi_agent_settings
    ids = _list_ids(settings.policies) or [DEFAULT_MODULE]
    wanted, given = settings.policies_to_train, {m: _get_policy(settings.policies, m) for m in ids}
    default = module_class or config.get_rl_module_spec().module_class
    found = dict(spaces) if set(ids) <= set(spaces) else {**_find_spaces(config, ids), **spaces}

    def complete(module: str) -> PolicySpec:
        own = spec if isinstance(spec := given[module], PolicySpec) else PolicySpec()
        observation, action = found[module]
        return PolicySpec(
            policy_class=own.policy_class or default,
            observation_space=own.observation_space or observation,
            action_space=own.action_space or action,
            config=own.config or {},
        )

    def is_policy_to_train(module: str, batch: object = None) -> bool:
        del batch
        if callable(wanted):
            return is_trained(wanted, module)
        return wanted is None or module in wanted

    return {module: complete(module) for module in ids}, is_policy_to_train


def _find_spaces(config: "Config", ids: Iterable[str]) -> dict[str, tuple[Any, Any]]:
    """Return the spaces of the environment for each module; all have those of a single agent's."""
    settings = config.environment_settings
    if settings.env is None or not is_multi_agent_spec(settings.env):
        declared = settings.observation_space, settings.action_space
        if None not in declared:
            return dict.fromkeys(ids, declared)
        if settings.env is None:
            raise ConfigError(
                "env is not set, which has the spaces: name one with .environment(env)."
            )
        return dict.fromkeys(ids, make_any(settings.env, settings.env_config).spaces)
    made = make_agents_env(settings, config.multi_agent_settings)
    agents = resolve_agents(settings, config.multi_agent_settings, made)
    spaces = made.observation_spaces, made.action_spaces
    first = {m: agents.get_agents(m)[0] for m in ids}
    return {m: (spaces[0][agent], spaces[1][agent]) for m, agent in first.items()}


def is_trained(function: Mapped, module: str) -> bool:
    """Return what a function of `policies_to_train` says of a module.

    Raises:
        ConfigError: If it raises.
    """
    try:
        return bool(function(module))
    except TypeError:
        pass
    try:
        return bool(function(module, None))  # RLlib's signature, with the batch
    except Exception as error:
        raise ConfigError(
            f"policies_to_train is called once for each id, without a batch, and raised "
            f"{type(error).__name__} for {module!r}: {error}."
        ) from error


def prepare_agents(config: "Config") -> None:
    """Replace functions of ids by what they return, so that a config can be saved and loaded."""
    environment, settings = config.environment_settings, config.multi_agent_settings
    made = make_agents_env(environment, settings)
    agents = resolve_agents(environment, settings, made)
    slots = made.slots if isinstance(made, MadeMultiHostEnv) else None
    config.unset("policies_to_train")
    function = settings.policy_mapping_fn if isinstance(made, MadeMultiHostEnv) else None
    if slots is not None:
        config.multi_agent(max_agents=slots.number)
    elif function is None:
        config.unset("policy_mapping_fn")
    if slots is None and function is not None:
        config.multi_agent(mapping=dict(list_choices(agents)))
    elif slots is None and settings.mapping is None and settings.learners_league is None:
        mapping: list[Any] = [dict(pattern) for pattern in agents.patterns]
        config.multi_agent(mapping=mapping[0] if len(mapping) == 1 else mapping)
    if len(agents.trained) < len(agents.modules):
        config.multi_agent(policies_to_train=sorted(agents.trained))
    policies = config.multi_agent_settings.policies
    if policies is not None and not isinstance(policies, Mapping):
        config.multi_agent(policies=sorted({*agents.modules, *agents.drawn}))


def make_module_config(
    config: "Config", agents: AgentMapping, module: str, changes: Mapping[str, Any]
) -> "Config":
    """Return the config of one module of a run.

    Args:
        config: Config of the run.
        agents: Its agents.
        module: Id of the module.
        changes: Sizes of its rows.

    Raises:
        ConfigError: If a setting that differs for the module cannot.
    """
    own = config.copy(copy_frozen=False)
    own.module_id = module
    own.module_agents = agents.get_agents(DRAWN if module in agents.drawn else module)
    own.is_trained = module in agents.trained
    overrides, spec = (
        get_module_overrides(config.multi_agent_settings, module),
        _get_policy(config.multi_agent_settings.policies, module),
    )
    if isinstance(spec, PolicySpec):
        spec = spec.policy_class
    _set_module_spec(own, module, spec)
    _check_overrides(own, module, overrides)
    own.update_from_dict({**overrides, **changes})
    return own


def get_module_overrides(settings: MultiAgentSettings, module: str) -> dict[str, Any]:
    """Return the settings that differ for a module, from its PolicySpec and the overrides."""
    policies = settings.policies
    is_tuple = isinstance(policies, Mapping) and isinstance(policies.get(module), tuple | list)
    spec = _get_policy(policies, module)
    given = spec.config if isinstance(spec, PolicySpec) else None
    common = settings.algorithm_config_overrides_per_module.get(module)
    own, shared = _to_settings(given), _to_settings(common)
    _refuse_hidden_markers(module, {} if is_tuple else own)
    _refuse_hidden_markers(module, {} if isinstance(common, Mapping) else shared)
    return {**own, **shared}


def _refuse_hidden_markers(module: str, settings: Mapping[str, Any]) -> None:
    """Raise ConfigError if an object holds values to sweep, which are found in dictionaries alone."""
    for name, value in settings.items():
        if next(find_markers(value), None) is not None:
            raise ConfigError(
                f"The module {module!r} has {name}={value!r} in an object, and a sweep finds values in "
                f"dictionaries alone: set algorithm_config_overrides_per_module={{{module!r}: "
                f"{{{name!r}: {value!r}}}}}."
            )


def _get_policy(policies: Any, module: str) -> object:
    """Return the value of `policies` for a module, RLlib's tuple as a PolicySpec."""
    spec = policies.get(module) if isinstance(policies, Mapping) else None
    if isinstance(spec, tuple | list):
        return PolicySpec(*cast("tuple[Any, ...]", tuple(spec)))
    return spec


def _set_module_spec(config: "Config", module: str, spec: object) -> None:
    """Set the module's own specification, from `policies` or from a MultiRLModuleSpec."""
    from jaxrl.modules.rl_module import MultiRLModuleSpec, RLModuleSpec

    given = config.rl_module_settings.rl_module_spec
    if isinstance(given, MultiRLModuleSpec):
        own = given.rl_module_specs.get(module)
        if spec is not None and own is not None:
            raise ConfigError(
                f"policies and rl_module_spec both have a module for {module!r}; leave one out."
            )
        config.unset("rl_module_spec")
        spec = spec if own is None else own
    if spec is None:
        return
    if isinstance(spec, str):
        raise ConfigError(
            f"The class of the module {module!r} must be a class, got {spec!r}: its import path may "
            f"be an entry of policies, {{{module!r}: {spec!r}}}."
        )
    if isinstance(spec, RLModuleSpec) and spec.model_config is not None:
        model_config, common = spec.model_config, config.rl_module_settings.model_config
        if isinstance(model_config, Mapping) and isinstance(common, Mapping):
            model_config = {**common, **cast("Mapping[str, Any]", model_config)}
        config.rl_module(model_config=model_config)
        spec = dataclasses.replace(spec, model_config=None)
    config.rl_module(rl_module_spec=spec)


def check_module_ids(settings: MultiAgentSettings, spec: object, agents: AgentMapping) -> None:
    """Raise ConfigError if settings of modules name one that there is not."""
    from jaxrl.modules.rl_module import MultiRLModuleSpec

    known = (*agents.modules, *agents.drawn)
    names = {
        "algorithm_config_overrides_per_module": settings.algorithm_config_overrides_per_module,
        "rl_module_specs": spec.rl_module_specs if isinstance(spec, MultiRLModuleSpec) else {},
    }
    for setting, modules in names.items():
        unknown = next((str(name) for name in modules if name not in known), None)
        if unknown is not None:
            raise ConfigError(
                f"{setting} has {unknown!r}, but the modules are {', '.join(known)}."
                f"{did_you_mean(unknown, known)}"
            )


def has_own_spec(config: "Config", module: str) -> bool:
    """Return whether a MultiRLModuleSpec has a module."""
    from jaxrl.modules.rl_module import MultiRLModuleSpec

    spec = config.rl_module_settings.rl_module_spec
    return isinstance(spec, MultiRLModuleSpec) and module in spec.rl_module_specs


def _to_settings(overrides: Mapping[str, Any] | SetValues | None) -> dict[str, Any]:
    """Return overrides as a dictionary, from one or from a config's explicit settings."""
    if overrides is None:
        return {}
    if isinstance(overrides, Mapping):
        return dict(overrides)
    return {name: overrides[name] for name in overrides.explicit}


_SIZES = ("train_batch_size", "train_batch_size_per_learner")


def _check_overrides(config: "Config", module: str, overrides: Mapping[str, Any]) -> None:
    table = config.get_name_table()
    for name, value in overrides.items():
        group = table.group_by_setting.get(table.find_current_name(name) or "")
        where = f"algorithm_config_overrides_per_module[{module!r}]"
        if name in _SIZES and not isinstance(config.training_settings, OffPolicyTraining):
            raise ConfigError(
                f"{where} has {name}={value!r}, but all modules learn from the same steps of the "
                "environments: set it for the run."
            )
        if group is not None and group not in ("training_settings", "rl_module_settings"):
            raise ConfigError(
                f"{where} has {name}={value!r}, which is a setting of the whole run: only those of "
                "training() and rl_module() may differ."
            )


logger = logging.getLogger(__name__)

_NUM_STEPS = 200
"""Number of random steps in which agents are counted."""


def _give_slots(settings: MultiAgentSettings, made: MadeMultiHostEnv) -> MadeMultiHostEnv:
    """Return the environment with slots for agents that are not known before the run.

    Raises:
        ConfigError: If agents are known, a setting names them, or a module's spaces are not known.
    """
    number = settings.max_agents
    if made.has_all_agents:
        raise ConfigError(
            f"max_agents={number!r} has no effect: {made.id} names its agents "
            f"({len(made.possible_agents)} possible_agents), each of which has rows of its own; leave "
            "it out, or leave possible_agents empty."
        )
    for name, instead in (
        ("mapping", "set policy_mapping_fn, which is called for each of them"),
        ("observe_agent_id", "leave it out"),
        ("share_rewards", "leave it out, and share them in the environment"),
    ):
        if value := vars(settings)[name]:
            raise ConfigError(
                f"{name}={value!r} is of agents that are known before the run, and max_agents="
                f"{number!r} is for others: {instead}."
            )
    function = settings.policy_mapping_fn
    policies = {m: _get_policy(settings.policies, m) for m in _list_ids(settings.policies)}
    spaces = _find_slot_spaces(function, made, policies)
    if not isinstance(number, int):
        number = _count_agents(made)
    plan = AgentSlotPlan(
        number=number, spaces=spaces, mapping_fn=function and accept_worker(function)
    )
    return made.with_slots(plan)


def _find_slot_spaces(
    function: Mapped | None, made: MadeMultiHostEnv, policies: Mapping[str, object]
) -> dict[str, SpacePair]:
    """Return the spaces of each module: those that it is given, or of a first agent that it plays."""
    ids = list(policies)
    first = {a: (made.observation_spaces[a], made.action_spaces[a]) for a in made.possible_agents}
    if function is None:
        if len(ids) > 1:
            raise ConfigError(
                f"policies has {', '.join(ids)}, and nothing says which agents they play: set "
                "policy_mapping_fn, which is called for each agent that comes."
            )
        choices = dict.fromkeys(first, (ids[0] if ids else DEFAULT_MODULE,))
    else:
        choices = call_host_mapping(function, made, ids)
    found: dict[str, SpacePair] = {}
    for agent, modules in choices.items():
        for module in modules:
            found.setdefault(module, first[agent])
    for module, spec in policies.items():
        if isinstance(spec, PolicySpec) and spec.observation_space and spec.action_space:
            found[module] = (
                to_runner_space(spec.observation_space),
                to_runner_actions(spec.action_space),
            )
    for module in found:
        if ids and module not in ids:
            raise ConfigError(
                f"policy_mapping_fn gives an agent the module {module!r}, but policies has "
                f"{', '.join(ids)}: name it there."
            )
    missing = next((module for module in ids if module not in found), None)
    if missing is not None:
        raise ConfigError(
            f"The module {missing!r} plays none of the agents of a first episode, "
            f"{', '.join(first)}, so its spaces are not known: give them, policies={{{missing!r}: "
            "PolicySpec(observation_space=..., action_space=...), ...}."
        )
    return found


def _count_agents(made: MadeMultiHostEnv) -> int:
    """Return twice the largest number of agents that are present in random steps."""
    env = make_checked(made, EnvContext(made.env_config))
    try:
        obs: dict[str, PyTree] = {}
        largest, over = 1, True
        for step in range(_NUM_STEPS):
            if over:
                obs, over = env.reset(seed=step).obs, False
                present = set(obs)
            else:
                taken = env.step(sample_actions(env, obs, step))
                obs, over = taken.obs, taken.is_over
                present = {*taken.present, *taken.joined}
            largest = max(largest, len(present))
    finally:
        close_quietly(made.id, env)
    logger.info(
        "%s: at most %d agents were present in %d random steps; max_agents is %d",
        made.id,
        largest,
        _NUM_STEPS,
        2 * largest,
    )
    return 2 * largest


@dataclasses.dataclass(frozen=True, kw_only=True)
class NewModule:
    """Module to add to a run.

    Attributes:
        name: Its id.
        like: Module with the same architecture, whose settings it has; None if it has its own.
        spec: Its specification, if there is no such module.
        agents: Agents that it may play.
        overrides: Settings that differ from those of the run, beside those of `like`.
    """

    name: str
    like: str | None
    spec: "RLModuleSpec | None"
    agents: Collection[str]
    overrides: Mapping[str, Any]


def with_module(
    config: "Config",
    agents: AgentMapping,
    new: NewModule,
    mapping_fn: Mapped | None,
) -> "Config":
    """Return a config with one more module, not frozen.

    Args:
        config: Config of the run, prepared.
        agents: Its agents.
        new: The module.
        mapping_fn: The function that chooses modules from now on; None keeps that of before.

    Raises:
        ConfigError: If nothing would choose the module.
    """
    own = _copy_unfrozen(config)
    settings = own.multi_agent_settings
    if mapping_fn is None and settings.policy_mapping_fn is None:
        raise ConfigError(
            f"add_module({new.name!r}) would never play, because every agent has one module: give "
            "new_agent_to_module_mapping_fn, which chooses."
        )
    policies = settings.policies
    named = policies if isinstance(policies, Mapping) else dict.fromkeys(agents.modules)
    entries: dict[str, Any] = dict(named)
    entry = None if new.like is None else entries.get(new.like)
    own.multi_agent(policies={**entries, new.name: _add_spec(own, new) or entry})
    overrides = dict(settings.algorithm_config_overrides_per_module)
    wanted = {**_to_settings(overrides.get(new.like or "")), **new.overrides}
    if wanted:
        own.multi_agent(algorithm_config_overrides_per_module={**overrides, new.name: wanted})
    if mapping_fn is not None:
        own.multi_agent(policy_mapping_fn=mapping_fn)
    mapping: dict[str, Player] = {}
    for agent, names in list_choices(agents).items():
        mapping[agent] = [*names, *([new.name] * (agent in new.agents))]
    own.multi_agent(mapping=mapping)
    return own


def _add_spec(config: "Config", new: NewModule) -> "RLModuleSpec | None":
    """Add the module's specification beside those of others; return it if it is to stand alone."""
    from jaxrl.modules.rl_module import MultiRLModuleSpec

    given = config.rl_module_settings.rl_module_spec
    if not isinstance(given, MultiRLModuleSpec):
        return new.spec
    specs = dict(given.rl_module_specs)
    spec = new.spec if new.like is None else specs.get(new.like)
    if spec is not None:
        config.rl_module(
            rl_module_spec=MultiRLModuleSpec(rl_module_specs={**specs, new.name: spec})
        )
    return None


def with_trained(config: "Config", trained: Collection[str]) -> "Config":
    """Return a config that trains the given modules, not frozen."""
    own = _copy_unfrozen(config)
    own.multi_agent(policies_to_train=sorted(trained))
    return own


def with_mapping_fn(config: "Config", agents: AgentMapping, mapping_fn: Mapped) -> "Config":
    """Return a config whose modules another function chooses among those of now, not frozen."""
    own = _copy_unfrozen(config)
    choices: dict[str, Player] = dict(list_choices(agents))
    own.multi_agent(policy_mapping_fn=mapping_fn, mapping=choices)
    return own


def _copy_unfrozen(config: "Config") -> "Config":
    own = config.copy(copy_frozen=False)
    own.live_settings = frozenset()
    return own
