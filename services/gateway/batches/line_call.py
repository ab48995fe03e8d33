"""Runs one request of a batch in this gateway, and makes its line of the output or error file."""

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from services.gateway.admission.caller import BackgroundCall
from services.gateway.answering.direct_calls import DirectCalls, WholeAnswer
from services.gateway.batches.batch_record import BatchRecord
from services.gateway.batches.batch_streams import WaitingLine
from services.gateway.batches.input_lines import read_line
from services.gateway.batches.result_lines import answered, not_answered
from services.gateway.inner.inner_calls import AnswerCut, InnerCalls

LATER = frozenset({429, 503})  # the request waits for room, a group or a store
ONCE_MORE = frozenset({499, 500, 502, 504})  # it may have been our fault
MAX_FAULTS = 3
MAX_DELIVERIES = 20  # a request that was taken so often without a result takes gateways with it
WAIT_S, MAX_WAIT_S = 0.25, 10.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LineEnd:
    """The end of a request: its line, and whether that goes to the output file."""

    text: bytes
    ok: bool


class LineCall:
    """Runs requests.

    Args:
        direct: Runs calls that generate.
        inner: Calls the other routes.
        max_bytes: The longest result that the stream takes.
        timeout_s: Time limit of a request.
    """

    def __init__(self, direct: DirectCalls, inner: InnerCalls, max_bytes: int, timeout_s: float) -> None:
        self._direct = direct
        self._formats = {form.path: form for form in direct.formats.values()}
        self._inner = inner
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s

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
        form, tenant = self._formats.get(record.endpoint), record.tenant
        if form is not None:
            return await self._direct.run_whole(form, body, headers, tenant=tenant, background=background)
        call = self._inner.call(
            record.endpoint, body, list(headers.items()), tenant=tenant, background=background
        )
        try:
            async with call as answer:
                return WholeAnswer(answer.status, answer.headers, await answer.read())
        except AnswerCut:
            return WholeAnswer(499, {}, b"")
