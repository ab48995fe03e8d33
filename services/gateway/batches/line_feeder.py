"""Fills the queue of a batch from its input file, a bounded number of requests ahead."""

from collections.abc import AsyncIterator

from services.gateway.batches.batch_parts import BatchParts
from services.gateway.batches.batch_record import BatchRecord
from services.gateway.batches.input_lines import InputLine, lines_of, read_line
from services.gateway.batches.result_follower import ResultFollower
from services.gateway.batches.result_lines import not_answered
from services.gateway.files.file_store import StoredFile

AHEAD = 1000  # requests that wait in the queue
AHEAD_BYTES = 32 * 2**20


class LineFeeder:
    """Puts requests without a result into the queue.

    Args:
        parts: Streams and limits.
        record: The batch.
        file: Its input.
        results: Knows which requests have a result.
    """

    def __init__(
        self, parts: BatchParts, record: BatchRecord, file: StoredFile, results: ResultFollower
    ) -> None:
        self._parts = parts
        self._record = record
        self._file = file
        self._results = results
        self._restarts = 0
        self._lines = self._open()
        self._in_queue: dict[int, int] = {}  # bytes by number of line
        self.at_end = False

    @property
    def missing(self) -> int:
        """Requests of the queue that have no result yet."""
        return len(self._in_queue)

    async def feed(self) -> None:
        """Puts more into the queue while there is room."""
        for number in [number for number in self._in_queue if number in self._results.numbers]:
            del self._in_queue[number]
        held = sum(self._in_queue.values())
        while not self.at_end and len(self._in_queue) < AHEAD and held < AHEAD_BYTES:
            line = await anext(self._lines, None)
            if line is None:
                self.at_end = True
            elif line.number not in self._results.numbers:
                await self._put(line)
                self._in_queue[line.number] = len(line.raw)
                held += len(line.raw)

    async def restart(self) -> None:
        """Begins again at the start of the file: requests without a result are not in the queue any more."""
        self._restarts += 1
        await self.close()
        self._lines, self.at_end = self._open(), False
        self._in_queue.clear()

    async def close(self) -> None:
        """Closes the file."""
        await self._lines.aclose()  # type: ignore[attr-defined]

    def _open(self) -> AsyncIterator[InputLine]:
        return lines_of(self._parts.shelf.read(self._file))

    async def _put(self, line: InputLine) -> None:
        streams, record = self._parts.streams, self._record
        limit = min(self._parts.rules.line_bytes, streams.max_line)
        if len(line.raw) > limit:
            text = f"the line has {len(line.raw)} bytes and may have {limit}"
            custom_id = read_line(line.raw).custom_id
            failed = not_answered(record, line.number, custom_id, "request_too_large", text)
            await streams.put_result(record.batch_id, line.number, failed, ok=False)
            return
        first = record.term == 1 and not self._restarts
        fill = "" if first else f"{record.term}.{self._restarts}"
        await streams.put_line(record.batch_id, line.number, line.raw, fill)
