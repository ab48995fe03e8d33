"""The call that erases what the KV state service has of a tenant."""

from typing import Annotated, ClassVar

import msgspec

from shared.messages.base import SMALL, Tenant, Wire


class TenantErase(Wire, frozen=True, kw_only=True):
    """Erases sessions, stored responses, KV blocks and the name in usage of a tenant.

    Ask again while some are left.

    Attributes:
        for_ms: How long the service may work on it.
        actor: Who asks, for an entry of the audit log; the erasure of usage begins. Empty: it goes on.
    """

    max_bytes: ClassVar[int] = SMALL
    tenant: Tenant
    for_ms: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 1000
    actor: Annotated[str, msgspec.Meta(max_length=128)] = ""


class TenantErased(Wire, frozen=True, kw_only=True):
    """Answer to `TenantErase`: what this call has erased.

    Attributes:
        usage_sums: Daily sums of usage that have lost the tenant's name; like the next one said once, when
            all have.
        usage_records: Records of requests that have.
        left: There is more, or KV blocks that a group is reading at this moment.
    """

    sessions: int = 0
    responses: int = 0
    kv_blocks: int = 0
    kv_bytes: int = 0
    usage_sums: int = 0
    usage_records: int = 0
    left: bool = False
