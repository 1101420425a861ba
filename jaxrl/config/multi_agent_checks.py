"""Checks of configs for several agents: what has no effect, or is not there, with the reason."""

from typing import TYPE_CHECKING

from jaxrl.config.agent_mapping import AgentMapping
from jaxrl.config.modules import check_model_config
from jaxrl.config.multi_agent import (
    AnyMadeMulti,
    check_module_ids,
    make_agents_env,
    resolve_agents,
)
from jaxrl.config.settings.actor_critic import check_critics
from jaxrl.config.settings.league import PopulationPlay
from jaxrl.config.settings.multi_agent import MultiAgentSettings
from jaxrl.envs.multi.made import MadeMultiEnv
from jaxrl.errors import ConfigError
from jaxrl.metrics import DEFAULT_MODULE

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

_RLLIB_CAPACITY = 100
"""RLlib's default of `policy_map_capacity`, which its saved configs have."""
_COMPILED = "agents are trained in the compiled program of this process"
_ALLOWED: dict[str, tuple[tuple[object, ...], str]] = {
    "num_env_runners": ((0,), f"{_COMPILED}; set 0"),
    "placement": (("auto", "in_graph"), f"{_COMPILED}; leave it out"),
    "num_learners": ((0,), f"{_COMPILED}; set 0"),
    "evaluation_num_env_runners": ((0,), "agents are evaluated in this process; set 0"),
    "broadcast_interval": ((1,), "agents act with the newest parameters; set 1"),
    "curriculum": ((None,), "tasks are chosen for environments of a single agent; leave it out"),
    "env_task_fn": ((None,), "tasks are chosen for environments of a single agent; leave it out"),
    "record_video": ((False, None), "only episodes of a single agent are recorded; leave it out"),
    "input_": (
        ("sampler",),
        "recorded rows are those of one module; learn from them without env, for example with BC",
    ),
}
"""Settings with their values that a run of several agents supports, and the reason."""
_ALLOWED_ON_HOST: dict[str, tuple[tuple[object, ...], str]] = {
    **{
        name: rule
        for name, rule in _ALLOWED.items()
        if name
        not in (
            "num_env_runners",
            "num_learners",
            "evaluation_num_env_runners",
            "broadcast_interval",
        )
    },
    "placement": (
        ("auto", "host"),
        "the environment is written in Python, which runs on the host; leave it out",
    ),
    "batch_mode": (
        ("truncate_episodes",),
        "rows that are pending at the end of a train batch go on in the next one; leave it out",
    ),
    "gym_env_vectorize_mode": (
        ("auto", "sync", "async"),
        "each copy of an environment of several agents is stepped by itself; use 'sync' or 'async'",
    ),
    "env_runner_cls": ((None,), "agents have a runner of their own kind; leave it out"),
    "reset_mode": (("auto",), "a Python environment is reset where its episode ends; leave it out"),
}
"""The same where the environment is written in Python."""

_NOT_OF_TEAMS: dict[str, tuple[tuple[object, ...], str]] = {
    "output": ((None,), "a team's steps are those of all its members; leave it out"),
}
"""The same for a team, wherever its environment is."""

_ALLOWED_FOR_TEAM_ON_HOST: dict[str, tuple[tuple[object, ...], str]] = {
    **{name: rule for name, rule in _ALLOWED.items() if name != "placement"},
    **_NOT_OF_TEAMS,
    **dict.fromkeys(
        ("num_env_runners", "num_learners", "evaluation_num_env_runners"),
        ((0,), "a team in Python is stepped and trained in this process; set 0"),
    ),
    "placement": _ALLOWED_ON_HOST["placement"],
    "gym_env_vectorize_mode": (
        ("auto", "sync"),
        "copies of a team's environment are stepped in one process; leave it out",
    ),
}
"""The same for a team whose environment is written in Python."""


