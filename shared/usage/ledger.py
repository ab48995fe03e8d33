"""Writes records of usage to the ledger, a stream of the broker, until it has them.

Records of requests that end at the same moment are one message. It is published before what the owner sends
after `flush`, on the same connection, and published again until it is acknowledged. An acknowledgement alone
is not trusted: after a lost connection, the broker may have been killed with what it had not written, so all
messages of the last seconds are published once more. Copies have the same message id, which the broker drops,
and readers of the ledger count a request once in any case.
"""

import asyncio
import os
from collections import deque
from dataclasses import dataclass
from itertools import repeat

import structlog

from shared.bus.api import Bus, Message, Subscription
from shared.bus.jetstream.stream_messages import MESSAGE_ID
from shared.codec import encode
from shared.errors import RyzError, Unavailable
from shared.messages import UsageRecord, UsageRecords
from shared.streams import usage

TICK_S = 0.25
AGAIN_S = 2.0  # after which a message without an acknowledgement is published again
KEEP_S = 20.0  # for which an acknowledged message is kept, in case its broker is killed
MISSING_S = 10.0  # without any stream, before that is logged: the service that makes it may start later
MAX_BYTES = 32 * 2**20  # of messages that wait, and of those that are kept
MAX_RECORDS = 256  # of a message
CLOSE_S = 2.0
log = structlog.get_logger(__name__)


@dataclass(slots=True)
class LedgerCounts:
    """What became of records.

    Attributes:
        written: Acknowledged by the broker.
        again: Published more than once.
        dropped: Not in the ledger: too many waited, or the broker refused them.
        missing: The broker has no ledger.
    """

    written: int = 0
    again: int = 0
    dropped: int = 0
    missing: bool = False


@dataclass(slots=True, eq=False)
class _Entry:
    number: int
    records: int
    subject: str
    data: bytes
    sent_at: float = 0.0
    acked_at: float = 0.0


