"""Evaluation of a module against opponents, by pairing and seat."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.assembly.assemble import add_search
from jaxrl.assembly.multi_agent import MultiAgentAssembly, make_multi_vector_env
from jaxrl.assembly.opponents import describe_architecture
from jaxrl.assembly.search import get_policy_step
from jaxrl.config.agent_mapping import DRAWN
from jaxrl.config.settings.multi_agent import Draw
from jaxrl.connectors.pipelines import StatePipeline
from jaxrl.core.spaces import is_same_space
from jaxrl.core.types import PyTree
from jaxrl.envs.multi.base import get_entries
from jaxrl.envs.multi.made import MadeMultiEnv
from jaxrl.errors import ConfigError
from jaxrl.evaluation.compiled import JaxEvaluation, choose_num_envs
from jaxrl.runtime.program import Program
from jaxrl.training.agent_rows import AgentRows
from jaxrl.training.evaluate import DEFAULT_MAX_EPISODE_STEPS, EvaluationInputs
from jaxrl.training.multi_rollout import MultiPolicyStep
from jaxrl.training.opponents import OpponentKind, OpponentPool, OpponentState
from jaxrl.training.pairings import PairingEvaluator, PairingResult
from jaxrl.training.report import check_fault, to_host
from jaxrl.training.rollout import ActorState, PolicyStep

OUTCOMES = ("wins", "draws", "losses")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Opponent:
    """Module to play against.

    Attributes:
        name: What results call it.
        policy: Module and connectors.
        actor: Its inputs of acting.
        spaces: Observation and action space that it plays in.
    """

    name: str
    policy: PolicyStep
    actor: ActorState
    spaces: tuple[Any, Any]


class PairingEvaluations:
    """Evaluations of a run's modules against opponents, with a program for each number of them.

    Args:
        evaluation: Environment and settings of the run's evaluation.
    """

    def __init__(self, evaluation: JaxEvaluation) -> None:
        assert isinstance(evaluation.assembly, MultiAgentAssembly)
        self._evaluation = evaluation
        self._programs: dict[object, Program] = {}
        self._shown: dict[int, tuple[PolicyStep, PolicyStep]] = {}

    @property
    def programs(self) -> list[Program]:
        """Compiled programs."""
        return list(self._programs.values())

    def run(
        self,
        inputs: EvaluationInputs,
        module: str,
        opponents: Sequence[Opponent],
        seats: Sequence[str],
        num_episodes: int,
    ) -> dict[str, dict[str, dict[str, float]]]:
        """Play episodes against each opponent in each seat.

        Args:
            inputs: Policies of the run, and the parameters of its environment.
            module: Module of the run.
            opponents: Opponents.
            seats: Agents that the module plays.
            num_episodes: Number of episodes of each opponent in each seat.

        Returns:
            `{opponent: {seat: {"num_episodes": ..., "wins": ..., ...}}}`.
        """
        assembly = self._evaluation.assembly
        assert isinstance(assembly, MultiAgentAssembly)
        _check_seats(assembly, module, opponents, seats)
        opponents = [
            dataclasses.replace(opponent, policy=self._show_state(opponent.policy))
            for opponent in opponents
        ]
        kinds, order = _group(opponents)
        key = (
            module,
            tuple(seats),
            num_episodes,
            *((id(kind.policy), kind.capacity) for kind in kinds),
        )
        if key not in self._programs:
            number = len(opponents)
            self._programs[key] = self._make_program(module, kinds, number, seats, num_episodes)
        actors: Mapping[str, PyTree] = inputs.actor  # pyright: ignore
        state = _stack(kinds, opponents, order)
        env_params = self._evaluation.get_params(inputs.env_params)
        played = to_host(
            self._programs[key]({module: actors[module], DRAWN: state}, env_params, inputs.key)
        )
        check_fault(played.fault, assembly.made.id)
        return _make_table(played, opponents, seats, assembly.agent_rows.agents)

    def _show_state(self, policy: PolicyStep) -> PolicyStep:
        """Return an opponent's policy for observations with the state, if this evaluation searches."""
        made = self._evaluation.made
        assert isinstance(made, MadeMultiEnv)
        if made.model is None or isinstance(policy.obs_pipeline, StatePipeline):
            return policy
        if id(policy) not in self._shown:
            space = made.observation_spaces[made.possible_agents[0]]
            self._shown[id(policy)] = policy, add_search(policy, made.model, space, None)
        return self._shown[id(policy)][1]

    def _make_program(
        self,
        module: str,
        kinds: Sequence[OpponentKind],
        number: int,
        seats: Sequence[str],
        num_episodes: int,
    ) -> Program:
        evaluation, made = self._evaluation, self._evaluation.made
        assembly = evaluation.assembly
        assert isinstance(assembly, MultiAgentAssembly)
        assert isinstance(made, MadeMultiEnv)
        draws = [Draw((f"opponent {i}",)) for i in range(number)]
        agents = assembly.agent_rows.agents
        cells = [(draw, seat) for draw in draws for seat in seats]
        rows = AgentRows(
            entries=get_entries(made.env),
            patterns=tuple(
                {a: module if a == seat else DRAWN for a in agents} for _, seat in cells
            ),
        )
        pool = OpponentPool(
            kinds=tuple(kinds),
            draws=tuple(draws),
            patterns=tuple(
                {a: None if a == seat else draw for a in agents} for draw, seat in cells
            ),
            rows=rows,
        )
        policy_step = MultiPolicyStep(
            policies={module: get_policy_step(assembly, module)},
            rows=rows,
            views={module: assembly.views[module].without_critic()},
            pool=pool,
        )
        config = evaluation.config
        vector = make_multi_vector_env(config.environment_settings, made)
        num_envs = choose_num_envs(num_episodes, 1)
        evaluator = PairingEvaluator(
            worker=policy_step.with_envs(vector),
            num_envs=num_envs * len(cells),
            episodes_per_env=num_episodes // num_envs,
            max_steps=num_episodes
            // num_envs
            * (made.max_episode_steps or DEFAULT_MAX_EPISODE_STEPS),
            explore=config.env_runners_settings.explore,
        )
        debugging = config.debugging_settings
        return Program(f"evaluate_against_{number}", evaluator, enabled=debugging.compiles)


