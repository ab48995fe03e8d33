"""The records of batches in a stream of the broker: the last message under a batch's subject is its record.

Every change is written under the condition that the record is the one that was read, so of two writers one
reads again. A lease in the record says which gateway works on the batch. Records are also held here, as they
were at the last `poll`.
"""

import time
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from services.gateway.resources.batches.record import BatchRecord, claimed
from shared.bus.jetstream.errors import NoStream, WrongLastMessage
from shared.bus.jetstream.jetstream import JetStream
from shared.bus.jetstream.stream_messages import NANOSECONDS, StoredMessage, stream_config
from shared.errors import BatchNotFound, Unavailable
from shared.streams import BATCHES_STREAM, batch_record

MAX_TRIES = 50
DAY_S = 86_400
Change = Callable[[BatchRecord], BatchRecord]


class LeaseLost(Exception):
    """Another gateway looks after the batch now."""


class BatchLog:
    """Reads and writes records.

    Args:
        jetstream: The broker's.
        ttl_s: How long a record is kept after its last change.
        days_of: How many days batches of a tenant are kept after their end; 0: for `ttl_s`.
    """

    def __init__(
        self, jetstream: JetStream, ttl_s: float, days_of: Callable[[str], int] = lambda _: 0
    ) -> None:
        self._jetstream = jetstream
        self._ttl_s = ttl_s
        self._days_of = days_of
        self._seen = 0
        self.records: dict[str, BatchRecord] = {}

    async def ensure_streams(self) -> None:
        """Makes the stream, unless it is there; raises `NoJetStream` if the broker has none."""
        await self._jetstream.ensure_stream(
            stream_config(
                BATCHES_STREAM,
                [batch_record("*", "*")],
                max_msgs_per_subject=1,
                max_age=round(self._ttl_s * NANOSECONDS),
            )
        )

    async def check_jetstream(self) -> None:
        """Raises `NoJetStream` if the broker has none; without a stream, reading does not tell."""
        await self._jetstream.last(BATCHES_STREAM, batch_record("-", "-"))

    async def create(self, record: BatchRecord) -> None:
        """Writes a new record."""
        subject = batch_record(record.tenant, record.batch_id)
        await self._jetstream.put(subject, msgspec.json.encode(record), expected_last=0)
        self.records[record.batch_id] = record

    async def get(self, tenant: str, batch_id: str) -> BatchRecord:
        """The record as it is now; raises `BatchNotFound`, also if its time is over."""
        record = (await self._read(tenant, batch_id))[0]
        if self.is_over(record):
            raise _no_batch(batch_id)
        return record

    async def change(self, tenant: str, batch_id: str, change: Change) -> BatchRecord:
        """Writes a changed record; `change` is called again if another writer was first.

        Raises:
            BatchNotFound: There is no such batch.
        """
        for _ in range(MAX_TRIES):
            record, seq = await self._read(tenant, batch_id)
            wanted = change(record)
            if wanted == record:
                return record
            subject = batch_record(tenant, batch_id)
            try:
                await self._jetstream.put(subject, msgspec.json.encode(wanted), expected_last=seq)
            except WrongLastMessage:
                continue
            if wanted.erased:
                self.records.pop(batch_id, None)
            else:
                self.records[batch_id] = wanted
            return wanted
        raise Unavailable(f"batch {batch_id!r} is changed by too many at once", reason="batch_busy")

    async def claim(self, record: BatchRecord, owner: str, lease_s: float) -> BatchRecord:
        """Takes a batch for a gateway.

        Raises:
            LeaseLost: Another gateway has it, or there is nothing left to do.
        """

        def claim(current: BatchRecord) -> BatchRecord:
            taken = claimed(current, owner, time.time(), lease_s)
            if taken is None:
                raise LeaseLost
            return taken

        return await self.change(record.tenant, record.batch_id, claim)

    async def change_owned(self, mine: BatchRecord, change: Change, lease_s: float) -> BatchRecord:
        """Changes a record of the gateway that owns it, and renews the lease.

        Args:
            mine: The record as this gateway wrote it last.
            change: Makes the new record.
            lease_s: How long the lease lasts from now on.

        Raises:
            LeaseLost: Another gateway has taken the batch.
        """

        def with_lease(record: BatchRecord) -> BatchRecord:
            if (record.owner, record.term) != (mine.owner, mine.term):
                raise LeaseLost
            return replace(change(record), lease_until_s=time.time() + lease_s)

        return await self.change(mine.tenant, mine.batch_id, with_lease)

    async def release(self, record: BatchRecord, owner: str) -> None:
        """Ends the lease of a gateway, if it still has it."""

        def give_up(current: BatchRecord) -> BatchRecord:
            return replace(current, owner="", lease_until_s=0.0) if current.owner == owner else current

        await self.change(record.tenant, record.batch_id, give_up)

    async def poll(self) -> bool:
        """Reads what has changed; returns False if there is no stream, as before the first batch."""
        while True:
            try:
                found = await self._jetstream.read(BATCHES_STREAM, batch_record("*", "*"), self._seen)
            except NoStream:
                self._seen = 0
                self.records.clear()
                return False
            if not found:
                break
            for message in found:
                record = _record(message)
                if record.erased:
                    self.records.pop(record.batch_id, None)
                else:
                    self.records[record.batch_id] = record
            self._seen = found[-1].seq
        now_s = time.time()
        for record in [one for one in self.records.values() if one.ended]:
            if record.last_s < now_s - self._ttl_s:
                del self.records[record.batch_id]
        return True

    def is_over(self, record: BatchRecord) -> bool:
        """Whether a batch ended longer ago than its tenant's batches are kept."""
        days = self._days_of(record.tenant)
        return bool(days) and record.ended and record.last_s <= time.time() - days * DAY_S

    def start_anew(self) -> None:
        """Forgets what was read: the broker may have lost its disk."""
        self._seen = 0

    async def _read(self, tenant: str, batch_id: str) -> tuple[BatchRecord, int]:
        found = None
        if batch_id.startswith("batch_") and batch_id.removeprefix("batch_").isalnum():
            found = await self._jetstream.last(BATCHES_STREAM, batch_record(tenant, batch_id))
        record = None if found is None else _record(found)
        if found is None or record is None or record.erased:
            raise _no_batch(batch_id)
        return record, found.seq


def _no_batch(batch_id: str) -> BatchNotFound:
    name = batch_id[:64]
    return BatchNotFound(f"no batch {name!r}: it was never made, or has expired", batch_id=name)


def _record(message: StoredMessage) -> BatchRecord:
    return msgspec.json.decode(message.data, type=BatchRecord)
