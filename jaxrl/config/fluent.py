"""Typed group methods, derived from the groups."""

from collections.abc import Callable
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, overload

P = ParamSpec("P")


class Configurable(Protocol):
    """What a fluent method needs of its config."""

    def set_group(
        self, attribute: str, args: tuple[Any, ...], kwargs: dict[str, Any], /
    ) -> None: ...


C = TypeVar("C", bound=Configurable)


class fluent(Generic[P]):  # noqa: N801  (reads as a decorator would)
    """`training = fluent("training_settings", Training)` is the method `.training(**settings)`.

    It changes the settings that were given and returns the config. The type checker sees the
    group's own names and types, old names are understood at run time only.
    """

    def __init__(self, attribute: str, group: Callable[P, object]) -> None:
        self.attribute = attribute
        self.group = group
        self.__doc__ = group.__doc__

    @overload
    def __get__(self, instance: None, owner: type, /) -> "fluent[P]": ...
    @overload
    def __get__(self, instance: C, owner: type[C], /) -> Callable[P, C]: ...
    def __get__(self, instance: Any, owner: type, /) -> Any:
        if instance is None:
            return self

        def set_settings(*args: P.args, **kwargs: P.kwargs) -> Any:
            instance.set_group(self.attribute, args, kwargs)
            return instance

        set_settings.__doc__ = self.__doc__
        return set_settings
