"""Environments of PettingZoo, in turns (AEC) or parallel, as Python environments of several agents.

PettingZoo is not imported: its environments are recognized by their classes.
"""

import importlib
import importlib.util
import pkgutil
import re
import warnings
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from jaxrl.core.types import PyTree
from jaxrl.envs.adapters.host_creators import Creator
from jaxrl.envs.context import EnvContext
from jaxrl.envs.host import EnvRequest
from jaxrl.envs.multi.base import ALL
from jaxrl.envs.multi.host_env import AgentDict, AgentID, MultiAgentEnv
from jaxrl.errors import EnvError, UnknownNameError, did_you_mean, summarize_exception

PREFIX = "pettingzoo"
ACTION_MASK = "action_mask"
OBSERVATION = "observation"
"""Name of the observation beside a mask, PettingZoo's own."""

_OWN_PACKAGES = ("atari", "butterfly", "classic", "sisl")


class _PettingZoo(MultiAgentEnv):
    """Base class of the adapters of environments in turns and of parallel ones.

    A legal mask that an environment gives in its infos becomes the part `"action_mask"` of the
    observation, the rest of which is `"observation"`, unless it is a Dict already.
    """

    def __init__(self, env: Any) -> None:
        """Wrap an environment, which is reset once to see who takes part.

        Args:
            env: Environment of PettingZoo.
        """
        self.env = env
        self._masked: dict[AgentID, int] = {}
        infos = self._begin(None, None)[1]
        self.agents = list(env.agents)
        self.possible_agents = list(getattr(env, "possible_agents", None) or ())
        super().__init__()
        for agent, info in infos.items():
            if ACTION_MASK in info:
                self._masked[agent] = len(info[ACTION_MASK])
        self.render_mode = getattr(env, "render_mode", None)
        self.metadata = getattr(env, "metadata", {})
        space = getattr(env, "state_space", None)
        self.state_space = space if isinstance(space, gymnasium.Space) else None
        agents = self.possible_agents
        self.observation_spaces = {agent: self.get_observation_space(agent) for agent in agents}
        self.action_spaces = {agent: env.action_space(agent) for agent in agents}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        obs, infos = self._begin(seed, options)
        self.agents = list(self.env.agents)
        return self._with_masks(obs, infos), infos

    def get_observation_space(self, agent_id: AgentID) -> gymnasium.Space[Any]:
        """Return the observation space of one agent, with its mask."""
        space = self.env.observation_space(agent_id)
        if agent_id not in self._masked:
            return _with_binary_mask(space)
        mask = spaces.MultiBinary(self._masked[agent_id])
        if isinstance(space, spaces.Dict):
            return spaces.Dict({**space.spaces, ACTION_MASK: mask})
        return spaces.Dict({OBSERVATION: space, ACTION_MASK: mask})

    def get_action_space(self, agent_id: AgentID) -> gymnasium.Space[Any]:
        """Return the action space of one agent."""
        return self.env.action_space(agent_id)

    def state(self) -> PyTree:
        return self.env.state()

    def render(self) -> Any:
        return None if self.render_mode is None else self.env.render()

    def close(self) -> None:
        self.env.close()

    @property
    def get_sub_environments(self) -> Any:
        """The environment without wrappers, RLlib's name."""
        return self.env.unwrapped

    def _begin(
        self, seed: int | None, options: dict[str, Any] | None
    ) -> tuple[AgentDict, AgentDict]:
        """Reset; return observations of who acts first, and infos."""
        raise NotImplementedError

    def _add_ends(self, terminateds: AgentDict, truncateds: AgentDict) -> None:
        """Add the end of the episode, once nobody is left: a cut if none of the last terminated."""
        by_itself = any(terminateds.values())
        self.agents = list(self.env.agents)
        over = not self.agents
        terminateds[ALL] = over and by_itself
        truncateds[ALL] = over and not by_itself

    def _with_masks(self, obs: AgentDict, infos: AgentDict) -> AgentDict:
        if not self._masked:
            return obs
        return {agent: self._add_mask(agent, value, infos) for agent, value in obs.items()}

    def _add_mask(self, agent: AgentID, value: object, infos: AgentDict) -> object:
        """Return an observation with its mask; one without a mask may do anything."""
        if agent not in self._masked:
            return value
        mask = infos.get(agent, {}).get(ACTION_MASK, np.ones(self._masked[agent]))
        rest = value if isinstance(value, dict) else {OBSERVATION: value}
        return {**rest, ACTION_MASK: np.asarray(mask, np.int8)}


