"""Settings of a server: ranges, tokens, and which addresses may be bound."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from jaxrl.errors import ConfigError
from jaxrl.serve.server import PolicyServer
from jaxrl.serve.settings import ServeSettings, read_token
from tests.serve.counting import Counting

TOKEN = "a-token-of-sixteen-characters"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_batch": 48}, "max_batch=48 must be a power of two up to 4096"),
        ({"max_wait_ms": -1}, "max_wait_ms=-1 must be between 0 and 1000"),
        ({"port": 70_000}, "port=70000 must be between 0 and 65535"),
        ({"max_sessions": 0}, "max_sessions=0 must be above 0"),
        ({"max_waiting": 8}, "max_waiting=8 must be at least max_batch=64"),
        ({"certfile": "nowhere.pem"}, "certfile=nowhere.pem is not a file"),
        ({"token": "short"}, "at least 16 ASCII characters"),
        ({"host": "0.0.0.0"}, "which needs a token: set JAXRL_SERVE_TOKEN"),
        ({"host": "example.org"}, "needs a token"),
        ({"host": "0.0.0.0", "token": TOKEN}, "would see the token: give --certfile"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ServeSettings(**settings)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_token(host: str) -> None:
    assert ServeSettings(host=host).token is None


def test_tls_needs_both_files(tmp_path: Path) -> None:
    file = tmp_path / "cert.pem"
    file.touch()
    with pytest.raises(ConfigError, match="both certfile and keyfile"):
        ServeSettings(certfile=str(file))
    public = ServeSettings(host="::", token=TOKEN, certfile=str(file), keyfile=str(file))
    assert TOKEN not in repr(public)
    behind_proxy = dataclasses.replace(public, certfile=None, keyfile=None, insecure=True)
    assert behind_proxy.token == TOKEN


def test_a_token_comes_from_a_private_file_or_a_variable(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(ConfigError, match="cannot be read"):
        read_token(str(file))
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600 it"):
        read_token(str(file))
    file.chmod(0o600)
    assert read_token(str(file), {"JAXRL_SERVE_TOKEN": "other"}) == TOKEN
    assert read_token(None, {"JAXRL_SERVE_TOKEN": TOKEN}) == TOKEN
    assert read_token(None, {}) is None


def test_an_address_in_use_is_an_error() -> None:
    first = PolicyServer(Counting(), ServeSettings(port=0))
    bound = first.bind()
    bound.listen()
    port = bound.getsockname()[1]
    with pytest.raises(ConfigError, match=f"127.0.0.1:{port} cannot be bound: Address already"):
        PolicyServer(Counting(), ServeSettings(port=port)).bind()
    bound.close()
