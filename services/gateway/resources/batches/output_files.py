"""Writes the output file and the error file of a batch from its results."""

import time
from collections.abc import AsyncIterator

from services.gateway.resources.batches.input_lines import lines_of, read_line
from services.gateway.resources.batches.record import BatchRecord, not_answered
from services.gateway.resources.batches.streams import BatchParts
from services.gateway.resources.files.store import OUTPUT, FileWriter, StoredFile
from shared.errors import FileNotFound

_TEXTS = {
    "expired": ("batch_expired", "This request could not be executed before the completion window expired."),
    "cancelled": ("batch_cancelled", "The batch was cancelled before this request was executed."),
}


class _GrowingFile:
    """A file that is begun with its first line."""

    def __init__(self, parts: BatchParts, tenant: str) -> None:
        self._parts = parts
        self._tenant = tenant
        self._writer: FileWriter | None = None
        self._pending = bytearray()
        self.lines = 0
        self.size = 0

    async def add(self, line: bytes) -> None:
        self.lines += 1
        self.size += len(line)
        self._pending += line
        if len(self._pending) > 2**20:
            await self._flush()

    async def commit(self, file_id: str, name: str, expires_after_s: int) -> str:
        """Makes the file visible; returns its id, or nothing if it has no lines."""
        if not self.lines:
            return ""
        await self._flush()
        now_s = int(time.time())
        assert self._writer is not None
        await self._writer.commit(
            StoredFile(
                file_id=file_id,
                tenant=self._tenant,
                filename=name,
                purpose=OUTPUT,
                num_bytes=self.size,
                created_s=now_s,
                expires_s=self._parts.files.ends_s(self._tenant, OUTPUT, now_s, expires_after_s),
            )
        )
        return file_id

    async def abort(self) -> None:
        if self._writer is not None:
            await self._writer.abort()

    async def _flush(self) -> None:
        if self._writer is None:
            self._writer = await self._parts.files.store.begin(self._tenant)
        await self._writer.write(bytes(self._pending))
        self._pending.clear()


async def write_files(parts: BatchParts, record: BatchRecord) -> tuple[str, str, int, int]:
    """Writes both files of a batch that ends.

    Each request stands in one of them once: results are unique, and a request without one (of a batch that
    expired or was cancelled) goes to the error file.

    Returns:
        The ids of the output file and the error file, empty if there is none; and their numbers of lines.
    """
    output, errors = (_GrowingFile(parts, record.tenant) for _ in range(2))
    names = f"{record.batch_id}_output.jsonl", f"{record.batch_id}_error.jsonl"
    ids = record.file_ids(record.term)
    try:
        numbers, after = set[int](), 0
        while found := await parts.streams.results(record.batch_id, after):
            after = found[-1].seq
            for result in found:
                numbers.add(result.number)
                await (output if result.ok else errors).add(result.line)
        if record.ending != "completed":
            async for line in _not_executed(parts, record, numbers):
                await errors.add(line)
        made = [
            await file.commit(file_id, name, record.output_expires_s)
            for file, file_id, name in zip((output, errors), ids, names, strict=True)
        ]
    finally:
        await output.abort()
        await errors.abort()
    return made[0], made[1], output.lines, errors.lines


async def _not_executed(parts: BatchParts, record: BatchRecord, done: set[int]) -> AsyncIterator[bytes]:
    if not record.total:
        return  # it ended before its file was read
    try:
        file = await parts.files.get(record.tenant, record.input_file_id)
    except FileNotFound:
        return
    code, text = _TEXTS[record.ending]
    async for line in lines_of(parts.files.read(file)):
        if line.number not in done:
            yield not_answered(record, line.number, read_line(line.raw).custom_id, code, text)


async def remove_files(parts: BatchParts, record: BatchRecord) -> None:
    """Removes what earlier terms wrote, whose gateways died before they could say so."""
    kept = {record.output_file_id, record.error_file_id}
    for term in range(max(1, record.term - 5), record.term):
        for file_id in record.file_ids(term):
            if file_id not in kept:
                await parts.files.store.delete(record.tenant, file_id)
