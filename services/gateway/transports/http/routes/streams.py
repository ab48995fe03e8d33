"""The route of streams that exist already: `GET /v1/streams/{request id}` resumes one, `DELETE` ends it.

Any gateway answers. The events are those of the stream as it began, after the last one that the client has.
"""

from urllib.parse import parse_qs

from services.gateway.answering.context import GatewayContext
from services.gateway.answering.direct_calls import STREAMS
from services.gateway.answering.resumption.event_ids import EventId, parse_event_id
from services.gateway.answering.run_call import Answering
from services.gateway.transports.http.event_stream import send_events
from services.gateway.transports.http.exchange import HttpExchange, HttpRoute

PREFIX = STREAMS


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
