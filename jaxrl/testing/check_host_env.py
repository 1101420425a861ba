"""Check of a Python environment, of one agent or of several, beyond that before every run."""

import copy
import dataclasses
import warnings
from typing import Any

import cloudpickle
import jax
import numpy as np

from jaxrl.core.types import PyTree
from jaxrl.envs.adapters.gymnasium import create_env
from jaxrl.envs.adapters.precheck import make_checked, precheck_env, sample_actions
from jaxrl.envs.context import EnvContext
from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.multi.base import ALL
from jaxrl.envs.multi.checked import HostMultiStart, HostMultiStep
from jaxrl.envs.multi.host_made import MadeMultiHostEnv
from jaxrl.errors import EnvError

_MAX_STEPS = 2_000
_NUM_EPISODES = 3

AnyMade = MadeHostEnv | MadeMultiHostEnv


class _Player:
    """One environment that is stepped with random actions, and reset when an episode has ended.

    `rows` are the values of all resets and steps by name.
    """

    truncation = "truncated"
    """Name of what a step should return at a time limit."""

    def __init__(self, seed: int) -> None:
        self.rows: list[dict[str, PyTree]] = []
        self.lengths: list[int] = []
        """Numbers of steps of the episodes that ended."""
        self.all_terminated = True
        self._num_steps = 0
        self._is_over = False
        self._record(self.reset(seed))

    def step(self) -> None:
        """Take a step, after a reset where the last one ended an episode."""
        if self._is_over:
            self._num_steps = 0
            self._record(self.reset(None))
        row, terminated, self._is_over = self.act()
        self._record(row)
        self._num_steps += 1
        if self._is_over:
            self.lengths.append(self._num_steps)
            self.all_terminated &= terminated

    def reset(self, seed: int | None) -> dict[str, PyTree]:
        """Begin an episode."""
        raise NotImplementedError

    def act(self) -> tuple[dict[str, PyTree], bool, bool]:
        """Take a step; also return whether the episode terminated, and whether it is over."""
        raise NotImplementedError

    def warn_about_agents(self, name: str) -> None:
        """Warn of agents that did nothing."""

    def close(self) -> None:
        """Close the environment."""
        raise NotImplementedError

    def _record(self, row: dict[str, PyTree]) -> None:
        """Store a copy of a row, whose arrays an environment may overwrite."""
        self.rows.append(jax.tree.map(lambda x: x.copy() if _is_array(x) else x, row))


class _OneAgent(_Player):
    """A gymnasium environment."""

    def __init__(self, made: MadeHostEnv, seed: int, action_seed: int) -> None:
        self._env = create_env(made.id, made.create, EnvContext(made.env_config))
        self._actions = copy.deepcopy(made.action_space)
        self._actions.seed(action_seed)
        super().__init__(seed)

    def reset(self, seed: int | None) -> dict[str, PyTree]:
        return {"observation": self._env.reset(seed=seed)[0]}

    def act(self) -> tuple[dict[str, PyTree], bool, bool]:
        obs, reward, terminated, truncated, _ = self._env.step(self._actions.sample())
        flags = {"terminated": bool(terminated), "truncated": bool(truncated)}
        row = {"observation": obs, "reward": float(reward), **flags}
        return row, flags["terminated"], any(flags.values())

    def close(self) -> None:
        self._env.close()


class _SeveralAgents(_Player):
    """An environment of several agents, every call of which is held to the contract."""

    truncation = f"truncateds[{ALL!r}]=True"

    def __init__(self, made: MadeMultiHostEnv, seed: int, action_seed: int) -> None:
        self._env = make_checked(made, EnvContext(made.env_config))
        self._action_seed = action_seed
        self._obs: dict[str, PyTree] = {}
        self._acted: set[str] = set()
        super().__init__(seed)

    def reset(self, seed: int | None) -> dict[str, PyTree]:
        return self._read(self._env.reset(seed))

    def act(self) -> tuple[dict[str, PyTree], bool, bool]:
        seed = self._action_seed + len(self.lengths)
        step = self._env.step(sample_actions(self._env, self._obs, seed))
        return self._read(step), step.terminated[ALL], step.is_over

    def _read(self, outcome: HostMultiStart | HostMultiStep) -> dict[str, PyTree]:
        self._obs = outcome.obs
        self._acted.update(name for name, acts in outcome.acts.items() if acts)
        values = {field.name: getattr(outcome, field.name) for field in dataclasses.fields(outcome)}
        return {name: value for name, value in values.items() if name not in ("infos", "info")}

    def warn_about_agents(self, name: str) -> None:
        never = [agent for agent in self._env.possible_agents if agent not in self._acted]
        if never:
            _warn(f"{name}: agent {never[0]!r} never had an observation to act on.")
        count = self._env.rewards_without_action
        if count:
            _warn(
                f"{name}: {count} rewards were of agents that had not acted yet, or had ended; they "
                "count in returns, and no action is credited with them."
            )

    def close(self) -> None:
        self._env.close()


