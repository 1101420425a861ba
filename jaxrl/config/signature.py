"""What this user wrote on this machine: signatures with a private key, made when first needed.

A signature says who may be believed, as a path that a program is found by does: whoever can read the
key can already change what this user runs.
"""

import hashlib
import hmac
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_BYTES = 32
_SIGNATURE, _DIGEST = "signature", "sha256"


def key_file() -> Path:
    """Where the key is kept: `jaxrl/signing_key` in `$XDG_STATE_HOME`, or in `~/.local/state`."""
    root = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(root) / "jaxrl" / "signing_key"


def sign(content: bytes) -> str | None:
    """The signature of what is about to be written; None where no key can be kept."""
    key = _read_key() or _make_key()
    return None if key is None else _signature(key, content)


def is_own(content: bytes, signature: object) -> bool:
    """Whether this user signed the content on this machine."""
    if not isinstance(signature, str) or not signature.isascii():
        return False
    key = _read_key()
    return key is not None and hmac.compare_digest(_signature(key, content), signature)


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON document with a signature, and a digest over it and the signature."""
    said: dict[str, Any] = json.loads(json.dumps(document))
    signed = {**said, _SIGNATURE: sign(canonical(said))}
    return {**signed, _DIGEST: hashlib.sha256(canonical(signed)).hexdigest()}


def is_whole(document: Mapping[str, Any]) -> bool:
    """Whether a document is as `sealed` made it."""
    signed = {name: value for name, value in document.items() if name != _DIGEST}
    return hashlib.sha256(canonical(signed)).hexdigest() == document.get(_DIGEST)


def is_own_seal(document: Mapping[str, Any]) -> bool:
    """Whether this user sealed a document on this machine."""
    said = {n: value for n, value in document.items() if n not in (_DIGEST, _SIGNATURE)}
    return is_own(canonical(said), document.get(_SIGNATURE))


def canonical(document: Mapping[str, Any]) -> bytes:
    """The one way in which a JSON document is written where bytes are compared."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode("ascii") + b"\n"


def _signature(key: bytes, content: bytes) -> str:
    return hmac.new(key, b"jaxrl\0" + content, hashlib.sha256).hexdigest()


def _read_key() -> bytes | None:
    """The key; None if there is none, or if others could have read or written it."""
    try:
        with key_file().open("rb") as file:
            found = os.fstat(file.fileno())
            private = stat.S_ISREG(found.st_mode) and not found.st_mode & 0o077
            if not private or found.st_uid != os.getuid():
                return None
            key = file.read(_BYTES + 1)
    except (OSError, RuntimeError):  # no such file, or no home folder
        return None
    return key if len(key) == _BYTES else None


def _make_key() -> bytes | None:
    """A new key or, if another process was faster, that one's."""
    try:
        path = key_file()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(dir=path.parent)  # readable by this user alone
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(secrets.token_bytes(_BYTES))
            os.link(name, path)  # unlike a rename, takes no other key's place
        finally:
            os.unlink(name)
    except FileExistsError:
        pass
    except (OSError, RuntimeError):
        return None
    return _read_key()
