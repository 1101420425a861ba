"""Mapping of agents to modules: by agent, by copy of the environment, or drawn by episode."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NoReturn

from jaxrl.config.settings.multi_agent import Draw, Player, Seats
from jaxrl.errors import ConfigError, did_you_mean

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
    return tuple(_parse_pattern(own, agents) for own in patterns)


def _parse_pattern(mapping: Mapping[str, Player], agents: tuple[str, ...]) -> Pattern:
    check_agents_named(mapping, agents)
    return {agent: to_player(mapping[agent]) for agent in agents}


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
