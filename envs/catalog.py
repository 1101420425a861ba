"""Built-in environments, imported on demand."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, kw_only=True)
class CatalogEntry:
    """Import path of a class or creator as "module:name", and arguments of its constructor."""

    path: str
    arguments: Mapping[str, object] = dataclasses.field(default_factory=dict)


def _classic(path: str) -> CatalogEntry:
    return CatalogEntry(path=f"jaxrl.envs.classic.{path}")


def _minatar(path: str) -> CatalogEntry:
    return CatalogEntry(path=f"jaxrl.envs.minatar.{path}")


def _multi(path: str, **arguments: object) -> CatalogEntry:
    return CatalogEntry(path=f"jaxrl.envs.multi.{path}", arguments=arguments)


def _probe(name: str, **arguments: object) -> CatalogEntry:
    return CatalogEntry(path=f"jaxrl.envs.probes:{name}", arguments=arguments)


BUILTIN_ENVS: Mapping[str, CatalogEntry] = {
    "CartPole-v1": _classic("cartpole:CartPole"),
    "StatelessCartPole-v0": _classic("cartpole:StatelessCartPole"),
    "Acrobot-v1": _classic("acrobot:Acrobot"),
    "MountainCar-v0": _classic("mountain_car:MountainCar"),
    "MountainCarContinuous-v0": _classic("mountain_car:MountainCarContinuous"),
    "Pendulum-v1": _classic("pendulum:Pendulum"),
    "Breakout-MinAtar": _minatar("breakout:Breakout"),
    "Asterix-MinAtar": _minatar("asterix:Asterix"),
    "Freeway-MinAtar": _minatar("freeway:Freeway"),
    "SpaceInvaders-MinAtar": _minatar("space_invaders:SpaceInvaders"),
    "Seaquest-MinAtar": _minatar("seaquest:Seaquest"),
    "three-parts-v0": CatalogEntry(path="jaxrl.envs.three_parts:ThreeParts"),
    "minefield-v0": CatalogEntry(path="jaxrl.envs.minefield:Minefield"),
    "frozen-lake-v0": CatalogEntry(path="jaxrl.envs.frozen_lake:FrozenLake"),
    "DeepSea-v0": CatalogEntry(path="jaxrl.envs.deep_sea:DeepSea"),
    "LinearBandit-v0": CatalogEntry(path="jaxrl.envs.bandits:LinearBandit"),
    "WheelBandit-v0": CatalogEntry(path="jaxrl.envs.bandits:WheelBandit"),
    "BitFlip-v0": CatalogEntry(path="jaxrl.envs.goals:BitFlip"),
    "PointReach-v0": CatalogEntry(path="jaxrl.envs.goals:PointReach"),
    "InterestEvolution-v0": CatalogEntry(path="jaxrl.envs.recommender:InterestEvolution"),
    "probe-value-v0": _probe("ProbeValue"),
    "probe-value-continuous-v0": _probe("ProbeValue", continuous=True),
    "probe-obs-value-v0": _probe("ProbeObsValue"),
    "probe-obs-value-continuous-v0": _probe("ProbeObsValue", continuous=True),
    "probe-discount-v0": _probe("ProbeDiscount"),
    "probe-discount-continuous-v0": _probe("ProbeDiscount", continuous=True),
    "probe-action-v0": _probe("ProbeAction"),
    "probe-action-continuous-v0": _probe("ProbeAction", continuous=True),
    "probe-obs-action-v0": _probe("ProbeObsAction"),
    "probe-obs-action-continuous-v0": _probe("ProbeObsAction", continuous=True),
    "probe-multidiscrete-v0": _probe("ProbeMultiDiscrete"),
    "probe-mask-v0": _probe("ProbeMask"),
    "probe-recall-v0": _probe("ProbeRecall"),
    "probe-truncation-v0": _probe("ProbeTruncation"),
    "probe-truncation-continuous-v0": _probe("ProbeTruncation", continuous=True),
}

BUILTIN_MULTI_ENVS: Mapping[str, CatalogEntry] = {
    "MultiAgentCartPole-v0": _multi("copies:MultiAgentCartPole", num_agents=2),
    "TicTacToe-v0": _multi("board:TicTacToe"),
    "ConnectFour-v0": _multi("board:ConnectFour"),
    "RockPaperScissors-v0": _multi("rock_paper_scissors:RockPaperScissors"),
    "TwoStep-v0": _multi("matrix_games:TwoStep"),
    "TwoStepAnd-v0": _multi("matrix_games:TwoStepAnd"),
    "Climb-v0": _multi("matrix_games:Climb"),
    "LineOfAgents-v0": _multi("line_of_agents:LineOfAgents"),
    "SimpleSpread-v0": _multi("particles.spread:SimpleSpread"),
    "SpeakerListener-v0": _multi("particles.speaker_listener:SpeakerListener"),
    "SimpleTag-v0": _multi("particles.tag:SimpleTag"),
    "Foraging-v0": _multi("foraging:Foraging"),
    "probe-turns-v0": _multi("probes:ProbeTurns"),
    "probe-turns-gamma-v0": _multi("probes:ProbeTurnsGamma"),
    "probe-cut-v0": _multi("probes:ProbeCut"),
    "probe-death-v0": _multi("probes:ProbeDeath"),
    "probe-join-v0": _multi("probes:ProbeJoin"),
    "probe-teams-v0": _multi("probes:ProbeTeams"),
    "probe-agents-v0": _multi("probes:ProbeAgents"),
    "probe-mask-turns-v0": _multi("probes:ProbeMaskTurns"),
    "probe-state-v0": _multi("probes:ProbeState"),
    "probe-recall-turns-v0": _multi("probes:ProbeRecallTurns"),
    "probe-opponent-v0": _multi("probes:ProbeOpponent"),
}
"""Built-in environments of several agents."""

BUILTIN_HOST_ENVS: Mapping[str, CatalogEntry] = {
    "crashing-cartpole-v0": CatalogEntry(path="jaxrl.envs.faults:crashing_cartpole"),
    "three-parts-host-v0": CatalogEntry(path="jaxrl.envs.three_parts:HostThreeParts"),
}
"""Built-in gymnasium environments, available under the prefix "jaxrl:"."""
