"""Configs of a run of several agents in Python to which a module is added, or another one trained."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from jaxrl.config.agent_mapping import AgentMapping, Mapped
from jaxrl.config.host_mapping import list_choices
from jaxrl.config.settings.multi_agent import Player
from jaxrl.errors import ConfigError

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig
    from jaxrl.modules.rl_module import RLModuleSpec


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
    config: "AlgorithmConfig",
    agents: AgentMapping,
    new: NewModule,
    mapping_fn: Mapped | None,
) -> "AlgorithmConfig":
    """Return a config with one more module, not frozen.

    Args:
        config: Config of the run, prepared.
        agents: Its agents.
        new: The module.
        mapping_fn: The function that chooses modules from now on; None keeps that of before.

    Raises:
        ConfigError: If nothing would choose the module.
    """
    own = _copy(config)
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
    wanted = {**_to_dict(overrides.get(new.like or "")), **new.overrides}
    if wanted:
        own.multi_agent(algorithm_config_overrides_per_module={**overrides, new.name: wanted})
    if mapping_fn is not None:
        own.multi_agent(policy_mapping_fn=mapping_fn)
    mapping: dict[str, Player] = {}
    for agent, names in list_choices(agents).items():
        mapping[agent] = [*names, *([new.name] * (agent in new.agents))]
    own.multi_agent(mapping=mapping)
    return own


def _add_spec(config: "AlgorithmConfig", new: NewModule) -> "RLModuleSpec | None":
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


def with_trained(config: "AlgorithmConfig", trained: Collection[str]) -> "AlgorithmConfig":
    """Return a config that trains the given modules, not frozen."""
    own = _copy(config)
    own.multi_agent(policies_to_train=sorted(trained))
    return own


def with_mapping_fn(
    config: "AlgorithmConfig", agents: AgentMapping, mapping_fn: Mapped
) -> "AlgorithmConfig":
    """Return a config whose modules another function chooses among those of now, not frozen."""
    own = _copy(config)
    choices: dict[str, Player] = dict(list_choices(agents))
    own.multi_agent(policy_mapping_fn=mapping_fn, mapping=choices)
    return own


def _copy(config: "AlgorithmConfig") -> "AlgorithmConfig":
    own = config.copy(copy_frozen=False)
    own.live_settings = frozenset()
    return own


def _to_dict(overrides: "Mapping[str, Any] | AlgorithmConfig | None") -> dict[str, Any]:
    if overrides is None or isinstance(overrides, Mapping):
        return dict(overrides or {})
    return {name: overrides[name] for name in overrides.explicit}
