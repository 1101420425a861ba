"""Signatures of files that this user wrote on this machine, with a private key made on first use.

A signature establishes trust in the same way as a directory on PATH does: whoever can read the key
can already change the programs that this user runs.
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

_KEY_BYTES = 32
_SIGNATURE_KEY, _DIGEST_KEY = "signature", "sha256"


def get_key_path() -> Path:
    """Return the path of the key: `jaxrl/signing_key` in `$XDG_STATE_HOME` or `~/.local/state`."""
    root = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(root) / "jaxrl" / "signing_key"


def sign(content: bytes) -> str | None:
    """Return the signature of `content`, or None if no key can be stored."""
    key = _read_key() or _make_key()
    return None if key is None else _compute_signature(key, content)


def is_signed_by_user(content: bytes, signature: object) -> bool:
    """Return whether this user signed `content` on this machine."""
    if not isinstance(signature, str) or not signature.isascii():
        return False
    key = _read_key()
    return key is not None and hmac.compare_digest(_compute_signature(key, content), signature)


def seal(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON document with a signature, and a digest over the document and the signature."""
    content: dict[str, Any] = json.loads(json.dumps(document))
    signed = {**content, _SIGNATURE_KEY: sign(encode_canonical(content))}
    return {**signed, _DIGEST_KEY: compute_digest(signed)}


def has_valid_digest(document: Mapping[str, Any]) -> bool:
    """Return whether a document matches its digest."""
    signed = {name: value for name, value in document.items() if name != _DIGEST_KEY}
    return compute_digest(signed) == document.get(_DIGEST_KEY)


def is_sealed_by_user(document: Mapping[str, Any]) -> bool:
    """Return whether this user sealed a document on this machine."""
    content = {n: value for n, value in document.items() if n not in (_DIGEST_KEY, _SIGNATURE_KEY)}
    return is_signed_by_user(encode_canonical(content), document.get(_SIGNATURE_KEY))


def compute_digest(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a JSON document's canonical encoding."""
    return hashlib.sha256(encode_canonical(document)).hexdigest()


def encode_canonical(document: Mapping[str, Any]) -> bytes:
    """Encode a JSON document canonically, so that equal documents have equal bytes."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode("ascii") + b"\n"


def _compute_signature(key: bytes, content: bytes) -> str:
    return hmac.new(key, b"jaxrl\0" + content, hashlib.sha256).hexdigest()


def _read_key() -> bytes | None:
    """Return the key, or None if there is none or if other users could have read or written it."""
    try:
        with get_key_path().open("rb") as file:
            status = os.fstat(file.fileno())
            is_private = stat.S_ISREG(status.st_mode) and not status.st_mode & 0o077
            if not is_private or status.st_uid != os.getuid():
                return None
            key = file.read(_KEY_BYTES + 1)
    except (OSError, RuntimeError):  # no such file, or no home folder
        return None
    return key if len(key) == _KEY_BYTES else None


def _make_key() -> bytes | None:
    """Create the key and return it; if another process was faster, return its key."""
    try:
        path = get_key_path()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(dir=path.parent)  # readable by this user alone
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
            os.link(name, path)  # unlike a rename, never replaces an existing key
        finally:
            os.unlink(name)
    except FileExistsError:
        pass
    except (OSError, RuntimeError):
        return None
    return _read_key()