def check_agents(config: "AlgorithmConfig") -> None:
    """Check the constraints between the settings of several agents.

    Raises:
        ConfigError: If one is not supported with several agents, or a module's settings are wrong.
    """
    made = make_agents_env(config)
    check_placed(config, made)
    if getattr(config.algo_class, "compiled_training_step", None) is not None:
        raise ConfigError(
            "An own compiled_training_step has the rows of a single module, but the environment has "
            "several agents: leave it out."
        )
    agents = resolve_agents(config, made)
    check_module_ids(config, agents)
    is_shared = any(
        sum(any(own[agent] == module for own in agents.players) for agent in agents.agents) > 1
        for module in agents.modules
    )
    if config.multi_agent_settings.observe_agent_id and not is_shared:
        raise ConfigError(
            "observe_agent_id=True has no effect: no module is shared, each plays a single agent; "
            "leave it out."
        )
    _check_evaluated(config, agents)
    if not agents.draws:
        if config.multi_agent_settings.self_play is not None:
            raise ConfigError(
                "league=SelfPlay(...) has no effect: the mapping draws no opponents; set one such as "
                "mapping=Seats('main', Draw()), with policies={'main': None, 'random': RandomRLModule}."
            )
        _check_capacity(config, "the mapping draws no opponents")
    elif isinstance(config.multi_agent_settings.any_league, PopulationPlay):
        _check_capacity(config, "learners of PopulationPlay(...) meet each other, not snapshots")
    for module in agents.modules:
        own = config.get_module_config(module)
        check_critics(own.training_settings, type(own).training_settings)
        check_model_config(own)


def _check_evaluated(config: "AlgorithmConfig", agents: AgentMapping) -> None:
    """Raise ConfigError if a module plays in none of the environments of an evaluation."""
    number = config.evaluation_settings.evaluation_num_envs
    if not isinstance(number, int):
        return
    playing = {module for own in agents.players[:number] for module in own.values()}
    absent = next((m for m in agents.modules if m not in playing and not agents.choices), None)
    if absent is not None:
        raise ConfigError(
            f"evaluation_num_envs={number} leaves no environment to {absent!r}, because the mapping "
            f"differs between {len(agents.patterns)} successive ones: set {len(agents.patterns)}, or "
            "leave it out."
        )


def check_placed(config: "AlgorithmConfig", made: AnyMadeMulti) -> None:
    """Raise ConfigError if a setting asks for what is not there where the environment is stepped."""
    if isinstance(made, MadeMultiEnv):
        _check_allowed(config, _ALLOWED)
        return
    _check_allowed(config, _ALLOWED_ON_HOST)
    number, runners = config.multi_agent_settings.max_agents, config.env_runners_settings
    if number is not None and runners.gym_env_vectorize_mode == "async":
        raise ConfigError(
            f"gym_env_vectorize_mode='async' is not supported with max_agents={number!r}, because agents "
            "without known ids have their modules from the process that acts; use 'sync', or "
            "num_env_runners for actors."
        )


def check_team_on_host(config: "AlgorithmConfig") -> None:
    """Raise ConfigError if a setting asks for what a team in Python does not do."""
    _check_allowed(config, _ALLOWED_FOR_TEAM_ON_HOST)


def check_compiled(config: "AlgorithmConfig") -> None:
    """Raise ConfigError if a setting asks for what the compiled program of a team does not do."""
    _check_allowed(config, {**_ALLOWED, **_NOT_OF_TEAMS})


def _check_allowed(
    config: "AlgorithmConfig", table: dict[str, tuple[tuple[object, ...], str]]
) -> None:
    for name, (allowed, reason) in table.items():
        if config.get_name_table().find_current_name(name) != name:
            continue  # of another algorithm
        value = config[name]
        if value not in allowed:
            raise ConfigError(f"{name}={value!r} is not supported with several agents: {reason}.")
    if config.env_runners_settings.num_envs_per_env_runner == "auto":
        raise ConfigError(
            "num_envs_per_env_runner='auto' is not supported with several agents: it measures a "
            "program with a single module; set a number, or leave it out."
        )


def _check_capacity(config: "AlgorithmConfig", reason: str) -> None:
    """Raise ConfigError if a number of opponents is set that has no effect."""
    capacity = config.multi_agent_settings.policy_map_capacity
    if capacity not in (MultiAgentSettings().policy_map_capacity, _RLLIB_CAPACITY):
        raise ConfigError(f"policy_map_capacity={capacity} has no effect: {reason}; leave it out.")


def check_single_agent(config: "AlgorithmConfig") -> None:
    """Raise ConfigError if a setting of several agents has no effect, because there is one."""
    settings = config.multi_agent_settings
    _check_capacity(config, "the environment has a single agent")
    for name in (
        "policies",
        "policy_mapping_fn",
        "policies_to_train",
        "league",
        "algorithm_config_overrides_per_module",
        "observe_agent_id",
        "share_rewards",
        "max_agents",
    ):
        value = vars(settings)[name]
        if value and not (name == "policies_to_train" and value == [DEFAULT_MODULE]):
            raise ConfigError(
                f"{name}={value!r} has no effect: the environment has a single agent, whose settings "
                "are those of the config; leave it out."
            )
