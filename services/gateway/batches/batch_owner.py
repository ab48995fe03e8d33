"""Looks after one batch from its file to its end: checks it, fills the queue, counts, writes the files.

One gateway does so at a time, by a lease in the record. Every step may be done twice: if a gateway dies, the
next one reads what is there and goes on. A batch is complete when each of its requests has a result, whatever
the queue says.
"""

import asyncio
import time

import structlog
from msgspec.structs import replace

from services.gateway.batches.batch_files import remove_files, write_files
from services.gateway.batches.batch_log import Change, LeaseLost
from services.gateway.batches.batch_parts import BatchParts
from services.gateway.batches.batch_record import BatchFault, BatchRecord, claimed
from services.gateway.batches.input_lines import LineCheck, LineTooLong, lines_of
from services.gateway.batches.line_feeder import LineFeeder
from services.gateway.batches.result_follower import ResultFollower
from services.gateway.files.file_store import StoredFile
from shared.errors import FileNotFound

TELL_S = 0.5  # between writes of progress
_STEP_S = 0.1
_CHECKED_AT_ONCE = 500
_QUIET_STEPS = 5  # after which the queue is asked whether it has what is missing

log = structlog.get_logger(__name__)


class BatchKeeper:
    """Looks after one batch.

    Args:
        parts: Records, streams, files, limits.
        record: The batch.
    """

    def __init__(self, parts: BatchParts, record: BatchRecord) -> None:
        self._parts = parts
        self._record = record
        self._told_s = 0.0

    async def keep(self) -> None:
        """Does what is to be done until the batch has ended.

        Raises:
            LeaseLost: Another gateway has it.
            RyzError: Broker, store or disk are away; the batch waits.
        """
        await self._claim()
        steps = {
            "validating": self._validate,
            "in_progress": self._progress,
            "finalizing": self._finish,
            "cancelling": self._finish,
        }
        while not self._record.ended:
            await steps[self._record.state]()
        await self._clean()

    async def _claim(self) -> None:
        rules, now_s = self._parts.rules, time.time()

        def claim(record: BatchRecord) -> BatchRecord:
            taken = claimed(record, rules.owner, now_s, rules.lease_s)
            if taken is None:
                raise LeaseLost
            return taken

        self._record = await self._parts.log.change(self._record.tenant, self._record.batch_id, claim)

    async def _change(self, change: Change) -> None:
        """Changes the record and renews the lease."""
        rules, term = self._parts.rules, self._record.term

        def with_lease(record: BatchRecord) -> BatchRecord:
            if (record.owner, record.term) != (rules.owner, term):
                raise LeaseLost
            changed = change(record)
            return replace(changed, lease_until_s=time.time() + rules.lease_s)

        self._record = await self._parts.log.change(self._record.tenant, self._record.batch_id, with_lease)
        self._told_s = time.monotonic()

    async def _fail(self, faults: list[BatchFault]) -> None:
        def fail(record: BatchRecord) -> BatchRecord:
            if record.state != "validating":
                return record  # it was cancelled meanwhile
            return record.to("failed", time.time(), faults=faults)

        await self._change(fail)

    async def _input(self) -> StoredFile:
        return await self._parts.shelf.get(self._record.tenant, self._record.input_file_id)

    async def _validate(self) -> None:
        rules = self._parts.rules
        check = LineCheck(self._record.endpoint, rules.max_lines)
        try:
            async for line in lines_of(self._parts.shelf.read(await self._input())):
                check.add(line)
                if check.over:
                    break
                if check.count % _CHECKED_AT_ONCE == 0:
                    await asyncio.sleep(0)
                    if time.monotonic() - self._told_s > rules.lease_s / 3:
                        await self._change(lambda record: record)
        except FileNotFound as error:
            await self._fail([BatchFault(code="file_not_found", message=error.message)])
            return
        except LineTooLong as error:
            await self._fail([BatchFault(code="line_too_long", message=str(error), line=error.number)])
            return
        if faults := check.end():
            await self._fail(faults)
            return

        def begin(record: BatchRecord) -> BatchRecord:
            if record.state != "validating":
                return record
            return record.to("in_progress", time.time(), total=check.count, model=check.model)

        await self._change(begin)

    async def _progress(self) -> None:
        """Fills the queue and counts results until there is one for each request, or time is over."""
        parts, batch_id = self._parts, self._record.batch_id
        results = ResultFollower(parts.streams, batch_id)
        await results.read_on()
        if self._record.term > 1:
            await parts.streams.empty_queue(batch_id)  # it is filled again, from what has no result
        await parts.streams.open_queue(batch_id)
        try:
            feeder = LineFeeder(parts, self._record, await self._input(), results)
        except FileNotFound:  # deleted: what was not read of it cannot run
            await self._end_early(results)
            return
        quiet = 0
        try:
            while self._record.state == "in_progress":
                came = await results.read_on()
                if len(results.numbers) >= self._record.total:
                    await self._change(lambda record: _closing(record, results))
                    return
                if time.time() >= self._record.expires_s:
                    await self._end_early(results)
                    return
                await feeder.feed()
                quiet = 0 if came or self._record.paused else quiet + 1
                if feeder.at_end and quiet >= _QUIET_STEPS and not await parts.streams.waiting(batch_id):
                    quiet = 0
                    if not await results.read_on():
                        log.warning("requests are lost and wait again", batch_id=batch_id)
                        await parts.streams.open_queue(batch_id)
                        await feeder.restart()
                await self._tell(results)
                await asyncio.sleep(_STEP_S)
        except FileNotFound:
            await self._end_early(results)
        finally:
            await feeder.close()

    async def _tell(self, results: ResultFollower) -> None:
        """Writes progress and renews the lease, both seldom; learns what others changed."""
        quiet_s = time.monotonic() - self._told_s
        news = (results.completed, results.failed) != (self._record.completed, self._record.failed)
        known = self._parts.log.records.get(self._record.batch_id, self._record)
        changed = known.state != self._record.state or known.paused != self._record.paused
        if changed or quiet_s > self._parts.rules.lease_s / 3 or (news and quiet_s > TELL_S):
            await self._change(lambda record: _counted(record, results))

    async def _end_early(self, results: ResultFollower) -> None:
        def expire(record: BatchRecord) -> BatchRecord:
            if record.state != "in_progress":
                return record
            return _counted(record, results).to("finalizing", time.time(), ending="expired")

        await self._change(expire)

    async def _finish(self) -> None:
        parts, record = self._parts, self._record
        await parts.streams.close_queue(record.batch_id)
        renewing = asyncio.create_task(self._renew())
        try:
            output, errors, completed, failed = await write_files(parts, record)
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

        def end(current: BatchRecord) -> BatchRecord:
            return current.to(
                current.ending,
                time.time(),
                output_file_id=output,
                error_file_id=errors,
                completed=completed,
                failed=failed,
            )

        await self._change(end)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._parts.rules.lease_s / 3)
            await self._change(lambda record: record)

    async def _clean(self) -> None:
        parts, record = self._parts, self._record
        if record.cleaned:
            return
        await parts.streams.close_queue(record.batch_id)
        await parts.streams.remove_results(record.batch_id)
        await remove_files(parts, record)
        await self._change(lambda current: replace(current, cleaned=True, owner="", lease_until_s=0.0))


def _counted(record: BatchRecord, results: ResultFollower) -> BatchRecord:
    return replace(record, completed=results.completed, failed=results.failed)


def _closing(record: BatchRecord, results: ResultFollower) -> BatchRecord:
    if record.state != "in_progress":
        return record
    return _counted(record, results).to("finalizing", time.time(), ending="completed")
