"""The format of OpenAI's chat completions; see `answering/call.py`."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from services.gateway.answering.envelope import Envelope
from services.gateway.answering.events.ports import EventWriter
from services.gateway.answering.resumption.resume_token import ResumeToken
from services.gateway.formats.chat.answer import ChatChunkWriter, chat_body
from services.gateway.formats.chat.call import chat_call, plain_chat_call
from services.gateway.formats.chat.schema import ChatCompletionRequest
from services.gateway.formats.fields.body_format import BodyFormat
from services.gateway.formats.fields.chunk_writer import chunk_options
from services.gateway.formats.fields.completion_call import SERVICE_TIER
from services.gateway.formats.fields.custom_tools import custom_names
from services.gateway.formats.fields.openai_answer import encode_in_time, shown_of
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


def with_tier(envelope: Envelope, token: ResumeToken) -> Envelope:
    """The envelope of a chat completion; adds `service_tier` if the request named one."""
    asked = SERVICE_TIER in token.format_data.split()
    return replace(envelope, service_tier="default") if asked else envelope
