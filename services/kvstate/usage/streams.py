"""The two streams of usage: the ledger, which leaders write, and the sums of days.

A reader of the sums follows their stream: each subject has its newest message only, so what comes after a
number is what was changed since.
"""

import msgspec

from services.kvstate.usage.erased import UsageErasure, is_mark, mark_of
from services.kvstate.usage.stored_sums import StoredSum, SumName
from services.kvstate.usage.sums import UsageSums
from shared import codec, streams
from shared.bus.jetstream.jetstream import JetStream
from shared.bus.jetstream.stream_messages import NANOSECONDS, StoredMessage, stream_config
from shared.errors import InvalidRequest
from shared.messages import UsageRecord, UsageRecords
from shared.messages.base import Wire

DAY_S = 86_400
# A record is in its sum within seconds. A month more lets an operator look into a bill of the month before.
LEDGER_DAYS = 35
DUPLICATES_S = 600  # longer than a writer publishes a record again; each id takes about 100 bytes meanwhile
POSITION = streams.usage_sum("position", "-", "ledger")
ALL_SUMS = streams.usage_sum("*", "*", "*")
AT_ONCE = 1000


class Position(Wire, frozen=True, kw_only=True):
    """How far the ledger is read: every record up to this number is in the sums."""

    read_to: int = 0
    ledger: str = ""


class UsageStreams:
    """Makes, reads and writes both.

    Args:
        jetstream: The broker's.
        keep_days: How long sums are kept.
    """

    def __init__(self, jetstream: JetStream, keep_days: int) -> None:
        self.jetstream = jetstream
        self._keep_days = keep_days

    async def ensure(self) -> str:
        """Makes the streams, unless they are there; returns which ledger it is."""
        ledger = stream_config(
            streams.USAGE_STREAM,
            [streams.usage("*")],
            max_age=LEDGER_DAYS * DAY_S * NANOSECONDS,
            duplicate_window=DUPLICATES_S * NANOSECONDS,
            discard="old",
        )
        sums = stream_config(
            streams.USAGE_SUMS_STREAM,
            [ALL_SUMS],
            max_age=(self._keep_days + 1) * DAY_S * NANOSECONDS,
            max_msgs_per_subject=1,
            discard="old",
        )
        for config in (ledger, sums):
            await self.jetstream.ensure_stream(config)
        return await self.jetstream.created(streams.USAGE_STREAM)

    async def records(self, after: int) -> list[StoredMessage]:
        """The next records of the ledger."""
        return await self.jetstream.read(streams.USAGE_STREAM, streams.usage("*"), after, AT_ONCE)

    async def refresh(self, sums: UsageSums) -> None:
        """Reads what was changed of the sums."""
        while found := await self.jetstream.read(streams.USAGE_SUMS_STREAM, ALL_SUMS, sums.seen, AT_ONCE):
            for message in found:
                if is_mark(message.subject):
                    sums.put_erasure(codec.decode(message.data, UsageErasure), message.seq)
                elif message.subject != POSITION:
                    sums.put(codec.decode(message.data, StoredSum), message.seq)
            sums.seen = max(sums.seen, found[-1].seq)

    async def put_sum(self, stored: StoredSum, expected: int) -> int:
        """Writes a sum in place of that number; raises `WrongLastMessage` if there is another."""
        data = codec.encode(stored)
        return await self.jetstream.put(stored.name.subject, data, expected_last=expected)

    async def sum_now(self, name: SumName) -> tuple[StoredSum | None, int]:
        """A sum and its number as they are stored now; None and 0: there is none."""
        found = await self.jetstream.last(streams.USAGE_SUMS_STREAM, name.subject)
        return (None, 0) if found is None else (codec.decode(found.data, StoredSum), found.seq)

    async def remove_sum(self, name: SumName) -> None:
        """Removes a sum."""
        await self.jetstream.purge(streams.USAGE_SUMS_STREAM, name.subject)

    async def remove_sums_of(self, tenant: str, before: int) -> None:
        """Removes a tenant's sums with smaller numbers, and marks of its erasure among them."""
        of_tenant = streams.usage_sum("*", tenant, "*")
        await self.jetstream.purge(streams.USAGE_SUMS_STREAM, of_tenant, before=before)

    async def erasure(self, tenant: str) -> tuple[UsageErasure | None, int]:
        """The mark of a tenant's erasure and its number; None and 0: there is none."""
        found = await self.jetstream.last(streams.USAGE_SUMS_STREAM, mark_of(tenant))
        return (None, 0) if found is None else (codec.decode(found.data, UsageErasure), found.seq)

    async def put_erasure(self, erasure: UsageErasure, expected: int) -> int:
        """Writes the mark of an erasure; raises like `put_sum`."""
        return await self.jetstream.put(erasure.subject, codec.encode(erasure), expected_last=expected)

    async def records_of(self, tenant: str, after: int, limit: int) -> list[StoredMessage]:
        """The next records of a tenant in the ledger."""
        return await self.jetstream.read(streams.USAGE_STREAM, streams.usage(tenant), after, limit)

    async def add_records(self, tenant: str, records: list[UsageRecord]) -> int:
        """Writes records into the ledger; returns the number of their message."""
        return await self.jetstream.put(streams.usage(tenant), codec.encode(UsageRecords(records=records)))

    async def remove_records(self, tenant: str, up_to: int) -> None:
        """Removes a tenant's records from the ledger, up to that number."""
        await self.jetstream.purge(streams.USAGE_STREAM, streams.usage(tenant), before=up_to + 1)

    async def position(self) -> tuple[Position, int]:
        """How far the ledger is read, and the number of that message; 0: it was never."""
        found = await self.jetstream.last(streams.USAGE_SUMS_STREAM, POSITION)
        if found is None:
            return Position(), 0
        try:
            return codec.decode(found.data, Position), found.seq
        except (InvalidRequest, msgspec.MsgspecError):
            return Position(), found.seq

    async def put_position(self, position: Position, expected: int) -> int:
        """Writes how far the ledger is read; raises like `put_sum`."""
        return await self.jetstream.put(POSITION, codec.encode(position), expected_last=expected)
