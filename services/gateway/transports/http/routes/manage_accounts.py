"""`/v1/manage/tenants`, `keys`, `prices` and `audit`: operators manage tenants and keys over HTTP.

Answers have the form of the commands' `--json` (`shared/accounts/forms.py`).
"""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import FastAPI, Query
from msgspec.structs import replace
from pydantic import BaseModel

from services.gateway.admission.operators import Operators, actor_of
from services.gateway.answering.context import GatewayContext
from services.gateway.transports.http.exchange import HttpExchange, HttpRoute
from services.gateway.transports.http.openapi_document import ERRORS, DirectRoute, body_documented_as
from services.gateway.transports.http.query_parameters import flag, query_of, whole
from services.gateway.transports.http.request_body import take_model
from services.gateway.transports.http.routes.account_bodies import (
    KeyBody,
    KeysRuleBody,
    NewKeyBody,
    NewTenantBody,
    PriceBody,
    RotateBody,
    TenantBody,
)
from shared.accounts.forms import (
    Form,
    entry_form,
    key_form,
    keys_form,
    made_form,
    price_form,
    prices_form,
    tenant_form,
    tenants_form,
)
from shared.accounts.keys import key_id_in
from shared.accounts.register import AccountRegister
from shared.client.calls.accounts_client import AccountsClient, MadeKey
from shared.errors import AccountNotFound
from shared.messages import KeyRecord, PriceRecord, TenantRecord

PREFIX = "/v1/manage"
KINDS = ("tenants", "keys", "prices", "audit")
MAX_ENTRIES = 1000
Answer = tuple[int, Form]
T = TypeVar("T")
_ERRORS = ERRORS | {
    401: {"description": "No key of an admin."},
    403: {"description": "There are no such keys, and the caller is not on the gateway's machine."},
    404: {"description": "No such tenant, key or price."},
    409: {"description": "There is one already, it has changed meanwhile, or a tenant has keys."},
    503: {"description": "The KV state service does not answer, or the broker has no JetStream."},
}


class AccountRoutes:
    """Answers these routes.

    Args:
        context: What all calls share.
        operators: Decide who may call them.
    """

    def __init__(self, context: GatewayContext, operators: Operators) -> None:
        self._context = context
        self._operators = operators
        self._answers: dict[str, Callable[[HttpExchange, AccountsClient, str], Awaitable[Answer]]] = {
            "tenants": self._tenants,
            "keys": self._keys,
            "prices": self._prices,
            "audit": self._audit,
        }

    async def serve_request(self, exchange: HttpExchange) -> None:
        """See `HttpExchange.handle`."""
        exchange.caller.named_tenant = self._operators.tenant_of(exchange.caller)
        client = AccountsClient(self._context.client.bus, actor_of(exchange.caller))
        kind, _, rest = exchange.scope["path"].removeprefix(f"{PREFIX}/").partition("/")
        status, shown = await self._answers[kind](exchange, client, rest)
        await exchange.reply.send_whole(status, msgspec.json.encode(shown), [])

    async def _tenants(self, exchange: HttpExchange, client: AccountsClient, tenant: str) -> Answer:
        method = exchange.scope["method"]
        if method == "POST":
            wanted = (await take_model(exchange, NewTenantBody)).record()
            return 201, _tenant((await client.put(wanted, expected=0)).record)
        if method == "PATCH":
            body = await take_model(exchange, TenantBody)
            register = await client.read()
            record = _found(register.tenant(tenant), f"tenant {tenant[:64]}")
            changed, expected = body.applied_to(record), _revision(register, record)
            ends = flag(exchange, "end_streams")
            return 200, _tenant((await client.put(changed, expected=expected, end_streams=ends)).record)
        exchange.admit()
        if method == "DELETE":
            with_keys = flag(exchange, "with_keys")
            revoked = await client.delete_tenant(tenant, with_keys=with_keys)
            return 200, {"id": tenant, "deleted": True, "revoked_keys": revoked}
        register = await client.read()
        if not tenant:
            return 200, tenants_form(register)
        return 200, tenant_form(_found(register.tenant(tenant), f"tenant {tenant[:64]}"))

    async def _keys(self, exchange: HttpExchange, client: AccountsClient, key: str) -> Answer:
        if key:
            return await self._one_key(exchange, client, key)
        method = exchange.scope["method"]
        if method == "POST":
            return 201, _made(await client.create_key((await take_model(exchange, NewKeyBody)).record()))
        if method == "PATCH":
            required = (await take_model(exchange, KeysRuleBody)).keys_required
            return 200, {"keys_required": (await client.require_keys(required=required)).keys_required}
        exchange.admit()
        return 200, keys_form(await client.read(), query_of(exchange).get("tenant", ""))

    async def _one_key(self, exchange: HttpExchange, client: AccountsClient, key: str) -> Answer:
        method, key_id = exchange.scope["method"], key_id_in(key.partition("/")[0])
        if method == "POST":
            overlap_s = (await take_model(exchange, RotateBody)).overlap_s
            return 201, _made(await client.rotate_key(key_id, overlap_s))
        if method == "PATCH":
            change = await take_model(exchange, KeyBody)
            record, expected = await client.find_key(key_id)
            return 200, _key((await client.put(change.applied_to(record), expected=expected)).record)
        exchange.admit()
        record, _ = await client.find_key(key_id)
        if method == "DELETE":
            await client.remove(record.name, end_streams=flag(exchange, "end_streams"))
            return 200, {"id": record.key_id, "revoked": True}
        return 200, key_form(record)

    async def _prices(self, exchange: HttpExchange, client: AccountsClient, model: str) -> Answer:
        method = exchange.scope["method"]
        record = PriceRecord(model=model)
        if method == "PUT":
            body = await take_model(exchange, PriceBody)
            register = await client.read()
            if body.currency is not None and body.currency != register.rules.currency:
                await client.put(replace(register.rules, currency=body.currency))
            known = next((one for one in register.prices() if one.model == model), record)
            wanted = body.applied_to(known)
            await client.put(wanted)
            return 200, price_form(wanted)
        exchange.admit()
        if method == "DELETE":
            await client.remove(record.name)
            return 200, price_form(record) | {"deleted": True}
        return 200, prices_form(await client.read())

    async def _audit(self, exchange: HttpExchange, client: AccountsClient, _: str) -> Answer:
        exchange.admit()
        query = query_of(exchange)
        before = whole(query, "before", 0, least=0, most=2**53)
        count = whole(query, "count", 100, least=1, most=MAX_ENTRIES)
        entries = await client.audit(before=before, count=count)
        return 200, {"object": "list", "entries": [entry_form(one) for one in entries]}


