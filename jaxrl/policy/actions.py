"""Actions of several agents: those of each module, by the agents that it plays."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp

from jaxrl.assembly.assemble import Assembly
from jaxrl.assembly.multi_agent import MultiAgentAssembly
from jaxrl.compat.lookup import load
from jaxrl.config.agent_mapping import DRAWN, VARIES
from jaxrl.config.settings.run import DebuggingSettings
from jaxrl.core.keys import PurposeKeys, fold_in_uint64
from jaxrl.core.seeds import check_seed
from jaxrl.core.spaces import without_parts
from jaxrl.core.types import Key, PyTree
from jaxrl.envs.multi.base import is_slot
from jaxrl.envs.multi.groups import Team
from jaxrl.envs.multi.host_team import find_host_team
from jaxrl.envs.registry import AnyMadeEnv, MadeEnv
from jaxrl.envs.wrappers import TimeLimit
from jaxrl.errors import ConfigError, UnknownNameError, did_you_mean
from jaxrl.loggers.recorder import RunRecord
from jaxrl.metrics import DEFAULT_MODULE
from jaxrl.modules.rl_module import RLModule
from jaxrl.policy.inference import (
    ActionRequest,
    ActionResult,
    Conformer,
    Inference,
    make_conformer,
    split_by_name,
    take_row,
)
from jaxrl.policy.policy import Policy
from jaxrl.run_parts import ActingState
from jaxrl.runtime.lock import ExclusiveLock, single_threaded
from jaxrl.runtime.program import Program
from jaxrl.training.opponents import OpponentPool, decode_names
from jaxrl.training.report import to_host
from jaxrl.training.rollout import ActorState, PolicyStep

_ACTIONS, _POLICY, _MODULE = 0x61637473, 0x706F6C69, 0x6D6F646C
"""Constants folded into the seed's key; far from all others that are."""


@dataclasses.dataclass(frozen=True)
class ActionOptions:
    """Options of a call for actions.

    Args:
        explore: Whether to sample actions; False takes the mode.
        full_fetch: Whether to also return the new state and the module's outputs.
        unsquash: Whether to unsquash Box actions; None is as configured.
        clip: Whether to clip Box actions that are not unsquashed; None is as configured.
    """

    explore: bool
    full_fetch: bool
    unsquash: bool | None
    clip: bool | None

    def make_request_fields(self, *, has_state: bool) -> dict[str, Any]:
        """Make the fields of the ActionRequest; a state is returned to whoever passed one."""
        return {
            "explore": self.explore,
            "unsquash": self.unsquash,
            "clip": self.clip,
            "should_return_state": self.full_fetch or has_state,
            "should_return_outputs": self.full_fetch or has_state,
        }


class _ModuleInputs:
    """Weights and keys for calls of the module, apart from `ComputeActions` to avoid a cycle."""

    def __init__(
        self, acting: ActingState, keys: PurposeKeys, record: RunRecord, lock: ExclusiveLock
    ) -> None:
        self._acting, self._keys, self._record, self._use = acting, keys, record, lock

    @single_threaded
    def get_actor(self) -> ActorState:
        """Return the current parameters and hyperparameters."""
        return self._acting.get_actor_state()

    @single_threaded
    def make_key(self) -> Key:
        """Return a key that no other call has had."""
        counters = self._record.host
        counters.actions_drawn += 1
        return fold_in_uint64(self._keys.get(_MODULE), counters.actions_drawn)


