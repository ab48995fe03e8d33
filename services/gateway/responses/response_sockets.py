"""WebSocket mode: `GET /v1/responses` upgraded. A message asks for a response; events come as JSON texts.

Requests of one connection are answered one after another, under the same keys and limits as over HTTP. The
last response of a connection can be continued on it even if it is not stored.
"""

import asyncio
import time
from contextlib import suppress

import msgspec
import structlog
from starlette.types import Message, Receive, Scope, Send

from services.gateway.admission.admission import BYTES_PER_TOKEN
from services.gateway.admission.held_places import HeldPlace, HeldPlaces
from services.gateway.admission.refusals import ErrorAnswer, HttpRefusal, answer_for
from services.gateway.admission.request_headers import time_limit_s
from services.gateway.answering.new_calls import counted_for
from services.gateway.answering.run_call import trace_headers
from services.gateway.bodies.body_parser import parse_body
from services.gateway.http.socket_refusals import refuse_socket
from services.gateway.responses.response_events import ResponseEvent
from services.gateway.responses.response_routes import PATH, ResponseRoute
from services.gateway.responses.response_run import RunLeft, event_batches
from services.gateway.responses.response_schema import ResponseRequest
from services.gateway.responses.response_translation import with_our_names
from shared.errors import InvalidRequest, RyzError
from shared.identity import new_request_id
from shared.messages import ResponseRecord
from shared.web.admitted_connection import CONNECTION

MAX_WAITING = 4  # messages of a connection that wait for the response before them
GOING_AWAY, POLICY, TRY_LATER = 1001, 1008, 1013
log = structlog.get_logger(__name__)


class SocketRequest(ResponseRequest):
    """A message of a client: a request for a response, with its type."""

    type: str


class ResponseSockets:
    """The application of all these connections.

    Args:
        route: Makes responses.
        places: Places of open connections.
    """

    def __init__(self, route: ResponseRoute, places: HeldPlaces) -> None:
        self._route = route
        self._places = places

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        context, started_s = self._route.context, time.monotonic()
        headers = dict(scope["headers"])
        try:
            context.admission.check_accepting()
            tenant = context.admission.keyring.tenant_of(headers, PATH)
            party = context.admission.parties.party_of(tenant, scope.get("client"))
            place = self._places.take(scope[CONNECTION], party)
        except (RyzError, HttpRefusal) as error:
            await refuse_socket(send, error, context.metrics, PATH)
            return
        try:
            await receive()  # that the client connects
            await send({"type": "websocket.accept"})
            await ResponseSocket(self._route, tenant, place, dict(headers), send).serve(receive)
        finally:
            place.free()
            context.metrics.count_answer(PATH, 101, time.monotonic() - started_s)


class ResponseSocket:
    """One connection.

    Args:
        route: Makes responses.
        tenant: Whose it is.
        place: Its place, for which it says when a request is under way.
        headers: Headers of the request that opened it.
        send: Sends messages of ASGI.
    """

    def __init__(
        self, route: ResponseRoute, tenant: str, place: HeldPlace, headers: dict[bytes, bytes], send: Send
    ) -> None:
        self._route = route
        self._tenant = tenant
        self._place = place
        self._headers = headers
        self._send = send
        self._inbox: asyncio.Queue[bytes] = asyncio.Queue(MAX_WAITING)
        self._last: list[ResponseRecord] = []  # the conversation up to the last response, if it is not stored

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
        settings = self._route.context.settings
        while True:
            try:
                async with asyncio.timeout(settings.constants.response_socket_idle_s):
                    raw = await self._inbox.get()
            except TimeoutError:
                return GOING_AWAY
            self._place.begin_request()
            try:
                await self._answer(raw)
            except TimeoutError:  # it does not read
                return POLICY
            except RunLeft:
                return TRY_LATER
            except (RyzError, HttpRefusal) as error:
                await self._send_error(answer_for(error))
            except Exception as error:
                log.error("request failed", route=PATH, exc_info=error)
                await self._send_error(answer_for(error))
            finally:
                self._place.end_request()

    async def _answer(self, raw: bytes) -> None:
        context = self._route.context
        context.admission.check_accepting()
        now_s = time.monotonic()
        context.admission.rates.take_units(self._tenant, now_s)
        estimate = context.admission.tokens.take_estimate(self._tenant, now_s, len(raw) // BYTES_PER_TOKEN)
        try:
            context.admission.places.take_units(self._place.party)
            try:
                context.admission.held.take_units(self._place.party, len(raw))
                try:
                    await self._respond(raw)
                except RyzError as error:
                    raise with_our_names(error) from error.__cause__
                finally:
                    context.admission.held.free_units(self._place.party, len(raw))
            finally:
                context.admission.places.free_units(self._place.party)
        finally:
            context.admission.tokens.charge(
                self._tenant, -estimate
            )  # what was used is charged when the last frame comes

    async def _respond(self, raw: bytes) -> None:
        """Answers one message."""
        context, settings = self._route.context, self._route.context.settings
        context.metrics.request_bytes.inc(len(raw))
        body = await self._route.with_real_name(
            parse_body(raw, SocketRequest, settings.constants.max_body_values)
        )
        if body.type != "response.create":
            raise InvalidRequest(f"`type` must be 'response.create', got {body.type[:64]!r}", param="type")
        if body.background:
            raise InvalidRequest("`background` is not for WebSockets: use POST", param="background")
        history = await self._history_of(body)
        streamed = body.model_copy(update={"stream": True})
        call = self._route.make_call(streamed, history, new_request_id(), self._tenant)
        self._route.ignored_fields.tell(call.unknown_fields, call.left_out, call.request.request_id)
        timeout_s = time_limit_s(
            self._headers, call.timeout_s, default_s=settings.default_timeout_s, max_s=settings.max_timeout_s
        )
        headers = trace_headers(self._headers)
        events = call.new_events()
        (request,) = counted_for([call.request], self._tenant, self._place.party)
        async with context.client.submit(request, timeout_s=timeout_s, headers=headers) as stream:
            await stream.wait_accepted()
            with context.metrics.open_stream:
                await self._send_events(events.opening())
                end = self._route.end_of(call)
                async for batch in event_batches(stream, events, end):
                    await self._send_events(batch)
        self._last = []
        if not call.stored and events.status in {"completed", "incomplete"}:
            record = call.record(events.whole(), ended=True)
            self._last = self._within_limit([*history, record])

    async def _history_of(self, body: ResponseRequest) -> list[ResponseRecord]:
        if self._last and self._last[-1].response_id == body.previous_response_id:
            return self._last
        return await self._route.history_of(body, self._tenant)

    def _within_limit(self, records: list[ResponseRecord]) -> list[ResponseRecord]:
        size = sum(len(record.input_items) + len(record.body) for record in records)
        return records if size <= self._route.context.settings.max_body_bytes else []

    async def _send_events(self, events: list[ResponseEvent]) -> None:
        for event in events:
            await self._send_text(event.data)

    async def _send_error(self, answer: ErrorAnswer) -> None:
        error = msgspec.json.decode(answer.body)["error"]
        event = {"type": "error", "status": answer.status, "error": error} | error | {"type": "error"}
        with suppress(TimeoutError):
            await self._send_text(msgspec.json.encode(event))

    async def _send_text(self, data: bytes) -> None:
        async with asyncio.timeout(self._route.context.settings.write_timeout_s):
            await self._send({"type": "websocket.send", "text": data.decode()})
        self._route.context.metrics.response_bytes.inc(len(data))
