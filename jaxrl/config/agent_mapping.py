"""Mapping of agents to modules: by agent, by copy of the environment, or drawn by episode.

In Python environments, a function may choose modules by episode. A league of several learners makes the
mapping itself: a copy of the environment has a fixed pair of seats, of two learners, which both learn, or
of a learner and an opponent that is drawn for it. The weights of the draws make up what the fixed pairs
leave of the shares that the league wants.
"""

import dataclasses
import difflib
import functools
import inspect
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NoReturn

import gymnasium

from jaxrl.config.settings.multi_agent import (
    Draw,
    League,
    Player,
    PopulationPlay,
    Seats,
    SeveralLearners,
)
from jaxrl.core.spaces import is_same_space
from jaxrl.envs.multi.host_env import AgentID
from jaxrl.envs.multi.host_made import MadeMultiHostEnv
from jaxrl.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from jaxrl.config.settings.multi_agent import MultiAgentSettings


DRAWN = ":drawn"
"""Stands for the modules that are drawn at the start of an episode; no id has a colon."""
VARIES = ":varies"
"""Stands for the module of an agent that differs between copies of the environment."""

_NUM_COPIES = 32
"""Number of copies of the environment that a mapping function is asked about, twice each."""
_MAX_PERIOD = 16

Mapped = Callable[..., Any]
Pattern = dict[str, str | Draw]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentMapping:
    """Agents of a run with the modules that play them.

    Attributes:
        patterns: Module of each agent, or a Draw, in the order of the environment's agents; the copy
            of index i has the pattern `i % len(patterns)`.
        modules: Modules with rows of their own, sorted.
        trained: Modules that are trained.
        drawn: Modules to draw from, sorted; those of a Draw without ids are all.
        choices: All modules that may play an agent, for agents of a Python environment whose module
            is chosen by a function in every episode.
    """

    patterns: tuple[Pattern, ...]
    modules: tuple[str, ...]
    trained: frozenset[str]
    drawn: tuple[str, ...] = ()
    choices: dict[str, tuple[str, ...]] = dataclasses.field(
        default_factory=dict[str, tuple[str, ...]]
    )

    @property
    def agents(self) -> tuple[str, ...]:
        """All agents."""
        return tuple(self.patterns[0])

    @functools.cached_property
    def players(self) -> tuple[dict[str, str], ...]:
        """Module of each agent in each pattern, DRAWN for a Draw."""
        return tuple(
            {agent: DRAWN if isinstance(own, Draw) else own for agent, own in pattern.items()}
            for pattern in self.patterns
        )

    @property
    def mapping(self) -> dict[str, str]:
        """Module of each agent; DRAWN where it is drawn, VARIES where it depends on the copy."""
        return merge_patterns(self.players)

    @property
    def draws(self) -> tuple[Draw, ...]:
        """Different Draws of the mapping."""
        found = (own for pattern in self.patterns for own in pattern.values())
        return tuple(dict.fromkeys(own for own in found if isinstance(own, Draw)))

    def get_agents(self, module: str) -> tuple[str, ...]:
        """Return the agents that a module may play."""
        return tuple(
            agent
            for agent in self.agents
            if module in self.choices.get(agent, tuple(own[agent] for own in self.players))
        )

    def count_rows(self, module: str, num_envs: int) -> int:
        """Return the number of a module's rows in so many copies.

        Raises:
            ConfigError: If they are not a multiple of the patterns.
        """
        period = len(self.patterns)
        if num_envs % period:
            nearest = max(1, round(num_envs / period)) * period
            raise ConfigError(
                f"The mapping differs between {period} successive copies of the environment, but "
                f"there are {num_envs}: set num_envs_per_env_runner={nearest}."
            )
        if self.choices:
            return len(self.get_agents(module)) * num_envs
        number = sum(own == module for pattern in self.players for own in pattern.values())
        return number * num_envs // period

    def count_agents(self, module: str) -> float:
        """Return the mean number of a module's agents in a copy."""
        return self.count_rows(module, len(self.patterns)) / len(self.patterns)


