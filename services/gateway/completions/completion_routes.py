"""The two completion routes: from a body to generations, and from their text to an answer.

Puts the pure parts in order (keys, limits, body, translation), starts the generations and has the answer
written. A streamed answer of one generation can be resumed: it is left with a note, and it may outlive its
connection for a while.
"""

import time
from contextlib import AsyncExitStack
from typing import Literal

import msgspec

from services.gateway.bodies.body_parser import check_content_type, parse
from services.gateway.bodies.large_bodies import is_large
from services.gateway.completions.call import Call, chat_call, completion_call
from services.gateway.completions.chunks import CompletionWriter
from services.gateway.completions.completion_schema import ChatCompletionRequest, CompletionRequest
from services.gateway.completions.cost import check_cost
from services.gateway.completions.idempotency import once_of
from services.gateway.completions.repeats import Repeats
from services.gateway.completions.whole_responses import Envelope
from services.gateway.http.exchange import Running
from services.gateway.http.route import Context, Exchange, Route, body_party
from services.gateway.http.whole_answers import encoded
from services.gateway.sessions.session_headers import RawHeaders, stream_grace_s, time_limit_s
from services.gateway.streams.event_stream import STREAM_HEADER, confirm, leaving, send_events
from services.gateway.streams.resume_token import VERSION, Note, answer_id, read_note, writer_of
from shared.client import GenerationStream
from shared.errors import InvalidRequest
from shared.messages import GenerateRequest
from shared.telemetry.traces import TRACE_HEADERS
from shared.web.protocol import CONNECTION

__all__ = ["CompletionRoute", "Context", "trace_headers"]

_TRACE_HEADERS = [(name, name.encode()) for name in TRACE_HEADERS]


class CompletionRoute(Route):
    """Answers `POST` on one of the completion routes."""

    def __init__(self, kind: Literal["chat", "completion"], context: Context) -> None:
        super().__init__("/v1/chat/completions" if kind == "chat" else "/v1/completions", context)
        self._kind = kind
        self._repeats = Repeats(context)

    async def serve(self, exchange: Exchange) -> None:
        """See `Route`."""
        context = self.context
        settings = context.settings
        self.check_accepting()
        exchange.tenant = context.keyring.tenant(exchange.headers.get(b"authorization", b""))
        context.rates.take(exchange.tenant, time.monotonic())
        context.places.check(exchange.tenant)
        check_content_type(exchange.headers)
        raw = await self._read(exchange)
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
        async with self.running(exchange, timeout_s) as running:
            once = len(call.requests) == 1 and call.requests[0].call_key
            if once and await self._repeats.answer(exchange, call, timeout_s, running):
                return
            if call.stream and len(call.requests) == 1:
                await self._stream_one(exchange, call, timeout_s, running)
            else:
                await self._run(exchange, call, timeout_s, running)

    async def _read(self, exchange: Exchange) -> bytes:
        party = body_party(self.context, exchange.tenant, exchange.scope)
        raw = await self.context.bodies.read(
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

    def _translate(self, raw: bytes, exchange: Exchange) -> Call:
        values = self.context.settings.max_body_values
        once = once_of(exchange.headers, exchange.tenant, self.path, raw)
        if self._kind == "chat":
            body = parse(raw, ChatCompletionRequest, values)
            return chat_call(
                body,
                exchange.headers,
                request_id=exchange.request_id,
                tenant=exchange.tenant,
                once=once,
                root_key=self.context.root_key,
            )
        prompts = parse(raw, CompletionRequest, values)
        if len(prompts.prompt) > self.context.settings.max_prompts:
            raise InvalidRequest(
                f"`prompt` may have {self.context.settings.max_prompts} prompts, got {len(prompts.prompt)}",
                param="prompt",
            )
        return completion_call(
            prompts, exchange.headers, request_id=exchange.request_id, tenant=exchange.tenant, once=once
        )

    def _envelope(self, call: Call, note: Note | None = None) -> Envelope:
        created_s = note.created_s if note is not None else int(time.time())
        return Envelope(answer_id(self._kind, call.request_id), created_s, call.model, call.session_id)

    async def _run(self, exchange: Exchange, call: Call, timeout_s: float, running: Running) -> None:
        """Starts the generations and sends the answer; on any way out, what still runs is cancelled."""
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
        self, exchange: Exchange, call: Call, asked: GenerateRequest, timeout_s: float
    ) -> GenerationStream:
        # one whose answer may be asked for again goes with a note, also when it is not streamed
        note = self._note(exchange, call).encode() if asked.call_key else b""
        request = msgspec.structs.replace(asked, note=note) if note else asked
        trace = trace_headers(exchange.headers)
        return self.context.client.submit(request, timeout_s=timeout_s, headers=trace, whole=not call.stream)

    async def _answer(self, exchange: Exchange, call: Call, streams: list[GenerationStream]) -> None:
        if call.stream:
            await self._stream_several(exchange, call, streams)
        else:
            await self._whole(exchange, call, streams)

    async def _stream_one(self, exchange: Exchange, call: Call, timeout_s: float, running: Running) -> None:
        """A stream that its client can come back to."""
        settings = self.context.settings
        grace_s = stream_grace_s(
            exchange.headers, default_s=settings.stream_grace_s, max_s=settings.stream_max_grace_s
        )
        note = self._note(exchange, call, grace_s)
        request = msgspec.structs.replace(call.requests[0], note=note.encode())
        exchange.reply.headers.append((STREAM_HEADER, request.request_id.encode()))
        stream = self.context.client.submit(
            request, timeout_s=timeout_s, headers=trace_headers(exchange.headers)
        )
        async with leaving(stream, self.context.parking, running, exchange.reply, grace_s):
            with self.context.metrics.open_streams.track_inprogress():
                await send_events(
                    [stream],
                    writer_of(note, request, ids=call.event_ids),
                    exchange.reply,
                    exchange.outcome,
                    header_wait_s=settings.header_wait_s,
                )

    def _note(self, exchange: Exchange, call: Call, grace_s: float = 0.0) -> Note:
        """What another gateway needs to give the same answer."""
        return Note(VERSION, self._kind, int(time.time()), call.include_usage, grace_s, exchange.shown_id)

    async def _whole(self, exchange: Exchange, call: Call, streams: list[GenerationStream]) -> None:
        parts = [await stream.completion() for stream in streams]
        exchange.outcome.group = parts[0].group
        exchange.outcome.accepted = streams[0].accepted
        exchange.outcome.usages = [part.usage for part in parts]
        exchange.outcome.session = parts[0].session
        noted = streams[0].request.note
        note = read_note(noted) if noted else None  # a repeated call is told the same time
        logprobs = call.requests[0].sampling.logprobs
        body = await encoded(self._kind, self._envelope(call, note), parts, logprobs)
        del parts  # while a slow reader takes the body
        await confirm(streams[0])
        await exchange.reply.whole(200, body, exchange.outcome.headers())

    async def _stream_several(self, exchange: Exchange, call: Call, streams: list[GenerationStream]) -> None:
        writer = CompletionWriter(
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
    """The caller's trace context, as it goes on over the bus."""
    return {name: headers[raw].decode("latin-1") for name, raw in _TRACE_HEADERS if raw in headers}
