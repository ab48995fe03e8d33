"""The FastAPI application: which paths there are, and how they are documented.

The completion routes are plain ASGI applications behind documented routes (`completions.py`), because they
are the serving path; everything else is ordinary FastAPI.
"""

import functools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Annotated, Any

import structlog
from fastapi import FastAPI, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from prometheus_client import CollectorRegistry
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from services.gateway.completions.completion_routes import CompletionRoute, Context
from services.gateway.completions.completion_schema import ChatCompletionRequest, CompletionRequest
from services.gateway.completions.whole_responses import model_object
from services.gateway.http.browsers import BrowserGuard
from services.gateway.http.errors import ErrorAnswer, HttpRefusal, answer_for, invalid_parameter
from services.gateway.http.limits import ClientDisconnected
from services.gateway.http.pieces import PieceSender
from services.gateway.http.readers import Answer
from services.gateway.sessions.file_thread import FileThread
from services.gateway.sessions.session_paths import SessionPaths, is_session_path
from services.gateway.sessions.session_routes import SessionRoutes
from services.gateway.sessions.session_schema import NewSession, ToGroup
from services.gateway.streams.stream_routes import PREFIX as STREAMS
from services.gateway.streams.stream_routes import StreamRoute
from shared.client.calls.session_admin import SessionAdmin
from shared.errors import ModelNotFound, RyzError
from shared.messages import ModelCard
from shared.web.admin import readiness_shown
from shared.web.keys import BearerKey
from shared.web.metrics_page import MetricsPage

log = structlog.get_logger(__name__)

_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": text}
    for status, text in {
        400: "The body is wrong; `error.param` names the field.",
        401: "No valid API key.",
        404: "No group serves that model.",
        413: "The body is too large.",
        429: "The tenant is over its limit; `Retry-After` says for how long.",
        503: "Overloaded, draining, or a part is missing; `X-Ryz-Reason` says which.",
        504: "The deadline passed.",
    }.items()
}
_SESSION_ERRORS = _ERRORS | {
    404: {"description": "No such session, or none of this tenant."},
    409: {"description": "The session exists already, changed meanwhile, is pinned, or is of another model."},
    "default": {"description": "Any other error, in the same shape."},  # in place of the framework's own 422
}
_REF = "#/components/schemas/{model}"


class Front:
    """The application with a short cut: `POST` on a serving path passes by the framework's own machinery.

    Everything else, and every other method on those paths, is the framework's; what is for the session routes
    goes through `sessions` first.
    """

    def __init__(
        self, app: FastAPI, direct: dict[str, ASGIApp], sessions: ASGIApp, answers: set[Answer]
    ) -> None:
        self._answers = answers
        self._app = app
        self._direct = direct
        self._sessions = sessions

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """See ASGI."""
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        if scope["method"] == "POST":
            direct = self._direct.get(scope["path"])
            if direct is not None:
                return direct(scope, receive, send)
        app = self._sessions if is_session_path(scope["path"]) else self._app
        return app(scope, receive, PieceSender(send, scope, self._answers))


