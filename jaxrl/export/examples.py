"""Examples of an exported policy: observations with the outputs of the original."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium import spaces

from jaxrl.connectors.observations import SeparateMask
from jaxrl.core.keys import make_key
from jaxrl.core.spaces import SpacePath, get_at_path, get_leaf_spaces
from jaxrl.core.types import Columns, PyTree
from jaxrl.export.numpy_program import GREEDY, SAMPLE
from jaxrl.export.trace import make_capture, name_leaves
from jaxrl.policy.inference import ActionRequest, Inference, make_row_keys
from jaxrl.training.rollout import ActorState

_LARGEST_SCALE = 4.0
"""Power of ten up to which values of an unbounded space are tried."""


def sample_observations(
    space: gymnasium.Space[Any], rng: np.random.Generator, num: int, mask_key: str | None
) -> list[PyTree]:
    """Return observations: bounds, zeros, values of several scales, masks of few actions.

    Args:
        space: Observation space.
        rng: Generator of the random ones.
        num: Number of observations.
        mask_key: Name of the part that is an action mask; None if there is none.
    """
    return [_sample(space, rng, index, (), mask_key) for index in range(num)]


def _sample(
    space: Any, rng: np.random.Generator, index: int, path: SpacePath, mask_key: str | None
) -> PyTree:
    if isinstance(space, spaces.Dict):
        return {
            name: _sample(part, rng, index, (*path, name), mask_key)
            for name, part in space.spaces.items()
        }
    if isinstance(space, spaces.Tuple):
        parts = enumerate(space.spaces)
        return tuple(_sample(part, rng, index, (*path, i), mask_key) for i, part in parts)
    if mask_key is not None and path == (mask_key,):
        return _sample_mask(space, rng, index)
    if isinstance(space, spaces.Box):
        return _sample_box(space, rng, index)
    if isinstance(space, spaces.Discrete):
        return int(space.start) + int(rng.integers(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return space.start + rng.integers(space.nvec)
    return rng.integers(0, 2, space.shape).astype(np.int8)


def _sample_mask(
    space: spaces.Box | spaces.MultiBinary, rng: np.random.Generator, index: int
) -> np.ndarray:
    """Return a mask: every action, one action, or random ones."""
    mask = np.zeros(space.shape, space.dtype)
    if index % 3 == 0:
        mask[...] = 1
    elif index % 3 == 1:
        mask.flat[int(rng.integers(mask.size))] = 1
    else:
        mask[...] = rng.integers(0, 2, space.shape)
        mask.flat[0] = 1
    return mask


def _sample_box(space: spaces.Box, rng: np.random.Generator, index: int) -> np.ndarray:
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    if index % 8 in (1, 2):  # the bounds where there are some
        bound = low if index % 8 == 1 else high
        value = np.where(np.isfinite(bound), bound, 0.0)
    elif index % 8 == 3:
        value = np.clip(np.zeros(space.shape), low, high)
    else:
        scale = 10.0 ** rng.uniform(-2.0, _LARGEST_SCALE)
        value = np.clip(rng.normal(size=space.shape) * scale, low, high)
        is_bounded = np.isfinite(low) & np.isfinite(high) & (high - low < 1e6)
        width = np.where(is_bounded, high - low, 0.0)
        inside = np.where(is_bounded, low, 0.0) + rng.random(space.shape) * width
        value = np.where(is_bounded, inside, value)
    return value.astype(space.dtype)


def find_mask_key(inference: Inference) -> str | None:
    """Return the name of the observation's part that is an action mask; None if there is none."""
    found = (c.key for c in inference.policy_step.obs_pipeline if isinstance(c, SeparateMask))
    return next(found, None)


