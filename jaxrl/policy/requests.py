"""Requests for actions and their results, as used by `compute_actions` and `Policy`."""

import dataclasses
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, cast

import jax
import numpy as np

from jaxrl.core.types import PyTree
from jaxrl.errors import ConfigError, did_you_mean

IGNORED_INPUTS = ("info", "timestep", "episode", "episodes")
"""Arguments of RLlib's methods that nothing reads, as in most of RLlib's policies."""
OPTIONS = (
    *("clip_action", "explore", "full_fetch", "input_dict", "policy_id", "prev_action"),
    *("prev_reward", "state", "unsquash_action"),
)
"""Other arguments of these methods, for suggestions."""

ActionResult = tuple[PyTree, PyTree, dict[str, Any]]
"""Environment actions, module state after them, and module outputs.

The last two are None and empty, respectively, unless requested.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActionRequest:
    """Request for the actions of one or more environments.

    Args:
        observations: Observations, unbatched.
        state: State returned for the previous observations, batched; None at episode starts.
        is_first: Whether each observation starts an episode, so that its state is not read; None
            if all do or, with a state, if none does.
        is_conformed: Whether the observations were returned by `Inference.conform`.
        prev_action: Environment actions of the previous step; None for those of `state`.
        prev_reward: Rewards of the previous step.
        explore: Whether to sample actions; False takes the mode of the distribution.
        unsquash: Whether to unsquash actions, see `adjust_pipeline`.
        clip: Whether to clip actions, see `adjust_pipeline`.
        should_return_state: Whether to return the state.
        should_return_outputs: Whether to return the module's outputs.
    """

    observations: list[Any]
    state: PyTree = None
    is_first: np.ndarray | None = None
    is_conformed: bool = False
    prev_action: Sequence[Any] | None = None
    prev_reward: Sequence[Any] | None = None
    explore: bool | None = None
    unsquash: bool | None = None
    clip: bool | None = None
    should_return_state: bool = False
    should_return_outputs: bool = False

    @staticmethod
    def from_single(
        obs: object, state: PyTree, past: Mapping[str, Any], **options: Any
    ) -> "ActionRequest":
        """Return the request for one observation.

        Args:
            obs: Observation.
            state: State returned for the previous observation, unbatched.
            past: Previous action and reward, unbatched.
            **options: Other fields of the request.
        """
        past = {name: None if value is None else [value] for name, value in past.items()}
        batch = None if state is None else stack_trees([state])
        return ActionRequest(observations=[obs], state=batch, **past, **options)

    @staticmethod
    def from_batch(
        observations: Sequence[Any] | Mapping[Any, Any],
        state: PyTree,
        past: Mapping[str, Any],
        **options: Any,
    ) -> "ActionRequest":
        """Return the request for several observations.

        Args:
            observations: Sequence of observations, or a mapping by name.
            state: State returned for the previous observations, by name if the observations are,
                else batched.
            past: Previous actions and rewards, likewise.
            **options: Other fields of the request.
        """
        if not isinstance(observations, Mapping):
            if not isinstance(observations, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigError(
                    "compute_actions needs a sequence of observations, or a mapping from names to "
                    f"them, got {observations!r}."
                )
            return ActionRequest(observations=list(observations), state=state, **past, **options)
        names = list(observations)
        for argument, value in {"state": state, **past}.items():
            _check_names(argument, value, names)
        batch = None if state is None else stack_trees([state[name] for name in names])
        past = {
            argument: None if value is None else [value[name] for name in names]
            for argument, value in past.items()
        }
        rows = [observations[name] for name in names]
        return ActionRequest(observations=rows, state=batch, **past, **options)


def _check_names(argument: str, value: object, names: Sequence[Hashable]) -> None:
    """Raise ConfigError unless a value by name, if there is one, has all names of observations."""
    if value is None:
        return
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"compute_actions got observations by name ({', '.join(map(repr, names))}), and "
            f"{argument} of type {type(value).__name__}: give {argument} by the same names."
        )
    given = cast("Mapping[object, object]", value)
    missing = next((name for name in names if name not in given), None)
    if missing is not None:
        raise ConfigError(
            f"compute_actions got an observation of {missing!r}, for which {argument} has nothing: give "
            f"it one, or leave {argument} out where all episodes begin."
        )


def check_inputs(method: str, inputs: Mapping[str, Any], read_inputs: Collection[str] = ()) -> None:
    """Raise if an input of RLlib's has a value but no connector reads it.

    Args:
        method: Name of the called method, for the error message.
        inputs: Inputs by name.
        read_inputs: Names of the inputs that a connector of this run reads.

    Raises:
        ConfigError: If an unread input is not None.
    """
    for name, value in inputs.items():
        if value is not None and name not in read_inputs:
            raise ConfigError(
                f"{method}({name}={value!r}) has no effect here: a module reads the observation "
                f"and its state; leave {name} out."
            )


def check_names(method: str, ignored: Collection[str]) -> None:
    """Raise ConfigError if one of the names is no argument that RLlib's methods ignore, too."""
    for name in ignored:
        if name not in IGNORED_INPUTS:
            hint = did_you_mean(name, (*IGNORED_INPUTS, *OPTIONS))
            raise ConfigError(f"{method}() has no argument '{name}'.{hint}")


_INPUTS = {
    "prev_action": ("prev_actions", "prev_action"),
    "prev_reward": ("prev_rewards", "prev_reward"),
    "state": ("state_in", "state"),
}
"""Names of inputs in the dictionaries that RLlib's methods take."""


def read_input_dict(
    method: str, obs: object, inputs: Mapping[str, Any], input_dict: Mapping[str, Any] | None
) -> tuple[Any, dict[str, Any]]:
    """Return an observation and other inputs, those of RLlib's `input_dict` where none is given.

    Args:
        method: Name of the called method, for the error message.
        obs: Observation; None for that of the dictionary.
        inputs: `state`, `prev_action` and `prev_reward`.
        input_dict: Dictionary with "obs" and, by RLlib's names of columns, the other inputs.

    Raises:
        ConfigError: If there is no observation.
    """
    given = {} if input_dict is None else input_dict
    obs = given.get("obs") if obs is None else obs
    if obs is None:
        raise ConfigError(f"{method}() needs an observation, or an input_dict with 'obs'.")
    filled = dict(inputs)
    for name, columns in _INPUTS.items():
        if filled.get(name) is None:
            filled[name] = next((given[column] for column in columns if column in given), None)
    return obs, filled


def stack_trees(trees: Sequence[PyTree]) -> PyTree:
    """Stack trees of the same structure along a new leading axis."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def take_row(batch: PyTree, index: int) -> PyTree:
    """Return one entry of a batch."""
    return map_tree(lambda leaf: leaf[index], batch)


def map_tree(fn: Callable[[Any], Any], tree: PyTree) -> PyTree:
    """Map a tree like `jax.tree.map`, but in a tenth of the time if it is a single array."""
    return fn(tree) if isinstance(tree, np.ndarray | jax.Array) else jax.tree.map(fn, tree)


def split_by_name(result: ActionResult, names: Sequence[Hashable] | None) -> PyTree:
    """Convert each part of a result to a dictionary of its rows; return it as is without names."""
    if names is None:
        return result
    return tuple({name: take_row(part, i) for i, name in enumerate(names)} for part in result)
