"""The HTTP routes of calls with a body: a body becomes a call, and the parts of its answer become bytes."""

from services.gateway.answering.context import GatewayContext
from services.gateway.answering.format import Format
from services.gateway.answering.run_call import Answering
from services.gateway.bodies.body_route import BodyRoute
from services.gateway.http.event_stream import send_events
from services.gateway.http.serving_route import HttpExchange


class FormatRoute(BodyRoute):
    """Answers `POST` on the path of a format.

    Args:
        form: Translates.
        context: What all calls share.
        answering: Runs calls.
    """

    def __init__(self, form: Format, context: GatewayContext, answering: Answering) -> None:
        super().__init__(form.path, context)
        self._form = form
        self._answering = answering

    async def serve_request(self, exchange: HttpExchange) -> None:
        """See `ServingRoute`."""
        raw, caller = await self.take_body(exchange), exchange.caller
        call = await self._answering.read_call(raw, caller, self._form)
        del raw
        async with await self._answering.run_call(call, caller) as answer:
            if not answer.streamed:
                body = await answer.body()
                await exchange.reply.send_whole(200, body, caller.outcome.headers())
                return
            wait_s = self.context.settings.constants.header_wait_s
            with self.context.metrics.open_stream:
                await send_events(answer.events(), exchange, header_wait_s=wait_s, ids=answer.event_ids)
