"""`Idempotency-Key`: a call that is sent again gets the answer of the first one. Pure.

Each tenant has keys of its own. Every gateway derives the same from a key: the name by which leaders and
session records know the call, the seed of its answer, and the id of a session that is made for it.
"""

import re
from dataclasses import dataclass
from hashlib import blake2b

from services.gateway.admission.request_headers import SESSION_HEADERS, RawHeaders
from shared.errors import InvalidRequest

HEADER = b"idempotency-key"
_KEY = re.compile(rb"[\x21-\x7e]{1,255}")
_OF_THE_CALL = (*SESSION_HEADERS, b"x-session-mode")


@dataclass(frozen=True, slots=True)
class IdempotentCall:
    """A call with an `Idempotency-Key`.

    Attributes:
        name: The name of the call, unique over all tenants.
        digest: The digest of what it asks for.
    """

    name: str
    digest: str

    @property
    def seed(self) -> int:
        """The seed of the answer if the caller names none, so that computing it again gives the same."""
        return int.from_bytes(blake2b(self.name.encode(), digest_size=8, person=b"seed").digest()) >> 1

    def session_id(self, root: str) -> str:
        """The id of the session that is made for the call, in the form of all made ids."""
        made = blake2b(self.name.encode(), digest_size=8, person=b"session").hexdigest()
        return f"s-{root}-{made}"


def once_of(headers: RawHeaders, tenant: str, path: str, raw: bytes) -> IdempotentCall | None:
    """Reads the key of a call.

    Args:
        headers: Headers of the call; those that choose its session are part of what it asks for.
        tenant: Whose key it is.
        path: The route.
        raw: The body.

    Returns:
        None if the call has no key.

    Raises:
        InvalidRequest: The key is not valid.
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
    return IdempotentCall(name.hexdigest(), asked.hexdigest())
