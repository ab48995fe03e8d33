"""The two completion routes: from a body to generations, and from their text to an answer.

Calls the parts in order (keys, limits, body, translation), starts the generations and sends the answer. A
streamed answer of one generation can be resumed, and may outlive its connection for a while.
"""

import time
from contextlib import AsyncExitStack

import msgspec

from services.gateway.bodies.body_parser import check_content_type, parse_body
from services.gateway.bodies.large_bodies import is_large
from services.gateway.completions.answer_cost import check_cost
from services.gateway.completions.chunk_writers import CompletionChunkWriter, event_writer
from services.gateway.completions.completion_call import CompletionCall, chat_call, completion_call
from services.gateway.completions.completion_schema import ChatCompletionRequest, CompletionRequest
from services.gateway.completions.idempotency import once_of
from services.gateway.completions.repeated_calls import RepeatedCalls
from services.gateway.completions.whole_responses import Envelope, encode_whole
from services.gateway.http.request_headers import RawHeaders, stream_grace_s, time_limit_s
from services.gateway.http.running_request import RunningRequest
from services.gateway.http.serving_route import GatewayContext, HttpExchange, ServingRoute, body_party
from services.gateway.streams.detached_streams import DetachedStreams
from services.gateway.streams.event_stream import (
    STREAM_HEADER,
    confirm_turn,
    send_events,
    stream_with_grace,
)
from services.gateway.streams.resume_token import VERSION, AnswerKind, ResumeToken, answer_id, read_token
from shared.client import GenerationStream
from shared.errors import InvalidRequest
from shared.messages import GenerateRequest
from shared.telemetry.traces import TRACE_HEADERS
from shared.web.limited_protocol import CONNECTION

_TRACE_HEADERS = [(name, name.encode()) for name in TRACE_HEADERS]