class ComputeActions:
    """Actions for the caller's observations, and policies, from the current state of a run.

    Args:
        inference: Compiled forward passes of the run.
        acting: Source of the current parameters and connector statistics.
        keys: Keys of the run outside of training.
        record: Record of the run, which counts the draws.
        lock: Lock of the run.
        module_id: Id of the module.
    """

    def __init__(
        self,
        inference: Inference,
        acting: ActingState,
        keys: PurposeKeys,
        record: RunRecord,
        lock: ExclusiveLock,
        module_id: str = DEFAULT_MODULE,
    ) -> None:
        self._inference, self._acting, self._module_id = inference, acting, module_id
        self._keys, self._record, self._use = keys, record, lock

    @functools.cached_property
    def _module(self) -> RLModule:
        inputs = _ModuleInputs(self._acting, self._keys, self._record, self._use)
        bind_module = load("rllib.modules").bind_module
        return bind_module(
            self._inference.module,
            inputs.get_actor,
            inputs.make_key,
            self._inference.module_calls,
        )

    @property
    def programs(self) -> list[Program]:
        """Compiled programs, one per requested combination of options."""
        return self._inference.programs

    @property
    def ignored_parts(self) -> tuple[str, ...]:
        """Names of the parts of observations that acting ignores."""
        return self._inference.ignored_parts

    def check_id(self, module_id: str) -> str:
        """Return the id of a module.

        Raises:
            UnknownNameError: If it is not that of the only module.
        """
        if module_id != self._module_id:
            raise UnknownNameError(
                f"There is no module '{module_id}'; the only one is '{self._module_id}'."
            )
        return module_id

    def get_module(self, module_id: str) -> RLModule:
        """Return the module, with the current weights for calls with a batch."""
        self.check_id(module_id)
        return self._module

    @single_threaded
    def get_policy(self, policy_id: str, explore: bool, seed: int) -> Policy:
        """Return the current policy; see `Algorithm.get_policy`."""
        self.check_id(policy_id)
        check_seed(seed)
        return Policy(
            self._inference,
            jax.tree.map(jnp.copy, self._acting.get_actor_state()),
            key=fold_in_uint64(self._keys.get(_POLICY), seed),
            explore=explore,
        )

    def compute_one(
        self,
        obs: object,
        state: PyTree,
        past: Mapping[str, Any],
        policy_id: str,
        options: ActionOptions,
    ) -> PyTree:
        """Compute the action for one observation; see `Algorithm.compute_single_action`.

        Args:
            obs: Observation as returned by the environment.
            state: State returned for the previous observation; None at an episode's start.
            past: Previous action and reward, which count if a connector reads them.
            policy_id: Name of the module.
            options: Options of the call.
        """
        fields = options.make_request_fields(has_state=state is not None)
        read = self._inference.select_read(past)
        request = ActionRequest.from_single(obs, state, read, **fields)
        result = self._act(request, policy_id)
        return take_row(result if request.should_return_state else result[0], 0)

    def compute_several(
        self,
        observations: Sequence[Any] | Mapping[Any, Any],
        state: PyTree,
        past: Mapping[str, Any],
        policy_id: str,
        options: ActionOptions,
    ) -> PyTree:
        """Compute actions for several observations; see `Algorithm.compute_actions`.

        Args:
            observations: Sequence of observations, or a mapping by name.
            state: State returned for the previous observations, by name or batched.
            past: Previous actions and rewards, likewise, which count if a connector reads them.
            policy_id: Name of the module.
            options: Options of the call.
        """
        fields = options.make_request_fields(has_state=state is not None)
        read = self._inference.select_read(past)
        request = ActionRequest.from_batch(observations, state, read, **fields)
        names = list(observations) if isinstance(observations, Mapping) else None
        result = split_by_name(self._act(request, policy_id), names)
        return result if request.should_return_state else result[0]

    @single_threaded
    def _act(self, request: ActionRequest, policy_id: str) -> ActionResult:
        self.check_id(policy_id)
        counters = self._record.host
        counters.actions_drawn += 1
        base_key, number = self._keys.get(_ACTIONS), counters.actions_drawn
        return self._inference(self._acting.get_actor_state, request, base_key, number)


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


def make_actions(
    debugging: DebuggingSettings,
    assembly: Assembly,
    acting: ActingState,
    keys: PurposeKeys,
    record: RunRecord,
    lock: ExclusiveLock,
) -> "ComputeActions | ComputeAgentActions":
    """Make what computes a run's actions for the caller's observations."""

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
