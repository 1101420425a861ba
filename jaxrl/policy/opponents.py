"""Methods of `Algorithm` for opponents that are drawn: snapshots, and RLlib's `add_module`."""

import functools
import logging
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl.assembly.assemble import Assembly
from jaxrl.assembly.multi_agent import MultiAgentAssembly
from jaxrl.assembly.opponent_kinds import check_opponent_id, find_kind, has_same_hparams
from jaxrl.config.agent_mapping import AgentMapping, Mapped
from jaxrl.config.batch_plan import MultiAgentPlan
from jaxrl.config.multi_agent import check_module_id
from jaxrl.config.settings.multi_agent import PopulationPlay
from jaxrl.core.keys import make_key
from jaxrl.core.struct import replace
from jaxrl.core.types import PyTree
from jaxrl.errors import CheckpointError, ConfigError, UnknownNameError, did_you_mean
from jaxrl.evaluation.evaluation import Evaluation
from jaxrl.modules.rl_module import is_module_class
from jaxrl.policy.host_modules import HostModuleMethods, LocalRunnerView
from jaxrl.policy.league import LeagueMethods
from jaxrl.policy.opponent_sources import (
    OpponentSource,
    choose_num_episodes,
    choose_seats,
    find_opponents,
)
from jaxrl.runs import checkpoint as ckpt
from jaxrl.runs import opponents
from jaxrl.runs.opponents import NewMapping
from jaxrl.runs.weights import match_parameters, refresh_snapshot, set_first_versions
from jaxrl.runtime.exclusive import ExclusiveLock, single_threaded
from jaxrl.runtime.program import Program
from jaxrl.training.evaluate import EvaluationInputs
from jaxrl.training.opponents import OpponentKind, OpponentPool
from jaxrl.training.rollout import ActorState
from jaxrl.training.row_blocks import put
from jaxrl.training.train_state import TrainState

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig
    from jaxrl.modules.rl_module import RLModuleSpec
    from jaxrl.runners.env_runner import EnvRunner


logger = logging.getLogger("jaxrl")

LEAGUE_CALL = "league=..."
"""Name of the calls that a league makes itself, in messages."""