class CompletionRoute(ServingRoute):
    """Answers `POST` on one of the completion routes.

    Args:
        kind: Which of them.
        context: What all requests share.
        detached: Parks streams whose client goes away.
        root_key: The secret behind new session ids; see `root_key.py`.
    """

    def __init__(
        self, kind: AnswerKind, context: GatewayContext, detached: DetachedStreams, root_key: bytes
    ) -> None:
        super().__init__("/v1/chat/completions" if kind == "chat" else "/v1/completions", context)
        self._kind = kind
        self._detached = detached
        self._root_key = root_key
        self._repeats = RepeatedCalls(context, detached)

    async def serve_request(self, exchange: HttpExchange) -> None:
        """See `ServingRoute`."""
        context = self.context
        settings = context.settings
        context.check_accepting()
        exchange.tenant = context.keyring.tenant(exchange.headers.get(b"authorization", b""))
        context.rates.take_tokens(exchange.tenant, time.monotonic())
        context.places.check_units(exchange.tenant)
        check_content_type(exchange.headers)
        raw = await self._read_body(exchange)
        self.take_places(exchange, 1)
        if is_large(raw):
            async with context.large.turn(exchange.tenant):
                call = self._translate(raw, exchange)
        else:
            call = self._translate(raw, exchange)
        exchange.model = call.model
        check_cost(call.requests, settings.max_answer_entries)
        timeout_s = time_limit_s(
            exchange.headers,
            call.timeout_s,
            default_s=settings.default_timeout_s,
            max_s=settings.max_timeout_s,
        )
        if call.unknown_fields:
            context.metrics.unknown_fields.inc(call.unknown_fields)
        if len(call.requests) > 1:
            self.take_places(exchange, len(call.requests) - 1)
        if call.session_id:
            exchange.reply.headers.append((b"x-session-id", call.session_id.encode()))
        async with self.running_request(exchange, timeout_s) as running:
            once = len(call.requests) == 1 and call.requests[0].call_key
            if once and await self._repeats.answer_repeat(exchange, call, timeout_s, running):
                return
            if call.stream and len(call.requests) == 1:
                await self._stream_one(exchange, call, timeout_s, running)
            else:
                await self._run(exchange, call, timeout_s, running)

    async def _read_body(self, exchange: HttpExchange) -> bytes:
        party = body_party(self.context, exchange.tenant, exchange.scope)
        raw = await self.context.bodies.read_body(
            exchange.receive,
            exchange.headers,
            exchange.tenant,
            party,
            arrived=exchange.scope[CONNECTION].body_arrived,
        )
        exchange.held += len(raw)
        exchange.body_read = True
        self.context.metrics.request_bytes.inc(len(raw))
        return raw

    def _translate(self, raw: bytes, exchange: HttpExchange) -> CompletionCall:
        values = self.context.settings.max_body_values
        once = once_of(exchange.headers, exchange.tenant, self.path, raw)
        if self._kind == "chat":
            body = parse_body(raw, ChatCompletionRequest, values)
            return chat_call(
                body,
                exchange.headers,
                request_id=exchange.request_id,
                tenant=exchange.tenant,
                once=once,
                root_key=self._root_key,
            )
        prompts = parse_body(raw, CompletionRequest, values)
        if len(prompts.prompt) > self.context.settings.max_prompts:
            raise InvalidRequest(
                f"`prompt` may have {self.context.settings.max_prompts} prompts, got {len(prompts.prompt)}",
                param="prompt",
            )
        return completion_call(
            prompts, exchange.headers, request_id=exchange.request_id, tenant=exchange.tenant, once=once
        )

    def _envelope(self, call: CompletionCall, token: ResumeToken | None = None) -> Envelope:
        created_s = token.created_s if token is not None else int(time.time())
        return Envelope(answer_id(self._kind, call.request_id), created_s, call.model, call.session_id)

    async def _run(
        self, exchange: HttpExchange, call: CompletionCall, timeout_s: float, running: RunningRequest
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
        self, exchange: HttpExchange, call: CompletionCall, asked: GenerateRequest, timeout_s: float
    ) -> GenerationStream:
        # a call that may be repeated carries a token, also if it is not streamed
        token = self._token(exchange, call).encode() if asked.call_key else b""
        request = msgspec.structs.replace(asked, note=token) if token else asked
        trace = trace_headers(exchange.headers)
        return self.context.client.submit(request, timeout_s=timeout_s, headers=trace, whole=not call.stream)

    async def _answer(
        self, exchange: HttpExchange, call: CompletionCall, streams: list[GenerationStream]
    ) -> None:
        if call.stream:
            await self._stream_several(exchange, call, streams)
        else:
            await self._whole(exchange, call, streams)

    async def _stream_one(
        self, exchange: HttpExchange, call: CompletionCall, timeout_s: float, running: RunningRequest
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
        async with stream_with_grace(stream, self._detached, running, grace_s):
            with self.context.metrics.open_streams.track_inprogress():
                await send_events(
                    [stream],
                    event_writer(token, request, ids=call.event_ids),
                    exchange.reply,
                    exchange.outcome,
                    header_wait_s=settings.header_wait_s,
                )

    def _token(self, exchange: HttpExchange, call: CompletionCall, grace_s: float = 0.0) -> ResumeToken:
        """The token by which another gateway can give the same answer."""
        return ResumeToken(
            VERSION, self._kind, int(time.time()), call.include_usage, grace_s, exchange.shown_id
        )

    async def _whole(
        self, exchange: HttpExchange, call: CompletionCall, streams: list[GenerationStream]
    ) -> None:
        parts = [await stream.completion() for stream in streams]
        exchange.outcome.group = parts[0].group
        exchange.outcome.accepted = streams[0].accepted
        exchange.outcome.usages = [part.usage for part in parts]
        exchange.outcome.session = parts[0].session
        raw = streams[0].request.note
        token = read_token(raw) if raw else None  # a repeated call gets the same time
        logprobs = call.requests[0].sampling.logprobs
        body = await encode_whole(self._kind, self._envelope(call, token), parts, logprobs)
        del parts  # frees memory while a slow reader takes the body
        await confirm_turn(streams[0])
        await exchange.reply.send_whole(200, body, exchange.outcome.headers())

    async def _stream_several(
        self, exchange: HttpExchange, call: CompletionCall, streams: list[GenerationStream]
    ) -> None:
        writer = CompletionChunkWriter(
            self._envelope(call),
            prompts=len(streams),
            n=call.n,
            usage=call.include_usage,
            logprobs=call.logprobs,
        )
        wait_s = self.context.settings.header_wait_s
        with self.context.metrics.open_streams.track_inprogress():
            await send_events(streams, writer, exchange.reply, exchange.outcome, header_wait_s=wait_s)


def trace_headers(headers: RawHeaders) -> dict[str, str]:
    """The caller's trace context as headers of the bus."""
    return {name: headers[raw].decode("latin-1") for name, raw in _TRACE_HEADERS if raw in headers}
