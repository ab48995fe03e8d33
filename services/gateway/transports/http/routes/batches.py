"""The routes of `/v1/batches` and where those of `/v1/files` are added.

Batches are created, shown, listed and cancelled; also paused and resumed, which OpenAI does not have.
"""

from collections.abc import Callable
from typing import Annotated, Literal
from urllib.parse import parse_qs

import msgspec
from fastapi import FastAPI, Query
from starlette.types import ASGIApp

from services.gateway.answering.context import GatewayContext
from services.gateway.answering.left_out import IgnoredFields
from services.gateway.resources.batches.record import BatchRecord
from services.gateway.resources.batches.service import BatchRequest, BatchService
from services.gateway.transports.http.exchange import HttpExchange, HttpRoute
from services.gateway.transports.http.list_pages import page_of
from services.gateway.transports.http.openapi_document import ERRORS, DirectRoute, add_serving
from services.gateway.transports.http.request_body import take_model
from services.gateway.transports.http.routes.files import PATH as FILES
from services.gateway.transports.http.routes.files import FileRoutes
from shared.errors import RyzError

PATH = "/v1/batches"
_FILE_ERRORS = ERRORS | {404: {"description": "No such file, or none of this tenant."}}
_BATCH_ERRORS = ERRORS | {404: {"description": "No such batch or file, or none of this tenant."}}
_FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string"},
                        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                        "expires_after[seconds]": {"type": "integer"},
                    },
                }
            }
        },
    }
}


class NewBatchRoute:
    """Answers `POST`.

    Args:
        context: What all requests share.
        service: Creates batches.
    """

    def __init__(self, context: GatewayContext, service: BatchService) -> None:
        strict = context.settings.strict_fields
        self._ignored = IgnoredFields(PATH, context.metrics, strict=strict)
        self._service = service

    async def serve_request(self, exchange: HttpExchange) -> None:
        """See `HttpExchange.handle`."""
        body = await take_model(exchange, BatchRequest)
        unknown = [*(body.model_extra or ()), *body.unknown_inside]
        exchange.caller.response_headers += self._ignored.tell(unknown, [], exchange.caller.request_id)
        try:
            assert exchange.caller.identity is not None
            record = await self._service.create(exchange.caller.identity, body)
        except RyzError as error:
            if error.code == "file_not_found":
                error.data["param"] = "input_file_id"
            raise
        await exchange.reply.send_whole(200, msgspec.json.encode(record.as_openai()), [])


class BatchRoutes:
    """Answers all routes of batches that exist.

    Args:
        service: Lists and changes batches.
    """

    def __init__(self, service: BatchService) -> None:
        self._service = service

    async def serve_request(self, exchange: HttpExchange) -> None:
        """See `HttpExchange.handle`."""
        exchange.admit()
        exchange.take_slots(1)
        path = exchange.scope["path"]
        if path == PATH:
            query = parse_qs(exchange.scope.get("query_string", b"").decode("latin-1"))
            records = await self._service.batches_of(exchange.caller.tenant)
            shown = page_of([record.as_openai() for record in records], query, newest_first=True)
        else:
            name, _, action = path.removeprefix(f"{PATH}/").partition("/")
            try:
                shown = (await self._one(exchange.caller.tenant, name, action)).as_openai()
            except RyzError as error:
                if error.code == "batch_not_found":
                    error.data["param"] = "batch_id"
                raise
        await exchange.reply.send_whole(200, msgspec.json.encode(shown), [])

    async def _one(self, tenant: str, name: str, action: str) -> BatchRecord:
        if action == "cancel":
            return await self._service.cancel(tenant, name)
        if action in {"pause", "resume"}:
            return await self._service.pause(tenant, name, on=action == "pause")
        return await self._service.get(tenant, name)


def add_batches(app: FastAPI, context: GatewayContext, service: BatchService) -> dict[str, ASGIApp]:
    """Adds the routes; returns the applications of the paths that take a body by `POST`."""

    async def upload_file() -> None:
        """Stores a file, sent as a form with `file` and `purpose`."""

    async def list_files(
        purpose: str = "",
        limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
        order: Literal["asc", "desc"] = "desc",
        after: str = "",
    ) -> None:
        """The files of the tenant, in pages."""

    async def get_file(file_id: str) -> None:
        """What is known of a file."""

    async def delete_file(file_id: str) -> None:
        """Deletes a file."""

    async def get_content(file_id: str) -> None:
        """The bytes of a file."""

    async def create_batch() -> None:
        """Makes a batch of the requests in a file; they run when interactive requests leave room."""

    async def list_batches(
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        after: str = "",
        order: Literal["asc", "desc"] = "desc",
    ) -> None:
        """The batches of the tenant, newest first, in pages."""

    async def get_batch(batch_id: str) -> None:
        """A batch: its state, its counts, its files."""

    async def cancel_batch(batch_id: str) -> None:
        """Ends a batch; its files have what was done."""

    async def pause_batch(batch_id: str) -> None:
        """Holds the requests of a batch back; those that run end."""

    async def resume_batch(batch_id: str) -> None:
        """Lets a paused batch go on."""

    one = PATH + "/{batch_id}"
    files = HttpRoute(FILES, context, FileRoutes(context, service.parts.files).serve_request)
    new = HttpRoute(PATH, context, NewBatchRoute(context, service).serve_request)
    batches = HttpRoute(one, context, BatchRoutes(service).serve_request)
    routes = app.router.routes
    routes.append(
        DirectRoute(
            FILES, upload_file, direct=files, methods=["POST"], responses=_FILE_ERRORS, openapi_extra=_FORM
        )
    )
    of_files: tuple[tuple[str, str, Callable[..., object]], ...] = (
        ("GET", FILES, list_files),
        ("GET", FILES + "/{file_id}", get_file),
        ("DELETE", FILES + "/{file_id}", delete_file),
        ("GET", FILES + "/{file_id}/content", get_content),
    )
    for method, path, endpoint in of_files:
        routes.append(DirectRoute(path, endpoint, direct=files, methods=[method], responses=_FILE_ERRORS))
    add_serving(app, create_batch, new, BatchRequest, _BATCH_ERRORS)
    of_batches: tuple[tuple[str, str, Callable[..., object]], ...] = (
        ("GET", PATH, list_batches),
        ("GET", one, get_batch),
        ("POST", one + "/cancel", cancel_batch),
        ("POST", one + "/pause", pause_batch),
        ("POST", one + "/resume", resume_batch),
    )
    for method, path, endpoint in of_batches:
        routes.append(DirectRoute(path, endpoint, direct=batches, methods=[method], responses=_BATCH_ERRORS))
    return {PATH: new, FILES: files}
