"""Servers of simulators, and the network to them."""

from collections.abc import Iterator

import pytest

from tests.external.served import Network, Served, make_config, serve


@pytest.fixture(scope="module")
def first() -> Iterator[Served]:
    """The server that has the compiled programs."""
    served = Served(make_config())
    yield served
    served.group.stop()


@pytest.fixture
def served(first: Served) -> Iterator[Served]:
    new = serve(first)
    yield new
    new.group.stop()


@pytest.fixture
def network(served: Served) -> Iterator[Network]:
    network = Network(served.group.address)
    yield network
    network.close()
