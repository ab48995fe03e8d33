"""A whole answer, put together from its frames."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from shared.codec import unpack_tokens
from shared.errors import Internal
from shared.messages import (
    AnswerPart,
    Delta,
    FinishReason,
    ReasoningPart,
    SessionOutcome,
    TextPart,
    TokenLogprob,
    Tokens,
    ToolCallPart,
    Usage,
)
from shared.messages.answer_parts import join_parts
from shared.messages.generate import Resumed


@dataclass(slots=True)
class Choice:
    """One of the `n` answers.

    Answers about the prompt (`packed_prompt`, `prompt_text`, `prompt_logprobs`, `embedding`) are in the
    first one.

    Attributes:
        packed_tokens: As on the wire; `token_ids` unpacks them.
        packed_prompt: The prompt's tokens likewise, if they were asked for.
        stop: The stop string that ended it; empty if none did.
        parts: Text, reasoning and tool calls in order, each of them whole.
    """

    index: int
    text: str = ""
    packed_tokens: bytes = b""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    prompt_text: str = ""
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    embedding: bytes = b""
    stop: str = ""
    packed_prompt: bytes = b""
    parts: list[AnswerPart] = field(default_factory=list)

    @property
    def reasoning(self) -> str:
        """What the model thought before its answer."""
        return "".join(part.text for part in self.parts if isinstance(part, ReasoningPart))

    @property
    def tool_calls(self) -> list[ToolCallPart]:
        """The calls of tools, each with its id, name and arguments."""
        return [part for part in self.parts if isinstance(part, ToolCallPart)]

    @property
    def token_ids(self) -> list[int]:
        """The generated tokens."""
        return unpack_tokens(self.packed_tokens)


@dataclass(frozen=True, slots=True)
class Completion:
    """The whole answer to a request.

    `session` is what became of the turn, None if the request has no session. `resumed` is as in `Done`.
    """

    request_id: str
    session_id: str
    group: str
    choices: list[Choice]
    usage: Usage
    session: SessionOutcome | None = None
    resumed: Resumed = ""


@dataclass(frozen=True, slots=True)
class Embedding:
    """The embedding of one prompt. `packed`: 32-bit little-endian floats; `vector` unpacks them."""

    request_id: str
    group: str
    packed: bytes
    usage: Usage

    @property
    def vector(self) -> list[float]:
        """The components."""
        return list(struct.unpack(f"<{len(self.packed) // 4}f", self.packed))


def gather(frames: Sequence[Tokens], num_choices: int) -> list[Choice]:
    """The choices, each with all of its text and tokens; `Internal` for one that was not asked for."""
    if num_choices == 1 and len(frames) == 1 and len(frames[0].deltas) == 1:
        (delta,) = frames[0].deltas
        if not (delta.choice or delta.parts):
            return [_whole_choice(delta)]
    choices = [Choice(index) for index in range(num_choices)]
    texts: list[list[str]] = [[] for _ in choices]
    tokens: list[list[bytes]] = [[] for _ in choices]
    parts: list[list[AnswerPart]] = [[] for _ in choices]
    for frame in frames:
        for delta in frame.deltas:
            if delta.choice >= num_choices:
                raise Internal(f"the group sent choice {delta.choice} of {num_choices}")
            choice = choices[delta.choice]
            texts[delta.choice].append(delta.text)
            tokens[delta.choice].append(delta.token_ids)
            parts[delta.choice] += delta.parts or ([TextPart(text=delta.text)] if delta.text else [])
            if delta.logprobs:
                choice.logprobs += delta.logprobs
            if delta.prompt_logprobs or delta.prompt_text or delta.prompt_token_ids:
                choice.packed_prompt += delta.prompt_token_ids
                choice.prompt_logprobs += delta.prompt_logprobs
                choice.prompt_text += delta.prompt_text
            if delta.embedding:
                choice.embedding = delta.embedding  # a second group may have sent it again
            if delta.finish_reason is not None:
                choice.finish_reason, choice.stop = delta.finish_reason, delta.stop
    for choice in choices:
        choice.text = "".join(texts[choice.index])
        choice.parts = join_parts(parts[choice.index])
        choice.packed_tokens = b"".join(tokens[choice.index])
    return choices


def _whole_choice(delta: Delta) -> Choice:
    """The only choice if its plain text came in one piece, as that of short answers does."""
    ended = delta.finish_reason is not None
    return Choice(
        index=0,
        text=delta.text,
        packed_tokens=delta.token_ids,
        logprobs=delta.logprobs,
        finish_reason=delta.finish_reason,
        prompt_text=delta.prompt_text,
        packed_prompt=delta.prompt_token_ids,
        prompt_logprobs=delta.prompt_logprobs,
        embedding=delta.embedding,
        stop=delta.stop if ended else "",
        parts=[TextPart(text=delta.text)] if delta.text else [],
    )
