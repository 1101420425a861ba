"""Checks of single values that need more than a comparison."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

from jaxrl.config.coerce import SIZES_IN_FLOAT32, leaves_float32
from jaxrl.config.fields import Check
from jaxrl.errors import did_you_mean


def _optimizer_problem(setting: Any) -> str | None:
    """None for an optimiser that can be made, else what is wrong, as the end of a sentence."""
    import optax  # pyright: ignore[reportMissingTypeStubs]

    from jaxrl.learners.learner import OPTIMIZERS

    if callable(setting):
        return None
    if isinstance(setting, str):
        setting = {"name": setting}
    arguments = dict(cast(Mapping[str, Any], setting))
    name = arguments.pop("name", None)
    if name not in OPTIMIZERS:
        return f" Known are {', '.join(OPTIMIZERS)}.{did_you_mean(name, OPTIMIZERS)}"
    known = [p for p in inspect.signature(vars(optax)[name]).parameters if p != "learning_rate"]
    for argument in arguments:
        if argument not in known:
            hint = did_you_mean(argument, known)
            return f" {name} has no argument '{argument}' (the learning rate is lr).{hint}"
        if leaves_float32(arguments[argument]):
            return f" {name}'s {argument} must be {SIZES_IN_FLOAT32}."
    return None


optimizer_check = Check(
    wants="the name of an optimiser, {'name': ..., arguments}, or a function",
    holds=lambda value: _optimizer_problem(value) is None,
    hint=lambda value: _optimizer_problem(value) or "",
)


def evaluation_arguments(function: Callable[..., Any]) -> int:
    """How many arguments a custom evaluation takes: 1 the Algorithm, 2 RLlib's eval_workers too.

    0 if it takes neither one nor two.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:
        return 1  # written in C, without a signature
    for number in (1, 2):
        try:
            signature.bind(*range(number))
        except TypeError:
            continue
        return number
    return 0


evaluation_check = Check(
    wants="a function of (algorithm) or of (algorithm, eval_workers)",
    holds=lambda value: value is None or evaluation_arguments(value) > 0,
)
