"""The gateway's ASGI application: puts its routes together.

The serving routes are plain ASGI applications behind documented routes, because they are the hot path;
everything else is ordinary FastAPI.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import FastAPI, Header, Query
from pydantic import BaseModel
from starlette.types import ASGIApp, Receive, Scope, Send

from services.gateway.admission.browser_guard import BrowserGuard
from services.gateway.answering.context import GatewayContext
from services.gateway.answering.detached_streams import DetachedStreams
from services.gateway.answering.direct_calls import DirectCalls
from services.gateway.answering.run_call import Answering
from services.gateway.answering.slow_readers import OpenAnswer
from services.gateway.batches.batch_routes import add_batches
from services.gateway.batches.batch_service import BatchRequest, BatchService
from services.gateway.completions.completion_formats import ChatFormat, CompletionFormat
from services.gateway.completions.completion_schema import ChatCompletionRequest, CompletionRequest
from services.gateway.embeddings.embedding_route import EmbeddingRoute
from services.gateway.embeddings.embedding_schema import EmbeddingRequest
from services.gateway.error_handlers import add_error_handlers
from services.gateway.http.format_route import FormatRoute
from services.gateway.http.openapi_document import (
    SESSION_ERRORS,
    STREAM_ERRORS,
    DirectRoute,
    add_document,
    add_serving,
)
from services.gateway.http.response_pieces import PieceSender
from services.gateway.http.serving_route import ServingRoute
from services.gateway.http.stream_routes import PREFIX as STREAMS
from services.gateway.http.stream_routes import StreamRoute
from services.gateway.info_routes import ListModels, ServiceInfo, info_router
from services.gateway.inner.inner_calls import InnerCalls
from services.gateway.messages.message_format import MessageFormat
from services.gateway.messages.message_routes import BODIES as MESSAGE_BODIES
from services.gateway.messages.message_routes import add_messages
from services.gateway.pages.assembly import PageParts
from services.gateway.path_methods import HeadAnswers
from services.gateway.realtime.realtime_sockets import PATH as REALTIME
from services.gateway.realtime.realtime_sockets import RealtimeSockets
from services.gateway.responses.response_door import ResponseParts, add_responses
from services.gateway.responses.response_routes import PATH as RESPONSES
from services.gateway.responses.response_schema import ResponseRequest
from services.gateway.sessions.session_paths import SessionPaths, is_session_path
from services.gateway.sessions.session_routes import SessionRoutes
from services.gateway.sessions.session_schema import NewSession, ToGroup
from services.gateway.tokens.token_routes import DetokenizeRoute, TokenizeRoute
from services.gateway.tokens.token_schema import DetokenizeRequest, TokenizeRequest


@dataclass(frozen=True, slots=True)
class GatewayApp:
    """What serves the gateway's doors.

    Attributes:
        http: The application for the HTTP server.
        direct: Runs calls of other transports.
        inner: Calls the routes that have no format yet, for other transports.
    """

    http: ASGIApp
    direct: DirectCalls
    inner: InnerCalls


class Front:
    """The application with a short cut: `POST` on a serving path bypasses the framework.

    Every other request is the framework's; requests for the session routes go through `sessions` first.
    """

    def __init__(
        self,
        app: ASGIApp,
        direct: dict[str, ASGIApp],
        sessions: ASGIApp,
        answers: set[OpenAnswer],
        sockets: dict[str, ASGIApp],
    ) -> None:
        self._sockets = sockets
        self._answers = answers
        self._app = app
        self._direct = direct
        self._sessions = sessions

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """See ASGI."""
        if scope["type"] != "http":
            return self._sockets.get(scope["path"], self._app)(scope, receive, send)
        if scope["method"] == "POST":
            direct = self._direct.get(scope["path"])
            if direct is not None:
                return direct(scope, receive, send)
        app = self._sessions if is_session_path(scope["path"]) else self._app
        return app(scope, receive, PieceSender(send, scope, self._answers))


class WithRealtime:
    """The application with a WebSocket whose requests its own routes answer."""

    def __init__(self, app: ASGIApp, realtime: ASGIApp) -> None:
        self._app = app
        self._realtime = realtime

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """See ASGI."""
        realtime = scope["type"] == "websocket" and scope["path"] == REALTIME
        return (self._realtime if realtime else self._app)(scope, receive, send)


def create_app(
    context: GatewayContext,
    detached: DetachedStreams,
    *,
    root_key: bytes,
    sessions: SessionRoutes,
    responses: ResponseParts,
    batches: BatchService,
    pages: PageParts,
    list_models: ListModels,
    info: ServiceInfo,
) -> GatewayApp:
    """Makes the application.

    Args:
        context: What all requests share.
        detached: Parks streams whose client goes away.
        root_key: The secret behind new session ids; see `root_key.py`.
        sessions: The session routes.
        responses: What the routes of the Responses API need.
        batches: Answers the routes of batches; has the files of tenants.
        pages: What browsers see.
        list_models: The models on offer; raises an error of the family if no router answers.
        info: The state of this process.
    """
    app = FastAPI(
        title="Ryzanstein",
        version="1",  # of the API, as in its paths; the index tells that of the software
        summary="An OpenAI-compatible gateway.",
        openapi_url=None,  # the framework would encode the document for each caller; see `add_document`
        docs_url=None,  # the framework's pages load their scripts from the internet
        redoc_url=None,
        redirect_slashes=False,  # a redirect would repeat the host of the request, whatever it is
    )
    chat, text = ChatFormat(context.settings, root_key), CompletionFormat(context.settings)
    message = MessageFormat(context.settings, root_key)
    answering = Answering(context, detached, {form.kind: form for form in (chat, text, message)})
    direct = _add_completions(app, context, answering, chat, text)
    serving, sockets = add_responses(app, context, responses)
    direct |= serving | add_batches(app, context, batches)
    direct |= add_messages(app, message, context, answering)
    _add_streams(app, context, answering)
    app.include_router(
        info_router(context.settings, context.admission.keyring, list_models, info, context.aliases)
    )
    app.include_router(sessions.router(SESSION_ERRORS))
    add_error_handlers(app, context.metrics)
    bodies: list[type[BaseModel]] = [
        ChatCompletionRequest,
        CompletionRequest,
        EmbeddingRequest,
        TokenizeRequest,
        DetokenizeRequest,
        *MESSAGE_BODIES,
        ResponseRequest,
        BatchRequest,
        NewSession,
        ToGroup,
    ]
    add_document(app, bodies)
    sessions_first = SessionPaths(app, context.metrics, log_requests=context.settings.request_log)
    routes = app.router.routes
    front = Front(
        pages.in_front_of(HeadAnswers(app, routes)),
        direct,
        HeadAnswers(sessions_first, routes),
        context.running,
        {RESPONSES: sockets},
    )
    inner = InnerCalls(front)
    calls = DirectCalls(context, answering)
    outer = WithRealtime(front, RealtimeSockets(context, calls, inner))
    guarded = BrowserGuard(outer, context.settings, context.metrics)
    return GatewayApp(guarded, calls, inner)


def _add_completions(
    app: FastAPI, context: GatewayContext, answering: Answering, chat: ChatFormat, text: CompletionFormat
) -> dict[str, ASGIApp]:
    """Adds the serving paths and returns the application for each."""

    async def chat_completions() -> None:
        """Continues a conversation; with `stream` as server-sent events.

        Events are `data:` lines and nothing else, unless the request asks for ids: by the header
        `X-Stream-Grace` or by `stream_options.include_event_ids`.
        """

    async def completions() -> None:
        """Continues one text or several; with `stream` as server-sent events.

        Events are those of `/v1/chat/completions`; those of several texts have no ids.
        """

    async def embeddings() -> None:
        """Returns the embedding of one text or of several, in their order."""

    async def tokenize() -> None:
        """Returns the tokens of a prompt or of messages, as a generation has them."""

    async def detokenize() -> None:
        """Returns the text of tokens, that of special tokens included."""

    serving: tuple[tuple[Callable[..., object], ServingRoute, type[BaseModel]], ...] = (
        (chat_completions, FormatRoute(chat, context, answering), ChatCompletionRequest),
        (completions, FormatRoute(text, context, answering), CompletionRequest),
        (embeddings, EmbeddingRoute(context), EmbeddingRequest),
        (tokenize, TokenizeRoute(context), TokenizeRequest),
        (detokenize, DetokenizeRoute(context), DetokenizeRequest),
    )
    return {direct.path: add_serving(app, endpoint, direct, model) for endpoint, direct, model in serving}


def _add_streams(app: FastAPI, context: GatewayContext, answering: Answering) -> None:
    async def stream(
        request_id: str,
        last_event_id: Annotated[str, Header()] = "",
        from_: Annotated[str, Query(alias="from")] = "",
        x_stream_grace: Annotated[float, Header(ge=0)] = 0.0,
    ) -> None:
        """Continues a stream after the last event that came, or from its beginning; events have ids."""

    async def end_stream(request_id: str) -> None:
        """Ends a stream that need not go on."""

    path = STREAMS + "/{request_id}"
    direct = StreamRoute(context, answering)
    for method, endpoint in (("GET", stream), ("DELETE", end_stream)):
        route = DirectRoute(path, endpoint, direct=direct, methods=[method], responses=STREAM_ERRORS)
        app.router.routes.append(route)
