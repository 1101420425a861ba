"""Modules that are added to a run whose environments are in Python, or trained from now on.

The run goes on with the programs of a changed config: its state is carried over, its environments and
episodes stay where they are, and what is compiled is compiled again.
"""

import dataclasses
import logging
import zlib
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp

from jaxrl.assembly.assemble import Assembly, assemble_run
from jaxrl.assembly.multi_agent import MultiAgentAssembly
from jaxrl.config.agent_mapping import AgentMapping, Mapped, check_choices
from jaxrl.config.batch_plan import MultiAgentPlan
from jaxrl.config.multi_agent import (
    NewModule,
    check_module_id,
    is_trained,
    with_mapping_fn,
    with_module,
    with_trained,
)
from jaxrl.core.keys import make_key
from jaxrl.core.spaces import is_same_space
from jaxrl.core.struct import has_same_form, replace
from jaxrl.core.types import Device, PyTree
from jaxrl.envs.multi.host_made import MadeMultiHostEnv
from jaxrl.errors import ConfigError, UnknownNameError, did_you_mean
from jaxrl.modules.rl_module import is_module_class
from jaxrl.runners.host_loop import HostLoop
from jaxrl.runners.learner_group import LearnerGroup, LocalLearnerGroup
from jaxrl.runners.protocols import ChangingRunners, Loop
from jaxrl.runs.module_changes import continue_run
from jaxrl.runs.opponents import NewMapping
from jaxrl.runs.weights import check_parameters, set_parameters
from jaxrl.training.agent_rows import AgentView
from jaxrl.training.multi_learning import MultiLearning
from jaxrl.training.train_state import TrainState

if TYPE_CHECKING:
    from jaxrl.config.config import Config
    from jaxrl.modules.rl_module import RLModuleSpec

logger = logging.getLogger("jaxrl")

Wanted = Collection[str] | Callable[..., Any] | None


_DEFAULTS: dict[str, tuple[object, ...]] = {
    "config_overrides": (None, {}),
    **dict.fromkeys(
        (
            *("add_to_learners", "add_to_env_runners", "add_to_eval_env_runners"),
            *("remove_from_learners", "remove_from_env_runners", "remove_from_eval_env_runners"),
        ),
        (True,),
    ),
}
"""RLlib's other arguments, with the values that have a meaning here."""


def check_others(call: str, others: dict[str, object]) -> None:
    """Raise ConfigError for an argument of RLlib's that has no meaning here."""
    for name, value in others.items():
        if name not in _DEFAULTS:
            raise ConfigError(
                f"{call} has no argument {name!r}.{did_you_mean(name, list(_DEFAULTS))}"
            )
        if value not in _DEFAULTS[name]:
            raise ConfigError(
                f"{call} does not take {name}={value!r}: opponents are not trained, and play wherever "
                "they are drawn; leave it out."
            )


@dataclasses.dataclass(frozen=True)
class ModulesChange:
    """Config, and the programs, that a run goes on with.

    Attributes:
        config: Frozen config.
        assembly: Its functions; None if they are those of the run.
        has_new_mapping: Whether another function chooses modules.
        init: Function that gives a module that was added its parameters, in the state of the run.
    """

    config: "Config"
    assembly: MultiAgentAssembly | None
    has_new_mapping: bool
    init: Callable[[TrainState], TrainState] = lambda state: state


