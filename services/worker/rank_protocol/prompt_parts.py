"""What a step brings of prompts beside tokens; part of a `StepResult`."""

import msgspec


class PromptScore(msgspec.Struct, frozen=True, array_like=True):
    """The log probability of a token of a prompt, and the likeliest tokens at its position with theirs."""

    logprob: float
    top: list[tuple[int, float]] = []


class PromptPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a step has brought of one prompt.

    Attributes:
        embedding: The pooled vector, 32-bit little-endian floats; after the last chunk of the prompt only.
        first: Index of the first token that is scored.
        scores: Of consecutive tokens of the prompt.
        error: Why there is no result; the sequence cannot go on, the others can.
    """

    seq_id: int
    embedding: bytes = b""
    first: int = 0
    scores: list[PromptScore] = []
    error: str = ""
