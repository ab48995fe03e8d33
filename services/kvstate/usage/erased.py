"""What an erasure makes of a tenant's usage: counts under one name for all erased tenants. Pure.

There is one name, so a sum does not say of which of them it is. The mark of an erasure has the tenant's name
and until when its records count without one, so that records which come late bring the name not back.
"""

from hashlib import blake2b
from typing import Annotated

import msgspec
from msgspec.structs import replace

from services.kvstate.usage.stored_sums import SumName
from shared import streams
from shared.messages import UsageRecord
from shared.messages.base import Tenant, Wire
from shared.messages.tenants.accounts import ERASED_TENANTS

DAY_MS = 86_400_000
MARKS = streams.usage_sum("erased", "*", "mark")


class UsageErasure(Wire, frozen=True, kw_only=True):
    """The mark of an erasure: first the sums are moved, then the records of the ledger.

    Attributes:
        began_ms: When it was asked for; names it.
        until_ms: Records that ended until then have no name; 0: sums are being moved, and no record has one.
        moved_to: Sums of the tenant up to this number of their stream were moved.
        ledger: To which the next three belong.
        copied_to: Records of the tenant up to this number were written again, most of them without a name.
        copies_end: Number of the last of these copies.
        gone_to: Records of the tenant up to this number were looked at, and removed if they had to be.
        removed_to: All records of the tenant up to this number were removed.
        clean: Nothing is left to do.
        sums: How many were moved.
        records: How many were written again without a name.
        told: A receipt has both counts.
    """

    tenant: Tenant
    began_ms: Annotated[int, msgspec.Meta(ge=0)]
    until_ms: int = 0
    moved_to: int = 0
    ledger: str = ""
    copied_to: int = 0
    copies_end: int = 0
    gone_to: int = 0
    removed_to: int = 0
    clean: bool = False
    sums: int = 0
    records: int = 0
    told: bool = False

    @property
    def subject(self) -> str:
        """Where the mark is stored."""
        return mark_of(self.tenant)

    def covers(self, record: UsageRecord) -> bool:
        """Whether a record of the tenant counts without its name."""
        return not self.until_ms or record.ended_ms <= self.until_ms

    def again(self) -> "UsageErasure":
        """The mark when a record of the ledger was found that came late."""
        return replace(self, clean=False, copied_to=0, copies_end=0, gone_to=0)


def mark_of(tenant: str) -> str:
    """The subject of a tenant's mark."""
    return streams.usage_sum("erased", tenant, "mark")


def is_mark(subject: str) -> bool:
    """Whether a message among the sums is a mark."""
    return subject.startswith(MARKS.partition("*")[0])


def nameless_sum(name: SumName) -> SumName:
    """The sum that one of an erased tenant is added to."""
    return SumName(name.day, ERASED_TENANTS, "", name.model)


def nameless(record: UsageRecord, day_ms: int) -> UsageRecord:
    """A record without its tenant, its key, the id of its request and its time of day.

    The new id follows from the old one, so copies and other runs of the request are still known as such.

    Args:
        record: Of an erased tenant.
        day_ms: A time within its day in UTC, which stands for the day in the tenant's time zone.
    """
    name = blake2b(f"{record.tenant}/{record.request_id}".encode(), digest_size=16).hexdigest()
    return replace(record, tenant=ERASED_TENANTS, key_id="", request_id=name, ended_ms=day_ms)
