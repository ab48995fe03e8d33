"""Does what `ryz tenants` asks for, and prints it."""

import re
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from cli.command_groups import BrokerOptions
from cli.console import err, fail, out
from cli.keys.kept_admin_key import note_revoked
from cli.stack.state import StateDir
from cli.tenants import view
from cli.tenants.asking import on_accounts
from cli.tenants.tenant_options import TenantOptions
from cli.tenants.values import LimitOptions
from cli.visible import json_text
from shared.accounts.forms import (
    entry_form,
    price_form,
    prices_form,
    tenant_form,
    tenants_form,
    with_prices,
)
from shared.accounts.register import AccountRegister
from shared.client.calls.accounts_client import AccountsClient
from shared.errors import AccountNotFound
from shared.messages import AuditEntry, PriceRecord, TenantRecord
from shared.messages.base import ID_PATTERN


def create_tenant(name: str, options: TenantOptions, limits: LimitOptions, common: BrokerOptions) -> None:
    """Make a tenant."""
    if not re.fullmatch(ID_PATTERN, name):
        fail(f"{name[:64]!r} is no name of a tenant: 1 to 64 letters, digits, - and _.", 2)
    wanted = options.applied_to(TenantRecord(tenant=name))
    wanted = replace(wanted, limits=limits.applied_to(wanted.limits))

    async def work(client: AccountsClient) -> TenantRecord:
        stored = await client.put(wanted, expected=0)
        assert isinstance(stored.record, TenantRecord)
        return stored.record

    made = on_accounts(common, work)
    _print(made, f"The tenant {name} is made. `ryz keys create --tenant {name}` makes a key for it.", common)


def change_tenant(name: str, options: TenantOptions, limits: LimitOptions, common: BrokerOptions) -> None:
    """Change what was given of a tenant."""

    def change(record: TenantRecord) -> TenantRecord:
        return replace(options.applied_to(record), limits=limits.applied_to(record.limits))

    changed = _change(name, change, common)
    _print(changed, f"The tenant {name} is changed: limits {view.limit_words(changed.limits)}.", common)


def suspend_tenant(name: str, common: BrokerOptions, *, suspended: bool, end_streams: bool = False) -> None:
    """Suspend a tenant, or resume it."""
    changed = _change(
        name, lambda record: replace(record, suspended=suspended), common, end_streams=end_streams
    )
    now = "suspended: its requests are refused" if suspended else "active"
    _print(changed, f"The tenant {name} is {now}.", common)


def delete_tenant(name: str, common: BrokerOptions, *, with_keys: bool) -> None:
    """Remove a tenant."""
    revoked = on_accounts(common, lambda client: client.delete_tenant(name, with_keys=with_keys))
    if kept := note_revoked(StateDir(common.state_dir).path, revoked):
        err.print(kept, soft_wrap=True, markup=False)
    if common.as_json:
        print(json_text({"id": name, "deleted": True, "revoked_keys": revoked}))
        return
    also = f", and {len(revoked)} of its keys are revoked" if revoked else ""
    out.print(f"The tenant {name} is removed{also}.", soft_wrap=True)


def show_all(common: BrokerOptions) -> None:
    """List the tenants."""
    register = on_accounts(common, lambda client: client.read())
    if common.as_json:
        print(json_text(tenants_form(register)))
    elif register.tenants():
        out.print(view.tenant_listing(register))
    else:
        out.print("No tenants yet: `ryz tenants create NAME` makes one.")


def show_tenant(name: str, common: BrokerOptions) -> None:
    """Show a tenant."""

    async def work(client: AccountsClient) -> tuple[TenantRecord, AccountRegister]:
        register = await client.read()
        return _found(register, name), register

    record, register = on_accounts(common, work)
    if common.as_json:
        print(json_text(tenant_form(record)))
        return
    out.print(view.lines(view.tenant_lines(record, register.keys_of(name))))


def show_audit(count: int, before: int, common: BrokerOptions) -> None:
    """List entries of the audit log."""

    async def work(client: AccountsClient) -> list[AuditEntry]:
        return await client.audit(before=before, count=count)

    entries = on_accounts(common, work)
    if common.as_json:
        print(json_text({"object": "list", "entries": [entry_form(one) for one in entries]}))
    else:
        out.print(view.entry_listing(entries))


def change_price(
    model: str, given: Mapping[str, float], currency: str, common: BrokerOptions, *, remove: bool
) -> None:
    """Set or remove a price."""

    async def work(client: AccountsClient) -> tuple[PriceRecord, str]:
        record = PriceRecord(model=model)
        if remove:
            await client.remove(record.name)
            return record, ""
        rules = (await client.read()).rules
        if currency and currency != rules.currency:
            await client.put(replace(rules, currency=currency))
        known = next((one for one in (await client.read()).prices() if one.model == model), record)
        record = with_prices(known, given)
        await client.put(record)
        return record, currency or rules.currency

    record, word = on_accounts(common, work)
    if common.as_json:
        print(json_text(price_form(record) | ({"deleted": True} if remove else {"currency": word})))
    elif remove:
        out.print(f"{model} has no price any more.")
    else:
        out.print(view.price_listing([record], word))


def show_prices(model: str, currency: str, common: BrokerOptions) -> None:
    """List the prices, or that of a model."""

    async def work(client: AccountsClient) -> AccountRegister:
        register = await client.read()
        if currency and currency != register.rules.currency:
            await client.put(replace(register.rules, currency=currency))
            register = await client.read()
        if model and register.price(model) is None:
            raise AccountNotFound(f"{model} has no price", reason="account_not_found")
        return register

    register = on_accounts(common, work)
    form = prices_form(register)
    prices = register.prices()
    if model and (price := register.price(model)):
        prices = [price]
        form["prices"] = [price_form(price)]
    if common.as_json:
        print(json_text(form))
    elif prices:
        out.print(view.price_listing(prices, register.rules.currency))
    else:
        out.print("No model has a price: `ryz tenants price MODEL --prompt 0.15 --completion 0.60` sets one.")


def _change(
    name: str,
    change: Callable[[TenantRecord], TenantRecord],
    common: BrokerOptions,
    *,
    end_streams: bool = False,
) -> TenantRecord:
    async def work(client: AccountsClient) -> TenantRecord:
        register = await client.read()
        record = _found(register, name)
        known = register.stored(record.name)
        revision = known.revision if known else 0
        stored = await client.put(change(record), expected=revision, end_streams=end_streams)
        assert isinstance(stored.record, TenantRecord)
        return stored.record

    return on_accounts(common, work)


def _found(register: AccountRegister, name: str) -> TenantRecord:
    record = register.tenant(name)
    if record is None:
        raise AccountNotFound(f"there is no tenant {name}", reason="account_not_found")
    return record


def _print(record: TenantRecord, sentence: str, common: BrokerOptions) -> None:
    if common.as_json:
        print(json_text(tenant_form(record)))
    else:
        out.print(sentence, soft_wrap=True)
