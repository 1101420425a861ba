"""Opponents of an evaluation: modules of a run, those that are drawn, and checkpoints."""

import os
from collections.abc import Sequence
from pathlib import Path

from jaxrl.assembly.multi_agent import MultiAgentAssembly
from jaxrl.config.agent_mapping import DRAWN
from jaxrl.config.settings.run import EvaluationSettings
from jaxrl.core.types import PyTree
from jaxrl.errors import CheckpointError, ConfigError, UnknownNameError, did_you_mean
from jaxrl.evaluation.pairings import Opponent
from jaxrl.runs import checkpoint as ckpt
from jaxrl.runs.host_state import check_metadata
from jaxrl.runs.opponents import list_opponents
from jaxrl.training.train_state import TrainState

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
        actors: PyTree = assembly.in_graph_runner.make_actor_state(state)
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
