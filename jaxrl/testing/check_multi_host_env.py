"""Check of a Python environment of several agents against what runners assume of it."""

import dataclasses
import warnings
from typing import TypeVar

import jax
import numpy as np

from jaxrl.core.types import PyTree
from jaxrl.envs.adapters.precheck_multi import make_checked, precheck_multi_env, sample_actions
from jaxrl.envs.context import EnvContext
from jaxrl.envs.multi.base import ALL
from jaxrl.envs.multi.host_made import MadeMultiHostEnv
from jaxrl.envs.multi.host_steps import HostMultiStart, HostMultiStep
from jaxrl.errors import EnvError
from jaxrl.testing.check_host_env import (
    NOT_REPRODUCIBLE,
    SHARED,
    is_equal,
    warn_about_pickling,
)

RowT = TypeVar("RowT", HostMultiStart, HostMultiStep)

_MAX_STEPS = 2_000
_NUM_EPISODES = 3


class _Player:
    """Player that steps one environment with random actions and resets it when an episode ends."""

    def __init__(self, made: MadeMultiHostEnv, seed: int, action_seed: int) -> None:
        self.env = make_checked(made, EnvContext(made.env_config))
        self.rows: list[HostMultiStart | HostMultiStep] = [_copy(self.env.reset(seed))]
        self.lengths: list[int] = []
        self.terminated: list[bool] = []
        self._action_seed = action_seed

    def step(self) -> None:
        latest = self.rows[-1]
        if isinstance(latest, HostMultiStep) and latest.is_over:
            self.lengths.append(self.env.num_steps)
            self.terminated.append(latest.terminated[ALL])
            self.rows.append(_copy(self.env.reset()))
        seed = self._action_seed + len(self.lengths)
        actions = sample_actions(self.env, self.rows[-1].obs, seed)
        self.rows.append(_copy(self.env.step(actions)))


def check_multi_host_env(
    made: MadeMultiHostEnv, *, num_steps: int, num_envs: int, seed: int
) -> None:
    """Check a Python environment of several agents with random actions.

    Every call is held to the contract (see `CheckedMultiAgentEnv`); equal seeds and actions give
    equal steps, even beside other copies in the same process. A warning is given if an agent never
    acted, or got a reward without an action, or the environment does not depend on its seed, neither
    ends nor has a time limit, always terminates after the same number of steps, or cannot be sent to
    another process.

    Raises:
        EnvError: If the environment violates the contract.
    """
    precheck_multi_env(made, EnvContext(made.env_config))
    num_steps = max(num_steps, 1)
    alone = _play(made, [seed], num_steps, seed)[0]
    _raise_if_different(made.id, alone, _play(made, [seed], num_steps, seed)[0], NOT_REPRODUCIBLE)
    together = _play(made, [seed + n for n in range(max(num_envs, 2))], num_steps, seed)
    _raise_if_different(made.id, alone, together[0], SHARED)
    if _find_difference(alone, together[1]) is None:
        _warn(f"{made.id} does not depend on its seed: all episodes start identically.")
    _check_episodes(made, seed)
    warn_about_pickling(made)


def _play(
    made: MadeMultiHostEnv, seeds: list[int], num_steps: int, action_seed: int
) -> list[_Player]:
    """Step one environment per seed, in turns and with the same actions."""
    players = [_Player(made, seed, action_seed) for seed in seeds]
    for _ in range(num_steps):
        for player in players:
            player.step()
    for player in players:
        player.env.close()
    return players


def _copy(row: RowT) -> RowT:
    """Return a row with copies of its observations, which an environment may overwrite."""
    obs, state = jax.tree.map(np.array, (row.obs, row.global_state))
    return dataclasses.replace(row, obs=obs, global_state=state)


def _raise_if_different(name: str, a: _Player, b: _Player, template: str) -> None:
    path = _find_difference(a, b)
    if path is not None:
        raise EnvError(f"{name}: {template.format(path=path)}.")


def _find_difference(a: _Player, b: _Player) -> str | None:
    """Return the place of the first difference between two players, if any."""
    for number, (left, right) in enumerate(zip(a.rows, b.rows, strict=False)):
        mine, theirs = _get_values(left), _get_values(right)
        for field, value in mine.items():
            if field not in theirs or not is_equal(value, theirs[field]):
                return f"the {field} after {number} steps"
    return None


def _get_values(row: HostMultiStart | HostMultiStep) -> dict[str, PyTree]:
    values = {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
    return {name: value for name, value in values.items() if name not in ("infos", "info")}


def _check_episodes(made: MadeMultiHostEnv, seed: int) -> None:
    """Play a few complete episodes, within a limit of steps, and warn of what is unusual."""
    player = _Player(made, seed, seed)
    for _ in range(_MAX_STEPS):
        player.step()
        if len(player.lengths) == _NUM_EPISODES:
            break
    player.env.close()
    lengths = player.lengths
    if not lengths and made.max_episode_steps is None:
        _warn(
            f"{made.id} did not end within {_MAX_STEPS} steps and has no time limit; let it end, or "
            "episodes may never do so."
        )
    is_constant = len(lengths) >= _NUM_EPISODES and len(set(lengths)) == 1 and lengths[0] > 1
    if is_constant and all(player.terminated):
        _warn(
            f"{made.id}: every episode terminated after {lengths[0]} steps; if that is a time limit, "
            f"step must return truncateds[{ALL!r}]=True instead, after which the value is still "
            "bootstrapped."
        )
    acted = {name for row in player.rows for name, acts in row.acts.items() if acts}
    never = [name for name in player.env.possible_agents if name not in acted]
    if never:
        _warn(f"{made.id}: agent {never[0]!r} never had an observation to act on.")
    count = player.env.rewards_without_action
    if count:
        _warn(
            f"{made.id}: {count} rewards were of agents that had not acted yet, or had ended; they "
            "count in returns, and no action is credited with them."
        )


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=4)
