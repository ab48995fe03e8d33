"""The body of a text completion, as OpenAI's clients send it."""

from typing import Annotated

from pydantic import Field

from services.gateway.formats.fields.field_types import (
    Prompts,
)
from services.gateway.formats.fields.sampling_body import I32_MAX, SamplingBody
from shared.messages.generate import MAX_LOGPROBS


class CompletionRequest(SamplingBody):
    """The body of `POST /v1/completions`."""

    prompt: Prompts
    """A text, its token ids, or a list of those, each with an answer of its own."""
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    """Log probabilities of the answer's tokens, with so many alternatives. Absent: none."""
    best_of: int | None = None
    """Must be equal to `n`. Absent: nothing changes."""
    max_tokens: Annotated[int | None, Field(ge=0, le=I32_MAX)] = None
    """Tokens of an answer at most; 0: no answer, for the prompt's `echo`. Absent: 16."""
    echo: bool | None = None
    """The text begins with the prompt. Absent: false."""
