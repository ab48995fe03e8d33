"""WebSocket mode: `GET /v1/responses` upgraded. A message asks for a response; events come as JSON texts.

Requests of one connection are answered one after another, under the same keys and limits as over HTTP. The
last response of a connection can be continued on it even if it is not stored.
"""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec
import structlog
from starlette.types import Message, Receive, Scope, Send

from services.gateway.admission.caller import Caller
from services.gateway.admission.errors.refusals import ErrorAnswer, HttpRefusal, answer_for
from services.gateway.admission.held_slots import HeldSlot, HeldSlots
from services.gateway.admission.identity.identity import Identity
from services.gateway.answering.call import Call
from services.gateway.answering.context import GatewayContext
from services.gateway.answering.direct_calls import DirectCall, DirectCalls
from services.gateway.answering.events.ports import DONE
from services.gateway.answering.formatted_answer import CallAnswer
from services.gateway.formats.fields.body_format import parse_body
from services.gateway.formats.responses.format import KIND, PATH, ResponseFormat, call_of_draft
from services.gateway.formats.responses.kept_answer import KeptResponse
from services.gateway.formats.responses.schema import ResponseRequest
from services.gateway.settings import GatewaySettings
from services.gateway.transports.websocket.refusals import refuse_socket
from shared.errors import InvalidRequest, RyzError
from shared.messages import ResponseRecord
from shared.telemetry.trace_context import TRACE_HEADERS
from shared.web.admitted_connection import CONNECTION

MAX_WAITING = 4  # messages of a connection that wait for the response before them
GOING_AWAY, POLICY, TRY_LATER = 1001, 1008, 1013
log = structlog.get_logger(__name__)


_CARRIED = (b"x-request-timeout", *(name.encode() for name in TRACE_HEADERS))  # from the opening request


class _GoesOnElsewhere(Exception):
    """The response goes on without this connection."""


class SocketRequest(ResponseRequest):
    """A message of a client: a request for a response, with its type."""

    type: str


class SocketFormat:
    """The format of the messages of one connection; see `Format`.

    Args:
        form: Of bodies over HTTP.
        settings: Limits of bodies.
    """

    kind = KIND
    path = PATH

    def __init__(self, form: ResponseFormat, settings: GatewaySettings) -> None:
        self._form = form
        self._settings = settings
        self._last: list[ResponseRecord] = []  # the conversation up to the last response, if it is not stored
        self._history: list[ResponseRecord] = []  # of the response under way
        self._kept: KeptResponse | None = None

    def translate(self, raw: bytes, caller: Caller) -> Awaitable[Call]:
        """See `Format`."""
        body = parse_body(raw, SocketRequest, self._settings.constants.max_body_values)
        if body.type != "response.create":
            raise InvalidRequest(f"`type` must be 'response.create', got {body.type[:64]!r}", param="type")
        if body.background:
            raise InvalidRequest("`background` is not for WebSockets: use POST", param="background")
        return self._call_of(body.model_copy(update={"stream": True}), caller)

    def note_end(self) -> None:
        """Keeps the conversation of a response that has ended and is not stored, for the next message."""
        record = self._kept.unstored_record() if self._kept is not None else None
        records = [] if record is None else [*self._history, record]
        size = sum(len(one.input_items) + len(one.body) for one in records)
        self._last = records if size <= self._settings.max_body_bytes else []

    async def _call_of(self, body: ResponseRequest, caller: Caller) -> Call:
        if self._last and self._last[-1].response_id == body.previous_response_id:
            self._history = self._last
        else:
            self._history = await self._form.history_of(body, caller.tenant)
        draft = self._form.draft_of(body, self._history, caller)
        self._kept = self._form.kept(draft, shows_defaults=False)
        return call_of_draft(draft, self._kept)


class ResponseSockets:
    """The application of all these connections.

    Args:
        context: What all calls share.
        direct: Runs the calls.
        form: Of their bodies.
        slots: Places of open connections.
    """

    def __init__(
        self, context: GatewayContext, direct: DirectCalls, form: ResponseFormat, slots: HeldSlots
    ) -> None:
        self._context = context
        self._direct = direct
        self._form = form
        self._slots = slots

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        context, started_s, client = self._context, time.monotonic(), scope.get("client")
        headers = dict(scope["headers"])
        try:
            context.admission.check_accepting()
            identity = context.admission.identities.of_headers(headers, PATH, client)
            party = context.admission.parties.party_of(identity.tenant, client)
            slot = self._slots.take(scope[CONNECTION], party)
        except (RyzError, HttpRefusal) as error:
            await refuse_socket(send, error, context.metrics, PATH)
            return
        try:
            await receive()  # that the client connects
            await send({"type": "websocket.accept"})
            who = SocketCaller(
                identity, {name: headers[name] for name in _CARRIED if name in headers}, client
            )
            form = SocketFormat(self._form, context.settings)
            await ResponseSocket(context, self._direct, form, who, slot=slot, send=send).serve(receive)
        finally:
            slot.free()
            context.metrics.count_answer(PATH, 101, time.monotonic() - started_s)


