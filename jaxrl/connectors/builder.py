"""A pipeline while it is put together: the default connectors, and the user's own among them."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Self, TypeVar

from jaxrl.connectors.base import Connector
from jaxrl.connectors.pipelines import names, position
from jaxrl.errors import ConfigError

C = TypeVar("C", bound=Connector)


class PipelineBuilder(Generic[C]):
    """Connectors in the order in which they will run, edited in place.

    A function given as `env_to_module_connector`, `module_to_env_connector` or
    `learner_connector` may take one: it holds the default connectors. Every edit returns the
    builder, so they chain. Connectors are found by name or class. They are fitted to their spaces
    once the order is final; one that has nothing to do at its place is left out.

    Args:
        kind: The class of the connectors.
        connectors: Those that it starts with.

    Raises:
        ConfigError: Something given is no connector of this kind.
        UnknownNameError: A connector that an edit names is not there, or is there twice.
    """

    def __init__(self, kind: type[C], connectors: Sequence[C] = ()) -> None:
        self._kind = kind
        self._connectors: list[C] = []
        self.num_edits = 0
        for connector in connectors:
            self._connectors.append(self._checked(connector))

    def prepend(self, connector: C) -> Self:
        """Put the connector first."""
        return self._insert(0, connector)

    def append(self, connector: C) -> Self:
        """Put the connector last."""
        return self._insert(len(self._connectors), connector)

    def insert_before(self, name_or_class: str | type[Any], connector: C) -> Self:
        """Put the connector right before the named one."""
        return self._insert(position(self._connectors, name_or_class), connector)

    def insert_after(self, name_or_class: str | type[Any], connector: C) -> Self:
        """Put the connector right after the named one."""
        return self._insert(position(self._connectors, name_or_class) + 1, connector)

    def remove(self, name_or_class: str | type[Any]) -> Self:
        """Take the named connector out."""
        del self._connectors[position(self._connectors, name_or_class)]
        self.num_edits += 1
        return self

    def __len__(self) -> int:
        """How many connectors there are."""
        return len(self._connectors)

    def __iter__(self) -> Iterator[C]:
        """The connectors in their order."""
        return iter(self._connectors)

    def __getitem__(self, name_or_class: str | type[Any]) -> C:
        """The named connector."""
        return self._connectors[position(self._connectors, name_or_class)]

    @property
    def names(self) -> tuple[str, ...]:
        """The connectors' names in their order."""
        return names(self._connectors)

    def _insert(self, place: int, connector: C) -> Self:
        self._connectors.insert(place, self._checked(connector))
        self.num_edits += 1
        return self

    def _checked(self, connector: Any) -> C:
        if isinstance(connector, self._kind):
            return connector
        got = type(connector).__name__
        if isinstance(connector, type):
            got = f"the class {connector.__name__} (make one with {connector.__name__}(...))"
        raise ConfigError(f"expected {self._kind.__name__}s, got {got}.")


def with_users(
    setting: str,
    function: Callable[..., Any] | None,
    builder: PipelineBuilder[C],
    *,
    first: bool,
) -> tuple[C, ...]:
    """The default connectors and the user's, in their order.

    Args:
        setting: For messages.
        function: Of nothing, returning a connector or several; or of the builder, which it edits
            (and may return), or beside which it returns connectors.
        builder: Holding the default connectors.
        first: Whether connectors that are returned come before the default ones, or after them.

    Raises:
        ConfigError: The function cannot be called so, raises, or returns something else.
    """
    if function is None:
        return tuple(builder)
    arguments = (builder,) if _takes_pipeline(setting, function) else ()
    try:
        returned = function(*arguments)
        _place(returned, builder, taken=bool(arguments), first=first)
    except ConfigError as error:
        raise ConfigError(f"{setting}: {error}") from error
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise ConfigError(f"{setting} raised {type(error).__name__}: {reason}") from error
    return tuple(builder)


def _place(returned: Any, builder: PipelineBuilder[Any], *, taken: bool, first: bool) -> None:
    if returned is builder:
        return
    if returned is None:
        if taken and builder.num_edits:
            return
        raise ConfigError(
            "the function returned None; let it return connectors, or edit the pipeline that it "
            "takes as its argument."
        )
    if builder.num_edits:
        raise ConfigError(
            "the function edited the pipeline and returned something else; let it return the "
            "pipeline, or connectors alone."
        )
    items = list(returned) if isinstance(returned, list | tuple) else [returned]
    for connector in reversed(items) if first else items:
        if first:
            builder.prepend(connector)
        else:
            builder.append(connector)


def _takes_pipeline(setting: str, function: Callable[..., Any]) -> bool:
    """Whether the function wants the pipeline as its one argument."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function written in C does not tell
        return False
    for arguments in ((), (None,)):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return bool(arguments)
    raise ConfigError(
        f"{setting} must be a function of nothing or of the default pipeline, got one of "
        f"{signature}."
    )
