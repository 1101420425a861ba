"""Check of a gymnasium environment against what runners assume beyond the precheck."""

import dataclasses
import warnings
from typing import Any

import cloudpickle
import gymnasium
import jax
import numpy as np

from jaxrl.core.types import PyTree
from jaxrl.envs.adapters.gymnasium import create_env
from jaxrl.envs.adapters.precheck import precheck_env
from jaxrl.envs.context import EnvContext
from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.multi.host_made import MadeMultiHostEnv
from jaxrl.errors import EnvError

_MAX_STEPS = 2_000
_NUM_EPISODES = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Transition:
    """One transition and, if it ended an episode, the first observation of the next one."""

    obs: PyTree
    reward: float
    terminated: bool
    truncated: bool
    first: PyTree | None

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated

    def values(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


class _Player:
    """Player that steps one environment with given actions and resets it when an episode ends."""

    def __init__(self, made: MadeHostEnv, seed: int) -> None:
        self.env = create_env(made.id, made.create, EnvContext(made.env_config))
        self.first, _ = self.env.reset(seed=seed)
        self.rows: list[_Transition] = []

    def step(self, action: PyTree) -> None:
        obs, reward, terminated, truncated, _ = self.env.step(action)
        ended = bool(terminated or truncated)
        row = _Transition(
            obs=jax.tree.map(np.array, obs),
            reward=float(reward),
            terminated=bool(terminated),
            truncated=bool(truncated),
            first=jax.tree.map(np.array, self.env.reset()[0]) if ended else None,
        )
        self.rows.append(row)


def check_host_env(made: MadeHostEnv, *, num_steps: int, num_envs: int, seed: int) -> None:
    """Check a gymnasium environment with random actions and raise at the first violation.

    Besides the checks made before every run: equal seeds and actions give equal transitions, even
    beside other copies in the same process, and no episode exceeds the time limit. A warning is
    given if the environment does not depend on its seed, neither ends nor has a time limit, always
    terminates after the same number of steps, or cannot be sent to another process.

    Raises:
        EnvError: If the environment violates the contract.
    """
    context = EnvContext(made.env_config)
    precheck_env(made, context, check=True, validate_env=None, may_fail=False)
    actions = _sample_actions(made.action_space, max(num_steps, 1), seed)
    alone = _play(made, [seed], actions)[0]
    name = made.id
    _raise_if_different(name, alone, _play(made, [seed], actions)[0], NOT_REPRODUCIBLE)
    together = _play(made, [seed + number for number in range(max(num_envs, 2))], actions)
    _raise_if_different(name, alone, together[0], SHARED)
    if _find_difference(alone, together[1]) is None:
        _warn(f"{name} does not depend on its seed: all episodes start identically.")
    _check_lengths(made, seed)
    warn_about_pickling(made)


NOT_REPRODUCIBLE = (
    "two runs from the same seed and actions differ in {path}; draw random numbers only from "
    "self.np_random, which `super().reset(seed=seed)` seeds, and reset all other state"
)
SHARED = (
    "it behaves differently when a second copy is stepped beside it, in {path}; copies must not "
    "share mutable state, such as the global generator of numpy.random"
)


def _sample_actions(space: gymnasium.Space[Any], count: int, seed: int) -> list[Any]:
    space.seed(seed)
    return [space.sample() for _ in range(count)]


def _play(made: MadeHostEnv, seeds: list[int], actions: list[Any]) -> list[_Player]:
    """Step one environment per seed, in turns and with the same actions."""
    players = [_Player(made, seed) for seed in seeds]
    for action in actions:
        for player in players:
            player.step(jax.tree.map(lambda x: x.copy() if _is_array(x) else x, action))
    for player in players:
        player.env.close()
    return players


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray)


def _raise_if_different(name: str, a: _Player, b: _Player, template: str) -> None:
    path = _find_difference(a, b)
    if path is not None:
        raise EnvError(f"{name}: {template.format(path=path)}.")


def _find_difference(a: _Player, b: _Player) -> str | None:
    """Return the place of the first difference between two players, if any."""
    if not is_equal(a.first, b.first):
        return "the first observation"
    for number, (x, y) in enumerate(zip(a.rows, b.rows, strict=True)):
        left, right = x.values(), y.values()
        for field, value in left.items():
            if not is_equal(value, right[field]):
                where = (
                    "the first observation of the episode after"
                    if field == "first"
                    else f"{field} of"
                )
                return f"{where} step {number}"
    return None


def is_equal(a: PyTree, b: PyTree) -> bool:
    """Return whether two trees have one structure and equal leaves."""
    if jax.tree.structure(a) != jax.tree.structure(b):
        return False
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


def _check_lengths(made: MadeHostEnv, seed: int) -> None:
    """Check the lengths of a few complete episodes, within a limit of steps."""
    limit = made.max_episode_steps
    lengths, terminated = _measure_episodes(made, seed)
    longest = max(lengths, default=0)
    if limit is not None and longest > limit:
        raise EnvError(f"{made.id}: an episode had {longest} steps, but the time limit is {limit}.")
    if not lengths and limit is None:
        _warn(
            f"{made.id} did not end within {_MAX_STEPS} steps and has no time limit; set "
            f"max_episode_steps, or episodes may never end."
        )
    if len(lengths) >= _NUM_EPISODES and len(set(lengths)) == 1 and terminated and longest > 1:
        _warn(
            f"{made.id}: every episode terminated after {longest} steps; if that is a time limit, "
            f"step must return truncated instead, after which the value is still bootstrapped."
        )


def _measure_episodes(made: MadeHostEnv, seed: int) -> tuple[list[int], bool]:
    """Return the lengths of up to three complete episodes and whether all of them terminated."""
    player = _Player(made, seed)
    made.action_space.seed(seed)
    lengths, count = [], 0
    for _ in range(_MAX_STEPS):
        player.step(made.action_space.sample())
        count += 1
        if player.rows[-1].ended:
            lengths.append(count)
            count = 0
        if len(lengths) == _NUM_EPISODES:
            break
    player.env.close()
    return lengths, all(row.terminated for row in player.rows if row.ended)


def warn_about_pickling(made: MadeHostEnv | MadeMultiHostEnv) -> None:
    """Warn if an environment's creator cannot be sent to another process."""
    try:
        cloudpickle.dumps(made.create)
    except Exception as error:  # noqa: BLE001  (a user's object may raise anything)
        _warn(
            f"{made.id} cannot be sent to another process ({error}): use it with "
            f"num_env_runners=0 and gym_env_vectorize_mode='sync', or register a creator that "
            f"creates the objects that it needs."
        )


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=4)
