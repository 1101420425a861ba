"""Arguments of RLlib's signatures for connectors: the environment, its spaces, and the device."""

import functools
from typing import Any

import gymnasium
from gymnasium.vector.utils import batch_space

from jaxrl.connectors.pipelines import Offers
from jaxrl.envs.context import EnvContext
from jaxrl.envs.multi.made import MadeMultiEnv
from jaxrl.envs.registry import AnyMadeEnv, MadeEnv

INPUT_ENV_SPACES = "__env__"
"""Key of the spaces of the vector environment in the `spaces` that RLlib passes."""
INPUT_ENV_SINGLE_SPACES = "__env_single__"
"""Key of the spaces of a single environment in the `spaces` that RLlib passes."""

Spaces = tuple[gymnasium.Space[Any], gymnasium.Space[Any]]


class EnvToInspect:
    """Environment of a run, in the form of a vector environment.

    It is to be read, not stepped: a host environment is made when it is first used. Attributes that
    vector environments do not have are those of the environment itself.

    Args:
        made: Environment of the run.
        num_envs: Number of copies; those of a JAX environment are one object.
    """

    def __init__(self, made: AnyMadeEnv, num_envs: int = 1) -> None:
        self._made, self.num_envs = made, num_envs
        self.single_observation_space, self.single_action_space = made.spaces

    @functools.cached_property
    def envs(self) -> list[Any]:
        """Environments: JAX environments, or those of gymnasium."""
        made = self._made
        if isinstance(made, MadeEnv | MadeMultiEnv):
            return [made.env] * self.num_envs
        return [made.create(EnvContext(made.env_config)) for _ in range(self.num_envs)]

    def get_sub_environments(self) -> list[Any]:
        """Return `envs`, under the name of RLlib's older environments."""
        return self.envs

    @property
    def unwrapped(self) -> "EnvToInspect":
        """The environment, for compatibility with gymnasium's vector environments."""
        return self

    @functools.cached_property
    def observation_space(self) -> gymnasium.Space[Any]:
        """Space of the observations of the vector environment."""
        return batch_space(self.single_observation_space, self.num_envs)

    @functools.cached_property
    def action_space(self) -> gymnasium.Space[Any]:
        """Space of the actions of the vector environment."""
        return batch_space(self.single_action_space, self.num_envs)

    @property
    def is_jax(self) -> bool:
        """Return whether the environment is part of the compiled program, or could be."""
        return self._made.is_jax

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.envs[0], name)

    def close(self) -> None:
        """Close the environment if it was made."""
        if "envs" in vars(self) and not self.is_jax:
            for env in self.envs:
                env.close()


def get_rllib_spaces(spaces: Spaces, num_envs: int = 1) -> dict[str, Spaces]:
    """Return spaces as RLlib passes them: of the vector environment, and of a single one."""
    observation_space, action_space = spaces
    vector = batch_space(observation_space, num_envs), batch_space(action_space, num_envs)
    return {INPUT_ENV_SPACES: vector, INPUT_ENV_SINGLE_SPACES: spaces}


def make_offers(env: EnvToInspect) -> Offers:
    """Return the arguments for the connectors between environment and module."""
    spaces = env.single_observation_space, env.single_action_space
    return {"env": lambda: env, "spaces": lambda: get_rllib_spaces(spaces), "device": lambda: None}
