"""A multi-agent environment ready to run, its time limit, and one agent as one of several."""

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
import jax.numpy as jnp
import numpy as np

from jaxrl.core.struct import replace
from jaxrl.core.types import Key, PyTree, TimeStep
from jaxrl.envs.base import JaxEnv
from jaxrl.envs.multi.base import ALL, MultiAgentJaxEnv, MultiStart, MultiStep, make_flags
from jaxrl.envs.wrappers import TimeLimitState, check_max_episode_steps
from jaxrl.errors import EnvError

if TYPE_CHECKING:
    from jaxrl.envs.model import EnvModel


class MultiAgentWrapper(MultiAgentJaxEnv[Any, Any]):
    """Base class of wrappers that leave agents, spaces and parameters as they are."""

    def __init__(self, env: MultiAgentJaxEnv[Any, Any]) -> None:
        """Wrap `env`."""
        self.env = env
        self.name = env.name
        self.possible_agents, self.agent_kinds = env.possible_agents, env.agent_kinds
        self.acting, self.max_acting = env.acting, env.max_acting
        self.teams = env.teams
        self.max_episode_steps = env.max_episode_steps
        self.reset_mode, self.render_fps = env.reset_mode, env.render_fps
        self.has_hidden_state = env.has_hidden_state

    @property
    def default_params(self) -> PyTree:
        return self.env.default_params

    def observation_space(self, agent: str, params: PyTree) -> gymnasium.Space[Any]:
        return self.env.observation_space(agent, params)

    def action_space(self, agent: str, params: PyTree) -> gymnasium.Space[Any]:
        return self.env.action_space(agent, params)

    def state_space(self, params: PyTree) -> gymnasium.Space[Any] | None:
        return self.env.state_space(params)


ONLY_AGENT = ""
"""Name of the agent of an environment that has one, which messages leave out."""


class OneAgentEnv(MultiAgentJaxEnv[Any, Any]):
    """An environment of one agent as one of several, whose dictionaries have a single entry.

    Args:
        env: The environment.
        name: Name for messages.
    """

    possible_agents = (ONLY_AGENT,)

    def __init__(self, env: JaxEnv[Any, Any], name: str) -> None:
        self.env, self.name = env, name

    def observation_space(self, agent: str, params: PyTree) -> gymnasium.Space[Any]:
        return self.env.get_spaces(params)[0]

    def action_space(self, agent: str, params: PyTree) -> gymnasium.Space[Any]:
        return self.env.get_spaces(params)[1]

    def reset(self, key: Key, params: PyTree) -> tuple[PyTree, MultiStart]:
        output: object = self.env.reset(key, params)
        if not (isinstance(output, tuple) and len(output) == 2):
            raise EnvError(
                f"{self.name}: reset must return (state, obs), got {describe_type(output)}."
            )
        state, obs = output
        return state, MultiStart(obs={ONLY_AGENT: obs}, acts=make_flags(self, value=True))

    def step(
        self, key: Key, state: PyTree, actions: dict[str, PyTree], params: PyTree
    ) -> tuple[PyTree, MultiStep]:
        output: object = self.env.step(key, state, actions[ONLY_AGENT], params)
        is_pair = isinstance(output, tuple) and len(output) == 2
        if not is_pair or not isinstance(output[1], TimeStep):
            raise EnvError(
                f"{self.name}: step must return (state, TimeStep), got {describe_type(output)}."
            )
        state, step = output
        return state, MultiStep(
            obs={ONLY_AGENT: step.obs},
            acts=make_flags(self, value=True),
            reward={ONLY_AGENT: step.reward},
            terminated={ONLY_AGENT: step.terminated, ALL: step.terminated},
            truncated={ONLY_AGENT: step.truncated, ALL: step.truncated},
            info=step.info,
        )


def describe_type(value: object) -> str:
    """Describe the type of a value for messages."""
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"a {type(value).__name__}"


class MultiTimeLimit(MultiAgentWrapper):
    """Wrapper that truncates an episode at step `max_episode_steps`, and never terminates it.

    Equal limits around the same environment compare equal, so that `jit` does not compile twice.
    """

    def __init__(self, env: MultiAgentJaxEnv[Any, Any], max_episode_steps: int) -> None:
        """Wrap `env`.

        Raises:
            EnvError: If `max_episode_steps` is not a positive integer.
        """
        super().__init__(env)
        self._limit = check_max_episode_steps(max_episode_steps)
        self.max_episode_steps = self._limit

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, MultiTimeLimit)
            and self.env == other.env
            and self._limit == other._limit
        )

    def __hash__(self) -> int:
        return hash((MultiTimeLimit, self.env, self._limit))

    def reset(self, key: Key, params: PyTree) -> tuple[TimeLimitState, MultiStart]:
        inner, start = self.env.reset(key, params)
        return TimeLimitState(inner=inner, num_steps=jnp.zeros((), jnp.int32)), start

    def step(
        self, key: Key, state: TimeLimitState, actions: dict[str, PyTree], params: PyTree
    ) -> tuple[TimeLimitState, MultiStep]:
        inner, step = self.env.step(key, state.inner, actions, params)
        num_steps = state.num_steps + 1
        over = step.truncated[ALL] | (num_steps >= self._limit)
        state = TimeLimitState(inner=inner, num_steps=num_steps)
        return state, replace(step, truncated={**step.truncated, ALL: over})

    def global_state(self, state: TimeLimitState, params: PyTree) -> PyTree:
        return self.env.global_state(state.inner, params)

    def render(self, state: TimeLimitState, params: PyTree) -> np.ndarray:
        return self.env.render(state.inner, params)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MadeMultiEnv:
    """A multi-agent environment with its time limit applied and its parameters set.

    `notes` are sentences for `config.explain()`; `model` is that of `envs.model.with_state`, None
    without.
    """

    is_jax: ClassVar[bool] = True
    is_atari: ClassVar[bool] = False

    env: MultiAgentJaxEnv[Any, Any]
    params: PyTree
    id: str
    notes: tuple[str, ...] = ()
    model: "EnvModel | None" = None

    @property
    def possible_agents(self) -> tuple[str, ...]:
        """Names of the agents, in the order of rows."""
        return self.env.possible_agents

    @property
    def observation_spaces(self) -> dict[str, gymnasium.Space[Any]]:
        """Observation spaces by agent."""
        env = self.env
        return {agent: env.observation_space(agent, self.params) for agent in env.possible_agents}

    @property
    def action_spaces(self) -> dict[str, gymnasium.Space[Any]]:
        """Action spaces by agent."""
        env = self.env
        return {agent: env.action_space(agent, self.params) for agent in env.possible_agents}

    @property
    def state_space(self) -> gymnasium.Space[Any] | None:
        """Space of the global state, None if there is none."""
        return self.env.state_space(self.params)

    @property
    def spaces(self) -> tuple[gymnasium.spaces.Dict, gymnasium.spaces.Dict]:
        """Observation space and action space, with a part for each agent."""
        return (
            gymnasium.spaces.Dict(self.observation_spaces),
            gymnasium.spaces.Dict(self.action_spaces),
        )

    @property
    def max_episode_steps(self) -> int | None:
        """Number of steps after which an episode is truncated, None for no limit."""
        return self.env.max_episode_steps or self.env.own_time_limit
