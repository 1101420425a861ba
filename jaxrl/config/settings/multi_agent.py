"""Settings of several agents: mapping to modules, training, and leagues of learners."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np

from jaxrl.config.coerce import AgentName
from jaxrl.config.fields import count, field
from jaxrl.config.imports import RL_MODULE
from jaxrl.config.pbt import DEFAULT_METRIC, PopulationBasedTraining
from jaxrl.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    import gymnasium


MAX_LEARNERS = 32
"""Maximum number of learners of a league: each is compiled into the program."""


def number_ids(name: str, number: int) -> tuple[str, ...]:
    """Return the ids of learners of one role: its name, numbered if there are several."""
    return (name,) if number == 1 else tuple(f"{name}_{i}" for i in range(number))


@dataclasses.dataclass(frozen=True, kw_only=True)
class League:
    """League of main agents, main exploiters and league exploiters (Vinyals et al. 2019, AlphaStar).

    Every learner is a module: `main`, `main_exploiter`, `league_exploiter`, with a number if there
    are several, such as `league_exploiter_0`. They play each other's snapshots, which join as
    `main_v1`, and each other. The first parameters of a main agent are there from the start, as
    `main_v0`.

    A main agent plays `self_play` of its games against the current main agents, `pfsp` against all
    past players, weighed by `(1 - p) ** power` of the share p that it wins (prioritized fictitious
    self-play), and the rest against past main exploiters if it wins less than `strong` against one
    of them, else against past main agents if it wins less than `win_rate` against one that was
    beaten before, else against the current main agents.
    A main exploiter plays the current main agents, and where it wins less than `curriculum_below`
    against one, `curriculum` of these games are against that one's past, weighed by `p * (1 - p)`.
    A league exploiter plays all past players, weighed by `min(1/2, 1 - p)`.

    A snapshot is taken when a learner has won `win_rate` of its games against all past players, a main
    exploiter against all current main agents, or after `max_steps`. A main exploiter then goes on
    from its first parameters, a league exploiter with the probability `reset`.

    Attributes:
        main: Number of main agents.
        main_exploiters: Number of main exploiters.
        league_exploiters: Number of league exploiters.
        self_play: Share of a main agent's games against current main agents.
        pfsp: Share of a main agent's games against all past players.
        power: Exponent of a main agent's weights.
        strong: Share of games below which a past exploiter, or the current other main agent, is
            too strong.
        curriculum_below: Share of games below which a main exploiter plays past versions, too.
        curriculum: Share of its games that it does.
        win_rate: Share of games (draws count half) that a learner must win for a snapshot.
        least_games: Number of games against each of them before the share counts, which is that
            of the latest so many games to twice as many.
        min_steps: Environment steps of the run between two snapshots of a learner, at least.
        max_steps: Number of steps after which a snapshot is taken in any case; None never does.
        reset: Probability that a league exploiter goes on from its first parameters.
    """

    main: int = 1
    main_exploiters: int = 1
    league_exploiters: int = 2
    self_play: float = 0.35
    pfsp: float = 0.5
    power: float = 2.0
    strong: float = 0.3
    curriculum_below: float = 0.2
    curriculum: float = 0.5
    win_rate: float = 0.7
    least_games: int = 50
    min_steps: int = 0
    max_steps: int | None = 1_000_000
    reset: float = 0.25

    def __post_init__(self) -> None:
        """Raise ConfigError if a value is out of range."""
        _raise_first("League", self._find_problems())

    def _find_problems(self) -> Iterator[str]:
        shares = ("self_play", "pfsp", "strong", "curriculum_below", "curriculum", "reset")
        yield from _find_wrong_counts(self, ("main", "least_games"), 1)
        yield from _find_wrong_counts(
            self, ("main_exploiters", "league_exploiters", "min_steps"), 0
        )
        yield from find_no_numbers(self, (*shares, "win_rate", "power"))
        number = self.main + self.main_exploiters + self.league_exploiters
        if number > MAX_LEARNERS:
            yield f"{number} learners are too many for one program: have {MAX_LEARNERS} at most"
        for name in shares:
            if not 0.0 <= getattr(self, name) <= 1.0:
                yield f"{name}={getattr(self, name)!r} must be between 0 and 1"
        if self.self_play + self.pfsp > 1.0 + 1e-9:
            yield (
                f"self_play={self.self_play!r} and pfsp={self.pfsp!r} are shares of the same games: "
                "their sum must be at most 1"
            )
        yield from _find_wrong_weighing(self)
        least, most = max(self.min_steps, 1), self.max_steps
        if most is not None and not (_is_count(most, least) and most < 2**32):
            yield (
                f"max_steps={most!r} must be None or an integer below 2**32, at least "
                f"min_steps={self.min_steps}"
            )

    @property
    def mains(self) -> tuple[str, ...]:
        """Ids of the main agents."""
        return number_ids("main", self.main)

    @property
    def exploiters_of_mains(self) -> tuple[str, ...]:
        """Ids of the main exploiters."""
        return number_ids("main_exploiter", self.main_exploiters)

    @property
    def exploiters_of_all(self) -> tuple[str, ...]:
        """Ids of the league exploiters."""
        return number_ids("league_exploiter", self.league_exploiters)

    @property
    def learners(self) -> tuple[str, ...]:
        """Ids of all learners."""
        return (*self.mains, *self.exploiters_of_mains, *self.exploiters_of_all)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PopulationPlay:
    """Population of learners that play each other.

    Every learner is a module, `player_0`, `player_1`, ... With population based training (Jaderberg
    et al. 2017), the learners of the lowest Elo ratings become copies of those of the highest, and
    continue with other values of hyperparameters. All games begin anew then, so that ratings are
    those of the present learners.

    Attributes:
        size: Number of learners.
        opponents: Who meets whom: "uniform", every pair in copies of the environment of its own, in
            which both learn; "pfsp", drawn in proportion to `(1 - p) ** power` of the share p that
            a learner wins.
        power: Exponent of "pfsp".
        least_games: Number of games after which the share counts without older ones, which is that
            of the latest so many games to twice as many.
        pbt: Population based training, compared by Elo; None trains each on its own.
    """

    size: int = 8
    opponents: Literal["uniform", "pfsp"] = "uniform"
    power: float = 2.0
    least_games: int = 100
    pbt: PopulationBasedTraining | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError if a value is out of range, or has no effect."""
        if isinstance(self.pbt, dict):
            object.__setattr__(self, "pbt", PopulationBasedTraining(**self.pbt))
        _raise_first("PopulationPlay", self._find_problems())

    def _find_problems(self) -> Iterator[str]:
        yield from _find_wrong_counts(self, ("size",), 2)
        yield from _find_wrong_counts(self, ("least_games",), 1)
        yield from find_no_numbers(self, ("power",))
        if self.size > MAX_LEARNERS:
            yield f"size={self.size} is too large for one program: have {MAX_LEARNERS} at most"
        if self.opponents not in ("uniform", "pfsp"):
            yield f"opponents={self.opponents!r} must be 'uniform' or 'pfsp'"
        yield from _find_wrong_weighing(self)
        for name in ("power", "least_games"):
            if self.opponents != "pfsp" and getattr(self, name) != getattr(PopulationPlay, name):
                yield f"{name}={getattr(self, name)!r} has no effect without opponents='pfsp'"
        if self.pbt is None:
            return
        if not isinstance(self.pbt, PopulationBasedTraining):
            yield f"pbt={self.pbt!r} must be a PopulationBasedTraining or None"
        if (self.pbt.metric, self.pbt.mode) != (DEFAULT_METRIC, "max"):
            yield (
                f"pbt has metric={self.pbt.metric!r} and mode={self.pbt.mode!r}, but learners are "
                "compared by Elo: leave them out"
            )

    @property
    def learners(self) -> tuple[str, ...]:
        """Ids of all learners."""
        return number_ids("player", self.size)