class UsageLedger:
    """Writes records. Call `start`, run `send_forever` in a task, and `close` at the end.

    `put` and `flush` never wait and never raise: usage delays and fails no request.

    Args:
        bus: The connection on which the last frames of requests are published.

    Attributes:
        counts: What became of records.
    """

    def __init__(self, bus: Bus) -> None:
        self.counts = LedgerCounts()
        self._bus = bus
        self._writer = os.urandom(9).hex()
        self._inbox = ""
        self._number = 0
        self._gathered: dict[str, list[UsageRecord]] = {}  # by tenant
        self._waiting: dict[int, _Entry] = {}  # by number, the oldest first
        self._waiting_bytes = 0
        self._kept: deque[_Entry] = deque()  # acknowledged, the oldest first
        self._kept_bytes = 0
        self._subscription: Subscription | None = None
        self._restored_at = 0.0
        self._missing_since = 0.0

    @property
    def num_waiting(self) -> int:
        """Records without an acknowledgement."""
        return sum(entry.records for entry in self._waiting.values()) + sum(map(len, self._gathered.values()))

    async def start(self) -> None:
        """Subscribes to acknowledgements."""
        self._inbox = self._bus.new_inbox()
        self._restored_at = self._bus.restored_at
        self._subscription = await self._bus.subscribe(f"{self._inbox}.*", self._on_answer)

    def put(self, record: UsageRecord) -> None:
        """Writes a record soon, with the next `flush` at the latest.

        Several records of one request may be written; the most complete one counts.
        """
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self.flush)
        self._gathered.setdefault(record.tenant, []).append(record)

    def flush(self) -> None:
        """Publishes what was put. What is published afterwards comes after it."""
        if not self._gathered:
            return
        gathered, self._gathered = self._gathered, {}
        for tenant, records in gathered.items():
            for begin in range(0, len(records), MAX_RECORDS):
                self._publish(tenant, records[begin : begin + MAX_RECORDS])

    async def send_forever(self) -> None:
        """Publishes again what has no acknowledgement, until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            if self._bus.restored_at != self._restored_at:
                self._restored_at = self._bus.restored_at
                self._distrust()
            now = self._now()
            while self._kept and (self._kept[0].acked_at < now - KEEP_S or self._kept_bytes > MAX_BYTES):
                self._kept_bytes -= len(self._kept.popleft().data)
            try:
                await self._send_late(now)
            except Unavailable:
                continue  # the broker is away
            except RyzError as error:
                log.error("usage cannot be written", error=error.message)

    async def close(self, timeout_s: float = CLOSE_S) -> None:
        """Waits a short time for acknowledgements."""
        self.flush()
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        for pause_s in repeat(0.02):
            hopeless = self._missing_since or not self._bus.connected
            if not self._waiting or hopeless or loop.time() >= until:
                break
            await asyncio.sleep(pause_s)
        if self._waiting and not self._missing_since:
            log.warning("usage not acknowledged at the end", number=self.num_waiting)
        if self._subscription is not None:
            await self._subscription.unsubscribe()

    def _publish(self, tenant: str, records: list[UsageRecord]) -> None:
        self._number += 1
        data = encode(UsageRecords(records=records))
        entry = _Entry(self._number, len(records), usage(tenant), data)
        self._wait(entry)
        if self.counts.missing:
            return
        try:
            if self._bus.publish_now(
                entry.subject, data, reply=self._reply(entry), headers=self._headers(entry)
            ):
                entry.sent_at = self._now()
        except Unavailable:
            return
        except RyzError as error:
            self._drop(entry, error.message)

    async def _send_late(self, now: float) -> None:
        """Publishes what was never sent, or has had no answer for long; without a ledger, one as a probe."""
        for entry in list(self._waiting.values()):
            if entry.number not in self._waiting:
                continue
            if entry.sent_at <= now - AGAIN_S:
                self.counts.again += entry.records if entry.sent_at else 0
                entry.sent_at = now
                await self._bus.publish(
                    entry.subject, entry.data, reply=self._reply(entry), headers=self._headers(entry)
                )
            if self.counts.missing:
                return

    def _distrust(self) -> None:
        """Lets all that is kept wait again, before what is newer."""
        newer, self._waiting, self._waiting_bytes = self._waiting, {}, 0
        for entry in self._kept:
            self.counts.again += entry.records
        for entry in (*self._kept, *newer.values()):
            entry.sent_at = 0.0
            self._wait(entry)
        self._kept.clear()
        self._kept_bytes = 0

    def _on_answer(self, message: Message) -> None:
        if message.no_responders:
            self._note_missing()
            return
        number = message.subject.rpartition(".")[2]
        entry = self._waiting.get(int(number)) if number.isdigit() else None
        if entry is None:
            return
        if b'"error"' in message.data:  # the stream is full, or away; it is asked again
            if not self._missing_since:
                log.warning("usage is not taken", error=message.data[:200].decode("utf-8", "replace"))
            self._note_missing()
            return
        self._end_wait(entry)
        entry.acked_at = self._now()
        self._kept.append(entry)
        self._kept_bytes += len(entry.data)
        self.counts.written += entry.records
        self._missing_since = 0.0
        if self.counts.missing:
            self.counts.missing = False
            for late in self._waiting.values():
                late.sent_at = 0.0
            log.info("usage is written again", number=self.num_waiting)

    def _note_missing(self) -> None:
        """Logs once that there is no ledger, when that has lasted; then one message at a time is sent."""
        now = self._now()
        self._missing_since = self._missing_since or now
        if not self.counts.missing and now - self._missing_since > MISSING_S:
            self.counts.missing = True
            log.warning(
                "usage is written nowhere: the broker has no stream for it",
                remedy="give the broker JetStream (docs/tenants.md), and run the KV state service",
            )

    def _wait(self, entry: _Entry) -> None:
        self._waiting[entry.number] = entry
        self._waiting_bytes += len(entry.data)
        while self._waiting_bytes > MAX_BYTES:
            self._drop(next(iter(self._waiting.values())), "too many records wait")

    def _end_wait(self, entry: _Entry) -> None:
        del self._waiting[entry.number]
        self._waiting_bytes -= len(entry.data)

    def _drop(self, entry: _Entry, why: str) -> None:
        self._end_wait(entry)
        before, self.counts.dropped = self.counts.dropped, self.counts.dropped + entry.records
        if before.bit_length() != self.counts.dropped.bit_length():  # one line per doubling
            log.warning("usage is lost", why=why, dropped=self.counts.dropped)

    def _reply(self, entry: _Entry) -> str:
        return f"{self._inbox}.{entry.number}"

    def _headers(self, entry: _Entry) -> dict[str, str]:
        return {MESSAGE_ID: f"{self._writer}.{entry.number}"}

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
