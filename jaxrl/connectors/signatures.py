"""Signatures of the functions that make connectors: those here, and RLlib's."""

import inspect
from collections.abc import Callable, Mapping, Sequence

from jaxrl.errors import ConfigError

Offers = Mapping[str, Callable[[], object]]
"""Functions that make the arguments of RLlib's signatures, by name; they are called on demand."""

_ENV_ARGUMENTS = ("env", "spaces", "device")
_ARGUMENTS: Mapping[str, Sequence[str]] = {
    "env_to_module_connector": _ENV_ARGUMENTS,
    "module_to_env_connector": _ENV_ARGUMENTS,
    "learner_connector": ("input_observation_space", "input_action_space", "device"),
}
"""Arguments that RLlib passes to the function of each setting, in order."""

_SYNONYMS: Mapping[str, Sequence[str]] = {
    "env": ("envs", "vector_env", "gym_env"),
    "spaces": (),
    "device": (),
    "input_observation_space": ("observation_space", "obs_space", "in_obs_space"),
    "input_action_space": ("action_space", "act_space", "in_action_space"),
}
"""Other names that users give to these arguments."""


def choose_arguments(
    setting: str, function: Callable[..., object], pipeline: object, offers: Offers
) -> tuple[list[object], dict[str, object]]:
    """Choose the arguments that a function for connectors is called with.

    A function whose parameters have RLlib's names, or that requires two or three, receives RLlib's
    arguments. One that can be called without arguments receives none, and one of a single parameter
    the pipeline.

    Args:
        setting: Name of the setting that the function is the value of.
        function: Function of the user.
        pipeline: Builder with the default connectors.
        offers: RLlib's arguments; those that are missing are None.

    Returns:
        Positional and keyword arguments.

    Raises:
        ConfigError: If the function has another signature.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # functions written in C may have no signature
        return [], {}
    parameters = [p for p in signature.parameters.values() if p.kind not in _VARIADIC]
    required = [p for p in parameters if p.default is inspect.Parameter.empty]
    names = _ARGUMENTS[setting]
    roles = {p.name: role for p in parameters if (role := _find_role(p.name, names)) is not None}

    def make(role: str) -> object:
        return offers[role]() if role in offers else None

    if roles and all(p.name in roles for p in required):
        given = {p.name: make(roles[p.name]) for p in parameters if p.name in roles}
        first = [given.pop(p.name) for p in parameters if p.kind is _POSITIONAL and p.name in roles]
        return first, given
    if len(required) in (2, 3) and all(p.kind in _CAN_BE_POSITIONAL for p in required):
        return [make(role) for role in names[: len(required)]], {}
    for arguments in ([], [pipeline]):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return arguments, {}
    raise ConfigError(
        f"{setting} must be a function of no arguments or of the default pipeline, or as in RLlib "
        f"of {', '.join(names)}, got one of {signature}."
    )


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_POSITIONAL = inspect.Parameter.POSITIONAL_ONLY
_CAN_BE_POSITIONAL = (_POSITIONAL, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _find_role(name: str, names: Sequence[str]) -> str | None:
    """Return RLlib's name of a parameter, None if it is not one of RLlib's."""
    plain = name.strip("_")
    return next((role for role in names if plain in (role, *_SYNONYMS[role])), None)
