"""Parameters and constructor arguments of environments: declaration and setting by name."""

import dataclasses
import inspect
from collections.abc import Container, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from jaxrl.core.types import PyTree
from jaxrl.errors import EnvError, UnknownNameError, did_you_mean


def check_required(
    env_id: str, parameters: Iterable[inspect.Parameter], given: Container[str | None]
) -> None:
    """Raise if a constructor parameter without a default is missing.

    Raises:
        EnvError: If an argument is missing.
    """
    missing = [p.name for p in parameters if p.default is p.empty and p.name not in given]
    if missing:
        raise EnvError(
            f"{env_id} needs {', '.join(missing)}: set it in env_config, or use a creator."
        )


def check_count(name: str, value: object, at_least: int = 1) -> int:
    """Return a number of things that a constructor was given.

    Raises:
        EnvError: If it is not an integer of at least `at_least`.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise EnvError(f"{name}={value!r} must be an integer of at least {at_least}.")
    return value


def check_bool(name: str, value: object) -> bool:
    """Return a choice between two that a constructor was given.

    Raises:
        EnvError: If it is not a bool.
    """
    if not isinstance(value, bool):
        raise EnvError(f"{name}={value!r} must be True or False.")
    return value


def scalar(default: float, dtype: type[np.number[Any] | np.bool_] = np.float32) -> Any:
    """Declare a field of a params pytree that holds a single number.

    The default is a NumPy array, so that making an environment does not start JAX's backend.
    """
    return dataclasses.field(default_factory=lambda: np.asarray(default, dtype))


def param_names(params: PyTree) -> list[str]:
    """Return the names that `override_params` accepts: dataclass fields or dictionary keys."""
    if dataclasses.is_dataclass(params):
        return [field.name for field in dataclasses.fields(params)]
    return list(params) if isinstance(params, dict) else []


def override_params(
    env_name: str,
    params: PyTree,
    values: Mapping[str, Any],
    arguments: Iterable[str] = (),
    given_in: str = "env_config",
) -> PyTree:
    """Return the params with some fields replaced, each cast to its previous shape and dtype.

    Args:
        env_name: Name of the environment for errors.
        params: Dataclass or dictionary.
        values: New values by field name.
        arguments: Names that are valid elsewhere (constructor arguments), for the did-you-mean
            hint.
        given_in: Setting that holds the values, for errors.

    Raises:
        UnknownNameError: If no field has the name.
        EnvError: If a value does not fit the shape or dtype of the field's default.
    """
    names = param_names(params)
    for key in values:
        if key not in names:
            known = [*names, *arguments]
            if key == "max_episode_steps":
                raise UnknownNameError(
                    f"{env_name} has no parameter 'max_episode_steps' (given in {given_in}): it is "
                    f"a setting, environment(max_episode_steps={values[key]!r})."
                )
            raise UnknownNameError(
                f"{env_name} has no parameter {key!r} (given in {given_in})."
                f"{did_you_mean(key, known)} Known: {', '.join(known) or 'none'}."
            )
    changes = {key: _cast(env_name, key, get_param(params, key), values[key]) for key in values}
    if not changes:  # includes params without names, such as None
        return params
    if isinstance(params, dict):
        return {**params, **changes}
    return dataclasses.replace(params, **changes)


def cast_params(env_name: str, params: PyTree, new: PyTree) -> PyTree:
    """Return new values for the params, each leaf cast to its previous shape and dtype.

    Raises:
        EnvError: If the structure differs, or a leaf does not fit.
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(params)
    leaves, new_structure = jax.tree.flatten(new)
    if new_structure != structure:
        raise EnvError(
            f"{env_name}'s parameters must have the structure {structure}, got "
            f"{new_structure}; start from env_params and replace some of its fields."
        )
    cast = [
        _cast_leaf(env_name, jax.tree_util.keystr(path, simple=True, separator="."), old, leaf)
        for (path, old), leaf in zip(paths, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, cast)


def get_param(params: PyTree, name: str) -> PyTree:
    """Return the value of one field."""
    return params[name] if isinstance(params, dict) else vars(params)[name]


def _cast(env_name: str, name: str, default: PyTree, value: PyTree) -> PyTree:
    leaves, structure = jax.tree.flatten(default)
    if jax.tree.structure(value) == structure and len(leaves) != 1:
        given = jax.tree.leaves(value)
        cast = [_cast_leaf(env_name, name, *pair) for pair in zip(leaves, given, strict=True)]
        return jax.tree.unflatten(structure, cast)
    if len(leaves) != 1:
        raise EnvError(f"{env_name}'s parameter {name!r} must have the structure {structure}.")
    return jax.tree.unflatten(structure, [_cast_leaf(env_name, name, leaves[0], value)])


def _cast_leaf(env_name: str, name: str, default: object, value: object) -> object:
    """Cast a value to the default's shape and dtype; raise if that loses information."""
    expected = np.asarray(default)
    dtype = jax.dtypes.canonicalize_dtype(expected.dtype)
    try:
        given = np.asarray(value)
        cast = given.astype(dtype)
        fits = given.shape == expected.shape and (
            given.dtype.kind in "biuf"
            and (dtype.kind == "f" or bool(np.all(cast == given)))
            and (given.dtype.kind == "b") == (dtype.kind == "b")
        )
    except (TypeError, ValueError):
        fits, cast = False, None
    if not fits:
        raise EnvError(
            f"{env_name}'s parameter {name!r} must be {dtype} of shape {expected.shape} "
            f"(default {expected.tolist()!r}), got {value!r}."
        )
    return cast
