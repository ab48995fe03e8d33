"""Answers calls whose `Idempotency-Key` a leader knows with the generation that runs or has ended there.

If no leader knows the key, the call is made like a first one; if its turn is in the record of the session,
the leader gives the same answer again and stores nothing.
"""

from services.gateway.admission.answer_headers import REPLAYED
from services.gateway.admission.caller import Caller
from services.gateway.answering.answer import Answer
from services.gateway.answering.call import Call
from services.gateway.answering.context import GatewayContext
from services.gateway.answering.resumption.resume_token import read_token
from shared.client.attach import Attachment, AttachTarget, attach


class RepeatedCalls:
    """Attaches calls that were made before to the generations of the first ones."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context

    async def start(self, call: Call, caller: Caller, timeout_s: float, answer: Answer) -> bool:
        """Attaches an answer to the generation of the first call.

        Returns:
            False if no leader has it; nothing was started then.

        Raises:
            Conflict: The key was used for another call.
        """
        found = await answer.running.finish_work(self._find(call, caller.tenant, timeout_s))
        if found is None:
            answer.running.check_running()
            return False
        request, token = found.request, read_token(found.request.note)
        # the answer is made anew if its first frames are gone; a digest has its route, so kinds agree
        if found.first_seq or token is None or token.kind != call.kind:
            await found.stream.cancel("its call is made anew")
            answer.running.check_running()
            return False
        self._context.metrics.repeated.inc()
        caller.take_ids(request.request_id, token.shown_id)
        caller.response_headers.append(REPLAYED)
        if call.stream:
            caller.response_headers.append((b"x-stream-id", request.request_id.encode()))
        answer.set_parts([request], token)
        grace_s = min(token.grace_s, self._context.settings.stream_max_grace_s)
        await answer.enter_with_grace(found.stream, grace_s)
        return True

    async def _find(self, call: Call, tenant: str, timeout_s: float) -> Attachment | None:
        (request,) = call.requests
        return await attach(
            self._context.client,
            AttachTarget(request.request_id, tenant, request.call_key, request.call_digest),
            needed_seq=0,
            find_s=self._context.settings.constants.idempotency_find_ms / 1000,
            timeout_s=timeout_s,
        )
