"""The format of Anthropic's `/v1/messages`; see `answering/call.py`."""

from collections.abc import Sequence

from services.gateway.admission.errors.shapes import ANTHROPIC
from services.gateway.answering.envelope import Envelope
from services.gateway.answering.events.ports import EventWriter
from services.gateway.answering.resumption.resume_token import ResumeToken
from services.gateway.formats.anthropic.events import MessageEventWriter, whole_message
from services.gateway.formats.anthropic.schema import MessagesRequest
from services.gateway.formats.anthropic.translation import message_call, shows_thinking
from services.gateway.formats.fields.body_format import BodyFormat
from services.gateway.settings import GatewaySettings
from shared.client import Completion
from shared.messages import Delta, GenerateRequest


class MessageFormat(BodyFormat[MessagesRequest]):
    """The format of `/v1/messages`; `root_key` is the secret behind new session ids."""

    kind = "message"
    path = ANTHROPIC

    def __init__(self, settings: GatewaySettings, root_key: bytes) -> None:
        super().__init__(MessagesRequest, message_call, settings, root_key)

    def writer(
        self, envelope: Envelope, token: ResumeToken, requests: Sequence[GenerateRequest]
    ) -> EventWriter:
        """See `Format`."""
        return MessageEventWriter(
            envelope, show_thinking=shows_thinking(token.format_data), shown_id=token.shown_id
        )

    async def encode_whole(
        self,
        envelope: Envelope,
        token: ResumeToken,
        requests: Sequence[GenerateRequest],
        parts: Sequence[Completion],
    ) -> bytes:
        """See `Format`."""
        choice = parts[0].choices[0]
        output = Delta(
            text=choice.text,
            parts=choice.parts,
            finish_reason=choice.finish_reason or "stop",
            stop=choice.stop,
        )
        return whole_message(
            envelope,
            output,
            parts[0].usage,
            show_thinking=shows_thinking(token.format_data),
            resumed=parts[0].resumed,
        )

    def needs_start(self, request: GenerateRequest) -> bool:
        """See `Format`; the numbers of blocks are counted from the first one."""
        return True
