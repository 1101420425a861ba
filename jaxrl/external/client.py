"""`PolicyClient`: a simulator's side of a policy that is trained elsewhere, with RLlib's methods.

This file of jaxrl-link imports the standard library and NumPy alone, and is copied to simulators.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import ssl
import threading
import time
import uuid
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, SupportsFloat

import numpy as np

from .connection import Identity, Link, parse_address
from .frames import Arrays, Head, Kind, Limits, LinkError, RunEndedError
from .spaces import SpaceLeaves, describe_space, hash_spaces, stack_rows, without_parts

if TYPE_CHECKING:
    from collections.abc import Collection

_REWARD = "state/reward"
"""Name of the part of a state that is the previous reward, for connectors that read it."""
TOKEN_VARIABLE = "JAXRL_EXTERNAL_TOKEN"
"""Environment variable of the token, on both sides."""
INFERENCE_MODES = ("local", "remote")
_MAX_REWARD = float(np.finfo(np.float32).max)


class Step(NamedTuple):
    """Step whose reward and successor are not known yet."""

    obs: Arrays
    columns: Arrays
    version: int
    source: str


class Episode:
    """Episode with the steps that have not been sent.

    `is_reserved` is whether a step counts already whose action is being computed.

    Args:
        episode_id: Its name.
        training_enabled: Whether to train on it.
    """

    def __init__(self, episode_id: str, training_enabled: bool) -> None:
        self.id, self.training_enabled = episode_id, training_enabled
        self.t_started, self.reward, self.last_reward = 0, 0.0, 0.0
        self.open_step: Step | None = None
        self.is_reserved = False
        self.successor: Arrays = {}
        self.steps: list[Step] = []
        self.rewards: list[float] = []

    @property
    def t(self) -> int:
        """Time step of the next action."""
        return self.t_started + len(self.steps) + (self.open_step is not None)

    @property
    def past_reward(self) -> float:
        """Reward since the latest action."""
        return self.last_reward if self.open_step is None else self.reward

    @property
    def num_open(self) -> int:
        """Number of steps to train on that cannot be sent yet: the open one, and one to act in."""
        num_open = (self.open_step is not None) + self.is_reserved
        return num_open if self.training_enabled else 0

    @property
    def num_unsent(self) -> int:
        """Number of steps to train on that have not been sent."""
        return self.num_open + (len(self.steps) if self.training_enabled else 0)


def make_part(episode: Episode, end: str | None) -> tuple[Head, Arrays]:
    """Take the complete steps out of an episode, of which there is one at least, as a part.

    Args:
        episode: Episode, which goes on after them.
        end: How it ends, as in EPISODES; None if it goes on.

    Returns:
        Entry of the head, and the arrays.
    """
    steps, rewards = episode.steps, episode.rewards
    part = {
        "episode_id": episode.id,
        "t_started": episode.t_started,
        "length": len(steps),
        "training_enabled": episode.training_enabled,
        "end": end,
        "source": steps[0].source,
    }
    last = episode.successor
    arrays: Arrays = {
        f"0.{name}": stack_rows([*(step.obs[name] for step in steps), last[name]]) for name in last
    }
    for name in steps[0].columns:
        arrays[f"0.{name}"] = stack_rows([step.columns[name] for step in steps])
    arrays["0.reward"] = np.asarray(rewards, np.float32)
    arrays["0.version"] = np.asarray([step.version for step in steps], np.int64)
    episode.t_started, episode.steps, episode.rewards = episode.t_started + len(steps), [], []
    return part, arrays


def _import_policy_class() -> Any:
    """Return `NumpyPolicy`: of the file beside this one, or of the installed package."""
    package = __package__ or ""
    try:
        module = importlib.import_module(".numpy_program", package)
    except ImportError:
        module = importlib.import_module("jaxrl.export.numpy_program")
    return module.NumpyPolicy


class LocalPolicy:
    """Policy that acts in this process, with weights that are fetched from the run.

    Args:
        link: Connection to the run.
        obs: Arrays of observations.
        update_interval: Seconds between fetches; None fetches every version.
        seed: Seed of sampled actions.

    Raises:
        LinkError: If the run's policy has no form for NumPy.
    """

    def __init__(
        self, link: Link, obs: SpaceLeaves, update_interval: float | None, seed: int | None
    ) -> None:
        self.link, self._obs = link, obs
        # Where old steps are discarded, every version counts.
        needs_all = link.welcome["max_weights_lag"] is not None
        self._interval = 0.0 if update_interval is None or needs_all else update_interval
        self._explores: Head = link.welcome["explore"]
        self._columns = [
            (name, np.dtype(dtype), tuple(shape))
            for name, (dtype, shape) in link.welcome["columns"].items()
        ]
        self._lock = threading.Lock()
        self._states: dict[str, Any] = {}
        reply, arrays = link.request(Kind.GET_POLICY, {"has_program": False})
        self.version, self._fetched_at = int(reply["version"]), time.monotonic()
        manifest, program = (json.loads(arrays[n].tobytes()) for n in ("manifest", "program"))
        self._policy = _import_policy_class().from_parts(
            manifest, program, _select(arrays, "weights/"), _select(arrays, "constants/"), seed=seed
        )
        self._reads_reward = "prev_reward" in manifest["reads"]

    def act(
        self, episode_id: str, training_enabled: bool, obs: Arrays, reward: float
    ) -> tuple[list[np.ndarray], Arrays, int]:
        """Return the leaves of the action, the columns to record, and the version of the weights.

        Args:
            episode_id: Episode, whose state is kept.
            training_enabled: Whether it is one to train on.
            obs: Arrays of the observation.
            reward: Reward of the previous step.
        """
        with self._lock:
            self._update_if_due()
            policy, before = self._policy, self._states.get(episode_id)
            rows = [obs[leaf.name][None] for leaf in self._obs.leaves]
            past = {}
            if self._reads_reward and before is not None:
                past["prev_reward"] = np.asarray([reward], np.float32)
            explore = bool(self._explores["training" if training_enabled else "evaluation"])
            result = policy.step_rows(rows, before, explore=explore, **past)
            self._states[episode_id] = result.state
            start = policy.initial_state() if before is None else before
            columns: Arrays = {
                "extras.action_logp": result.log_prob[0],
                "extras.action_dist_inputs": result.dist_inputs[0],
            }
            for i, leaf in enumerate(_flatten(result.module_actions)):
                columns[f"action.{i}"] = leaf[0]
            for i, name in enumerate(policy.state_names):
                is_reward = name == _REWARD and "prev_reward" in past
                columns[f"state.{i}"] = past["prev_reward"][0] if is_reward else start[i][0]
            actions = [leaf[0] for leaf in _flatten(result.actions)]
            return actions, self._convert(columns), self.version

    def forget(self, episode_id: str) -> None:
        """Drop the state of an episode that has ended."""
        with self._lock:
            self._states.pop(episode_id, None)

    def update(self) -> None:
        """Fetch newer weights, if there are any."""
        with self._lock:
            self._update()

    def _update_if_due(self) -> None:
        if time.monotonic() - self._fetched_at >= self._interval:
            self._update()

    def _update(self) -> None:
        if self.link.latest_version == self.version:
            return
        reply, arrays = self.link.request(Kind.GET_POLICY, {"has_program": True})
        self._policy.set_weights(_select(arrays, "weights/"))
        self.version, self._fetched_at = int(reply["version"]), time.monotonic()

    def _convert(self, columns: Arrays) -> Arrays:
        converted: Arrays = {}
        for name, dtype, shape in self._columns:
            value = columns[name]
            if value.dtype != dtype or value.shape != shape:
                value = np.asarray(value, dtype).reshape(shape)
            converted[name] = value
        return converted


def _select(arrays: Arrays, prefix: str) -> Arrays:
    return {name[len(prefix) :]: x for name, x in arrays.items() if name.startswith(prefix)}


def _flatten(tree: object) -> list[np.ndarray]:
    """Return the leaves of a tree, those of a dict in the order of its sorted keys."""
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in _flatten(tree[key])]
    if isinstance(tree, (tuple, list)):
        return [leaf for part in tree for leaf in _flatten(part)]
    return [np.asarray(tree)]


class _Env(Protocol):
    """Environment with gymnasium's `reset` and `step`."""

    def reset(self, *, seed: int | None = None) -> tuple[object, dict[str, Any]]: ...

    def step(self, action: Any, /) -> tuple[object, SupportsFloat, bool, bool, dict[str, Any]]: ...