def _check_seats(
    assembly: MultiAgentAssembly, module: str, opponents: Sequence[Opponent], seats: Sequence[str]
) -> None:
    """Raise ConfigError if a module cannot play where it would."""
    made = assembly.jax_env
    agents = assembly.agent_rows.agents
    if assembly.views[module].ids is not None:
        raise ConfigError(
            "evaluate(opponents=...) is not supported with observe_agent_id=True: put the seat into "
            "the observation."
        )
    trained = assembly.modules[module]
    own = [(module, seat, trained.policy_step, trained.made.spaces) for seat in seats]
    others = [
        (opponent.name, agent, opponent.policy, opponent.spaces)
        for opponent in opponents
        for seat in seats
        for agent in agents
        if agent != seat
    ]
    for name, agent, policy, spaces in (*own, *others):
        space = made.observation_spaces[agent]
        if made.model is not None and not isinstance(policy.obs_pipeline, StatePipeline):
            space = made.model.get_plain_space(space)
        wanted = space, made.action_spaces[agent]
        if not all(is_same_space(x, y) for x, y in zip(spaces, wanted, strict=True)):
            raise ConfigError(
                f"{name!r} cannot play {agent!r}, whose spaces are others: evaluate it in a seat that "
                "it is made for, with seats=[...]."
            )


def _group(opponents: Sequence[Opponent]) -> tuple[list[OpponentKind], list[int]]:
    """Return the kinds of opponents, sorted by name, and each opponent's slot."""
    groups: list[tuple[tuple[Any, ...], list[int]]] = []
    for i, opponent in enumerate(opponents):
        described = (*describe_architecture(opponent.policy), *sorted(opponent.actor.hparams))
        same = next((members for other, members in groups if other == described), None)
        if same is None:
            groups.append((described, [i]))
        else:
            same.append(i)
    kinds: list[OpponentKind] = []
    order = [0] * len(opponents)
    first = 0
    for number, (_, members) in enumerate(groups):
        policy = opponents[members[0]].policy
        name = f"kind_{number:04}"
        kinds.append(OpponentKind(name=name, policy=policy, capacity=len(members), ids=()))
        for place, member in enumerate(members):
            order[member] = first + place
        first += len(members)
    return kinds, order


def _stack(
    kinds: Sequence[OpponentKind], opponents: Sequence[Opponent], order: Sequence[int]
) -> OpponentState:
    """Return the opponents as a state in which each Draw is of one of them."""
    by_slot = {slot: opponent.actor for slot, opponent in zip(order, opponents, strict=True)}
    actors: dict[str, ActorState] = {}
    first = 0
    for kind in kinds:
        members = [to_host(by_slot[first + i]) for i in range(kind.capacity)]
        actors[kind.name] = jax.tree.map(lambda *xs: np.stack(xs), *members)
        first += kind.capacity
    number = len(opponents)
    return OpponentState(
        actors=actors,
        names=jnp.zeros((number, 1), jnp.uint8),
        weights=jnp.asarray(np.eye(number, dtype=np.float32)[list(order)]),
        is_open=jnp.zeros((number,), bool),
        follows=jnp.zeros((number,), bool),
    )


def _make_table(
    played: PairingResult,
    opponents: Sequence[Opponent],
    seats: Sequence[str],
    agents: Sequence[str],
) -> dict[str, dict[str, dict[str, float]]]:
    table: dict[str, dict[str, dict[str, float]]] = {}
    for i, opponent in enumerate(opponents):
        table[opponent.name] = {}
        for j, seat in enumerate(seats):
            cell, own = i * len(seats) + j, agents.index(seat)
            counts = played.outcomes[cell] if own == 0 else played.outcomes[cell][::-1]
            number = int(counts.sum())
            returns = played.returns[cell] / number if number else np.full(2, np.nan)
            table[opponent.name][seat] = {
                "num_episodes": number,
                **{name: int(count) for name, count in zip(OUTCOMES, counts, strict=True)},
                "return_mean": float(returns[own]),
                "opponent_return_mean": float(returns[1 - own]),
                "num_env_steps": int(played.num_steps[cell]),
                "num_episodes_cut": int(played.num_cut[cell]),
            }
    return table
