"""League of a run: opponents are weighed by their games, and the learner's snapshots join them."""

import functools
import logging
import os
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl.assembly.assemble import Assembly
from jaxrl.assembly.multi_agent import MultiAgentAssembly
from jaxrl.assembly.opponents import check_opponent_id, find_kind, get_learner, has_same_hparams
from jaxrl.config.agent_mapping import DRAWN, AgentMapping, Mapped
from jaxrl.config.batch_plan import MultiAgentPlan
from jaxrl.config.markers import Marker
from jaxrl.config.multi_agent import check_module_id, find_searchers
from jaxrl.config.pbt import PopulationBasedTraining, parse_mutations
from jaxrl.config.settings.multi_agent import League, PopulationPlay, SelfPlay, SeveralLearners
from jaxrl.config.settings.run import EvaluationSettings
from jaxrl.core.hparams import Hyperparameter, to_leaf
from jaxrl.core.keys import make_key
from jaxrl.core.seeds import make_seed_sequence
from jaxrl.core.struct import replace
from jaxrl.core.types import Counter, PyTree
from jaxrl.errors import (
    CheckpointError,
    ConfigError,
    ModuleError,
    UnknownNameError,
    did_you_mean,
)
from jaxrl.evaluation.evaluation import Evaluation
from jaxrl.evaluation.pairings import Opponent
from jaxrl.loggers.recorder import RunRecord
from jaxrl.metrics import LEAGUE, lookup
from jaxrl.modules.rl_module import is_module_class
from jaxrl.policy.host_modules import check_others
from jaxrl.runners.in_graph_loop import InGraphLoop
from jaxrl.runners.learner_group import LearnerGroup
from jaxrl.runners.protocols import Loop
from jaxrl.runs import checkpoint as ckpt
from jaxrl.runs import opponents
from jaxrl.runs.exploits import Exploit, PBTScheduler
from jaxrl.runs.host_state import check_metadata
from jaxrl.runs.league_table import LeagueTable, PayoffTable, compute_shares, find_versions
from jaxrl.runs.opponents import NewMapping, list_opponents, make_payoff_table
from jaxrl.runs.weights import match_parameters
from jaxrl.runtime.program import Program
from jaxrl.training.evaluate import EvaluationInputs
from jaxrl.training.league import find_version, get_learned, is_due, weigh_draws
from jaxrl.training.opponents import OpponentKind, OpponentPool, OpponentState, put
from jaxrl.training.report import to_host
from jaxrl.training.rollout import ActorState
from jaxrl.training.train_state import TrainState

if TYPE_CHECKING:
    from jaxrl.config.config import Config
    from jaxrl.modules.rl_module import RLModuleSpec


_SEED_DOMAIN = 0x6C6561
"""Constant that separates this module's random draws from others with the same seed."""


def read_value(leaf: Hyperparameter, marker: Marker) -> float:
    """Return a number of a learner's hyperparameters; of those to choose from, the one it is."""
    if isinstance(leaf, Counter):
        return int(leaf)
    value = np.float32(to_host(leaf))
    alike = (x for x in marker.values if np.float32(x) == value) if marker.kind == "choice" else ()
    return next(iter(alike), float(value))


def copy_learner(
    state: TrainState, before: TrainState, source: str, target: str, values: Mapping[str, float]
) -> TrainState:
    """Return the state in which a learner is a copy of another one, with other hyperparameters.

    What it has learned is copied: parameters, optimizer state and connectors' statistics. Replay
    buffers and other hyperparameters stay its own. Nothing is compiled.

    Args:
        state: State to change.
        before: State of the learner that is copied.
        source: Learner that is copied.
        target: Learner that becomes the copy.
        values: New values of the hyperparameters that change.
    """
    learned = get_learned(before.modules[source])
    hparams = before.modules[target].learner.hparams
    changed = {name: to_leaf(value, hparams[name]) for name, value in values.items()}
    learned["learner"] = replace(learned["learner"], hparams={**hparams, **changed})
    return opponents.put_learned(state, target, learned)


def describe_payoff(table: PayoffTable) -> dict[str, Any]:
    """Return a league's part of a result: for each learner, its latest games and its rating."""
    elo, numbers = table.compute_elo(), table.count_games().sum(axis=1)
    found: dict[str, Any] = {"num_opponents": len(table.opponents) - len(table.learners)}
    for i, learner in enumerate(table.learners):
        shares = compute_shares(table.recent[i])
        met = shares[~np.isnan(shares)]
        found[learner] = {
            "num_games": int(numbers[table.players.index(learner)]),
            "num_snapshots": sum(find_version(learner, x) is not None for x in table.opponents),
            "win_rate_mean": float(met.mean()) if len(met) else float("nan"),
            "win_rate_min": float(met.min()) if len(met) else float("nan"),
            "elo": elo[learner],
        }
    return found


