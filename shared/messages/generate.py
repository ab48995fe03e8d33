"""What a caller asks for: one generation of a model, and how a router hands it to a worker group.

The same `GenerateRequest` may be published any number of times: a leader that knows its request id and
attempt does not start it twice.
"""

import math
from typing import Annotated, Literal

import msgspec

from shared.messages.base import (
    DEFAULT_TENANT,
    MAX_ATTEMPT,
    Attempt,
    GroupName,
    ModelName,
    RequestId,
    SessionId,
    Tenant,
    TokenIds,
    Wire,
)

Role = Literal["system", "user", "assistant", "tool"]
Probability = Annotated[float, msgspec.Meta(gt=0, le=1)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
CallKey = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{0,64}\Z")]
MAX_STOPS = 16
MAX_BIASES = 1024
MAX_CHOICES = 16
MAX_LOGPROBS = 20
MAX_SEQ = 2**53
_FLOATS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


class ChatMessage(Wire, frozen=True, kw_only=True):
    """One message of a conversation; content is plain text."""

    role: Role
    content: str
    name: str = ""


class Sampling(Wire, frozen=True, kw_only=True):
    """How the next token is chosen. The defaults sample from the model's own distribution.

    The token at a position is a pure function of the request, the tokens so far and the weights:
    randomness is drawn from a counter-based generator keyed by (seed, choice, position).
    """

    temperature: Annotated[float, msgspec.Meta(ge=0, le=2, description="0 takes the likeliest token.")] = 1.0
    top_p: Probability = 1.0
    top_k: Annotated[int, msgspec.Meta(ge=0, description="0: no limit.")] = 0
    min_p: Annotated[
        float, msgspec.Meta(ge=0, le=1, description="Share of the likeliest token's probability.")
    ] = 0.0
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0, le=10)] = 1.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    logit_bias: Annotated[
        dict[int, Annotated[float, msgspec.Meta(ge=-100, le=100)]], msgspec.Meta(max_length=MAX_BIASES)
    ] = {}
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] = 1
    max_tokens: Annotated[int, msgspec.Meta(ge=0, description="0: as many as the context has room for.")] = 0
    stop: Annotated[
        list[Annotated[str, msgspec.Meta(min_length=1, max_length=256)]], msgspec.Meta(max_length=MAX_STOPS)
    ] = []
    ignore_eos: bool = False
    logprobs: Annotated[
        int, msgspec.Meta(ge=-1, le=MAX_LOGPROBS, description="-1: none; else the number of alternatives.")
    ] = -1

    def __post_init__(self) -> None:
        for field in _FLOATS:
            if not math.isfinite(getattr(self, field)):
                raise ValueError(f"`{field}` must be a finite number")
        for token_id, bias in self.logit_bias.items():
            if token_id < 0 or not math.isfinite(bias):
                raise ValueError(f"`logit_bias` maps token ids to finite numbers, got {token_id}: {bias}")


class SessionRef(Wire, frozen=True, kw_only=True):
    """The session a request belongs to.

    mode: `append` puts the request's messages after the session's history, `replace` takes them as the
    whole conversation, `auto` appends when none of them is the assistant's, else replaces.
    """

    session_id: SessionId
    given: Annotated[
        bool, msgspec.Meta(description="The caller sent the id; false: it was made for this request.")
    ] = True
    mode: Literal["auto", "append", "replace"] = "auto"
    if_version: Annotated[
        int,
        msgspec.Meta(ge=-1, description="The version that the session must have; 0: none; -1: any will do."),
    ] = -1
    must_exist: Annotated[
        bool, msgspec.Meta(description="Refuse the turn when there is no such session.")
    ] = False


class ResumePoint(Wire, frozen=True, kw_only=True):
    """Where an earlier attempt stopped: the tokens of each choice so far, and the next sequence number.

    The frames of this attempt go on from that number, and the text of each choice from those tokens.
    fingerprint: of the weights that these tokens are of, as `Accepted` told; other weights do not go on.
    session_version: that the session had before this turn, as `Accepted` told; -1: not known.
    """

    token_ids: Annotated[list[TokenIds], msgspec.Meta(max_length=MAX_CHOICES)]
    next_seq: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQ)]
    fingerprint: Annotated[str, msgspec.Meta(max_length=256)] = ""
    session_version: Annotated[int, msgspec.Meta(ge=-1)] = -1


class GenerateRequest(Wire, frozen=True, kw_only=True):
    """One generation. Exactly one of `messages`, `prompt` and `prompt_token_ids` is given.

    reply_to: the subject for the frames; empty: the reply subject of the NATS message.
    delivery: `stream` sends a frame after each step, `whole` lets the leader gather tokens into few frames.
    resume: where to go on, when `attempt` is not the first; see `ResumePoint`.
    crashes: how many groups died while they computed this request, by their own fault; see `Failed`.
    note: the caller's own, for whoever attaches to the request later (`Attach`); without one nobody can.
    kv: what to do with KV that is in the store and not in the group's memory: `auto` takes the faster way,
        `fetch` and `recompute` are for measuring.
    call_key: names a call that may be made again, with another request id, and counts once; empty: none does.
    call_digest: of what such a call asks for; with another one the key was used for another call.
    confirms: the caller sends `Delivered` at the end; an equal turn after one without it takes its place.
    """

    request_id: RequestId
    model: ModelName
    messages: Annotated[list[ChatMessage], msgspec.Meta(min_length=1, max_length=4096)] | None = None
    prompt: str | None = None
    prompt_token_ids: TokenIds | None = None
    sampling: Sampling = Sampling()
    session: SessionRef | None = None
    tenant: Tenant = DEFAULT_TENANT
    priority: Annotated[int, msgspec.Meta(ge=-10, le=10, description="Higher goes first.")] = 0
    attempt: Attempt = 0
    reply_to: str = ""
    delivery: Literal["stream", "whole"] = "stream"
    resume: ResumePoint | None = None
    kv: Literal["auto", "fetch", "recompute"] = "auto"
    note: Annotated[bytes, msgspec.Meta(max_length=4096)] = b""
    call_key: CallKey = ""
    call_digest: CallKey = ""
    crashes: Annotated[int, msgspec.Meta(ge=0, le=MAX_ATTEMPT)] = 0
    confirms: bool = False


class Route(Wire, frozen=True, kw_only=True):
    """What a router decided for a request, and why."""

    group: GroupName
    reason: str
    preferred_group: str = ""
    last_group: str = ""
    router_id: str = ""


class Work(Wire, frozen=True, kw_only=True):
    """A request on its way to a group, and the decision beside it.

    request: of a service the bytes that it sent; of a caller outside what the router has made of them.
    instance_id: the leader that the router means; another one of the same name does not begin it. Empty: any.
    outside: the request came from a caller outside, so that `attempt` gives it no precedence.
    """

    request: Annotated[bytes, msgspec.Meta(description="An encoded GenerateRequest.")]
    route: Route
    reply_to: str
    instance_id: str = ""
    outside: bool = False
