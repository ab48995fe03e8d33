"""`Idempotency-Key`: a call that is sent again gets the answer of the first one. Pure.

A key is its tenant's own. What follows from it does not depend on the gateway: the name by which leaders and
session records know the call, the seed of its answer, and the id of a session that is made for it.
"""

import re
from dataclasses import dataclass
from hashlib import blake2b

from services.gateway.sessions.session_headers import SESSION_HEADERS, RawHeaders
from shared.errors import InvalidRequest

HEADER = b"idempotency-key"
_KEY = re.compile(rb"[\x21-\x7e]{1,255}")
_OF_THE_CALL = (*SESSION_HEADERS, b"x-session-mode")


@dataclass(frozen=True, slots=True)
class Once:
    """A call that is to count once. name: of the call among all tenants'; digest: of what it asks for."""

    name: str
    digest: str

    @property
    def seed(self) -> int:
        """For an answer whose caller names no seed, so that computing it again gives the same."""
        return int.from_bytes(blake2b(self.name.encode(), digest_size=8, person=b"seed").digest()) >> 1

    def session_id(self, root: str) -> str:
        """Of the session that is made for the call; it looks like any that is made."""
        made = blake2b(self.name.encode(), digest_size=8, person=b"session").hexdigest()
        return f"s-{root}-{made}"


def once_of(headers: RawHeaders, tenant: str, path: str, raw: bytes) -> Once | None:
    """What the call's key says; None: it has none.

    Args:
        headers: of the call; those that choose its session are part of what it asks for.
        tenant: whose key it is.
        path: the route.
        raw: the body.

    Raises:
        InvalidRequest: the key is none.
    """
    key = headers.get(HEADER)
    if key is None:
        return None
    if not _KEY.fullmatch(key):
        raise InvalidRequest(
            "`Idempotency-Key` needs 1 to 255 printable ASCII characters without spaces",
            param="idempotency-key",
        )
    asked = blake2b(raw, digest_size=16)
    for part in (path.encode(), *(headers.get(name, b"") for name in _OF_THE_CALL)):
        asked.update(len(part).to_bytes(4) + part)
    name = blake2b(f"{len(tenant)}:{tenant}".encode() + key, digest_size=16)
    return Once(name.hexdigest(), asked.hexdigest())