def _with_binary_mask(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    """Return an observation space whose mask, a Box of zeros and ones, is a MultiBinary."""
    mask = space.spaces.get(ACTION_MASK) if isinstance(space, spaces.Dict) else None
    if not isinstance(space, spaces.Dict) or not isinstance(mask, spaces.Box):
        return space
    if mask.dtype.kind == "f" or len(mask.shape) != 1:
        return space
    return spaces.Dict({**space.spaces, ACTION_MASK: spaces.MultiBinary(mask.shape[0])})


class PettingZooEnv(_PettingZoo):
    """An environment of PettingZoo whose agents act in turns (AEC), as RLlib's class of that name.

    Who is selected has an observation and acts. What an agent earns between two of its turns comes
    at the next of them, or at its end. Agents that ended are stepped with None, and have their last
    observation.
    """

    def step(
        self, action_dict: AgentDict
    ) -> tuple[AgentDict, AgentDict, AgentDict, AgentDict, AgentDict]:
        env = self.env
        env.step(action_dict[env.agent_selection])
        obs: AgentDict = {}
        rewards: AgentDict = {}
        terminateds: AgentDict = {}
        truncateds: AgentDict = {}
        infos: AgentDict = {}
        while env.agents:
            agent = env.agent_selection
            obs[agent], rewards[agent], terminated, truncated, infos[agent] = env.last()
            terminateds[agent], truncateds[agent] = bool(terminated), bool(truncated)
            if not (terminated or truncated):
                break
            env.step(None)
        self._add_ends(terminateds, truncateds)
        return self._with_masks(obs, infos), rewards, terminateds, truncateds, infos

    def get_final_observation(self, agent_id: AgentID) -> PyTree:
        """Return what an agent observes whose turn it is not; it may do anything."""
        obs: Any = self._add_mask(agent_id, self.env.observe(agent_id), {})
        if isinstance(obs, dict) and ACTION_MASK in obs:
            obs = {**obs, ACTION_MASK: np.ones_like(obs[ACTION_MASK])}
        return obs

    def get_final_reward(self, agent_id: AgentID) -> float:
        """Return what an agent has earned since its latest turn."""
        return float(self.env._cumulative_rewards.get(agent_id, 0.0))

    def _begin(
        self, seed: int | None, options: dict[str, Any] | None
    ) -> tuple[AgentDict, AgentDict]:
        self.env.reset(seed=seed, options=options)
        first = self.env.agent_selection
        return {first: self.env.observe(first)}, dict(self.env.infos)


class ParallelPettingZooEnv(_PettingZoo):
    """An environment of PettingZoo whose agents act at once, as RLlib's class of that name."""

    @property
    def par_env(self) -> Any:
        """The environment, RLlib's name."""
        return self.env

    def step(
        self, action_dict: AgentDict
    ) -> tuple[AgentDict, AgentDict, AgentDict, AgentDict, AgentDict]:
        obs, rewards, terminateds, truncateds, infos = self.env.step(action_dict)
        terminateds, truncateds = dict(terminateds), dict(truncateds)
        self._add_ends(terminateds, truncateds)
        return self._with_masks(obs, infos), rewards, terminateds, truncateds, infos

    def _begin(
        self, seed: int | None, options: dict[str, Any] | None
    ) -> tuple[AgentDict, AgentDict]:
        obs, infos = self.env.reset(seed=seed, options=options)
        return obs, infos or {}


def is_pettingzoo(env: object) -> bool:
    """Return whether an object is an environment of PettingZoo."""
    return not isinstance(env, type) and is_pettingzoo_class(type(env))


def is_pettingzoo_class(cls: type) -> bool:
    """Return whether instances of a class are environments of PettingZoo."""
    return any(
        base.__module__.split(".")[0] == PREFIX and base.__name__ in ("AECEnv", "ParallelEnv")
        for base in cls.__mro__
    )


def wrap_pettingzoo(env: Any) -> Any:
    """Return an environment of PettingZoo in its adapter, and any other one as it is."""
    if not is_pettingzoo(env):
        return env
    in_turns = any(base.__name__ == "AECEnv" for base in type(env).__mro__)
    return PettingZooEnv(env) if in_turns else ParallelPettingZooEnv(env)


def list_ids() -> list[str]:
    """List the names of PettingZoo's own environments and of those of mpe2 that are installed."""
    packages = [*_OWN_PACKAGES, "mpe2"]
    found = ((package, get_package(f"{package}/")) for package in packages)
    return [
        f"{package}/{name}"
        for package, path in found
        if importlib.util.find_spec(path) is not None
        for name in _list_names(path)
        if re.search(r"_v\d+$", name)
    ]


def make(name: str, request: EnvRequest, env_id: str) -> Creator:
    """Return the creator of an environment by its package and name, `classic/connect_four_v3`.

    It is parallel where PettingZoo has it so. The `env_config` has the arguments of PettingZoo's
    own function.

    Raises:
        UnknownNameError: If there is no such package or environment.
        EnvError: If a package is not installed.
    """
    del request, env_id
    env_name = name.partition("/")[2]
    if not env_name:
        raise UnknownNameError(
            f"'pettingzoo:{name}' needs a package and a name, as in pettingzoo:mpe2/simple_spread_v3 "
            "or pettingzoo:classic/connect_four_v3."
        )
    module_name = f"{get_package(name)}.{env_name}"
    module = _import(module_name, name)
    create = getattr(module, "parallel_env", None) or getattr(module, "env", None)
    if create is None:
        raise UnknownNameError(f"pettingzoo:{name}: the module {module_name} has no env().")
    return _FunctionCreator(module_name, name)


def get_package(name: str) -> str:
    """Return the package that holds an environment: PettingZoo's own, or another such as mpe2."""
    package = name.partition("/")[0]
    return f"{PREFIX}.{package}" if package in _OWN_PACKAGES else package


def _import(module_name: str, name: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # PettingZoo's, of modules themselves
            return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        package = module_name.rpartition(".")[0]
        if missing == module_name:
            known = _list_names(package)
            raise UnknownNameError(
                f"pettingzoo:{name}: {package} has no environment {name.partition('/')[2]!r}."
                f"{did_you_mean(name.partition('/')[2], known)}"
            ) from error
        if missing == "mpe":
            hint = f"its environments have moved: pettingzoo:mpe2/{name.partition('/')[2]}"
        elif missing.split(".")[0] in (PREFIX, "mpe2"):
            hint = "install it with: pip install 'jaxrl[pettingzoo]'"
        else:
            hint = f"install it with: pip install 'pettingzoo[{package.rpartition('.')[2]}]'"
        raise EnvError(f"pettingzoo:{name} lacks the package {missing!r}; {hint}.") from error
    except (ImportError, AttributeError) as error:  # PettingZoo's own words on old versions
        raise EnvError(f"pettingzoo:{name} cannot be imported: {error}") from error
    except Exception as error:  # of a package that registers at every attempt
        raise EnvError(
            f"pettingzoo:{name} cannot be imported: {summarize_exception(error)}."
        ) from error


def _list_names(package: str) -> list[str]:
    folder = getattr(importlib.import_module(package), "__path__", None)
    if folder is None:
        return []

    return [module.name for module in pkgutil.iter_modules(folder)]


class _FunctionCreator:
    """Creator by a module's `parallel_env` or `env`; it holds the module's name, to be pickled."""

    def __init__(self, module_name: str, name: str) -> None:
        self._module_name, self._name = module_name, name

    def __call__(self, context: EnvContext) -> MultiAgentEnv:
        module = _import(self._module_name, self._name)
        create = getattr(module, "parallel_env", None) or module.env
        return wrap_pettingzoo(create(**context))
