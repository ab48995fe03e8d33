"""A chat completion that is sent in one piece. Streamed ones are in `chunks.py`."""

from collections.abc import Sequence

import msgspec

from services.gateway.answering.envelope import Envelope
from services.gateway.formats.chat.message_parts import message_of
from services.gateway.formats.fields.openai_answer import NOT_SHOWN, PromptShown, encode_answer, head_of
from services.gateway.formats.fields.token_logprobs import prompt_logprobs, token_fields
from shared.client import Choice, Completion
from shared.codec import unpack_tokens
from shared.messages import TextPart, TokenLogprob


def chat_logprobs(entries: Sequence[TokenLogprob]) -> msgspec.Raw:
    """Log probabilities of a chat answer, encoded: as objects they would take ten times the memory."""
    content = b",".join(
        msgspec.json.encode(token_fields(entry) | {"top_logprobs": [token_fields(top) for top in entry.top]})
        for entry in entries
    )
    return msgspec.Raw(b'{"content":[' + content + b'],"refusal":null}')


def chat_body(
    envelope: Envelope, parts: Sequence[Completion], logprobs: bool, *, shown: PromptShown = NOT_SHOWN
) -> bytes:
    """A `chat.completion`; there is one part."""
    body = head_of(envelope, "chat.completion")
    body["choices"] = [
        {
            "index": index,
            "message": message_of(choice.parts or [TextPart(text=choice.text)], shown.custom),
            "logprobs": chat_logprobs(choice.logprobs) if logprobs else None,
            "finish_reason": choice.finish_reason,
            **({"token_ids": choice.token_ids} if shown.token_ids else {}),
        }
        for index, choice in enumerate(_choices(parts))
    ]
    if shown.prompt_logprobs:
        body["prompt_logprobs"] = prompt_logprobs(parts[0].choices[0].prompt_logprobs)
    if shown.token_ids:
        body["prompt_token_ids"] = unpack_tokens(parts[0].choices[0].packed_prompt)
    return encode_answer(body, envelope, parts)


def _choices(parts: Sequence[Completion]) -> list[Choice]:
    """The choices of all prompts, in the order of the prompts."""
    return parts[0].choices if len(parts) == 1 else [choice for part in parts for choice in part.choices]
