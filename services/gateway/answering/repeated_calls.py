"""Answers calls whose `Idempotency-Key` a leader knows with the generation that runs or has ended there.

If no leader knows the key, the call is made like a first one; if its turn is in the record of the session,
the leader gives the same answer again and stores nothing.
"""

from services.gateway.answering.detached_streams import DetachedStreams
from services.gateway.answering.envelope import envelope_of
from services.gateway.answering.format import Door, GenerationCall
from services.gateway.answering.resume_token import read_token
from services.gateway.answering.running_call import RunningRequest
from services.gateway.http.serving_route import GatewayContext, HttpExchange
from services.gateway.streams.event_stream import STREAM_HEADER, StreamWithGrace, send_events
from shared.client.attach import Attachment, AttachTarget, attach

REPLAYED = (b"idempotent-replayed", b"true")


class RepeatedCalls:
    """Answers calls that were made before, from the generations of the first ones."""

    def __init__(self, door: Door, context: GatewayContext, detached: DetachedStreams) -> None:
        self._door = door
        self._context = context
        self._detached = detached

    async def answer_repeat(
        self, exchange: HttpExchange, call: GenerationCall, timeout_s: float, running: RunningRequest
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
        # the answer is made anew if its first frames are gone; a digest has its route, so kinds agree
        if found.first_seq or token is None or token.kind != self._door.kind:
            await found.stream.cancel("its call is made anew")
            running.check_running()
            return False
        self._context.metrics.repeated.inc()
        reply, outcome = exchange.reply, exchange.outcome
        exchange.take_ids(request.request_id, token.shown_id)
        reply.headers.append(REPLAYED)
        grace_s = min(token.grace_s, self._context.settings.stream_max_grace_s)
        async with StreamWithGrace(found.stream, self._detached, running, grace_s):
            if call.stream:
                reply.headers.append((STREAM_HEADER, request.request_id.encode()))
                wait_s = self._context.settings.constants.header_wait_s
                envelope = envelope_of(token, request)
                writer = self._door.writer(envelope, token, [request], ids=call.event_ids)
                with self._context.metrics.open_stream:
                    await send_events([found.stream], writer, exchange, header_wait_s=wait_s)
                return True
            part = await found.stream.completion()
            outcome.group, outcome.accepted, outcome.session = part.group, found.stream.accepted, part.session
            outcome.usages = [part.usage]
            envelope = envelope_of(token, request, accepted=outcome.accepted)
            body = await self._door.encode_whole(envelope, token, [request], [part])
            await reply.send_whole(200, body, outcome.headers())
        return True

    async def _find(self, call: GenerationCall, tenant: str, timeout_s: float) -> Attachment | None:
        (request,) = call.requests
        return await attach(
            self._context.client,
            AttachTarget(request.request_id, tenant, request.call_key, request.call_digest),
            must_reach=0,
            find_s=self._context.settings.constants.idempotency_find_ms / 1000,
            timeout_s=timeout_s,
        )
