"""The log of what was changed of tenants, keys and prices, and the call that reads it."""

from typing import Annotated, ClassVar

import msgspec

from shared.messages.base import SMALL, TENANT_OR_NONE, Wire
from shared.messages.tenants.accounts import AccountsVersion, Actor


class AuditQuery(Wire, frozen=True, kw_only=True):
    """Asks for what was changed, the newest first.

    Attributes:
        before: Number of the oldest entry that is known; 0: from the newest on.
    """

    max_bytes: ClassVar[int] = SMALL
    before: AccountsVersion = 0
    count: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100


class AuditEntry(Wire, frozen=True, kw_only=True):
    """One change.

    Attributes:
        action: Such as `put`, `remove`, `erase`.
        subject: The `name` of the record, or of what was changed.
        detail: What it is since, without digests.
    """

    number: AccountsVersion = 0
    at_ms: int = 0
    actor: Actor
    action: Annotated[str, msgspec.Meta(max_length=32)]
    subject: Annotated[str, msgspec.Meta(max_length=256)]
    detail: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    tenant: Annotated[str, msgspec.Meta(pattern=TENANT_OR_NONE)] = ""


class AuditPage(Wire, frozen=True, kw_only=True):
    """Answer to `AuditQuery`."""

    entries: list[AuditEntry] = []