def _log_exploit(exploit: Exploit, source: str, target: str) -> None:
    changes = ", ".join(f"{name}={value:g}" for name, value in exploit.new.items())
    logger.info("league: %s becomes a copy of %s with %s.", target, source, changes)


logger = logging.getLogger("jaxrl")

LEAST_WEIGHT = 1e-6
"""Smallest weight of an opponent beside the largest, 1: smaller ones would be 0 in the program."""


def is_snapshot_due(settings: SelfPlay, table: LeagueTable, iteration: int) -> bool:
    """Return whether the learner is good enough, or the iteration is one of `every`.

    Args:
        settings: The league.
        table: Its games; opponents that are not drawn any more do not matter, nor those that the
            learner cannot beat because they search with its own parameters.
        iteration: Number of the iteration.
    """
    if settings.every is not None and iteration % settings.every == 0:
        return True
    weights = weigh(settings, table)
    is_drawn = np.array([w > 0.0 and name not in table.searchers for name, w in weights.items()])
    if (table.recent[is_drawn].sum(axis=1) < settings.least_games).any():
        return False
    return bool((table.compute_recent_shares()[is_drawn] >= settings.win_rate).all())


def weigh(settings: SelfPlay, table: LeagueTable) -> dict[str, float]:
    """Return the weight of each opponent in the next episodes."""
    names = table.opponents
    if settings.opponents == "pfsp":
        lost = 1.0 - table.smooth_shares()
        weights = np.maximum((lost / lost.max()) ** settings.power, LEAST_WEIGHT)
        return dict(zip(names, weights.tolist(), strict=True))
    if settings.opponents == "latest":
        versions = find_versions(table.learner, names)
        old = {versions[number] for number in sorted(versions)[: -settings.num_latest]}
        return {name: 0.0 if name in old else 1.0 for name in names}
    return dict.fromkeys(names, 1.0)


OpponentSource = str | os.PathLike[str]
"""Id of a module, or path of a checkpoint."""


def choose_seats(seats: str | Sequence[str], agents: Sequence[str]) -> tuple[str, ...]:
    """Return the agents that a module plays.

    Raises:
        ConfigError: If one is no agent, or there is none.
    """
    chosen = agents if seats == "both" else (seats,) if isinstance(seats, str) else seats
    if not chosen or any(seat not in agents for seat in chosen):
        raise ConfigError(
            f"seats={seats!r} must be 'both' or some of the agents {', '.join(agents)}."
        )
    return tuple(chosen)


def choose_num_episodes(num_episodes: int | None, settings: EvaluationSettings) -> int:
    """Return the number of episodes of a pairing, given that of a call or None.

    Raises:
        ConfigError: If it is no positive integer, or the config has none.
    """
    if num_episodes is not None:
        if type(num_episodes) is not int or num_episodes <= 0:
            raise ConfigError(f"num_episodes={num_episodes!r} must be a positive integer, or None.")
        return num_episodes
    number = settings.evaluation_duration
    if not isinstance(number, int) or settings.evaluation_duration_unit != "episodes":
        raise ConfigError(
            "evaluate(opponents=...) counts episodes, and evaluation_duration does not: give "
            "num_episodes."
        )
    return number


def find_opponents(
    assembly: MultiAgentAssembly, state: TrainState, module: str, wanted: Sequence[OpponentSource]
) -> list[Opponent]:
    """Return the opponents of these names.

    Args:
        assembly: Functions of the run.
        state: State of the run.
        module: Module that they play against, whose counterpart a checkpoint has.
        wanted: Ids of modules or opponents of the run, or paths of checkpoints.

    Raises:
        UnknownNameError: If there is no such module and no such path.
        CheckpointError: If the checkpoint's module is another one.
        ConfigError: If a name is given twice, or none.
    """
    if isinstance(wanted, str | os.PathLike):
        raise ConfigError(
            f"evaluate(opponents={wanted!r}) must be a list of ids or paths: write [{wanted!r}]."
        )
    names = [name if isinstance(name, str) else str(ckpt.get_path(name)) for name in wanted]
    if not names or len(set(names)) < len(names):
        raise ConfigError(
            f"evaluate(opponents=...) needs the ids of modules or paths of checkpoints, each once, "
            f"got {names}."
        )
    return [_find_opponent(assembly, state, module, name) for name in names]


