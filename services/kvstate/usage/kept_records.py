"""Removes records of requests from the ledger that their tenant keeps no longer, once they are in the sums.

A tenant's records are messages of one subject, in the order in which they were written, so those that are
over come first.
"""

from services.kvstate.usage.streams import UsageStreams
from shared import codec
from shared.accounts.register import AccountRegister
from shared.bus.jetstream.stream_messages import StoredMessage
from shared.errors import InvalidRequest
from shared.messages import UsageRecords

DAY_MS = 86_400_000
EVERY_MS = 3_600_000  # the records of tenants with days of their own are looked at
AT_ONCE = 500


class KeptRecords:
    """Looks once an hour, and after each change of a tenant's days.

    Args:
        streams: Of usage.
        register: Knows the days of tenants.
    """

    def __init__(self, streams: UsageStreams, register: AccountRegister) -> None:
        self._streams = streams
        self._register = register
        self._due: dict[str, tuple[int, int]] = {}  # by tenant: its days, and when to look again

    async def remove_old(self, read_to: int, now_ms: int) -> None:
        """Removes some records; the next call goes on.

        Args:
            read_to: Every record up to this number is in the sums.
            now_ms: Milliseconds since 1970.

        Raises:
            Unavailable: The broker is away.
        """
        for record in self._register.tenants():
            days, (before, due_ms) = record.record_days, self._due.get(record.tenant, (0, 0))
            if not days or (days == before and now_ms < due_ms):
                continue
            found = await self._streams.records_of(record.tenant, 0, AT_ONCE)
            over = 0
            for message in found:
                if message.seq > read_to or _newest_ms(message) > now_ms - days * DAY_MS:
                    break
                over = message.seq
            if over:
                await self._streams.remove_records(record.tenant, over)
            if not found or over < found[-1].seq:  # else there may be more
                self._due[record.tenant] = days, now_ms + EVERY_MS


def _newest_ms(message: StoredMessage) -> int:
    """When the last request of a message ended; 0: it cannot be read, and counts for nothing."""
    try:
        records = codec.decode(message.data, UsageRecords).records
    except InvalidRequest:
        return 0
    return max([one.ended_ms for one in records], default=0)
