"""The call that erases what the KV state service has of a tenant."""

from typing import Annotated, ClassVar

import msgspec

from shared.messages.base import SMALL, Tenant, Wire


class TenantErase(Wire, frozen=True, kw_only=True):
    """Erases sessions, stored responses and KV blocks of a tenant; ask again while some are left.

    Attributes:
        for_ms: How long the service may work on it.
        actor: Who asks, for an entry of the audit log. Empty: it goes on with what was entered.
    """

    max_bytes: ClassVar[int] = SMALL
    tenant: Tenant
    for_ms: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 1000
    actor: Annotated[str, msgspec.Meta(max_length=128)] = ""


class TenantErased(Wire, frozen=True, kw_only=True):
    """Answer to `TenantErase`: what this call has erased.

    Attributes:
        left: There is more, or KV blocks that a group is reading at this moment.
    """

    sessions: int = 0
    responses: int = 0
    kv_blocks: int = 0
    kv_bytes: int = 0
    left: bool = False
