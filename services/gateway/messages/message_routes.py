"""The routes of the Messages API: messages, and the tokens of a message."""

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.types import ASGIApp

from services.gateway.answering.context import GatewayContext
from services.gateway.answering.run_call import Answering
from services.gateway.http.format_route import format_route
from services.gateway.http.openapi_document import add_serving
from services.gateway.messages.count_tokens import CountTokensFormat
from services.gateway.messages.message_format import MessageFormat
from services.gateway.messages.message_schema import CountTokensRequest, MessagesRequest

BODIES: list[type[BaseModel]] = [MessagesRequest, CountTokensRequest]


def add_messages(
    app: FastAPI,
    form: MessageFormat,
    count: CountTokensFormat,
    context: GatewayContext,
    answering: Answering,
) -> dict[str, ASGIApp]:
    """Adds the routes and returns the application for each path."""

    async def messages() -> None:
        """Continues a conversation, in the shapes of Anthropic's Messages API; with `stream` as events."""

    async def count_tokens() -> None:
        """Counts the tokens of a message without answering it."""

    bodies = ((form, messages, MessagesRequest), (count, count_tokens, CountTokensRequest))
    return {
        one.path: add_serving(app, endpoint, format_route(one, context, answering), body)
        for one, endpoint, body in bodies
    }