def check_host_env(made: AnyMade, *, num_steps: int, num_envs: int, seed: int) -> None:
    """Check a Python environment with random actions; see `check_env`.

    Raises:
        EnvError: If the environment violates the contract.
    """
    name = made.id
    precheck_env(made, EnvContext(made.env_config))
    num_steps = max(num_steps, 1)
    alone, again = (_play(made, [seed], num_steps)[0] for _ in range(2))
    if place := _find_difference(alone, again):
        raise EnvError(
            f"{name}: two runs from the same seed and actions differ in {place}; draw random numbers "
            "only from self.np_random, which `super().reset(seed=seed)` seeds, and reset all other "
            "state."
        )
    together = _play(made, [seed + number for number in range(max(num_envs, 2))], num_steps)
    if place := _find_difference(alone, together[0]):
        raise EnvError(
            f"{name}: it behaves differently when a second copy is stepped beside it, in {place}; "
            "copies must not share mutable state, such as the global generator of numpy.random."
        )
    if _find_difference(alone, together[1]) is None:
        _warn(f"{name} does not depend on its seed: all episodes start identically.")
    _check_episodes(made, seed)
    try:
        cloudpickle.dumps(made.create)
    except Exception as error:  # noqa: BLE001  (a user's object may raise anything)
        _warn(
            f"{name} cannot be sent to another process ({error}): use it with num_env_runners=0 and "
            "gym_env_vectorize_mode='sync', or register a creator that creates the objects that it "
            "needs."
        )


def _make_player(made: AnyMade, seed: int, action_seed: int) -> _Player:
    if isinstance(made, MadeMultiHostEnv):
        return _SeveralAgents(made, seed, action_seed)
    return _OneAgent(made, seed, action_seed)


def _play(made: AnyMade, seeds: list[int], num_steps: int) -> list[_Player]:
    """Step one environment per seed, in turns and with the same seed of actions."""
    players = [_make_player(made, seed, seeds[0]) for seed in seeds]
    for _ in range(num_steps):
        for player in players:
            player.step()
    for player in players:
        player.close()
    return players


def _find_difference(a: _Player, b: _Player) -> str | None:
    """Return the place of the first difference between two players, if any."""
    num_steps = 0
    for left, right in zip(a.rows, b.rows, strict=False):
        is_step = "terminated" in left
        for field, value in left.items():
            if field not in right or not _is_equal(value, right[field]):
                place = (
                    f"of step {num_steps}" if is_step else f"of the reset before step {num_steps}"
                )
                return f"the {field} {place}"
        num_steps += is_step
    return None


def _is_equal(a: PyTree, b: PyTree) -> bool:
    """Return whether two trees have one structure and equal leaves."""
    if jax.tree.structure(a) != jax.tree.structure(b):
        return False
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray)


def _check_episodes(made: AnyMade, seed: int) -> None:
    """Play a few complete episodes, within a limit of steps, and check their lengths."""
    player, name, limit = _make_player(made, seed, seed), made.id, made.max_episode_steps
    for _ in range(_MAX_STEPS):
        player.step()
        if len(player.lengths) == _NUM_EPISODES:
            break
    player.close()
    lengths = player.lengths
    longest = max(lengths, default=0)
    if limit is not None and longest > limit:
        raise EnvError(f"{name}: an episode had {longest} steps, but the time limit is {limit}.")
    if not lengths and limit is None:
        _warn(
            f"{name} did not end within {_MAX_STEPS} steps and has no time limit; set "
            "max_episode_steps, or episodes may never end."
        )
    is_constant = len(lengths) == _NUM_EPISODES and len(set(lengths)) == 1 and longest > 1
    if is_constant and player.all_terminated:
        _warn(
            f"{name}: every episode terminated after {longest} steps; if that is a time limit, step "
            f"must return {player.truncation} instead, after which the value is still bootstrapped."
        )
    player.warn_about_agents(name)


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=5)
