"""A text completion that is sent in one piece. Streamed ones are in `chunks.py`."""

from collections.abc import Sequence
from typing import Any

from services.gateway.answering.envelope import Envelope
from services.gateway.formats.fields.openai_answer import NOT_SHOWN, PromptShown, encode_answer, head_of
from services.gateway.formats.fields.token_logprobs import prompt_logprobs
from services.gateway.formats.text.logprobs import (
    TextOffsets,
    completion_logprobs,
    echoed_logprobs,
    joined_logprobs,
)
from shared.client import Choice, Completion
from shared.codec import unpack_tokens


def completion_body(
    envelope: Envelope, parts: Sequence[Completion], logprobs: bool, *, shown: PromptShown = NOT_SHOWN
) -> bytes:
    """A `text_completion`; one part for each prompt, their choices numbered through."""
    body = head_of(envelope, "text_completion")
    body["choices"] = [
        {"index": index, **fields}
        for index, fields in enumerate(
            _completion_choice(choice, part.choices[0], logprobs, shown)
            for part in parts
            for choice in part.choices
        )
    ]
    return encode_answer(body, envelope, parts)


def _completion_choice(choice: Choice, first: Choice, logprobs: bool, shown: PromptShown) -> dict[str, Any]:
    """One choice, with the fields of its prompt if they were asked for."""
    entries: dict[str, Any] | None = None
    if logprobs:
        offsets = TextOffsets(len(first.prompt_text))
        entries = completion_logprobs(offsets.take(choice.text, choice.logprobs, ended=True))
        if shown.echo:
            entries = joined_logprobs(echoed_logprobs(first.prompt_logprobs), entries)
    fields: dict[str, Any] = {
        "text": first.prompt_text + choice.text,
        "logprobs": entries,
        "finish_reason": choice.finish_reason,
    }
    if shown.prompt_logprobs:
        fields["prompt_logprobs"] = prompt_logprobs(first.prompt_logprobs)
    if shown.token_ids:
        fields |= {"prompt_token_ids": unpack_tokens(first.packed_prompt), "token_ids": choice.token_ids}
    return fields
