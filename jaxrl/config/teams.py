"""Teams of a config: the agents of an environment that are learned as one agent, as in QMIX."""

import dataclasses
from typing import TYPE_CHECKING

from jaxrl.config.multi_agent import AnyMadeMulti, make_agents_env, make_state_error
from jaxrl.config.validate import check_supported
from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.model import with_state
from jaxrl.envs.multi.groups import GroupReward as GroupReward
from jaxrl.envs.multi.groups import group_agents
from jaxrl.envs.multi.host_made import MadeMultiHostEnv
from jaxrl.envs.multi.host_team import HostTeamCreator
from jaxrl.envs.multi.made import MadeMultiEnv
from jaxrl.envs.registry import AnyMadeEnv, MadeEnv, make, make_any
from jaxrl.errors import ConfigError, JaxrlError

if TYPE_CHECKING:
    from jaxrl.config.config import Config

TEAM = "team"
"""Name of the team of an environment that names none."""
_PER_MODULE = (
    "policies",
    "mapping",
    "policy_mapping_fn",
    "policies_to_train",
    "league",
    "algorithm_config_overrides_per_module",
    "max_agents",
)


def make_team(config: "Config") -> AnyMadeEnv:
    """Make the environment of a config with all its agents as one agent.

    It observes who acts, the members' last rewards if the algorithm learns from them, and the
    global state if there is one that the algorithm reads.

    Raises:
        JaxrlError: If the environment cannot be made, has a single agent, or several teams.
    """
    made = make_agents_env(config.environment_settings, config.multi_agent_settings)
    settings = config.environment_settings
    if isinstance(made, MadeMultiHostEnv):
        return _make_host_team(config, made)
    team = group_agents(
        settings.env,
        _get_groups(config, made),
        config.resolve_team_reward(),
        member_mask=True,
        member_rewards=config.learns_member_rewards,
        global_state=config.team_reads_state and made.state_space is not None,
        env_config=settings.env_config,
    )
    grouped = make(team, max_episode_steps=settings.max_episode_steps)
    assert isinstance(grouped, MadeEnv)
    return MadeEnv(env=grouped.env, params=grouped.params, id=made.id, notes=made.notes)


def _make_host_team(config: "Config", made: MadeMultiHostEnv) -> MadeHostEnv:
    """Make the team of an environment that is written in Python."""
    ((name, _),) = _get_groups(config, made).items()
    create = HostTeamCreator(
        made=dataclasses.replace(made, max_episode_steps=None),
        name=name,
        reward=config.resolve_team_reward(),
        member_rewards=config.learns_member_rewards,
        global_state=config.team_reads_state and made.state_space is not None,
    )
    context = config.environment_settings.env_config
    grouped = make(create, context, max_episode_steps=made.max_episode_steps)
    assert isinstance(grouped, MadeHostEnv)
    return dataclasses.replace(grouped, id=made.id, notes=made.notes)


def make_named_env(config: "Config") -> AnyMadeEnv:
    """Make the environment that a config names: of a single agent, or of a team that is one.

    Raises:
        JaxrlError: If it cannot be made.
    """
    if config.groups_agents:
        return make_team(config)
    settings = config.environment_settings
    assert settings.env is not None
    made = make(
        settings.env,
        settings.env_config,
        max_episode_steps=settings.max_episode_steps,
        is_atari=settings.is_atari,
    )
    if not settings.observe_state:
        return made
    if isinstance(made, MadeHostEnv):
        raise make_state_error(made.id)
    return with_state(made)


def describe_team(config: "Config") -> list[str]:
    """Return a sentence on who is grouped; none if the environment cannot be made, which raises later."""
    if config.environment_settings.env is None:
        return []
    try:
        made = make_agents_env(config.environment_settings, config.multi_agent_settings)
        ((_, members),) = _get_groups(config, made).items()
    except JaxrlError:
        return []
    has_state = made.state_space is not None
    state = "its global state" if has_state else "all observations, since it has no global state"
    if config.learns_member_rewards:
        state = f"all observations and actions{', and its global state' if has_state else ''}"
    who = f"{config.algo_name} trains the agents of {made.id} as one team ({', '.join(members)})"
    how = f"a member acts on its own observation, and what is learned jointly sees {state}"
    if not config.team_reads_state:
        how = "a member acts on its own observation, which is all that its values see"
    return [f"{who}: {how}."]


def check_team(config: "Config") -> None:
    """Check the settings of a config whose agents are one team.

    Raises:
        ConfigError: If a setting has no effect on a team, or is not supported with one.
    """
    settings = config.multi_agent_settings
    for name in _PER_MODULE:
        if value := vars(settings)[name]:
            raise ConfigError(
                f"{name}={value!r} has no effect on {config.algo_name}, which trains all agents as "
                "one team with one module: leave it out."
            )
    if settings.share_rewards is not None:
        raise ConfigError(
            f"share_rewards={settings.share_rewards!r} has no effect on {config.algo_name}, whose "
            "agents are one team: leave it out."
        )
    if settings.count_steps_by != "env_steps":
        raise ConfigError(
            f"count_steps_by={settings.count_steps_by!r} counts rows of agents, and rows of "
            f"{config.algo_name} are those of the whole team: set 'env_steps'."
        )
    environment = config.environment_settings
    if environment.action_mask_key != "action_mask":
        raise ConfigError(
            f"action_mask_key={environment.action_mask_key!r} is not supported with a team, whose "
            "members' masks are the part 'action_mask' of their observations: leave it out."
        )
    if environment.env is None:
        check_supported(config, "compiled team")
        return
    made = make_any(environment.env, environment.env_config)
    is_on_host = isinstance(made, MadeMultiHostEnv)
    check_supported(config, "host team" if is_on_host else "compiled team")
    if not isinstance(made, MadeMultiEnv | MadeMultiHostEnv):
        raise ConfigError(
            f"{config.algo_name} trains a team of agents, but {made.id} has a single agent: use DQN for "
            "Discrete actions, TD3 or SAC for those of a Box, or PPO for any."
        )
    _get_groups(config, made)


def _get_groups(config: "Config", made: AnyMadeMulti) -> dict[str, tuple[str, ...]]:
    """Return the only team with its members.

    Raises:
        ConfigError: If there are several teams, or the members are not known.
    """
    if isinstance(made, MadeMultiHostEnv):
        if made.has_all_agents:
            return {TEAM: made.possible_agents}
        raise ConfigError(
            f"{config.algo_name} trains a team whose members are known before the run, and "
            f"possible_agents of {made.id} is not set: set it to the ids of all of them."
        )
    agents, teams = made.env.possible_agents, made.env.teams
    if not teams:
        return {TEAM: agents}
    others = [agent for agent in agents if all(agent not in team for team in teams.values())]
    if len(teams) > 1 or others:
        raise ConfigError(
            f"{config.algo_name} trains one team, and {made.id} has several "
            f"({', '.join([*teams, *others])}): use an environment in which the others are part of "
            "the rules, or PPO, in which teams learn side by side, with share_rewards='team' if they "
            "have several members."
        )
    return {name: tuple(members) for name, members in teams.items()}
