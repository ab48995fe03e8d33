"""The call by which gateways and routers lease portions of the limits of tenants and keys.

A holder takes requests, tokens and money ahead of its callers, so that most of them ask nothing. The KV state
service counts what all holders have (decision 0088).
"""

from typing import Annotated, ClassVar, Literal

import msgspec

from shared.messages.base import Milliseconds, Tenant, Wire
from shared.messages.tenants.accounts import NO_KEY_OR_ID

Measure = Literal["requests", "tokens", "money", "running"]
WindowKind = Literal["minute", "day", "month", "running"]
MAX_POOLS, MAX_TAKES = 512, 512
Holder = Annotated[
    str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z", description="One process that leases.")
]
Units = Annotated[
    int, msgspec.Meta(ge=0, le=2**53, description="Requests, tokens, or millionths of the currency.")
]


class LimitPool(Wire, frozen=True, kw_only=True):
    """One limit, as its holder stands to it.

    Attributes:
        key_id: Whose limit it is; empty: the tenant's own.
        window: Over which the units count; `running`: for as long as they are held.
        limit: Units of the window, of all holders together.
        time_zone: Of the IANA data base, for days and months.
        began_ms: The window that `had` is of, in milliseconds since 1970; 0: the one that runs now.
        had: Units that the holder has in that window, used or not; it replaces what was counted before.
        seen: Units that all holders together had in that window, as this one was told last.
        ahead: Units that it wants beyond those of its takes, as far as many are left.
    """

    tenant: Tenant
    key_id: NO_KEY_OR_ID = ""
    measure: Measure
    window: WindowKind
    limit: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    time_zone: Annotated[str, msgspec.Meta(min_length=1, max_length=64)] = "UTC"
    began_ms: Milliseconds = 0
    had: Units = 0
    seen: Units = 0
    ahead: Units = 0


class LimitTake(Wire, frozen=True, kw_only=True):
    """Units for requests that wait, of several limits at once: a request gets all of them, or none.

    Attributes:
        count: Requests of this kind.
        pools: Positions in `LeaseLimits.pools`.
        units: What each request needs of each of those.
    """

    count: Annotated[int, msgspec.Meta(ge=1, le=2**20)]
    pools: Annotated[list[int], msgspec.Meta(min_length=1, max_length=32)]
    units: Annotated[list[Units], msgspec.Meta(min_length=1, max_length=32)]


class LeaseLimits(Wire, frozen=True, kw_only=True):
    """Says what a holder has, and asks for more.

    Attributes:
        number: Grows with every call of the holder, of which one is under way at a time. A call that comes
            late changes nothing.
    """

    max_bytes: ClassVar[int] = 512 * 1024
    holder: Holder
    number: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    pools: Annotated[list[LimitPool], msgspec.Meta(max_length=MAX_POOLS)] = []
    takes: Annotated[list[LimitTake], msgspec.Meta(max_length=MAX_TAKES)] = []


class LimitLease(Wire, frozen=True, kw_only=True):
    """What a holder has got of one limit.

    Attributes:
        granted: Units in addition to `had`; if `had` was of another window, all that the holder has.
        left: Units that no holder has.
        began_ms: The window that runs now.
        ends_ms: When it ends.
    """

    granted: Units = 0
    left: Units = 0
    began_ms: Milliseconds = 0
    ends_ms: Milliseconds = 0


class LeasedLimits(Wire, frozen=True, kw_only=True):
    """Answer to `LeaseLimits`.

    Attributes:
        leases: In the order of its pools.
        now_ms: By the clock of the store.
        holders: Processes that have leased lately.
    """

    leases: list[LimitLease] = []
    now_ms: Milliseconds
    holders: Annotated[int, msgspec.Meta(ge=1)] = 1
