"""`POST /v1/responses`: from a body to a response, whole, as events, or in the background."""

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace

import msgspec

from services.gateway.admission.refusals import Headers
from services.gateway.admission.request_headers import time_limit_s
from services.gateway.answering.answer_cost import check_cost, entries_of_token
from services.gateway.answering.background_calls import in_background
from services.gateway.answering.context import GatewayContext
from services.gateway.answering.new_calls import counted_for
from services.gateway.answering.priority import limit_priority
from services.gateway.answering.run_call import trace_headers
from services.gateway.answering.running_call import RunningCall
from services.gateway.bodies.body_route import BodyRoute
from services.gateway.http.serving_route import HttpExchange
from services.gateway.responses.background_runs import BackgroundRuns
from services.gateway.responses.kept_events import EventsGone
from services.gateway.responses.response_events import DONE, ResponseEvent
from services.gateway.responses.response_run import FRAMES_AT_ONCE, KeptRun, ResponseEnd, event_batches
from services.gateway.responses.response_schema import ResponseRequest
from services.gateway.responses.response_translation import ResponseCall, response_call, with_our_names
from shared.client import GenerationStream
from shared.client.calls.responses_client import ResponsesClient
from shared.errors import ResponseNotFound, RyzError
from shared.messages import ResponseRecord, Tokens

PATH = "/v1/responses"
_MANY = 20_000  # tokens and log probabilities; beyond it an answer is encoded in a thread
RESPONSE_ID = re.compile(r"[A-Za-z0-9_-]{1,96}\Z")
EVENT_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
]


