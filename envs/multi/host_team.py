"""All agents of a Python environment as one agent: a team, as in QMIX and MADDPG."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import gymnasium
import jax
import numpy as np

from jaxrl.core.types import PyTree
from jaxrl.envs.adapters.host_state import get_env_state, has_env_state, set_env_state
from jaxrl.envs.context import EnvContext
from jaxrl.envs.multi.base import ALL, MultiAgentJaxEnv, get_entries
from jaxrl.envs.multi.checked import CheckedMultiAgentEnv, HostMultiStep, NonFiniteValueError
from jaxrl.envs.multi.groups import Group, GroupedAgents, GroupReward, Team, make_blank
from jaxrl.envs.multi.host_made import MadeMultiHostEnv


class _Spaces(MultiAgentJaxEnv[Any, None]):
    """Agents and spaces of a Python environment, of which groups make theirs; it has no steps."""

    def __init__(self, made: MadeMultiHostEnv) -> None:
        self.name, self.possible_agents, self._made = made.id, made.possible_agents, made
        self.acting = "some"

    def observation_space(self, agent: str, params: None) -> gymnasium.Space[Any]:
        return self._made.observation_spaces[agent]

    def action_space(self, agent: str, params: None) -> gymnasium.Space[Any]:
        return self._made.action_spaces[agent]

    def state_space(self, params: None) -> gymnasium.Space[Any] | None:
        return self._made.state_space


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class HostTeamCreator:
    """Creator of environments whose only agent is a team, and what that observes of its members.

    Attributes:
        made: Environment of the single agents, without a time limit.
        name: Name of the team.
        reward: How the members' rewards become one.
        member_rewards: Whether the team observes the members' rewards of the last step.
        global_state: Whether it observes the environment's global state.
    """

    made: MadeMultiHostEnv
    name: str
    reward: GroupReward
    member_rewards: bool
    global_state: bool

    def __call__(self, context: EnvContext) -> "HostTeam":
        made = self.made
        checked = made.make_checked(context, trains=True, reads_state=self.global_state)
        return HostTeam(checked, self.make_team())

    def make_team(self) -> Team:
        """Return the team's spaces, with conversions of observations and actions by member."""
        env = _Spaces(self.made)
        group = Group(
            name=self.name,
            entries=get_entries(env),
            reward=self.reward,
            member_mask=True,
            member_rewards=self.member_rewards,
            global_state=self.global_state,
        )
        return Team(GroupedAgents(env, None, [group]))


class HostTeam(gymnasium.Env[Any, Any]):
    """All agents of a Python environment as one agent, by the rules of `groups.GroupedAgents`.

    A member that is present and has no observation, because it is not its turn, has its latest one.
    What is not finite is returned as a reward of NaN, so that runners mask the step.
    """

    def __init__(self, env: CheckedMultiAgentEnv, team: Team) -> None:
        """Wrap an environment.

        Args:
            env: Environment of the members.
            team: Spaces and conversions of the team.
        """
        self.env, self.team = env, team
        (self._group,) = team.grouped.groups.values()
        self._spaces = {m: env.get_observation_space(m) for m in team.members}
        self.observation_space = team.observation_space(None)
        self.action_space = team.action_space(None)
        self._latest = {m: make_blank(space) for m, space in self._spaces.items()}
        self._begun = np.zeros(len(team.members), np.bool_)
        if has_env_state(env.env):  # what cannot be saved has neither method
            self.get_state, self.set_state = self._get_state, self._set_state

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[PyTree, dict[str, Any]]:
        super().reset(seed=seed)
        start = self.env.reset(seed, options)
        self._latest = {m: make_blank(space) for m, space in self._spaces.items()}
        self._latest.update(start.obs)
        self._begun = self._flag(start.acts)
        none = np.zeros(len(self._begun), np.float32)
        return self._observe(start.global_state, self._begun, self._begun, none), start.info

    def step(self, action: PyTree) -> tuple[PyTree, float, bool, bool, dict[str, Any]]:
        """Step the members that act; the episode ends as the environment says."""
        own = self._group.split(action, self.team.grouped.is_stacked(self._group.name))
        acted = self.env.agents_to_act
        try:
            step = self.env.step({member: own[member] for member in acted})
        except NonFiniteValueError:
            none = np.zeros(len(self._begun), np.bool_)
            obs = self._observe(self._blank_state(), none, none, none.astype(np.float32))
            return obs, float("nan"), False, False, {}
        return self._join(step, self._flag(dict.fromkeys(acted, True)))

    def _join(
        self, step: HostMultiStep, acted: np.ndarray
    ) -> tuple[PyTree, float, bool, bool, dict[str, Any]]:
        present, acts = self._begun, self._flag(step.acts)
        died, left = self._flag(step.terminated), self._flag(step.truncated)
        rewards = np.asarray([step.reward.get(m, 0.0) for m in self.team.members], np.float32)
        rewards = np.where(present, rewards, np.float32(0.0))
        self._latest.update(step.obs)
        self._begun = (present & ~(died | left)) | acts
        cut = step.truncated[ALL] and not step.terminated[ALL] and bool((acted == present).all())
        shown = acts | (present & ~died) if cut else acts
        obs = self._observe(step.global_state, shown, present | acts, rewards)
        total = float(self._group.combine(rewards, present))  # pyright: ignore[reportArgumentType]
        return obs, total, step.terminated[ALL], step.truncated[ALL], step.info

    def _observe(
        self, state: PyTree, acts: np.ndarray, seen: np.ndarray, rewards: np.ndarray
    ) -> PyTree:
        name, values = self._group.name, (acts, seen, rewards)
        flags: list[Any] = [{self._group.name: value} for value in values]
        return self.team.grouped.observe(state, self._latest, *flags)[name]

    def _blank_state(self) -> PyTree:
        space = self.env.state_space
        return make_blank(space) if self._group.global_state and space is not None else None

    def _flag(self, flags: Mapping[str, bool]) -> np.ndarray:
        return np.asarray([flags.get(member, False) for member in self.team.members], np.bool_)

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _get_state(self) -> PyTree:
        return {
            "env": get_env_state(self.env.env),
            "episode": self.env.get_flags(self.team.members),
            "begun": self._begun.copy(),
            "obs": jax.tree.map(np.array, self._latest),
        }

    def _set_state(self, state: PyTree) -> None:
        set_env_state(self.env.env, state["env"])
        self.env.set_flags(self.team.members, state["episode"])
        self._begun = np.asarray(state["begun"], np.bool_)
        self._latest = jax.tree.map(np.asarray, state["obs"])


def find_host_team(create: object) -> Team | None:
    """Return the team of a creator, also inside of one that sets a time limit; None for others."""
    while not isinstance(create, HostTeamCreator):
        create = getattr(create, "create", None)
        if create is None:
            return None
    return create.make_team()
