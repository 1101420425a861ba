"""Local inference: the policy's program and weights from the run, computed by NumPy.

This file of jaxrl-link imports the standard library and NumPy alone, and is copied to simulators.
"""

from __future__ import annotations

import importlib
import json
import threading
import time
from typing import Any

import numpy as np

from .connection import Link
from .frames import Arrays, Head, Kind
from .spaces import SpaceLeaves

_REWARD = "state/reward"
"""Name of the part of a state that is the previous reward, for connectors that read it."""


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
        self._link, self._obs = link, obs
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
        if self._link.latest_version == self.version:
            return
        reply, arrays = self._link.request(Kind.GET_POLICY, {"has_program": True})
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
