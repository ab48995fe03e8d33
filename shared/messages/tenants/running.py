"""Reports of leaders on requests of services outside that count for a limit of running requests.

A gateway sees the end of what it asked for; a router does not, so the leader tells it. Each report that names
a request prolongs it at the router, as a call of `LeaseLimits` prolongs what a holder has at the store.
"""

from typing import Annotated, ClassVar

import msgspec

from shared.messages.base import Attempt, GroupName, RequestId, Tenant, Wire
from shared.messages.tenants.accounts import NO_KEY_OR_ID

MAX_REPORTED = 2000


class CountedRequest(Wire, frozen=True, kw_only=True):
    """One attempt at a request that a router counts among the running ones of a tenant.

    Attributes:
        key_id: The record of the bus user.
    """

    tenant: Tenant
    key_id: NO_KEY_OR_ID = ""
    request_id: RequestId
    attempt: Attempt = 0


class RunningReport(Wire, frozen=True, kw_only=True):
    """Sent to the router that counts these requests; if it is gone, to any other, which counts them then.

    Attributes:
        instance_id: The leader.
        running: What runs here; sent every few seconds, and answered by `RunningCounted`.
        ended: What does not run here any more, or was never begun; sent at once.
    """

    max_bytes: ClassVar[int] = 512 * 1024
    group: GroupName
    instance_id: str
    running: Annotated[list[CountedRequest], msgspec.Meta(max_length=MAX_REPORTED)] = []
    ended: Annotated[list[CountedRequest], msgspec.Meta(max_length=MAX_REPORTED)] = []


class RunningCounted(Wire, frozen=True, kw_only=True):
    """Answer to `RunningReport`.

    Attributes:
        counted_by: The subject of the router that counts the requests from now on.
    """

    counted_by: str