SeveralLearners = League | PopulationPlay


def _raise_first(kind: str, problems: Iterator[str]) -> None:
    """Raise ConfigError with the first problem of a league, if there is one."""
    problem = next(problems, None)
    if problem is not None:
        raise ConfigError(f"{kind}: {problem}.")


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def find_no_numbers(settings: object, names: tuple[str, ...]) -> Iterator[str]:
    """Yield the problem of each field that is no finite number."""
    for name in names:
        value = getattr(settings, name)
        is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        if not (is_number and math.isfinite(value)):
            hint = " without quotes, with a point before an exponent" * isinstance(value, str)
            yield f"{name}={value!r} must be a finite number{hint}"


def _find_wrong_counts(settings: object, names: tuple[str, ...], least: int) -> Iterator[str]:
    """Yield the problem of each field that is no integer of at least some value."""
    for name in names:
        value = getattr(settings, name)
        if not _is_count(value, least):
            yield f"{name}={value!r} must be an integer of at least {least}"


def _find_wrong_weighing(league: "SelfPlay | League | PopulationPlay") -> Iterator[str]:
    """Yield the problems of a win rate, if the league has one, and of an exponent of weights."""
    win_rate = 1.0 if isinstance(league, PopulationPlay) else league.win_rate
    if not 0.0 < win_rate <= 1.0:
        yield f"win_rate={win_rate!r} must be above 0 and at most 1"
    if not 0.0 < league.power < math.inf:
        yield f"power={league.power!r} must be a finite number above 0"


