"""Agents and modules of a config: the mapping, the modules to train and each module's settings."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, cast

from jaxrl.config.settings.multi_agent import PolicySpec
from jaxrl.config.settings.replay import OffPolicyTraining
from jaxrl.core.spaces import is_same_space
from jaxrl.envs.multi.host_made import MadeMultiHostEnv
from jaxrl.envs.registry import MadeMultiEnv, is_multi_agent_spec, make_any, make_multi
from jaxrl.errors import ConfigError, did_you_mean
from jaxrl.metrics import DEFAULT_MODULE

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

_MODULE_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_NUM_CALLS = 3
"""Number of episodes that a mapping function is asked about, to see whether it is constant."""
_NUM_HOST_CALLS = 64
"""The same on the host, where a function that draws is allowed."""

Mapped = Callable[..., Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentMapping:
    """Agents of a run with the module of each.

    Attributes:
        mapping: Module of each agent, in the order of the environment's agents; the first of those
            that may play it.
        modules: All modules, sorted.
        trained: Modules that are trained.
        choices: All modules that may play an agent, for agents whose module is chosen anew in every
            episode.
    """

    mapping: dict[str, str]
    modules: tuple[str, ...]
    trained: frozenset[str]
    choices: dict[str, tuple[str, ...]] = dataclasses.field(
        default_factory=dict[str, tuple[str, ...]]
    )

    def get_agents(self, module: str) -> tuple[str, ...]:
        """Return the agents that a module may play."""
        return tuple(
            agent
            for agent, mapped in self.mapping.items()
            if module in self.choices.get(agent, (mapped,))
        )

    def count_agents(self, module: str) -> int:
        """Return the number of rows of a module in one environment: the agents that it may play."""
        return len(self.get_agents(module))


class _EpisodeStub:
    """Episode that a mapping function is called with; it exists before anything is played."""

    def __init__(self, index: int, *, on_host: bool) -> None:
        self.id_ = f"episode_{index}"
        self.env_t = self.env_t_started = 0
        if not on_host:
            self.episode_id = self.env_index = index

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"an episode has no '{name}' when policy_mapping_fn is called, which is before it begins"
        )


def has_several_agents(config: "AlgorithmConfig") -> bool:
    """Return whether a config is for several agents, by its environment or its modules."""
    settings = config.multi_agent_settings
    if settings.mapping is not None or _list_ids(settings.policies) not in ([], [DEFAULT_MODULE]):
        return True
    if settings.policy_mapping_fn is not None:
        return True
    env = config.environment_settings.env
    return env is not None and is_multi_agent_spec(env)


AnyMadeMulti = MadeMultiEnv | MadeMultiHostEnv


def make_agents_env(config: "AlgorithmConfig") -> AnyMadeMulti:
    """Make the environment of a config for several agents, written in JAX or in Python.

    Raises:
        JaxrlError: If it cannot be made, or has a single agent.
    """
    settings = config.environment_settings
    if settings.env is None:
        raise ConfigError(
            "env is not set: name one of several agents with .environment(env=...), or a class that "
            "make_multi_agent makes."
        )
    limit = settings.max_episode_steps
    made = make_any(settings.env, settings.env_config, max_episode_steps=limit)
    if isinstance(made, MadeMultiHostEnv):
        return made
    return make_multi(settings.env, settings.env_config, max_episode_steps=limit)


def make_jax_agents_env(config: "AlgorithmConfig") -> MadeMultiEnv:
    """Make the environment of a config whose agents are learned as one.

    Raises:
        JaxrlError: If it cannot be made, has a single agent, or is written in Python.
    """
    made = make_agents_env(config)
    if isinstance(made, MadeMultiHostEnv):
        raise ConfigError(
            f"{config.algo_name} trains a team in the compiled program, and {made.id} is written in "
            "Python: write it as a MultiAgentJaxEnv, or train its agents with PPO or DQN."
        )
    return made


def resolve_agents(config: "AlgorithmConfig", made: AnyMadeMulti | None = None) -> AgentMapping:
    """Return the agents of a config, with the module of each.

    Args:
        config: Config of the run.
        made: Its environment; None makes it where the config has no mapping.

    Raises:
        ConfigError: If an agent has no module, or a module is unknown or not a valid id.
    """
    settings = config.multi_agent_settings
    mapping, ids = settings.mapping, _list_ids(settings.policies)
    for module in ids:
        _check_module_id(module)
    if made is None and mapping is None:
        made = make_agents_env(config)
    agents = tuple(mapping or ()) if made is None else made.possible_agents
    mapped = _map_agents(config, agents, made, ids)
    choices = {agent: names for agent, names in mapped.items() if len(names) > 1}
    played = {module for names in mapped.values() for module in names}
    modules = tuple(sorted(played | set(ids)))
    unused = [module for module in modules if module not in played]
    if unused:
        raise ConfigError(
            f"policies has {unused[0]!r}, which plays none of the agents {', '.join(agents)}: map an "
            "agent to it, or leave it out."
        )
    return AgentMapping(
        mapping={agent: names[0] for agent, names in mapped.items()},
        modules=modules,
        trained=_find_trained(settings.policies_to_train, modules),
        choices=choices,
    )


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


def _check_module_id(module: str) -> None:
    if not _MODULE_ID.fullmatch(module):
        raise ConfigError(
            f"policies has the id {module!r}, which names files and parts of a checkpoint: use "
            "letters, digits, '_' and '-'."
        )


def _map_agents(
    config: "AlgorithmConfig", agents: tuple[str, ...], made: AnyMadeMulti | None, ids: list[str]
) -> dict[str, tuple[str, ...]]:
    """Return the modules that may play each agent, most often a single one."""
    settings = config.multi_agent_settings
    if settings.mapping is not None:
        mapped, source = _read_mapping(config, agents, made), "mapping"
    elif settings.policy_mapping_fn is not None:
        mapped = _call_mapping(settings.policy_mapping_fn, agents, made, ids)
        source = "policy_mapping_fn"
    elif len(ids) > 1:
        raise ConfigError(
            f"policies has {', '.join(ids)}, and nothing says which agents they play: set mapping, "
            f"such as {{{agents[0]!r}: {ids[0]!r}, ...}}, or policy_mapping_fn."
        )
    else:
        mapped = dict.fromkeys(agents, (ids[0] if ids else DEFAULT_MODULE,))
        source = "policies"
    for agent, modules in mapped.items():
        for module in modules:
            _check_module_id(module)
            if ids and module not in ids:
                raise ConfigError(
                    f"{source} gives the agent {agent!r} the module {module!r}, but policies has "
                    f"{', '.join(ids)}.{did_you_mean(module, ids)}"
                )
    return mapped


def _read_mapping(
    config: "AlgorithmConfig", agents: tuple[str, ...], made: AnyMadeMulti | None
) -> dict[str, tuple[str, ...]]:
    """Return the modules of each agent that the setting `mapping` names."""
    settings = config.multi_agent_settings
    mapping = settings.mapping or {}
    named = {
        agent: (names,) if isinstance(names, str) else tuple(dict.fromkeys(names))
        for agent, names in mapping.items()
    }
    several = next((agent for agent, names in named.items() if len(names) != 1), None)
    if several is None and settings.policy_mapping_fn is not None:
        raise ConfigError(
            "mapping and policy_mapping_fn both say which module plays an agent; set one."
        )
    if several is not None and (settings.policy_mapping_fn is None or not named[several]):
        raise ConfigError(
            f"mapping gives the agent {several!r} the modules {list(named[several])}, one of which "
            "plays it in each episode: name at least one, and set policy_mapping_fn, which chooses."
        )
    if several is not None and isinstance(made, MadeMultiEnv):
        raise ConfigError(
            f"mapping gives the agent {several!r} several modules, but who plays is part of the "
            "compiled program: name one."
        )
    unknown = next((agent for agent in named if agent not in agents), None)
    if unknown is not None:
        raise ConfigError(
            f"mapping names the agent {unknown!r}, but the environment has {', '.join(agents)}."
            f"{did_you_mean(unknown, agents)}"
        )
    missing = next((agent for agent in agents if agent not in named), None)
    if missing is not None:
        raise ConfigError(f"mapping has no module for the agent {missing!r}: add one.")
    return {agent: named[agent] for agent in agents}


def _call_mapping(
    function: Mapped, agents: tuple[str, ...], made: AnyMadeMulti | None, ids: list[str]
) -> dict[str, tuple[str, ...]]:
    """Return the modules that a user's function gives each agent.

    In the compiled program it must be the same for every call. On the host, an agent for which the
    function gives several may be played by any module of `policies` that has its spaces.
    """
    on_host = isinstance(made, MadeMultiHostEnv)
    found = {agent: _call_often(function, agent, on_host=on_host) for agent in agents}
    for agent, modules in found.items():
        if len(modules) > 1 and not on_host:
            raise ConfigError(
                f"policy_mapping_fn gives the agent {agent!r} different modules ("
                f"{', '.join(modules)}), but who plays is part of the compiled program: return the "
                f"same for every call, such as mapping={{{agent!r}: {modules[0]!r}}}."
            )
    if not isinstance(made, MadeMultiHostEnv):
        return found
    return {
        agent: modules if len(modules) == 1 else _find_choices(agent, found, made, ids)
        for agent, modules in found.items()
    }


def _find_choices(
    agent: str, found: dict[str, tuple[str, ...]], made: MadeMultiHostEnv, ids: list[str]
) -> tuple[str, ...]:
    """Return the modules that may play an agent: those it was given, and others of its spaces."""
    spaces = made.observation_spaces, made.action_spaces

    def may_play(module: str) -> bool:
        others = [other for other, modules in found.items() if module in modules]
        return all(is_same_space(by[agent], by[other]) for by in spaces for other in others)

    given = found[agent]
    return (*given, *(module for module in ids if module not in given and may_play(module)))


def _call_often(function: Mapped, agent: str, *, on_host: bool) -> tuple[str, ...]:
    """Return all modules that a user's function gives an agent in several calls."""
    number = _NUM_HOST_CALLS if on_host else _NUM_CALLS
    stubs = [_EpisodeStub(index, on_host=on_host) for index in range(number)]
    found = [_call_once(function, agent, stub) for stub in stubs for _ in range(2)]
    for module in found:
        if not isinstance(module, str):
            raise ConfigError(
                f"policy_mapping_fn must return the id of a module, got {module!r} for {agent!r}."
            )
    return tuple(sorted({str(module) for module in found}))


