"""What a leader sends back: frames, several of them in one NATS message.

Frames of a request are numbered from 0 (`Accepted`) without a gap; the last one is `Done` or `Failed`,
exactly once. A frame with a lower attempt than the newest one seen is to be ignored.
"""

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from shared.messages.base import (
    MAX_ATTEMPT,
    SMALL,
    TENANT_OR_NONE,
    Attempt,
    GroupName,
    RequestId,
    SessionId,
    Tenant,
    TokenIds,
    Wire,
    check_depth,
)
from shared.messages.blocks import KVSource

FinishReason = Literal["stop", "length"]
Owner = Annotated[
    str,
    msgspec.Meta(
        pattern=TENANT_OR_NONE,
        description="Whose request it is. On a tenant's subject that tenant counts; elsewhere an empty one "
        "means every request of that id.",
    ),
]


class TopLogprob(Wire, frozen=True, kw_only=True):
    """One alternative at a position."""

    token_id: int
    token: str
    logprob: float


class TokenLogprob(Wire, frozen=True, kw_only=True):
    """The chosen token's natural log probability, and the likeliest alternatives, best first."""

    token_id: int
    token: str
    logprob: float
    top: list[TopLogprob] = []


class Delta(Wire, frozen=True, kw_only=True):
    """What one choice gained: text that is complete UTF-8, and the tokens it came from.

    A token whose bytes do not complete a character yet has its id in the delta, and its text in a later one.
    """

    choice: Annotated[int, msgspec.Meta(ge=0)] = 0
    text: str = ""
    token_ids: TokenIds = b""
    logprobs: list[TokenLogprob] = []
    finish_reason: FinishReason | None = None


class Usage(Wire, frozen=True, kw_only=True):
    """Token counts of a request; cached ones were not computed again, and fetched are those of them that
    came from the store for this request.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    fetched_tokens: int = 0


class SessionOutcome(Wire, frozen=True, kw_only=True):
    """What became of a turn: whether it went on with a session, and whether its record is stored.

    turns, version: of the session with this turn. stored: `pending` when the leader has the record and the
    store had not confirmed it in time, `conflict` when the session had changed meanwhile. reason: why it is
    not stored. replaced: the turn took the place of an equal one before it, whose answer had not arrived.
    """

    state: Literal["new", "continued"]
    turns: int
    version: int = 0
    stored: Literal["stored", "pending", "conflict", "not_stored"] = "stored"
    reason: str = ""
    replaced: bool = False


class Frame(Wire, frozen=True, kw_only=True, tag_field="type"):
    """What every frame carries."""

    request_id: RequestId
    attempt: int = 0
    seq: Annotated[int, msgspec.Meta(ge=0)] = 0


class Accepted(Frame, frozen=True, kw_only=True, tag="accepted"):
    """The leader has the request. The first frame of an attempt: number 0, or where a resumed one goes on.

    kv: where the prompt's KV comes from: `new` (there is none yet), `warm` (the group's memory), `fetch` (the
    store), `recompute` (there is some in the store, but computing is faster); empty: not decided yet.
    instance_id: of the group's leader, as in its heartbeats: a group that comes back is another instance.
    fingerprint: of its weights and its KV format.
    """

    group: GroupName
    instance_id: str = ""
    fingerprint: str = ""
    reason: str = ""
    session_id: str = ""
    session_turns: Annotated[int, msgspec.Meta(description="Turns the session had before this one.")] = 0
    kv: KVSource = ""
    session_version: Annotated[
        int, msgspec.Meta(description="Of the session before this turn; 0: it is new, -1: not known yet.")
    ] = -1


class Tokens(Frame, frozen=True, kw_only=True, tag="tokens"):
    """New text of one or more choices."""

    deltas: list[Delta]


class Done(Frame, frozen=True, kw_only=True, tag="done"):
    """The end of a generation that ran its course; every choice's finish reason was in a `Tokens` frame."""

    usage: Usage
    session: SessionOutcome | None = None


class Failed(Frame, frozen=True, kw_only=True, tag="failed"):
    """The end of a generation that did not. `code` is one of the error codes; `data` has its details.

    resumable: it is the group that cannot go on; another one can, with `resume` and the next attempt. With
    `suspect` in `data` the engine died while it computed this request: the next attempt counts one more in
    `crashes`.
    """

    code: str
    message: str
    data: dict[str, Any] = {}
    resumable: bool = False

    def __post_init__(self) -> None:
        check_depth(self.data)


AnyFrame = Accepted | Tokens | Done | Failed


class FrameBatch(Wire, frozen=True, kw_only=True):
    """All frames that one step has for one reply subject, whatever requests they belong to.

    group, instance_id: whose leader sent them, and which instance of it; empty: a router did. A caller takes
        the frames of an attempt from the instance that accepted it, and from no other.
    """

    frames: list[AnyFrame]
    group: str = ""
    instance_id: str = ""


class Cancel(Wire, frozen=True, kw_only=True):
    """The caller no longer wants the answer. Unknown request ids are no error; there is no reply.

    attempt: this one and those before it end; a later one, which runs perhaps on the same group, goes on.
    instance_id: the leader that is meant; another one of the same name ignores it. Empty: any.
    """

    max_bytes: ClassVar[int] = SMALL
    request_id: RequestId
    reason: str = ""
    attempt: Attempt = MAX_ATTEMPT
    instance_id: str = ""
    tenant: Owner = ""


class Delivered(Wire, frozen=True, kw_only=True):
    """The caller of a turn is there and gets the end of its answer. Sent for requests with `confirms`."""

    max_bytes: ClassVar[int] = SMALL
    request_id: RequestId
    tenant: Tenant
    session_id: SessionId


class Resend(Wire, frozen=True, kw_only=True):
    """Asks a leader for the frames from a number on; the reply subject gets a `ResendReply`.

    instance_id: the leader that is meant; another one of the same name does not answer. Empty: any.
    """

    max_bytes: ClassVar[int] = SMALL
    request_id: RequestId
    attempt: int = 0
    from_seq: Annotated[int, msgspec.Meta(ge=0)]
    instance_id: str = ""
    tenant: Owner = ""


class ResendReply(Wire, frozen=True, kw_only=True):
    """The frames a caller missed. `known` is false when the leader has no such attempt (any more).

    attempt: the newest that it knows of the request. A higher one than the caller's: somebody attached to the
        request, and it is theirs.
    """

    known: bool
    next_seq: int = 0
    frames: list[AnyFrame] = []
    attempt: int = 0


class Attach(Wire, frozen=True, kw_only=True):
    """Asks all leaders for a request that somebody else has published; who has it gives it away.

    From then on its frames go to `reply_to`, under the next attempt, so that the one who had it before can
    neither end it nor start it again. Only requests with a `note` can be had; they must be of that tenant.

    call_key: asks for the request with that key instead of that id, if it has not failed. One that asks for
    something else (`call_digest`) is named in the answer and stays where it is.
    """

    max_bytes: ClassVar[int] = SMALL
    request_id: RequestId
    tenant: Tenant
    reply_to: str
    call_key: str = ""
    call_digest: str = ""


class Attached(Wire, frozen=True, kw_only=True):
    """Answer of the leader that has the request, running or ended a moment ago; others are silent.

    request: the encoded `GenerateRequest`, with the attempt that counts now, and without a prompt if it has
        ended: its frames can be read, but no other group can begin it again.
    first_seq: of the oldest frame that it keeps, to be had by `Resend`; next_seq: of the next one.
    """

    request: bytes
    group: GroupName
    instance_id: str = ""
    first_seq: int = 0
    next_seq: int = 0
