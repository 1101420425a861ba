"""Settings of the server that external simulators connect to."""

import dataclasses

from jaxrl.config.fields import Check, count, count_or_zero, field, non_negative, positive
from jaxrl.config.settings.training import Auto

_port = Check("between 0 and 65535", lambda value: 0 <= value <= 65535)
_name = Check("a host name or address", lambda value: bool(value.strip()))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExternalSettings:
    """Server for simulators that step environments elsewhere, with placement='external'.

    `JAXRL_EXTERNAL_TOKEN` is the token that clients must have.
    """

    external_host: str = field(
        default="127.0.0.1",
        check=_name,
        doc="Address to listen on. One that other machines reach needs a token and TLS.",
    )
    external_port: int = field(
        default=9900, check=_port, doc="Port to listen on; 0 chooses a free one."
    )
    external_token_file: str | None = field(
        default=None,
        doc="File with the token that clients must have, readable by its owner alone; None takes "
        "the environment variable JAXRL_EXTERNAL_TOKEN. The token itself is written nowhere.",
    )
    external_certificate_file: str | None = field(
        default=None, doc="File of the server's TLS certificate, in PEM; None is without TLS."
    )
    external_private_key_file: str | None = field(
        default=None, doc="File of the certificate's private key, if it is not in the same file."
    )
    external_client_ca_file: str | None = field(
        default=None,
        doc="File of the authorities that signed the clients' TLS certificates; None asks clients "
        "for none.",
    )
    external_insecure: bool = field(
        default=False,
        doc="Whether to listen without TLS on an address that other machines reach, for networks "
        "that are trusted.",
    )
    max_clients: int = field(
        default=64, check=count, doc="Maximum number of clients that are connected at a time."
    )
    max_message_bytes: int | Auto = field(
        default="auto",
        check=count,
        doc="Maximum size in bytes of a message; 'auto' is what 10,000 steps need, at most 64 MiB.",
    )
    max_weights_lag: int | Auto | None = field(
        default="auto",
        check=count_or_zero,
        doc="Maximum number of versions that the weights of a step may be behind those that act "
        "now, beyond which it is discarded; None is any number. 'auto' is 1 for algorithms that "
        "learn from their own newest steps (PPO), and None for those that correct for older ones "
        "(IMPALA, APPO, replay).",
    )
    inference_window_s: float = field(
        default=0.001,
        check=non_negative,
        doc="Maximum number of seconds that a request for an action waits for others, with which it "
        "is computed. As many are expected as came together last time.",
    )
    resume_window_s: float = field(
        default=60.0,
        check=non_negative,
        doc="Seconds in which a client that lost its connection may return; then its open episodes "
        "are cut.",
    )
    idle_timeout_s: float = field(
        default=60.0,
        check=positive,
        doc="Seconds of silence after which a connection counts as lost; clients give a sign of "
        "life every 5 seconds.",
    )