def _call_once(function: Mapped, agent: str, episode: _EpisodeStub) -> object:
    """Call a mapping function; agents of numbers are numbers to it, as RLlib's are."""
    names: list[Any] = [int(agent), agent] if agent.isdecimal() else [agent]
    for name in names:
        try:
            return function(name, episode)
        except Exception as error:
            if name is not names[-1]:
                continue
            raise ConfigError(
                f"policy_mapping_fn raised {type(error).__name__} for the agent {agent!r}: {error}."
            ) from error
    raise AssertionError


def _find_trained(
    setting: Iterable[str] | Callable[..., Any] | None, modules: tuple[str, ...]
) -> frozenset[str]:
    if setting is None:
        return frozenset(modules)
    if callable(setting):
        chosen = [module for module in modules if _is_trained(setting, module)]
    else:
        chosen = [str(module) for module in setting]
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


def _is_trained(function: Mapped, module: str) -> bool:
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


def prepare_agents(config: "AlgorithmConfig") -> None:
    """Replace functions of ids by what they return, so that a config can be saved and loaded."""
    agents = resolve_agents(config, make_agents_env(config))
    config.unset("policies_to_train")
    if not agents.choices:
        config.unset("policy_mapping_fn")
    mapping = {
        agent: list(agents.choices[agent]) if agent in agents.choices else module
        for agent, module in agents.mapping.items()
    }
    config.multi_agent(mapping=mapping)
    if len(agents.trained) < len(agents.modules):
        config.multi_agent(policies_to_train=sorted(agents.trained))
    policies = config.multi_agent_settings.policies
    if policies is not None and not isinstance(policies, Mapping):
        config.multi_agent(policies=list(agents.modules))


