"""The formats of OpenAI's two completion routes; see `answering/format.py`."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from services.gateway.answering.envelope import Envelope
from services.gateway.answering.event_writer import EventWriter
from services.gateway.answering.resume_token import ResumeToken
from services.gateway.bodies.body_format import BodyFormat
from services.gateway.completions.chunk_writers import (
    ChatChunkWriter,
    ChunkOptions,
    CompletionChunkWriter,
)
from services.gateway.completions.completion_call import (
    PROMPT_LOGPROBS,
    SERVICE_TIER,
    chat_call,
    completion_call,
)
from services.gateway.completions.completion_schema import ChatCompletionRequest, CompletionRequest
from services.gateway.completions.plain_chat import plain_chat_call
from services.gateway.completions.whole_responses import (
    PromptShown,
    chat_body,
    completion_body,
    encode_in_time,
)
from services.gateway.field_policy.custom_tools import custom_names
from services.gateway.settings import GatewaySettings
from shared.client import Completion
from shared.messages import GenerateRequest


class ChatFormat(BodyFormat[ChatCompletionRequest]):
    """The format of `/v1/chat/completions`; `root_key` is the secret behind new session ids."""

    kind = "chat"
    path = "/v1/chat/completions"

    def __init__(self, settings: GatewaySettings, root_key: bytes) -> None:
        super().__init__(ChatCompletionRequest, chat_call, settings, root_key, plain_chat_call)

    def writer(
        self, envelope: Envelope, token: ResumeToken, requests: Sequence[GenerateRequest]
    ) -> EventWriter:
        """See `Format`."""
        return ChatChunkWriter(
            with_tier(envelope, token),
            custom=custom_names(requests[0]),
            **chunk_options(token, requests[0]),
        )

    async def encode_whole(
        self,
        envelope: Envelope,
        token: ResumeToken,
        requests: Sequence[GenerateRequest],
        parts: Sequence[Completion],
    ) -> bytes:
        """See `Format`."""
        encode = partial(chat_body, shown=shown_of(token, requests[0]))
        return await encode_in_time(encode, with_tier(envelope, token), parts, requests[0].sampling.logprobs)

    def needs_start(self, request: GenerateRequest) -> bool:
        """See `Format`; the input of custom tools is read from the beginning of their calls."""
        return bool(custom_names(request))


class CompletionFormat(BodyFormat[CompletionRequest]):
    """The format of `/v1/completions`; `settings` has the limits of a body."""

    kind = "completion"
    path = "/v1/completions"

    def __init__(self, settings: GatewaySettings) -> None:
        make_call = partial(completion_call, max_prompts=settings.constants.max_prompts)
        super().__init__(CompletionRequest, make_call, settings)

    def writer(
        self, envelope: Envelope, token: ResumeToken, requests: Sequence[GenerateRequest]
    ) -> EventWriter:
        """See `Format`."""
        return CompletionChunkWriter(envelope, prompts=len(requests), **chunk_options(token, requests[0]))

    async def encode_whole(
        self,
        envelope: Envelope,
        token: ResumeToken,
        requests: Sequence[GenerateRequest],
        parts: Sequence[Completion],
    ) -> bytes:
        """See `Format`."""
        encode = partial(completion_body, shown=shown_of(token, requests[0]))
        return await encode_in_time(encode, envelope, parts, requests[0].sampling.logprobs)

    def needs_start(self, request: GenerateRequest) -> bool:
        """See `Format`; text offsets are counted from the first token."""
        return request.sampling.logprobs >= 0


def chunk_options(token: ResumeToken, request: GenerateRequest) -> ChunkOptions:
    """What a request asks of the chunks of its stream."""
    return ChunkOptions(
        n=request.sampling.n,
        usage=token.include_usage,
        logprobs=request.sampling.logprobs >= 0,
        token_ids=request.prompt_ids,
    )


def shown_of(token: ResumeToken, request: GenerateRequest) -> PromptShown:
    """What the answer to a request tells of its prompt."""
    prompt_logprobs = PROMPT_LOGPROBS in token.format_data.split()
    return PromptShown(request.echo, prompt_logprobs, request.prompt_ids, custom_names(request))


def with_tier(envelope: Envelope, token: ResumeToken) -> Envelope:
    """The envelope of a chat completion; adds `service_tier` if the request named one."""
    asked = SERVICE_TIER in token.format_data.split()
    return replace(envelope, service_tier="default") if asked else envelope
