"""Carries erasures of usage on, a part at a time: moves sums, then rewrites records of the ledger.

Every step is written under a condition or may be repeated, so a service that is killed between any two of
them counts nothing twice and nothing less. A sum is frozen before it is moved: a writer that does not know of
the erasure fails then. The sum that takes it says which one it took last.

A broker that is killed keeps what was written, and may bring back what was removed or replaced. So a sum
that was moved is written as such; all of a tenant's are removed when the mark says up to which number they
count no more, and again at each start and after each loss of the broker. Records are removed only after the
reader of the ledger has passed their copies.
"""

import time
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from services.kvstate.usage.erased import UsageErasure, nameless, nameless_sum
from services.kvstate.usage.stored_sums import StoredSum, SumName, empty_sum, noon_of
from services.kvstate.usage.streams import UsageStreams
from services.kvstate.usage.sums import UsageSums
from shared import codec
from shared.bus.jetstream.errors import WrongLastMessage
from shared.errors import InvalidRequest
from shared.messages import UsageRecord, UsageRecords
from shared.messages.tenants.accounts import ERASED_TENANTS

SUMS_AT_ONCE = 100
MESSAGES_AT_ONCE = 250


class UsageEraser:
    """Works for the replica that adds usage up, between two reads of the ledger.

    Args:
        streams: The ledger and the sums.
        sums: Those in memory, with the marks of erasures.
        time_zone_of: Of a tenant.
        clock_ms: Milliseconds since 1970.
    """

    def __init__(
        self,
        streams: UsageStreams,
        sums: UsageSums,
        time_zone_of: Callable[[str], str],
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._streams = streams
        self._sums = sums
        self._time_zone_of = time_zone_of
        self._clock_ms = clock_ms

    def nameless(self, record: UsageRecord) -> UsageRecord | None:
        """A record as it counts if its tenant is erased; None: it counts as it is."""
        erasure, _ = self._sums.erasure(record.tenant)
        if erasure is None or not erasure.covers(record):
            return None
        return nameless(record, noon_of(record, self._time_zone_of))

    async def freeze(self) -> None:
        """Freezes the sums of tenants whose erasure has begun, before a record counts without a name.

        Raises:
            WrongLastMessage: Another writer was first. All has to be read anew.
        """
        for erasure, _ in self._sums.erasures():
            if not erasure.until_ms:
                for name in self._sums.names_of(erasure.tenant):
                    stored, seq = self._sums.find(name)
                    if stored is not None and not stored.frozen:
                        await self._freeze(stored, seq)

    async def go_on(self, read_to: int, ledger: str, late: Iterable[str]) -> bool:
        """Does the next part of each erasure; returns whether there may be more to do at once.

        Args:
            read_to: Every record of the ledger up to this number is in the sums.
            ledger: Which ledger that is.
            late: Erased tenants of which records were read since.

        Raises:
            WrongLastMessage: Another writer was first. All has to be read anew.
            Unavailable: The broker is away.
        """
        more = False
        for erasure, seq in self._sums.erasures():
            if not erasure.until_ms:
                more = await self._move_sums(erasure, seq, read_to, ledger) or more
            elif not erasure.clean:
                more = await self._rewrite_records(erasure, seq, read_to, ledger) or more
            elif erasure.tenant in late:
                await self._put(erasure.again(), seq)
                more = True
        return more

    async def remove_again(self, ledger: str) -> None:
        """Removes what was removed before, since a broker that was killed may have brought it back."""
        for erasure, _ in self._sums.erasures():
            if erasure.moved_to:
                await self._streams.remove_sums_of(erasure.tenant, erasure.moved_to)
            if erasure.removed_to and erasure.ledger == ledger:
                await self._streams.remove_records(erasure.tenant, erasure.removed_to)

    async def _put(self, erasure: UsageErasure, seq: int) -> int:
        written = await self._streams.put_erasure(erasure, seq)
        self._sums.put_erasure(erasure, written)
        return written

    async def _freeze(self, stored: StoredSum, seq: int) -> int:
        frozen = replace(stored, frozen=True)
        written = await self._streams.put_sum(frozen, seq)
        self._sums.put(frozen, written)
        return written

    async def _move_sums(self, erasure: UsageErasure, seq: int, read_to: int, ledger: str) -> bool:
        names = self._sums.names_of(erasure.tenant)
        for name in names[:SUMS_AT_ONCE]:
            await self._move(name, read_to, ledger)
        moved = replace(erasure, sums=erasure.sums + len(names[:SUMS_AT_ONCE]))
        if names:
            await self._put(moved, seq)
            return True
        seq = await self._put(moved, seq)  # all that was moved has a smaller number
        await self._put(replace(moved, until_ms=self._clock_ms(), moved_to=seq), seq)
        await self._streams.remove_sums_of(erasure.tenant, seq)
        return True

    async def _move(self, name: SumName, read_to: int, ledger: str) -> None:
        # In this order: a source that is still there after its target was read, and that the target has not
        # taken last, was not moved, if the target does not change before it is written.
        target, target_seq = await self._streams.sum_now(nameless_sum(name))
        source, source_seq = await self._streams.sum_now(name)
        if source is None or source.moved:
            self._sums.drop(name)
            return
        for one in (source, target):
            if one is not None and one.ledger == ledger and one.read_to > read_to:
                raise WrongLastMessage("another replica has added more up")
        if not source.frozen:
            source_seq = await self._freeze(source, source_seq)
        if target is None or target.took != source_seq:
            taken = (target or empty_sum(nameless_sum(name))).with_sum(source, source_seq, read_to, ledger)
            self._sums.put(taken, await self._streams.put_sum(taken, target_seq))
        moved = replace(empty_sum(name), frozen=True, moved=True)
        self._sums.put(moved, await self._streams.put_sum(moved, source_seq))

    async def _rewrite_records(self, erasure: UsageErasure, seq: int, read_to: int, ledger: str) -> bool:
        if erasure.ledger != ledger:
            erasure = replace(erasure, ledger=ledger, copied_to=0, copies_end=0, gone_to=0, removed_to=0)
        tenant = erasure.tenant
        if erasure.copied_to > erasure.gone_to:
            if read_to < erasure.copies_end:
                return True
            await self._streams.remove_records(tenant, erasure.copied_to)
            gone_to = erasure.copied_to
            await self._put(replace(erasure, gone_to=gone_to, removed_to=gone_to), seq)
            return True
        found = [
            one
            for one in await self._streams.records_of(tenant, erasure.copied_to, MESSAGES_AT_ONCE)
            if one.seq <= read_to
        ]
        messages = [(one.seq, *self._parted(one.data)) for one in found]
        while messages and not messages[-1][1]:
            messages.pop()  # after the last record that has to go there is nothing to write again
        if not messages:
            rest = replace(erasure, clean=not found, copied_to=erasure.copied_to)
            if found:  # all of these stay; those behind them are looked at, too
                rest = replace(rest, copied_to=found[-1].seq, gone_to=found[-1].seq)
            await self._put(rest, seq)
            return bool(found)
        end = count = 0
        for _, covered, others in messages:
            for whose, records in ((ERASED_TENANTS, covered), (tenant, others)):
                if records:
                    end = await self._streams.add_records(whose, records)
            count += len(covered)
        copied = replace(erasure, copied_to=messages[-1][0], copies_end=end, records=erasure.records + count)
        await self._put(copied, seq)
        return True

    def _parted(self, data: bytes) -> tuple[list[UsageRecord], list[UsageRecord]]:
        """The records of a message without names, and those that stay as they are."""
        covered, others = list[UsageRecord](), list[UsageRecord]()
        try:
            records = codec.decode(data, UsageRecords).records
        except InvalidRequest:  # it counts for nothing, and goes with the others
            return covered, others
        for record in records:
            bare = self.nameless(record)
            (others if bare is None else covered).append(record if bare is None else bare)
        return covered, others
