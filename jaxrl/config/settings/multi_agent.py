"""Settings of several agents: which module plays which agent, and which modules are trained."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from jaxrl.config.fields import field
from jaxrl.config.imports import RL_MODULE

if TYPE_CHECKING:
    import gymnasium

    from jaxrl.config.base import AlgorithmConfig


@dataclasses.dataclass(frozen=True)
class PolicySpec:
    """Specification of a module in `multi_agent(policies=...)`, with RLlib's fields.

    Attributes:
        policy_class: Class of the module, a subclass of RLModule; None is the algorithm's.
        observation_space: Observation space, compared with that of the module's agents.
        action_space: Action space, likewise.
        config: Settings that differ for this module, as a dictionary or a config.
    """

    policy_class: type[Any] | None = None
    observation_space: "gymnasium.Space[Any] | None" = None
    action_space: "gymnasium.Space[Any] | None" = None
    config: "Mapping[str, Any] | AlgorithmConfig | None" = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiAgentSettings:
    """Modules of a run of several agents."""

    policies: Any = field(
        default=None,
        import_path=dataclasses.replace(RL_MODULE, by_name=True),
        doc="Ids of the modules: a list or set of names, or a dictionary from a name to a "
        "PolicySpec, an RLModuleSpec, an RLModule class or None. None is the names that the mapping "
        "has, by default 'default_policy' for all agents.",
    )
    mapping: dict[str, str | list[str]] | None = field(
        default=None,
        doc="Module of each agent, such as {'player_0': 'learned', 'player_1': 'random'}; None is "
        "what policy_mapping_fn returns. A list has the modules that policy_mapping_fn chooses from "
        "in every episode, for an environment in Python. A built Algorithm has the whole mapping "
        "here.",
    )
    policy_mapping_fn: Callable[..., Any] | None = field(
        default=None,
        import_path=True,
        doc="Function of (agent_id, episode) that returns the id of the agent's module. It is called "
        "when the run is built, and must return the same for every call; for an environment in "
        "Python it may return different modules, and is then called once for each agent and episode.",
    )
    policies_to_train: list[str] | Callable[..., Any] | None = field(
        default=None,
        doc="Ids of the modules to train, or a function of an id; None is all that can be trained. "
        "Other modules play with the parameters that they have.",
    )
    count_steps_by: Literal["env_steps", "agent_steps"] = field(
        default="env_steps",
        doc="Unit of train_batch_size: steps of environments, or rows of agents.",
    )
    algorithm_config_overrides_per_module: dict[str, Any] = field(
        default={},
        doc="Settings of training() and rl_module() that differ for a module, by its id, such as "
        "{'p0': PPOConfig.overrides(lr=1e-4)}.",
    )
    observe_agent_id: bool = field(
        default=False,
        doc="Whether agents that share a module observe which of them they are: a one-hot id, which "
        "extends a vector, and is the part 'agent_id' of any other observation.",
    )
    share_rewards: Literal["team", "all"] | None = field(
        default=None,
        doc="Agents that learn from the mean of their rewards: those of each team, or all; None is "
        "each from its own. Reported returns are those of the environment.",
    )
