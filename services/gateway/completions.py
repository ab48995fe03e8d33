"""The two completion routes, from the first byte to the last: an ASGI application for each.

Puts the pure parts in order (keys, limits, body, translation), starts the generations and has the answer
written. Every way in which a request can end comes together in `__call__`.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Literal

import structlog
from starlette.types import Receive, Scope, Send

from services.gateway.auth import Keyring
from services.gateway.body import check_content_type, parse
from services.gateway.call import Call, chat_call, completion_call
from services.gateway.chunks import ChatWriter, ChunkWriter, CompletionWriter, error_event
from services.gateway.errors import answer_for
from services.gateway.exchange import Outcome, Reply, Running
from services.gateway.limits import (
    LINGER_S,
    ClientDisconnected,
    Places,
    RateLimiter,
    discard_body,
    read_body_in_time,
)
from services.gateway.metrics import GatewayMetrics
from services.gateway.respond import Envelope, chat_body, completion_body
from services.gateway.schema import ChatCompletionRequest, CompletionRequest
from services.gateway.sessions import RawHeaders, request_ids, time_limit_s
from services.gateway.settings import GatewaySettings
from services.gateway.stream import send_events
from shared.client import GenerationStream, InferenceClient
from shared.errors import InvalidRequest, RequestTooLarge, Unavailable
from shared.identity import new_request_id
from shared.telemetry.traces import TRACE_HEADERS

log = structlog.get_logger(__name__)

_TRACE_HEADERS = [(name, name.encode()) for name in TRACE_HEADERS]
_DEADLINE_MARGIN_S = 2.0  # the generations' own deadline is to come first


@dataclass(slots=True)
class Context:
    """What all requests of a gateway share. `accepting` says whether new ones are welcome."""

    settings: GatewaySettings
    client: InferenceClient
    keyring: Keyring
    rates: RateLimiter
    places: Places
    metrics: GatewayMetrics
    accepting: Callable[[], bool]
    running: set[Running] = field(default_factory=set)


@dataclass(slots=True)
class _Exchange:
    """One request on its way through the route."""

    headers: RawHeaders
    receive: Receive
    reply: Reply
    places: int = 0
    body_read: bool = False
    tenant: str = ""
    call: Call | None = None
    outcome: Outcome = field(default_factory=Outcome)


class CompletionRoute:
    """Answers `POST` on one of the completion routes."""

    def __init__(self, kind: Literal["chat", "completion"], context: Context) -> None:
        self._kind = kind
        self._context = context
        self.path = "/v1/chat/completions" if kind == "chat" else "/v1/completions"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Never raises: every error becomes an answer."""
        started_s = asyncio.get_running_loop().time()
        headers: RawHeaders = dict(scope["headers"])
        shown_id, request_id = request_ids(headers, new_request_id())
        reply = Reply(send)
        reply.headers.append((b"x-request-id", shown_id.encode()))
        exchange = _Exchange(headers, receive, reply)
        try:
            await self._serve(exchange, request_id)
        except ClientDisconnected:
            reply.status = 499
            self._context.metrics.cancelled.inc()
        except Exception as error:
            with suppress(TimeoutError):  # a caller that does not read holds no place for long
                async with asyncio.timeout(2 * LINGER_S):
                    await self._fail(exchange, error, request_id)
        finally:
            self._context.places.free(exchange.places)
        self._record(exchange, started_s, shown_id, request_id)

    async def _serve(self, exchange: _Exchange, request_id: str) -> None:
        context = self._context
        settings = context.settings
        if not context.accepting():
            raise Unavailable(
                "this gateway takes no requests at the moment: it starts, stops or has no broker",
                reason="not_ready",
                retry_after_s=1.0,
            )
        exchange.tenant = context.keyring.tenant(exchange.headers.get(b"authorization", b""))
        context.rates.take(exchange.tenant, time.monotonic())
        self._take_places(exchange, 1)
        check_content_type(exchange.headers)
        call = exchange.call = self._translate(await self._read(exchange), exchange, request_id)
        timeout_s = time_limit_s(
            exchange.headers,
            call.timeout_s,
            default_s=settings.default_timeout_s,
            max_s=settings.max_timeout_s,
        )
        if call.unknown_fields:
            context.metrics.unknown_fields.inc(call.unknown_fields)
        self._take_places(exchange, len(call.requests) - 1)
        if call.session_id:
            exchange.reply.headers.append((b"x-session-id", call.session_id.encode()))
        async with Running(exchange.receive, context.running, timeout_s + _DEADLINE_MARGIN_S):
            await self._run(exchange, call, timeout_s)

    def _take_places(self, exchange: _Exchange, count: int) -> None:
        self._context.places.take(count)
        exchange.places += count

    async def _read(self, exchange: _Exchange) -> bytes:
        settings = self._context.settings
        raw = await read_body_in_time(
            exchange.receive,
            exchange.headers,
            limit=settings.max_body_bytes,
            timeout_s=settings.body_timeout_s,
        )
        exchange.body_read = True
        self._context.metrics.request_bytes.inc(len(raw))
        return raw

    def _translate(self, raw: bytes, exchange: _Exchange, request_id: str) -> Call:
        if self._kind == "chat":
            body = parse(raw, ChatCompletionRequest)
            return chat_call(body, exchange.headers, request_id=request_id, tenant=exchange.tenant)
        prompts = parse(raw, CompletionRequest)
        if len(prompts.prompt) > self._context.settings.max_prompts:
            raise InvalidRequest(
                f"`prompt` may have {self._context.settings.max_prompts} prompts, got {len(prompts.prompt)}",
                param="prompt",
            )
        return completion_call(prompts, exchange.headers, request_id=request_id, tenant=exchange.tenant)

    def _envelope(self, call: Call) -> Envelope:
        prefix = "chatcmpl" if self._kind == "chat" else "cmpl"
        return Envelope(f"{prefix}-{call.request_id}", int(time.time()), call.model, call.session_id)

    async def _run(self, exchange: _Exchange, call: Call, timeout_s: float) -> None:
        """Starts the generations and sends the answer; on any way out, what still runs is cancelled."""
        trace = trace_headers(exchange.headers)
        async with AsyncExitStack() as stack:
            streams = []
            for request in call.requests:
                stream = self._context.client.submit(
                    request, timeout_s=timeout_s, headers=trace, whole=not call.stream
                )
                streams.append(await stack.enter_async_context(stream))
            if call.stream:
                await self._stream(exchange, call, streams)
            else:
                await self._whole(exchange, call, streams)

    async def _whole(self, exchange: _Exchange, call: Call, streams: list[GenerationStream]) -> None:
        parts = [await stream.completion() for stream in streams]
        exchange.outcome.group = parts[0].group
        exchange.outcome.accepted = streams[0].accepted
        exchange.outcome.usages = [part.usage for part in parts]
        shape = chat_body if self._kind == "chat" else completion_body
        body = shape(self._envelope(call), parts, logprobs=call.logprobs)
        await exchange.reply.whole(200, body, exchange.outcome.headers())

    async def _stream(self, exchange: _Exchange, call: Call, streams: list[GenerationStream]) -> None:
        envelope, n = self._envelope(call), call.n
        writer: ChunkWriter
        if self._kind == "chat":
            writer = ChatWriter(envelope, n=n, usage=call.include_usage, logprobs=call.logprobs)
        else:
            writer = CompletionWriter(
                envelope, prompts=len(streams), n=n, usage=call.include_usage, logprobs=call.logprobs
            )
        wait_s = self._context.settings.header_wait_s
        self._context.metrics.open_streams.inc()
        try:
            await send_events(streams, writer, exchange.reply, exchange.outcome, header_wait_s=wait_s)
        finally:
            self._context.metrics.open_streams.dec()

    async def _fail(self, exchange: _Exchange, error: Exception, request_id: str) -> None:
        """Answers with the error: as a status if there is still one to choose, else as an event."""
        answer, reply = answer_for(error), exchange.reply
        if answer.code == "internal":
            log.error("request failed", request_id=request_id, route=self.path, exc_info=error)
        if reply.started:
            self._context.metrics.failed_stream(answer.code)
            with suppress(TimeoutError):  # a caller that does not read: the connection is closed on it
                async with asyncio.timeout(LINGER_S):
                    await reply.part(error_event(answer), more=False)
            return
        unread = isinstance(error, RequestTooLarge) and not exchange.body_read
        if not unread or b"expect" in exchange.headers:
            await reply.whole(answer.status, answer.body, answer.headers)
            return
        # Closing while the caller still sends would reset the connection, and it might never see the answer
        await reply.whole(answer.status, answer.body, [*answer.headers, (b"connection", b"close")], more=True)
        with suppress(TimeoutError):
            await discard_body(exchange.receive)
        await reply.end()

    def _record(self, exchange: _Exchange, started_s: float, shown_id: str, request_id: str) -> None:
        metrics, outcome, reply = self._context.metrics, exchange.outcome, exchange.reply
        seconds = asyncio.get_running_loop().time() - started_s
        metrics.ended(self.path, reply.status, seconds)
        metrics.response_bytes.inc(reply.bytes_sent)
        if outcome.first_text_s:
            metrics.first_token(self.path, outcome.first_text_s - started_s)
        if self._context.settings.request_log:
            log.info(
                "request",
                request_id=request_id,
                shown_id=shown_id,
                tenant=exchange.tenant,
                route=self.path,
                status=reply.status,
                seconds=round(seconds, 6),
                model=exchange.call.model if exchange.call else "",
                group=outcome.group,
                reason=outcome.accepted.reason if outcome.accepted else "",
                kv=outcome.accepted.kv if outcome.accepted else "",
                prompt_tokens=sum(usage.prompt_tokens for usage in outcome.usages),
                completion_tokens=sum(usage.completion_tokens for usage in outcome.usages),
            )


def trace_headers(headers: RawHeaders) -> dict[str, str]:
    """The caller's trace context, as it goes on over the bus."""
    return {name: headers[raw].decode("latin-1") for name, raw in _TRACE_HEADERS if raw in headers}
