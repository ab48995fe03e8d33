"""The requests of batches that wait, and their results, in streams of the broker.

A request waits in a work queue and is delivered again until it is acknowledged. A result is written once: the
first one under its subject stays, and every later one is refused. So a request that ran twice counts once.
`BatchParts` has these streams, the records, the files and the limits for all that works on batches.
"""

from collections.abc import Callable
from dataclasses import dataclass

from services.gateway.resources.batches.log import BatchLog
from services.gateway.resources.batches.record import COMPLETED, FAILED, BatchRecord
from services.gateway.resources.files.tenants import TenantFiles
from shared.bus.jetstream.errors import NoStream, WrongLastMessage
from shared.bus.jetstream.jetstream import ACK, PROGRESS, JetStream
from shared.bus.jetstream.stream_messages import NANOSECONDS, WorkItem, stream_config
from shared.messages import Limits
from shared.streams import LINES_STREAM, RESULTS_STREAM, batch_line, batch_result

OUTCOME, AGAIN = "Ryz-Outcome", "Ryz-Again"
DEDUPLICATE_S = 120.0
ROOM = 2048  # bytes of a message beside its payload


@dataclass(frozen=True, slots=True)
class LineResult:
    """The result of a request.

    Attributes:
        seq: Its number in the stream of results.
        number: The request's line.
        line: What goes to the file.
        ok: Whether that is the output file.
    """

    seq: int
    number: int
    line: bytes
    ok: bool


@dataclass(frozen=True, slots=True)
class WaitingLine:
    """A request that was taken out of the queue.

    Attributes:
        batch_id: Its batch.
        number: Its line in the file.
        raw: The line.
        item: For the queue.
        again: It may have run before.
    """

    batch_id: str
    number: int
    raw: bytes
    item: WorkItem
    again: bool


class BatchStreams:
    """Writes and reads both.

    Args:
        jetstream: The broker's.
        ttl_s: How long results are kept that nothing removes.
        ack_wait_s: After which silence a request is delivered again.
    """

    def __init__(self, jetstream: JetStream, *, ttl_s: float, ack_wait_s: float) -> None:
        self._jetstream = jetstream
        self._ttl_s = ttl_s
        self.ack_wait_s = ack_wait_s

    @property
    def max_line(self) -> int:
        """The longest line, in bytes, that a message holds."""
        return self._jetstream.max_payload - ROOM

    async def ensure_streams(self) -> None:
        """Makes the streams, unless they are there."""
        lines = stream_config(
            LINES_STREAM,
            [batch_line("*", "*")],
            retention="workqueue",
            duplicate_window=round(DEDUPLICATE_S * NANOSECONDS),
        )
        results = stream_config(
            RESULTS_STREAM,
            [batch_result("*", "*")],
            max_age=round(self._ttl_s * NANOSECONDS),
        )
        for config in (lines, results):
            await self._jetstream.ensure_stream(config)

    async def open_queue(self, batch_id: str) -> None:
        """Makes the queue of a batch, unless it is there."""
        await self._jetstream.ensure_consumer(
            LINES_STREAM, batch_id, batch_line(batch_id, "*"), ack_wait_s=self.ack_wait_s
        )

    async def close_queue(self, batch_id: str) -> None:
        """Removes the queue of a batch and what waits in it."""
        await self._jetstream.delete_consumer(LINES_STREAM, batch_id)
        await self.empty_queue(batch_id)

    async def empty_queue(self, batch_id: str) -> None:
        """Removes what waits in the queue of a batch; what runs goes on."""
        await self._jetstream.purge(LINES_STREAM, batch_line(batch_id, "*"))

    async def put_line(self, batch_id: str, number: int, raw: bytes, fill: str) -> None:
        """Lets a request wait.

        Args:
            batch_id: Its batch.
            number: Its line in the file.
            raw: The line.
            fill: Names this filling of the queue; empty: it is the first one. After that requests may have
                run before.
        """
        await self._jetstream.put(
            batch_line(batch_id, number),
            raw,
            headers={AGAIN: fill} if fill else None,
            message_id=f"{batch_id}.{number}.{fill}",
        )

    async def waiting(self, batch_id: str) -> int | None:
        """Requests of a batch that wait or run; None: it has no queue."""
        return await self._jetstream.waiting(LINES_STREAM, batch_id)

    async def take(self, batch_id: str, count: int) -> list[WaitingLine]:
        """Takes requests out of a batch's queue; it waits for none."""
        items = await self._jetstream.take(LINES_STREAM, batch_id, count)
        return [_waiting_line(item) for item in items]

    async def finish(self, line: WaitingLine) -> None:
        """The request has a result."""
        await self._jetstream.answer(line.item, ACK)

    async def hold(self, line: WaitingLine) -> None:
        """The request still runs."""
        await self._jetstream.answer(line.item, PROGRESS)

    async def give_back(self, line: WaitingLine) -> None:
        """Another gateway is to run the request."""
        await self._jetstream.give_back(line.item)

    async def put_result(self, batch_id: str, number: int, line: bytes, *, ok: bool) -> bool:
        """Writes a result; returns False if the request has one already, which stays."""
        headers = {OUTCOME: COMPLETED if ok else FAILED}
        try:
            await self._jetstream.put(batch_result(batch_id, number), line, headers=headers, expected_last=0)
        except WrongLastMessage:
            return False
        return True

    async def has_result(self, batch_id: str, number: int) -> bool:
        """Whether a request has a result."""
        return await self._jetstream.last(RESULTS_STREAM, batch_result(batch_id, number)) is not None

    async def results(self, batch_id: str, after: int) -> list[LineResult]:
        """The next results of a batch, in the order in which they came; `after`: the last `seq` known."""
        try:
            found = await self._jetstream.read(RESULTS_STREAM, batch_result(batch_id, "*"), after)
        except NoStream:
            return []
        return [
            LineResult(
                message.seq,
                int(message.subject.rpartition(".")[2]),
                message.data,
                message.headers.get(OUTCOME) == COMPLETED,
            )
            for message in found
        ]

    async def remove_results(self, batch_id: str) -> None:
        """Removes the results of a batch."""
        await self._jetstream.purge(RESULTS_STREAM, batch_result(batch_id, "*"))


