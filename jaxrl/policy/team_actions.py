"""Actions of a team for the observations of its members."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl.core.types import PyTree
from jaxrl.envs.multi.groups import Team
from jaxrl.envs.multi.host_team import find_host_team
from jaxrl.envs.registry import AnyMadeEnv, MadeEnv
from jaxrl.envs.wrappers import TimeLimit
from jaxrl.policy.compute_actions import ActionOptions, ComputeActions


def find_team(made: AnyMadeEnv) -> Team | None:
    """Return the team that an environment's agents are, if they are one."""
    if not isinstance(made, MadeEnv):
        return find_host_team(made.create)
    env: object = made.env
    env = env.env if isinstance(env, TimeLimit) else env
    return env if isinstance(env, Team) else None


class TeamActions(ComputeActions):
    """Actions of a run whose agents are one team, which observations by agent may ask for."""

    team: Team

    def compute_several(
        self,
        observations: Sequence[Any] | Mapping[Any, Any],
        state: PyTree,
        past: Mapping[str, Any],
        policy_id: str,
        options: ActionOptions,
    ) -> PyTree:
        """Compute actions for several observations or, for those of its agents, of one team.

        The agents that are not named do not act. With `state`, which is that of the whole team, or
        `full_fetch`, the result is a tuple of the actions by agent, the state and the outputs.
        """
        by_agent = isinstance(observations, Mapping) and all(
            str(agent) in self.team.members for agent in observations
        )
        if not by_agent or not observations:
            return super().compute_several(observations, state, past, policy_id, options)
        named = {str(agent): obs for agent, obs in dict(observations).items()}
        joined = self.team.join_observations(named)
        result = self.compute_one(joined, state, past, policy_id, options)
        has_state = options.make_request_fields(has_state=state is not None)["should_return_state"]
        actions = self.team.split_action(result[0] if has_state else result)
        chosen = {agent: actions[str(agent)] for agent in observations}
        return (chosen, *result[1:]) if has_state else chosen