def record_examples(
    inference: Inference,
    actor: ActorState,
    modes: Sequence[bool],
    *,
    num_steps: int,
    num_rows: int = 4,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Record what the original answers to observations, step by step, `[num_steps, num_rows]`.

    In the middle of the steps every row starts another episode.

    Args:
        inference: Forward passes of the run, whose spaces and functions are used.
        actor: Parameters and connector statistics.
        modes: Whether to explore, for each recording.
        num_steps: Number of steps of each.
        num_rows: Number of observations per step.
        seed: Seed of the observations and of sampled actions.
    """
    rng = np.random.default_rng(seed)
    space, policy_step = inference.observation_space, inference.policy_step
    flat = sample_observations(space, rng, num_steps * num_rows, find_mask_key(inference))
    rows = [flat[i : i + num_rows] for i in range(0, len(flat), num_rows)]
    actions = _sample_actions(policy_step.action_pipeline.space, rng, num_steps * num_rows)
    past = _Past(rng.normal(size=(num_steps, num_rows)).astype(np.float32), actions, inference)
    own = Inference(policy_step)
    capture, key = make_capture(policy_step.module.draw), make_key(seed)
    recorded: list[tuple[str, Any]] = []
    for explore in modes:
        state = None
        for step, observations in enumerate(rows):
            state = None if step in (0, num_steps // 2) else state
            request = ActionRequest(
                observations=observations,
                state=state,
                explore=explore,
                should_return_state=True,
                should_return_outputs=True,
                **past.get(step, is_first=state is None),
            )
            result = own(lambda: actor, request, key, step)
            state = result[1]
            keys = make_row_keys(key, np.uint32(step), num_rows)
            draws = capture(keys)
            recorded.extend(_name_results(SAMPLE if explore else GREEDY, result, draws))
    stacked = _stack(recorded)
    return {**_stack(_name_inputs(space, rows, past, num_steps)), **stacked}


class _Past:
    """Previous rewards and actions of the steps, as far as a connector reads them.

    Args:
        rewards: Rewards, `[num_steps, num_rows]`.
        actions: Environment actions of all steps.
        inference: Forward passes of the run.
    """

    def __init__(self, rewards: np.ndarray, actions: list[Any], inference: Inference) -> None:
        self._rewards, self._reads = rewards, inference.get_read_inputs()
        num_steps, num_rows = rewards.shape
        self._actions = [actions[i * num_rows : (i + 1) * num_rows] for i in range(num_steps)]
        self._space = inference.policy_step.action_pipeline.space
        self._can_change = inference.can_read_prev_action()

    def get(self, step: int, *, is_first: bool) -> dict[str, Any]:
        """Return the inputs of a step; every other one says what action was executed."""
        if is_first:
            return {}
        rewards = {"prev_reward": self._rewards[step]} if "prev_reward" in self._reads else {}
        has_action = self._can_change and step % 2 == 1
        return {**rewards, **({"prev_action": self._actions[step]} if has_action else {})}

    def name(self, step: int) -> Iterator[tuple[str, Any]]:
        """Iterate over the inputs of a step with their names."""
        if "prev_reward" in self._reads:
            yield "prev_reward", self._rewards[step]
        if self._can_change:
            yield "has_prev_action", np.asarray(step % 2 == 1)
            yield from _name_rows("prev_action", self._space, self._actions[step])


def _sample_actions(
    space: gymnasium.Space[Any], rng: np.random.Generator, num: int
) -> list[PyTree]:
    return [_sample(space, rng, 4 + 8 * index, (), None) for index in range(num)]


def _name_rows(
    prefix: str, space: gymnasium.Space[Any], rows: Sequence[PyTree]
) -> list[tuple[str, np.ndarray]]:
    named: list[tuple[str, np.ndarray]] = []
    for path, _ in get_leaf_spaces(space):
        values = [get_at_path(row, path) for row in rows]
        named.append(("/".join([prefix, *map(str, path)]), np.stack(list(map(np.asarray, values)))))
    return named


def _name_inputs(
    space: gymnasium.Space[Any], rows: Sequence[Sequence[PyTree]], past: _Past, num_steps: int
) -> list[tuple[str, Any]]:
    named: list[tuple[str, Any]] = []
    for step, observations in enumerate(rows):
        named.extend(_name_rows("obs", space, observations))
        named.extend(past.name(step))
        named.append(("is_first", np.full(len(observations), step in (0, num_steps // 2))))
    return named


def _name_results(
    mode: str, result: tuple[PyTree, ...], draws: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, Any]]:
    actions, state, out = result
    named = itertools.chain(
        name_leaves("actions", actions),
        name_leaves("module_actions", out[Columns.ACTIONS]),
        [("log_prob", out[Columns.ACTION_LOGP]), ("dist_inputs", out[Columns.ACTION_DIST_INPUTS])],
        draws.items(),
    )
    for name, array in named:
        yield f"{mode}/{name}", array
    for number, leaf in enumerate(jax.tree.leaves(state)):
        yield f"{mode}/state/{number}", leaf


def _stack(named: Sequence[tuple[str, Any]]) -> dict[str, np.ndarray]:
    found: dict[str, list[np.ndarray]] = {}
    for name, array in named:
        found.setdefault(name, []).append(np.asarray(array))
    return {name: np.stack(arrays) for name, arrays in found.items()}
