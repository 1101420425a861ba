"""The checker of `make test-shapes`: array annotations hold at run time, other annotations are pyright's.

`pytest --jaxtyping-packages=jaxrl,tests.shapes.check` imports jaxrl with every annotated function
checked: shapes, dtypes and equal axes of what is passed and returned, while programs are traced and
where arrays are handled outside of them.
"""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_args

from beartype import BeartypeConf, BeartypeStrategy, beartype
from jaxtyping import AbstractArray

_check = beartype(conf=BeartypeConf(strategy=BeartypeStrategy.O1))


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check the annotations of arrays alone."""
    if inspect.isclass(function) or function.__name__ == "__init__":
        return function  # leaves of a dataclass may be stacked, sharded or abstract
    annotations = function.__annotations__
    function.__annotations__ = {
        name: hint if _is_of_arrays(hint) else Any for name, hint in annotations.items()
    }
    return _check(function)


def _is_of_arrays(hint: Any) -> bool:
    """Whether the annotation is an array, or a union or tuple of arrays with plain types."""
    if inspect.isclass(hint) and issubclass(hint, AbstractArray):
        return True
    parts = [part for part in get_args(hint) if part not in (type(None), ...)]
    plain = [part for part in parts if not _is_of_arrays(part)]
    is_plain = all(inspect.isclass(part) and not isinstance(part, TypeVar) for part in plain)
    return bool(parts) and is_plain and len(plain) < len(parts)
