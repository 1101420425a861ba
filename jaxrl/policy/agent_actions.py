"""Actions of several agents: those of each module, by the agents that it plays."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from jaxrl.assembly.assemble import Assembly
from jaxrl.assembly.multi_agent import MultiAgentAssembly
from jaxrl.config.agent_mapping import DRAWN, VARIES
from jaxrl.core.keys import PurposeKeys
from jaxrl.core.spaces import without_parts
from jaxrl.core.types import PyTree
from jaxrl.envs.multi.base import is_slot
from jaxrl.errors import ConfigError, UnknownNameError, did_you_mean
from jaxrl.loggers.recorder import RunRecord
from jaxrl.metrics import DEFAULT_MODULE
from jaxrl.modules.rl_module import RLModule
from jaxrl.policy.compute_actions import ActionOptions, ComputeActions
from jaxrl.policy.inference import Inference
from jaxrl.policy.observations import Conformer, make_conformer
from jaxrl.policy.policy import Policy
from jaxrl.policy.team_actions import TeamActions, find_team
from jaxrl.run_parts import ActingState
from jaxrl.runtime.exclusive import ExclusiveLock
from jaxrl.runtime.program import Program
from jaxrl.training.opponents import OpponentPool, decode_names
from jaxrl.training.report import to_host
from jaxrl.training.rollout import ActorState, PolicyStep

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


def make_actions(
    config: "AlgorithmConfig",
    assembly: Assembly,
    acting: ActingState,
    keys: PurposeKeys,
    record: RunRecord,
    lock: ExclusiveLock,
) -> "ComputeActions | ComputeAgentActions":
    """Make what computes a run's actions for the caller's observations."""
    debugging = config.debugging_settings

    def make_inference(policy_step: PolicyStep) -> Inference:
        return Inference(
            policy_step.without_unread(),
            max_retraces=debugging.max_retraces,
            jit=debugging.compiles,
        )

    def make(own: Assembly, state: ActingState, module_id: str) -> ComputeActions:
        inference = make_inference(own.policy_step)
        team = find_team(own.made)
        if team is None:
            return ComputeActions(inference, state, keys, record, lock, module_id)
        actions = TeamActions(inference, state, keys, record, lock, module_id)
        actions.team = team
        return actions

    if not isinstance(assembly, MultiAgentAssembly):
        return make(assembly, acting, DEFAULT_MODULE)
    modules = {
        name: make(own, ModuleActingState(acting, name), name)
        for name, own in assembly.modules.items()
    }
    mapping = assembly.mapping

    @functools.cache
    def get_conformer(agent: str) -> Conformer:
        space = assembly.agents_env.observation_spaces[agent]
        ignored = modules[mapping[agent]].ignored_parts
        return make_conformer(without_parts(space, ignored), f"obs[{agent!r}]", ignored)

    def observe(agent: str, obs: object) -> PyTree:
        ids = assembly.views[mapping[agent]].ids
        return obs if ids is None else ids.join_one(agent, get_conformer(agent)(obs))

    pool, env, choices = assembly.pool, assembly.drawn_env, assembly.choices
    if pool is None or env is None:
        return ComputeAgentActions(modules, mapping, observe, choices)
    inferences = {kind.name: make_inference(kind.policy) for kind in pool.kinds}

    def find_opponent(name: str) -> ComputeActions | None:
        slot = find_opponent_slot(acting, name)
        if slot is None:
            return None
        state = OpponentActingState(acting, pool, name)
        inference = inferences[pool.find_kind(slot).name]
        return ComputeActions(inference, state, keys, record, lock, name)

    return ComputeAgentActions(modules, mapping, observe, choices, find_opponent)


_UNCLEAR = (DRAWN, VARIES)


class ModuleActingState:
    """Acting state of one module of a run of several agents.

    Args:
        acting: Acting state of the run.
        module: Id of the module.
    """

    programs: list[Program] = []

    def __init__(self, acting: ActingState, module: str) -> None:
        self._acting, self._module = acting, module

    def fetch(self) -> tuple[ActorState, PyTree]:
        """Return the actor state and the environment parameters, on one device."""
        actors, env_params = self._acting.fetch()
        return cast("Any", actors)[self._module], env_params

    def get_actor_state(self) -> ActorState:
        """Return the actor state, which is the same object until training changes it."""
        return cast("Any", self._acting.get_actor_state())[self._module]


def find_opponent_slot(acting: ActingState, name: str) -> int | None:
    """Return the slot of an opponent, None if there is none of this id."""
    actors: PyTree = acting.get_actor_state()
    names = decode_names(to_host(actors[DRAWN].names))
    return names.index(name) if name in names else None


class OpponentActingState:
    """Acting state of an opponent that is drawn.

    Args:
        acting: Acting state of the run.
        pool: Opponents of the run.
        name: Id of the opponent.
    """

    programs: list[Program] = []

    def __init__(self, acting: ActingState, pool: OpponentPool, name: str) -> None:
        self._acting, self._pool, self._name = acting, pool, name
        self._cache: tuple[object, ActorState] | None = None

    def fetch(self) -> tuple[ActorState, PyTree]:
        """Return the actor state and the environment parameters, on one device."""
        return self.get_actor_state(), self._acting.fetch()[1]

    def get_actor_state(self) -> ActorState:
        """Return the actor state, which is the same object until the run's changes.

        Raises:
            UnknownNameError: If the opponent has been removed.
        """
        actors: PyTree = self._acting.get_actor_state()
        if self._cache is None or self._cache[0] is not actors:
            slot = find_opponent_slot(self._acting, self._name)
            if slot is None:
                raise UnknownNameError(f"The opponent {self._name!r} has been removed.")
            self._cache = actors, self._pool.get_actor(actors[DRAWN], slot)
        return self._cache[1]


class ComputeAgentActions:
    """Actions and policies of the modules of a run, by the methods of `ComputeActions`.

    Args:
        modules: Actions of each module.
        mapping: Module of each agent.
        observe: Function from an agent and its observation to what its module observes.
        choices: Modules that may play an agent, for agents whose module is chosen in every episode.
        find_opponent: Function from the id of an opponent that is drawn to its actions, or to None.
    """

    def __init__(
        self,
        modules: Mapping[str, ComputeActions],
        mapping: Mapping[str, str],
        observe: Callable[[str, object], PyTree],
        choices: Mapping[str, tuple[str, ...]],
        find_opponent: Callable[[str], ComputeActions | None] = lambda name: None,
    ) -> None:
        self._modules, self._mapping, self._observe = modules, mapping, observe
        self._choices, self._find_opponent = choices, find_opponent

    @property
    def programs(self) -> list[Program]:
        """Compiled programs of all modules."""
        return [program for own in self._modules.values() for program in own.programs]

    def check_id(self, module_id: str) -> str:
        """Return the id of a module.

        Raises:
            UnknownNameError: If there is no such module.
        """
        self._get(module_id)
        return module_id

    def _get(self, module_id: str) -> ComputeActions:
        own = self._modules.get(module_id) or self._find_opponent(module_id)
        if own is None:
            raise UnknownNameError(
                f"There is no module '{module_id}'; there are {', '.join(self._modules)}."
                f"{did_you_mean(module_id, self._modules)}"
            )
        return own

    def _select(self, module_id: str, method: str, name: str = "policy_id") -> ComputeActions:
        if module_id == DEFAULT_MODULE and module_id not in self._modules:
            raise ConfigError(
                f"{method} needs the id of a module in a run of several agents: {name} is one of "
                f"{', '.join(self._modules)}."
            )
        return self._get(module_id)

    def get_module(self, module_id: str) -> RLModule:
        """Return a module, with the current weights for calls with a batch."""
        return self._select(module_id, "get_module", "module_id").get_module(module_id)

    def get_policy(self, policy_id: str, explore: bool, seed: int) -> Policy:
        """Return the current policy of a module; see `Algorithm.get_policy`."""
        return self._select(policy_id, "get_policy").get_policy(policy_id, explore, seed)

    def compute_one(
        self,
        obs: object,
        state: PyTree,
        past: Mapping[str, Any],
        policy_id: str,
        options: ActionOptions,
    ) -> PyTree:
        """Compute the action of a module for one observation."""
        own = self._select(policy_id, "compute_single_action")
        return own.compute_one(obs, state, past, policy_id, options)

    def compute_several(
        self,
        observations: Sequence[Any] | Mapping[Any, Any],
        state: PyTree,
        past: Mapping[str, Any],
        policy_id: str,
        options: ActionOptions,
    ) -> PyTree:
        """Compute actions of a module or, for observations by agent, of the modules of the agents."""
        by_agent = isinstance(observations, Mapping) and all(
            str(agent) in self._mapping for agent in observations
        )
        is_default = policy_id == DEFAULT_MODULE
        is_of_default = is_default and policy_id in self._modules and not by_agent
        if not is_default or is_of_default or not isinstance(observations, Mapping):
            own = self._select(policy_id, "compute_actions")
            return own.compute_several(observations, state, past, policy_id, options)
        if not by_agent:
            unknown = next(str(a) for a in observations if str(a) not in self._mapping)
            if any(map(is_slot, self._mapping)):
                raise ConfigError(
                    f"The agent {unknown!r} is not known, since those of this run come and go: name the "
                    f"module as policy_id, one of {', '.join(self._modules)}."
                )
            raise UnknownNameError(
                f"There is no agent {unknown!r}; there are {', '.join(self._mapping)}."
                f"{did_you_mean(unknown, self._mapping)} policy_id names a module for other keys."
            )

        for agent in map(str, observations):
            if agent in self._choices:
                raise ConfigError(
                    f"The agent {agent!r} is played by one of {', '.join(self._choices[agent])} in "
                    "each episode: name the module as policy_id."
                )
            if self._mapping[agent] in _UNCLEAR:
                raise ConfigError(
                    f"Who plays {agent!r} differs between episodes: name a module, policy_id is one of "
                    f"{', '.join(self._modules)}."
                )

        def compute(module: str, agents: list[Any]) -> PyTree:
            def pick(values: PyTree) -> PyTree:
                if not isinstance(values, Mapping):
                    return values
                return {agent: values[agent] for agent in agents if agent in values}

            return self._modules[module].compute_several(
                {agent: self._observe(str(agent), observations[agent]) for agent in agents},
                pick(state),
                {name: pick(value) for name, value in past.items()},
                module,
                options,
            )

        return _merge_by_agent(observations, self._mapping, compute)


def _merge_by_agent(
    observations: Mapping[Any, Any],
    mapping: Mapping[str, str],
    compute: Callable[[str, list[Any]], PyTree],
) -> PyTree:
    """Return results by agent, given a function from a module and its agents to theirs."""
    agents_of: dict[str, list[Any]] = {}
    for agent in observations:
        agents_of.setdefault(mapping[str(agent)], []).append(agent)
    results = [compute(module, agents) for module, agents in agents_of.items()]

    def merge(parts: Sequence[Any]) -> dict[Any, Any]:
        joined = {agent: value for part in parts for agent, value in part.items()}
        return {agent: joined[agent] for agent in observations}

    if results and isinstance(results[0], tuple):
        return tuple(merge(parts) for parts in zip(*results, strict=True))
    return merge(results)
