"""Answers `HEAD` and `OPTIONS` for the framework's routes, and tells all methods that a path takes."""

from collections.abc import Iterable, Iterator

from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway.transports.http.openapi_document import DirectRoute


def allowed_methods(routes: Iterable[BaseRoute], scope: Scope) -> list[str]:
    """The methods that the path of a request takes; empty if there is no such path."""
    found: set[str] = set()
    for route in _flat(routes):
        if route.matches(scope)[0] is not Match.NONE:
            methods = set(getattr(route, "methods", None) or ())
            found |= methods
            if "GET" in methods and not isinstance(route, DirectRoute):
                found.add("HEAD")
    return sorted(found | {"OPTIONS"}) if found else []


def served_paths(routes: Iterable[BaseRoute]) -> set[str]:
    """The paths that are served as they are, without parameters."""
    paths = (str(getattr(route, "path", "")) for route in _flat(routes))
    return {path for path in paths if path and "{" not in path}


def _flat(routes: Iterable[BaseRoute]) -> Iterator[BaseRoute]:
    """The routes, with those of included routers, which have no prefixes here."""
    for route in routes:
        included = getattr(route, "original_router", None)
        if included is None:
            yield route
        else:
            yield from _flat(included.routes)


class HeadAnswers:
    """An ASGI application that answers `HEAD` as `GET` without the body.

    Streams have no `HEAD`: a `GET` would take the stream over.
    """

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute]) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        if "HEAD" not in allowed_methods(self._routes, scope):
            await self._app(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await self._app({**scope, "method": "GET"}, receive, without_body)
