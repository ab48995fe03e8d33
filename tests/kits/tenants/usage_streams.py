"""The streams of usage in memory, which a test lets fail before or after a write."""

from collections.abc import Callable

from services.kvstate.usage.stored_sums import StoredSum
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

    def add(self, record: UsageRecord) -> None:
        """A leader writes a record."""
        seq = len(self.ledger) + 1
        self.ledger.append(
            StoredMessage(seq, streams.usage(record.tenant), codec.encode(UsageRecords(records=[record])))
        )

    async def ensure(self) -> str:
        """See `UsageStreams`."""
        self._step()
        return self.name

    async def records(self, after: int) -> list[StoredMessage]:
        """See `UsageStreams`."""
        self._step()
        return self.ledger[after : after + self.at_once]

    async def refresh(self, sums: UsageSums) -> None:
        """See `UsageStreams`."""
        self._step()
        for seq, stored in self.stored.values():
            sums.put(stored, seq)

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