def merge_patterns(players: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the module of each agent, VARIES where patterns differ."""
    modules = {agent: {own[agent] for own in players} for agent in players[0]}
    return {agent: own.pop() if len(own) == 1 else VARIES for agent, own in modules.items()}


class EpisodeStub:
    """Episode that a mapping function is called with; it exists before anything is played."""

    def __init__(self, index: int, *, on_host: bool = False) -> None:
        self._index, self._on_host, self.was_named = index, on_host, False
        self.env_t = self.env_t_started = 0

    @property
    def env_index(self) -> int:
        """Index of the copy of the environment, in the compiled program."""
        return self._read_index("env_index")

    @property
    def id_(self) -> str:
        """Name that a real episode would have drawn."""
        self.was_named = True
        return f"episode_{self._index}"

    @property
    def episode_id(self) -> int:
        """Number of RLlib's former episodes."""
        self.was_named = True
        return self._read_index("episode_id")

    def _read_index(self, name: str) -> int:
        return self.__getattr__(name) if self._on_host else self._index

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"an episode has no '{name}' when policy_mapping_fn is called, which is before it begins"
        )


def to_player(value: Player) -> str | Draw:
    """Return an entry of a mapping as an id or a Draw; an empty list is the one that is open."""
    if isinstance(value, Mapping):
        return Draw(tuple(value), tuple(value.values()))
    return Draw(tuple(value)) if isinstance(value, list) else value


def find_agents(mapping: object) -> tuple[str, ...] | None:
    """Return the agents that a mapping names; None if only the environment tells."""
    if isinstance(mapping, Mapping):
        return tuple(str(agent) for agent in mapping)
    if isinstance(mapping, list) and mapping:
        return tuple(str(agent) for agent in mapping[0])
    return None


def parse_mapping(
    mapping: "dict[str, Player] | list[dict[str, Player]] | Seats", agents: tuple[str, ...]
) -> tuple[Pattern, ...]:
    """Return the patterns of a mapping.

    Raises:
        ConfigError: If an agent is missing or unknown, or Seats have other than two agents.
    """
    if isinstance(mapping, Seats):
        return _take_seats(mapping, agents)
    patterns = mapping if isinstance(mapping, list) else [mapping]
    if not patterns:
        raise ConfigError("mapping is an empty list: give the mapping of at least one copy.")
    for own in patterns:
        check_agents_named(own, agents)
    return tuple({agent: to_player(own[agent]) for agent in agents} for own in patterns)


def check_agents_named(mapping: Mapping[str, object], agents: tuple[str, ...]) -> None:
    """Raise ConfigError if a mapping names an unknown agent, or leaves one out."""
    unknown = next((agent for agent in mapping if agent not in agents), None)
    if unknown is not None:
        raise ConfigError(
            f"mapping names the agent {unknown!r}, but the environment has {', '.join(agents)}."
            f"{did_you_mean(unknown, agents)}"
        )
    missing = next((agent for agent in agents if agent not in mapping), None)
    if missing is not None:
        raise ConfigError(f"mapping has no module for the agent {missing!r}: add one.")


