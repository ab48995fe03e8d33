"""Answers the errors of the framework's routes in the shape of their API, unknown paths with the nearest one.

Serving routes answer their own errors.
"""

import difflib
import html
from collections.abc import Iterable, Mapping

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from services.gateway.admission.disconnects import ClientDisconnected
from services.gateway.admission.errors.refusals import (
    ErrorAnswer,
    Headers,
    HttpRefusal,
    answer_for,
    invalid_parameter,
)
from services.gateway.admission.errors.shapes import error_body
from services.gateway.metrics import GatewayMetrics
from services.gateway.transports.http.path_methods import allowed_methods, served_paths
from services.gateway.transports.http.routes.session_paths import is_session_path
from shared.errors import RyzError

# paths of other servers, by what stands here in their place
_ELSEWHERE = {
    "/api/chat": "/v1/chat/completions",  # Ollama
    "/api/generate": "/v1/completions",
    "/api/embed": "/v1/embeddings",
    "/api/embeddings": "/v1/embeddings",
    "/api/tags": "/v1/models",
    "/api/ps": "/v1/models",
    "/api/show": "/v1/models",
    "/api/version": "/v1/models",
    "/completion": "/v1/completions",  # llama.cpp
    "/props": "/v1/models",
    "/embedding": "/v1/embeddings",
    "/generate": "/v1/completions",  # Text Generation Inference
    "/generate_stream": "/v1/completions",
    "/v1/complete": "/v1/messages",  # Anthropic's former API
    "/v1/engines": "/v1/models",
    "/docs": "/openapi.json",
    "/redoc": "/openapi.json",
    "/swagger": "/openapi.json",
    "/healthz": "/health",
    "/readyz": "/ready",
    "/livez": "/live",
    "/ping": "/health",
    "/chat": "/v1/chat/completions",
}
_CHAT_PAGES = {"/chat", "/ui", "/index.html"}  # in a browser: the chat page is at `/`
_ALIKE = 0.6  # of `SequenceMatcher.ratio`
_LONGEST = 128  # characters of a path that are compared
_PAGE = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Not found · Ryzanstein</title></head>'
    "<body><h1>Not found</h1><p>{problem}</p>{link}"
    '<p><a href="/">Chat</a> · <a href="/openapi.json">All paths</a></p></body></html>'
)
_PAGE_HEADERS: Headers = [
    (b"content-security-policy", b"default-src 'none'; base-uri 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
]  # the others are those of all answers
log = structlog.get_logger(__name__)
_MANAGE = "/v1/manage/"
_NO_ROUTE = {
    404: ("unknown_url", "there is no such path; see /openapi.json"),
    405: ("method_not_allowed", "this path takes "),  # and its methods
}


def nearest_path(path: str, served: Iterable[str]) -> str:
    """Returns the served path that was probably meant; empty if none is like it.

    Args:
        path: What was asked for.
        served: Paths without parameters.
    """
    asked = "/" + path[:_LONGEST].strip("/").lower()
    if len(path) > _LONGEST:
        return ""
    if asked in _ELSEWHERE:
        return _ELSEWHERE[asked]
    # routes of operators are like many others, and are meant only by those who ask for one of them
    known = sorted(one for one in served if asked.startswith(_MANAGE) or not one.startswith(_MANAGE))
    last = [one for one in known if one == f"/v1{asked}" or (asked.endswith(one) and one != "/")]
    if last:
        return max(last, key=len)
    return next(iter(difflib.get_close_matches(asked, known, n=1, cutoff=_ALIKE)), "")


def wants_page(headers: Mapping[str, str]) -> bool:
    """Whether a caller is a browser that shows a page: it prefers HTML to JSON."""
    accepted = headers.get("accept", "").lower()
    return accepted.startswith("text/html")


def unknown_path_page(problem: str, nearest: str) -> tuple[bytes, Headers]:
    """Returns the page of an unknown path and its headers; both texts may have characters of HTML."""
    link = f'<p><a href="{html.escape(nearest)}">{html.escape(nearest)}</a></p>' if nearest else ""
    return _PAGE.format(problem=html.escape(problem), link=link).encode(), _PAGE_HEADERS


def meant(nearest: str) -> str:
    """Returns what an error says of the nearest path."""
    return f"there is no such path; did you mean {nearest}? " if nearest else "there is no such path; "


def add_error_handlers(app: FastAPI, metrics: GatewayMetrics, *, socket_path: str) -> None:
    """Adds a handler for each kind of error.

    Args:
        app: The application.
        metrics: Count answers.
        socket_path: The path that takes WebSockets alone.
    """

    def respond(request: Request, answer: ErrorAnswer) -> Response:
        if not is_session_path(request.url.path):  # `SessionPaths` counts those
            metrics.count_answer("other", answer.status, 0.0)
        body = error_body(answer, request.url.path)
        response = Response(body, status_code=answer.status, media_type="application/json")
        for name, value in answer.headers:
            response.headers[name.decode()] = value.decode("latin-1")
        return response

    async def refused(request: Request, error: Exception) -> Response:
        return respond(request, answer_for(error))

    async def bad_query(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return respond(request, answer_for(invalid_parameter(error.errors()[0])))

    async def left(_: Request, error: Exception) -> Response:
        return Response(status_code=499)  # the caller is gone

    async def no_route(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        where = f"{request.method} {request.url.path[:200]}"
        code, problem = _NO_ROUTE.get(error.status_code, ("http_error", error.detail))
        headers = [(name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items()]
        if error.status_code == 405:
            allowed = ", ".join(allowed_methods(app.router.routes, request.scope))
            if request.method == "OPTIONS":
                metrics.count_answer("other", 204, 0.0)
                return Response(status_code=204, headers={"allow": allowed})
            headers = [(b"allow", allowed.encode())]
            problem += " or ".join(name for name in allowed.split(", ") if name not in {"HEAD", "OPTIONS"})
        status = error.status_code
        if status == 404 and request.url.path == socket_path:
            status, code = 426, "upgrade_required"
            problem = "this path is a WebSocket; connect to it by ws:// or wss:// (docs/realtime.md)"
            headers = [(b"upgrade", b"websocket"), (b"connection", b"Upgrade")]
        if status == 404:
            nearest = nearest_path(request.url.path, {*served_paths(app.router.routes), socket_path})
            for_browser = request.method in {"GET", "HEAD"} and wants_page(request.headers)
            if for_browser and request.url.path.rstrip("/").lower() in _CHAT_PAGES:
                nearest = "/"
            problem = f"{meant(nearest)}see /openapi.json"
            if for_browser:
                metrics.count_answer("other", status, 0.0)
                page, safety = unknown_path_page(f"{where}: {problem}", nearest)
                shown = {name.decode(): value.decode() for name, value in safety}
                return Response(page, status, headers=shown, media_type="text/html")
        return respond(request, answer_for(HttpRefusal(status, code, f"{where}: {problem}", headers)))

    async def bug(request: Request, error: Exception) -> Response:
        log.error("request failed", route=request.url.path[:200], exc_info=error)
        return respond(request, answer_for(error))

    app.add_exception_handler(RyzError, refused)
    app.add_exception_handler(HttpRefusal, refused)
    app.add_exception_handler(RequestValidationError, bad_query)
    app.add_exception_handler(ClientDisconnected, left)
    app.add_exception_handler(HTTPException, no_route)
    app.add_exception_handler(Exception, bug)
