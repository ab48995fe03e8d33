"""Tenants, keys, prices and entries of the audit log as plain values: the JSON of HTTP and of commands.

Money is in units of the currency, prices are for a million tokens. Digests are left out. Pure.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from shared.accounts.keys import shown_prefix
from shared.accounts.register import AccountRegister
from shared.messages import AuditEntry, KeyRecord, Limits, PriceRecord, TenantRecord

MILLION = 1_000_000
MONEY = frozenset({"money_per_day", "money_per_month"})  # of the limits
PRICES = ("prompt", "cached", "completion")
Form = dict[str, Any]


def to_millionths(amount: float) -> int:
    """An amount of the currency as it is kept."""
    return round(amount * MILLION)


def with_prices(record: PriceRecord, given: Mapping[str, float]) -> PriceRecord:
    """Returns a price with the amounts that were given, by field; cached tokens cost what a prompt's do.

    That ends when they are given a price of their own.
    """
    amounts = {name: to_millionths(amount) for name, amount in given.items()}
    if "prompt" in amounts and record.cached == record.prompt:
        amounts.setdefault("cached", amounts["prompt"])
    return replace(record, **amounts)


def limits_form(limits: Limits) -> Form:
    """The limits by name; 0: no limit."""
    values = {name: getattr(limits, name) for name in limits.__struct_fields__}
    return {name: value / MILLION if name in MONEY else value for name, value in values.items()}


def limits_of(given: Form, base: Limits) -> Limits:
    """Limits from some values of that form; those that are missing or None stay."""
    changed = {
        name: to_millionths(value) if name in MONEY else int(value)
        for name, value in given.items()
        if value is not None
    }
    return msgspec.structs.replace(base, **changed)


def tenant_form(record: TenantRecord) -> Form:
    """A tenant."""
    return {
        "id": record.tenant,
        "weight": record.weight,
        "models": list(record.models),
        "time_zone": record.time_zone,
        "suspended": record.suspended,
        "session_days": record.session_days,
        "response_days": record.response_days,
        "file_days": record.file_days,
        "batch_days": record.batch_days,
        "usage_days": record.usage_days,
        "record_days": record.record_days,
        "note": record.note,
        "limits": limits_form(record.limits),
        "created_s": record.created_s,
    }


def key_form(record: KeyRecord) -> Form:
    """A key, of which the prefix may be shown, or a bus user."""
    terms = record.bus_user
    user = (
        None
        if terms is None
        else {
            "name": terms.user,
            "max_rps": terms.max_rps,
            "max_priority": terms.max_priority,
            "suspended": terms.suspended,
        }
    )
    return {
        "id": record.key_id,
        "kind": "key" if terms is None else "bus_user",
        "bus_user": user,
        "tenant": record.tenant,
        "prefix": shown_prefix(record.key_id),
        "label": record.label,
        "scopes": {
            "models": list(record.scopes.models),
            "apis": list(record.scopes.apis),
            "admin": record.scopes.admin,
            "read_only": record.scopes.read_only,
        },
        "limits": limits_form(record.limits),
        "created_s": record.created_s,
        "expires_s": record.expires_s,
    }


def made_form(record: KeyRecord, text: str, *, closed_api: bool) -> Form:
    """A key that was just made, with its text; of a bus user its password."""
    if record.bus_user is not None:
        return key_form(record) | {"user": record.bus_user.user, "password": text}
    return key_form(record) | {"key": text, "closed_api": closed_api}


def price_form(record: PriceRecord) -> Form:
    """The prices of a model."""
    return {"model": record.model} | {name: getattr(record, name) / MILLION for name in PRICES}


def entry_form(entry: AuditEntry) -> Form:
    """An entry of the audit log."""
    return {name: getattr(entry, name) for name in entry.__struct_fields__}


def tenants_form(register: AccountRegister) -> Form:
    """All tenants."""
    return {"object": "list", "tenants": [tenant_form(one) for one in register.tenants()]}


def keys_form(register: AccountRegister, tenant: str = "") -> Form:
    """All keys, or those of a tenant."""
    keys = [key_form(one) for one in register.keys_of(tenant)]
    return {"object": "list", "keys_required": register.rules.keys_required, "keys": keys}


def prices_form(register: AccountRegister) -> Form:
    """All prices."""
    prices = [price_form(one) for one in register.prices()]
    return {"object": "list", "currency": register.rules.currency, "prices": prices}
