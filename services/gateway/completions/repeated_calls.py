"""Answers calls whose `Idempotency-Key` a leader knows with the generation that runs or has ended there.

If no leader knows the key, the call is made like a first one; if its turn is in the record of the session,
the leader gives the same answer again and stores nothing.
"""

from services.gateway.completions.chunk_writers import event_writer
from services.gateway.completions.completion_call import CompletionCall
from services.gateway.completions.whole_responses import Envelope, encode_whole
from services.gateway.http.running_request import RunningRequest
from services.gateway.http.serving_route import GatewayContext, HttpExchange
from services.gateway.streams.detached_streams import DetachedStreams
from services.gateway.streams.event_stream import STREAM_HEADER, send_events, stream_with_grace
from services.gateway.streams.resume_token import answer_id, read_token
from shared.client.attach import Attachment, AttachTarget, attach

REPLAYED = (b"idempotent-replayed", b"true")


class RepeatedCalls:
    """Answers calls that were made before, from the generations of the first ones."""

    def __init__(self, context: GatewayContext, detached: DetachedStreams) -> None:
        self._context = context
        self._detached = detached

    async def answer_repeat(
        self, exchange: HttpExchange, call: CompletionCall, timeout_s: float, running: RunningRequest
    ) -> bool:
        """Sends the answer of the first call.

        Returns:
            False if no leader has it; nothing was sent then.

        Raises:
            Conflict: The key was used for another call.
        """
        found = await running.finish_work(self._find(call, exchange.tenant, timeout_s))
        if found is None:
            running.check_running()
            return False
        request, token = found.request, read_token(found.request.note)
        if found.first_seq or token is None:  # the first frames are gone, so the answer is made anew
            await found.stream.cancel("its call is made anew")
            running.check_running()
            return False
        self._context.metrics.repeated.inc()
        reply, outcome = exchange.reply, exchange.outcome
        exchange.take_ids(request.request_id, token.shown_id)
        reply.headers.append(REPLAYED)
        grace_s = min(token.grace_s, self._context.settings.stream_max_grace_s)
        async with stream_with_grace(found.stream, self._detached, running, grace_s):
            if call.stream:
                reply.headers.append((STREAM_HEADER, request.request_id.encode()))
                wait_s = self._context.settings.header_wait_s
                writer = event_writer(token, request, ids=call.event_ids)
                with self._context.metrics.open_streams.track_inprogress():
                    await send_events([found.stream], writer, reply, outcome, header_wait_s=wait_s)
                return True
            part = await found.stream.completion()
            outcome.group, outcome.accepted, outcome.session = part.group, found.stream.accepted, part.session
            outcome.usages = [part.usage]
            envelope = Envelope(
                answer_id(token.kind, request.request_id), token.created_s, call.model, call.session_id
            )
            logprobs = request.sampling.logprobs
            body = await encode_whole(token.kind, envelope, [part], logprobs)
            await reply.send_whole(200, body, outcome.headers())
        return True

    async def _find(self, call: CompletionCall, tenant: str, timeout_s: float) -> Attachment | None:
        (request,) = call.requests
        return await attach(
            self._context.client,
            AttachTarget(request.request_id, tenant, request.call_key, request.call_digest),
            must_reach=0,
            find_s=self._context.settings.idempotency_find_ms / 1000,
            timeout_s=timeout_s,
        )
