"""The routes of `/v1/batches`: make, see, list, cancel; and pause and resume, which OpenAI does not have."""

from urllib.parse import parse_qs

import msgspec

from services.gateway.answering.context import GatewayContext
from services.gateway.answering.ignored_fields import IgnoredFields
from services.gateway.batches.batch_desk import BatchDesk
from services.gateway.batches.batch_schema import BatchRequest
from services.gateway.batches.state.batch_record import BatchRecord
from services.gateway.http.http_exchange import HttpExchange
from services.gateway.http.pages import page_of
from services.gateway.http.request_body import take_model
from shared.errors import RyzError

PATH = "/v1/batches"


class NewBatchRoute:
    """Answers `POST`.

    Args:
        context: What all requests share.
        desk: Makes batches.
    """

    def __init__(self, context: GatewayContext, desk: BatchDesk) -> None:
        strict = context.settings.strict_fields
        self._ignored = IgnoredFields(PATH, context.metrics, strict=strict)
        self._desk = desk

    async def serve_request(self, exchange: HttpExchange) -> None:
        """See `HttpExchange.handle`."""
        body = await take_model(exchange, BatchRequest)
        unknown = [*(body.model_extra or ()), *body.unknown_inside]
        exchange.caller.told += self._ignored.tell(unknown, [], exchange.caller.request_id)
        try:
            record = await self._desk.create(exchange.caller.tenant, body)
        except RyzError as error:
            if error.code == "file_not_found":
                error.data["param"] = "input_file_id"
            raise
        await exchange.reply.send_whole(200, msgspec.json.encode(record.as_openai()), [])


class BatchRoutes:
    """Answers all routes of batches that exist.

    Args:
        desk: Knows the batches.
    """

    def __init__(self, desk: BatchDesk) -> None:
        self._desk = desk

    async def serve_request(self, exchange: HttpExchange) -> None:
        """See `HttpExchange.handle`."""
        exchange.admit()
        exchange.take_places(1)
        path = exchange.scope["path"]
        if path == PATH:
            query = parse_qs(exchange.scope.get("query_string", b"").decode("latin-1"))
            records = await self._desk.batches_of(exchange.caller.tenant)
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
            return await self._desk.cancel(tenant, name)
        if action in {"pause", "resume"}:
            return await self._desk.pause(tenant, name, on=action == "pause")
        return await self._desk.get(tenant, name)
