"""The HTTP routes of calls with a body: a body becomes a call, and the parts of its answer become bytes."""

from services.gateway.admission.request_headers import wants_progress
from services.gateway.answering.context import GatewayContext
from services.gateway.answering.format import Format
from services.gateway.answering.run_call import Answering
from services.gateway.transports.http.event_stream import send_events
from services.gateway.transports.http.exchange import HttpExchange, HttpRoute
from services.gateway.transports.http.request_body import take_body


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