class ResponseRoute(BodyRoute):
    """Answers `POST`.

    Args:
        context: What all requests share.
        store: Has the records of responses.
        background: Runs responses without their callers.
    """

    def __init__(self, context: GatewayContext, store: ResponsesClient, background: BackgroundRuns) -> None:
        super().__init__(PATH, context)
        self._store = store
        self._background = background

    async def serve_request(self, exchange: HttpExchange) -> None:
        """See `ServingRoute`."""
        try:
            await self._serve(exchange)
        except RyzError as error:
            raise with_our_names(error) from error.__cause__

    async def history_of(self, body: ResponseRequest, tenant: str) -> list[ResponseRecord]:
        """The conversation that a body continues; raises `ResponseNotFound` if it is not there."""
        if not body.previous_response_id:
            return []
        if not RESPONSE_ID.match(body.previous_response_id):
            raise ResponseNotFound(f"no response {body.previous_response_id[:96]!r}")
        limit = self.context.settings.max_body_bytes
        return await self._store.chain(tenant, body.previous_response_id, limit)

    def make_call(
        self, body: ResponseRequest, history: Sequence[ResponseRecord], request_id: str, tenant: str
    ) -> ResponseCall:
        """The call of a body; raises `InvalidRequest` if a field is wrong."""
        call = response_call(
            body,
            history,
            request_id=request_id,
            tenant=tenant,
            seed=random.getrandbits(63),  # no secret: it decides what is drawn
            created_s=int(time.time()),
            drops_blocks=self.context.settings.leave_out_changing_blocks,
        )
        (request,), limited = limit_priority([call.request], self.context.settings.max_priority)
        if limited:
            call = replace(call, request=request, left_out=(*call.left_out, *limited))
        check_cost([call.request], self.context.settings.constants.max_answer_entries)
        return call

    def end_of(self, call: ResponseCall) -> ResponseEnd:
        """What stores the response."""
        return ResponseEnd(self._store if call.stored else None, call)

    async def _serve(self, exchange: HttpExchange) -> None:
        context, settings = self.context, self.context.settings
        body = await self.take_model(exchange, ResponseRequest)
        history = await self.history_of(body, exchange.caller.tenant)
        call = self.make_call(body, history, exchange.caller.request_id, exchange.caller.tenant)
        exchange.caller.told += self.ignored_fields.tell(
            call.unknown_fields, call.left_out, exchange.caller.request_id
        )
        (request,) = in_background([call.request], exchange.caller.background)
        (request,) = counted_for([request], exchange.caller.tenant, exchange.caller.party)
        call = replace(call, request=request)
        exchange.caller.model = call.request.model
        timeout_s = time_limit_s(
            exchange.caller.headers,
            call.timeout_s,
            default_s=settings.max_timeout_s if call.background else settings.default_timeout_s,
            max_s=settings.max_timeout_s,
        )
        async with self.running_request(exchange, timeout_s) as running:
            if call.background:
                await self._begin(exchange, call, timeout_s, running)
                return
            headers = trace_headers(exchange.caller.headers)
            whole = not call.stream
            async with context.client.submit(
                call.request, timeout_s=timeout_s, headers=headers, whole=whole
            ) as stream:
                running.streams.append(stream)
                running.check_running()
                if call.stream:
                    await self._stream(exchange, call, stream)
                else:
                    await self._whole(exchange, call, stream)

    async def _begin(
        self, exchange: HttpExchange, call: ResponseCall, timeout_s: float, running: RunningCall
    ) -> None:
        run = await running.finish_work(
            self._background.begin(call, timeout_s, trace_headers(exchange.caller.headers))
        )
        if call.stream:
            await follow_run(run, exchange, after=-1)
        else:
            await exchange.reply.send_whole(200, msgspec.json.encode(call.fields), [])

    async def _whole(self, exchange: HttpExchange, call: ResponseCall, stream: GenerationStream) -> None:
        events = call.new_events()
        events.opening()
        events.note_sampling((await stream.wait_accepted()).sampling)
        while frames := await stream.next_frames(FRAMES_AT_ONCE):
            for frame in frames:
                events.deltas(frame.deltas)
            await asyncio.sleep(0)
        events.finish(stream.usage, int(time.time()))
        note_outcome(exchange, stream)
        await self.end_of(call).save(events)
        whole = events.whole()
        large = stream.usage.completion_tokens * entries_of_token(call.request.sampling.logprobs) > _MANY
        body = await asyncio.to_thread(msgspec.json.encode, whole) if large else msgspec.json.encode(whole)
        await exchange.reply.send_whole(200, body, exchange.caller.outcome.headers())

    async def _stream(self, exchange: HttpExchange, call: ResponseCall, stream: GenerationStream) -> None:
        accepted = await stream.wait_accepted()
        first: list[Tokens] = []
        try:
            async with asyncio.timeout(self.context.settings.constants.header_wait_s):
                first = await stream.next_frames(FRAMES_AT_ONCE)
        except TimeoutError:
            pass  # a slow start is no failure: the headers go out, the text follows
        note_outcome(exchange, stream)
        events = call.new_events()
        events.note_sampling(accepted.sampling)
        exchange.caller.outcome.first_text_s = asyncio.get_running_loop().time() if first else 0.0
        with self.context.metrics.open_stream:
            await exchange.reply.start_stream([*EVENT_HEADERS, *exchange.caller.outcome.headers()])
            opening = b"".join(event.as_sse(ids=False) for event in events.opening())
            await exchange.reply.send_part(opening)
            batches = event_batches(stream, events, self.end_of(call), first)
            await send_batches(batches, exchange, ids=False)
        note_outcome(exchange, stream)
        if events.status == "failed":
            self.context.metrics.count_failed_stream(stream.error.code if stream.error else "internal")


def note_outcome(exchange: HttpExchange, stream: GenerationStream) -> None:
    """Notes what is known of a generation for headers, metrics and the log."""
    exchange.caller.outcome.group, exchange.caller.outcome.accepted = stream.group, stream.accepted
    if stream.finished:
        exchange.caller.outcome.usages = [stream.usage]


async def send_batches(
    batches: AsyncIterator[list[ResponseEvent]], exchange: HttpExchange, *, ids: bool
) -> None:
    """Sends events up to the last one, and the end of the stream."""
    async for batch in batches:
        if batch:
            await exchange.reply.send_part(b"".join(event.as_sse(ids=ids) for event in batch))
    await exchange.reply.send_part(DONE, more=False)


async def follow_run(run: KeptRun, exchange: HttpExchange, *, after: int) -> None:
    """Sends the events of a response that runs in this gateway, from the one after `after` on."""
    await exchange.reply.start_stream(EVENT_HEADERS)
    whole = False
    with suppress(EventsGone):
        async for batch in run.follow(after):
            await exchange.reply.send_part(b"".join(event.as_sse(ids=True) for event in batch))
        whole = run.events.ended
    if whole:
        await exchange.reply.send_part(DONE, more=False)
    else:
        await exchange.reply.finish()  # no last event: the client resumes the stream, at any gateway
