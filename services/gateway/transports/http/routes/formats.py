"""The HTTP routes of calls with a body, and of streams that exist already.

A body becomes a call, and the parts of its answer become bytes. `GET /v1/streams/{request id}` resumes a
stream at any gateway, `DELETE` ends it. The events are those of the stream as it began, after the last one
that the client has.
"""

from urllib.parse import parse_qs

from services.gateway.admission.request_headers import wants_progress
from services.gateway.answering.call import Format
from services.gateway.answering.context import GatewayContext
from services.gateway.answering.direct_calls import STREAMS
from services.gateway.answering.resumption.event_ids import EventId, parse_event_id
from services.gateway.answering.run_call import Answering
from services.gateway.transports.http.event_stream import send_events
from services.gateway.transports.http.exchange import HttpExchange, HttpRoute
from services.gateway.transports.http.request_body import take_body

PREFIX = STREAMS


def format_route(form: Format, context: GatewayContext, answering: Answering) -> HttpRoute:
    """The application for `POST` on the path of a format."""

    async def answer_call(exchange: HttpExchange) -> None:
        raw, caller = await take_body(exchange), exchange.caller
        shows_progress = wants_progress(caller.headers)
        call = await answering.read_call(raw, caller, form)
        del raw
        async with await answering.run_call(call, caller) as answer:
            if not answer.streamed:
                body = await answer.body()
                await exchange.reply.send_whole(200, body, caller.outcome.headers())
                return
            wait_s = context.settings.constants.header_wait_s
            with context.metrics.open_stream:
                await send_events(
                    answer.events(),
                    exchange,
                    header_wait_s=wait_s,
                    ids=answer.event_ids,
                    progress=answer.waits_for if shows_progress else None,
                )

    return HttpRoute(form.path, context, answer_call)


def stream_route(context: GatewayContext, answering: Answering) -> HttpRoute:
    """The application of both methods; the trace is that of the request which is resumed."""

    async def answer_call(exchange: HttpExchange) -> None:
        exchange.admit()
        name: str = exchange.scope["path_params"]["request_id"]
        if exchange.scope["method"] == "DELETE":
            await answering.end_stream(name, exchange.caller)
            await exchange.reply.send_empty()
            return
        last = last_event_id(exchange)
        async with answering.resume_stream(name, last, exchange.caller) as answer:
            wait_s = context.settings.constants.header_wait_s
            with context.metrics.open_stream:
                await send_events(answer.events(last), exchange, header_wait_s=wait_s, ids=answer.event_ids)

    return HttpRoute(PREFIX, context, answer_call, traced_as="request_id")


def last_event_id(exchange: HttpExchange) -> EventId:
    """The last event that the client has, by header or in the query; the header wins.

    Raises:
        InvalidRequest: It is no id of an event.
    """
    given = exchange.caller.headers.get(b"last-event-id", b"").decode("latin-1").strip()
    if not given:
        query = parse_qs(exchange.scope.get("query_string", b"").decode("latin-1"))
        given = query.get("from", [""])[-1].strip()
    return parse_event_id(given)
