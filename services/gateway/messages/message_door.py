"""The door of `/v1/messages`, and the route that counts the tokens of a message.

Keys may come as `x-api-key`, as Anthropic's clients send them; every answer has a `request-id`.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.types import ASGIApp

from services.gateway.bodies.body_parser import parse_body
from services.gateway.generation.door import GenerationCall
from services.gateway.generation.envelope import Envelope
from services.gateway.generation.field_names import renamed
from services.gateway.generation.generation_route import GenerationRoute
from services.gateway.generation.idempotency import IdempotentCall
from services.gateway.http.openapi_document import ERRORS, DirectRoute, body_documented_as
from services.gateway.http.serving_route import GatewayContext, HttpExchange
from services.gateway.messages.message_events import MessageEventWriter, whole_message
from services.gateway.messages.message_schema import CountTokensRequest, MessagesRequest
from services.gateway.messages.message_translation import (
    FIELD_NAMES,
    IGNORED,
    count_query,
    message_call,
    shows_thinking,
)
from services.gateway.settings import GatewaySettings
from services.gateway.streams.detached_streams import DetachedStreams
from services.gateway.streams.event_writer import EventWriter
from services.gateway.streams.resume_token import ResumeToken
from services.gateway.tokens.json_route import JsonRoute
from shared.client import Completion
from shared.errors import RyzError
from shared.messages import Delta, GenerateRequest

BODIES: list[type[BaseModel]] = [MessagesRequest, CountTokensRequest]


class MessageDoor:
    """The door of `/v1/messages`.

    Args:
        settings: Limits of a body.
        root_key: The secret behind new session ids; see `root_key.py`.
    """

    kind = "message"
    path = "/v1/messages"

    def __init__(self, settings: GatewaySettings, root_key: bytes) -> None:
        self._max_values = settings.max_body_values
        self._root_key = root_key

    async def translate(
        self, raw: bytes, exchange: HttpExchange, once: IdempotentCall | None
    ) -> GenerationCall:
        """See `Door`."""
        return message_call(
            parse_body(raw, MessagesRequest, self._max_values),
            exchange.headers,
            request_id=exchange.request_id,
            tenant=exchange.tenant,
            once=once,
            root_key=self._root_key,
        )

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


class MessageRoute(GenerationRoute):
    """Answers `POST /v1/messages`."""

    async def serve_request(self, exchange: HttpExchange) -> None:
        """See `ServingRoute`."""
        speak_anthropic(exchange)
        await super().serve_request(exchange)


class CountTokensRoute(JsonRoute[CountTokensRequest]):
    """Answers `POST /v1/messages/count_tokens`."""

    ignored = IGNORED

    def __init__(self, context: GatewayContext) -> None:
        super().__init__("/v1/messages/count_tokens", CountTokensRequest, context)

    async def serve_request(self, exchange: HttpExchange) -> None:
        """See `ServingRoute`."""
        speak_anthropic(exchange)
        await super().serve_request(exchange)

    async def answer_body(self, body: CountTokensRequest, exchange: HttpExchange, timeout_s: float) -> bytes:
        """See `JsonRoute`."""
        exchange.model = body.model
        query = count_query(body, exchange.tenant)
        try:
            told = await self.context.client.tokenize(query, timeout_s=timeout_s)
        except RyzError as error:
            raise renamed(error, FIELD_NAMES) from None
        return msgspec.json.encode({"input_tokens": told.count})


def speak_anthropic(exchange: HttpExchange) -> None:
    """Takes a key from `x-api-key`, and names the request as Anthropic's clients expect."""
    exchange.reply.headers.append((b"request-id", exchange.shown_id.encode()))
    key = exchange.headers.get(b"x-api-key", b"").strip()
    if key:
        exchange.headers = {**exchange.headers, b"authorization": b"Bearer " + key}


def add_messages(
    app: FastAPI, door: MessageDoor, context: GatewayContext, detached: DetachedStreams
) -> dict[str, ASGIApp]:
    """Adds the routes and returns the application for each path."""

    async def messages() -> None:
        """Continues a conversation, in the shapes of Anthropic's Messages API; with `stream` as events."""

    async def count_tokens() -> None:
        """Counts the tokens of a message without answering it."""

    serving: tuple[tuple[Any, GenerationRoute | CountTokensRoute, type[BaseModel]], ...] = (
        (messages, MessageRoute(door, context, detached), MessagesRequest),
        (count_tokens, CountTokensRoute(context), CountTokensRequest),
    )
    for endpoint, direct, model in serving:
        route = DirectRoute(
            direct.path,
            endpoint,
            direct=direct,
            methods=["POST"],
            responses=ERRORS,
            openapi_extra=body_documented_as(model),
        )
        app.router.routes.append(route)
    return {direct.path: direct for _, direct, _ in serving}
