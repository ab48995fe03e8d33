"""Makes the call of a plain chat completion straight from its bytes: texts of roles, and common fields. Pure.

Most bodies are such, and are read here in a fifth of the time. Whatever this does not know or does not
accept, it leaves to `schema.py` and `call.py`, which decide alone which bodies are
refused and with which words. A test holds that both make the same call of a body that is taken here.
"""

import msgspec

from services.gateway.admission.request_headers import STREAM_GRACE, given_session
from services.gateway.answering.call import Call
from services.gateway.answering.intake.new_calls import count_once, in_session, seed_of
from services.gateway.formats.chat.plain_body import PlainChat
from services.gateway.formats.fields.body_format import CallOrigin
from services.gateway.formats.fields.changing_blocks import request_without_blocks
from services.gateway.formats.fields.sampling import NAMES_IN_BODY, NEWER_LENGTH, PLAIN_SAMPLING, given_values
from shared.messages import ChatMessage, GenerateRequest, Sampling

_decoder = msgspec.json.Decoder(PlainChat)


def plain_chat_call(raw: bytes, origin: CallOrigin) -> Call | None:
    """Makes the call of a body, as `chat_call` does; None if the body is none that is read here.

    Args:
        raw: The body, not checked yet.
        origin: What the call has beside it.

    Raises:
        InvalidRequest: A header is wrong, or the session's id; `chat_call` would raise the same.
    """
    try:
        body = _decoder.decode(raw)
    except Exception:  # of many kinds; the models of bodies find the words
        return None
    options = body.stream_options
    if options is not None and not body.stream:
        return None
    request = GenerateRequest(
        request_id=origin.request_id,
        model=body.model,
        messages=[
            ChatMessage(
                role="system" if message.role == "developer" else message.role,
                content=message.content,
                name=message.name or "",
            )
            for message in body.messages
        ],
        sampling=_sampling_of(body, seed_of(origin.once)),
        session=given_session(origin.headers, body.session_id),
        tenant=origin.tenant,
        delivery="stream" if body.stream else "whole",
    )
    request, blocks = request_without_blocks(request, origin.drops_blocks)
    request = in_session(request, origin.headers, body.session_must_exist, origin.once, origin.root_key)
    ids = None if options is None else options.include_event_ids
    return Call(
        kind="chat",
        request_id=origin.request_id,
        requests=[count_once(request, origin.once)],
        stream=bool(body.stream),
        include_usage=options is not None and bool(options.include_usage),
        event_ids=STREAM_GRACE in origin.headers if ids is None else ids,
        unknown_fields=[],
        left_out=blocks,
        field_names=NAMES_IN_BODY | NEWER_LENGTH if body.max_completion_tokens else NAMES_IN_BODY,
    )


def _sampling_of(body: PlainChat, seed: int) -> Sampling:
    """The sampling options; `seed` is used if the body has none."""
    stop = body.stop
    return Sampling(
        seed=seed if body.seed is None else body.seed % 2**63,
        seed_given=body.seed is not None,
        max_tokens=body.max_completion_tokens or body.max_tokens or 0,
        stop=[] if stop is None else [stop] if isinstance(stop, str) else stop,
        **given_values(body, PLAIN_SAMPLING),
    )