# What the API's document says of each route; `AccountRoutes` answers them all.


async def list_tenants() -> None:
    """All tenants."""


async def create_tenant() -> None:
    """Makes a tenant."""


async def show_tenant(tenant: str) -> None:
    """A tenant."""


async def change_tenant(tenant: str) -> None:
    """Changes a tenant; what is not given stays as it is."""


async def delete_tenant(tenant: str, with_keys: bool = False) -> None:
    """Removes a tenant; with `with_keys` also its keys."""


async def list_keys(tenant: str = "") -> None:
    """All keys, or those of a tenant; of each the part that may be shown."""


async def create_key() -> None:
    """Makes a key or a bus user; the answer has its text or password, and nothing else ever has."""


async def require_keys() -> None:
    """Closes the API to requests without a key, or opens it again."""


async def show_key(key: str) -> None:
    """A key by its id, or a bus user by its name."""


async def change_key(key: str) -> None:
    """Changes what a key may be used for; what is not given stays as it is."""


async def revoke_key(key: str, end_streams: bool = False) -> None:
    """Ends a key at once, everywhere; with `end_streams` also its answers under way."""


async def rotate_key(key: str) -> None:
    """Makes another key with the same scopes and limits; the old one ends after the overlap.

    A bus user gets another password, and the old one ends at once.
    """


async def list_prices() -> None:
    """The prices of models."""


async def set_price(model: str) -> None:
    """Sets prices of a model."""


async def remove_price(model: str) -> None:
    """Removes the prices of a model."""


async def list_audit(
    before: Annotated[int, Query(ge=0, description="Entries with smaller numbers; 0: the newest.")] = 0,
    count: Annotated[int, Query(ge=1, le=MAX_ENTRIES)] = 100,
) -> None:
    """Who changed which tenant, key or price, the newest first."""


def add_manage_accounts(app: FastAPI, context: GatewayContext, operators: Operators) -> None:
    """Adds the routes."""
    direct = HttpRoute(PREFIX, context, AccountRoutes(context, operators).serve_request)
    of_tenants, of_keys, of_prices = f"{PREFIX}/tenants", f"{PREFIX}/keys", f"{PREFIX}/prices"
    made: list[tuple[str, str, Callable[..., Any], type[BaseModel] | None]] = [
        ("GET", of_tenants, list_tenants, None),
        ("POST", of_tenants, create_tenant, NewTenantBody),
        ("GET", of_tenants + "/{tenant}", show_tenant, None),
        ("PATCH", of_tenants + "/{tenant}", change_tenant, TenantBody),
        ("DELETE", of_tenants + "/{tenant}", delete_tenant, None),
        ("GET", of_keys, list_keys, None),
        ("POST", of_keys, create_key, NewKeyBody),
        ("PATCH", of_keys, require_keys, KeysRuleBody),
        ("GET", of_keys + "/{key}", show_key, None),
        ("PATCH", of_keys + "/{key}", change_key, KeyBody),
        ("DELETE", of_keys + "/{key}", revoke_key, None),
        ("POST", of_keys + "/{key}/rotate", rotate_key, RotateBody),
        ("GET", of_prices, list_prices, None),
        ("PUT", of_prices + "/{model:path}", set_price, PriceBody),
        ("DELETE", of_prices + "/{model:path}", remove_price, None),
        ("GET", f"{PREFIX}/audit", list_audit, None),
    ]
    for method, path, endpoint, body in made:
        app.router.routes.append(
            DirectRoute(
                path,
                endpoint,
                direct=direct,
                methods=[method],
                status_code=201 if method == "POST" else 200,
                responses=_ERRORS,
                openapi_extra=None if body is None else body_documented_as(body),
                tags=["accounts"],
            )
        )


_OF_KEYS: list[type[BaseModel]] = [NewKeyBody, KeyBody, KeysRuleBody, RotateBody]
ACCOUNT_BODIES: list[type[BaseModel]] = [NewTenantBody, TenantBody, *_OF_KEYS, PriceBody]


def _tenant(record: object) -> Form:
    assert isinstance(record, TenantRecord)
    return tenant_form(record)


def _key(record: object) -> Form:
    assert isinstance(record, KeyRecord)
    return key_form(record)


def _made(made: MadeKey) -> Form:
    return made_form(made.record, made.text, closed_api=made.closed_api)


def _found(record: T | None, what: str) -> T:
    if record is None:
        raise AccountNotFound(f"there is no {what}", reason="account_not_found")
    return record


def _revision(register: AccountRegister, record: TenantRecord) -> int:
    stored = register.stored(record.name)
    return 0 if stored is None else stored.revision
