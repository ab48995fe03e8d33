"""The routes of responses that exist: read, follow, cancel, delete, list their input."""

from typing import Any
from urllib.parse import parse_qs

import msgspec

from services.gateway.admission.errors.refusals import HttpRefusal
from services.gateway.answering.context import GatewayContext
from services.gateway.answering.events.ports import DONE
from services.gateway.answering.resumption.event_ids import UNNUMBERED
from services.gateway.formats.responses.format import RESPONSE_ID
from services.gateway.formats.responses.replay import replayed
from services.gateway.resources.stored_responses.background_runs import BackgroundRuns
from services.gateway.resources.stored_responses.begun_answer import RunEvents
from services.gateway.resources.stored_responses.kept_run import KeptRun
from services.gateway.transports.http.event_stream import send_events
from services.gateway.transports.http.exchange import HttpExchange
from services.gateway.transports.http.list_pages import page_of
from services.gateway.transports.http.server_sent_events import encoded_batch
from services.gateway.transports.http.stream_progress import EVENT_HEADERS
from shared.client.calls.responses_client import ResponsesClient
from shared.errors import InvalidRequest, RyzError
from shared.messages import ResponseFound, ResponseRecord


class StoredResponses:
    """Answers all of these routes.

    Args:
        context: What all requests share.
        store: Has the records.
        background: Runs responses without their callers.
    """

    def __init__(self, context: GatewayContext, store: ResponsesClient, background: BackgroundRuns) -> None:
        self._context = context
        self._store = store
        self._background = background

    async def serve_request(self, exchange: HttpExchange) -> None:
        """See `HttpExchange.handle`."""
        exchange.admit()
        exchange.take_slots(1)
        name = str(exchange.scope["path_params"]["response_id"])
        try:
            await self._answer(exchange, name)
        except RyzError as error:
            if error.code == "response_not_found":
                error.data["param"] = "response_id"
            raise

    async def _answer(self, exchange: HttpExchange, name: str) -> None:
        found = await self._find(exchange.caller.tenant, name)
        record, method, path = found.record, exchange.scope["method"], exchange.scope["path"]
        exchange.caller.model, query = record.model, _query(exchange)
        if method == "DELETE":
            await self._store.delete(exchange.caller.tenant, name)
            if not record.ended:
                await self._background.stop(record)
            await self._send(exchange, {"id": name, "object": "response", "deleted": True})
        elif path.endswith("/cancel"):
            await self._send(exchange, await self._cancelled(record))
        elif path.endswith("/input_items"):
            items = msgspec.json.decode(record.input_items)
            await self._send(exchange, page_of(items, query, newest_first=True))
        elif query.get("stream", [""])[-1] == "true":
            await self._stream(exchange, found)
        else:
            if found.abandoned:  # its gateway is gone: this one goes on with it
                await self._adopt(record, takes_over=False)
            run = self._background.find(exchange.caller.tenant, name)
            here = run is not None and not run.over and not record.ended
            await self._send(exchange, run.events.whole() if run and here else record.body.encode())

    async def _find(self, tenant: str, name: str) -> ResponseFound:
        if not RESPONSE_ID.match(name):
            raise HttpRefusal(404, "response_not_found", f"no response {name[:64]!r}")
        return await self._store.get(tenant, name)

    async def _send(self, exchange: HttpExchange, body: dict[str, Any] | bytes) -> None:
        encoded = body if isinstance(body, bytes) else msgspec.json.encode(body)
        await exchange.reply.send_whole(200, encoded, [])

    async def _cancelled(self, record: ResponseRecord) -> bytes:
        if not msgspec.json.decode(record.body).get("background"):
            raise InvalidRequest(
                f"response {record.response_id!r} does not run in the background, so it cannot be cancelled "
                "by id; close its connection",
                param="response_id",
            )
        if not record.ended:
            record = await self._background.cancel(record)
        return record.body.encode()

    async def _adopt(self, record: ResponseRecord, *, takes_over: bool) -> None:
        if await self._store.lease(record.tenant, record.response_id, takes_over=takes_over):
            await self._background.take_over(record)

    async def _stream(self, exchange: HttpExchange, found: ResponseFound) -> None:
        record, after = found.record, _after(exchange)
        run = self._background.find(record.tenant, record.response_id)
        if run is None and not record.ended:
            await self._adopt(record, takes_over=True)
            run = self._background.find(record.tenant, record.response_id)
            if run is None:  # it has ended at this moment
                record = (await self._store.get(record.tenant, record.response_id)).record
        if run is not None and not run.kept.has(after):
            if not run.over:
                raise HttpRefusal(
                    410,
                    "stream_gone",
                    "the events after that one are kept no longer, since the events of responses would take "
                    "too much memory: read the response without `stream`, or its last "
                    "event when it has ended",
                )
            run = None
            record = (await self._store.get(record.tenant, record.response_id)).record
        if run is None:
            await exchange.reply.start_stream(EVENT_HEADERS)
            batch = [(event.number, [event.for_stream]) for event in replayed(record, after)]
            data = encoded_batch([*batch, (UNNUMBERED, [DONE])], ids=True, numbered=True)
            await exchange.reply.send_part(data, more=False)
            return
        if after >= 0 and not run.exact:
            raise HttpRefusal(
                410,
                "stream_gone",
                "the response is computed again, since its gateway and its group are gone: its events are "
                "others now; read it without `starting_after`",
            )
        settings, followed = self._context.settings, run

        async def found_run() -> KeptRun:
            return followed

        async with exchange.running_call(settings.max_timeout_s) as running:
            running.check_running()
            with self._context.metrics.open_stream:
                events, wait_s = RunEvents(found_run, after), settings.constants.header_wait_s
                await send_events(events, exchange, header_wait_s=wait_s, ids=True)


def _query(exchange: HttpExchange) -> dict[str, list[str]]:
    return parse_qs(exchange.scope.get("query_string", b"").decode("latin-1"))


def _after(exchange: HttpExchange) -> int:
    """The number of the last event that the client has; -1: none."""
    given = _query(exchange).get("starting_after", [""])[-1]
    given = given or exchange.caller.headers.get(b"last-event-id", b"").decode("latin-1").strip()
    if not given:
        return -1
    if not (given.isascii() and given.isdigit() and len(given) <= 9):
        raise InvalidRequest(
            f"`starting_after` is the `sequence_number` of the last event that came, got {given[:32]!r}",
            param="starting_after",
        )
    return int(given)
