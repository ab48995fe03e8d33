"""A route that generates: from a body to generations, and from their deltas to an answer.

Calls the parts in order (keys, limits, body, translation), starts the generations and sends the answer. The
formats are its `Door`'s. A streamed answer of one generation can be resumed, and may outlive its connection
for a while.
"""

from contextlib import AsyncExitStack
from dataclasses import replace

import msgspec

from services.gateway.admission.request_headers import RawHeaders, stream_grace_s, time_limit_s
from services.gateway.answering.answer_cost import check_cost
from services.gateway.answering.background_calls import BACKGROUND, in_background
from services.gateway.answering.detached_streams import DetachedStreams
from services.gateway.answering.envelope import envelope_of
from services.gateway.answering.field_names import renamed
from services.gateway.answering.format import Door, GenerationCall
from services.gateway.answering.idempotency import once_of
from services.gateway.answering.new_calls import counted_for
from services.gateway.answering.priority import limit_priority
from services.gateway.answering.repeated_calls import RepeatedCalls
from services.gateway.answering.resume_token import VERSION, ResumeToken, read_token
from services.gateway.answering.running_call import RunningRequest
from services.gateway.bodies.body_route import BodyRoute
from services.gateway.http.serving_route import GatewayContext, HttpExchange
from services.gateway.streams.event_stream import (
    STREAM_HEADER,
    StreamWithGrace,
    confirm_turn,
    send_events,
)
from shared.client import GenerationStream
from shared.errors import RyzError
from shared.messages import GenerateRequest
from shared.telemetry.trace_context import TRACE_HEADERS

_TRACE_HEADERS = [(name, name.encode()) for name in TRACE_HEADERS]


