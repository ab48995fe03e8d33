"""The streams of usage in memory, which a test lets fail before or after a write."""

from collections.abc import Callable

from services.kvstate.usage.erased import UsageErasure
from services.kvstate.usage.stored_sums import StoredSum, SumName
from services.kvstate.usage.streams import AT_ONCE, Position
from services.kvstate.usage.sums import UsageSums
from shared import codec, streams
from shared.bus.jetstream.errors import WrongLastMessage
from shared.bus.jetstream.stream_messages import StoredMessage
from shared.errors import Unavailable
from shared.messages import UsageRecord, UsageRecords


class MemoryUsageStreams:
    """Implements `UsageStreams`.

    Attributes:
        name: Of the ledger; another one has its own numbers.
        ledger: The records.
        marks: Of erasures, by tenant.
        fails: Asked before and after each step; true: the step raises.
        at_once: Records in one read.
    """

    def __init__(self, fails: Callable[[], bool] = lambda: False, at_once: int = AT_ONCE) -> None:
        self.name = "the ledger"
        self.ledger: list[StoredMessage] = []
        self.fails = fails
        self.at_once = at_once
        self.stored: dict[str, tuple[int, StoredSum]] = {}
        self._position = Position(), 0
        self._seq = 0
        self._written = 0
        self.marks: dict[str, tuple[UsageErasure, int]] = {}

    def add(self, record: UsageRecord) -> None:
        """A leader writes a record."""
        self._write(record.tenant, [record])

    async def ensure(self) -> str:
        """See `UsageStreams`."""
        self._step()
        return self.name

    async def records(self, after: int) -> list[StoredMessage]:
        """See `UsageStreams`."""
        self._step()
        return [one for one in self.ledger if one.seq > after][: self.at_once]

    async def refresh(self, sums: UsageSums) -> None:
        """See `UsageStreams`."""
        self._step()
        for seq, stored in self.stored.values():
            sums.put(stored, seq)
        for erasure, seq in self.marks.values():
            sums.put_erasure(erasure, seq)

    async def put_sum(self, stored: StoredSum, expected: int) -> int:
        """See `UsageStreams`."""
        self._step()
        known, _ = self.stored.get(stored.name.subject, (0, None))
        if known != expected:
            raise WrongLastMessage("another writer was first")
        self._seq += 1
        self.stored[stored.name.subject] = self._seq, stored
        self._step()
        return self._seq

    async def sum_now(self, name: SumName) -> tuple[StoredSum | None, int]:
        """See `UsageStreams`."""
        self._step()
        seq, stored = self.stored.get(name.subject, (0, None))
        return stored, seq

    async def remove_sum(self, name: SumName) -> None:
        """See `UsageStreams`."""
        self._step()
        self.stored.pop(name.subject, None)
        self._step()

    async def remove_sums_of(self, tenant: str, before: int) -> None:
        """See `UsageStreams`."""
        self._step()
        self.stored = {
            subject: (seq, one)
            for subject, (seq, one) in self.stored.items()
            if one.total.tenant != tenant or seq >= before
        }
        self._step()

    async def erasure(self, tenant: str) -> tuple[UsageErasure | None, int]:
        """See `UsageStreams`."""
        self._step()
        return self.marks.get(tenant, (None, 0))

    async def put_erasure(self, erasure: UsageErasure, expected: int) -> int:
        """See `UsageStreams`."""
        self._step()
        if self.marks.get(erasure.tenant, (None, 0))[1] != expected:
            raise WrongLastMessage("another writer was first")
        self._seq += 1
        self.marks[erasure.tenant] = erasure, self._seq
        self._step()
        return self._seq

    async def records_of(self, tenant: str, after: int, limit: int) -> list[StoredMessage]:
        """See `UsageStreams`."""
        self._step()
        mine = [one for one in self.ledger if one.subject == streams.usage(tenant) and one.seq > after]
        return mine[: min(limit, self.at_once)]

    async def add_records(self, tenant: str, records: list[UsageRecord]) -> int:
        """See `UsageStreams`."""
        self._step()
        seq = self._write(tenant, records)
        self._step()
        return seq

    async def remove_records(self, tenant: str, up_to: int) -> None:
        """See `UsageStreams`."""
        self._step()
        subject = streams.usage(tenant)
        self.ledger = [one for one in self.ledger if one.subject != subject or one.seq > up_to]
        self._step()

    def _write(self, tenant: str, records: list[UsageRecord]) -> int:
        self._written += 1
        data = codec.encode(UsageRecords(records=records))
        self.ledger.append(StoredMessage(self._written, streams.usage(tenant), data))
        return self._written

    async def position(self) -> tuple[Position, int]:
        """See `UsageStreams`."""
        self._step()
        return self._position

    async def put_position(self, position: Position, expected: int) -> int:
        """See `UsageStreams`."""
        self._step()
        if self._position[1] != expected:
            raise WrongLastMessage("another writer was first")
        self._seq += 1
        self._position = position, self._seq
        self._step()
        return self._seq

    def _step(self) -> None:
        if self.fails():
            raise Unavailable("the broker is away")
