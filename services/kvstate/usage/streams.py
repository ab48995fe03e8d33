"""The two streams of usage: the ledger, which leaders write, and the sums of days.

A reader of the sums follows their stream: each subject has its newest message only, so what comes after a
number is what was changed since.
"""

import msgspec

from services.kvstate.usage.stored_sums import StoredSum
from services.kvstate.usage.sums import UsageSums
from shared import codec, streams
from shared.bus.jetstream.jetstream import JetStream
from shared.bus.jetstream.stream_messages import NANOSECONDS, StoredMessage, stream_config
from shared.errors import InvalidRequest
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
                if message.subject != POSITION:
                    sums.put(codec.decode(message.data, StoredSum), message.seq)
            sums.seen = max(sums.seen, found[-1].seq)

    async def put_sum(self, stored: StoredSum, expected: int) -> int:
        """Writes a sum in place of that number; raises `WrongLastMessage` if there is another."""
        data = codec.encode(stored)
        return await self.jetstream.put(stored.name.subject, data, expected_last=expected)

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