class PolicyClient:
    """Client of a run that trains a policy on what simulators record.

    Several episodes may be open at a time, and several threads may use one client. Steps are sent
    in the background, kept until the run has acknowledged them, and sent again after a reconnection.

    Args:
        address: Address of the run, as 'host:port' or a URL; 'https' and 'tls' are TLS.
        inference_mode: 'local' computes actions in this process, with weights that are fetched from
            the run; 'remote' asks the run for each action. None is local if the run offers it.
        update_interval: Seconds between fetches of weights with local inference; None fetches every
            version.
        token: Token of the run; None takes it from JAXRL_EXTERNAL_TOKEN.
        client_id: Name of this client, unique among those of the run; None draws one.
        ssl_context: Context of TLS, for own certificates.
        observation_space: Space of the simulator's observations, compared with the run's, with or
            without parts that only critics read.
        action_space: Space of its actions.
        timeout_s: Seconds without a connection after which calls fail.
        block: Whether to wait while the run accepts no more steps; False raises.
        seed: Seed of actions with local inference.

    Raises:
        LinkError: If the run cannot be reached or refuses; the sentence says why.
    """

    def __init__(
        self,
        address: str,
        inference_mode: str | None = None,
        update_interval: float | None = 10.0,
        *,
        token: str | None = None,
        client_id: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        observation_space: object = None,
        action_space: object = None,
        timeout_s: float = 60.0,
        block: bool = True,
        seed: int | None = None,
    ) -> None:
        if inference_mode not in (None, *INFERENCE_MODES):
            raise LinkError(f"inference_mode must be 'local' or 'remote', got {inference_mode!r}.")
        where = parse_address(address)
        if ssl_context is None and where.is_tls:
            ssl_context = ssl.create_default_context()
        spaces_hash = None
        if (observation_space is None) != (action_space is None):
            raise LinkError("Give observation_space and action_space, or neither of them.")
        if observation_space is not None:
            both = describe_space(observation_space), describe_space(action_space)
            spaces_hash = hash_spaces(*both)
        self.client_id = client_id or uuid.uuid4().hex
        self._block, self._is_closed, self._has_warned = block, False, False
        self.episodes: dict[str, Episode] = {}
        self._single: str | None = None
        identity = Identity(
            self.client_id,
            os.environ.get(TOKEN_VARIABLE, "") if token is None else token,
            ssl_context,
            spaces_hash,
        )
        self.link = Link(where, identity, timeout_s, self._get_open_episodes, self._get_num_open)
        welcome = self.link.welcome
        self._obs = SpaceLeaves(welcome["observation_space"], "obs")
        self._unread: list[str] = welcome.get("critic_only_parts", [])
        self._action = SpaceLeaves(welcome["action_space"], "env_action")
        self.local: LocalPolicy | None = None
        if inference_mode != "remote":
            try:
                self.local = LocalPolicy(self.link, self._obs, update_interval, seed)
            except LinkError:
                if inference_mode is not None:
                    self.link.close(1.0)
                    raise

    @property
    def inference_mode(self) -> str:
        """Mode of inference, 'local' or 'remote'."""
        return "remote" if self.local is None else "local"

    @property
    def weights_version(self) -> int:
        """Version of the newest weights that the run has announced."""
        return self.link.latest_version

    # --- RLlib's methods ---

    def start_episode(self, episode_id: str | None = None, training_enabled: bool = True) -> str:
        """Start an episode.

        Args:
            episode_id: Its name; None draws one.
            training_enabled: Whether to train on it. Others are reported as evaluation.

        Returns:
            Its name, which the other methods take.

        Raises:
            LinkError: If it is open already, too many are, or its name is too long.
        """
        self._check_open()
        name = uuid.uuid4().hex if episode_id is None else str(episode_id)
        if not 0 < len(name) <= Limits().max_id_length:
            raise LinkError(
                f"episode_id must have 1 to {Limits().max_id_length} characters, got {name!r:.80}."
            )
        with self.link.changed:
            if name in self.episodes:
                raise LinkError(f"The episode {name!r} is open already: end it first.")
            limit = int(self.link.welcome["limits"]["max_open_episodes"])
            if len(self.episodes) >= limit:
                raise LinkError(
                    f"{limit} episodes of this client are open, the most that the run allows: end "
                    "one before starting another."
                )
            self.link.refused.pop(name, None)
            self.episodes[name] = Episode(name, bool(training_enabled))
        return name

    def get_action(self, episode_id: str, observation: object) -> Any:
        """Return the policy's action for an observation, and record the step.

        Raises:
            LinkError: If the episode is not open, or the observation is not in the space.
        """
        episode = self._get_episode(episode_id)
        obs = self._flatten_obs(episode, observation)
        self._reserve_step(episode, obs)
        act = self._act_remotely if self.local is None else self._act_locally
        try:
            action, columns, version = act(episode, obs)
        except BaseException:
            with self.link.changed:
                self.link.release_credit(int(episode.is_reserved))
                episode.is_reserved = False
            raise
        self._open_step(episode, Step(obs, columns, version, "policy"))
        return self._action.unflatten(action)

    def _flatten_obs(self, episode: Episode, observation: object) -> Arrays:
        """Return the arrays of an observation, which may lack parts that no action depends on.

        Critics learn from these parts in episodes to train on.
        """
        return self._obs.flatten(observation, () if episode.training_enabled else self._unread)

    def _act_remotely(self, episode: Episode, obs: Arrays) -> tuple[Arrays, Arrays, int]:
        head = {
            "episode_ids": [episode.id],
            "t": [episode.t],
            "training_enabled": [episode.training_enabled],
            "num_recorded": self.link.num_recorded,
        }
        arrays = {name: array[None] for name, array in obs.items()}
        arrays["reward"] = np.asarray([episode.past_reward], np.float32)
        reply, got = self.link.request(Kind.ACT, head, arrays)
        action = {leaf.name: got[leaf.name][0] for leaf in self._action.leaves}
        columns = {name: got[name][0] for name in self.link.welcome["columns"]}
        return action, columns, int(reply["version"])

    def _act_locally(self, episode: Episode, obs: Arrays) -> tuple[Arrays, Arrays, int]:
        assert self.local is not None
        leaves, columns, version = self.local.act(
            episode.id, episode.training_enabled, obs, episode.past_reward
        )
        names = [leaf.name for leaf in self._action.leaves]
        return {name: leaves[i] for i, name in enumerate(names)}, columns, version

    def log_action(self, episode_id: str, observation: object, action: object) -> None:
        """Record a step whose action the simulator chose itself.

        Raises:
            LinkError: If the algorithm needs the policy's own actions, or a value is invalid.
        """
        episode = self._get_episode(episode_id)
        reason = self.link.welcome["why_no_own_actions"]
        if reason is not None and episode.training_enabled:
            raise LinkError(
                "log_action() records an action that the policy did not choose, which this run "
                f"cannot learn from: {reason}; use get_action()."
            )
        obs, taken = self._flatten_obs(episode, observation), self._action.flatten(action)
        self._reserve_step(episode, obs)
        self._open_step(episode, Step(obs, taken, self.link.latest_version, "log"))

    def log_returns(self, episode_id: str, reward: SupportsFloat, info: object = None) -> None:
        """Add a reward to the latest step; several are summed. `info` is not used.

        Raises:
            LinkError: If the episode is not open, or the reward is not a finite number of float32.
        """
        del info
        episode = self._get_episode(episode_id)
        try:
            value = float(reward)
        except (TypeError, ValueError, OverflowError):
            raise LinkError(
                f"The reward of episode {episode.id!r} must be a number, got {reward!r:.80}."
            ) from None
        if not math.isfinite(value):
            raise LinkError(
                f"The reward of episode {episode.id!r} is {value}, which is not finite."
            )
        if abs(episode.reward + value) > _MAX_REWARD:
            raise LinkError(
                f"The reward of episode {episode.id!r} is {episode.reward + value:g}, and float32, "
                f"in which it is sent, ends at {_MAX_REWARD:g}."
            )
        if episode.open_step is None:
            raise LinkError(
                f"The episode {episode.id!r} has no action yet that a reward could belong to: call "
                "get_action() or log_action() first."
            )
        episode.reward += value

    def end_episode(
        self,
        episode_id: str,
        observation: object,
        *,
        terminated: bool | None = None,
        truncated: bool | None = None,
    ) -> None:
        """End an episode.

        Without both flags, as in code for RLlib, the task ended; a warning says so once.

        Args:
            episode_id: Its name.
            observation: Last observation, the successor of the latest step.
            terminated: Whether the task ended, so that nothing follows, also where `truncated`.
            truncated: Whether only the recording ended, as by a time limit: the value of the last
                observation counts.

        Raises:
            LinkError: If one of both is given and none is True.
        """
        episode = self._get_episode(episode_id)
        if terminated is None and truncated is None:
            self._warn_of_end()
            terminated = True
        if not (terminated or truncated):
            raise LinkError(
                "end_episode() needs terminated=True (the task ended) or truncated=True (a time "
                f"limit, say), got terminated={terminated} and truncated={truncated}."
            )
        obs = self._flatten_obs(episode, observation)
        with self.link.changed:
            self._complete_step(episode, obs)
            self._send_part(episode, "terminated" if terminated else "truncated")
            del self.episodes[episode.id]
            if self._single == episode.id:
                self._single = None
        if self.local is not None:
            self.local.forget(episode.id)

    def _warn_of_end(self) -> None:
        """Warn, once, that the end of an episode was taken for the end of its task."""
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                "end_episode() without terminated and truncated means that the task ended, as it "
                "does in RLlib: pass truncated=True where a time limit ended the episode, so that "
                "the value of its last observation counts.",
                stacklevel=3,
            )

    def update_policy_weights(self) -> None:
        """Fetch newer weights now; with remote inference there are none to fetch.

        Raises:
            LinkError: If the run cannot be reached.
        """
        self._check_open()
        if self.local is not None:
            self.local.update()

    # --- shorter forms ---

    def step(
        self,
        observation: object,
        reward: float = 0.0,
        *,
        terminated: bool = False,
        truncated: bool = False,
    ) -> Any:
        """Return the action for an observation, in an episode that starts and ends by itself.

        Args:
            observation: Current observation.
            reward: Reward of the previous action; not used by the first call of an episode.
            terminated: Whether this observation ends the task.
            truncated: Whether it ends the recording.

        Returns:
            Action; None if the episode has ended.
        """
        if self._single is None:
            self._single = self.start_episode()
        episode = self._get_episode(self._single)
        latest, reward_before = episode.open_step, episode.reward
        if latest is not None:
            self.log_returns(episode.id, reward)
        try:
            if not (terminated or truncated):
                return self.get_action(episode.id, observation)
            self.end_episode(episode.id, observation, terminated=terminated, truncated=truncated)
        except BaseException:
            if episode.open_step is latest:
                episode.reward = reward_before  # the call may be repeated
            raise
        return None

    def run(
        self,
        env: _Env,
        *,
        num_episodes: int | None = None,
        training_enabled: bool = True,
        seed: int | None = None,
    ) -> list[float]:
        """Play episodes in an environment with gymnasium's `reset` and `step`.

        Args:
            env: Environment, whose spaces must be those of the run. Its observations may lack parts
                that only critics read, if episodes are not to train on.
            num_episodes: Number of episodes; None plays until the run ends.
            training_enabled: Whether to train on them.
            seed: Seed of the first reset.

        Returns:
            Their returns.

        Raises:
            LinkError: If the spaces differ, or the run ends before `num_episodes`.
        """
        self._check_spaces(env, () if training_enabled else self._unread)
        returns: list[float] = []
        try:
            while num_episodes is None or len(returns) < num_episodes:
                returns.append(self._play_episode(env, training_enabled, seed))
                seed = None
        except RunEndedError:
            if num_episodes is not None:
                raise
        return returns

    def _play_episode(self, env: _Env, training_enabled: bool, seed: int | None) -> float:
        obs, _ = env.reset(seed=seed)
        total = 0.0
        name = self.start_episode(training_enabled=training_enabled)
        while True:
            obs, reward, terminated, truncated, _ = env.step(self.get_action(name, obs))
            self.log_returns(name, reward)
            total += float(reward)
            if terminated or truncated:
                break
        self.end_episode(name, obs, terminated=terminated, truncated=not terminated)
        return total

    def _check_spaces(self, env: _Env, optional: Collection[str]) -> None:
        for name in ("observation_space", "action_space"):
            own, expected = describe_space(getattr(env, name)), self.link.welcome[name]
            acted_on = (
                without_parts(expected, optional) if name == "observation_space" else expected
            )
            if own not in (expected, acted_on):
                raise LinkError(f"{name} of the environment is {own}, and the run has {expected}.")

    def close(self, timeout_s: float = 10.0) -> None:
        """Send what is left, and disconnect; open episodes are cut. Safe to call more than once."""
        if self._is_closed:
            return
        self._is_closed = True
        with self.link.changed:
            episodes, self.episodes = list(self.episodes.values()), {}
        for episode in episodes:
            if episode.id not in self.link.refused:
                self._send_part(episode, "cut")
            # Without a successor, the open step is no transition.
            self.link.release_credit(episode.num_unsent)
        self.link.close(timeout_s)

    def __enter__(self) -> PolicyClient:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    # --- recording ---

    def _check_open(self) -> None:
        if self._is_closed:
            raise LinkError("This PolicyClient is closed: create another one.")
        self.link.raise_if_failed()

    def _get_episode(self, episode_id: str) -> Episode:
        self._check_open()
        name = str(episode_id)
        if name in self.link.refused:
            with self.link.changed:
                if (episode := self.episodes.pop(name, None)) is not None:
                    self.link.release_credit(episode.num_unsent)
                self._single = None if self._single == name else self._single
            if self.local is not None:
                self.local.forget(name)
            raise LinkError(self.link.refused[name])
        if name not in self.episodes:
            raise LinkError(
                f"The episode {name!r} is not open: start_episode() starts one, and end_episode() "
                "ends it once."
            )
        return self.episodes[name]

    def _get_open_episodes(self) -> dict[str, list[Any]]:
        return {
            name: [episode.t_started, episode.training_enabled]
            for name, episode in self.episodes.items()
        }

    def _get_num_open(self) -> int:
        return sum(episode.num_open for episode in self.episodes.values())

    def _reserve_step(self, episode: Episode, obs: Arrays) -> None:
        """Wait until the run accepts another step, and count it; what is complete is sent before.

        Where this raises without waiting nothing has changed, so that the caller may repeat the call
        or end the episode by the open step.
        """
        if not episode.training_enabled:
            return
        with self.link.changed:
            if self.link.num_recorded >= self.link.max_steps:
                if self._block:
                    self._complete_step(episode, obs)
                for each in list(self.episodes.values()):
                    self._send_part(each, None)
            self.link.wait_for_credit(self._block)
            episode.is_reserved = True
            self.link.changed.notify_all()

    def _open_step(self, episode: Episode, step: Step) -> None:
        """Complete the former step, now that its successor was acted on, and open the next one."""
        with self.link.changed:
            self._complete_step(episode, step.obs)
            episode.open_step, episode.is_reserved = step, False
            is_full = len(episode.steps) >= int(self.link.welcome["part_length"])
            if is_full or self.link.num_waiting:
                self._send_part(episode, None)
            self.link.changed.notify_all()

    def _complete_step(self, episode: Episode, successor: Arrays) -> None:
        """Complete the open step, now that its successor is known."""
        with self.link.changed:
            step = episode.open_step
            if step is None:
                return
            if episode.steps and episode.steps[-1].source != step.source:
                self._send_part(episode, None)  # whose last successor is this step's observation
            episode.open_step = None
            episode.steps.append(step)
            episode.rewards.append(episode.reward)
            episode.last_reward, episode.reward = episode.reward, 0.0
            episode.successor = successor

    def _send_part(self, episode: Episode, end: str | None) -> None:
        with self.link.changed:
            if episode.steps:
                part, arrays = make_part(episode, end)
                head = {"num_recorded": self.link.num_recorded, "parts": [part]}
                self.link.send_numbered(head, arrays)
