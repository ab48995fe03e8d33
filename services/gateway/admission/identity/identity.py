"""Who makes a call, as far as its key says."""

from dataclasses import dataclass, field

from shared.messages import KeyRecord, Scopes
from shared.messages.base import DEFAULT_TENANT

UNRESTRICTED = Scopes()


@dataclass(frozen=True, slots=True)
class Identity:
    """Who makes a call.

    Attributes:
        tenant: Whose call it is.
        key: The stored key; None: a key of `RYZ_API_KEYS`, a token, a service on the bus, or none.
        scopes: What it may be used for.
        expires_s: Of a token: when it ends, in seconds since 1970; 0: it is none.
    """

    tenant: str
    key: KeyRecord | None = None
    scopes: Scopes = field(default=UNRESTRICTED)
    expires_s: float = 0.0

    @property
    def key_id(self) -> str:
        """The id of the stored key; empty: it has none."""
        return "" if self.key is None else self.key.key_id

    @property
    def admin(self) -> bool:
        """Returns whether it manages models, tenants and keys."""
        return self.scopes.admin


ANYONE = Identity(DEFAULT_TENANT)  # every caller of an open gateway


def identity_of(key: KeyRecord) -> Identity:
    """The identity of the holder of a stored key."""
    return Identity(key.tenant, key, key.scopes)
