"""User's function of recorded parts of episodes, and checks of what it returns."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import ConfigError, DataError
from jaxrl.offline.recorded import RecordedData

_NAME = "input_transform"


def transform_parts(
    function: Callable[..., Any] | None, data: RecordedData, parts: Iterable[EpisodePart]
) -> Iterator[EpisodePart]:
    """Yield the parts that a user's function returns, without empty ones.

    Args:
        function: Function of a part; None for the parts as they are.
        data: Recorded data of the parts.
        parts: Recorded parts.

    Raises:
        ConfigError: If it returns anything but a part, or one whose rows do not fit.
    """
    if function is None:
        yield from parts
        return
    for part in parts:
        changed = function(part)
        if changed is None:
            continue
        if not isinstance(changed, EpisodePart):
            raise ConfigError(
                f"{_NAME} must return the part of an episode to learn from, or None, got a "
                f"{type(changed).__name__}."
            )
        if not np.size(changed.reward):
            continue
        try:
            yield data.check_changed(changed, _NAME)
        except DataError as error:
            raise ConfigError(str(error)) from error
