"""Fixtures of the tests of environments."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jaxrl.envs.host import HostVector


@pytest.fixture
def opened() -> Iterator[Callable[[Any], Any]]:
    """Closes at the end of the test what it is given."""
    vectors: list[HostVector] = []

    def keep(vector: Any) -> Any:
        vectors.append(vector)
        return vector

    yield keep
    for vector in vectors:
        vector.close()
