"""Editable pipelines: the default connectors and the user's own."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, NoReturn, Self, TypeAlias, TypeVar

from jaxrl.compat import lookup
from jaxrl.connectors.base import Connector
from jaxrl.connectors.pipelines import find_connector, get_names
from jaxrl.errors import ConfigError

C = TypeVar("C", bound=Connector)

Offers: TypeAlias = Mapping[str, Callable[[], object]]
"""Functions that make the arguments of RLlib's signatures, by name; they are called on demand."""


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

    def __getattr__(self, name: str) -> NoReturn:
        """Raise for attributes of an environment, which a parameter called `env` receives."""
        raise AttributeError(
            f"the pipeline of default connectors has no '{name}'; name the parameter env to receive "
            "the environment."
        )


def merge_user_connectors(
    setting: str,
    function: Callable[..., Any] | None,
    builder: PipelineBuilder[C],
    *,
    should_prepend: bool,
    offers: Offers | None = None,
    agents: Sequence[str] | None = None,
    accept: Callable[[object], bool] = lambda piece: False,
) -> tuple[C, ...]:
    """Merge the user's connectors into the default ones.

    Args:
        setting: Name of the setting, for messages.
        function: Function that returns one or several connectors, or that takes the builder and
            edits it (and may return it); `jaxrl.compat.rllib.connectors.choose_arguments` says with
            which arguments it is called.
        builder: Builder with the default connectors.
        should_prepend: Whether returned connectors come before the default ones instead of after them.
        offers: RLlib's arguments for the function; None for none.
        agents: Agents whose pipeline it is, of several; None for a single agent.
        accept: Function of a returned object that is True if its work is done elsewhere; it is then
            left out.

    Returns:
        The connectors in order.

    Raises:
        ConfigError: If the function has another signature, raises, or returns something else.
    """
    if function is None:
        return tuple(builder)
    if isinstance(function, Connector):
        name = type(function).__name__
        raise ConfigError(
            f"{setting} is an object of {name}, and must be a function that makes connectors: pass "
            f"the class, or lambda: {name}(...)."
        )
    rllib = lookup.load("rllib.connectors")
    arguments, named = rllib.choose_arguments(setting, function, builder, offers or {})
    try:
        returned = function(*arguments, **named)
        pieces = _list_returned(returned, builder, was_taken=builder in arguments)
        own = [piece for piece in pieces if rllib.is_for_agents(piece, agents)]
        others = [piece for piece in own if not (accept(piece) or rllib.is_implied(piece))]
        for connector in reversed(others) if should_prepend else others:
            _ = builder.prepend(connector) if should_prepend else builder.append(connector)
    except ConfigError as error:
        raise ConfigError(f"{setting}: {error}") from error
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise ConfigError(f"{setting} raised {type(error).__name__}: {reason}") from error
    return tuple(builder)


def _list_returned(
    returned: object, builder: PipelineBuilder[Any], *, was_taken: bool
) -> list[Any]:
    """Return the connectors that a function returned, none if it edited the pipeline."""
    if returned is builder:
        return []
    if returned is None:
        if was_taken and builder.num_edits:
            return []
        raise ConfigError(
            "the function returned None; let it return connectors, or edit the pipeline that it "
            "takes as its argument."
        )
    if builder.num_edits:
        raise ConfigError(
            "the function edited the pipeline and returned something else; let it return the "
            "pipeline, or connectors alone."
        )
    return list(returned) if isinstance(returned, list | tuple | PipelineBuilder) else [returned]