class OpponentMethods(HostModuleMethods, LeagueMethods):
    """Methods that change the opponents of a run.

    Where they are drawn in the compiled program, nothing is compiled again.
    """

    if TYPE_CHECKING:
        config: AlgorithmConfig
        _assembly: Assembly
        _evaluation: Evaluation
        _use: ExclusiveLock

        def _make_evaluation_inputs(self) -> EvaluationInputs: ...

        @property
        def state(self) -> TrainState: ...
        @state.setter
        def state(self, state: TrainState) -> None: ...

    @functools.cached_property
    def _put_module(self) -> Program:
        return Program("put_module", put, enabled=self.config.debugging_settings.compiles)

    @property
    def env_runner(self) -> "EnvRunner | LocalRunnerView":
        """Runner of this process; with several agents in Python, its modules have the weights."""
        if self._is_on_host:
            return LocalRunnerView(self)
        return self._loop.runners.local_env_runner  # pyright: ignore

    @property
    def opponents(self) -> list[str]:
        """Ids of the opponents that are drawn, in the order of their slots."""
        return list(opponents.list_opponents(self.state))

    @single_threaded
    def snapshot(self, module_id: str, *, as_: str) -> None:
        """Add a copy of a module as an opponent, with its connectors' statistics.

        It is drawn from the next episodes on, where the mapping has a Draw without ids, and never
        changes.

        Args:
            module_id: Module that is trained.
            as_: Id of the opponent.

        Raises:
            UnknownNameError: If there is no such module.
            ConfigError: If the id is taken, there is no room, or the module could not play where
                opponents are drawn.
        """
        pool = self._get_pool(f"snapshot({module_id!r}, as_={as_!r})")
        assembly = self._assembly
        assert isinstance(assembly, MultiAgentAssembly)
        if module_id not in assembly.modules:
            raise UnknownNameError(
                f"There is no module {module_id!r} to take a snapshot of; there are "
                f"{', '.join(assembly.modules)}.{did_you_mean(module_id, assembly.modules)}"
            )
        kind = self._find_kind_of(pool, module_id)
        step = assembly.modules[module_id].train_step
        actor = step.make_actor_state(self.state.modules[module_id])
        self._add(pool, kind, as_, actor, follows=False)

    @single_threaded
    def add_module(
        self,
        module_id: str,
        module_spec: "RLModuleSpec | None" = None,
        *,
        state: PyTree = None,
        new_agent_to_module_mapping_fn: NewMapping | Mapped | None = None,
        new_should_module_be_updated: Collection[str] | Callable[..., Any] | None = None,
        **others: object,
    ) -> None:
        """Add a module, with RLlib's arguments.

        With environments in Python, it is a module like the others, whose programs are compiled again.
        In the compiled program, it is an opponent that is drawn.

        Args:
            module_id: Its id.
            module_spec: Its module; None is that of the first module that is trained. That of an
                opponent that is drawn is of an architecture that is there.
            state: Its parameters, in the form of one entry of `get_weights`; None draws new ones.
            new_agent_to_module_mapping_fn: Mapping from the next episodes on, a function or, of
                opponents that are drawn, a value; see `set_mapping`.
            new_should_module_be_updated: The modules that are trained, or a function of an id; None
                leaves them as they are. Opponents that are drawn are never trained.
            **others: RLlib's `config_overrides`, for a module that is trained, and `add_to_...`, at
                their defaults.

        Raises:
            ConfigError: If the id is taken, or the run cannot have the module: there is no room, it
                would be trained, or is of an architecture that is not there.
            ModuleError: If the parameters do not fit.
        """
        call = f"add_module({module_id!r})"
        if self._is_on_host:
            overrides = others.pop("config_overrides", None) or {}
            _check_others(call, others)
            chosen, wanted = new_agent_to_module_mapping_fn, new_should_module_be_updated
            if chosen is not None and not callable(chosen):
                raise ConfigError(
                    f"{call} got the mapping {chosen!r}, which is part of a compiled program: give a "
                    "function, which is called in every episode."
                )
            self._add_to_host(module_id, module_spec, state, chosen, wanted, overrides)  # pyright: ignore
            return
        pool = self._get_pool(call)
        _check_others(call, others)
        self._check_trained(module_id, new_should_module_be_updated)
        module_class = model_config = None
        if module_spec is not None:
            module_class, model_config = module_spec.module_class, module_spec.model_config
        kind = self._find_kind(pool, module_class, model_config, module_id)
        like = pool.get_actor(self.state.opponents, pool.first_slots[kind.name])
        key = jax.random.fold_in(
            make_key(self.config.debugging_settings.run_seed), zlib.crc32(module_id.encode())
        )
        params = kind.policy.module.init(key)
        if state is not None:
            params, _ = match_parameters(params, state, strict=True)
        actor = replace(like, params=params, obs_state=kind.policy.obs_pipeline.init())
        before = self.state
        self._add(pool, kind, module_id, actor, follows=True)
        if new_agent_to_module_mapping_fn is not None:
            try:
                self.set_mapping(new_agent_to_module_mapping_fn)
            except BaseException:
                self.state = before
                raise

    @single_threaded
    def remove_module(
        self,
        module_id: str,
        *,
        new_agent_to_module_mapping_fn: NewMapping | Mapped | None = None,
        new_should_module_be_updated: Collection[str] | Callable[..., Any] | None = None,
        **others: object,
    ) -> None:
        """Remove an opponent. Episodes that have begun against it go on to their end.

        Args:
            module_id: Its id.
            new_agent_to_module_mapping_fn: Mapping from the next episodes on; see `set_mapping`.
            new_should_module_be_updated: The modules that are trained, which cannot change.
            **others: RLlib's `remove_from_...`, at their defaults.

        Raises:
            UnknownNameError: If there is no such opponent.
            ConfigError: If nothing would be left to draw, or the module is trained.
        """
        call = f"remove_module({module_id!r})"
        if self._is_on_host:
            raise ConfigError(
                f"{call} is for opponents that are drawn in the compiled program: in Python, let "
                "policy_mapping_fn not choose the module any longer."
            )
        self._get_pool(call)
        _check_others(call, others)
        if module_id in self.state.modules:
            raise ConfigError(
                f"{call} would remove a module that is part of the compiled program: only opponents "
                f"that are drawn may be removed, {', '.join(self.opponents)}."
            )
        self._check_trained("", new_should_module_be_updated)
        opponents.find_slot(self.state, module_id)
        before = self.state
        if new_agent_to_module_mapping_fn is not None:
            self.set_mapping(new_agent_to_module_mapping_fn)
        try:
            self.state = opponents.remove_opponent(self.state, module_id)
            self._weigh_league()
        except BaseException:
            self.state = before
            raise

    @single_threaded
    def set_mapping(self, mapping: NewMapping | Mapped) -> None:
        """Draw other opponents from the next episodes on; those that go on keep theirs.

        Args:
            mapping: Mapping as in `multi_agent(mapping=...)`, or a function as `policy_mapping_fn`,
                with the run's own modules in the same seats.

        Raises:
            ConfigError: If a module of the run has another seat.
            UnknownNameError: If the mapping names an opponent that there is not.
        """
        pool = self._get_pool("set_mapping(...)")
        league = self.config.multi_agent_settings.any_league
        if league is not None:
            raise ConfigError(
                f"set_mapping(...) has no effect with league={type(league).__name__}(...), which weighs the opponents "
                "after every iteration: leave out one of them."
            )
        trained = sorted(self._trained)
        self.state = opponents.weigh_opponents(pool, self.state, mapping, trained)

    def _evaluate_against(
        self,
        wanted: Sequence[OpponentSource] | None,
        seats: str | Sequence[str],
        module_id: str | None,
        num_episodes: int | None,
    ) -> dict[str, Any]:
        """Play against opponents; see `Algorithm.evaluate`."""
        if wanted is None:
            raise ConfigError(
                f"evaluate(seats={seats!r}, module_id={module_id!r}) has no effect without opponents: "
                "name some, or leave it out."
            )
        assembly = self._assembly
        if not isinstance(assembly, MultiAgentAssembly) or len(assembly.agent_rows.agents) != 2:
            raise ConfigError(
                "evaluate(opponents=...) needs an environment of two agents: leave opponents out."
            )
        if self._is_on_host:
            raise ConfigError(
                f"evaluate(opponents=...) plays in the compiled program, and {assembly.made.id} is "
                "written in Python: leave opponents out; who plays in an evaluation is chosen by the "
                "policy_mapping_fn that eval_env_runner_group has."
            )
        agents, trained = assembly.agent_rows.agents, sorted(self._trained)
        if module_id is None and len(trained) > 1:
            raise ConfigError(
                f"evaluate(opponents=...) needs module_id=..., one of {', '.join(trained)}."
            )
        module = trained[0] if module_id is None else module_id
        if module not in assembly.modules:
            raise UnknownNameError(
                f"evaluate(module_id={module!r}) is not there; the modules are "
                f"{', '.join(assembly.modules)}.{did_you_mean(module, assembly.modules)}"
            )
        chosen = choose_seats(seats, agents)
        number = choose_num_episodes(num_episodes, self.config.evaluation_settings)
        opponents_ = find_opponents(assembly, self.state, module, wanted)
        pairings = self._evaluation.get_pairings()
        inputs = self._make_evaluation_inputs()
        return {"opponents": pairings.run(inputs, module, opponents_, chosen, number)}

    def _load_modules(
        self,
        path: Path,
        leaves: Mapping[str, np.ndarray],
        module_ids: Sequence[str],
        component: str | None,
    ) -> None:
        """Restore learners and connectors of modules from the leaves of a checkpoint.

        Raises:
            ConfigError: If the config has no such module.
            UnknownNameError: If the checkpoint has none.
            CheckpointError: If one has another architecture or optimizer.
        """
        if component is not None:
            raise ConfigError(
                f"policy_ids restores learners and connectors whole, so component={component!r} has no "
                "effect: leave one of them out."
            )
        if isinstance(module_ids, str) or not module_ids:
            raise ConfigError(
                f"policy_ids={module_ids!r} must be a list of the modules to restore, such as ['main']; "
                "None restores the whole run."
            )
        saved = sorted({name.split(".")[1] for name in leaves if name.startswith("modules.")})
        modules = dict(self.state.modules)
        for name in module_ids:
            if name not in saved:
                raise UnknownNameError(
                    f"policy_ids has {name!r}, but {path} has the modules "
                    f"{', '.join(saved) or 'of a single agent'}.{did_you_mean(name, saved)}"
                )
            if name not in modules:
                raise ConfigError(
                    f"policy_ids has {name!r}, but the modules of the config are "
                    f"{', '.join(modules) or 'those of a single agent'}."
                )
        parts = ("learner", "connectors.obs", "connectors.learner", "progress")
        prefixes = tuple(f"modules.{name}.{part}" for name in module_ids for part in parts)
        template = {"modules": modules}
        problem = ckpt.find_first_difference(template, leaves, prefixes)
        if problem is not None:
            raise CheckpointError(f"{path} does not fit: {problem}.")
        filled: dict[str, Any] = ckpt.fill(template, leaves, prefixes)["modules"]
        restored = {name: refresh_snapshot(filled[name]) for name in module_ids}
        after = replace(self.state, modules={**modules, **restored})
        self.state = set_first_versions(after, module_ids)
        new = [name for name in modules if name not in module_ids]
        logger.info(
            "%s: restored %s; new: %s; left out: %s.",
            path,
            ", ".join(module_ids),
            ", ".join(new) or "none",
            ", ".join(name for name in saved if name not in module_ids) or "none",
        )

    def _find_kind_of(self, pool: OpponentPool, module_id: str) -> OpponentKind:
        """Return the kind that snapshots of a module are of."""
        assert isinstance(self._assembly, MultiAgentAssembly)
        modules = self._assembly.modules
        own = modules[module_id]
        kinds = [
            kind
            for kind in pool.kinds
            if kind.capacity > 1 and has_same_hparams(modules[kind.learner], own)
        ]
        kind = find_kind(kinds, own.policy_step)
        if kind is None:
            raise ConfigError(
                f"{module_id!r} cannot play where opponents are drawn, because its spaces or the names "
                "of its hyperparameters are others than those of every module that is trained, or "
                "policy_map_capacity is 1: name a module that can."
            )
        return kind

    def _list_slots(self, module_id: str) -> tuple[set[int], set[int]]:
        """Return the slots for snapshots of a module that are empty, and those that are free now."""
        pool = self._get_pool(LEAGUE_CALL)
        return opponents.list_empty_slots(pool, self.state, self._find_kind_of(pool, module_id))

    def _list_alike(self, module_id: str) -> list[str]:
        """Return the learners of the same architecture in a league of several."""
        return list(self._find_kind_of(self._get_pool(LEAGUE_CALL), module_id).learners)

    @property
    def _agents(self) -> AgentMapping:
        plan = self._assembly.plan
        assert isinstance(plan, MultiAgentPlan)
        return plan.agents

    @property
    def _trained(self) -> frozenset[str]:
        return self._assembly.in_graph_runner.trained  # pyright: ignore

    def _get_pool(self, call: str) -> OpponentPool:
        if self._is_on_host:
            raise ConfigError(
                f"{call} is for opponents that are drawn in the compiled program: in Python, add a copy "
                "by add_module(id, state=get_weights([module])[module], "
                "new_agent_to_module_mapping_fn=...), which chooses who plays."
            )
        assembly = self._assembly
        pool = assembly.pool if isinstance(assembly, MultiAgentAssembly) else None
        if pool is None:
            raise ConfigError(
                f"{call} needs a mapping that draws opponents, such as mapping=Seats('main', Draw()) "
                "with policies={'main': None, 'random': RandomRLModule}."
            )
        league = self.config.multi_agent_settings.learners_league
        if isinstance(league, PopulationPlay) and call != LEAGUE_CALL:
            raise ConfigError(
                f"{call} has no effect with league=PopulationPlay(...), whose learners play each other "
                "alone: use League(...) or SelfPlay(...) instead of it."
            )
        return pool

    def _add(
        self, pool: OpponentPool, kind: OpponentKind, name: str, actor: ActorState, *, follows: bool
    ) -> None:
        check_module_id(name)
        check_opponent_id(name)
        taken = [*self.state.modules, *self.opponents]
        if name in taken:
            raise ConfigError(
                f"There is a module {name!r} already: choose another id, or remove_module it first."
            )
        slot = opponents.find_free_slot(pool, self.state, kind)
        self.state = opponents.write_opponent(
            self.state, slot, name, actor, self._put_module, follows=follows
        )
        self._weigh_league()

    def _weigh_league(self) -> None:
        league = self.config.multi_agent_settings.learners_league
        if league is not None:
            self.state = self._weigh_learners(league, self.state)

    def _find_kind(
        self, pool: OpponentPool, module_class: object, model_config: object, name: str
    ) -> OpponentKind:
        """Return the kind of an architecture that has more than one slot."""
        for kind in pool.kinds:
            module = kind.policy.module
            same_class = module_class is None or is_module_class(module, module_class)
            same_config = model_config is None or model_config == module.model_config
            if kind.capacity > 1 and same_class and same_config:
                return kind
        described = getattr(module_class, "__name__", "its own settings")
        raise ConfigError(
            f"{name!r} is of an architecture ({described}) that no module has which is trained where "
            "opponents are drawn, and another one is another program: name it in policies when the "
            "config is made."
        )

    def _check_trained(
        self, added: str, wanted: Collection[str] | Callable[..., Any] | None
    ) -> None:
        """Raise if the modules to train are others than those of the run."""
        if wanted is None:
            return
        trained = self._trained
        names = {*self.state.modules, *self.opponents, *([added] if added else ())}
        chosen = frozenset(n for n in names if wanted(n)) if callable(wanted) else frozenset(wanted)
        if chosen != trained:
            raise ConfigError(
                f"new_should_module_be_updated asks to train {', '.join(sorted(chosen)) or 'nothing'}, "
                f"but the compiled program trains {', '.join(sorted(trained))}: build another config "
                "to train others."
            )


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


def _check_others(call: str, others: dict[str, object]) -> None:
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
