"""The lines of a batch's input file: cut out of its bytes, checked, and put into the queue within a bound."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from services.gateway.resources.batches.record import BatchFault, BatchRecord, not_answered
from services.gateway.resources.batches.streams import BatchParts, ResultFollower
from services.gateway.resources.files.store import StoredFile

MAX_LINE = 8 * 2**20  # bytes of a line that is read at all
MAX_ID = 512
MAX_FAULTS = 100
AHEAD = 1000  # requests that wait in the queue
AHEAD_BYTES = 32 * 2**20


class LineTooLong(Exception):
    """A line is longer than `MAX_LINE`; `number` counts from 1."""

    def __init__(self, number: int) -> None:
        super().__init__(f"line {number} has more than {MAX_LINE} bytes")
        self.number = number


class RequestLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the input file."""

    custom_id: str
    url: str
    body: msgspec.Raw
    method: str = "POST"


@dataclass(frozen=True, slots=True)
class InputLine:
    """A line as it stands in the file.

    Attributes:
        number: From 1; empty lines count, but are left out.
        raw: Its bytes.
    """

    number: int
    raw: bytes


class LineSplitter:
    """Cuts bytes into lines."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._number = 0

    def feed(self, part: bytes) -> Iterator[InputLine]:
        """Yields the lines that end in this part."""
        self._rest += part
        *whole, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        for raw in whole:
            yield from self._line(raw)
        if len(self._rest) > MAX_LINE:
            raise LineTooLong(self._number + 1)

    def end(self) -> Iterator[InputLine]:
        """Yields the last line, if nothing ends it."""
        yield from self._line(bytes(self._rest))
        self._rest.clear()

    def _line(self, raw: bytes) -> Iterator[InputLine]:
        self._number += 1
        if len(raw) > MAX_LINE:
            raise LineTooLong(self._number)
        if raw.strip():
            yield InputLine(self._number, raw)


async def lines_of(parts: AsyncIterator[bytes]) -> AsyncIterator[InputLine]:
    """Yields the lines of a file."""
    splitter = LineSplitter()
    async for part in parts:
        for line in splitter.feed(part):
            yield line
    for line in splitter.end():
        yield line


def read_line(raw: bytes) -> RequestLine:
    """Reads a line; raises `msgspec.DecodeError` if it is no such request."""
    return msgspec.json.decode(raw, type=RequestLine)


class LineCheck:
    """Checks the lines of one file; what is wrong with the file as a whole ends in `faults`.

    Args:
        endpoint: The route that all lines must name.
        max_lines: How many there may be.
    """

    def __init__(self, endpoint: str, max_lines: int) -> None:
        self._endpoint = endpoint
        self._max_lines = max_lines
        self._seen: set[bytes] = set()  # digests of custom ids
        self.count = 0
        self.model = ""
        self.faults: list[BatchFault] = []

    @property
    def over(self) -> bool:
        """Whether it is no use to read on."""
        return len(self.faults) >= MAX_FAULTS or self.count > self._max_lines

    def add(self, line: InputLine) -> None:
        """Checks the next line."""
        self.count += 1
        if self.count > self._max_lines:
            self._fault(0, "too_many_requests", f"a batch may have {self._max_lines} requests")
            return
        try:
            read = read_line(line.raw)
        except msgspec.ValidationError as error:
            self._fault(line.number, "invalid_line", f"this line is no request of a batch: {error}")
            return
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._fault(line.number, "invalid_json_line", "this line is not parseable as valid JSON")
            return
        self._check(line.number, read)

    def end(self) -> list[BatchFault]:
        """What is wrong with the file; empty: nothing."""
        if not self.count and not self.faults:
            self._fault(0, "empty_file", "the input file is empty")
        return self.faults

    def _check(self, number: int, line: RequestLine) -> None:
        digest = blake2b(line.custom_id.encode(), digest_size=16).digest()
        if not 1 <= len(line.custom_id) <= MAX_ID:
            self._fault(number, "invalid_custom_id", f"`custom_id` has 1 to {MAX_ID} characters", "custom_id")
        elif digest in self._seen:
            text = f"the custom_id {line.custom_id[:64]!r} was used before in this file"
            self._fault(number, "duplicate_custom_id", text, "custom_id")
        elif line.method != "POST":
            self._fault(number, "invalid_method", f"`method` is 'POST', got {line.method[:16]!r}", "method")
        elif line.url != self._endpoint:
            text = f"`url` is that of the batch, {self._endpoint!r}, got {line.url[:64]!r}"
            self._fault(number, "mismatched_url", text, "url")
        elif not bytes(line.body).lstrip().startswith(b"{"):
            self._fault(number, "invalid_body", "`body` is a JSON object", "body")
        self._seen.add(digest)
        if not self.model:
            self.model = _model(line.body)

    def _fault(self, number: int, code: str, message: str, param: str = "") -> None:
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(BatchFault(code=code, message=message, line=number, param=param))


class _Model(msgspec.Struct):
    model: str = ""


def _model(body: msgspec.Raw) -> str:
    try:
        return msgspec.json.decode(body, type=_Model).model[:128]
    except msgspec.DecodeError:
        return ""


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
        return lines_of(self._parts.files.read(self._file))

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
