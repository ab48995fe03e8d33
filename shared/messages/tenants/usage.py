"""What requests have used: the records of the ledger, and the call for their sums.

A leader writes the record of a request before it sends the last frame; the KV state service adds records up,
each request id once (see `docs/tenants.md`).
"""

from typing import Annotated, ClassVar, Literal

import msgspec

from shared.messages.base import DEFAULT_TENANT, SMALL, TENANT_OR_NONE, ModelName, RequestId, Tenant, Wire
from shared.messages.tenants.accounts import NO_KEY_OR_ID

Count = Annotated[int, msgspec.Meta(ge=0)]
Day = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\d\Z", description="In the tenant's time zone.")]


class UsageRecord(Wire, frozen=True, kw_only=True):
    """What one request has used, all its attempts together.

    Attributes:
        model: What was served, adapters as `base:name`.
        cached_tokens: Those of `prompt_tokens` whose KV was not computed again.
        reasoning_tokens: Those of `completion_tokens` that are reasoning.
        embedded_tokens: Prompt tokens of an embedding; they are not among `prompt_tokens`.
        queue_ms: From its arrival at the group to its first step.
        compute_ms: From its first step to its end.
        ended_ms: Milliseconds since 1970.
        outcome: How it ended; `cut`: its caller left, or cancelled it.
        batch: It is a line of a batch.
    """

    max_bytes: ClassVar[int] = SMALL
    request_id: RequestId
    tenant: Tenant = DEFAULT_TENANT
    key_id: NO_KEY_OR_ID = ""
    model: ModelName
    prompt_tokens: Count = 0
    cached_tokens: Count = 0
    completion_tokens: Count = 0
    reasoning_tokens: Count = 0
    embedded_tokens: Count = 0
    queue_ms: Count = 0
    compute_ms: Count = 0
    ended_ms: Count = 0
    outcome: Literal["done", "cut", "failed"] = "done"
    batch: bool = False


class UsageRecords(Wire, frozen=True, kw_only=True):
    """A message of the ledger: records of one tenant, of requests that ended at the same moment."""

    records: list[UsageRecord]


class UsageQuery(Wire, frozen=True, kw_only=True):
    """Asks for sums by day, tenant, key and model.

    Attributes:
        tenant: Empty: all.
        since: First day; empty: the first one that is kept.
        until: Last day; empty: today.
        cursor: Where the page before ended; empty: from the beginning.
    """

    max_bytes: ClassVar[int] = SMALL
    tenant: Annotated[str, msgspec.Meta(pattern=TENANT_OR_NONE)] = ""
    since: Annotated[str, msgspec.Meta(max_length=10)] = ""
    until: Annotated[str, msgspec.Meta(max_length=10)] = ""
    cursor: Annotated[str, msgspec.Meta(max_length=512)] = ""


class UsageSum(Wire, frozen=True, kw_only=True):
    """A day's sum for one tenant, key and model; fields as in `UsageRecord`.

    Attributes:
        money: In millionths of the currency, by the prices of the time when requests ended.
    """

    day: Day
    tenant: Tenant
    key_id: NO_KEY_OR_ID = ""
    model: ModelName
    requests: Count = 0
    prompt_tokens: Count = 0
    cached_tokens: Count = 0
    completion_tokens: Count = 0
    reasoning_tokens: Count = 0
    embedded_tokens: Count = 0
    queue_ms: Count = 0
    compute_ms: Count = 0
    money: Count = 0


class UsagePage(Wire, frozen=True, kw_only=True):
    """Answer to `UsageQuery`, by day, tenant, key and model; `cursor` is empty at the end.

    Attributes:
        read_to: Number of the last record of the ledger that is in the sums.
    """

    sums: list[UsageSum] = []
    currency: str = ""
    read_to: Count = 0
    cursor: str = ""
