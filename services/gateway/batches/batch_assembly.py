"""Builds files and batches of a gateway out of its settings, and adds their routes."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from fastapi import FastAPI, Query
from starlette.types import ASGIApp

from services.gateway.answering.context import GatewayContext
from services.gateway.batches.batch_calls import BatchCalls
from services.gateway.batches.batch_log import BatchLog
from services.gateway.batches.batch_metrics import BatchMetrics
from services.gateway.batches.batch_parts import BatchParts, BatchRules
from services.gateway.batches.batch_routes import PATH as BATCHES
from services.gateway.batches.batch_routes import BatchRoutes, NewBatchRoute
from services.gateway.batches.batch_runner import BatchRunner
from services.gateway.batches.batch_schema import BatchRequest
from services.gateway.batches.batch_service import BatchDesk
from services.gateway.batches.batch_streams import BatchStreams
from services.gateway.batches.batch_watch import BatchWatch
from services.gateway.batches.group_loads import GroupLoads
from services.gateway.batches.line_call import LineCall
from services.gateway.files.directory_files import DirectoryFiles
from services.gateway.files.file_routes import PATH as FILES
from services.gateway.files.file_routes import FileRoutes
from services.gateway.files.file_store import FileStore
from services.gateway.files.object_files import ObjectFiles
from services.gateway.files.tenant_files import FileLimits, FileShelf
from services.gateway.http.openapi_document import ERRORS, DirectRoute, add_serving
from services.gateway.settings import GatewaySettings
from shared.bus import Bus
from shared.bus.jetstream.jetstream import JetStream
from shared.lifecycle import Service

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


@dataclass(frozen=True, slots=True)
class BatchDoors:
    """What the routes need.

    Attributes:
        parts: Records, streams, files, limits.
        desk: Takes the wishes of callers.
        jetstream: The broker's.
    """

    parts: BatchParts
    desk: BatchDesk
    jetstream: JetStream


def batch_doors(settings: GatewaySettings, bus: Bus) -> BatchDoors:
    """Builds files and batches; nothing is asked of broker or disk yet."""
    jetstream = JetStream(bus)
    store: FileStore = ObjectFiles(jetstream)
    if settings.files_store == "directory":
        store = DirectoryFiles(Path(settings.files_dir).absolute())
    limits = FileLimits(
        settings.file_max_bytes, settings.files_max_per_tenant, settings.files_bytes_per_tenant
    )
    parts = BatchParts(
        BatchLog(jetstream, settings.batch_ttl_s),
        BatchStreams(jetstream, ttl_s=settings.batch_ttl_s, ack_wait_s=settings.batch_lease_s),
        FileShelf(store, limits),
        BatchRules(
            owner=settings.instance_id,
            lease_s=settings.batch_lease_s,
            max_lines=settings.constants.batch_max_lines,
            line_bytes=settings.constants.batch_line_max_bytes,
            max_open=settings.constants.batch_max_open,
            max_waiting=settings.constants.batch_max_waiting,
            max_running=settings.batch_max_running,
            share=settings.batch_share,
        ),
    )
    return BatchDoors(parts, BatchDesk(parts), jetstream)


def batch_watch(doors: BatchDoors, bus: Bus, call: LineCall, service: Service) -> BatchWatch:
    """Builds what runs batches; `call` runs one request."""
    parts, metrics = doors.parts, BatchMetrics(service.registry)
    runner = BatchRunner(parts, GroupLoads(bus), call, metrics, lambda: service.is_ready)
    records = parts.log.records
    metrics.show(
        lambda: sum(record.waiting for record in records.values()),
        lambda: runner.running,
        lambda: sum(not record.ended for record in records.values()),
    )
    return BatchWatch(bus, parts, runner)


async def run_batches(
    doors: BatchDoors, watch: BatchWatch, bus: Bus, service: Service, stack: AsyncExitStack
) -> None:
    """Lets batches run, and answers calls on the bus, until the service drains."""
    calls = BatchCalls(bus, doors.parts.shelf, doors.desk)
    for stop in (watch.stop, calls.stop):
        stack.push_async_callback(stop)
        service.on_drain(stop)
    watch.start()
    await calls.start()


def add_batches(app: FastAPI, context: GatewayContext, doors: BatchDoors) -> dict[str, ASGIApp]:
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

    files = FileRoutes(context, doors.parts.shelf)
    new, batches = NewBatchRoute(context, doors.desk), BatchRoutes(context, doors.desk)
    one = BATCHES + "/{batch_id}"
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
        ("GET", BATCHES, list_batches),
        ("GET", one, get_batch),
        ("POST", one + "/cancel", cancel_batch),
        ("POST", one + "/pause", pause_batch),
        ("POST", one + "/resume", resume_batch),
    )
    for method, path, endpoint in of_batches:
        routes.append(DirectRoute(path, endpoint, direct=batches, methods=[method], responses=_BATCH_ERRORS))
    return {BATCHES: new, FILES: files}
