"""Frames, which a leader sends back, several of them in one NATS message.

Frames of a request are numbered from 0 (`Accepted`) without a gap; the last one is `Done` or `Failed`,
exactly once. A frame with a lower attempt than the newest one seen must be ignored.
"""

from typing import Annotated, Any, Literal

import msgspec

from shared.messages.answer_parts import AnswerPart
from shared.messages.base import (
    GroupName,
    RequestId,
    TokenIds,
    Wire,
    check_depth,
)
from shared.messages.blocks import KVSource
from shared.messages.generate import Resumed, SamplingDefaults

FinishReason = Literal["stop", "length", "tool_calls"]
TokenBytes = Annotated[
    bytes | None,
    msgspec.Meta(
        description="The token's bytes where they are no whole characters, which are U+FFFD in `token`; "
        "empty: it adds nothing to the text. None: those of `token`."
    ),
]


class TopLogprob(Wire, frozen=True, kw_only=True):
    """One alternative at a position."""

    token_id: int
    token: str
    logprob: float
    raw: TokenBytes = None


class TokenLogprob(Wire, frozen=True, kw_only=True):
    """The chosen token's natural log probability, and the likeliest alternatives, best first.

    Every token of the answer has one, those of a stop string and the one that ends a sequence too, though
    their text is not part of the answer's.

    Attributes:
        offset: Characters of the text before the token, in an answer or in the prompt's text that `echo`
            asks for. A token that is a part of a character has the offset of that character. -1: not known.
    """

    token_id: int
    token: str
    logprob: float
    top: list[TopLogprob] = []
    raw: TokenBytes = None
    offset: Annotated[int, msgspec.Meta(ge=-1)] = -1


class Delta(Wire, frozen=True, kw_only=True):
    """New output of one choice: text that is complete UTF-8, and its tokens.

    If the bytes of a token do not complete a character, its id is in this delta and its text in a later one.

    Attributes:
        text: The text that the user is to see; reasoning and tool calls are in `parts` only.
        parts: All of the new output in order, the text too. Empty: there is nothing but `text`.
        prompt_logprobs: Log probabilities of the prompt's next tokens, in the first choice only. That of the
            first token of a prompt is 0, since nothing comes before it.
        embedding: The embedding of the prompt: 32-bit little-endian floats.
        prompt_text: The next piece of the prompt's text, if the request has `echo`; before all tokens, in the
            first choice only.
        stop: The stop string that ended the choice; empty if none did.
        prompt_token_ids: The next tokens of the prompt, if the request has `prompt_ids`; before all others,
            in the first choice only.
    """

    choice: Annotated[int, msgspec.Meta(ge=0)] = 0
    text: str = ""
    token_ids: TokenIds = b""
    logprobs: list[TokenLogprob] = []
    finish_reason: FinishReason | None = None
    parts: list[AnswerPart] = []
    prompt_logprobs: list[TokenLogprob] = []
    embedding: bytes = b""
    prompt_text: str = ""
    stop: str = ""
    prompt_token_ids: TokenIds = b""


class Usage(Wire, frozen=True, kw_only=True):
    """Token counts of a request.

    Attributes:
        cached_tokens: Prompt tokens whose KV was not computed again.
        fetched_tokens: Those of `cached_tokens` whose KV was read from the store for this request.
        reasoning_tokens: Those of `completion_tokens` that are reasoning.
        stored_tokens: Prompt tokens whose KV was computed and can be used again: those of whole blocks.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    fetched_tokens: int = 0
    reasoning_tokens: int = 0
    stored_tokens: int = 0


class SessionOutcome(Wire, frozen=True, kw_only=True):
    """The outcome of a turn for its session: new or continued, stored or not.

    Attributes:
        turns: Turns of the session, this one included.
        version: Version of the session after this turn.
        stored: `pending` if the leader has the record and the store has not confirmed it in time, `conflict`
        if the session has changed meanwhile.
        reason: Why the record is not stored.
        replaced: The turn replaced an equal one before it whose answer had not arrived.
    """

    state: Literal["new", "continued"]
    turns: int
    version: int = 0
    stored: Literal["stored", "pending", "conflict", "not_stored"] = "stored"
    reason: str = ""
    replaced: bool = False


class Frame(Wire, frozen=True, kw_only=True, tag_field="type"):
    """Fields of every frame."""

    request_id: RequestId
    attempt: int = 0
    seq: Annotated[int, msgspec.Meta(ge=0)] = 0


class Accepted(Frame, frozen=True, kw_only=True, tag="accepted"):
    """The leader has the request. First frame of an attempt, with number 0 or that of the resume point.

    Attributes:
        kv: Source of the prompt's KV: `new` (there is none yet), `warm` (the group's memory), `fetch` (the
            store), `recompute` (some is in the store, but computing is faster), empty (not decided yet).
        instance_id: Of the group's leader, as in its heartbeats. A leader that is started again is another
            instance.
        fingerprint: Of the weights and the KV format.
        sampling: Values that the leader has filled in for what `Sampling` left out. A later attempt sends
            them, so that it goes on alike where another group has other defaults.
        resumed: As in `Done`.
    """

    group: GroupName
    instance_id: str = ""
    fingerprint: str = ""
    reason: str = ""
    session_id: str = ""
    session_turns: Annotated[
        int,
        msgspec.Meta(
            description="Turns the session had before this one. 0 as well while `session_version` is -1: not "
            "known yet; `Done` has them then."
        ),
    ] = 0
    kv: KVSource = ""
    session_version: Annotated[
        int, msgspec.Meta(description="Of the session before this turn; 0: it is new, -1: not known yet.")
    ] = -1
    sampling: SamplingDefaults | None = None
    resumed: Resumed = ""


class Tokens(Frame, frozen=True, kw_only=True, tag="tokens"):
    """New text of one or more choices.

    Attributes:
        prompt: The counts of the prompt, in the first such frame of an attempt that streams.
    """

    deltas: list[Delta]
    prompt: Usage | None = None


class Done(Frame, frozen=True, kw_only=True, tag="done"):
    """The end of a generation that succeeded. The finish reason of each choice was in a `Tokens` frame.

    Attributes:
        resumed: `text`: another engine went on behind the text so far, and the whole need not be what one
            engine would have written. Empty: it is, also if groups were lost.
    """

    usage: Usage
    session: SessionOutcome | None = None
    resumed: Resumed = ""


class Failed(Frame, frozen=True, kw_only=True, tag="failed"):
    """The end of a generation that failed. `code` is one of the error codes; `data` has its details.

    Attributes:
        resumable: Another group can go on, with `resume` and the next attempt. If `data` has `suspect`, the
            engine died while it computed this request, and the next attempt counts one more in `crashes`.
        usage: Token counts of what was generated until then. None if another group may go on, or if the
            request was refused.
    """

    code: str
    message: str
    data: dict[str, Any] = {}
    resumable: bool = False
    usage: Usage | None = None

    def __post_init__(self) -> None:
        check_depth(self.data)


AnyFrame = Accepted | Tokens | Done | Failed


class FrameBatch(Wire, frozen=True, kw_only=True):
    """The frames of one step for one reply subject, of all its requests.

    Attributes:
        group: The group whose leader sent them. Empty: a router did.
        instance_id: The instance of that leader. A caller takes the frames of an attempt only from the
            instance that accepted it.
    """

    frames: list[AnyFrame]
    group: str = ""
    instance_id: str = ""