class GenerationRoute(BodyRoute):
    """Answers `POST` on the path of a door.

    Args:
        door: Translates.
        context: What all requests share.
        detached: Parks streams whose client goes away.
    """

    def __init__(self, door: Door, context: GatewayContext, detached: DetachedStreams) -> None:
        super().__init__(door.path, context)
        self.door = door
        self._detached = detached
        self._repeats = RepeatedCalls(door, context, detached)

    async def serve_request(self, exchange: HttpExchange) -> None:
        """See `ServingRoute`."""
        raw = await self.take_body(exchange)
        once = once_of(exchange.headers, exchange.tenant, self.path, raw)
        async with self.turn(exchange, raw):
            call = await self.door.translate(raw, exchange, once)
        real = await self.context.aliases.real_name(call.model)
        if real != call.model:
            named = [msgspec.structs.replace(request, model=real) for request in call.requests]
            call = replace(call, requests=named)
        requests, limited = limit_priority(call.requests, self.context.settings.max_priority)
        if limited:
            call = replace(call, requests=requests, left_out=[*call.left_out, *limited])
        if BACKGROUND in exchange.scope:
            call = replace(call, requests=in_background(call.requests, exchange.scope))
        if exchange.party != exchange.tenant:
            counted = counted_for(call.requests, exchange.tenant, exchange.party)
            call = replace(call, requests=counted)
        del raw
        await self.serve_call(exchange, call)

    async def serve_call(self, exchange: HttpExchange, call: GenerationCall) -> None:
        """Runs a call and sends its answer; the exchange has its tenant and one place."""
        settings = self.context.settings
        exchange.model = call.model
        try:
            check_cost(call.requests, settings.constants.max_answer_entries)
        except RyzError as error:
            raise renamed(error, call.field_names) from None
        timeout_s = time_limit_s(
            exchange.headers,
            call.timeout_s,
            default_s=settings.default_timeout_s,
            max_s=settings.max_timeout_s,
        )
        exchange.reply.headers += self.ignored_fields.tell(
            call.unknown_fields, call.left_out, exchange.request_id
        )
        if len(call.requests) > 1:
            self.take_places(exchange, len(call.requests) - 1)
        if call.session_id:
            exchange.reply.headers.append((b"x-session-id", call.session_id.encode()))
        try:
            async with self.running_request(exchange, timeout_s) as running:
                once = len(call.requests) == 1 and call.requests[0].call_key
                if once and await self._repeats.answer_repeat(exchange, call, timeout_s, running):
                    return
                if call.stream and len(call.requests) == 1:
                    await self._stream_one(exchange, call, timeout_s, running)
                else:
                    await self._run(exchange, call, timeout_s, running)
        except RyzError as error:
            raise renamed(error, call.field_names) from None

    async def _run(
        self, exchange: HttpExchange, call: GenerationCall, timeout_s: float, running: RunningRequest
    ) -> None:
        """Starts the generations and sends the answer; cancels those that still run at the end."""
        streams = running.streams
        if len(call.requests) == 1:
            async with self._submit(exchange, call, call.requests[0], timeout_s) as stream:
                streams.append(stream)
                await self._answer(exchange, call, streams)
            return
        async with AsyncExitStack() as stack:
            for asked in call.requests:
                stream = self._submit(exchange, call, asked, timeout_s)
                streams.append(await stack.enter_async_context(stream))
            await self._answer(exchange, call, streams)

    def _submit(
        self, exchange: HttpExchange, call: GenerationCall, asked: GenerateRequest, timeout_s: float
    ) -> GenerationStream:
        # a call that may be repeated carries a token, also if it is not streamed
        token = self._token(exchange, call).encode() if asked.call_key else b""
        request = msgspec.structs.replace(asked, note=token) if token else asked
        trace = trace_headers(exchange.headers)
        return self.context.client.submit(request, timeout_s=timeout_s, headers=trace, whole=not call.stream)

    async def _answer(
        self, exchange: HttpExchange, call: GenerationCall, streams: list[GenerationStream]
    ) -> None:
        if call.stream:
            await self._stream_several(exchange, call, streams)
        else:
            await self._whole(exchange, call, streams)

    async def _stream_one(
        self, exchange: HttpExchange, call: GenerationCall, timeout_s: float, running: RunningRequest
    ) -> None:
        """Sends a stream that its client can resume."""
        settings = self.context.settings
        grace_s = stream_grace_s(
            exchange.headers, default_s=settings.stream_grace_s, max_s=settings.stream_max_grace_s
        )
        token = self._token(exchange, call, grace_s)
        request = msgspec.structs.replace(call.requests[0], note=token.encode())
        exchange.reply.headers.append((STREAM_HEADER, request.request_id.encode()))
        stream = self.context.client.submit(
            request, timeout_s=timeout_s, headers=trace_headers(exchange.headers)
        )
        async with StreamWithGrace(stream, self._detached, running, grace_s):
            with self.context.metrics.open_stream:
                writer = self.door.writer(envelope_of(token, request), token, [request], ids=call.event_ids)
                await send_events([stream], writer, exchange, header_wait_s=settings.constants.header_wait_s)

    def _token(self, exchange: HttpExchange, call: GenerationCall, grace_s: float = 0.0) -> ResumeToken:
        """The token by which another gateway can give the same answer."""
        return ResumeToken(
            VERSION,
            self.door.kind,
            exchange.created_s,
            call.include_usage,
            grace_s,
            exchange.shown_id,
            call.door_data,
        )

    async def _whole(
        self, exchange: HttpExchange, call: GenerationCall, streams: list[GenerationStream]
    ) -> None:
        parts = [await stream.completion() for stream in streams]
        exchange.outcome.group = parts[0].group
        exchange.outcome.accepted = streams[0].accepted
        exchange.outcome.usages = [part.usage for part in parts]
        exchange.outcome.session = parts[0].session
        raw = streams[0].request.note
        token = (read_token(raw) if raw else None) or self._token(exchange, call)
        envelope = envelope_of(token, call.requests[0], call.request_id, exchange.outcome.accepted)
        body = await self.door.encode_whole(envelope, token, call.requests, parts)
        del parts  # frees memory while a slow reader takes the body
        await confirm_turn(streams[0])
        await exchange.reply.send_whole(200, body, exchange.outcome.headers())

    async def _stream_several(
        self, exchange: HttpExchange, call: GenerationCall, streams: list[GenerationStream]
    ) -> None:
        token = self._token(exchange, call)
        envelope = envelope_of(token, call.requests[0], call.request_id)
        writer = self.door.writer(envelope, token, call.requests, ids=False)
        wait_s = self.context.settings.constants.header_wait_s
        with self.context.metrics.open_stream:
            await send_events(streams, writer, exchange, header_wait_s=wait_s)


def trace_headers(headers: RawHeaders) -> dict[str, str]:
    """The caller's trace context as headers of the bus."""
    return {name: headers[raw].decode("latin-1") for name, raw in _TRACE_HEADERS if raw in headers}
