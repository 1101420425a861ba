"""Neutral values of RLlib's settings: those that ask for nothing, or for what is done anyway.

RLlib's `to_dict()` and its `params.json` have every setting, most of them at a default that means
nothing outside of RLlib, such as `num_gpus=0` or `input="sampler"`.
"""

import dataclasses
import enum
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

ANY_VALUE = object()
"""Neutral value of a setting that RLlib itself does not read."""

_RLLIB_PACKAGE = "ray.rllib."
_REPR_PATTERN = re.compile(r"<(?:class '([\w.]+)'|function ([\w.<>]+) at 0x[0-9a-fA-F]+)>")


@dataclasses.dataclass(frozen=True)
class RllibObject:
    """Class, function or enum member of RLlib, as a pattern for values.

    Attributes:
        name: Qualified name within its module; `{algo}` stands for the name of the algorithm.
    """

    name: str


def get_rllib_name(value: object) -> str | None:
    """Return the qualified name of an object of RLlib, or None for any other value.

    Args:
        value: The object itself, its import path ("ray.rllib.callbacks.callbacks.RLlibCallback"),
            or the string that `params.json` has for it ("<class 'ray.rllib...'>").
    """
    if isinstance(value, enum.Enum):
        owner = type(value)
        name = f"{owner.__qualname__}.{value.name}"
        return name if owner.__module__.startswith(_RLLIB_PACKAGE) else None
    if isinstance(value, str):
        found = _REPR_PATTERN.fullmatch(value)
        if found is not None and found[2]:  # a function's repr does not have its module
            return found[2]
        path = found[1] if found is not None else value.replace(":", ".")
        is_member = re.fullmatch(r"[A-Z]\w+\.[A-Z_]+", path)  # an enum's member
        if is_member:
            return path
        return path.rpartition(".")[2] if path.startswith(_RLLIB_PACKAGE) else None
    module, name = (getattr(value, key, None) for key in ("__module__", "__qualname__"))
    is_rllibs = isinstance(module, str) and module.startswith(_RLLIB_PACKAGE)
    return name if is_rllibs and isinstance(name, str) else None


def is_neutral(value: object, neutral_values: Iterable[object], algo: str = "") -> bool:
    """Return whether a value equals one of the neutral ones.

    Lists, tuples and sets are compared by their items, and numbers by value, but 0 is not False.

    Args:
        value: Value as written by the user.
        neutral_values: Plain values, which may contain `RllibObject`s, or `ANY_VALUE`.
        algo: Name of the algorithm.
    """
    return any(_matches(value, neutral, algo) for neutral in neutral_values)


def _matches(value: object, neutral: object, algo: str) -> bool:
    if neutral is ANY_VALUE:
        return True
    if isinstance(neutral, RllibObject):
        return get_rllib_name(value) == neutral.name.replace("{algo}", algo)
    if isinstance(neutral, Mapping):
        expected = cast(Mapping[str, Any], neutral)
        return (
            isinstance(value, Mapping)
            and cast(Mapping[str, object], value).keys() == expected.keys()
            and all(
                _matches(cast(Mapping[str, object], value)[key], expected[key], algo)
                for key in expected
            )
        )
    if isinstance(neutral, list | tuple):
        items = _get_items(value)
        return (
            items is not None
            and len(items) == len(cast(list[Any], neutral))
            and all(map(_matches, items, cast(list[Any], neutral), [algo] * len(items)))
        )
    if isinstance(neutral, bool) or isinstance(value, bool):
        return value is neutral
    if isinstance(neutral, int | float) and isinstance(value, int | float):
        return value == neutral
    if isinstance(neutral, str):
        return isinstance(value, str) and value == neutral  # also a member of a StrEnum
    return type(value) is type(neutral) and value == neutral


def _get_items(value: object) -> list[Any] | None:
    if isinstance(value, list | tuple | set | frozenset):
        return list(cast(list[Any], value))
    return None
