"""Runs one batch from its file to its end: checks it, fills the queue, counts results, writes the files.

One gateway does so at a time, by a lease in the record; `BatchOwners` takes batches that no gateway has.
Every step may be done twice: if a gateway dies, the next one reads what is there and goes on. A batch is
complete when each of its requests has a result, whatever the queue says.
"""

import asyncio
import time
from contextlib import suppress
from functools import partial

import structlog
from msgspec.structs import replace

from services.gateway.resources.batches.input_lines import LineCheck, LineFeeder, LineTooLong, lines_of
from services.gateway.resources.batches.log import Change, LeaseLost
from services.gateway.resources.batches.output_files import remove_files, write_files
from services.gateway.resources.batches.record import BatchFault, BatchRecord, Ending
from services.gateway.resources.batches.runner import BatchRunner
from services.gateway.resources.batches.streams import BatchParts, ResultFollower
from services.gateway.resources.files.store import StoredFile
from shared.bus import Bus
from shared.errors import BatchNotFound, FileNotFound, RyzError

POLL_S = 0.25
IDLE_POLLS = 4  # without open batches the broker is asked once in so many rounds
AGAIN_S = 2.0  # after which a batch is tried again that could not go on
MAX_OWNED = 16
WRITE_S = 0.5  # between writes of progress
_STEP_S = 0.1
_CHECKED_AT_ONCE = 500
_QUIET_STEPS = 5  # after which the queue is asked whether it has what is missing

log = structlog.get_logger(__name__)


class BatchOwner:
    """Runs one batch under a lease.

    Args:
        parts: Records, streams, files, limits.
        record: The batch.
    """

    def __init__(self, parts: BatchParts, record: BatchRecord) -> None:
        self._parts = parts
        self._record = record
        self._written_s = 0.0

    async def run_to_end(self) -> None:
        """Takes the lease and works until the batch has ended.

        Raises:
            LeaseLost: Another gateway has the batch.
            RyzError: Broker, store or disk cannot be used; the batch waits.
        """
        rules = self._parts.rules
        self._record = await self._parts.log.claim(self._record, rules.owner, rules.lease_s)
        steps = {
            "validating": self._validate,
            "in_progress": self._progress,
            "finalizing": self._finish,
            "cancelling": self._finish,
        }
        while not self._record.ended:
            await steps[self._record.state]()
        await self._clean()

    async def _change(self, change: Change) -> None:
        """Changes the record and renews the lease."""
        lease_s = self._parts.rules.lease_s
        self._record = await self._parts.log.change_owned(self._record, change, lease_s)
        self._written_s = time.monotonic()

    async def _fail(self, faults: list[BatchFault]) -> None:
        def fail(record: BatchRecord) -> BatchRecord:
            if record.state != "validating":
                return record  # it was cancelled meanwhile
            return record.to("failed", time.time(), faults=faults)

        await self._change(fail)

    async def _input(self) -> StoredFile:
        return await self._parts.files.get(self._record.tenant, self._record.input_file_id)

    async def _validate(self) -> None:
        rules = self._parts.rules
        check = LineCheck(self._record.endpoint, self._parts.max_lines_of(self._record))
        try:
            async for line in lines_of(self._parts.files.read(await self._input())):
                check.add(line)
                if check.over:
                    break
                if check.count % _CHECKED_AT_ONCE == 0:
                    await asyncio.sleep(0)
                    if time.monotonic() - self._written_s > rules.lease_s / 3:
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
            await self._close(results, "expired")
            return
        quiet = 0
        try:
            while self._record.state == "in_progress":
                came = await results.read_on()
                if len(results.numbers) >= self._record.total:
                    await self._close(results, "completed")
                    return
                if time.time() >= self._record.expires_s:
                    await self._close(results, "expired")
                    return
                await feeder.feed()
                quiet = 0 if came or self._record.paused else quiet + 1
                if feeder.at_end and quiet >= _QUIET_STEPS and not await parts.streams.waiting(batch_id):
                    quiet = 0
                    if not await results.read_on():
                        log.warning("requests are lost and wait again", batch_id=batch_id)
                        await parts.streams.open_queue(batch_id)
                        await feeder.restart()
                await self._write_progress(results)
                await asyncio.sleep(_STEP_S)
        except FileNotFound:
            await self._close(results, "expired")
        finally:
            await feeder.close()

    async def _write_progress(self, results: ResultFollower) -> None:
        """Writes counts and renews the lease, both seldom; reads what others changed."""
        quiet_s = time.monotonic() - self._written_s
        news = (results.completed, results.failed) != (self._record.completed, self._record.failed)
        known = self._parts.log.records.get(self._record.batch_id, self._record)
        changed = known.state != self._record.state or known.paused != self._record.paused
        if changed or quiet_s > self._parts.rules.lease_s / 3 or (news and quiet_s > WRITE_S):
            await self._change(lambda record: _counted(record, results))

    async def _close(self, results: ResultFollower, ending: Ending) -> None:
        def close(record: BatchRecord) -> BatchRecord:
            if record.state != "in_progress":
                return record  # it was cancelled meanwhile
            return _counted(record, results).to("finalizing", time.time(), ending=ending)

        await self._change(close)

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


