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
from services.gateway.admission.operators import Operators
from services.gateway.answering.context import GatewayContext
from services.gateway.answering.direct_calls import DirectCalls
from services.gateway.answering.events.slow_readers import OpenAnswer
from services.gateway.answering.resumption.detached_streams import DetachedStreams
from services.gateway.answering.run_call import Answering
from services.gateway.formats.anthropic.count_tokens import CountTokensFormat
from services.gateway.formats.anthropic.format import MessageFormat
from services.gateway.formats.anthropic.schema import CountTokensRequest, MessagesRequest
from services.gateway.formats.chat.format import ChatFormat
from services.gateway.formats.chat.schema import ChatCompletionRequest
from services.gateway.formats.embeddings.format import EmbeddingFormat
from services.gateway.formats.embeddings.schema import EmbeddingRequest
from services.gateway.formats.responses.format import PATH as RESPONSES
from services.gateway.formats.responses.format import ResponseFormat
from services.gateway.formats.responses.schema import ResponseRequest
from services.gateway.formats.text.format import CompletionFormat
from services.gateway.formats.text.schema import CompletionRequest
from services.gateway.formats.tokens.formats import DetokenizeFormat, TokenizeFormat
from services.gateway.formats.tokens.schema import DetokenizeRequest, TokenizeRequest
from services.gateway.pages.assembly import PageParts
from services.gateway.resources.batches.service import BatchRequest, BatchService
from services.gateway.resources.erasure.erasure import TenantErasure
from services.gateway.resources.sessions.schema import NewSession, ToGroup
from services.gateway.resources.sessions.tenants import TenantSessions
from services.gateway.resources.stored_responses.begun_answer import BegunResponse
from services.gateway.served_models import ServedModels
from services.gateway.transports.http.error_handlers import add_error_handlers
from services.gateway.transports.http.openapi_document import (
    SESSION_ERRORS,
    STREAM_ERRORS,
    DirectRoute,
    add_document,
    add_serving,
)
from services.gateway.transports.http.path_methods import HeadAnswers
from services.gateway.transports.http.reply import PieceSender
from services.gateway.transports.http.routes.batches import add_batches
from services.gateway.transports.http.routes.erasure import add_erasure
from services.gateway.transports.http.routes.formats import PREFIX as STREAMS
from services.gateway.transports.http.routes.formats import format_route, stream_route
from services.gateway.transports.http.routes.info import ServiceInfo, info_router
from services.gateway.transports.http.routes.lora_adapters import (
    LoadAdapterBody,
    UnloadAdapterBody,
    add_lora_adapters,
)
from services.gateway.transports.http.routes.manage_accounts import ACCOUNT_BODIES, add_manage_accounts
from services.gateway.transports.http.routes.manage_models import AddedModelBody, ScaleBody, add_manage_models
from services.gateway.transports.http.routes.manage_shares import add_manage_shares
from services.gateway.transports.http.routes.responses import ResponseParts, add_responses
from services.gateway.transports.http.routes.session_paths import SessionPaths, is_session_path
from services.gateway.transports.http.routes.sessions import SessionRoutes
from services.gateway.transports.http.routes.usage import add_usage
from services.gateway.transports.websocket.response_sockets import ResponseSockets
from services.gateway.transports.websocket.sockets import PATH as REALTIME
from services.gateway.transports.websocket.sockets import RealtimeSockets


@dataclass(frozen=True, slots=True)
class GatewayApp:
    """What serves the gateway's transports.

    Attributes:
        http: The application for the HTTP server.
        direct: Runs calls of other transports.
    """

    http: ASGIApp
    direct: DirectCalls


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


