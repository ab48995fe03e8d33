"""Attaches calls to generations that exist already: resumed streams, and calls with a known key.

The leader that has the request sends it with its frames, so any gateway can continue the stream. The events
are those of the stream as it began; `AnswerEvents` leaves out those that the client has already.
"""

import re
from dataclasses import dataclass

from services.gateway.admission.answer_headers import REPLAYED
from services.gateway.admission.caller import Caller
from services.gateway.admission.errors.refusals import HttpRefusal
from services.gateway.admission.identity.identity import api_of, check_api
from services.gateway.answering.answer import Answer
from services.gateway.answering.call import AnswerFormats, Call
from services.gateway.answering.context import GatewayContext
from services.gateway.answering.resumption.event_ids import NOTHING_YET, EventId
from services.gateway.answering.resumption.resume_token import read_token, request_id_of
from shared.client.attach import Attachment, AttachTarget, attach
from shared.messages import GenerateRequest
from shared.messages.base import ID_PATTERN

_REQUEST_ID = re.compile(ID_PATTERN)


@dataclass(frozen=True, slots=True)
class WantedStream:
    """What a caller asks for that resumes a stream.

    Attributes:
        stream_id: The id of the request, or of its answer.
        last: The last event that the caller has.
        grace_s: Seconds for which the stream goes on if the caller leaves; below 0: as it began.
        timeout_s: Seconds that the generation has.
    """

    stream_id: str
    last: EventId
    grace_s: float
    timeout_s: float


class ResumedStreams:
    """Finds streams and attaches to them.

    Args:
        context: What all calls share.
        formats: Of the streams.
    """

    def __init__(self, context: GatewayContext, formats: AnswerFormats) -> None:
        self._context = context
        self._formats = formats

    async def start(self, wanted: WantedStream, caller: Caller, answer: Answer) -> None:
        """Attaches an answer to a stream; the caller takes the ids of its request.

        Raises:
            HttpRefusal: No group has the stream, or it cannot go on after that event.
        """
        grace_s, attach = wanted.grace_s, self._attach(wanted, caller)
        # a leader hands the stream over at once: if the attach were cancelled, it would run unread
        found = await answer.running.finish_work(attach)
        self._context.metrics.attached.inc()
        request, token = found.request, read_token(found.request.note)
        caller.claim += self._context.admission.limits.hold_running(request.tenant, request.key_id)
        if token is None:
            grace_s = 0.0
        elif grace_s < 0:
            grace_s = min(token.grace_s, self._context.settings.stream_max_grace_s)
        answer.joined = found.first_seq != 0
        await answer.enter_with_grace(found.stream, grace_s, known=True)
        form = self._formats.get(token.kind) if token is not None else None
        if token is None or form is None:
            raise _gone("it was begun by a gateway of another version")
        answer.set_parts([request], token)
        _check_kept(found, wanted.last, needs_start=form.needs_start(request))
        caller.take_ids(request.request_id, token.shown_id)
        caller.response_headers.append((b"x-stream-id", request.request_id.encode()))
        if request.session is not None:
            caller.response_headers.append((b"x-session-id", request.session.session_id.encode()))

    async def end(self, stream_id: str, caller: Caller) -> None:
        """Ends the generation of a stream; raises like `start`."""
        timeout_s = self._context.settings.stream_attach_timeout_s
        found = await self._attach(WantedStream(stream_id, NOTHING_YET, 0.0, timeout_s), caller)
        await found.stream.cancel("its client ended it")

    async def _attach(self, wanted: WantedStream, caller: Caller) -> Attachment:
        request_id = request_id_of(wanted.stream_id)
        found = None
        if _REQUEST_ID.match(request_id):
            found = await attach(
                self._context.client,
                AttachTarget(request_id, caller.tenant),
                needed_seq=wanted.last.seq + 1,
                find_s=self._context.settings.stream_attach_timeout_s,
                timeout_s=wanted.timeout_s,
            )
        if found is None:
            raise _not_found(request_id)
        try:
            await self._check_scopes(caller, found.request)
        except HttpRefusal:
            found.stream.leave()  # it goes on, and another key of the tenant can resume it
            raise
        caller.request_id, caller.model = request_id, found.request.model
        return found

    async def _check_scopes(self, caller: Caller, request: GenerateRequest) -> None:
        """Raises an `HttpRefusal` if the caller's key is not for the API of a stream, or for its model."""
        identity, token = caller.identity, read_token(request.note)
        assert identity is not None
        form = self._formats.get(token.kind) if token is not None else None
        if form is not None:
            check_api(identity, api_of(form.path))
        if not await self._context.usable_models.allows(identity, request.model):
            raise _not_found(request.request_id)


def _not_found(request_id: str) -> HttpRefusal:
    return HttpRefusal(
        404,
        "stream_not_found",
        f"no group has a stream {request_id[:64]!r}: it ended a while ago, was cancelled, or never was; "
        "send the request again",
    )


def _check_kept(found: Attachment, last: EventId, *, needs_start: bool) -> None:
    """Raises a 410 if the events that follow the last one cannot be made."""
    if last.seq >= found.next_seq:  # a part that ran elsewhere is lost, or the id is of another stream
        raise _gone(f"it has {found.next_seq} frames here, and none with number {last.seq}")
    if last.needs_from(found.first_seq):
        raise _gone(
            f"it is kept from frame {found.first_seq} on, which is after event {last.seq}.{last.left}"
        )
    if found.first_seq and needs_start:
        raise _gone("its beginning, which its next events depend on, is kept no longer")


def _gone(why: str) -> HttpRefusal:
    return HttpRefusal(
        410, "stream_gone", f"the stream cannot go on where it stopped: {why}; send the request again"
    )


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
