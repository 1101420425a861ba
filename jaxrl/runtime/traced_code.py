"""Code that programs are traced from, as it is in this process."""

import re
import sys
from types import FunctionType
from typing import cast

_TRACED = re.compile(
    r"jaxrl\.(algorithms|assembly|buffers|config|connectors|core|distributions|envs|learners|modules"
    r"|ops|training)\b"
)
"""Modules that programs are traced from."""


def snapshot_code() -> tuple[object, ...]:
    """Return the functions and constants that programs are traced from, as they are now.

    A script may replace some, e.g. assign another loss to a Learner class; then programs that were
    traced before are not shared. The values themselves are part of the key, as an address may be
    used again.
    """
    # Copies, since another thread may import meanwhile.
    modules = {name: x for name, x in list(sys.modules.items()) if _TRACED.match(name)}
    found: list[object] = []
    for name in sorted(modules):
        found += [x for key, x in list(vars(modules[name]).items()) if key != "__builtins__"]
    # Each class and each table once.
    for own in {id(x): x for x in found if isinstance(x, type)}.values():
        found += vars(own).values() if own.__module__ in modules else ()
    for table in {id(x): x for x in found if isinstance(x, dict)}.values():
        found += cast(dict[object, object], table).values()
    return tuple(value for value in found if isinstance(value, _CODE))


_CODE = (FunctionType, type, staticmethod, classmethod, property, int, float, str)
