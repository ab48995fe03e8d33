"""Adds the routes of the Responses API to the application."""

from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import FastAPI, Query
from starlette.types import ASGIApp

from services.gateway.admission.held_slots import SOCKET_EVICTED, HeldSlots
from services.gateway.answering.context import GatewayContext
from services.gateway.answering.run_call import Answering
from services.gateway.formats.responses.format import PATH, ResponseFormat
from services.gateway.formats.responses.schema import ResponseRequest
from services.gateway.resources.stored_responses.background_runs import BackgroundRuns
from services.gateway.transports.http.exchange import HttpRoute
from services.gateway.transports.http.list_pages import MAX_PAGE
from services.gateway.transports.http.openapi_document import ERRORS, DirectRoute, add_serving
from services.gateway.transports.http.routes.formats import format_route
from services.gateway.transports.http.routes.stored_responses import StoredResponses
from shared.bus import Bus
from shared.client.calls.responses_client import ResponsesClient

_ERRORS = ERRORS | {
    404: {"description": "No such response, or none of this tenant; or no group serves the model."},
    410: {"description": "The events asked for are kept no longer."},
}


@dataclass(frozen=True, slots=True)
class ResponseParts:
    """What the routes need beside the context.

    Attributes:
        store: Has the records.
        background: Runs responses without their callers.
        sockets: Places of WebSockets.
    """

    store: ResponsesClient
    background: BackgroundRuns
    sockets: HeldSlots


def response_parts(context: GatewayContext, bus: Bus) -> ResponseParts:
    """Makes the parts."""
    settings = context.settings
    store = ResponsesClient(
        bus,
        owner=settings.instance_id,
        timeout_s=settings.constants.sessions_timeout_s,
        lease_ms=round(settings.response_lease_s * 1000),
        wait_s=context.client.wait_s,
    )
    spaces = context.admission.parties.quota(
        settings.response_background_max,
        what="responses in the background",
        reason="background_responses",
    )
    sockets = context.admission.parties.quota(
        settings.sockets_max, what="WebSockets", reason="response_sockets"
    )
    return ResponseParts(store, BackgroundRuns(context, store, spaces), HeldSlots(sockets, SOCKET_EVICTED))


def add_responses(
    app: FastAPI, context: GatewayContext, parts: ResponseParts, form: ResponseFormat, answering: Answering
) -> dict[str, ASGIApp]:
    """Adds the routes; returns the application of the path that serves."""

    async def create_response() -> None:
        """Makes a response; with `stream` as server-sent events, with `background` without its caller."""

    async def get_response(
        response_id: str,
        stream: bool = False,
        starting_after: Annotated[int, Query(ge=0, description="Of a stream: the last event.")] = 0,
    ) -> None:
        """A stored response; with `stream` the events of one that runs in the background."""

    async def delete_response(response_id: str) -> None:
        """Deletes a response; one that runs ends."""

    async def cancel_response(response_id: str) -> None:
        """Ends a response that runs in the background."""

    async def list_input_items(
        response_id: str,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 20,
        order: Literal["asc", "desc"] = "desc",
        after: str = "",
    ) -> None:
        """The items of a response's own input, in pages."""

    serving = format_route(form, context, answering)
    one, responses = PATH + "/{response_id}", StoredResponses(context, parts.store, parts.background)
    stored = HttpRoute(one, context, responses.serve_request)
    add_serving(app, create_response, serving, ResponseRequest, _ERRORS)
    for method, path, endpoint in (
        ("GET", one, get_response),
        ("DELETE", one, delete_response),
        ("POST", f"{one}/cancel", cancel_response),
        ("GET", f"{one}/input_items", list_input_items),
    ):
        app.router.routes.append(
            DirectRoute(path, endpoint, direct=stored, methods=[method], responses=_ERRORS)
        )
    return {PATH: serving}
