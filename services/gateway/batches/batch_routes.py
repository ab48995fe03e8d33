"""The routes of `/v1/batches`: make, see, list, cancel; and pause and resume, which OpenAI does not have."""

from urllib.parse import parse_qs

import msgspec

from services.gateway.answering.context import GatewayContext
from services.gateway.batches.batch_record import BatchRecord
from services.gateway.batches.batch_schema import BatchRequest
from services.gateway.batches.batch_service import BatchDesk
from services.gateway.bodies.body_route import BodyRoute
from services.gateway.http.pages import page_of
from services.gateway.http.serving_route import HttpExchange, ServingRoute
from shared.errors import RyzError

PATH = "/v1/batches"


class NewBatchRoute(BodyRoute):
    """Answers `POST`.

    Args:
        context: What all requests share.
        desk: Makes batches.
    """

    def __init__(self, context: GatewayContext, desk: BatchDesk) -> None:
        super().__init__(PATH, context)
        self._desk = desk

    async def serve_request(self, exchange: HttpExchange) -> None:
        """See `ServingRoute`."""
        body = await self.take_model(exchange, BatchRequest)
        unknown = [*(body.model_extra or ()), *body.unknown_inside]
        exchange.caller.told += self.ignored_fields.tell(unknown, [], exchange.caller.request_id)
        try:
            record = await self._desk.create(exchange.caller.tenant, body)
        except RyzError as error:
            if error.code == "file_not_found":
                error.data["param"] = "input_file_id"
            raise
        await exchange.reply.send_whole(200, msgspec.json.encode(record.as_openai()), [])


class BatchRoutes(ServingRoute):
    """Answers all routes of batches that exist.

    Args:
        context: What all requests share.
        desk: Knows the batches.
    """

    def __init__(self, context: GatewayContext, desk: BatchDesk) -> None:
        super().__init__(PATH + "/{batch_id}", context)
        self._desk = desk

    async def serve_request(self, exchange: HttpExchange) -> None:
        """See `ServingRoute`."""
        self.admit(exchange)
        self.take_places(exchange, 1)
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
