"""The secret behind session ids that gateways make, so that an id does not tell the session's first text.

All gateways of a deployment need the same secret. With different ones, the same conversation or the same
`Idempotency-Key` gets different ids.
"""

from hashlib import scrypt
from urllib.parse import unquote, urlsplit

MIN_KEY_CHARS = 16
_SALT = b"ryzanstein session ids"
# 16 MiB and about 50 ms, once at the start: guessing a password from ids must be slow
_COST, _BLOCK = 2**14, 8


def root_key(session_key: str, nats_url: str) -> bytes:
    """The key for `identity.root_hash`, derived from the setting, else from the password at the broker.

    Args:
        session_key: `RYZ_SESSION_KEY`; empty if it is not set.
        nats_url: The URL of the broker; of several servers the first counts.

    Returns:
        32 bytes; empty if there is no secret, and ids are made without one.
    """
    first = nats_url.partition(",")[0].strip()
    secret = session_key or unquote(urlsplit(first).password or "")
    return scrypt(secret.encode(), salt=_SALT, n=_COST, r=_BLOCK, p=1, dklen=32) if secret else b""