class SetValues(Protocol):
    """Config whose explicit settings are read."""

    @property
    def explicit(self) -> frozenset[str]: ...
    def __getitem__(self, name: str, /) -> object: ...


@dataclasses.dataclass(frozen=True)
class PolicySpec:
    """Specification of a module in `multi_agent(policies=...)`, with RLlib's fields.

    Attributes:
        policy_class: Class of the module, a subclass of RLModule; None is the algorithm's.
        observation_space: Observation space, compared with that of the module's agents.
        action_space: Action space, likewise.
        config: Settings that differ for this module, as a dictionary or a config.
    """

    policy_class: type[Any] | None = None
    observation_space: "gymnasium.Space[Any] | None" = None
    action_space: "gymnasium.Space[Any] | None" = None
    config: Mapping[str, Any] | SetValues | None = None


@dataclasses.dataclass(frozen=True)
class Draw:
    """Opponent that is drawn at the start of every episode and kept to its end.

    The modules are not trained. In a mapping, a list of ids is a Draw with equal weights, and a
    dictionary one with its values as weights.

    Attributes:
        ids: Modules to draw from; empty for all that are drawn anywhere, also those that
            `snapshot` and `add_module` add later.
        weights: Weight of each, 1 by default.
    """

    ids: tuple[str, ...] = ()
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        """Convert lists, and check the weights.

        Raises:
            ConfigError: If a weight is missing, negative or not finite, or all are 0.
        """
        ids = (self.ids,) if isinstance(self.ids, str) else tuple(self.ids)
        object.__setattr__(self, "ids", ids)
        if len(set(ids)) < len(ids):
            raise ConfigError(f"Draw names a module twice, got {list(ids)}: give it a weight.")
        if self.weights is None:
            return
        weights = tuple(float(weight) for weight in self.weights)
        object.__setattr__(self, "weights", weights)
        valid = all(0.0 <= weight < math.inf for weight in weights) and sum(weights) > 0.0
        if len(weights) != len(ids) or not valid:
            raise ConfigError(
                f"Draw needs a weight for each of its {len(ids)} ids, none negative and one above 0, "
                f"got {list(weights)}."
            )


Player: TypeAlias = str | Draw | list[str] | dict[str, float]
"""Module that plays an agent, or those that are drawn from."""


