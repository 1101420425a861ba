"""Editable pipelines: the default connectors and the user's own."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Self, TypeVar

from jaxrl.connectors.base import Connector
from jaxrl.connectors.pipelines import find_connector, get_names
from jaxrl.errors import ConfigError

C = TypeVar("C", bound=Connector)


class PipelineBuilder(Generic[C]):
    """Connectors in the order in which they will run, edited in place.

    A function given as `env_to_module_connector`, `module_to_env_connector` or `learner_connector`
    may take one, which holds the default connectors. Every edit returns the builder, so edits can
    be chained. Connectors are found by name or class. They are fitted to their spaces once the
    order is final; a connector that has nothing to do at its position is left out.

    Args:
        kind: Class of the connectors.
        connectors: Initial connectors.

    Raises:
        ConfigError: If an object is not a connector of this kind.
        UnknownNameError: If an edit names a connector that is missing or ambiguous.
    """

    def __init__(self, kind: type[C], connectors: Sequence[C] = ()) -> None:
        self._kind = kind
        self._connectors: list[C] = []
        self.num_edits = 0
        for connector in connectors:
            self._connectors.append(self._check_kind(connector))

    def prepend(self, connector: C) -> Self:
        """Insert the connector at the beginning."""
        return self._insert(0, connector)

    def append(self, connector: C) -> Self:
        """Insert the connector at the end."""
        return self._insert(len(self._connectors), connector)

    def insert_before(self, name_or_class: str | type[Any], connector: C) -> Self:
        """Insert the connector directly before the named one."""
        return self._insert(find_connector(self._connectors, name_or_class), connector)

    def insert_after(self, name_or_class: str | type[Any], connector: C) -> Self:
        """Insert the connector directly after the named one."""
        return self._insert(find_connector(self._connectors, name_or_class) + 1, connector)

    def remove(self, name_or_class: str | type[Any]) -> Self:
        """Remove the named connector."""
        del self._connectors[find_connector(self._connectors, name_or_class)]
        self.num_edits += 1
        return self

    def __len__(self) -> int:
        """Return the number of connectors."""
        return len(self._connectors)

    def __iter__(self) -> Iterator[C]:
        """Iterate over the connectors in order."""
        return iter(self._connectors)

    def __getitem__(self, name_or_class: str | type[Any]) -> C:
        """Return the named connector."""
        return self._connectors[find_connector(self._connectors, name_or_class)]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the connectors in order."""
        return get_names(self._connectors)

    def _insert(self, place: int, connector: C) -> Self:
        self._connectors.insert(place, self._check_kind(connector))
        self.num_edits += 1
        return self

    def _check_kind(self, connector: object) -> C:
        if isinstance(connector, self._kind):
            return connector
        got = type(connector).__name__
        if isinstance(connector, type):
            got = f"the class {connector.__name__} (make one with {connector.__name__}(...))"
        raise ConfigError(f"expected {self._kind.__name__}s, got {got}.")


def merge_user_connectors(
    setting: str,
    function: Callable[..., Any] | None,
    builder: PipelineBuilder[C],
    *,
    should_prepend: bool,
) -> tuple[C, ...]:
    """Merge the user's connectors into the default ones.

    Args:
        setting: Name of the setting, for messages.
        function: Function without arguments that returns one or several connectors; or function of
            the builder that edits it (and may return it), or returns connectors to add.
        builder: Builder with the default connectors.
        should_prepend: Whether returned connectors come before the default ones instead of after them.

    Returns:
        The connectors in order.

    Raises:
        ConfigError: If the function has another signature, raises, or returns something else.
    """
    if function is None:
        return tuple(builder)
    arguments = (builder,) if _takes_pipeline(setting, function) else ()
    try:
        returned = function(*arguments)
        _add_returned(returned, builder, taken=bool(arguments), first=should_prepend)
    except ConfigError as error:
        raise ConfigError(f"{setting}: {error}") from error
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise ConfigError(f"{setting} raised {type(error).__name__}: {reason}") from error
    return tuple(builder)


def _add_returned(
    returned: object, builder: PipelineBuilder[Any], *, taken: bool, first: bool
) -> None:
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
    """Return whether the function takes the pipeline as its only argument."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # functions written in C may have no signature
        return False
    for arguments in ((), (None,)):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return bool(arguments)
    raise ConfigError(
        f"{setting} must be a function of no arguments or of the default pipeline, got one of "
        f"{signature}."
    )
