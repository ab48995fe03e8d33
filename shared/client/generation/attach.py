"""Goes on with a request that another caller has published: finds it, and takes it over.

Leaders that have the request answer; where several do (one of them may have been given up meanwhile), the
newest attempt counts and the others are told to stop.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from shared import subjects
from shared.bus import Bus, Message
from shared.client.generation.generation_stream import GenerationStream
from shared.client.inference_client import InferenceClient
from shared.codec import decode, encode
from shared.errors import Conflict, InvalidRequest, RyzError
from shared.messages import Attach, Attached, Cancel, GenerateRequest

log = structlog.get_logger(__name__)

OTHERS_S = 0.02  # how long other leaders may take once one has answered
ASKS = 3  # a request that moves from a lost group to another is with nobody for a moment
NEVER = 2**62


@dataclass(frozen=True, slots=True)
class Attachment:
    """A request that is ours now. Its frames are kept from `first_seq` on; `next_seq` was the next one."""

    stream: GenerationStream
    request: GenerateRequest
    first_seq: int
    next_seq: int


@dataclass(frozen=True, slots=True)
class _Found:
    answer: Attached
    request: GenerateRequest


async def attach(
    client: InferenceClient,
    request_id: str,
    tenant: str,
    *,
    reach: int,
    find_s: float,
    timeout_s: float,
    call_key: str = "",
    call_digest: str = "",
) -> Attachment | None:
    """Takes a tenant's request over; None: no leader has it.

    Args:
        client: takes the frames from here on.
        request_id: of a request that was published with a note.
        tenant: whose it has to be.
        reach: frames below that number were shown to somebody; without them a loss of the group is an end.
        find_s: how long leaders may take to answer.
        timeout_s: the deadline from now.
        call_key, call_digest: the request is looked for by that key, and has another id.

    A caller that is cancelled here may have been given the request already; then its frames come, and after a
    while it is cancelled as one that is not wanted (`unwanted.py`). A caller that knows better what is to
    become of it waits for the end.

    Raises `Unavailable` without a broker, `Cancelled` (reason `attached_elsewhere`) when another caller was
    quicker, and `Conflict` (`idempotency_key_reused`) when the key is that of another call.
    """
    question = Attach(
        request_id=request_id,
        tenant=tenant,
        reply_to=client.reply_to,
        call_key=call_key,
        call_digest=call_digest,
    )
    client.unwanted.attaching += 1  # its frames may come before this caller knows what they are of
    try:
        found = await _find(client.bus, question, find_s)
        return await _take_over(client, found, call_key, call_digest, reach=reach, timeout_s=timeout_s)
    finally:
        client.unwanted.attaching -= 1


async def _take_over(
    client: InferenceClient,
    found: list[_Found],
    call_key: str,
    call_digest: str,
    *,
    reach: int,
    timeout_s: float,
) -> Attachment | None:
    """Makes the newest of what was found a stream of this client."""
    if not found:
        return None
    if any(one.request.call_digest != call_digest for one in found) and call_key:
        raise Conflict(
            "this Idempotency-Key was used for another call; use a new key for each call, and the same one "
            "only to send a call again as it was",
            reason="idempotency_key_reused",
        )
    newest = max(found, key=lambda one: one.request.attempt)
    await _stop_others(client.bus, (one for one in found if one.answer.group != newest.answer.group))
    request, answer = newest.request, newest.answer
    begins_at = request.resume.next_seq if request.resume is not None else 0
    whole = answer.first_seq == begins_at and _has_prompt(request)
    stream = client.adopt(
        request,
        group=answer.group,
        instance_id=answer.instance_id,
        first_seq=answer.first_seq,
        reach=reach if whole else NEVER,  # else tokens or the prompt are missing for good
        timeout_s=timeout_s,
    )
    return Attachment(stream, request, answer.first_seq, answer.next_seq)


def _has_prompt(request: GenerateRequest) -> bool:
    """Whether it could be begun again; a leader keeps no prompt of what has ended."""
    return not (request.messages is None and request.prompt is None and request.prompt_token_ids is None)


async def _find(bus: Bus, question: Attach, timeout_s: float) -> list[_Found]:
    """The newest answer of each group that has the request."""
    found: dict[str, _Found] = {}
    answered = asyncio.Event()

    async def collect(message: Message) -> None:
        if message.no_responders:
            return
        try:
            answer = decode(message.data, Attached)
            found[answer.group] = _Found(answer, decode(answer.request, GenerateRequest))
        except InvalidRequest as error:
            log.warning("an answer that cannot be read", subject=message.subject, error=error.message)
            return
        answered.set()

    inbox = (
        bus.new_inbox()
    )  # the same for each time it asks: a leader knows by it that it has given it already
    subscription = await bus.subscribe(inbox, collect)
    try:
        for _ in range(ASKS):
            await bus.publish(subjects.ATTACH, encode(question), reply=inbox)
            try:
                async with asyncio.timeout(timeout_s / ASKS):
                    await answered.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(OTHERS_S)
            break
    finally:
        await subscription.unsubscribe()
    return list(found.values())


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
