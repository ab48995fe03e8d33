"""The routes of the Messages API: messages, and the tokens of a message."""

import msgspec
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.types import ASGIApp

from services.gateway.admission.error_shapes import ANTHROPIC, renamed
from services.gateway.answering.context import GatewayContext
from services.gateway.answering.run_call import Answering
from services.gateway.field_policy.left_out import LeftOut
from services.gateway.http.format_route import FormatRoute
from services.gateway.http.openapi_document import add_serving
from services.gateway.http.serving_route import HttpExchange
from services.gateway.messages.message_format import MessageFormat
from services.gateway.messages.message_schema import CountTokensRequest, MessagesRequest
from services.gateway.messages.message_translation import FIELD_NAMES, count_query, judge_body
from services.gateway.tokens.json_route import JsonRoute
from shared.errors import RyzError

BODIES: list[type[BaseModel]] = [MessagesRequest, CountTokensRequest]


class CountTokensRoute(JsonRoute[CountTokensRequest]):
    """Answers `POST /v1/messages/count_tokens`."""

    def __init__(self, context: GatewayContext) -> None:
        super().__init__(f"{ANTHROPIC}/count_tokens", CountTokensRequest, context)

    def judge(self, body: CountTokensRequest) -> tuple[list[str], list[LeftOut]]:
        """See `JsonRoute`."""
        return judge_body(body)

    async def answer_body(self, body: CountTokensRequest, exchange: HttpExchange, timeout_s: float) -> bytes:
        """See `JsonRoute`."""
        exchange.caller.model = body.model
        drops_blocks = self.context.settings.leave_out_changing_blocks
        query = count_query(body, exchange.caller.tenant, drops_blocks=drops_blocks)
        try:
            told = await self.context.client.tokenize(query, timeout_s=timeout_s)
        except RyzError as error:
            raise renamed(error, FIELD_NAMES) from None
        return msgspec.json.encode({"input_tokens": told.count})


def add_messages(
    app: FastAPI, form: MessageFormat, context: GatewayContext, answering: Answering
) -> dict[str, ASGIApp]:
    """Adds the routes and returns the application for each path."""
    count = CountTokensRoute(context)

    async def messages() -> None:
        """Continues a conversation, in the shapes of Anthropic's Messages API; with `stream` as events."""

    async def count_tokens() -> None:
        """Counts the tokens of a message without answering it."""

    return {
        form.path: add_serving(app, messages, FormatRoute(form, context, answering), MessagesRequest),
        count.path: add_serving(app, count_tokens, count, CountTokensRequest),
    }
