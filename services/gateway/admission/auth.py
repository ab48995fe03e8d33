"""Reads the keys of the settings and of requests, and maps the former to tenants.

Keys are kept and compared only as keyed digests, so that the time of a look-up says nothing about them. Who
makes a call is decided in `identity/identities.py`.
"""

import hashlib
import hmac
import re
import secrets
from pathlib import Path

from services.gateway.admission.errors.shapes import is_anthropic
from services.gateway.admission.request_headers import RawHeaders
from shared.messages.tenants.accounts import ERASED_TENANTS

_ALSO_ANTHROPIC = ("/v1/models", "/v1/streams")  # besides the Messages API
_TENANT = re.compile(r"[A-Za-z0-9_-]{1,64}")


def parse_keys(text: str) -> dict[str, str]:
    """Reads `key:tenant,key:tenant` as a map from keys to tenants.

    Raises:
        ValueError: An entry is wrong; names its place, never the key.
    """
    keys: dict[str, str] = {}
    for index, entry in enumerate(filter(None, (part.strip() for part in text.split(","))), start=1):
        key, _, tenant = entry.rpartition(":")
        if not _is_key(key):
            raise ValueError(
                f"entry {index} needs a key of at least 8 printable ASCII characters before the ':'"
            )
        if not _TENANT.fullmatch(tenant):
            raise ValueError(f"entry {index} needs a tenant of 1 to 64 letters, digits, - or _ after the ':'")
        if tenant == ERASED_TENANTS:
            raise ValueError(
                f"entry {index} has the name for the usage of erased tenants, {ERASED_TENANTS!r}"
            )
        if key in keys:
            raise ValueError(f"entry {index} repeats the key of an earlier entry")
        keys[key] = tenant
    return keys


def parse_admin_keys(text: str) -> frozenset[str]:
    """Reads the keys of operators, separated by commas or line breaks; `@PATH` is a file that has them.

    Raises:
        ValueError: A key is wrong, or the file cannot be read; names the place, never the key.
    """
    where = "entry"
    if text.strip().startswith("@"):
        path = Path(text.strip()[1:])
        where = f"{path}, key"
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"the file {path} cannot be read: {error}") from None
        if not text.strip():
            raise ValueError(f"the file {path} has no key")
    given = filter(None, (part.strip() for part in re.split(r"[,\n]", text)))
    keys: set[str] = set()
    for index, key in enumerate(given, start=1):
        if not _is_key(key):
            raise ValueError(f"{where} {index} needs at least 8 printable ASCII characters without spaces")
        keys.add(key)
    return frozenset(keys)


def _is_key(key: str) -> bool:
    return len(key) >= 8 and key.isascii() and key.isprintable() and " " not in key


class Keyring:
    """The keys of the settings.

    Attributes:
        tenants: For which there are keys.
    """

    def __init__(self, keys: dict[str, str]) -> None:
        self._secret = secrets.token_bytes(32)
        self._tenants = {self._digest(key.encode()): tenant for key, tenant in keys.items()}
        self.tenants = frozenset(keys.values())

    def _digest(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, key=self._secret, digest_size=32).digest()

    def find(self, key: bytes) -> str:
        """The tenant that a key stands for; empty: it is not known."""
        digest, found = self._digest(key), ""
        for known, tenant in self._tenants.items():
            if hmac.compare_digest(known, digest):
                found = tenant
        return found


def given_key(headers: RawHeaders, path: str) -> bytes:
    """The key of a request, as the value of an `Authorization` header; empty if it has none.

    Routes that Anthropic's clients call take it from `x-api-key` as well; there that header comes first.

    Args:
        headers: Headers of the request.
        path: The route.
    """
    if is_anthropic(path) or path.startswith(_ALSO_ANTHROPIC) or path == "/":
        key = headers.get(b"x-api-key", b"").strip()
        if key:
            return b"Bearer " + key
    return headers.get(b"authorization", b"")