class DirectRoute(APIRoute):
    """A documented route whose requests go straight to an ASGI application."""

    def __init__(self, path: str, endpoint: Callable[..., Any], *, direct: ASGIApp, **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self.app = direct


def create_app(
    context: Context,
    *,
    list_models: Callable[[], Awaitable[list[ModelCard]]],
    sessions: SessionAdmin,
    files: FileThread,
    readiness: Callable[[], tuple[bool, dict[str, Any]]],
    registry: CollectorRegistry,
    version: str,
) -> ASGIApp:
    """The application.

    Args:
        context: what the completion routes share.
        list_models: the models on offer; raises an error of the family when nobody knows.
        sessions: what the session routes call.
        files: where these make and read files.
        readiness: whether requests are welcome, and the body of /ready.
        registry: what /metrics shows.
        version: the distribution's.
    """
    app = FastAPI(
        title="Ryzanstein",
        version="1",  # of the API, as in its paths; strangers need not know that of the software
        summary="An OpenAI-compatible gateway.",
        openapi_url=None,  # the framework would encode the document for each caller; see `_add_document`
        docs_url=None,  # the framework's pages load their scripts from the internet
        redoc_url=None,
        redirect_slashes=False,  # a redirect would name whatever host the request did
    )
    direct = _add_completions(app, context)
    _add_streams(app, context)
    _add_models(app, context, list_models)
    app.include_router(SessionRoutes(context, sessions, list_models, files).router(_SESSION_ERRORS))
    _add_probes(app, readiness, registry, BearerKey(context.settings.metrics_key))
    _add_index(app, context, version)
    _add_errors(app, context)
    _add_document(app)
    sessions_first = SessionPaths(app, context.metrics, log_requests=context.settings.request_log)
    front = Front(app, direct, sessions_first, context.running)
    return BrowserGuard(front, context.settings, context.metrics)


def _add_completions(app: FastAPI, context: Context) -> dict[str, ASGIApp]:
    """Adds the serving paths and returns what answers them."""

    async def chat_completions() -> None:
        """Continues a conversation; with `stream` as server-sent events.

        Events are `data:` lines and nothing else, unless the request asks for ids: by the header
        `X-Stream-Grace` or by `stream_options.include_event_ids`.
        """

    async def completions() -> None:
        """Continues one text or several; with `stream` as server-sent events.

        Events are those of `/v1/chat/completions`; those of several texts have no ids.
        """

    serving = (
        (chat_completions, CompletionRoute("chat", context), ChatCompletionRequest),
        (completions, CompletionRoute("completion", context), CompletionRequest),
    )
    for endpoint, direct, model in serving:
        content = {"application/json": {"schema": {"$ref": _REF.format(model=model.__name__)}}}
        route = DirectRoute(
            direct.path,
            endpoint,
            direct=direct,
            methods=["POST"],
            responses=_ERRORS,
            openapi_extra={"requestBody": {"required": True, "content": content}},
        )
        app.router.routes.append(route)
    return {direct.path: direct for _, direct, _ in serving}


def _add_streams(app: FastAPI, context: Context) -> None:
    async def stream(
        request_id: str,
        last_event_id: Annotated[str, Header()] = "",
        from_: Annotated[str, Query(alias="from")] = "",
        x_stream_grace: Annotated[float, Header(ge=0)] = 0.0,
    ) -> None:
        """Continues a stream after the last event that came, or from its beginning; events have ids."""

    async def end_stream(request_id: str) -> None:
        """Ends a stream that need not go on."""

    responses = _ERRORS | {
        404: {"description": "No group has that stream, or it is none of this tenant."},
        409: {"description": "Another connection has attached to the stream."},
        410: {"description": "The events asked for are kept no longer."},
    }
    path = STREAMS + "/{request_id}"
    direct = StreamRoute(context)
    for method, endpoint in (("GET", stream), ("DELETE", end_stream)):
        app.router.routes.append(
            DirectRoute(path, endpoint, direct=direct, methods=[method], responses=responses)
        )


def _add_models(
    app: FastAPI, context: Context, list_models: Callable[[], Awaitable[list[ModelCard]]]
) -> None:
    probe_key = BearerKey(context.settings.probe_key)

    def authorize(request: Request) -> None:
        context.keyring.tenant(request.headers.get("authorization", "").encode("latin-1"))

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        """The models that a group serves now."""
        if not probe_key.matches(request.headers.get("authorization", "")):
            authorize(request)
        cards = await list_models()
        return JSONResponse({"object": "list", "data": [model_object(card) for card in cards]})

    @app.get("/v1/models/{model:path}")
    async def model(request: Request, model: str) -> Response:
        """One model."""
        authorize(request)
        for card in await list_models():
            if card.name == model:
                return JSONResponse(model_object(card))
        raise ModelNotFound(f"no group serves the model {model[:128]!r}; see /v1/models", param="model")


def _add_probes(
    app: FastAPI,
    readiness: Callable[[], tuple[bool, dict[str, Any]]],
    registry: CollectorRegistry,
    key: BearerKey,
) -> None:
    page = MetricsPage(registry, key)

    @app.get("/live")
    async def live() -> Response:
        """The process answers."""
        return JSONResponse({"status": "live"})

    @app.get("/ready")
    async def ready(request: Request) -> Response:
        """200 when requests are welcome, else 503; why, with the metrics key if there is one."""
        good, body = readiness()
        return JSONResponse(
            readiness_shown(body, key, request),
            status_code=200 if good else 503,
            headers=None if good else {"retry-after": "1"},
        )

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        """For Prometheus; asks for the metrics key if there is one."""
        return page.answer(request)


def _add_index(app: FastAPI, context: Context, version: str) -> None:
    @app.get("/")
    async def index(request: Request) -> Response:
        """What this is, and where to go on; which version, for those who may use it."""
        links = {
            "models": "/v1/models",
            "sessions": "/v1/sessions",
            "openapi": "/openapi.json",
            "ready": "/ready",
            "metrics": "/metrics",
        }
        body: dict[str, Any] = {"name": "ryzanstein", "links": links}
        with suppress(HttpRefusal):
            context.keyring.tenant(request.headers.get("authorization", "").encode("latin-1"))
            body["version"] = version
        return JSONResponse(body)


def _add_errors(app: FastAPI, context: Context) -> None:
    def respond(request: Request, answer: ErrorAnswer) -> Response:
        if not is_session_path(request.url.path):  # those are counted with their answers
            context.metrics.ended("other", answer.status, 0.0)
        response = Response(answer.body, status_code=answer.status, media_type="application/json")
        for name, value in answer.headers:
            response.headers[name.decode()] = value.decode("latin-1")
        return response

    async def refused(request: Request, error: Exception) -> Response:
        return respond(request, answer_for(error))

    async def bad_query(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return respond(request, answer_for(invalid_parameter(error)))

    async def left(_: Request, error: Exception) -> Response:
        return Response(status_code=499)  # nobody is there to read it

    async def no_route(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        where = f"{request.method} {request.url.path[:200]}"
        if error.status_code == 405:
            refusal = HttpRefusal(405, "method_not_allowed", f"{where}: this path takes another method")
        elif error.status_code == 404:
            refusal = HttpRefusal(404, "unknown_url", f"{where}: there is no such path; see /openapi.json")
        else:
            refusal = HttpRefusal(error.status_code, "http_error", f"{where}: {error.detail}")
        refusal.headers = [
            (name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items()
        ]
        return respond(request, answer_for(refusal))

    async def bug(request: Request, error: Exception) -> Response:
        log.error("request failed", route=request.url.path[:200], exc_info=error)
        return respond(request, answer_for(error))

    app.add_exception_handler(RyzError, refused)
    app.add_exception_handler(HttpRefusal, refused)
    app.add_exception_handler(RequestValidationError, bad_query)
    app.add_exception_handler(ClientDisconnected, left)
    app.add_exception_handler(HTTPException, no_route)
    app.add_exception_handler(Exception, bug)


def _add_document(app: FastAPI) -> None:
    """Serves the OpenAPI document, which is made when it is asked for first.

    It gets the bodies that are read by hand, since no endpoint declares them.
    """
    bodies: list[type[BaseModel]] = [ChatCompletionRequest, CompletionRequest, NewSession, ToGroup]

    @functools.cache
    def encoded() -> bytes:
        document = app.openapi()
        _, schemas = models_json_schema(
            [(body, "validation") for body in bodies], ref_template=_REF, by_alias=True
        )
        document.setdefault("components", {}).setdefault("schemas", {}).update(schemas["$defs"])
        return bytes(JSONResponse(document).body)

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return Response(encoded(), media_type="application/json")
