"""Look-up of unknown names in the tables of other libraries, which are imported only then."""

import functools
import importlib
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from jaxrl.errors import UnknownSettingError

MethodT = TypeVar("MethodT", bound=Callable[..., Any])


def load(module: str) -> ModuleType:
    """Import a module of `jaxrl.compat`, such as `"rllib.settings"`, for an unknown name.

    It is imported by name, because it is of a higher layer than the modules that ask.
    """
    return importlib.import_module(f"jaxrl.compat.{module}")


def is_defined_by_user(cls: type) -> bool:
    """Return whether a class is of a user, so that it may have methods of another library."""
    return not cls.__module__.startswith("jaxrl.")


class RLlibNames:
    """Base class of objects whose attributes may be read by RLlib's names.

    Attributes:
        _rllib_kind: Kind of object, as in the tables of `jaxrl.compat.rllib.attributes`.
    """

    _rllib_kind: ClassVar[str]

    if not TYPE_CHECKING:  # hidden from the type checker, which would accept any attribute

        def __getattr__(self, name: str) -> object:
            if name.startswith("_"):  # not read by users, but by IPython, `copy` and `pickle`
                raise AttributeError(name)
            return load("rllib.attributes").get_attribute(self, self._rllib_kind, name)


class RLlibEpisode(RLlibNames):
    """Base class of episodes, which callbacks of RLlib's older episodes read and write.

    Attributes:
        custom_data: Data of callbacks.
    """

    _rllib_kind = "episode"
    custom_data: dict[str, Any]

    @property
    def custom_metrics(self) -> dict[str, Any]:
        """Numbers by name, of which results have the mean, minimum and maximum over episodes."""
        return self.custom_data.setdefault("custom_metrics", {})


def answer_arguments(method: MethodT) -> MethodT:
    """Decorate a method so that arguments which it does not take are answered by what to write."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(self: object, *args: object, **kwargs: object) -> object:
        try:
            signature.bind(self, *args, **kwargs)
        except TypeError as error:
            describe = load("libraries").describe_arguments
            message = describe(method.__name__, signature, kwargs, error)
            raise UnknownSettingError(message) from None
        return method(self, *args, **kwargs)

    return cast(MethodT, call)
