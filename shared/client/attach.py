"""Takes over a request that another caller has published.

All leaders are asked for the request. If several answer, because one of them was given up meanwhile, the
newest attempt counts and the others get a cancel.

A leader answers with the attempt after the one that it has. So an answer that is not above the attempt of
this client's own open stream is stale: the stream has left that leader, or leaves it while this call asks,
and its next group has other frames under the same numbers. A stale answer never counts.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog

from shared import subjects
from shared.bus import Bus, Message
from shared.client.generation.generation_stream import GenerationStream
from shared.client.inference_client import InferenceClient
from shared.codec import decode, encode
from shared.errors import Conflict, InvalidRequest, RyzError, Unavailable
from shared.messages import Attach, Attached, Cancel, GenerateRequest

log = structlog.get_logger(__name__)

OTHERS_S = 0.02  # how long other leaders may take once one has answered
NUM_ASKS = 3  # no leader has a request for a moment while it moves from a lost group to another
NEVER = 2**62  # more frames than a request has
RETRY_AFTER_S = 1.0  # by then the next group has a request that is between two


@dataclass(frozen=True, slots=True)
class AttachTarget:
    """The request that a caller asks for.

    Attributes:
        request_id: Of a request that was published with a note.
        tenant: Whose it has to be.
        call_key: The request is searched by this key, and may have another id; empty: by its id.
        call_digest: Of the call that the key belongs to.
    """

    request_id: str
    tenant: str
    call_key: str = ""
    call_digest: str = ""

    def is_other_call(self, request: GenerateRequest) -> bool:
        """Whether that request has the key, and is of another call: it is not handed over."""
        return bool(self.call_key) and request.call_digest != self.call_digest


@dataclass(frozen=True, slots=True)
class Attachment:
    """A request that was taken over.

    Attributes:
        stream: Its frames from `first_seq` on.
        request: As it was published.
        first_seq: The first frame that the group has kept.
        next_seq: The next frame when the group answered.
    """

    stream: GenerationStream
    request: GenerateRequest
    first_seq: int
    next_seq: int


@dataclass(frozen=True, slots=True)
class _Found:
    answer: Attached
    request: GenerateRequest


async def attach(
    client: InferenceClient, target: AttachTarget, *, needed_seq: int, find_s: float, timeout_s: float
) -> Attachment | None:
    """Takes a tenant's request over.

    A caller that is cancelled here may have been given the request already. Its frames come then, and after
    a while it is cancelled as an unwanted one (`UnwantedFrames`). A caller that wants to decide about the
    request waits for the end of this call.

    Args:
        client: Takes the frames from here on.
        target: The request to search.
        needed_seq: Frames below that number were shown; if the group is lost before they come again, the
            request ends.
        find_s: How long leaders may take to answer.
        timeout_s: The deadline from now.

    Returns:
        The request, or None if no leader has it.

    Raises:
        Unavailable: No broker; or the request is open in this client and between two groups (reason
            `stream_between_groups`).
        Cancelled: Another caller was quicker (reason `attached_elsewhere`).
        Conflict: The key is that of another call (reason `idempotency_key_reused`).
    """
    question = Attach(
        request_id=target.request_id,
        tenant=target.tenant,
        reply_to=client.reply_to,
        call_key=target.call_key,
        call_digest=target.call_digest,
    )
    with client.unwanted.attaching():  # its frames may come before this caller knows their request
        own = client.open_streams(target.request_id, target.call_key)

        def is_stale(one: _Found) -> bool:
            stream = own.get(one.request.request_id)
            if stream is None or not client.is_open(stream) or target.is_other_call(one.request):
                return False
            return one.request.attempt <= stream.state.attempts.number

        found = await _find(client.bus, question, is_stale, find_s)
        begun = [one for one in own.values() if client.is_open(one) and one.state.attempts.accepted]
        if not found and begun:
            raise Unavailable(
                f"the stream {begun[0].request_id} goes from one group to another now; ask again in a second",
                reason="stream_between_groups",
                retry_after_s=RETRY_AFTER_S,
            )
        return await _take_over(client, target, found, needed_seq=needed_seq, timeout_s=timeout_s)


async def _take_over(
    client: InferenceClient, target: AttachTarget, found: list[_Found], *, needed_seq: int, timeout_s: float
) -> Attachment | None:
    """Makes the newest of the found attempts a stream of this client."""
    if not found:
        return None
    if any(target.is_other_call(one.request) for one in found):
        raise Conflict(
            "this Idempotency-Key was used for another call; use a new key for each call, and the same one "
            "only to send a call again as it was",
            reason="idempotency_key_reused",
        )
    newest = max(found, key=lambda one: one.request.attempt)
    await _stop_others(client.bus, (one for one in found if one.answer.group != newest.answer.group))
    request, answer = newest.request, newest.answer
    begins_at = request.resume.next_seq if request.resume is not None else 0
    whole = answer.first_seq == begins_at and request.has_prompt
    stream = client.adopt(
        request,
        group=answer.group,
        instance_id=answer.instance_id,
        first_seq=answer.first_seq,
        needed_seq=needed_seq if whole else NEVER,  # else tokens or the prompt are missing for good
        timeout_s=timeout_s,
    )
    return Attachment(stream, request, answer.first_seq, answer.next_seq)


async def _find(
    bus: Bus, question: Attach, is_stale: Callable[[_Found], bool], timeout_s: float
) -> list[_Found]:
    """The newest answer of each group that has the request; groups with a stale attempt get a cancel."""
    answers: dict[str, _Found] = {}
    answered = asyncio.Event()

    async def collect(message: Message) -> None:
        if message.no_responders:
            return
        try:
            answer = decode(message.data, Attached)
            one = _Found(answer, decode(answer.request, GenerateRequest))
        except InvalidRequest as error:
            log.warning("an answer that cannot be read", subject=message.subject, error=error.message)
            return
        answers[answer.group] = one
        if not is_stale(one):
            answered.set()

    inbox = bus.new_inbox()  # the same for all questions, so that a leader answers a repeated one again
    subscription = await bus.subscribe(inbox, collect)
    try:
        for _ in range(NUM_ASKS):
            await bus.publish(subjects.ATTACH, encode(question), reply=inbox)
            try:
                async with asyncio.timeout(timeout_s / NUM_ASKS):
                    await answered.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(OTHERS_S)
            break
    finally:
        await subscription.unsubscribe()
    # the stream may have lost its group since an answer came
    stale = [one for one in answers.values() if is_stale(one)]
    await _stop_others(bus, stale)
    return [one for one in answers.values() if one not in stale and not is_stale(one)]


async def _stop_others(bus: Bus, others: Iterable[_Found]) -> None:
    for one in others:
        cancel = Cancel(
            request_id=one.request.request_id,
            reason="it goes on elsewhere",
            attempt=one.request.attempt,
            tenant=one.request.tenant,
        )
        try:
            await bus.publish(subjects.cancel(one.answer.group), encode(cancel))
        except RyzError as error:
            log.debug("not cancelled", group=one.answer.group, error=error.message)
