"""The format of OpenAI's text completions; see `answering/call.py`."""

from collections.abc import Sequence
from functools import partial

from services.gateway.answering.envelope import Envelope
from services.gateway.answering.events.ports import EventWriter
from services.gateway.answering.resumption.resume_token import ResumeToken
from services.gateway.formats.fields.body_format import BodyFormat
from services.gateway.formats.fields.chunk_writer import chunk_options
from services.gateway.formats.fields.openai_answer import encode_in_time, shown_of
from services.gateway.formats.text.answer import CompletionChunkWriter, completion_body
from services.gateway.formats.text.call import completion_call
from services.gateway.formats.text.schema import CompletionRequest
from services.gateway.settings import GatewaySettings
from shared.client import Completion
from shared.messages import GenerateRequest


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
