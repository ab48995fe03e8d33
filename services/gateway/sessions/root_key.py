"""The secret behind session ids that gateways make: an id does not tell what its session begins with.

All gateways of a deployment need the same one: with another, the same conversation or the same
`Idempotency-Key` gives another id there.
"""

from hashlib import scrypt
from urllib.parse import unquote, urlsplit

MIN_KEY_CHARS = 16
_SALT = b"ryzanstein session ids"
_COST, _BLOCK = 2**14, 8  # 16 MiB and some 50 ms, once at the start: an id must not help to guess a password


def root_key(session_key: str, nats_url: str) -> bytes:
    """The key for `identity.root_hash`: of the setting, else of the gateways' password at the broker.

    Args:
        session_key: `RYZ_SESSION_KEY`; empty: not set.
        nats_url: the broker's; of several servers the first counts.

    Returns:
        32 bytes; none where neither is there: ids are made without a secret then.
    """
    first = nats_url.partition(",")[0].strip()
    secret = session_key or unquote(urlsplit(first).password or "")
    return scrypt(secret.encode(), salt=_SALT, n=_COST, r=_BLOCK, p=1, dklen=32) if secret else b""