def make_module_config(
    config: "AlgorithmConfig", agents: AgentMapping, module: str, changes: Mapping[str, Any]
) -> "AlgorithmConfig":
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
    own.is_trained = module in agents.trained
    overrides, spec = get_module_overrides(config, module), _get_policy(config, module)
    if isinstance(spec, PolicySpec):
        spec = spec.policy_class
    _set_module_spec(own, module, spec)
    _check_overrides(own, module, overrides)
    own.update_from_dict({**overrides, **changes})
    return own


def get_module_overrides(config: "AlgorithmConfig", module: str) -> dict[str, Any]:
    """Return the settings that differ for a module, from its PolicySpec and the overrides."""
    spec = _get_policy(config, module)
    own = _to_settings(spec.config) if isinstance(spec, PolicySpec) else {}
    settings = config.multi_agent_settings.algorithm_config_overrides_per_module
    return {**own, **_to_settings(settings.get(module))}


def _get_policy(config: "AlgorithmConfig", module: str) -> object:
    """Return the value of `policies` for a module, RLlib's tuple as a PolicySpec."""
    policies = config.multi_agent_settings.policies
    spec = policies.get(module) if isinstance(policies, Mapping) else None
    if isinstance(spec, tuple | list):
        return PolicySpec(*cast("tuple[Any, ...]", tuple(spec)))
    return spec


def _set_module_spec(config: "AlgorithmConfig", module: str, spec: object) -> None:
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


def check_module_ids(config: "AlgorithmConfig", agents: AgentMapping) -> None:
    """Raise ConfigError if settings of modules name one that there is not."""
    from jaxrl.modules.rl_module import MultiRLModuleSpec

    spec = config.rl_module_settings.rl_module_spec
    names = {
        "algorithm_config_overrides_per_module": (
            config.multi_agent_settings.algorithm_config_overrides_per_module
        ),
        "rl_module_specs": spec.rl_module_specs if isinstance(spec, MultiRLModuleSpec) else {},
    }
    for setting, modules in names.items():
        unknown = next((str(name) for name in modules if name not in agents.modules), None)
        if unknown is not None:
            raise ConfigError(
                f"{setting} has {unknown!r}, but the modules are {', '.join(agents.modules)}."
                f"{did_you_mean(unknown, agents.modules)}"
            )


def _to_settings(overrides: "Mapping[str, Any] | AlgorithmConfig | None") -> dict[str, Any]:
    """Return overrides as a dictionary, from one or from a config's explicit settings."""
    if overrides is None:
        return {}
    if isinstance(overrides, Mapping):
        return dict(overrides)
    return {name: overrides[name] for name in overrides.explicit}


_SIZES = ("train_batch_size", "train_batch_size_per_learner")


def _check_overrides(config: "AlgorithmConfig", module: str, overrides: Mapping[str, Any]) -> None:
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
