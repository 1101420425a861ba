"""Creator and description of a Python environment of several agents."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import gymnasium

from jaxrl.envs.context import EnvContext
from jaxrl.envs.host import VectorizeMode
from jaxrl.envs.multi.checked import CheckedMultiAgentEnv
from jaxrl.envs.multi.host_env import AgentID, MultiAgentEnv
from jaxrl.envs.multi.host_slots import AgentSlotPlan, SlottedEnv


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MadeMultiHostEnv:
    """Creator and description of a Python environment of several agents.

    It is the counterpart of `MadeHostEnv`, and of `MadeMultiEnv` for environments in JAX.

    Args:
        id: Name for messages.
        create: Function that makes one environment for an `EnvContext`; it is pickled for actors.
        observation_spaces: Observation spaces by agent, as modules see them.
        action_spaces: Action spaces by agent.
        max_episode_steps: Time limit, None if none is known.
        env_config: Config of every `EnvContext`.
        state_space: Space of the global state, None if there is none.
        has_all_agents: Whether these are all agents that may take part; False where the
            environment does not say, and these are those of a first episode.
        notes: Sentences for `config.explain()`.
        own_ids: The environment's own ids of the agents, which may be ints, by name.
        slots: Slots of agents that are not known before, which then are the agents here; None where
            agents are known.
    """

    is_jax: ClassVar[bool] = False
    is_atari: ClassVar[bool] = False

    id: str
    create: Callable[[EnvContext], MultiAgentEnv]
    observation_spaces: Mapping[str, gymnasium.Space[Any]]
    action_spaces: Mapping[str, gymnasium.Space[Any]]
    max_episode_steps: int | None
    env_config: dict[str, Any]
    state_space: gymnasium.Space[Any] | None = None
    has_all_agents: bool = True
    notes: tuple[str, ...] = ()
    own_ids: Mapping[str, AgentID] = dataclasses.field(default_factory=dict[str, AgentID])
    slots: AgentSlotPlan | None = None

    @property
    def possible_agents(self) -> tuple[str, ...]:
        """Names of the agents, in the order of rows."""
        return tuple(self.observation_spaces)

    @property
    def spaces(self) -> tuple[gymnasium.spaces.Dict, gymnasium.spaces.Dict]:
        """Observation space and action space, with a part for each agent."""
        return (
            gymnasium.spaces.Dict(dict(self.observation_spaces)),
            gymnasium.spaces.Dict(dict(self.action_spaces)),
        )

    def resolve_mode(self, mode: VectorizeMode) -> VectorizeMode:
        """Return where copies are stepped: in this process unless each is to have its own."""
        return "async" if mode == "async" else "sync"

    def make_checked(
        self,
        context: EnvContext | None = None,
        *,
        trains: bool = False,
        reads_state: bool | None = None,
    ) -> CheckedMultiAgentEnv:
        """Make one environment, whose contract is checked and whose time limit is applied.

        Args:
            context: Argument of the creator, None for the `env_config` alone.
            trains: Whether it is stepped for training, see `CheckedMultiAgentEnv`.
            reads_state: Whether its global state is read, see there.

        Raises:
            EnvError: If its ids are invalid. What the creator raises passes.
        """
        env = self.create(EnvContext(self.env_config) if context is None else context)
        options: dict[str, Any] = {
            "max_episode_steps": self.max_episode_steps,
            "trains": trains,
            "reads_state": reads_state,
        }
        if self.slots is None:
            return CheckedMultiAgentEnv(env, self.id, **options)
        return SlottedEnv(self.slots, env, self.id, **options)

    def with_slots(self, plan: AgentSlotPlan) -> "MadeMultiHostEnv":
        """Return the environment with slots in place of agents."""
        modules = plan.modules
        return dataclasses.replace(
            self,
            observation_spaces={slot: plan.spaces[m][0] for slot, m in modules.items()},
            action_spaces={slot: plan.spaces[m][1] for slot, m in modules.items()},
            own_ids=dict.fromkeys(modules),
            slots=plan,
        )
