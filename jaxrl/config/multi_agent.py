"""Agents and modules of a config: the mapping, the modules to train and each module's settings."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, cast

from jaxrl.config.settings.multi_agent import PolicySpec
from jaxrl.config.settings.replay import OffPolicyTraining
from jaxrl.envs.multi.base import MultiAgentJaxEnv
from jaxrl.envs.registry import MadeMultiEnv, is_multi_agent_spec, make_multi
from jaxrl.errors import ConfigError, did_you_mean
from jaxrl.metrics import DEFAULT_MODULE

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

_MODULE_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_NUM_CALLS = 3
"""Number of episodes that a mapping function is asked about, to see whether it is constant."""

Mapped = Callable[..., Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentMapping:
    """Agents of a run with the module of each.

    Attributes:
        mapping: Module of each agent, in the order of the environment's agents.
        modules: All modules, sorted.
        trained: Modules that are trained.
    """

    mapping: dict[str, str]
    modules: tuple[str, ...]
    trained: frozenset[str]

    def count_agents(self, module: str) -> int:
        """Return the number of a module's agents in one environment."""
        return sum(mapped == module for mapped in self.mapping.values())


class _EpisodeStub:
    """Episode that a mapping function is called with; it exists before anything is played."""

    def __init__(self, index: int) -> None:
        self.id_, self.episode_id, self.env_index = f"episode_{index}", index, index

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"an episode has no '{name}' when policy_mapping_fn is called, which is before it begins"
        )


def has_several_agents(config: "AlgorithmConfig") -> bool:
    """Return whether a config is for several agents, by its environment or its modules."""
    settings = config.multi_agent_settings
    if settings.mapping is not None or _list_ids(settings.policies) not in ([], [DEFAULT_MODULE]):
        return True
    env = config.environment_settings.env
    return env is not None and is_multi_agent_spec(env)


def make_agents_env(config: "AlgorithmConfig") -> MadeMultiEnv:
    """Make the environment of a config for several agents.

    Raises:
        JaxrlError: If it cannot be made, or has a single agent.
    """
    settings = config.environment_settings
    if settings.env is None:
        raise ConfigError(
            "env is not set: name one of several agents with .environment(env=...), or a class that "
            "make_multi_agent makes."
        )
    return make_multi(
        settings.env, settings.env_config, max_episode_steps=settings.max_episode_steps
    )


def resolve_agents(
    config: "AlgorithmConfig", env: MultiAgentJaxEnv[Any, Any] | None = None
) -> AgentMapping:
    """Return the agents of a config, with the module of each.

    Args:
        config: Config of the run.
        env: Its environment; None makes it where the config has no mapping.

    Raises:
        ConfigError: If an agent has no module, or a module is unknown or not a valid id.
    """
    settings = config.multi_agent_settings
    mapping, ids = settings.mapping, _list_ids(settings.policies)
    for module in ids:
        _check_module_id(module)
    if env is None and mapping is None:
        env = make_agents_env(config).env
    agents = tuple(mapping or ()) if env is None else env.possible_agents
    mapping = _map_agents(config, agents, ids)
    modules = tuple(sorted(set(mapping.values()) | set(ids)))
    unused = [module for module in modules if module not in mapping.values()]
    if unused:
        raise ConfigError(
            f"policies has {unused[0]!r}, which plays none of the agents {', '.join(agents)}: map an "
            "agent to it, or leave it out."
        )
    return AgentMapping(
        mapping=mapping, modules=modules, trained=_find_trained(settings.policies_to_train, modules)
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
    config: "AlgorithmConfig", agents: tuple[str, ...], ids: list[str]
) -> dict[str, str]:
    settings = config.multi_agent_settings
    if settings.mapping is not None:
        if settings.policy_mapping_fn is not None:
            raise ConfigError(
                "mapping and policy_mapping_fn both say which module plays an agent; set one."
            )
        unknown = next((agent for agent in settings.mapping if agent not in agents), None)
        if unknown is not None:
            raise ConfigError(
                f"mapping names the agent {unknown!r}, but the environment has {', '.join(agents)}."
                f"{did_you_mean(unknown, agents)}"
            )
        missing = next((agent for agent in agents if agent not in settings.mapping), None)
        if missing is not None:
            raise ConfigError(f"mapping has no module for the agent {missing!r}: add one.")
        mapped = {agent: settings.mapping[agent] for agent in agents}
        source = "mapping"
    elif settings.policy_mapping_fn is not None:
        fn = settings.policy_mapping_fn
        mapped = {agent: _call_mapping(fn, agent) for agent in agents}
        source = "policy_mapping_fn"
    elif len(ids) > 1:
        raise ConfigError(
            f"policies has {', '.join(ids)}, and nothing says which agents they play: set mapping, "
            f"such as {{{agents[0]!r}: {ids[0]!r}, ...}}, or policy_mapping_fn."
        )
    else:
        mapped = dict.fromkeys(agents, ids[0] if ids else DEFAULT_MODULE)
        source = "policies"
    for agent, module in mapped.items():
        _check_module_id(module)
        if ids and module not in ids:
            raise ConfigError(
                f"{source} gives the agent {agent!r} the module {module!r}, but policies has "
                f"{', '.join(ids)}.{did_you_mean(module, ids)}"
            )
    return mapped


def _call_mapping(function: Mapped, agent: str) -> str:
    """Return the module that a user's function gives an agent, the same for every call."""
    found = [_call_once(function, agent, index) for index in range(_NUM_CALLS) for _ in range(2)]
    if any(module != found[0] for module in found):
        raise ConfigError(
            f"policy_mapping_fn gives the agent {agent!r} different modules ("
            f"{', '.join(sorted({str(m) for m in found}))}), but who plays is part of the compiled "
            f"program: return the same for every call, such as mapping={{{agent!r}: {found[0]!r}}}."
        )
    if not isinstance(found[0], str):
        raise ConfigError(
            f"policy_mapping_fn must return the id of a module, got {found[0]!r} for {agent!r}."
        )
    return found[0]


def _call_once(function: Mapped, agent: str, index: int) -> object:
    """Call a mapping function; agents of numbers are numbers to it, as RLlib's are."""
    names: list[Any] = [int(agent), agent] if agent.isdecimal() else [agent]
    for name in names:
        try:
            return function(name, _EpisodeStub(index))
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
    agents = resolve_agents(config, make_agents_env(config).env)
    config.unset("policy_mapping_fn", "policies_to_train")
    config.multi_agent(mapping=agents.mapping)
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
