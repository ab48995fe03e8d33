"""Gives a request to another caller that asks for it: its frames go there from then on.

Only requests that came with a note are given, and only to callers of their own tenant. The former caller gets
a last frame of its own attempt; with that attempt it can neither end the request nor ask for its frames.
"""

import msgspec
import structlog

from services.worker.domain.generation.generation import failed_frame, request_key
from services.worker.leader.context import LeaderContext
from services.worker.leader.request_table import RequestTable
from shared import codec
from shared.bus.api import Message
from shared.bus.subject import can_answer
from shared.errors import Cancelled, InvalidRequest
from shared.messages import Attach, Attached, GenerateRequest
from shared.messages.base import MAX_ATTEMPT

log = structlog.get_logger(__name__)

ROOM_BYTES = 1024  # of an answer beside the request in it


class AttachCalls:
    """The call of the attach subject, on which all leaders listen; only one with the request answers."""

    def __init__(self, context: LeaderContext, table: RequestTable) -> None:
        self._context = context
        self._table = table

    async def attach(self, attach: Attach, message: Message) -> Attached | None:
        """Gives the request to the caller.

        The same caller (the same reply subject) gets the same answer if it asks again.
        """
        buffer = self._table.buffer
        key = request_key(attach.tenant, attach.request_id)
        if attach.call_key:
            key = buffer.key_of_call(attach.tenant, attach.call_key) or ""
        kept = buffer.kept(key)
        request = kept.offer(attach.tenant) if kept is not None else None
        if kept is None or request is None or not message.reply:
            return None
        # a gateway publishes a keyed call when no leader has answered in time; its question may come after it
        if attach.call_key and attach.request_id == request.request_id:
            return None
        same = not attach.call_key or attach.call_digest == request.call_digest
        if same and kept.reader != message.reply:
            request = self._renumbered(request, attach.reply_to)
            if request is None:
                return None
            self._hand_over(request)
            buffer.give_to_reader(key, request, message.reply, self._context.clock())
            self._context.metrics.attached.inc()
        return Attached(
            request=codec.encode(request),
            group=self._context.group,
            instance_id=self._context.instance_id,
            first_seq=kept.first_seq,
            next_seq=kept.next_seq,
        )

    def _renumbered(self, request: GenerateRequest, reply_to: str) -> GenerateRequest | None:
        """Returns the request as its next attempt; None if there is none, or an answer cannot hold it."""
        if request.attempt >= MAX_ATTEMPT:
            return None
        request = msgspec.structs.replace(request, attempt=request.attempt + 1, reply_to=reply_to)
        if len(codec.encode(request)) + ROOM_BYTES > self._context.bus.max_payload:
            log.warning("request too large to be given away", request_id=request.request_id)
            return None
        return request

    def _hand_over(self, request: GenerateRequest) -> None:
        """Redirects the frames of a request that still runs, and sends the former caller its last frame."""
        generation = self._table.by_key.get(request_key(request.tenant, request.request_id))
        if generation is None:
            return
        gone = Cancelled("another caller has attached to the request", reason="attached_elsewhere")
        last = failed_frame(generation.request, gone, generation.next_seq)
        self._table.publisher.send_untracked(generation.reply_to, last)
        generation.request, generation.reply_to = request, request.reply_to


def check_reply_to(attach: Attach, _: Message) -> None:
    """Raises `InvalidRequest` if frames cannot be sent to the subject that the caller names."""
    if not can_answer(attach.reply_to):
        raise InvalidRequest(
            f"reply_to: {attach.reply_to[:64]!r} is no subject for answers", param="reply_to"
        )
