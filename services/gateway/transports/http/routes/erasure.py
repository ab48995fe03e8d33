"""`POST /v1/manage/tenants/{tenant}/erase`: operators erase the data of a tenant, and get a receipt."""

import re
from typing import Annotated

import msgspec
from fastapi import FastAPI, Query

from services.gateway.admission.operators import Operators, actor_of
from services.gateway.answering.context import GatewayContext
from services.gateway.resources.erasure.erasure import TenantErasure
from services.gateway.transports.http.exchange import HttpExchange, HttpRoute
from services.gateway.transports.http.openapi_document import ERRORS, DirectRoute
from services.gateway.transports.http.query_parameters import query_of
from shared.errors import InvalidRequest
from shared.messages.base import ID_PATTERN

PATH = "/v1/manage/tenants/{tenant}/erase"
MAX_S, DEFAULT_S = 600.0, 60.0
_ERRORS = ERRORS | {
    401: {"description": "No admin key."},
    403: {"description": "There are no such keys, and the caller is not on the gateway's machine."},
    503: {"description": "The broker or a store does not answer; what was erased until then is gone."},
}


class ErasureRoutes:
    """Answers the route.

    Args:
        context: What all calls share.
        operators: Decide who may call it.
        erasure: Erases.
    """

    def __init__(self, context: GatewayContext, operators: Operators, erasure: TenantErasure) -> None:
        self._context = context
        self._operators = operators
        self._erasure = erasure

    async def serve_request(self, exchange: HttpExchange) -> None:
        """See `HttpExchange.handle`."""
        exchange.caller.named_tenant = self._operators.tenant_of(exchange.caller)
        tenant = exchange.scope["path"].split("/")[-2]
        within_s = _within(exchange)
        exchange.admit()
        if not re.fullmatch(ID_PATTERN, tenant):
            raise InvalidRequest(
                f"{tenant[:64]!r} is no tenant: 1 to 64 letters, digits, - and _", param="tenant"
            )
        exchange.take_slots(1)
        async with exchange.running_call(within_s + self._context.client.wait_s):
            receipt = await self._erasure.erase(tenant, within_s, actor_of(exchange.caller))
        shown = {"object": "tenant.erasure"} | msgspec.to_builtins(receipt)
        await exchange.reply.send_whole(200, msgspec.json.encode(shown), [])


def _within(exchange: HttpExchange) -> float:
    text = query_of(exchange).get("within", "")
    try:
        within_s = float(text or DEFAULT_S)
    except ValueError:
        within_s = -1.0
    if not 0.0 < within_s <= MAX_S:
        raise InvalidRequest(f"`within` is up to {MAX_S:g} seconds, got {text[:32]!r}", param="within")
    return within_s


def add_erasure(app: FastAPI, context: GatewayContext, operators: Operators, erasure: TenantErasure) -> None:
    """Adds the route."""

    async def erase_tenant(
        tenant: str,
        within: Annotated[float, Query(gt=0, le=MAX_S, description="Seconds that it may take.")] = DEFAULT_S,
    ) -> None:
        """Erases sessions, KV blocks, stored responses, batches and files of a tenant.

        The answer is a receipt. `complete` is false if something is left: the same call again goes on.
        """

    direct = HttpRoute(PATH, context, ErasureRoutes(context, operators, erasure).serve_request)
    app.router.routes.append(
        DirectRoute(PATH, erase_tenant, direct=direct, methods=["POST"], responses=_ERRORS, tags=["tenants"])
    )
