"""Checkpoints as backends: the programs of `jaxrl.Policy`, in batches."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import gymnasium
import jax
import numpy as np
from gymnasium import spaces

from jaxrl.algorithm import Algorithm
from jaxrl.config.imports import TrustSpec
from jaxrl.config.settings.run import WITHOUT_CALLBACKS
from jaxrl.core.types import PyTree
from jaxrl.errors import CheckpointError
from jaxrl.export.artifact import describe_space
from jaxrl.metrics import DEFAULT_MODULE
from jaxrl.policy.inference import ActionRequest, Inference
from jaxrl.policy.policy import Policy
from jaxrl.runs.checkpoint import find_checkpoint, read_metadata
from jaxrl.serve.backend import Backend, Batch, State, Value


class JaxBackend(Backend):
    """Policy of a run, with its compiled programs.

    Args:
        policy: Policy whose parameters act.
        version: Name of the weights.
        config: Saved config; policies with the same one share their programs.
        max_batch: Largest number of rows; programs exist for powers of two up to it.
    """

    def __init__(
        self, policy: Policy, version: str, config: Mapping[str, object], max_batch: int
    ) -> None:
        self._policy, self._config, self._max_batch = policy, config, max_batch
        self._inference: Inference = policy.inference
        leaves, self._treedef = jax.tree.flatten(policy.initial_state())
        spaces = (
            describe_space(self._inference.observation_space, "obs", self._inference.ignored_parts),
            describe_space(self._inference.action_space, "action"),
        )
        reads = self._inference.get_read_inputs()
        super().__init__(version, spaces, reads, [np.asarray(leaf) for leaf in leaves])

    def conform(self, observation: Value) -> Value:
        return self._inference.conform(observation)

    def conform_action(self, action: Value) -> Value:
        return self._inference.conform_action(action)

    def act(self, batch: Batch) -> tuple[Value, State]:
        num = len(batch.observations)
        padding = get_padded_size(num, self._max_batch) - num
        state = [_pad(leaf, padding) for leaf in batch.state]
        reward = batch.prev_reward if "prev_reward" in self.reads else None
        actions = batch.prev_action
        request = ActionRequest(
            observations=[*batch.observations, *[batch.observations[-1]] * padding],
            state=jax.tree.unflatten(self._treedef, state) if state else None,
            is_first=_pad(batch.is_first, padding) if state else None,
            is_conformed=True,
            prev_action=None if actions is None else [*actions, *[actions[-1]] * padding],
            prev_reward=None if reward is None else _pad(reward, padding).tolist(),
            explore=batch.explore,
            should_return_state=True,
        )
        actions, after, _ = self._policy.compute(request)
        return jax.tree.map(lambda leaf: leaf[:num], actions), [
            leaf[:num] for leaf in jax.tree.leaves(after)
        ]

    def warm_up(self, explore: Sequence[bool]) -> None:
        """Compile the programs of all sizes, so that no request waits for one."""
        sample = self.conform(self._sample_observation())
        for size in (2**i for i in range(self._max_batch.bit_length())):
            for flag in explore:
                self.act(
                    Batch(
                        observations=[sample] * size,
                        state=[np.repeat(leaf[None], size, axis=0) for leaf in self._initial],
                        is_first=np.ones(size, np.bool_),
                        explore=flag,
                        prev_reward=np.zeros(size, np.float32),
                    )
                )

    def _sample_observation(self) -> Value:
        """Return an observation whose mask, if it has one, allows all actions."""
        space = self._inference.observation_space

        def fill(leaf: gymnasium.Space[Any]) -> object:
            if isinstance(leaf, spaces.Box):
                return np.clip(np.ones(leaf.shape, leaf.dtype), leaf.low, leaf.high)
            return leaf.sample()

        return _map_space(space, fill)

    def replace_policy(
        self, policy: Policy, version: str, config: Mapping[str, object]
    ) -> "JaxBackend":
        """Return a backend of other weights, which shares the programs if the config is the same."""
        if config == self._config:
            policy = policy.with_inference(self._inference)
        return JaxBackend(policy, version, config, self._max_batch)


def load_backend(
    path: str | os.PathLike[str],
    replaced: Backend | None = None,
    *,
    max_batch: int,
    policy_id: str | None = None,
    planner: Mapping[str, Any] | None = None,
    trust: TrustSpec = None,
) -> JaxBackend:
    """Load the policy of a checkpoint and compile it.

    Args:
        path: Checkpoint, or a run, whose newest checkpoint is used.
        replaced: Backend that the policy replaces, with which it must have the spaces in common.
        max_batch: Largest number of rows.
        policy_id: Module of a run of several agents.
        planner: Search by which the policy acts; see `Algorithm.get_policy`.
        trust: Packages that the checkpoint may import; see `Algorithm.from_checkpoint`.

    Raises:
        CheckpointError: If the checkpoint cannot be used, or has other spaces.
    """
    found = find_checkpoint(path)
    config = cast("Mapping[str, object]", read_metadata(found)["config"])
    with Algorithm.from_checkpoint(found, trust=trust, **WITHOUT_CALLBACKS) as algorithm:
        chosen = policy_id or DEFAULT_MODULE
        policy = algorithm.get_policy(chosen, explore=False, planner=planner)
        algorithm.get_module(chosen)  # raises for an unknown id
    if isinstance(replaced, JaxBackend):
        backend = replaced.replace_policy(policy, found.name, config)
    else:
        backend = JaxBackend(policy, found.name, config, max_batch)
    if replaced is not None and backend.spaces != replaced.spaces:
        raise CheckpointError(
            f"{found} has other spaces than the policy that is served: {backend.spaces} instead of "
            f"{replaced.spaces}."
        )
    backend.warm_up((False, True))
    return backend


def get_padded_size(num: int, max_batch: int) -> int:
    """Return the number of rows that a batch is padded to: a power of two, or the largest batch."""
    return min(1 << (num - 1).bit_length(), max_batch)


def _pad(leaf: np.ndarray, padding: int) -> np.ndarray:
    return np.concatenate([leaf, np.repeat(leaf[-1:], padding, axis=0)]) if padding else leaf


def _map_space(
    space: gymnasium.Space[Any], function: Callable[[gymnasium.Space[Any]], object]
) -> PyTree:
    if isinstance(space, spaces.Dict):
        return {name: _map_space(part, function) for name, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_map_space(part, function) for part in space.spaces)
    return function(space)
