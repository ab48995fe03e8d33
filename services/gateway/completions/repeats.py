"""A call whose `Idempotency-Key` is known to a leader: its caller gets the answer that runs or has ended.

Where no leader knows it (any more), the call is made as if it were the first; if its turn is in the session's
record, the leader says the same answer again and stores nothing.
"""

from services.gateway.completions.call import Call
from services.gateway.completions.whole_responses import Envelope
from services.gateway.http.exchange import Running
from services.gateway.http.route import Context, Exchange
from services.gateway.http.whole_answers import encoded
from services.gateway.streams.event_stream import STREAM_HEADER, leaving, send_events
from services.gateway.streams.resume_token import answer_id, read_note, writer_of
from shared.client.generation.attach import Attachment, attach

REPLAYED = (b"idempotent-replayed", b"true")


class Repeats:
    """Answers calls that were made before."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def answer(self, exchange: Exchange, call: Call, timeout_s: float, running: Running) -> bool:
        """Sends the answer of the first call; False: no leader has it, and nothing was sent.

        Raises:
            Conflict: the key was used for another call.
        """
        found = await running.finish(self._find(call, exchange.tenant, timeout_s))
        if found is None:
            running.check()
            return False
        request, note = found.request, read_note(found.request.note)
        if found.first_seq or note is None:  # its beginning is not kept, so it is made anew
            await found.stream.cancel("its call is made anew")
            running.check()
            return False
        self._context.metrics.repeated.inc()
        reply, outcome = exchange.reply, exchange.outcome
        exchange.request_id, exchange.shown_id = request.request_id, note.shown_id
        reply.name(note.shown_id)
        reply.headers.append(REPLAYED)
        grace_s = min(note.grace_s, self._context.settings.stream_max_grace_s)
        async with leaving(found.stream, self._context.parking, running, reply, grace_s):
            if call.stream:
                reply.headers.append((STREAM_HEADER, request.request_id.encode()))
                wait_s = self._context.settings.header_wait_s
                writer = writer_of(note, request, ids=call.event_ids)
                with self._context.metrics.open_streams.track_inprogress():
                    await send_events([found.stream], writer, reply, outcome, header_wait_s=wait_s)
                return True
            part = await found.stream.completion()
            outcome.group, outcome.accepted, outcome.session = part.group, found.stream.accepted, part.session
            outcome.usages = [part.usage]
            envelope = Envelope(
                answer_id(note.kind, request.request_id), note.created_s, call.model, call.session_id
            )
            logprobs = request.sampling.logprobs
            await reply.whole(200, await encoded(note.kind, envelope, [part], logprobs), outcome.headers())
        return True

    async def _find(self, call: Call, tenant: str, timeout_s: float) -> Attachment | None:
        (request,) = call.requests
        return await attach(
            self._context.client,
            request.request_id,
            tenant,
            reach=0,
            find_s=self._context.settings.idempotency_find_ms / 1000,
            timeout_s=timeout_s,
            call_key=request.call_key,
            call_digest=request.call_digest,
        )
