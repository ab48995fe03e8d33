"""`/v1/usage` and `/v1/manage/usage`: what a tenant has used, or all of them, as JSON or CSV."""

from collections.abc import Callable
from typing import Annotated
from urllib.parse import parse_qs

import msgspec
from fastapi import FastAPI, Query

from services.gateway.admission.operators import Operators
from services.gateway.answering.context import GatewayContext
from services.gateway.transports.http.exchange import HttpExchange, HttpRoute
from services.gateway.transports.http.openapi_document import ERRORS, DirectRoute
from shared.client.calls.usage_client import UsageClient
from shared.errors import InvalidRequest
from shared.messages.base import Tenant
from shared.usage.grouping import check_day, csv_of, group_sums, groups_of

OWN, ALL = "/v1/usage", "/v1/manage/usage"
CSV = (b"content-type", b"text/csv; charset=utf-8")
_PARAMETERS = frozenset({"by", "since", "until", "tenant", "format"})
_ERRORS = ERRORS | {503: {"description": "The KV state service is away, or the broker has no JetStream."}}


class UsageRoutes:
    """Answers both routes.

    Args:
        context: What all calls share.
        operators: Decide who may see all tenants.
    """

    def __init__(self, context: GatewayContext, operators: Operators) -> None:
        self._operators = operators
        self._usage = UsageClient(context.client.bus)

    async def serve_own(self, exchange: HttpExchange) -> None:
        """See `HttpExchange.handle`."""
        exchange.admit()
        exchange.take_slots(1)
        await self._serve(exchange, exchange.caller.tenant)

    async def serve_all(self, exchange: HttpExchange) -> None:
        """See `HttpExchange.handle`."""
        exchange.caller.named_tenant = self._operators.tenant_of(exchange.caller)
        exchange.admit()
        await self._serve(exchange, "")

    async def _serve(self, exchange: HttpExchange, tenant: str) -> None:
        query = parse_qs(exchange.scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        if unknown := sorted(query.keys() - _PARAMETERS):
            raise InvalidRequest(f"there is no parameter {unknown[0][:64]!r}", param=unknown[0][:64])
        given = {name: values[-1] for name, values in query.items()}
        by = groups_of(given.get("by", "day"))
        form = given.get("format", "json")
        if form not in {"json", "csv"}:
            raise InvalidRequest(f"`format` is json or csv, got {form[:32]!r}", param="format")
        since, until = check_day(given.get("since", ""), "since"), check_day(given.get("until", ""), "until")
        report = await self._usage.read_sums(tenant or _tenant_in(given), since, until)
        rows = group_sums(report.sums, by)
        if form == "csv":
            await exchange.reply.send_whole(200, csv_of(rows, by).encode(), [], form=CSV)
            return
        shown = {"object": "list", "currency": report.currency, "data": rows}
        await exchange.reply.send_whole(200, msgspec.json.encode(shown), [])


def _tenant_in(given: dict[str, str]) -> str:
    named = given.get("tenant", "")
    if not named:
        return ""
    try:
        return str(msgspec.convert(named, Tenant))
    except msgspec.ValidationError:
        raise InvalidRequest(f"{named[:64]!r} is no name of a tenant", param="tenant") from None


def add_usage(app: FastAPI, context: GatewayContext, operators: Operators) -> None:
    """Adds the routes."""
    By = Annotated[str, Query(description="A list with commas of `day`, `tenant`, `key`, `model`.")]
    Day = Annotated[str, Query(description="A day in the tenant's time zone, such as 2026-01-31.")]
    Form = Annotated[str, Query(alias="format", description="`json` or `csv`.")]
    OfTenant = Annotated[str, Query(description="Only this tenant's.")]

    async def own_usage(by: By = "day", since: Day = "", until: Day = "", form: Form = "json") -> None:
        """What the tenant of the key has used, each request once."""

    async def all_usage(
        by: By = "day", since: Day = "", until: Day = "", tenant: OfTenant = "", form: Form = "json"
    ) -> None:
        """What all tenants have used; for operators."""

    served = UsageRoutes(context, operators)
    routes: tuple[tuple[str, Callable[..., object], HttpRoute], ...] = (
        (OWN, own_usage, HttpRoute(OWN, context, served.serve_own)),
        (ALL, all_usage, HttpRoute(ALL, context, served.serve_all)),
    )
    for path, endpoint, direct in routes:
        app.router.routes.append(
            DirectRoute(path, endpoint, direct=direct, methods=["GET"], responses=_ERRORS, tags=["usage"])
        )