def _find_opponent(
    assembly: MultiAgentAssembly, state: TrainState, module: str, name: str
) -> Opponent:
    slots, pool, env = list_opponents(state), assembly.pool, assembly.drawn_env
    if name in assembly.modules:
        own = assembly.modules[name]
        actor = own.train_step.make_actor_state(state.modules[name])
        return Opponent(name=name, policy=own.policy_step, actor=actor, spaces=own.made.spaces)
    if name in slots and pool is not None and env is not None:
        slot = slots[name]
        actors: PyTree = assembly.train_step.make_actor_state(state)
        return Opponent(
            name=name,
            policy=pool.find_kind(slot).policy,
            actor=pool.get_actor(actors[DRAWN], slot),
            spaces=env.spaces,
        )
    if not Path(name).exists():
        known = [*assembly.modules, *slots]
        raise UnknownNameError(
            f"evaluate(opponents=...) has {name!r}, which is no path, and the modules are "
            f"{', '.join(known)}.{did_you_mean(name, known)}"
        )
    return _read_opponent(assembly, state, module, name)


def _read_opponent(
    assembly: MultiAgentAssembly, state: TrainState, module: str, path: str
) -> Opponent:
    """Return the counterpart of a module in a checkpoint."""
    found = ckpt.find_checkpoint(path)
    metadata = ckpt.read_metadata(found)
    check_metadata(metadata, found)
    leaves = ckpt.read_leaves(found, metadata)
    parts = tuple(f"modules.{module}.{part}" for part in ("learner.sgd.params", "connectors.obs"))
    template = {"modules": {module: state.modules[module]}}
    problem = ckpt.find_first_difference(template, leaves, parts)
    if problem is not None:
        raise CheckpointError(
            f"{found} has no opponent of the architecture of {module!r}: {problem}."
        )
    filled: PyTree = ckpt.fill(template, leaves, parts)
    own = assembly.modules[module]
    actor = own.train_step.make_actor_state(filled["modules"][module])
    return Opponent(name=path, policy=own.policy_step, actor=actor, spaces=own.made.spaces)


LEAGUE_CALL = "league=..."
"""Name of the calls that a league makes itself, in messages."""


