"""Builds the pages out of what the gateway has."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

from starlette.types import ASGIApp

from services.gateway.answering.context import GatewayContext
from services.gateway.pages.cluster_events import ClusterEvents
from services.gateway.pages.cluster_feed import ClusterFeed
from services.gateway.pages.page_app import EVENTS, PageApp
from services.gateway.transports.http.exchange import HttpRoute
from shared.bus import Bus
from shared.client.generation.commands import GenerationStats


@dataclass(frozen=True, slots=True)
class PageParts:
    """What the pages need; none if the gateway serves no pages.

    Attributes:
        events: Answers `GET /cluster/events`.
    """

    events: ASGIApp | None = None

    def in_front_of(self, app: ASGIApp) -> ASGIApp:
        """The application with the pages in front, or the application itself."""
        return app if self.events is None else PageApp(app, self.events)


def page_parts(context: GatewayContext, bus: Bus, stats: GenerationStats, stack: AsyncExitStack) -> PageParts:
    """Builds the pages, and hears the cluster for them until the stack closes.

    Args:
        context: What all requests share.
        bus: The connection.
        stats: Of the gateway's client.
        stack: Ends what is started.
    """
    if not context.settings.pages:
        return PageParts()
    feed = ClusterFeed(bus, stats)
    measured = stats.observe_pause

    def observe_pause(seconds: float) -> None:
        measured(seconds)
        feed.observe_pause(seconds)

    stats.observe_pause = observe_pause  # the client calls it; the metric has the pauses as before
    watching = asyncio.create_task(feed.watch())
    stack.callback(watching.cancel)
    return PageParts(HttpRoute(EVENTS, context, ClusterEvents(context, feed).serve_request))
