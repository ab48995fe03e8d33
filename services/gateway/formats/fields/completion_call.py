"""What the calls of chat and text completions share: what an answer has besides text, and unknown fields."""

from collections.abc import Iterator, Mapping
from typing import Literal

from services.gateway.admission.request_headers import STREAM_GRACE
from services.gateway.answering.call import Call
from services.gateway.answering.left_out import LeftOut
from services.gateway.formats.fields.body_format import CallOrigin
from services.gateway.formats.fields.rules import (
    POLICY,
    inner_without_tools,
    judge_fields,
    refuse_unless_neutral,
)
from services.gateway.formats.fields.sampling_body import SamplingBody
from shared.errors import InvalidRequest
from shared.messages import GenerateRequest

# words in a call's data: the answer has that field
PROMPT_LOGPROBS, SERVICE_TIER = b"prompt_logprobs", b"service_tier"


def _format_words(body: SamplingBody) -> Iterator[bytes]:
    if body.prompt_logprobs is not None:
        yield PROMPT_LOGPROBS
    if body.service_tier is not None:
        yield SERVICE_TIER


def call_of_body(
    kind: Literal["chat", "completion"],
    body: SamplingBody,
    origin: CallOrigin,
    requests: list[GenerateRequest],
    *,
    unknown: list[str],
    left_out: list[LeftOut],
    field_names: Mapping[str, str],
) -> Call:
    """The call of a checked body.

    Args:
        kind: Chat or text completion; chooses the format of the answer.
        body: The checked body.
        origin: What the call has beside it.
        requests: The generations that the body asks for.
        unknown: Names of unknown fields at the top of the body.
        left_out: What is known and not served.
        field_names: The caller's names of fields of `GenerateRequest`.

    Raises:
        InvalidRequest: Events with ids are asked of several generations.
    """
    options = body.stream_options
    ids = None if options is None else options.include_event_ids
    if ids and len(requests) > 1:
        raise InvalidRequest(
            "`stream_options.include_event_ids` needs a single prompt: a stream of several cannot be resumed",
            param="stream_options.include_event_ids",
        )
    return Call(
        kind=kind,
        request_id=origin.request_id,
        requests=requests,
        stream=bool(body.stream),
        include_usage=options is not None and bool(options.include_usage),
        event_ids=STREAM_GRACE in origin.headers if ids is None else ids,
        timeout_s=body.timeout,
        unknown_fields=[*unknown, *inner_without_tools(body.unknown_inside, left_out)],
        left_out=left_out,
        format_data=b" ".join(_format_words(body)),
        field_names=field_names,
    )


def judge_body(body: SamplingBody) -> tuple[list[str], list[LeftOut]]:
    """Judges the unknown fields at the top of a body.

    Returns:
        The names of the fields that are not known, shortened; and what is known and left out.

    Raises:
        InvalidRequest: A field changes the meaning of the answer or is misspelt; names it.
    """
    for field, rule in POLICY["completion"].items():
        refuse_unless_neutral(field, (body.model_extra or {}).get(field), rule)
    return judge_fields(body.model_extra, type(body).model_fields)
