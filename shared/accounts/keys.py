"""The text of an API key: how one is made, and what is known of it without the text. Pure.

A key is `sk-ryz-ID-SECRET`. The id finds its record, and is shown; the secret has 256 random bits, so a fast
hash of the whole text is enough to compare it by.
"""

import hashlib
import re
import secrets
from typing import NamedTuple

PREFIX = "sk-ryz-"
_ID_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_ID_LENGTH = 12
_SECRET_BYTES = 32  # 43 characters of base64url
_KEY = re.compile(r"sk-ryz-([a-z0-9]{12})-[A-Za-z0-9_-]{43}")


class NewKey(NamedTuple):
    """A key that was just made. Its text is shown once, and kept nowhere."""

    key_id: str
    text: str
    digest: bytes


def new_key() -> NewKey:
    """Makes a key."""
    key_id = "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH))
    text = f"{PREFIX}{key_id}-{secrets.token_urlsafe(_SECRET_BYTES)}"
    return NewKey(key_id, text, digest_of(text))


def key_id_of(text: str) -> str | None:
    """The id in a key; None: the text is no key of this form."""
    found = _KEY.fullmatch(text)
    return None if found is None else found[1]


def key_id_in(text: str) -> str:
    """The id in what a person names a key by: the id, the part that is shown, or the key itself."""
    return key_id_of(text) or text.removeprefix(PREFIX)


def digest_of(text: str) -> bytes:
    """SHA-256 of a key, as its record has it. Compare digests with `hmac.compare_digest`."""
    return hashlib.sha256(text.encode()).digest()


def shown_prefix(key_id: str) -> str:
    """What may be shown of a key."""
    return PREFIX + key_id
