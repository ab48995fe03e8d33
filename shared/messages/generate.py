"""A request for one generation, and the message in which a router hands it to a worker group.

The same `GenerateRequest` may be published any number of times: a leader that knows its request id and
attempt does not start it again.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from shared.messages.adapters import Adapter
from shared.messages.answer_parts import EmbeddingOptions, Resumed, StructuredOutput
from shared.messages.base import (
    DEFAULT_TENANT,
    MAX_ATTEMPT,
    TENANT_OR_NONE,
    Attempt,
    GroupName,
    ModelName,
    RequestId,
    SessionId,
    Tenant,
    TokenIds,
    Wire,
)  # fmt: skip
from shared.messages.conversation import ChatMessage, TemplateOptions, ToolUse
from shared.messages.tenants.accounts import NO_KEY_OR_ID

Probability = Annotated[float, msgspec.Meta(gt=0, le=1)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
CallKey = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{0,64}\Z")]
MAX_STOPS = 16
MAX_BIASES = 1024
MAX_CHOICES = 16
MAX_LOGPROBS = 20
MAX_STOP_TOKENS = 64
MAX_SEQ = 2**53
_FLOATS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


def require_finite(given: msgspec.Struct, fields: Sequence[str]) -> None:
    """Raises `ValueError` for a field with a number that is not finite."""
    for field in fields:
        value = getattr(given, field)
        if value is not None and not math.isfinite(value):
            raise ValueError(f"`{field}` must be a finite number")


class SamplingDefaults(Wire, frozen=True, kw_only=True):
    """Parameters of sampling for which a model has defaults. None: not given.

    The order of defaults is in `services/worker/model_files/sampling_defaults.py`.
    """

    temperature: (
        Annotated[float, msgspec.Meta(ge=0, le=2, description="0 takes the likeliest token.")] | None
    ) = None
    top_p: Probability | None = None
    top_k: Annotated[int, msgspec.Meta(ge=0, description="0: no limit.")] | None = None
    min_p: (
        Annotated[float, msgspec.Meta(ge=0, le=1, description="Share of the likeliest token's probability.")]
        | None
    ) = None
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0, le=10)] | None = None

    def __post_init__(self) -> None:
        require_finite(self, DEFAULTED)


DEFAULTED = SamplingDefaults.__struct_fields__


class Sampling(SamplingDefaults, frozen=True, kw_only=True):
    """Parameters of sampling. The leader fills in the model's defaults for those of `SamplingDefaults`.

    The token at a position is a pure function of the request, the tokens so far and the weights:
    randomness is drawn from a counter-based generator keyed by (seed, choice, position).
    `seed_given`: the caller chose the seed; None: it did if that is not 0.
    """

    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    logit_bias: Annotated[
        dict[int, Annotated[float, msgspec.Meta(ge=-100, le=100)]], msgspec.Meta(max_length=MAX_BIASES)
    ] = {}
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    seed_given: bool | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] = 1
    max_tokens: Annotated[int, msgspec.Meta(ge=0, description="0: as many as the context has room for.")] = 0
    stop: Annotated[
        list[Annotated[str, msgspec.Meta(min_length=1, max_length=256)]], msgspec.Meta(max_length=MAX_STOPS)
    ] = []
    ignore_eos: bool = False
    logprobs: Annotated[
        int, msgspec.Meta(ge=-1, le=MAX_LOGPROBS, description="-1: none; else the number of alternatives.")
    ] = -1
    stop_token_ids: Annotated[
        list[Annotated[int, msgspec.Meta(ge=0)]],
        msgspec.Meta(max_length=MAX_STOP_TOKENS, description="Tokens that end the answer and are not text."),
    ] = []
    min_tokens: Annotated[
        int, msgspec.Meta(ge=0, description="Tokens before which no token ends the answer.")
    ] = 0
    prompt_logprobs: Annotated[
        int,
        msgspec.Meta(ge=-1, le=MAX_LOGPROBS, description="The same as `logprobs` for the prompt's tokens."),
    ] = -1

    def __post_init__(self) -> None:
        require_finite(self, _FLOATS)
        for token_id, bias in self.logit_bias.items():
            if token_id < 0 or not math.isfinite(bias):
                raise ValueError(f"`logit_bias` maps token ids to finite numbers, got {token_id}: {bias}")

    def with_defaults(self, defaults: SamplingDefaults) -> "Sampling":
        """Returns the parameters with values of `defaults` for those that are not given."""
        missing = self._missing(defaults)
        return msgspec.structs.replace(self, **missing) if missing else self

    def missing_of(self, defaults: SamplingDefaults) -> SamplingDefaults | None:
        """Returns those of `defaults` for which no value is given here; None if there are none."""
        missing = self._missing(defaults)
        return SamplingDefaults(**missing) if missing else None

    def _missing(self, defaults: SamplingDefaults) -> dict[str, Any]:
        names = [name for name in DEFAULTED if getattr(self, name) is None]
        return {name: value for name in names if (value := getattr(defaults, name)) is not None}


class SessionRef(Wire, frozen=True, kw_only=True):
    """The session a request belongs to.

    Attributes:
        mode: `append` puts the request's messages after the session's history, `replace` takes them as the
        whole conversation, `auto` appends if none of them is the assistant's and replaces otherwise.
    """

    session_id: SessionId
    given: Annotated[
        bool, msgspec.Meta(description="The caller sent the id; false: it was made for this request.")
    ] = True
    mode: Literal["auto", "append", "replace"] = "auto"
    if_version: Annotated[
        int,
        msgspec.Meta(
            ge=-1, description="The version that the session must have. 0: there must be no session; -1: any."
        ),
    ] = -1
    must_exist: Annotated[
        bool, msgspec.Meta(description="Refuse the turn when there is no such session.")
    ] = False


class ResumePoint(Wire, frozen=True, kw_only=True):
    """The point at which an earlier attempt stopped: tokens of each choice, and the next frame number.

    The frames of this attempt go on from that number, and the text of each choice from those tokens.

    Attributes:
        fingerprint: Of the weights that made these tokens, from `Accepted`. Groups with other weights refuse
            to go on.
        session_version: Version of the session before this turn, from `Accepted`; -1: not known.
        prompt_logprobs: Log probabilities of the prompt that the caller has; they are not sent again.
        prompt_text: Characters of the prompt's text that the caller has, likewise.
        prompt_ids: Tokens of the prompt that the caller has, likewise.
        resumed: As in `Done`, of these tokens.
    """

    token_ids: Annotated[list[TokenIds], msgspec.Meta(max_length=MAX_CHOICES)]
    next_seq: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQ)]
    fingerprint: Annotated[str, msgspec.Meta(max_length=256)] = ""
    session_version: Annotated[int, msgspec.Meta(ge=-1)] = -1
    prompt_logprobs: Annotated[int, msgspec.Meta(ge=0)] = 0
    prompt_text: Annotated[int, msgspec.Meta(ge=0)] = 0
    prompt_ids: Annotated[int, msgspec.Meta(ge=0)] = 0
    resumed: Resumed = ""


class GenerateRequest(Wire, frozen=True, kw_only=True):
    """One generation. Exactly one of `messages`, `prompt` and `prompt_token_ids` is given.

    Attributes:
        reply_to: The subject for the frames. Empty: the reply subject of the NATS message.
        delivery: `stream` sends tokens as they come, or every few milliseconds if there are many streams;
            `whole` lets the leader gather tokens into few frames.
        resume: Where a later attempt goes on; see `ResumePoint`.
        crashes: How many groups died by their own fault while they computed this request; see `Failed`.
        note: Data of the caller for one that attaches to the request later (`Attach`). Empty: it cannot be
            attached to.
        kv: What to do with KV that is in the store and not in the group's memory. `auto` takes the faster
            way; `fetch` and `recompute` are for measurements.
        call_key: Identifies a call that may be made again with another request id and counts once. Empty: no
            such call.
        call_digest: Digest of the content of such a call. A different one shows that the key was used for
            another call.
        tools: Functions that the model may call; not with `prompt`. Beside `prompt_token_ids` the tokens must
            show them.
        structured: The form that the answer's text must have.
        template: Variables for the chat template.
        truncate_prompt_tokens: Keeps so many last tokens of the prompt; 0: all.
        truncation: `auto` drops the oldest messages of a conversation that does not fit into the context.
        embedding: Asks for the prompt's embedding; then no token is generated.
        prompt_only: No token is generated: the answer is what `prompt_logprobs` and `echo` bring.
        echo: Sends the text of the prompt's tokens first (`Delta.prompt_text`).
        generation_prompt: Ends `messages` with the template's beginning of the assistant's next message.
        continues: The last of `messages` is the assistant's, and the answer goes on from its end: text,
            reasoning, or the arguments of its last call. The answer has only what is new.
        prompt_ids: Sends the prompt's tokens first (`Delta.prompt_token_ids`).
        confirms: The caller sends `Delivered` at the end. If it does not, an equal turn that follows replaces
            this one.
        party: For whom the request counts where callers share a group: a gateway without API keys names the
            address of the caller. Empty: its tenant.
        lost_group: The group that had the attempt before this one and was lost. Routers avoid it if another
            group is ready. Empty: there was none.
        route_key: Decides the group of a request without a session. Empty: how the request begins does.
        key_id: The API key that the request came with, for the ledger of usage.
        usage_id: Under which usage counts once if the same work may run again with another request id, as a
            line of a batch may. Empty: the request id. Not from callers outside.
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
    key_id: NO_KEY_OR_ID = ""
    crashes: Annotated[int, msgspec.Meta(ge=0, le=MAX_ATTEMPT)] = 0
    confirms: bool = False
    tools: ToolUse | None = None
    structured: StructuredOutput | None = None
    template: TemplateOptions | None = None
    truncate_prompt_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    truncation: Literal["disabled", "auto"] = "disabled"
    embedding: EmbeddingOptions | None = None
    prompt_only: bool = False
    echo: bool = False
    generation_prompt: bool = True
    continues: bool = False
    prompt_ids: bool = False
    party: Annotated[str, msgspec.Meta(max_length=128)] = ""
    lost_group: Annotated[str, msgspec.Meta(max_length=64)] = ""
    weight: Annotated[float, msgspec.Meta(ge=0.01, le=100, description="Of its party beside others.")] = 1.0
    usage_id: Annotated[str, msgspec.Meta(pattern=TENANT_OR_NONE)] = ""
    route_key: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{0,32}\Z")] = ""

    @property
    def party_or_tenant(self) -> str:
        """For whom the request counts where callers share a group."""
        return self.party or self.tenant

    @property
    def has_prompt(self) -> bool:
        """Whether the request can begin (again); a leader drops the prompt when it has ended."""
        return not (self.messages is None and self.prompt is None and self.prompt_token_ids is None)


class Route(Wire, frozen=True, kw_only=True):
    """The decision of a router about a request, and its reason."""

    group: GroupName
    reason: str
    preferred_group: str = ""
    last_group: str = ""
    router_id: str = ""


class Work(Wire, frozen=True, kw_only=True):
    """A request that is sent to a group, with the decision.

    Attributes:
        request: From a service the bytes that it sent; from a caller outside the request as the router has
            rewritten it.
        instance_id: The leader that is meant; another leader of the same name does not begin it. Empty: any.
        outside: The request came from a caller outside, so `attempt` gives it no precedence.
        adapter: The adapter that the request's model names; None: it means the base.
        counted_by: Where a router counts the request among the running ones of a service outside: subject of
            `RunningReport`s. Empty: none does.
    """

    request: Annotated[bytes, msgspec.Meta(description="An encoded GenerateRequest.")]
    route: Route
    reply_to: str
    instance_id: str = ""
    outside: bool = False
    adapter: Adapter | None = None
    counted_by: str = ""