def create_app(
    context: GatewayContext,
    detached: DetachedStreams,
    *,
    root_key: bytes,
    sessions: TenantSessions,
    responses: ResponseParts,
    batches: BatchService,
    pages: PageParts,
    models: ServedModels,
    operators: Operators,
    info: ServiceInfo,
) -> GatewayApp:
    """Makes the application.

    Args:
        context: What all requests share.
        detached: Parks streams whose client goes away.
        root_key: The secret behind new session ids; see `root_key.py`.
        sessions: The sessions of all tenants.
        responses: What the routes of the Responses API need.
        batches: Answers the routes of batches; has the files of tenants.
        pages: What browsers see.
        models: The models on offer.
        operators: Decide who may manage models.
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
    response = ResponseFormat(
        context.settings, responses.store, lambda call: BegunResponse(call, responses.background)
    )
    settings, client = context.settings, context.client
    count = CountTokensFormat(settings, client)
    embedding = EmbeddingFormat(settings, client)
    tokenize, detokenize = TokenizeFormat(settings, client), DetokenizeFormat(settings, client)
    answering = Answering(
        context, detached, [chat, text, message], [response, embedding, tokenize, detokenize, count]
    )
    direct = _add_formats(app, context, answering)
    direct |= add_responses(app, context, responses, response, answering)
    direct |= add_batches(app, context, batches)
    _add_streams(app, context, answering)
    add_manage_models(app, context, operators)
    add_lora_adapters(app, context, operators)
    add_erasure(app, context, operators, TenantErasure(client.bus, batches))
    add_manage_accounts(app, context, operators)
    add_manage_shares(app, context, operators)
    add_usage(app, context, operators)
    app.include_router(info_router(context.settings, context.admission.identities, models, info))
    app.include_router(SessionRoutes(context, sessions).router(SESSION_ERRORS))
    add_error_handlers(app, context.metrics, socket_path=REALTIME)
    bodies: list[type[BaseModel]] = [
        ChatCompletionRequest,
        CompletionRequest,
        EmbeddingRequest,
        TokenizeRequest,
        DetokenizeRequest,
        MessagesRequest,
        CountTokensRequest,
        ResponseRequest,
        BatchRequest,
        ScaleBody,
        AddedModelBody,
        LoadAdapterBody,
        UnloadAdapterBody,
        NewSession,
        ToGroup,
        *ACCOUNT_BODIES,
    ]
    add_document(app, bodies)
    sessions_first = SessionPaths(app, context.metrics, log_requests=context.settings.request_log)
    routes = app.router.routes
    calls = DirectCalls(context, answering)
    front = Front(
        pages.in_front_of(HeadAnswers(app, routes)),
        direct,
        HeadAnswers(sessions_first, routes),
        context.running,
        {
            RESPONSES: ResponseSockets(context, calls, response, responses.sockets),
            REALTIME: RealtimeSockets(context, calls),
        },
    )
    guarded = BrowserGuard(front, context.settings, context.metrics, context.admission.identities)
    return GatewayApp(guarded, calls)


def _add_formats(app: FastAPI, context: GatewayContext, answering: Answering) -> dict[str, ASGIApp]:
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

    async def messages() -> None:
        """Continues a conversation, in the shapes of Anthropic's Messages API; with `stream` as events."""

    async def count_tokens() -> None:
        """Counts the tokens of a message without answering it."""

    async def embeddings() -> None:
        """Returns the embedding of one text or of several, in their order."""

    async def tokenize() -> None:
        """Returns the tokens of a prompt or of messages, as a generation has them."""

    async def detokenize() -> None:
        """Returns the text of tokens, that of special tokens included."""

    serving: dict[str, tuple[Callable[..., object], type[BaseModel]]] = {
        ChatFormat.path: (chat_completions, ChatCompletionRequest),
        CompletionFormat.path: (completions, CompletionRequest),
        EmbeddingFormat.path: (embeddings, EmbeddingRequest),
        TokenizeFormat.path: (tokenize, TokenizeRequest),
        DetokenizeFormat.path: (detokenize, DetokenizeRequest),
        MessageFormat.path: (messages, MessagesRequest),
        CountTokensFormat.path: (count_tokens, CountTokensRequest),
    }
    routes: dict[str, ASGIApp] = {}
    for path, (endpoint, body) in serving.items():
        routes[path] = add_serving(
            app, endpoint, format_route(answering.formats[path], context, answering), body
        )
    return routes


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
    direct = stream_route(context, answering)
    for method, endpoint in (("GET", stream), ("DELETE", end_stream)):
        route = DirectRoute(path, endpoint, direct=direct, methods=[method], responses=STREAM_ERRORS)
        app.router.routes.append(route)
