"""Reads the ledger of usage and adds each request to its day's sum, once.

Each sum says up to which record of the ledger it goes, and is written under the condition that no other
writer has changed it. So a crash between any two writes, and a second replica that does the same, count
nothing twice and nothing less. A lease lets one replica work at a time; nothing but work depends on it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from operator import add
from typing import NamedTuple

import structlog

from services.kvstate.usage.erased import nameless_sum
from services.kvstate.usage.eraser import UsageEraser
from services.kvstate.usage.kept_records import KeptRecords
from services.kvstate.usage.kept_sums import KeptSums
from services.kvstate.usage.metrics import UsageMetrics
from services.kvstate.usage.request_index import MAX_IDS, Added, RequestIndex
from services.kvstate.usage.stored_sums import (
    NOTHING,
    Counts,
    StoredSum,
    SumName,
    counts_of,
    empty_sum,
    name_of,
)
from services.kvstate.usage.streams import AT_ONCE, Position, UsageStreams
from services.kvstate.usage.sums import UsageSums
from shared import codec
from shared.accounts.register import AccountRegister
from shared.bus.jetstream.errors import NoJetStream, WrongLastMessage
from shared.bus.jetstream.stream_messages import StoredMessage
from shared.errors import InvalidRequest, RyzError
from shared.messages import UsageRecords
from shared.telemetry.repeated import RepeatedLog

EVERY_S = 0.5
AWAY_S = 2.0
log = structlog.get_logger(__name__)


class _Change(NamedTuple):
    """A sum as it was when it was looked at, its number, and what it gets.

    The sums in memory may be read anew before the change is written, and have the same records already.
    """

    before: StoredSum
    seq: int
    counts: Counts


class UsageRoller:
    """Adds records up.

    Args:
        streams: The ledger and the sums.
        sums: Those in memory.
        register: Knows time zones and prices.
        metrics: Counts what was added.
        keep_days: How long sums are kept.
        max_ids: Requests that are known as counted.

    Attributes:
        read_to: Number of the last record that is in the sums.
        has_more: An erasure has more to do.
    """

    def __init__(
        self,
        streams: UsageStreams,
        sums: UsageSums,
        register: AccountRegister,
        metrics: UsageMetrics,
        *,
        keep_days: int,
        max_ids: int = MAX_IDS,
    ) -> None:
        self.read_to = 0
        self.has_more = False
        self._streams = streams
        self._sums = sums
        self._register = register
        self._metrics = metrics
        self._kept = KeptSums(register, keep_days)
        self._kept_records = KeptRecords(streams, register)
        self._max_ids = max_ids
        self._index = RequestIndex(max_ids)
        self._ledger = ""
        self._position_at = 0
        self._ready = False
        self._may_be_back = True  # what erasures have removed: the broker may have been killed meanwhile
        self._repeated = RepeatedLog(log)
        self._eraser = UsageEraser(streams, sums, self._time_zone_of)
        self._erasures: frozenset[tuple[str, int]] = frozenset()  # those that the index knows of
        self._late: set[str] = set()

    async def run_forever(
        self, restored_at: Callable[[], float], may_roll: Callable[[], Awaitable[bool]]
    ) -> None:
        """Works until cancelled.

        Args:
            restored_at: When the connection to the broker was restored: it may have lost its disk.
            may_roll: Whether this replica is the one that works.
        """
        known: float | None = None
        while True:
            pause_s = EVERY_S
            try:
                if (restored := restored_at()) != known:
                    await self._streams.ensure()  # replicas that wait for the work read them, too
                    known, self._ready, self._may_be_back = restored, False, True
                if not await may_roll():
                    self._ready = False
                    await self._streams.refresh(self._sums)
                    self._sums.drop_all(self._over())  # the one that works removes them from the stream
                elif await self.roll_once() == AT_ONCE or self.has_more:
                    pause_s = 0.0
            except WrongLastMessage:
                pass  # another replica was first; what it wrote is read
            except NoJetStream as error:
                self._repeated.warning("usage is not added up", subject="ledger", error=error.message)
                pause_s = AWAY_S
            except RyzError as error:
                self._repeated.warning("usage is not added up now", subject="ledger", error=error.message)
                pause_s = AWAY_S
            await asyncio.sleep(pause_s)

    async def roll_once(self) -> int:
        """Adds the next records; returns how many there were.

        Raises:
            WrongLastMessage: Another writer was first. The next call begins anew.
            Unavailable: The broker is away.
        """
        if self._ready:
            await self._streams.refresh(self._sums)  # with the marks of erasures
            self._ready = self._erasures == self._begun_erasures()
        if not self._ready:
            await self._begin()
        self._ready = False  # until all is written: what is in memory may differ from the streams
        found = await self._streams.records(self.read_to)
        if found:
            await self._check_position()
            for change in self._changes(found).values():
                await self._write(change, found[-1].seq)
            self.read_to = found[-1].seq
            position = Position(read_to=self.read_to, ledger=self._ledger)
            self._position_at = await self._streams.put_position(position, self._position_at)
        await self._remove_old()
        await self._kept_records.remove_old(self.read_to, time.time_ns() // 1_000_000)
        self.has_more = await self._eraser.go_on(self.read_to, self._ledger, self._late)
        self._late.clear()
        self._ready = True
        return len(found)

    async def _check_position(self) -> None:
        """Raises `WrongLastMessage` if another replica has read on.

        Records of erased tenants are removed when the position has passed their copies. So with the position
        that this one knows, what was read after it is whole, and copies are known as such.
        """
        if (await self._streams.position())[1] != self._position_at:
            raise WrongLastMessage("another replica has read on")

    async def _begin(self) -> None:
        """Reads what was stored, and the ids of the requests that were counted last."""
        self._ledger = await self._streams.ensure()
        fresh = UsageSums()
        await self._streams.refresh(fresh)
        self._sums.replace_all(fresh)
        self._kept.forget()
        if self._may_be_back:
            await self._eraser.remove_again(self._ledger)
            self._may_be_back = False
        await self._eraser.freeze()
        self._erasures = self._begun_erasures()
        position, self._position_at = await self._streams.position()
        self.read_to = position.read_to if position.ledger == self._ledger else 0
        self._index = RequestIndex(self._max_ids)
        after = max(0, self.read_to - self._index.reach)
        while after < self.read_to:
            found = [one for one in await self._streams.records(after) if one.seq <= self.read_to]
            if not found:
                break
            for message in found:
                for _ in self._added(message):
                    pass  # it is in the sums
            after = found[-1].seq

    def _begun_erasures(self) -> frozenset[tuple[str, int]]:
        return frozenset((one.tenant, one.began_ms) for one, _ in self._sums.erasures())

    def _changes(self, found: list[StoredMessage]) -> dict[SumName, _Change]:
        """What records add to each sum, without those that it has."""
        changes: dict[SumName, _Change] = {}
        for message in found:
            for name, counts, own in self._added(message):
                if own is not None and self._has(own, message.seq):
                    continue  # it was counted before its tenant was erased, and that sum is to be moved
                change = changes.get(name)
                if change is None:
                    stored, seq = self._sums.find(name)
                    change = _Change(stored or empty_sum(name), seq, NOTHING)
                before = change.before
                if before.ledger == self._ledger and message.seq <= before.read_to:
                    continue
                changes[name] = change._replace(counts=tuple(map(add, change.counts, counts)))
        return changes

    def _has(self, name: SumName, seq: int) -> bool:
        stored, _ = self._sums.find(name)
        return stored is not None and stored.ledger == self._ledger and seq <= stored.read_to

    def _added(self, message: StoredMessage) -> Iterator[Added]:
        """Yields what the records of a message add."""
        try:
            records = codec.decode(message.data, UsageRecords).records
        except InvalidRequest as error:
            why = error.message
            self._repeated.warning("records of usage cannot be read", subject=message.subject, error=why)
            return
        for record in records:
            name = name_of(record, self._time_zone_of)
            counts = counts_of(record, self._register.price(record.model))
            bare = self._eraser.nameless(record)
            if bare is None:
                added = self._index.add(record, name, counts)
            else:
                self._late.add(record.tenant)
                added = self._index.add(bare, nameless_sum(name), counts, name)
            if added is not None:
                yield added

    async def _write(self, change: _Change, read_to: int) -> None:
        more = change.before.plus(change.counts, read_to, self._ledger)
        written = await self._streams.put_sum(more, change.seq)
        self._sums.put(more, written)
        self._metrics.count(more.total.model, change.counts)

    def _time_zone_of(self, tenant: str) -> str:
        record = self._register.tenant(tenant)
        return "UTC" if record is None else record.time_zone

    async def _remove_old(self) -> None:
        over = self._over()
        for name in over:
            await self._streams.remove_sum(name)
        self._sums.drop_all(over)

    def _over(self) -> list[SumName]:
        return self._kept.over(self._sums, datetime.fromtimestamp(time.time(), UTC).date())
