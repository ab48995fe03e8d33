"""A ledger of usage in memory, in place of the broker's stream."""

import msgspec

from shared import codec, streams
from shared.bus.api import Bus, Message, Subscription
from shared.bus.jetstream.stream_messages import MESSAGE_ID
from shared.messages import UsageRecord, UsageRecords


class MemoryLedger:
    """Takes records on a bus, and acknowledges them.

    Attributes:
        records: In order, without those whose message id was there before.
        messages: How many came.
        copies: Records that came again.
        silent: Whether it leaves records out without an answer.
    """

    def __init__(self, bus: Bus) -> None:
        self.records: list[UsageRecord] = []
        self.messages = self.copies = 0
        self.silent = False
        self._bus = bus
        self._ids = set[str]()
        self._subscription: Subscription | None = None

    async def start(self) -> None:
        """Takes records from here on."""
        self._subscription = await self._bus.subscribe(streams.usage("*"), self._take)

    async def stop(self) -> None:
        """The stream is gone."""
        assert self._subscription is not None
        await self._subscription.unsubscribe()

    def lose_last(self) -> None:
        """Forgets the last record, which it has acknowledged."""
        self.records.pop()
        self._ids.clear()

    async def _take(self, message: Message) -> None:
        if self.silent:
            return
        self.messages += 1
        name = message.headers[MESSAGE_ID]
        self.copies += name in self._ids
        if name not in self._ids:
            self._ids.add(name)
            self.records += codec.decode(message.data, UsageRecords).records
        await self._bus.publish(message.reply, msgspec.json.encode({"seq": len(self.records)}))
