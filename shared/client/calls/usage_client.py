"""Asks the KV state service for sums of usage."""

from dataclasses import dataclass

from shared import subjects
from shared.bus import Bus
from shared.bus.endpoint import call
from shared.messages import UsagePage, UsageQuery, UsageSum

ANSWER_S = 5.0


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Sums by day, tenant, key and model.

    Attributes:
        currency: The word beside money; empty: none was given.
    """

    sums: list[UsageSum]
    currency: str


class UsageClient:
    """Asks the service.

    Args:
        bus: The connection.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def read_sums(self, tenant: str = "", since: str = "", until: str = "") -> UsageReport:
        """All sums of some days.

        Args:
            tenant: Empty: all.
            since: The first day, as 2026-01-31; empty: the first that is kept.
            until: The last day; empty: today.

        Raises:
            Unavailable: The service is away, or its broker has no JetStream.
        """
        sums: list[UsageSum] = []
        cursor, currency = "", ""
        while True:
            query = UsageQuery(tenant=tenant, since=since, until=until, cursor=cursor)
            page = await call(self._bus, subjects.USAGE, query, UsagePage, timeout_s=ANSWER_S)
            sums += page.sums
            cursor, currency = page.cursor, page.currency
            if not cursor:
                return UsageReport(sums, currency)
