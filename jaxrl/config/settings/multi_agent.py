"""Settings of several agents: which module plays which agent, and which modules are trained."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from jaxrl.config.coerce import AgentName
from jaxrl.config.fields import count, field
from jaxrl.config.imports import RL_MODULE
from jaxrl.config.settings.league import League, PopulationPlay, find_no_number
from jaxrl.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    import gymnasium

    from jaxrl.config.base import AlgorithmConfig


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
    config: "Mapping[str, Any] | AlgorithmConfig | None" = None


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
        if find_no_number(self, ("live",)) is not None or not 0.0 <= self.live < 1.0:
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
        problem = find_no_number(self, ("win_rate", "power"))
        if problem is not None:
            pass
        elif not 0.0 < self.win_rate <= 1.0:
            problem = f"win_rate={self.win_rate!r} must be above 0 and at most 1"
        elif not _is_count(self.least_games):
            problem = f"least_games={self.least_games!r} must be a positive integer"
        elif self.every is not None and not _is_count(self.every):
            problem = f"every={self.every!r} must be a positive integer or None"
        elif self.opponents not in ("uniform", "pfsp", "latest"):
            problem = f"opponents={self.opponents!r} must be 'uniform', 'pfsp' or 'latest'"
        elif not 0.0 < self.power < math.inf:
            problem = f"power={self.power!r} must be a finite number above 0"
        elif not _is_count(self.num_latest):
            problem = f"num_latest={self.num_latest!r} must be a positive integer"
        elif self.power != 2.0 and self.opponents != "pfsp":
            problem = f"power={self.power!r} has no effect without opponents='pfsp'"
        elif self.num_latest != 5 and self.opponents != "latest":
            problem = f"num_latest={self.num_latest!r} has no effect without opponents='latest'"
        if problem is not None:
            raise ConfigError(f"SelfPlay: {problem}.")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiAgentSettings:
    """Modules of a run of several agents."""

    policies: Any = field(
        default=None,
        import_path=dataclasses.replace(RL_MODULE, by_name=True),
        doc="Ids of the modules: a list or set of names, or a dictionary from a name to a "
        "PolicySpec, an RLModuleSpec, an RLModule class or None. None is the names that the mapping "
        "has, by default 'default_policy' for all agents.",
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
