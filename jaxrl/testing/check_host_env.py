"""Certify a gymnasium environment: what runners take for granted and one look cannot see."""

import dataclasses
import warnings
from typing import Any

import cloudpickle
import gymnasium
import jax
import numpy as np

from jaxrl.core.types import PyTree
from jaxrl.envs.adapters.gymnasium import create_env
from jaxrl.envs.adapters.precheck import try_out
from jaxrl.envs.context import EnvContext
from jaxrl.envs.host import MadeHostEnv
from jaxrl.errors import EnvError

_LONGEST_EPISODE = 2_000
_MANY_EPISODES = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Row:
    """One transition, and the first observation of the next episode where it ended one."""

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
    """Steps one environment with given actions and resets it at its ends."""

    def __init__(self, made: MadeHostEnv, seed: int) -> None:
        self.env = create_env(made.id, made.create, EnvContext(made.env_config))
        self.first, _ = self.env.reset(seed=seed)
        self.rows: list[_Row] = []

    def step(self, action: Any) -> None:
        obs, reward, terminated, truncated, _ = self.env.step(action)
        ended = bool(terminated or truncated)
        row = _Row(
            obs=jax.tree.map(np.array, obs),
            reward=float(reward),
            terminated=bool(terminated),
            truncated=bool(truncated),
            first=jax.tree.map(np.array, self.env.reset()[0]) if ended else None,
        )
        self.rows.append(row)


def check_host_env(made: MadeHostEnv, *, num_steps: int, num_envs: int, seed: int) -> None:
    """Try a gymnasium environment with random actions and raise at the first thing that is wrong.

    Beside everything that is checked before a run: one seed and the same actions give the same
    transitions, also beside other copies in the same process, and no episode is longer than the
    time limit. Warned about is an environment that does not depend on its seed, that neither ends
    nor has a time limit, whose episodes all terminate after the same number of steps, or that
    cannot be sent to another process.

    Raises:
        EnvError: One sentence says what is wrong.
    """
    context = EnvContext(made.env_config)
    try_out(made, context, check=True, validate_env=None, may_fail=False)
    actions = _actions(made.action_space, max(num_steps, 1), seed)
    alone = _play(made, [seed], actions)[0]
    name = made.id
    _compare(name, alone, _play(made, [seed], actions)[0], _NOT_REPRODUCIBLE)
    beside = _play(made, [seed + number for number in range(max(num_envs, 2))], actions)
    _compare(name, alone, beside[0], _SHARED)
    if _difference(alone, beside[1]) is None:
        _warn(f"{name} does not depend on its seed: every episode starts alike.")
    _check_lengths(made, seed)
    _warn_about_pickling(made)


_NOT_REPRODUCIBLE = (
    "two runs from the same seed and actions differ in {path}; draw numbers from self.np_random "
    "only, which `super().reset(seed=seed)` seeds, and reset everything else"
)
_SHARED = (
    "it does something else when a second copy is stepped beside it, in {path}; copies must share "
    "nothing that changes"
)


def _actions(space: gymnasium.Space[Any], count: int, seed: int) -> list[Any]:
    space.seed(seed)
    return [space.sample() for _ in range(count)]


def _play(made: MadeHostEnv, seeds: list[int], actions: list[Any]) -> list[_Player]:
    """Environments of the seeds, stepped in turns with the same actions."""
    players = [_Player(made, seed) for seed in seeds]
    for action in actions:
        for player in players:
            player.step(jax.tree.map(lambda x: x.copy() if _is_array(x) else x, action))
    for player in players:
        player.env.close()
    return players


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray)


def _compare(name: str, a: _Player, b: _Player, sentence: str) -> None:
    path = _difference(a, b)
    if path is not None:
        raise EnvError(f"{name}: {sentence.format(path=path)}.")


def _difference(a: _Player, b: _Player) -> str | None:
    """Where two plays first differ."""
    if not _same(a.first, b.first):
        return "the first observation"
    for number, (x, y) in enumerate(zip(a.rows, b.rows, strict=True)):
        left, right = x.values(), y.values()
        for field, value in left.items():
            if not _same(value, right[field]):
                return f"{'the next first obs' if field == 'first' else field} of step {number}"
    return None


def _same(a: PyTree, b: PyTree) -> bool:
    if jax.tree.structure(a) != jax.tree.structure(b):
        return False
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


def _check_lengths(made: MadeHostEnv, seed: int) -> None:
    """Play a few episodes to their ends, within reason."""
    limit = made.max_episode_steps
    lengths, terminated = _episode_lengths(made, seed)
    longest = max(lengths, default=0)
    if limit is not None and longest > limit:
        raise EnvError(
            f"{made.id}: an episode had {longest} steps, but the time limit says {limit}."
        )
    if not lengths and limit is None:
        _warn(
            f"{made.id} did not end within {_LONGEST_EPISODE} steps and has no time limit; give "
            f"max_episode_steps, or episodes may never end."
        )
    if len(lengths) >= _MANY_EPISODES and len(set(lengths)) == 1 and terminated and longest > 1:
        _warn(
            f"{made.id}: every episode terminated after {longest} steps; if that is a time limit, "
            f"step must say truncated, from which the value is still bootstrapped."
        )


def _episode_lengths(made: MadeHostEnv, seed: int) -> tuple[list[int], bool]:
    """Steps of up to three whole episodes, and whether all of them terminated."""
    player = _Player(made, seed)
    made.action_space.seed(seed)
    lengths, count = [], 0
    for _ in range(_LONGEST_EPISODE):
        player.step(made.action_space.sample())
        count += 1
        if player.rows[-1].ended:
            lengths.append(count)
            count = 0
        if len(lengths) == _MANY_EPISODES:
            break
    player.env.close()
    return lengths, all(row.terminated for row in player.rows if row.ended)


def _warn_about_pickling(made: MadeHostEnv) -> None:
    try:
        cloudpickle.dumps(made.create)
    except Exception as error:  # noqa: BLE001  (whatever a user's object raises)
        _warn(
            f"{made.id} cannot be sent to another process ({error}): use it with "
            f"num_env_runners=0 and gym_env_vectorize_mode='sync', or register a creator that "
            f"makes what it needs itself."
        )


def _warn(sentence: str) -> None:
    warnings.warn(sentence, stacklevel=4)