@dataclass(frozen=True, slots=True)
class SocketCaller:
    """Who opened a connection.

    Attributes:
        identity: Checked again for each message.
        headers: That go with each message.
        client: Address and port.
    """

    identity: Identity
    headers: dict[bytes, bytes]
    client: Sequence[object] | None


class ResponseSocket:
    """One connection.

    Args:
        context: What all calls share.
        direct: Runs the calls.
        form: Of its messages.
        caller: Who opened it.
        slot: Its place, for which it says when a request is under way.
        send: Sends messages of ASGI.
    """

    def __init__(
        self,
        context: GatewayContext,
        direct: DirectCalls,
        form: SocketFormat,
        caller: SocketCaller,
        *,
        slot: HeldSlot,
        send: Send,
    ) -> None:
        self._context = context
        self._direct = direct
        self._form = form
        self._caller = caller
        self._slot = slot
        self._send = send
        self._inbox: asyncio.Queue[bytes] = asyncio.Queue(MAX_WAITING)

    async def serve(self, receive: Receive) -> None:
        """Answers messages until the client leaves, is idle for too long, or sends too many."""
        reading = asyncio.create_task(self._read(receive))
        working = asyncio.create_task(self._work())
        await asyncio.wait({reading, working}, return_when=asyncio.FIRST_COMPLETED)
        for task in (reading, working):
            task.cancel()
        results = await asyncio.gather(reading, working, return_exceptions=True)
        code = next((result for result in results if isinstance(result, int)), 0)
        if code:
            with suppress(Exception):
                await self._send({"type": "websocket.close", "code": code})

    async def _read(self, receive: Receive) -> int:
        """Reads messages; returns the code to close with, or 0 if the client has left."""
        while True:
            message: Message = await receive()
            if message["type"] == "websocket.disconnect":
                return 0
            text = message.get("text")
            raw = message.get("bytes") or b"" if text is None else text.encode()
            try:
                self._inbox.put_nowait(raw)
            except asyncio.QueueFull:
                return POLICY

    async def _work(self) -> int:
        """Answers messages; returns the code to close with."""
        settings = self._context.settings
        while True:
            try:
                async with asyncio.timeout(settings.constants.response_socket_idle_s):
                    raw = await self._inbox.get()
            except TimeoutError:
                return GOING_AWAY
            self._slot.begin_request()
            try:
                await self._answer(raw)
            except TimeoutError:  # it does not read
                return POLICY
            except _GoesOnElsewhere:
                return TRY_LATER
            except Exception as error:
                log.error("request failed", route=PATH, exc_info=error)
                await self._send_error(answer_for(error))
            finally:
                self._slot.end_request()

    async def _answer(self, raw: bytes) -> None:
        """Answers one message; raises `TimeoutError` if the client does not read."""
        caller = self._caller
        call = await self._direct.run(
            self._form,
            raw,
            caller.headers,
            self._put_events,
            self._send_text,
            identity=caller.identity,
            client=caller.client,
        )
        if call.error is None:
            return
        if call.error.code == "attached_elsewhere":
            raise _GoesOnElsewhere
        await self._send_error(call.error)

    async def _put_events(self, answer: CallAnswer, call: DirectCall) -> None:
        events = answer.events()
        with self._direct.open_stream:
            await events.open(0.0)
            while not events.ended:
                batch = await events.next_batch()
                texts = [data for _, some in batch for kind, data in some if (kind, data) != DONE]
                await call.carrier.put(texts, sum(map(len, texts)))
        self._form.note_end()

    async def _send_error(self, answer: ErrorAnswer) -> None:
        error = msgspec.json.decode(answer.body)["error"]
        event = {"type": "error", "status": answer.status, "error": error} | error | {"type": "error"}
        with suppress(TimeoutError):
            await self._send_text(msgspec.json.encode(event))

    async def _send_text(self, data: bytes) -> None:
        async with asyncio.timeout(self._context.settings.write_timeout_s):
            await self._send({"type": "websocket.send", "text": data.decode()})
