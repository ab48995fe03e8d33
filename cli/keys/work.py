"""Does what `ryz keys` asks for, and prints it."""

import time
from datetime import UTC, datetime

from msgspec.structs import replace

from cli.command_groups import BrokerOptions
from cli.console import err, fail, out
from cli.keys.kept_admin_key import note_revoked, note_rotated
from cli.keys.key_options import KeyOptions
from cli.stack.state import StateDir
from cli.tenants import view
from cli.tenants.asking import on_accounts
from cli.tenants.values import LimitOptions, seconds
from cli.visible import json_text
from shared.accounts.forms import key_form, keys_form
from shared.accounts.keys import key_id_in, shown_prefix
from shared.accounts.register import AccountRegister
from shared.client.calls.accounts_client import AccountsClient, MadeKey
from shared.errors import AccountNotFound
from shared.messages import KeyRecord, Scopes

_ID_LENGTH = 12


def create_key(
    tenant: str, options: KeyOptions, limits: LimitOptions, common: BrokerOptions, *, admin: bool
) -> None:
    """Make a key, and print it once."""
    if admin and tenant != "default":
        fail("An admin's key manages all tenants: leave out `--tenant`.", 2)
    wanted = KeyRecord(key_id="0" * _ID_LENGTH, digest=bytes(32), tenant=tenant, scopes=Scopes(admin=admin))
    wanted = options.applied_to(wanted)
    wanted = replace(wanted, limits=limits.applied_to(wanted.limits))
    _print_made(on_accounts(common, lambda client: client.create_key(wanted)), common)


def rotate_key(key: str, overlap: str, common: BrokerOptions) -> None:
    """Make a key in the place of another."""
    key_id, overlap_s = key_id_in(key), seconds("--overlap", overlap)
    made = on_accounts(common, lambda client: client.rotate_key(key_id, overlap_s))
    ends = f"{shown_prefix(key_id)} ends in {overlap}" if overlap_s else f"{shown_prefix(key_id)} has ended"
    kept = note_rotated(StateDir(common.state_dir).path, key_id, made.text)
    _print_made(made, common, f"{ends}.")
    if kept:
        err.print(kept, soft_wrap=True, markup=False)


def change_key(key: str, options: KeyOptions, limits: LimitOptions, common: BrokerOptions) -> None:
    """Change what was given of a key."""

    async def work(client: AccountsClient) -> KeyRecord:
        register = await client.read()
        record = _found(register, key)
        known = register.stored(record.name)
        wanted = replace(options.applied_to(record), limits=limits.applied_to(record.limits))
        stored = await client.put(wanted, expected=known.revision if known else 0)
        assert isinstance(stored.record, KeyRecord)
        return stored.record

    _print(on_accounts(common, work), common)


def show_key(key: str, common: BrokerOptions) -> None:
    """Show a key."""

    async def work(client: AccountsClient) -> KeyRecord:
        return _found(await client.read(), key)

    _print(on_accounts(common, work), common)


def show_keys(tenant: str, common: BrokerOptions) -> None:
    """List the keys."""
    register = on_accounts(common, lambda client: client.read())
    if common.as_json:
        print(json_text(keys_form(register, tenant)))
        return
    keys = register.keys_of(tenant)
    if keys:
        out.print(view.key_listing(keys))
    else:
        out.print("No keys yet: `ryz keys create` makes one.")
    if not register.rules.keys_required:
        err.print("Requests without a key are taken (unless RYZ_API_KEYS is set).", style="dim")


def revoke_key(key: str, common: BrokerOptions, *, end_streams: bool) -> None:
    """Remove a key."""
    key_id = key_id_in(key)
    name = KeyRecord(key_id=key_id, digest=bytes(32)).name
    on_accounts(common, lambda client: client.remove(name, end_streams=end_streams))
    at_ms = time.time_ns() // 1_000_000
    if kept := note_revoked(StateDir(common.state_dir).path, {key_id}):
        err.print(kept, soft_wrap=True, markup=False)
    if common.as_json:
        print(json_text({"id": key_id, "revoked": True, "revoked_at_ms": at_ms}))
        return
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    out.print(
        f"{shown_prefix(key_id)} is revoked since {at:%H:%M:%S}.{at_ms % 1000:03} UTC. Gateways refuse it as "
        "soon as they hear of it, within a second.",
        soft_wrap=True,
    )


def require_keys(common: BrokerOptions, *, required: bool) -> None:
    """Close the API, or open it."""
    rules = on_accounts(common, lambda client: client.require_keys(required=required))
    if common.as_json:
        print(json_text({"keys_required": rules.keys_required}))
    elif required:
        out.print("Requests without a key are refused.")
    else:
        out.print("Requests without a key are taken, as tenant `default` (unless RYZ_API_KEYS is set).")


def _found(register: AccountRegister, key: str) -> KeyRecord:
    record = register.key(key_id_in(key))
    if record is None:
        raise AccountNotFound(f"there is no key {key_id_in(key)[:64]}", reason="account_not_found")
    return record


def _print(record: KeyRecord, common: BrokerOptions) -> None:
    if common.as_json:
        print(json_text(key_form(record)))
    else:
        out.print(view.lines(view.key_lines(record)))


def _print_made(made: MadeKey, common: BrokerOptions, more: str = "") -> None:
    if common.as_json:
        print(json_text(key_form(made.record) | {"key": made.text, "closed_api": made.closed_api}))
        return
    out.print(made.text, soft_wrap=True)
    if more:
        err.print(more, soft_wrap=True)
    err.print("This is the only time that the key is shown.", style="dim")
    if made.closed_api:
        err.print(
            "It is the first key: from now on the API refuses requests without one. `ryz keys require off` "
            "takes them again.",
            soft_wrap=True,
        )