class RunLeague:
    """Opponents of a run, and its league, in the state of the learners.

    Where they are drawn in the compiled program, nothing is compiled again when they change.

    Args:
        config: Config of the run.
        assembly: Functions of the run.
        learners: Learners that own the state.
        loop: Training loop.
        record: Record of the run.
    """

    def __init__(
        self,
        config: "Config",
        assembly: Assembly,
        learners: LearnerGroup,
        loop: Loop,
        record: RunRecord,
    ) -> None:
        self._config, self._assembly, self._learners = config, assembly, learners
        self._loop, self._record = loop, record

    @property
    def state(self) -> TrainState:
        """State of the run."""
        return self._learners.state

    @state.setter
    def state(self, state: TrainState) -> None:
        self._learners.state = state

    @property
    def is_on_host(self) -> bool:
        """True if several agents are in environments in Python, where no opponents are drawn."""
        assembly = self._assembly
        return isinstance(assembly, MultiAgentAssembly) and not assembly.is_in_graph

    @functools.cached_property
    def put_module(self) -> Program:
        """Program that writes an opponent into its slot."""
        return Program("put_module", put, enabled=self._config.debugging_settings.compiles)

    @property
    def opponents(self) -> list[str]:
        """Ids of the opponents, in the order of their slots."""
        return list(opponents.list_opponents(self.state))

    def find_owner(self, module_id: str) -> str:
        """Return the module whose parameters an opponent searches with, or the same id."""
        pool, slots = self._assembly.pool, opponents.list_opponents(self.state)
        if pool is None or module_id not in slots:
            return module_id
        return pool.present.get(slots[module_id], module_id)

    def check_owners(self, weights: Mapping[str, object]) -> None:
        """Raise ModuleError if weights have an opponent that has the parameters of a learner."""
        for name in weights if isinstance(weights, Mapping) else ():
            if (owner := self.find_owner(name)) != name:
                raise ModuleError(
                    f"weights has {name!r}, which searches with the parameters of {owner!r}: set those, "
                    f"set_weights({{{owner!r}: ...}})."
                )

    def snapshot(self, module_id: str, *, as_: str) -> None:
        """Add a copy of a module as an opponent; see `Algorithm.snapshot`."""
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

    def add(
        self,
        module_id: str,
        module_spec: "RLModuleSpec | None",
        state: PyTree,
        mapping: NewMapping | Mapped | None,
        wanted: Collection[str] | Callable[..., Any] | None,
        others: dict[str, object],
    ) -> None:
        """Add an opponent that is drawn; see `Algorithm.add_module`."""
        call = f"add_module({module_id!r})"
        pool = self._get_pool(call)
        check_others(call, others)
        self._check_trained(module_id, wanted)
        module_class = model_config = None
        if module_spec is not None:
            module_class, model_config = module_spec.module_class, module_spec.model_config
        kind = self._find_kind(pool, module_class, model_config, module_id)
        like = pool.get_actor(self.state.opponents, pool.first_slots[kind.name])
        key = jax.random.fold_in(
            make_key(self._config.debugging_settings.run_seed), zlib.crc32(module_id.encode())
        )
        params = kind.policy.module.init(key)
        if state is not None:
            params, _ = match_parameters(params, state, strict=True)
        actor = replace(like, params=params, obs_state=kind.policy.obs_pipeline.init())
        before = self.state
        self._add(pool, kind, module_id, actor, follows=True)
        if mapping is not None:
            try:
                self.set_mapping(mapping)
            except BaseException:
                self.state = before
                raise

    def remove(
        self,
        module_id: str,
        mapping: NewMapping | Mapped | None,
        wanted: Collection[str] | Callable[..., Any] | None,
        others: dict[str, object],
    ) -> None:
        """Remove an opponent; see `Algorithm.remove_module`."""
        call = f"remove_module({module_id!r})"
        if self.is_on_host:
            raise ConfigError(
                f"{call} is for opponents that are drawn in the compiled program: in Python, let "
                "policy_mapping_fn not choose the module any longer."
            )
        self._get_pool(call)
        check_others(call, others)
        if module_id in self.state.modules:
            raise ConfigError(
                f"{call} would remove a module that is part of the compiled program: only opponents "
                f"that are drawn may be removed, {', '.join(self.opponents)}."
            )
        self._check_trained("", wanted)
        opponents.find_slot(self.state, module_id)
        before = self.state
        if mapping is not None:
            self.set_mapping(mapping)
        try:
            self.state = opponents.remove_opponent(self.state, module_id)
            self._weigh_league()
        except BaseException:
            self.state = before
            raise

    def set_mapping(self, mapping: NewMapping | Mapped) -> None:
        """Draw other opponents; see `Algorithm.set_mapping`."""
        pool = self._get_pool("set_mapping(...)")
        league = self._config.multi_agent_settings.any_league
        if league is not None:
            raise ConfigError(
                f"set_mapping(...) has no effect with league={type(league).__name__}(...), which weighs the opponents "
                "after every iteration: leave out one of them."
            )
        trained = sorted(self._trained)
        self.state = opponents.weigh_opponents(pool, self.state, mapping, trained)

    def evaluate(
        self,
        evaluation: Evaluation,
        make_inputs: Callable[[], EvaluationInputs],
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
        if self.is_on_host:
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
        number = choose_num_episodes(num_episodes, self._config.evaluation_settings)
        opponents_ = find_opponents(assembly, self.state, module, wanted)
        played = evaluation.get_pairings().run(make_inputs(), module, opponents_, chosen, number)
        return {"opponents": played}

    def get_table(self) -> LeagueTable | PayoffTable:
        """Return the games; see `Algorithm.get_league`."""
        state = self.state.opponents
        if isinstance(state, OpponentState) and state.league is not None:
            return make_payoff_table(self.state)
        return self._get_self_play()

    def _get_self_play(self) -> LeagueTable:
        state = self.state.opponents
        if not isinstance(state, OpponentState) or state.games is None:
            raise ConfigError(
                "get_league() needs a league: set multi_agent(league=SelfPlay(...)) with a mapping "
                "that draws, such as Seats('main', Draw())."
            )
        games, played = opponents.read_games(self.state)
        names = np.asarray(to_host(state.names))
        return LeagueTable.from_arrays(min(self._trained), names, games, played, self._searchers)

    def advance(self, result: dict[str, Any]) -> None:
        """Add the league to a result, take a snapshot that is due, and weigh the opponents."""
        settings = self._config.multi_agent_settings.any_league
        if settings is None:
            return
        if not isinstance(settings, SelfPlay):
            self._advance_learners(settings, result)
            return
        table = self._get_self_play()
        shares = table.compute_recent_shares()
        met = shares[~np.isnan(shares)]
        result[LEAGUE] = {
            "num_opponents": len(table.opponents),
            "num_games": int(table.count_games()[-1].sum()),
            "win_rate_mean": float(met.mean()) if len(met) else float("nan"),
            "win_rate_min": float(met.min()) if len(met) else float("nan"),
            "elo": table.compute_elo()[table.learner],
        }
        waits = bool(to_host(self.state.opponents.waits))
        if waits or is_snapshot_due(settings, table, self._record.iteration):
            self._take_snapshot(table)
            table = self._get_self_play()
        state = self.state
        after = opponents.advance_windows(state, settings.least_games)
        after = opponents.weigh_slots(after, weigh(settings, table))
        if after is not state:
            self.state = after

    def _take_snapshot(self, table: LeagueTable) -> None:
        """Add the learner to the opponents; without room, remove its oldest snapshot first.

        The slot of a snapshot that still plays an episode is free only later: then this waits for
        the next iteration.
        """
        learner = table.learner
        versions = find_versions(learner, table.opponents)
        empty, free = self._list_slots(learner)
        if not empty and versions:
            self.state = opponents.remove_opponent(self.state, versions[min(versions)])
            empty, free = self._list_slots(learner)
        waits = np.asarray(bool(empty) and not free)
        self.state = opponents.replace_tables(self.state, waits=waits)
        if not free:
            return
        name = f"{learner}_v{max(versions, default=0) + 1}"
        self.snapshot(learner, as_=name)
        slot = opponents.find_slot(self.state, name)
        self.state = opponents.record_snapshot(self.state, slot, self._searchers)
        logger.info("league: %s joins %s.", name, ", ".join(table.opponents))

    def _advance_learners(self, league: SeveralLearners, result: dict[str, Any]) -> None:
        """Add the league to a result, change learners that are due, and weigh the opponents."""
        result[LEAGUE] = describe_payoff(opponents.make_payoff_table(self.state))
        if isinstance(league, League):
            steps, standing = opponents.count_steps(self.state), opponents.make_standing(self.state)
            for index, learner in enumerate(league.learners):
                if is_due(league, standing, learner, steps[learner]):
                    self._take_learner_snapshot(league, learner, index)
        elif league.pbt is not None:
            mutations = self._parse_mutations(league.pbt)
            for learner in league.learners:
                result[LEAGUE][learner] |= self._read_values(learner, mutations)
        state = opponents.advance_learner_windows(self.state, league.least_games)
        self.state = self._weigh_learners(league, state)

    def _weigh_learners(self, league: SeveralLearners, state: TrainState) -> TrainState:
        """Return the state with the weights of each learner's opponents."""
        pool = self._get_pool("league=...")
        if not pool.draws:
            return state
        standing, patterns = opponents.make_standing(state), self._agents.patterns
        rows = [weigh_draws(league, standing, patterns, get_learner(draw)) for draw in pool.draws]
        weights = np.array(rows, np.float32)
        if (np.asarray(to_host(state.opponents.weights)) == weights).all():
            return state
        return opponents.replace_tables(state, weights=weights)

    def _take_learner_snapshot(self, league: League, learner: str, index: int) -> None:
        """Add a learner to the opponents; without room, remove an old snapshot first.

        The slot of a snapshot that still plays an episode is free only later: then this waits for
        the next iteration.
        """
        empty, free = self._list_slots(learner)
        if not empty:
            surplus = self._find_surplus(learner)
            if surplus is None:
                return
            self.state = opponents.remove_opponent(self.state, surplus)
            free = self._list_slots(learner)[1]
        if not free:
            return
        names = opponents.read_names(self.state)
        numbers = [find_version(learner, name) for name in names]
        version = max((number for number in numbers if number is not None), default=0) + 1
        name = f"{learner}_v{version}"
        self.snapshot(learner, as_=name)
        slot = opponents.find_slot(self.state, name)
        self.state = opponents.take_over_games(self.state, learner, slot)
        returns = self._draws_return(league, learner, index)
        if returns:
            self.state = opponents.return_to_first(self.state, learner)
            self.state = opponents.begin_anew(self.state, learner)
        logger.info(
            "league: %s joins%s.",
            name,
            f", and {learner} returns to its first parameters" if returns else "",
        )

    def _find_surplus(self, learner: str) -> str | None:
        """Return the oldest snapshot of the learner of an architecture that has the most.

        The first version of a main agent, its version 0, stays: ratings may be relative to it. None
        if there is no other one, where other opponents take all room.
        """
        found: list[list[str]] = []
        for other in self._list_alike(learner):
            numbers = {find_version(other, name): name for name in opponents.read_names(self.state)}
            found.append([numbers[number] for number in sorted(n for n in numbers if n)])
        most = max(found, key=len)
        return most[0] if most else None

    def _draws_return(self, league: League, learner: str, index: int) -> bool:
        if learner in league.exploiters_of_mains:
            return True
        if learner not in league.exploiters_of_all:
            return False
        seed = self._config.debugging_settings.run_seed
        sequence = make_seed_sequence(seed, _SEED_DOMAIN, self._record.iteration, index)
        return bool(np.random.default_rng(sequence).random() < league.reset)

    def begin_round(self) -> None:
        """Replace the learners of the lowest ratings before an iteration, if a round is due.

        After the iteration before, learners and games are still those of its result.
        """
        league = self._config.multi_agent_settings.learners_league
        if (
            not isinstance(league, PopulationPlay)
            or league.pbt is None
            or not self._record.last_result
        ):
            return
        assert isinstance(self._loop, InGraphLoop)
        if self._loop.is_dispatched:  # a lane, whose round was before the dispatch of all lanes
            return
        mutations = self._parse_mutations(league.pbt)
        scheduler = PBTScheduler(league.pbt, mutations, self._config.debugging_settings.run_seed)
        time = float(lookup(self._record.last_result, league.pbt.time_attr))
        elapsed = (int(time) - opponents.read_last_round(self.state)) % 2**32
        scheduler.last_time = time - elapsed
        if not scheduler.is_due(time):
            return
        table = opponents.make_payoff_table(self.state)
        ratings, played = table.compute_elo(), table.count_games().sum(axis=1)
        scores = {
            i: ratings[learner]
            for i, learner in enumerate(league.learners)
            if played[table.players.index(learner)]
        }
        if not scores:
            return
        values = [self._read_values(learner, mutations) for learner in league.learners]
        exploits = scheduler.pair(scores, values, {}, self._record.iteration)
        state = self.state
        for exploit in exploits:
            source, target = (league.learners[i] for i in (exploit.source, exploit.lane))
            state = copy_learner(state, self.state, source, target, exploit.new)
            _log_exploit(exploit, source, target)
        self.state = self._weigh_learners(league, opponents.begin_round(state, int(time)))

    def _parse_mutations(self, scheduler: PopulationBasedTraining) -> dict[str, Marker]:
        return parse_mutations(self._config.get_name_table(), self._config.trust, scheduler)

    def _read_values(self, learner: str, mutations: Mapping[str, Marker]) -> dict[str, float]:
        """Return a learner's numbers that exploit steps change."""
        hparams = self.state.modules[learner].learner.hparams
        return {name: read_value(hparams[name], marker) for name, marker in mutations.items()}

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
    def _searchers(self) -> Collection[str]:
        """Opponents that search with the present parameters of a learner."""
        return find_searchers(self._config.multi_agent_settings.policies)

    @property
    def _trained(self) -> frozenset[str]:
        return self._assembly.train_step.trained  # pyright: ignore

    def _get_pool(self, call: str) -> OpponentPool:
        if self.is_on_host:
            raise ConfigError(
                f"{call} is for opponents that are drawn in the compiled program: in Python, add a copy "
                "by add_module(id, state=get_weights([module])[module], "
                "new_agent_to_module_mapping_fn=...), which chooses who plays."
            )
        assembly = self._assembly
        pool = assembly.pool
        if pool is None:
            raise ConfigError(
                f"{call} needs a mapping that draws opponents, such as mapping=Seats('main', Draw()) "
                "with policies={'main': None, 'random': RandomRLModule}."
            )
        league = self._config.multi_agent_settings.learners_league
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
        taken = [*self.state.modules, *self.opponents, *self._searchers]
        if name in taken:
            raise ConfigError(
                f"There is a module {name!r} already: choose another id, or remove_module it first."
            )
        slot = opponents.find_free_slot(pool, self.state, kind)
        self.state = opponents.write_opponent(
            self.state, slot, name, actor, self.put_module, follows=follows
        )
        self._weigh_league()

    def _weigh_league(self) -> None:
        league = self._config.multi_agent_settings.learners_league
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
