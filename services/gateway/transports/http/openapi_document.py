"""The OpenAPI document: routes and bodies that the framework does not read itself, and how routes fail."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.types import ASGIApp

from services.gateway.transports.http.exchange import HttpRoute

_REF = "#/components/schemas/{model}"
ERRORS: dict[int | str, dict[str, Any]] = {
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
SESSION_ERRORS = ERRORS | {
    404: {"description": "No such session, or none of this tenant."},
    409: {"description": "The session exists already, changed meanwhile, is pinned, or is of another model."},
    "default": {"description": "Any other error, in the same shape."},  # in place of the framework's own 422
}
STREAM_ERRORS = ERRORS | {
    404: {"description": "No group has that stream, or it is none of this tenant."},
    409: {"description": "Another connection has attached to the stream."},
    410: {"description": "The events asked for are kept no longer."},
}


class DirectRoute(APIRoute):
    """A documented route whose requests go straight to an ASGI application."""

    def __init__(self, path: str, endpoint: Callable[..., Any], *, direct: ASGIApp, **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self.app = direct


def body_documented_as(model: type[BaseModel]) -> dict[str, Any]:
    """Documents a body that no endpoint declares, since the gateway reads it within its own limits."""
    content = {"application/json": {"schema": {"$ref": _REF.format(model=model.__name__)}}}
    return {"requestBody": {"required": True, "content": content}}


def add_serving(
    app: FastAPI,
    endpoint: Callable[..., Any],
    direct: HttpRoute,
    body: type[BaseModel],
    responses: dict[int | str, dict[str, Any]] = ERRORS,
) -> HttpRoute:
    """Documents a route that takes a body by `POST`, and returns its application.

    Args:
        app: Gets the route.
        endpoint: Has the description.
        direct: The application, which knows its path.
        body: Model of the bodies.
        responses: How it fails.
    """
    route = DirectRoute(
        direct.path,
        endpoint,
        direct=direct,
        methods=["POST"],
        responses=responses,
        openapi_extra=body_documented_as(body),
    )
    app.router.routes.append(route)
    return direct


def add_document(app: FastAPI, bodies: Sequence[type[BaseModel]]) -> None:
    """Serves the OpenAPI document, which is made at the first request for it.

    Args:
        app: Gets the route.
        bodies: Models of bodies that no endpoint declares.
    """

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
