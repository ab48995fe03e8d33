"""The door of `/v1/messages`, and the route that counts the tokens of a message."""

from collections.abc import Sequence

import msgspec
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.types import ASGIApp

from services.gateway.admission.error_shapes import ANTHROPIC
from services.gateway.answering.detached_streams import DetachedStreams
from services.gateway.answering.envelope import Envelope
from services.gateway.answering.field_names import renamed
from services.gateway.answering.left_out import LeftOut
from services.gateway.answering.resume_token import ResumeToken
from services.gateway.generation.body_door import BodyDoor
from services.gateway.generation.generation_route import GenerationRoute
from services.gateway.http.openapi_document import add_serving
from services.gateway.http.serving_route import GatewayContext, HttpExchange
from services.gateway.messages.message_events import MessageEventWriter, whole_message
from services.gateway.messages.message_schema import CountTokensRequest, MessagesRequest
from services.gateway.messages.message_translation import (
    FIELD_NAMES,
    count_query,
    judge_body,
    message_call,
    shows_thinking,
)
from services.gateway.settings import GatewaySettings
from services.gateway.streams.event_writer import EventWriter
from services.gateway.tokens.json_route import JsonRoute
from shared.client import Completion
from shared.errors import RyzError
from shared.messages import Delta, GenerateRequest

BODIES: list[type[BaseModel]] = [MessagesRequest, CountTokensRequest]


class MessageDoor(BodyDoor[MessagesRequest]):
    """The door of `/v1/messages`; `root_key` is the secret behind new session ids."""

    kind = "message"
    path = ANTHROPIC

    def __init__(self, settings: GatewaySettings, root_key: bytes) -> None:
        super().__init__(MessagesRequest, message_call, settings, root_key)

    def writer(
        self, envelope: Envelope, token: ResumeToken, requests: Sequence[GenerateRequest], *, ids: bool
    ) -> EventWriter:
        """See `Door`."""
        return MessageEventWriter(
            envelope, ids=ids, show_thinking=shows_thinking(token.door_data), shown_id=token.shown_id
        )

    async def encode_whole(
        self,
        envelope: Envelope,
        token: ResumeToken,
        requests: Sequence[GenerateRequest],
        parts: Sequence[Completion],
    ) -> bytes:
        """See `Door`."""
        choice = parts[0].choices[0]
        output = Delta(
            text=choice.text,
            parts=choice.parts,
            finish_reason=choice.finish_reason or "stop",
            stop=choice.stop,
        )
        return whole_message(envelope, output, parts[0].usage, show_thinking=shows_thinking(token.door_data))

    def needs_start(self, request: GenerateRequest) -> bool:
        """See `Door`; the numbers of blocks are counted from the first one."""
        return True


class CountTokensRoute(JsonRoute[CountTokensRequest]):
    """Answers `POST /v1/messages/count_tokens`."""

    def __init__(self, context: GatewayContext) -> None:
        super().__init__(f"{ANTHROPIC}/count_tokens", CountTokensRequest, context)

    def judge(self, body: CountTokensRequest) -> tuple[list[str], list[LeftOut]]:
        """See `JsonRoute`."""
        return judge_body(body)

    async def answer_body(self, body: CountTokensRequest, exchange: HttpExchange, timeout_s: float) -> bytes:
        """See `JsonRoute`."""
        exchange.model = body.model
        drops_blocks = self.context.settings.leave_out_changing_blocks
        query = count_query(body, exchange.tenant, drops_blocks=drops_blocks)
        try:
            told = await self.context.client.tokenize(query, timeout_s=timeout_s)
        except RyzError as error:
            raise renamed(error, FIELD_NAMES) from None
        return msgspec.json.encode({"input_tokens": told.count})


def add_messages(
    app: FastAPI, door: MessageDoor, context: GatewayContext, detached: DetachedStreams
) -> dict[str, ASGIApp]:
    """Adds the routes and returns the application for each path."""
    count = CountTokensRoute(context)

    async def messages() -> None:
        """Continues a conversation, in the shapes of Anthropic's Messages API; with `stream` as events."""

    async def count_tokens() -> None:
        """Counts the tokens of a message without answering it."""

    return {
        door.path: add_serving(app, messages, GenerationRoute(door, context, detached), MessagesRequest),
        count.path: add_serving(app, count_tokens, count, CountTokensRequest),
    }