@dataclasses.dataclass(frozen=True)
class Seats:
    """Mapping of two agents: a learner in one seat, an opponent in the other.

    The learner has the first agent's seat in half of the copies of the environment and the second
    agent's in the other half, so that both are learned, and no row is of nobody.

    Attributes:
        learner: Module that is trained.
        opponent: Module in the other seat, or a Draw.
        live: Share of copies in which the learner has both seats, and learns from both: a fraction
            with a denominator of at most 16.
    """

    learner: str
    opponent: str | Draw
    live: float = 0.0

    def __post_init__(self) -> None:
        """Raise ConfigError if the share of copies is not one."""
        if any(find_no_numbers(self, ("live",))) or not 0.0 <= self.live < 1.0:
            raise ConfigError(
                f"Seats has live={self.live!r}, which must be at least 0 and below 1; one module in "
                "both seats of every copy is policies={...} of one id."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelfPlay:
    """League of a learner and its own earlier versions.

    The outcomes of all training episodes of two agents are counted by opponent: the larger return
    wins. After each iteration, opponents are weighed by them, and a snapshot of the learner becomes
    an opponent when it is good enough. If `policy_map_capacity` is reached, the oldest snapshot makes
    room. The mapping has one Draw without ids, such as `Seats("main", Draw(), live=0.25)`.

    Attributes:
        win_rate: Share of games (draws count half) that the learner must win against every opponent
            for a snapshot.
        least_games: Number of games against each of them before the share counts, which is that
            of the latest so many games to twice as many, since the latest snapshot.
        every: Number of iterations after which a snapshot is taken in any case; None never does.
        opponents: How opponents are weighed: "uniform"; "pfsp", by `(1 - p) ** power` of the
            learner's smoothed share p, so that those that it loses to are met more often
            (prioritized fictitious self-play, Vinyals et al. 2019); "latest", the last
            `num_latest` snapshots and who was there from the start, alike.
        power: Exponent of "pfsp".
        num_latest: Number of snapshots of "latest".
    """

    win_rate: float = 0.85
    least_games: int = 100
    every: int | None = None
    opponents: Literal["uniform", "pfsp", "latest"] = "uniform"
    power: float = 2.0
    num_latest: int = 5

    def __post_init__(self) -> None:
        """Raise ConfigError if a value is out of range, or has no effect."""
        _raise_first("SelfPlay", self._find_problems())

    def _find_problems(self) -> Iterator[str]:
        yield from find_no_numbers(self, ("win_rate", "power"))
        yield from _find_wrong_weighing(self)
        for name, none in (("least_games", ""), ("every", " or None"), ("num_latest", "")):
            value = getattr(self, name)
            if not _is_count(value, 1) and not (none and value is None):
                yield f"{name}={value!r} must be a positive integer{none}"
        if self.opponents not in ("uniform", "pfsp", "latest"):
            yield f"opponents={self.opponents!r} must be 'uniform', 'pfsp' or 'latest'"
        for name, needed in (("power", "pfsp"), ("num_latest", "latest")):
            value = getattr(self, name)
            if value != getattr(SelfPlay, name) and self.opponents != needed:
                yield f"{name}={value!r} has no effect without opponents={needed!r}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiAgentSettings:
    """Modules of a run of several agents."""

    policies: Any = field(
        default=None,
        import_path=dataclasses.replace(RL_MODULE, by_name=True),
        doc="Ids of the modules: a list or set of names, or a dictionary from a name to a "
        "PolicySpec, an RLModuleSpec, an RLModule class or None. None is the names that the mapping "
        "has, by default 'default_policy' for all agents. A dictionary in the place of a module, such "
        "as {'of': 'main', 'num_simulations': 64}, is an opponent that searches with the parameters "
        "that 'main' has at present.",
    )
    mapping: dict[AgentName, Player] | list[dict[AgentName, Player]] | Seats | None = field(
        default=None,
        doc="Module of each agent, such as {'player_0': 'learned', 'player_1': 'random'}; None is "
        "what policy_mapping_fn returns. A value may be a Draw, or ids (with weights) to draw from: "
        "who plays is then drawn at the start of an episode. A list has the mapping of the copies of "
        "the environment in turn; Seats makes one for two agents. For an environment in Python, ids "
        "are those that policy_mapping_fn chooses from in every episode. A built Algorithm has the "
        "whole mapping here.",
    )
    policy_mapping_fn: Callable[..., Any] | None = field(
        default=None,
        import_path=True,
        doc="Function of (agent_id, episode) that returns the id of the agent's module. It is called "
        "when the run is built, and must return the same at every call for an agent and an "
        "episode.env_index; for an environment in Python it is called once for each agent and "
        "episode, and may return different modules, those that it gave when the run was built or "
        "that mapping names.",
    )
    policies_to_train: list[str] | Callable[..., Any] | None = field(
        default=None,
        doc="Ids of the modules to train, or a function of an id; None is all that have rows of their own. "
        "Other modules play with the parameters that they have.",
    )
    policy_map_capacity: int = field(
        default=16,
        check=count,
        doc="Number of opponents of one architecture that the compiled program holds where a mapping "
        "draws them. Each takes the memory of a module's parameters.",
    )
    league: SelfPlay | League | PopulationPlay | dict[str, Any] | None = field(
        default=None,
        doc="SelfPlay(...), or a dictionary of its arguments: a league of the learner and its "
        "snapshots, against which it plays where the mapping has a Draw without ids. League(...) or "
        "PopulationPlay(...) of several learners makes the mapping; their dictionaries name them, such "
        "as {'type': 'League', 'main': 1}. None takes no snapshots.",
    )
    count_steps_by: Literal["env_steps", "agent_steps"] = field(
        default="env_steps",
        doc="Unit of train_batch_size: steps of environments, or rows of agents.",
    )
    algorithm_config_overrides_per_module: dict[str, Any] = field(
        default={},
        doc="Settings of training() and rl_module() that differ for a module, by its id, such as "
        "{'p0': PPOConfig.overrides(lr=1e-4)}.",
    )
    observe_agent_id: bool = field(
        default=False,
        doc="Whether agents that share a module observe which of them they are: a one-hot id, which "
        "extends a vector, and is the part 'agent_id' of any other observation.",
    )
    share_rewards: Literal["team", "all"] | None = field(
        default=None,
        doc="Agents that learn from the mean of their rewards: those of each team, or all; None is "
        "each from its own. Reported returns are those of the environment.",
    )

    max_agents: int | Literal["auto"] | None = field(
        default=None,
        check=count,
        doc="Number of agents of each module that may be present at once in a copy of a Python "
        "environment whose agents are not known before: an agent has a slot from its first observation "
        "to the step after its end. 'auto' is twice the largest number in random episodes when a run "
        "is built; a built Algorithm has the number here. None is for agents that are known.",
    )

    @property
    def any_league(self) -> SelfPlay | League | PopulationPlay | None:
        """League, made of its arguments where they are a dictionary.

        Raises:
            ConfigError: If an argument is unknown or out of range.
        """
        if not isinstance(self.league, Mapping):
            return self.league
        arguments = dict(self.league)
        kind = arguments.pop("type", "SelfPlay")
        if not isinstance(kind, str) or kind not in _LEAGUES:
            raise ConfigError(
                f"league has the type {kind!r}, which must be one of {', '.join(_LEAGUES)}."
                f"{did_you_mean(str(kind), list(_LEAGUES))}"
            )
        known = [own.name for own in dataclasses.fields(_LEAGUES[kind])]
        for name in arguments:
            if name not in known:
                raise ConfigError(f"league has no argument {name!r}.{did_you_mean(name, known)}")
        return _LEAGUES[kind](**arguments)

    @property
    def self_play(self) -> SelfPlay | None:
        """League of one learner; see `any_league`."""
        league = self.any_league
        return league if isinstance(league, SelfPlay) else None

    @property
    def learners_league(self) -> League | PopulationPlay | None:
        """League of several learners; see `any_league`."""
        league = self.any_league
        return None if isinstance(league, SelfPlay) else league


_LEAGUES: dict[str, Any] = {
    "SelfPlay": SelfPlay,
    "League": League,
    "PopulationPlay": PopulationPlay,
}