def _take_seats(seats: Seats, agents: tuple[str, ...]) -> tuple[Pattern, ...]:
    if len(agents) != 2:
        raise ConfigError(
            f"Seats map two agents, but the environment has {', '.join(agents)}: give a list of "
            "mappings, which the copies of the environment have in turn."
        )
    share = Fraction(seats.live).limit_denominator(_MAX_PERIOD)
    if abs(float(share) - seats.live) > 1e-6:
        raise ConfigError(
            f"Seats has live={seats.live!r}, which is no fraction with a denominator of at most "
            f"{_MAX_PERIOD}: set {float(share)!r}, which is {share}."
        )
    live, period = share.numerator, share.denominator
    if (period - live) % 2:
        live, period = 2 * live, 2 * period
    first, second = agents
    pair: list[Pattern] = [
        {first: seats.learner, second: seats.opponent},
        {first: seats.opponent, second: seats.learner},
    ]
    both: Pattern = {first: seats.learner, second: seats.learner}
    return (*pair * ((period - live) // 2), *[both] * live)


def call_mapping(
    function: Mapped, agents: tuple[str, ...], trained: Sequence[str]
) -> tuple[Pattern, ...]:
    """Return the patterns of a user's function.

    Args:
        function: Function of an agent and an episode.
        agents: Agents of the environment.
        trained: Modules that are named to be trained, for what to write instead.

    Raises:
        ConfigError: If it draws, or depends on what an episode is called.
    """
    stubs = [EpisodeStub(index) for index in range(_NUM_COPIES)]
    function = accept_worker(function)
    twice = [
        {a: [require_player(call_once(function, a, stub), a) for _ in range(2)] for a in agents}
        for stub in stubs
    ]
    found, again = ([{a: own[i] for a, own in each.items()} for each in twice] for i in range(2))
    if all(pattern == found[0] for pattern in (*found, *again)):
        return (found[0],)
    was_named = any(stub.was_named for stub in stubs)
    if found != again or was_named:
        called = (*found, *again)
        raise ConfigError(_describe_draw(called, agents, trained, was_named=was_named))
    periods = range(2, _MAX_PERIOD + 1)
    repeats = (p for p in periods if all(found[i] == found[i % p] for i in range(_NUM_COPIES)))
    period = next(repeats, None)
    if period is None:
        raise ConfigError(
            "policy_mapping_fn differs between copies of the environment without repeating within "
            f"{_MAX_PERIOD} of them: let it depend on episode.env_index % 2, or give mapping a list."
        )
    return tuple(found[:period])


def accept_worker(function: Mapped) -> Mapped:
    """Return a mapping function without the `worker` that RLlib's former signature requires."""
    try:
        parameter = inspect.signature(function).parameters.get("worker")
    except (TypeError, ValueError):  # not every callable has a signature
        return function
    if parameter is None or parameter.default is not parameter.empty:
        return function
    if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
        return function
    return functools.partial(function, worker=None)


def call_once(function: Mapped, agent: str, stub: EpisodeStub, own_id: object = None) -> object:
    """Call a mapping function.

    Args:
        function: Function of an agent and an episode.
        agent: Name of the agent.
        stub: The episode.
        own_id: The environment's own id of the agent; None if it has none, so that agents of numbers
            are numbers to the function, as RLlib's are, unless it raises.
    """
    names: list[Any] = [int(agent), agent] if agent.isdecimal() else [agent]
    if own_id is not None:
        names = [own_id]
    for name in names:
        try:
            return function(name, stub)
        except Exception as error:
            if name is not names[-1]:
                continue
            raise ConfigError(
                f"policy_mapping_fn raised {type(error).__name__} for the agent {agent!r}: {error}."
            ) from error
    raise AssertionError


def require_player(found: object, agent: str) -> str | Draw:
    """Return what a mapping function gave an agent, an id or a Draw."""
    return found if isinstance(found, Draw) else require_id(found, agent)


def require_id(found: object, agent: str) -> str:
    """Return what a mapping function gave an agent.

    Raises:
        ConfigError: If it is no id.
    """
    if not isinstance(found, str):
        raise ConfigError(
            f"policy_mapping_fn must return the id of a module, got {found!r} for {agent!r}."
        )
    return found


def _describe_draw(
    found: Sequence[Pattern], agents: tuple[str, ...], trained: Sequence[str], *, was_named: bool
) -> str:
    """Return why a function is refused, with the mapping that does what it says."""
    modules = {agent: sorted({str(own[agent]) for own in found}) for agent in agents}
    differing = next(agent for agent, own in modules.items() if len(own) > 1 or not was_named)
    everywhere = sorted({module for own in modules.values() for module in own})
    learner = next((m for m in (*trained, *everywhere) if m in everywhere), everywhere[0])
    others = [module for module in everywhere if module != learner]
    takes_seats = len(agents) == 2 and all(learner in own for own in modules.values())
    if takes_seats and others:
        opponent = repr(others[0]) if len(others) == 1 else _format_draw(others)
        value = f"Seats({learner!r}, {opponent})"
    else:
        entries = (
            f"{agent!r}: {own[0]!r}" if len(own) == 1 else f"{agent!r}: {_format_draw(own)}"
            for agent, own in modules.items()
        )
        value = f"{{{', '.join(entries)}}}"
    why = (
        "by the id of the episode, which the compiled program does not have"
        if was_named
        else "by chance, but a draw is part of the compiled program"
    )
    return (
        f"policy_mapping_fn gives the agent {differing!r} different modules "
        f"({', '.join(modules[differing])}) {why}: set mapping={value} instead."
    )


def _format_draw(ids: Sequence[str]) -> str:
    return f"Draw([{', '.join(map(repr, ids))}])"


_NUM_CALLS = 256
"""Number of episodes that a function is asked about, to see whether it chooses."""

Choices = dict[str, tuple[str, ...]]
"""Modules that may play each agent, most often a single one."""


def read_choices(
    mapping: Mapping[str, object], agents: Sequence[str], *, has_function: bool
) -> Choices:
    """Return the modules of each agent that a mapping names.

    Args:
        mapping: An id, or a list of ids that a function chooses from, for each agent.
        agents: Agents of the environment.
        has_function: Whether there is a function that chooses.

    Raises:
        ConfigError: If nothing chooses between several modules.
    """
    found: Choices = {}
    for agent in agents:
        value = mapping[agent]
        if isinstance(value, str):
            found[agent] = (value,)
            continue
        if not isinstance(value, list) or not value or not has_function:
            named = list(value) if isinstance(value, list) else value
            raise ConfigError(
                f"mapping gives the agent {agent!r} the modules {named}, one of which plays it in "
                "each episode: name at least one, and set policy_mapping_fn, which chooses."
            )
        found[agent] = tuple(dict.fromkeys(str(module) for module in value))
    return found


def call_host_mapping(function: Mapped, made: MadeMultiHostEnv, ids: Sequence[str]) -> Choices:
    """Return the modules that a user's function gives each agent.

    An agent for which the function gives several may be played by any module of `policies` that has
    its spaces, but by none that is always another agent's and was never its own.

    Args:
        function: Function of an agent and an episode.
        made: Environment.
        ids: All modules.
    """
    found = {
        agent: _call_often(function, agent, made.own_ids[agent]) for agent in made.possible_agents
    }
    return {
        agent: modules if len(modules) == 1 else _find_choices(agent, found, made, ids)
        for agent, modules in found.items()
    }


def check_choices(function: Mapped, made: MadeMultiHostEnv, ids: Sequence[str]) -> None:
    """Raise ConfigError if a function raises, or names a module that there is none of.

    Args:
        function: Function of an agent and an episode.
        made: Environment.
        ids: All modules.
    """
    for agent in made.possible_agents:
        for module in _call_often(function, agent, made.own_ids[agent]):
            if module not in ids:
                raise ConfigError(
                    f"new_agent_to_module_mapping_fn gives the agent {agent!r} the module {module!r}, "
                    f"but the modules are {', '.join(ids)}.{did_you_mean(module, ids)}"
                )


def _find_choices(
    agent: str, found: Choices, made: MadeMultiHostEnv, ids: Sequence[str]
) -> tuple[str, ...]:
    """Return the modules that may play an agent: those it was given, and others of its spaces."""
    spaces = made.observation_spaces, made.action_spaces

    def may_play(module: str) -> bool:
        others = [other for other, modules in found.items() if module in modules]
        if any(found[other] == (module,) for other in others):
            return False
        return all(is_same_space(by[agent], by[other]) for by in spaces for other in others)

    given = found[agent]
    return (*given, *(module for module in ids if module not in given and may_play(module)))


def _call_often(function: Mapped, agent: str, own_id: AgentID) -> tuple[str, ...]:
    """Return all modules that a user's function gives an agent in several calls."""
    stubs = [EpisodeStub(index, on_host=True) for index in range(_NUM_CALLS)]
    function = accept_worker(function)
    found = [call_once(function, agent, stub, own_id) for stub in stubs for _ in range(2)]
    return tuple(sorted({require_id(module, agent) for module in found}))


def list_choices(agents: AgentMapping) -> dict[str, list[str]]:
    """Return the mapping that says between which modules a function chooses, one or several."""
    return {a: list(agents.choices.get(a, (m,))) for a, m in agents.players[0].items()}


def follow(mapping: Mapping[str, str], agent_id: AgentID, *unused: object, **others: object) -> str:
    """Return the module of an agent by a mapping, as a function with the mapping as its first argument."""
    del unused, others
    return mapping[str(agent_id)]


def take_first(choices: Choices) -> Pattern:
    """Return the first module of each agent."""
    return {agent: names[0] for agent, names in choices.items()}


_NUMBER = re.compile(r"[_-]?\d+$")
_MAX_WRITTEN = 16
"""Number of agents up to which a message has the whole mapping."""

Spaces = Mapping[str, gymnasium.Space[Any]]


def suggest_mapping(observation_spaces: Spaces, action_spaces: Spaces) -> dict[str, str]:
    """Return a module for each agent, which agents of equal spaces share.

    A module has the name of its agents without their numbers, `"adversary"` for `"adversary_0"` and
    `"adversary_1"`.

    Args:
        observation_spaces: Observation spaces by agent.
        action_spaces: Action spaces by agent.
    """
    groups: list[list[str]] = []
    for agent in observation_spaces:
        for group in groups:
            if all(
                is_same_space(by[agent], by[group[0]]) for by in (observation_spaces, action_spaces)
            ):
                group.append(agent)
                break
        else:
            groups.append([agent])
    names = _name_groups(groups)
    by_agent = {agent: name for name, group in zip(names, groups, strict=True) for agent in group}
    return {agent: by_agent[agent] for agent in observation_spaces}


def describe_suggestion(observation_spaces: Spaces, action_spaces: Spaces) -> str:
    """Return the mapping as one writes it, of many agents one of each module."""
    mapping = suggest_mapping(observation_spaces, action_spaces)
    if len(mapping) <= _MAX_WRITTEN:
        return f".multi_agent(mapping={mapping})"
    first = {module: agent for agent, module in reversed(mapping.items())}
    shown = ", ".join(f"{agent!r}: {module!r}" for module, agent in reversed(first.items()))
    return f".multi_agent(mapping={{{shown}, ...}}) with an entry for each agent"


def _name_groups(groups: Sequence[Sequence[str]]) -> list[str]:
    """Return distinct names of groups, made of those of their agents."""
    kinds = [tuple(dict.fromkeys(_NUMBER.sub("", agent) for agent in own)) for own in groups]
    names = ["_".join(own) for own in kinds]
    are_short = all(all(own) and len(own) <= 3 for own in kinds)
    is_each_once = len(set(names)) == len(names)
    return names if are_short and is_each_once else [f"policy_{i}" for i in range(len(groups))]


_PAIRS = 3
"""Number of pairs of copies, with both seats, that a learner has for each main agent."""

_NEARLY = 0.9
"""Similarity from which on an id is taken for a misspelled learner."""

Pair = tuple[str, str | Draw]


@dataclasses.dataclass(frozen=True)
class LeagueDraw(Draw):
    """Draw of the opponents of one learner, by weights of its own.

    Attributes:
        learner: Module in the other seat.
    """

    learner: str = ""


def check_league_settings(settings: "MultiAgentSettings", agents: Sequence[str]) -> None:
    """Raise ConfigError if other settings contradict a league of several learners."""
    league = settings.learners_league
    if league is None:
        return
    name = type(league).__name__
    if len(agents) != 2:
        raise ConfigError(
            f"league={name}(...) needs an environment of two agents, but there are "
            f"{', '.join(agents)}: leave it out."
        )
    if settings.policy_mapping_fn is not None:
        raise ConfigError(
            f"league={name}(...) makes the mapping, so policy_mapping_fn has no effect: leave it out."
        )
    for policy in map(str, settings.policies or ()):
        close = difflib.get_close_matches(policy, league.learners, n=1, cutoff=_NEARLY)
        if policy not in league.learners and close:
            raise ConfigError(
                f"policies has {policy!r}, which is no learner of league={name}(...) but nearly "
                f"{close[0]!r}: name it {close[0]!r}, or give it another id."
            )
    wanted = settings.policies_to_train
    if wanted is not None and (callable(wanted) or set(wanted) != set(league.learners)):
        raise ConfigError(
            f"league={name}(...) trains {', '.join(league.learners)}, and policies_to_train={wanted!r} "
            "says otherwise: leave it out."
        )


def make_league_patterns(league: SeveralLearners, agents: Sequence[str]) -> tuple[Pattern, ...]:
    """Return the patterns of a league, in each of which both seats are taken equally often.

    Args:
        league: The league.
        agents: The two agents of the environment.
    """
    if isinstance(league, League):
        pairs = _pair_roles(league)
    elif league.opponents == "uniform":
        pairs = list[Pair](itertools.permutations(league.learners, 2))
    else:
        pairs = [pair for learner in league.learners for pair in _draw(learner, 1)]
    first, second = agents
    patterns: list[Pattern] = []
    for one, other in pairs:
        patterns.append({first: one, second: other})
        if isinstance(other, Draw):
            patterns.append({first: other, second: one})
    return tuple(patterns)


def _draw(learner: str, number: int) -> list[Pair]:
    return [(learner, LeagueDraw(learner=learner))] * number


def _pair_roles(league: League) -> list[Pair]:
    mains = league.mains
    number = _PAIRS * len(mains)
    alike = _count_pairs(league.self_play)
    found: list[Pair] = []
    for main in mains:
        found += [(main, main)] * (2 * alike)  # another main agent may be too strong for now
        found += _draw(main, number - alike)
    apart = _count_pairs(1.0 - league.curriculum)
    for exploiter in league.exploiters_of_mains:
        for main in mains:
            found += [(exploiter, main), (main, exploiter)] * apart
        found += _draw(exploiter, number - apart * len(mains))
    for exploiter in league.exploiters_of_all:
        found += _draw(exploiter, number)
    return found


def _count_pairs(share: float) -> int:
    """Return the number of a learner's pairs with one main agent that are always within a share."""
    return min(int(share * _PAIRS + 1e-9), _PAIRS - 1)


def name_draws(league: SeveralLearners, patterns: Sequence[Pattern]) -> tuple[Pattern, ...]:
    """Return the patterns of a user's mapping with the Draw of each learner.

    Raises:
        ConfigError: If the mapping contradicts the league.
    """
    named = tuple(_name_pattern(league, pattern) for pattern in patterns)
    name = type(league).__name__
    missing = [learner for learner in league.learners if not list_own_pairs(league, named, learner)]
    if missing:
        raise ConfigError(
            f"mapping has no copy in which {missing[0]!r} meets the opponents that "
            f"league={name}(...) wants for it: add one, or leave mapping out."
        )
    for learner in league.learners:
        is_drawn = any(isinstance(x, Draw) for x in list_own_pairs(league, named, learner))
        if not is_drawn and (isinstance(league, League) or league.opponents == "pfsp"):
            raise ConfigError(
                f"mapping draws no opponents for {learner!r}, by which league={name}(...) chooses who "
                f"it meets: give Draw() the seat opposite it, or leave mapping out."
            )
        if isinstance(league, League):
            _check_fixed_pairs(league, named, learner)
    return named


def _check_fixed_pairs(league: League, patterns: Sequence[Pattern], learner: str) -> None:
    """Raise ConfigError if fixed pairs take a larger share than the league ever wants."""
    pairs = list_own_pairs(league, patterns, learner)
    is_main = learner in league.mains
    most = (league.self_play if is_main else 1.0 - league.curriculum) / len(league.mains)
    for main in league.mains:
        share = pairs.count(main) / len(pairs)
        if share > most + 1e-9:
            field = "self_play" if is_main else "curriculum"
            raise ConfigError(
                f"mapping has {main!r} opposite {learner!r} in {share:.0%} of the copies of {learner!r}, "
                f"but league=League(...) may want only {most:.0%} with {field}="
                f"{getattr(league, field)}: give Draw() more seats, or leave mapping out."
            )


def _name_pattern(league: SeveralLearners, pattern: Pattern) -> Pattern:
    one, other = pattern.values()
    name = type(league).__name__
    learners = [own for own in (one, other) if not isinstance(own, Draw)]
    unknown = next((own for own in learners if own not in league.learners), None)
    if unknown is not None:
        raise ConfigError(
            f"mapping names {unknown!r}, but the learners of league={name}(...) are "
            f"{', '.join(league.learners)}: name those, or leave mapping out."
        )
    draws = [own for own in (one, other) if isinstance(own, Draw)]
    if len(draws) == 2 or any(draw.ids for draw in draws):
        raise ConfigError(
            f"mapping has {pattern}, but league={name}(...) weighs opponents itself: give one seat "
            "Draw() without ids and the other one a learner, or leave mapping out."
        )
    if not draws and not (wants(league, one, other) or wants(league, other, one)):
        raise ConfigError(
            f"mapping has {one!r} against {other!r}, who do not meet in league={name}(...): give one "
            "seat Draw(), or leave mapping out."
        )
    return {
        agent: LeagueDraw(learner=learners[0]) if isinstance(own, Draw) else own
        for agent, own in pattern.items()
    }


def wants(league: SeveralLearners, learner: str | Draw, other: str | Draw) -> bool:
    """Return whether a learner's games are to be against another one as it is now."""
    if isinstance(league, PopulationPlay):
        return learner != other
    return other in league.mains and learner not in league.exploiters_of_all


def list_own_pairs(
    league: SeveralLearners, patterns: Sequence[Pattern], learner: str
) -> list[str | Draw]:
    """Return the other seat of each copy that counts towards a learner's shares.

    A copy of two learners counts for those that want to meet the other one.
    """
    found: list[str | Draw] = []
    for pattern in patterns:
        one, other = pattern.values()
        if learner in (one, other):
            rival = other if one == learner else one
            if isinstance(rival, Draw) or wants(league, learner, rival):
                found.append(rival)
    return found
