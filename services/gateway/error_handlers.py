"""Answers the errors of the framework's routes in the shape of their API. Serving routes answer their own."""

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from services.gateway.admission.disconnects import ClientDisconnected
from services.gateway.admission.error_shapes import error_body
from services.gateway.admission.refusals import ErrorAnswer, HttpRefusal, answer_for, invalid_parameter
from services.gateway.metrics import GatewayMetrics
from services.gateway.path_methods import allowed_methods, served_paths
from services.gateway.realtime.realtime_sockets import PATH as REALTIME
from services.gateway.sessions.session_paths import is_session_path
from services.gateway.unknown_paths import meant, nearest_path, unknown_path_page, wants_page
from shared.errors import RyzError

log = structlog.get_logger(__name__)


def add_error_handlers(app: FastAPI, metrics: GatewayMetrics) -> None:
    """Adds a handler for each kind of error."""

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
        status = error.status_code
        if status == 404 and request.url.path == REALTIME:
            status, code = 426, "upgrade_required"
            problem = "this path is a WebSocket; connect to it by ws:// or wss:// (docs/realtime.md)"
            headers = [(b"upgrade", b"websocket"), (b"connection", b"Upgrade")]
        if status == 404:
            nearest = nearest_path(request.url.path, {*served_paths(app.router.routes), REALTIME})
            problem = f"{meant(nearest)}see /openapi.json"
            if request.method in {"GET", "HEAD"} and wants_page(request.headers):
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


_NO_ROUTE = {
    404: ("unknown_url", "there is no such path; see /openapi.json"),
    405: ("method_not_allowed", "this path takes another method"),
}
