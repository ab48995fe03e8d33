"""Takes requests of batches out of their queues while groups have room, and runs them.

A result is written before the request is acknowledged, and the first result stays. So a request that is
delivered twice, since a gateway or the broker died, counts once.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from services.gateway.admission.caller import BackgroundCall
from services.gateway.admission.errors.refusals import HttpRefusal, answer_for
from services.gateway.admission.errors.shapes import error_body
from services.gateway.admission.identity.identities import Identities
from services.gateway.answering.direct_calls import DirectCalls, WholeAnswer
from services.gateway.resources.batches.group_loads import GroupLoads, free_room
from services.gateway.resources.batches.input_lines import read_line
from services.gateway.resources.batches.record import BatchRecord, answered, not_answered
from services.gateway.resources.batches.streams import BatchParts, WaitingLine
from shared.accounts.register import AccountRegister
from shared.errors import RyzError

LATER = frozenset({429, 503})  # the request waits for room, a group or a store
ONCE_MORE = frozenset({499, 500, 502, 504})  # it may have been our fault
MAX_FAULTS = 3
MAX_DELIVERIES = 20  # a request that was taken so often without a result takes gateways with it
WAIT_S, MAX_WAIT_S = 0.25, 10.0
IDLE_S, BUSY_S = 0.25, 0.02
WRITE_TRIES_S = 30.0  # for which a result waits for the broker to come back
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LineEnd:
    """The end of a request: its line, and whether that goes to the output file."""

    text: bytes
    ok: bool


class LineCall:
    """Runs requests.

    Args:
        direct: Runs calls.
        identities: Find who asked for a batch, and what the requests of it may be used for.
        max_bytes: The longest result that the stream takes.
        timeout_s: Time limit of a request.
    """

    def __init__(self, direct: DirectCalls, identities: Identities, max_bytes: int, timeout_s: float) -> None:
        self._direct = direct
        self._identities = identities
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s

    @property
    def accounts(self) -> AccountRegister:
        """Tenants and keys, as far as they are known."""
        return self._identities.register

    async def run(self, record: BatchRecord, line: WaitingLine) -> LineEnd:
        """Runs a request to its end, however long it has to wait for room."""
        read = read_line(line.raw)
        name = record.request_name(line.number)

        def failed(code: str, message: str) -> LineEnd:
            return LineEnd(not_answered(record, line.number, read.custom_id, code, message), ok=False)

        if line.item.delivered > MAX_DELIVERIES:
            return failed(
                "too_many_attempts",
                f"the request was begun {MAX_DELIVERIES} times, and no gateway lived to its end",
            )
        body: dict[str, Any] = msgspec.json.decode(read.body)
        if body.get("stream"):
            return failed("invalid_request", "`stream` has no place in a batch; leave it out")
        if record.endpoint == "/v1/responses":
            if body.get("background"):
                return failed("invalid_request", "`background` has no place in a batch; leave it out")
            body.setdefault("store", False)  # ten thousand of them would push out what their tenant stored
        background = BackgroundCall(name, seeded=body.get("seed") is not None)
        status, answer, ignored = await self._answer(record, name, msgspec.json.encode(body), background)
        text = answered(record, line.number, read.custom_id, status, answer, ignored=ignored)
        if len(text) > self._max_bytes:
            return failed(
                "response_too_large",
                f"the answer has {len(text)} bytes, and a message of the broker holds {self._max_bytes}: ask "
                "for fewer tokens or log probabilities, or raise `max_payload` of the broker",
            )
        return LineEnd(text, ok=status == 200)

    async def _answer(
        self, record: BatchRecord, name: str, body: bytes, background: BackgroundCall
    ) -> tuple[int, bytes, str]:
        headers = {b"x-request-id": name.encode(), b"x-request-timeout": b"%d" % self._timeout_s}
        faults, wait_s = 0, WAIT_S
        while True:
            found = await self._called(record, body, headers, background)
            status, ignored = found.status, found.headers.get(b"x-ryz-ignored", b"").decode()
            if status in ONCE_MORE:
                faults += 1
            if status not in LATER and (status not in ONCE_MORE or faults >= MAX_FAULTS):
                return status, found.body, ignored
            log.debug("a request of a batch waits", batch_id=record.batch_id, status=status)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, MAX_WAIT_S)

    async def _called(
        self, record: BatchRecord, body: bytes, headers: dict[bytes, bytes], background: BackgroundCall
    ) -> WholeAnswer:
        """Runs the request once."""
        form = self._direct.formats[record.endpoint]
        try:
            identity = self._identities.of_key(record.key_id, record.tenant, record.scopes)
        except (HttpRefusal, RyzError) as error:  # its key was revoked, or cannot be looked up now
            answer = answer_for(error)
            return WholeAnswer(answer.status, {}, error_body(answer, record.endpoint))
        return await self._direct.run_whole(form, body, headers, identity=identity, background=background)


@dataclass(frozen=True, slots=True)
class _Running:
    record: BatchRecord
    line: WaitingLine


class BatchRunner:
    """Runs requests.

    Args:
        parts: Records, streams and limits.
        loads: Of the groups.
        call: Runs one request.
        count_line: Counts a result; True: for the output file.
        accepting: Whether this gateway takes work.
    """

    def __init__(
        self,
        parts: BatchParts,
        loads: GroupLoads,
        call: LineCall,
        count_line: Callable[[bool], None],
        accepting: Callable[[], bool],
    ) -> None:
        self._parts = parts
        self._loads = loads
        self._call = call
        self._count_line = count_line
        self._accepting = accepting
        self._tasks: dict[asyncio.Task[None], _Running] = {}
        self._round_number = 0

    @property
    def running(self) -> int:
        """Requests that run here."""
        return len(self._tasks)

    async def run(self) -> None:
        """Works until it is cancelled; then what runs is given back."""
        try:
            while True:
                took = 0
                with suppress(RyzError):  # no broker at the moment
                    took = await self._round()
                await asyncio.sleep(BUSY_S if took else IDLE_S)
        finally:
            await self._stop()

    async def _round(self) -> int:
        """Takes what fits; returns how many."""
        ready = [record for record in self._parts.log.records.values() if record.runs]
        await self._loads.listen(on=bool(ready or self._tasks))
        self._drop_ended()
        if not ready or not self._accepting():
            return 0
        rules = self._parts.rules
        room = free_room(self._loads.loads(), self.running, max_running=rules.max_running, share=rules.share)
        took = 0
        for record in self._rotated(ready):
            if room <= took:
                break
            lines = await self._parts.streams.take(record.batch_id, room - took)
            for line in lines:
                self._start(line)
            took += len(lines)
        return took

    def _rotated(self, ready: list[BatchRecord]) -> list[BatchRecord]:
        """The batches, beginning with another tenant's each time."""
        self._round_number += 1
        by_tenant: dict[str, list[BatchRecord]] = {}
        for record in sorted(ready, key=lambda one: one.created_s):
            by_tenant.setdefault(record.tenant, []).append(record)
        tenants = sorted(by_tenant)
        first = self._round_number % len(tenants)
        return [record for tenant in tenants[first:] + tenants[:first] for record in by_tenant[tenant]]

    def _start(self, line: WaitingLine) -> None:
        record = self._parts.log.records.get(line.batch_id)
        if record is None or record.state != "in_progress":
            return  # its batch has ended meanwhile, and its queue goes with it
        task = asyncio.create_task(self._run_line(record, line))
        self._tasks[task] = _Running(record, line)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        running = self._tasks.pop(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error(
                "a request of a batch failed; it is delivered again",
                batch_id=running.line.batch_id,
                line=running.line.number,
                exc_info=error,
            )

    def _drop_ended(self) -> None:
        """Ends what runs of batches that are cancelled or over."""
        for task, running in self._tasks.items():
            now = self._parts.log.records.get(running.line.batch_id)
            if now is not None and now.state != "in_progress":
                task.cancel()

    async def _run_line(self, record: BatchRecord, line: WaitingLine) -> None:
        streams = self._parts.streams
        holding = asyncio.create_task(self._hold(line))
        try:
            if not (line.again and await streams.has_result(line.batch_id, line.number)):
                end = await self._call.run(record, line)
                if not await self._write(line, end):
                    return
            await streams.finish(line)
        finally:
            holding.cancel()

    async def _write(self, line: WaitingLine, end: LineEnd) -> bool:
        """Writes a result; returns False if the broker is away for too long."""

        async def write() -> None:
            while True:
                try:
                    won = await self._parts.streams.put_result(
                        line.batch_id, line.number, end.text, ok=end.ok
                    )
                except RyzError as error:
                    log.warning("a result waits", batch_id=line.batch_id, error=error.message)
                    await asyncio.sleep(1.0)
                    continue
                if won:
                    self._count_line(end.ok)
                return

        try:
            async with asyncio.timeout(WRITE_TRIES_S):
                await write()
        except TimeoutError:
            return False
        return True

    async def _hold(self, line: WaitingLine) -> None:
        while True:
            await asyncio.sleep(self._parts.streams.ack_wait_s / 3)
            await self._parts.streams.hold(line)

    async def _stop(self) -> None:
        running = dict(self._tasks)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for one in running.values():
            await self._parts.streams.give_back(one.line)
        with suppress(RyzError):
            await self._loads.listen(on=False)