class BatchOwners:
    """Runs the batches that no other gateway has, and the requests of all of them.

    Args:
        bus: Its `restored_at` shows that the connection was lost.
        parts: Records, streams, files, limits.
        runner: Runs requests.
    """

    def __init__(self, bus: Bus, parts: BatchParts, runner: BatchRunner) -> None:
        self._bus = bus
        self._parts = parts
        self._runner = runner
        self._owned: dict[str, asyncio.Task[None]] = {}
        self._not_before: dict[str, float] = {}
        self._restored_at = bus.restored_at
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begins."""
        self._tasks = [asyncio.create_task(self._watch()), asyncio.create_task(self._runner.run())]

    async def stop(self) -> None:
        """Gives requests and leases back, so that another gateway goes on at once."""
        if self._stopping:
            return
        self._stopping = True
        owned = dict(self._owned)
        for task in (*self._tasks, *owned.values()):
            task.cancel()
        await asyncio.gather(*self._tasks, *owned.values(), return_exceptions=True)
        for batch_id in owned:
            with suppress(RyzError):
                await self._release(batch_id)

    async def _watch(self) -> None:
        round_ = 0
        while True:
            round_ += 1
            try:
                if self._bus.restored_at != self._restored_at:  # the broker may have lost its disk
                    self._restored_at = self._bus.restored_at
                    self._parts.log.start_anew()
                open_ = any(not record.cleaned for record in self._parts.log.records.values())
                if open_ or round_ % IDLE_POLLS == 1:
                    await self._parts.log.poll()
                self._take_batches()
            except RyzError:
                pass  # no broker at the moment
            except Exception as error:
                log.error("batches were not looked after", exc_info=error)
            await asyncio.sleep(POLL_S)

    def _take_batches(self) -> None:
        now_s = time.time()
        for record in list(self._parts.log.records.values()):
            name = record.batch_id
            if len(self._owned) >= MAX_OWNED:
                return
            theirs = record.owner not in {"", self._parts.rules.owner} and record.lease_until_s > now_s
            if record.cleaned or theirs or name in self._owned or self._not_before.get(name, 0) > now_s:
                continue
            task = asyncio.create_task(self._run_batch(record))
            self._owned[name] = task
            task.add_done_callback(partial(self._batch_ended, name))

    def _batch_ended(self, name: str, _: asyncio.Task[None]) -> None:
        self._owned.pop(name, None)

    async def _run_batch(self, record: BatchRecord) -> None:
        name = record.batch_id
        try:
            await BatchOwner(self._parts, record).run_to_end()
            self._not_before.pop(name, None)
            return
        except (LeaseLost, BatchNotFound):
            pass
        except RyzError as error:
            log.warning("a batch waits", batch_id=name, error=error.message)
        except Exception as error:
            log.error("a batch failed and is tried again", batch_id=name, exc_info=error)
        self._not_before[name] = time.time() + AGAIN_S

    async def _release(self, batch_id: str) -> None:
        record = self._parts.log.records.get(batch_id)
        if record is None or record.cleaned:
            return
        await self._parts.log.release(record, self._parts.rules.owner)
