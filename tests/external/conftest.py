"""Servers of simulators, and the network to them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.external.served import Network, Served, make_config, serve


@pytest.fixture(scope="module")
def first() -> Iterator[Served]:
    """The server that has the compiled programs."""
    served = Served(make_config())
    yield served
    served.group.stop()


@pytest.fixture
def start(first: Served) -> Iterator[Callable[..., Served]]:
    """Starts servers with settings of `external`, which are stopped after the test."""
    servers: list[Served] = []

    def start_one(**settings: Any) -> Served:
        servers.append(serve(first, **settings))
        return servers[-1]

    yield start_one
    for server in servers:
        server.group.stop()


@pytest.fixture
def served(start: Callable[..., Served]) -> Served:
    return start()


@pytest.fixture
def network(served: Served) -> Iterator[Network]:
    network = Network(served.group.address)
    yield network
    network.close()
