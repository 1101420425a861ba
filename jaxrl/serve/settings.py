"""Settings of a server, and what may be combined."""

import dataclasses
import ipaddress
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from jaxrl.errors import ConfigError

TOKEN_VARIABLE = "JAXRL_SERVE_TOKEN"
MIN_TOKEN_LENGTH = 16
MAX_BATCH = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """Settings of a server.

    Args:
        host: Address to bind.
        port: Port to bind; 0 takes a free one.
        explore: Whether actions are sampled if a request does not say.
        max_batch: Maximum number of rows of a batch, a power of two.
        max_wait_ms: Maximum time that a batch is held back for more rows.
        max_waiting: Maximum number of rows that wait; beyond it, requests are answered by 429.
        max_sessions: Maximum number of episodes whose memories are kept.
        max_body_bytes: Maximum size of a request's body; None for what a batch of the policy's
            spaces needs as JSON.
        max_connections: Maximum number of open connections. Idle ones give way to new ones, and
            requests on more are answered by 503.
        body_timeout_s: Maximum time for a body to arrive.
        token: Token that requests must have; None for none.
        certfile: Certificate for TLS.
        keyfile: Key of the certificate.
        insecure: Whether another address than loopback may be bound without TLS.

    Raises:
        ConfigError: If a value is out of range, or the address may not be bound this way.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    explore: bool = False
    max_batch: int = 64
    max_wait_ms: float = 1.0
    max_waiting: int = 4096
    max_sessions: int = 10_000
    max_body_bytes: int | None = None
    max_connections: int = 1024
    body_timeout_s: float = 30.0
    token: str | None = dataclasses.field(default=None, repr=False)
    certfile: str | None = None
    keyfile: str | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        self._check_ranges()
        for name in ("certfile", "keyfile"):
            path = vars(self)[name]
            if path is not None and not Path(path).is_file():
                raise ConfigError(f"{name}={path} is not a file.")
        if (self.certfile is None) != (self.keyfile is None):
            raise ConfigError("TLS needs both certfile and keyfile.")
        if self.token is not None and (
            len(self.token) < MIN_TOKEN_LENGTH or not self.token.isascii()
        ):
            raise ConfigError(
                f"The token must have at least {MIN_TOKEN_LENGTH} ASCII characters, as "
                "`python -c 'import secrets; print(secrets.token_urlsafe())'` prints them."
            )
        if not _is_loopback(self.host):
            self._check_public()

    def _check_ranges(self) -> None:
        if self.max_batch not in (2**i for i in range(MAX_BATCH.bit_length())):
            raise ConfigError(
                f"max_batch={self.max_batch} must be a power of two up to {MAX_BATCH}."
            )
        if not 0 <= self.max_wait_ms <= 1000:
            raise ConfigError(f"max_wait_ms={self.max_wait_ms} must be between 0 and 1000.")
        if not 0 <= self.port < 2**16:
            raise ConfigError(f"port={self.port} must be between 0 and 65535.")
        for name in ("max_sessions", "max_body_bytes", "max_connections", "body_timeout_s"):
            if vars(self)[name] is not None and vars(self)[name] <= 0:
                raise ConfigError(f"{name}={vars(self)[name]} must be above 0.")
        if self.max_waiting < self.max_batch:
            raise ConfigError(
                f"max_waiting={self.max_waiting} must be at least max_batch={self.max_batch}."
            )

    def _check_public(self) -> None:
        if self.token is None:
            raise ConfigError(
                f"host={self.host} can be reached from other machines, which needs a token: set "
                f"{TOKEN_VARIABLE} or --token-file, or bind 127.0.0.1."
            )
        if self.certfile is None and not self.insecure:
            raise ConfigError(
                f"host={self.host} can be reached from other machines, which would see the token: "
                "give --certfile and --keyfile, or --insecure if a proxy has TLS."
            )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_token(path: str | None, variables: Mapping[str, str] = os.environ) -> str | None:
    """Return the token of a file, or of the environment variable; None if there is neither.

    Raises:
        ConfigError: If the file cannot be read, or can be read by others.
    """
    if path is None:
        return variables.get(TOKEN_VARIABLE) or None
    file = Path(path).expanduser()
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
        token = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The token file {file} cannot be read: {error}.") from error
    if mode & 0o077:
        raise ConfigError(
            f"The token file {file} can be read by other users (mode {mode:o}): chmod 600 it."
        )
    return token
