"""`GET /v1/manage/shares`: what each tenant gets of busy groups now; for operators.

Leaders are asked at most twice a second, however many operators look.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec
from fastapi import FastAPI

from services.gateway.admission.operators import Operators
from services.gateway.answering.context import GatewayContext
from services.gateway.transports.http.exchange import HttpExchange, HttpRoute
from services.gateway.transports.http.openapi_document import ERRORS, DirectRoute
from shared import subjects
from shared.accounts.live_shares import LiveShares
from shared.bus import Bus, Message
from shared.codec import decode, encode
from shared.errors import InvalidRequest
from shared.messages import ServiceStatus, StatusQuery

PATH = "/v1/manage/shares"
FRESH_S = 0.5  # an answer is used again for so long
FIRST_S, QUIET_S, LONGEST_S = 0.6, 0.15, 1.5  # for the first answer, between two, in all
MAX_ANSWERS = 512
_ERRORS = ERRORS | {
    401: {"description": "No key of an admin."},
    403: {"description": "There are no such keys, and the caller is not on the gateway's machine."},
}


class ShareWatch:
    """Asks all leaders, and keeps the answers of the last seconds.

    Args:
        bus: The connection.
        clock: Monotonic seconds.
    """

    def __init__(self, bus: Bus, clock: Callable[[], float] = time.monotonic) -> None:
        self._bus = bus
        self._clock = clock
        self._shares = LiveShares()
        self._shown: list[dict[str, Any]] = []
        self._asked_s = float("-inf")
        self._asking = asyncio.Lock()

    async def groups(self) -> list[dict[str, Any]]:
        """The groups as of at most `FRESH_S` ago; see `LiveShares.groups`.

        Raises:
            Unavailable: The broker is away.
        """
        async with self._asking:
            if self._clock() - self._asked_s >= FRESH_S:
                statuses = await self._gather()
                self._asked_s = self._clock()
                self._shown = self._shares.groups(statuses, self._asked_s)
            return self._shown

    async def _gather(self) -> list[ServiceStatus]:
        found, heard = list[ServiceStatus](), asyncio.Event()

        async def take(message: Message) -> None:
            try:
                found.append(decode(message.data, ServiceStatus))
            except InvalidRequest:
                return  # also the broker's word that no service listens
            heard.set()

        inbox = self._bus.new_inbox()
        subscription = await self._bus.subscribe(inbox, take, max_pending=MAX_ANSWERS)
        try:
            await self._bus.publish(subjects.STATUS, encode(StatusQuery()), reply=inbox)
            over, wait_s = self._clock() + LONGEST_S, FIRST_S
            while (left_s := min(wait_s, over - self._clock())) > 0:
                try:
                    async with asyncio.timeout(left_s):
                        await heard.wait()
                except TimeoutError:
                    break
                heard.clear()
                wait_s = QUIET_S
        finally:
            await subscription.unsubscribe()
        return found


class ShareRoute:
    """Answers the route.

    Args:
        watch: Asks leaders.
        operators: Decide who may call it.
    """

    def __init__(self, watch: ShareWatch, operators: Operators) -> None:
        self._watch = watch
        self._operators = operators

    async def serve_request(self, exchange: HttpExchange) -> None:
        """See `HttpExchange.handle`."""
        exchange.caller.named_tenant = self._operators.tenant_of(exchange.caller)
        exchange.admit()
        shown = {"object": "list", "at_ms": time.time_ns() // 1_000_000, "groups": await self._watch.groups()}
        await exchange.reply.send_whole(200, msgspec.json.encode(shown), [])


def add_manage_shares(app: FastAPI, context: GatewayContext, operators: Operators) -> None:
    """Adds the route."""

    async def list_shares() -> None:
        """What each tenant gets of busy groups now: its share, tokens a second, requests and credit."""

    served = ShareRoute(ShareWatch(context.client.bus), operators)
    app.router.routes.append(
        DirectRoute(
            PATH,
            list_shares,
            direct=HttpRoute(PATH, context, served.serve_request),
            methods=["GET"],
            responses=_ERRORS,
            tags=["accounts"],
        )
    )
