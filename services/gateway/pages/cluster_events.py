"""`GET /cluster/events`: the state of the cluster as server-sent events.

With API keys a key is needed, and a viewer sees the sessions of its own tenant only. Viewers have places of
their own, so that open pages take none from requests.
"""

from services.gateway.answering.context import GatewayContext
from services.gateway.pages.cluster_feed import ClusterFeed
from services.gateway.transports.http.exchange import HttpExchange
from shared.errors import DeadlineExceeded

MAX_VIEWERS = 64
_LIMIT_S = 3600.0  # the page connects again after it
_HEAD = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
]


class ClusterEvents:
    """Answers the route.

    Args:
        context: What all requests share.
        feed: The source of all viewers.
    """

    def __init__(self, context: GatewayContext, feed: ClusterFeed) -> None:
        self._feed = feed
        self._viewers = context.admission.parties.quota(MAX_VIEWERS, what="open live views", reason="viewers")

    async def serve_request(self, exchange: HttpExchange) -> None:
        """See `HttpExchange.handle`."""
        exchange.admit()
        self._viewers.take_units(exchange.caller.party)
        try:
            async with (
                exchange.running_call(_LIMIT_S),
                self._feed.viewer(exchange.caller.tenant) as snapshots,
            ):
                await exchange.reply.start_stream(_HEAD)
                async for snapshot in snapshots:
                    await exchange.reply.send_part(b"data: " + snapshot + b"\n\n")
        except DeadlineExceeded:
            await exchange.reply.finish()  # the page connects again
        finally:
            self._viewers.free_units(exchange.caller.party)