def _waiting_line(item: WorkItem) -> WaitingLine:
    head, _, number = item.subject.rpartition(".")
    again = item.delivered > 1 or AGAIN in item.headers
    return WaitingLine(head.rpartition(".")[2], int(number), item.data, item, again)


class ResultFollower:
    """Knows which requests have a result.

    Args:
        streams: Has the results.
        batch_id: The batch.

    Attributes:
        numbers: Lines whose request has a result.
        completed: Results for the output file.
        failed: Results for the error file.
    """

    def __init__(self, streams: BatchStreams, batch_id: str) -> None:
        self._streams = streams
        self._batch_id = batch_id
        self._seen = 0
        self.numbers: set[int] = set()
        self.completed = 0
        self.failed = 0

    async def read_on(self) -> bool:
        """Reads what has come; returns whether there was something."""
        before = len(self.numbers)
        while found := await self._streams.results(self._batch_id, self._seen):
            self._seen = found[-1].seq
            for result in found:
                self.numbers.add(result.number)
                self.completed += result.ok
                self.failed += not result.ok
        return len(self.numbers) != before


@dataclass(frozen=True, slots=True)
class BatchRules:
    """Limits of batches.

    Attributes:
        owner: The name of this gateway in leases.
        lease_s: How long a lease lasts.
        max_lines: Requests in one batch.
        line_bytes: The longest request.
        max_open: Batches of one tenant that have not ended.
        max_waiting: Requests in all of these.
        max_running: Requests that run here at a time.
        share: Of the groups' running places.
        limits_of: Of tenants that have some of their own.
    """

    owner: str
    lease_s: float
    max_lines: int
    line_bytes: int
    max_open: int
    max_waiting: int
    max_running: int
    share: float
    limits_of: Callable[[str], Limits | None] = lambda _: None

    def max_waiting_of(self, tenant: str) -> int:
        """The requests that may wait or run in all batches of a tenant."""
        own = self.limits_of(tenant)
        return (own.batch_lines if own is not None else 0) or self.max_waiting


@dataclass(frozen=True, slots=True)
class BatchParts:
    """The parts.

    Attributes:
        log: The records.
        streams: Requests that wait, and results.
        files: The files.
        rules: The limits.
    """

    log: BatchLog
    streams: BatchStreams
    files: TenantFiles
    rules: BatchRules

    def max_lines_of(self, batch: BatchRecord) -> int:
        """The requests that a batch may have beside those of its tenant's others."""
        own = self.rules.limits_of(batch.tenant)
        if own is None or not own.batch_lines:
            return self.rules.max_lines
        others = sum(
            record.waiting
            for record in self.log.records.values()
            if record.tenant == batch.tenant and record.batch_id != batch.batch_id
        )
        return min(self.rules.max_lines, max(0, own.batch_lines - others))