class HostModules:
    """Modules of a run whose environments are in Python, and what changes them.

    Args:
        config: Config of the run.
        assembly: Functions of the run.
        learners: Learners that own the state.
        loop: Training loop.
        keeps: True within an iteration, whose programs and totals are those of the modules of now.
    """

    def __init__(
        self,
        config: "Config",
        assembly: Assembly,
        learners: LearnerGroup,
        loop: Loop,
        *,
        keeps: bool,
    ) -> None:
        self._config, self._assembly, self._learners = config, assembly, learners
        self._loop, self._keeps_modules = loop, keeps

    def add(
        self,
        module_id: str,
        spec: "RLModuleSpec | None",
        state: PyTree,
        mapping_fn: NewMapping | Mapped | None,
        wanted: Wanted,
        others: dict[str, object],
    ) -> ModulesChange:
        """Return the run with another module; see `Algorithm.add_module`."""
        call = f"add_module({module_id!r})"
        overrides = cast("Mapping[str, Any]", others.pop("config_overrides", None) or {})
        check_others(call, others)
        if mapping_fn is not None and not callable(mapping_fn):
            raise ConfigError(
                f"{call} got the mapping {mapping_fn!r}, which is part of a compiled program: give a "
                "function, which is called in every episode."
            )
        check_module_id(module_id)
        self._check_may_change(call)
        agents = self.agents
        if module_id in agents.modules:
            raise ConfigError(
                f"There is a module {module_id!r} already: choose another id, or set its weights."
            )
        like = self._find_like(spec)
        new = NewModule(
            name=module_id,
            like=like,
            spec=None if like is not None else spec,
            agents=self._find_agents(call, like, spec),
            overrides=overrides,
        )
        names = {*agents.modules, module_id}
        config = with_module(self._config, agents, new, mapping_fn)
        if mapping_fn is not None:
            check_choices(mapping_fn, self._made, sorted(names))
        setting = "new_should_module_be_updated"
        trained = self._choose_trained(agents.trained, names, wanted, setting)
        config = with_trained(config, trained)
        assembly = _assemble(config)
        if state is not None:
            check_parameters(assembly.modules[module_id].policy_step.module, state)
        init = partial(
            _init_module,
            config.debugging_settings.run_seed,
            assembly,
            module_id,
            state,
            like or min(agents.trained),
        )
        return ModulesChange(config, assembly, mapping_fn is not None, init)

    @property
    def are_changeable(self) -> bool:
        """True if several agents are in environments in Python."""
        assembly = self._assembly
        return isinstance(assembly, MultiAgentAssembly) and not assembly.is_in_graph

    @property
    def agents(self) -> AgentMapping:
        """Agents of the run."""
        plan = self._assembly.plan
        assert isinstance(plan, MultiAgentPlan)
        return plan.agents

    @property
    def _modules(self) -> Mapping[str, Assembly]:
        assert isinstance(self._assembly, MultiAgentAssembly)
        return self._assembly.modules

    @property
    def _views(self) -> Mapping[str, AgentView]:
        assert isinstance(self._assembly, MultiAgentAssembly)
        return self._assembly.views

    def _check_may_change(self, call: str) -> None:
        """Raise ConfigError if the modules of this run cannot change."""
        runners = self._loop.runners
        why = None
        if self._keeps_modules:
            why = "iteration is not over: call it in on_train_result"
        elif not isinstance(self._learners, LocalLearnerGroup):
            why = "learners are in processes of their own: set num_learners=0"
        elif self._config.is_async:
            why = "runners sample while it learns: use PPO, whose runners wait"
        elif not isinstance(runners, ChangingRunners) or not isinstance(self._loop, HostLoop):
            why = "simulators act with it on their own: name all modules in policies"
        elif self._made.slots is not None:
            why = "agents are not known before: name all modules in policies"
        elif any(view.critic is not None for view in self._views.values()):
            why = "critics see all agents: name all modules in policies"
        elif self._config.offline_data_settings.output is not None:
            why = "its modules are part of what it records: leave output out"
        if why is not None:
            raise ConfigError(f"{call} would change a run whose {why}.")

    def _find_like(self, spec: "RLModuleSpec | None") -> str | None:
        """Return a module of the same architecture, None if there is none."""
        if spec is None:
            return min(self.agents.trained)
        for name, own in self._modules.items():
            module = own.policy_step.module
            spaces = (
                (spec.observation_space, module.observation_space),
                (spec.action_space, module.action_space),
            )
            if (
                is_module_class(module, spec.module_class or type(module))
                and (spec.module_class is not None or name in self.agents.trained)
                and (spec.model_config is None or spec.model_config == module.model_config)
                and all(x is None or is_same_space(x, y) for x, y in spaces)
            ):
                return name
        return None

    def _find_agents(
        self, call: str, like: str | None, spec: "RLModuleSpec | None"
    ) -> tuple[str, ...]:
        """Return the agents that a module may play, by their spaces."""
        made = self._made
        agents = self.agents

        def have_same_spaces(one: str, other: str) -> bool:
            spaces = made.observation_spaces, made.action_spaces
            return all(is_same_space(by[one], by[other]) for by in spaces)

        if like is not None:
            first = agents.get_agents(like)[0]
            return tuple(a for a in agents.agents if have_same_spaces(first, a))
        wanted = None if spec is None else spec.observation_space
        fitting = tuple(
            agent
            for agent in agents.agents
            if wanted is None or is_same_space(wanted, made.observation_spaces[agent])
        )
        if not fitting or not all(have_same_spaces(fitting[0], agent) for agent in fitting):
            raise ConfigError(
                f"{call} does not say which of the agents {', '.join(agents.agents)} it may play, "
                "whose spaces differ: give module_spec the observation_space of one of them."
            )
        return fitting

    @property
    def _made(self) -> MadeMultiHostEnv:
        assert isinstance(self._assembly, MultiAgentAssembly)
        made = self._assembly.agents_env
        assert isinstance(made, MadeMultiHostEnv)
        return made

    def _choose_trained(
        self, now: Collection[str], names: Collection[str], wanted: Wanted, setting: str
    ) -> frozenset[str]:
        """Return the modules to train: those of now, or those that a setting asks for."""
        if wanted is None:
            return frozenset(now)
        if callable(wanted):
            return frozenset(name for name in names if is_trained(wanted, name))
        unknown = next((name for name in wanted if name not in names), None)
        if unknown is not None:
            raise UnknownNameError(
                f"{setting} names {unknown!r}, but the modules are "
                f"{', '.join(sorted(names))}.{did_you_mean(unknown, names)}"
            )
        return frozenset(wanted)

    def follow(self) -> ModulesChange | None:
        """Return what was set on the configs of the local runner and of the learner, if anything.

        These are the function that chooses modules, and the modules that are trained.
        """
        learners, loop = self._learners, self._loop
        if self._keeps_modules or not self.are_changeable:
            return None
        if not (isinstance(loop, HostLoop) and isinstance(learners, LocalLearnerGroup)):
            return None
        own = self._config.multi_agent_settings
        mapping_fn = None
        if loop.has_runners and isinstance(loop.runners, ChangingRunners):
            mapping_fn = loop.runners.local_config.multi_agent_settings.policy_mapping_fn
        learned = learners.config.multi_agent_settings.policies_to_train
        is_new = mapping_fn is not None and mapping_fn is not own.policy_mapping_fn
        agents, config = self.agents, self._config
        if is_new and mapping_fn is not None and self._made.slots is None:
            config = with_mapping_fn(config, agents, mapping_fn)
        names = agents.modules
        trained = self._choose_trained(agents.trained, names, learned, "policies_to_train")
        if trained != agents.trained:
            self._check_may_change("policies_to_train of a learner's config")
            config = with_trained(config, trained)
            return ModulesChange(config, _assemble(config), has_new_mapping=False)
        if is_new:
            if self._made.slots is not None:
                raise ConfigError(
                    "policy_mapping_fn of a runner's config has no effect where agents have slots "
                    "(max_agents): set multi_agent(policy_mapping_fn=...) before the run is built."
                )
            config.validate()
            config.freeze()
            if isinstance(loop.runners, ChangingRunners):
                loop.runners.keep_config(config, self._made)
            return ModulesChange(config, None, has_new_mapping=True)
        return None

    def train_others(self, wanted: Wanted) -> ModulesChange | None:
        """Return the run that trains the modules that are asked for, if they are others.

        Raises:
            ConfigError: If the run has others, and they are part of its program.
        """
        if wanted is None:
            return None
        agents, call = self.agents, "from_checkpoint(policies_to_train=...)"
        trained = self._choose_trained(agents.trained, agents.modules, wanted, "policies_to_train")
        if trained == agents.trained:
            return None
        if not self.are_changeable:
            raise ConfigError(
                f"{call} asks to train {', '.join(sorted(trained)) or 'nothing'}, but the run that was "
                f"saved trains {', '.join(sorted(agents.trained))}, whose optimizers are part of its "
                "program: restore the parameters alone, with component='rl_module'."
            )
        self._check_may_change(call)
        config = with_trained(self._config, trained)
        return ModulesChange(config, _assemble(config), has_new_mapping=False)

    def continue_run(self, change: ModulesChange, devices: list[Device]) -> LocalLearnerGroup:
        """Return the learners of a changed run, with its state, which the loop now has."""
        config, assembly = change.config, change.assembly
        assert assembly is not None
        assert isinstance(self._assembly, MultiAgentAssembly)
        plan, old = assembly.plan, self._assembly.plan
        assert (plan.num_envs, plan.rollout_fragment_length) == (
            old.num_envs,
            old.rollout_fragment_length,
        )
        learning: object = assembly.train_step
        assert isinstance(learning, MultiLearning)
        key, rows = make_key(config.debugging_settings.run_seed), self._assembly.agent_rows
        state = continue_run(self._learners.state, rows, learning, key, plan.total_envs)
        learners = LocalLearnerGroup(config, assembly, devices, state)
        loop, made = self._loop, assembly.agents_env
        assert isinstance(loop, HostLoop)
        assert isinstance(made, MadeMultiHostEnv)
        runners: object = loop.runners
        assert isinstance(runners, ChangingRunners)
        runners.change_modules(config, made, has_new_mapping=change.has_new_mapping)
        loop.set_learners(learners)
        logger.info(
            "The modules are now %s, of which %s learn.",
            ", ".join(plan.agents.modules),  # pyright: ignore[reportAttributeAccessIssue]
            ", ".join(sorted(plan.agents.trained)),  # pyright: ignore[reportAttributeAccessIssue]
        )
        return learners


def _init_module(
    run_seed: int,
    assembly: MultiAgentAssembly,
    name: str,
    params: PyTree,
    like: str,
    state: TrainState,
) -> TrainState:
    """Give a module that was added its parameters, or draw some by its id.

    It has the statistics of observations of another module, which one that is not trained never
    updates, and its progress, by which schedules are read.
    """
    if params is None:
        key = jax.random.fold_in(make_key(run_seed), zlib.crc32(name.encode()))
        params = assembly.modules[name].policy_step.module.init(key)
    own, _ = set_parameters(state.modules[name], params, strict=True)
    source = state.modules[like]
    parts = {
        part: jax.tree.map(jnp.copy, getattr(source, part)) for part in ("connectors", "progress")
    }
    own = replace(
        own, **{part: x for part, x in parts.items() if has_same_form(x, getattr(own, part))}
    )
    return replace(state, modules={**state.modules, name: own})


def _assemble(config: "Config") -> MultiAgentAssembly:
    """Freeze a changed config and return its programs."""
    config.validate()
    config.freeze()
    assembly: object = assemble_run(config, should_train=True)
    assert isinstance(assembly, MultiAgentAssembly)
    return assembly
