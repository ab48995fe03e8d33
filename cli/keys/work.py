"""Does what `ryz keys` asks for, and prints it."""

import re
import time
from datetime import UTC, datetime

from msgspec.structs import replace

from cli.command_groups import BrokerOptions
from cli.console import err, fail, out
from cli.keys.bus_user_options import BusUserOptions
from cli.keys.kept_admin_key import note_revoked, note_rotated
from cli.keys.key_options import KeyOptions
from cli.keys.users_work import print_made_user, with_broker
from cli.stack.state import StateDir
from cli.tenants import view
from cli.tenants.asking import on_accounts
from cli.tenants.values import LimitOptions, seconds
from cli.visible import json_text
from shared.accounts.forms import key_form, keys_form, made_form
from shared.accounts.keys import key_id_in, shown_prefix
from shared.client.calls.accounts_client import OVERLAP_S, AccountsClient, MadeKey
from shared.messages import BusUserTerms, KeyRecord, Scopes
from shared.messages.base import DEFAULT_TENANT, ID_PATTERN

_ID_LENGTH = 12
_OF_DEFAULT = (
    f"It is of the tenant `{DEFAULT_TENANT}`, to which requests without a key belong as well; for another "
    "give `--tenant NAME`."
)


def create_key(
    tenant: str,
    options: KeyOptions,
    limits: LimitOptions,
    of_user: BusUserOptions,
    common: BrokerOptions,
    *,
    admin: bool,
    bus_user: str,
) -> None:
    """Make a key or a bus user, and print it once."""
    if admin and tenant:
        fail("An admin's key manages all tenants: leave out `--tenant`.", 2)
    if bus_user and not re.fullmatch(ID_PATTERN, bus_user):
        fail(f"--bus-user: {bus_user[:64]!r} is no name: 1 to 64 letters, digits, - and _.", 2)
    user = BusUserTerms(user=bus_user, password_hash="") if bus_user else None
    wanted = KeyRecord(
        key_id="0" * _ID_LENGTH,
        digest=bytes(32),
        tenant=tenant or DEFAULT_TENANT,
        scopes=Scopes(admin=admin),
        bus_user=user,
    )
    wanted = of_user.applied_to(options.applied_to(wanted))
    wanted = replace(wanted, limits=limits.applied_to(wanted.limits))
    made = on_accounts(common, lambda client: with_broker(client, common, client.create_key(wanted)))
    _print_made(made, common)
    if not (tenant or admin or common.as_json):
        err.print(_OF_DEFAULT, soft_wrap=True)


def rotate_key(key: str, overlap: str, common: BrokerOptions) -> None:
    """Make a key in the place of another."""
    key_id, overlap_s = key_id_in(key), seconds("--overlap", overlap) if overlap else None
    made = on_accounts(common, lambda client: with_broker(client, common, client.rotate_key(key, overlap_s)))
    if made.record.bus_user is not None:
        _print_made(made, common)
        return
    overlap = overlap or "1h"
    overlap_s = OVERLAP_S if overlap_s is None else overlap_s
    ends = f"{shown_prefix(key_id)} ends in {overlap}" if overlap_s else f"{shown_prefix(key_id)} has ended"
    kept = note_rotated(StateDir(common.state_dir).path, key_id, made.text)
    _print_made(made, common, f"{ends}.")
    if kept:
        err.print(kept, soft_wrap=True, markup=False)


def change_key(
    key: str, options: KeyOptions, limits: LimitOptions, of_user: BusUserOptions, common: BrokerOptions
) -> None:
    """Change what was given of a key."""

    async def work(client: AccountsClient) -> KeyRecord:
        record, revision = await client.find_key(key)
        wanted = of_user.applied_to(options.applied_to(record))
        wanted = replace(wanted, limits=limits.applied_to(record.limits))
        stored = await client.put(wanted, expected=revision)
        assert isinstance(stored.record, KeyRecord)
        return stored.record

    _print(on_accounts(common, lambda client: with_broker(client, common, work(client))), common)


def show_key(key: str, common: BrokerOptions) -> None:
    """Show a key."""

    async def work(client: AccountsClient) -> KeyRecord:
        return (await client.find_key(key))[0]

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

    async def work(client: AccountsClient) -> tuple[KeyRecord, int]:
        record, _ = await client.find_key(key)
        await client.remove(record.name, end_streams=end_streams)
        return record, time.time_ns() // 1_000_000

    record, at_ms = on_accounts(common, lambda client: with_broker(client, common, work(client)))
    if kept := note_revoked(StateDir(common.state_dir).path, {record.key_id}):
        err.print(kept, soft_wrap=True, markup=False)
    if common.as_json:
        print(json_text({"id": record.key_id, "revoked": True, "revoked_at_ms": at_ms}))
        return
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    user = record.bus_user
    what, by = (shown_prefix(record.key_id), "Gateways") if user is None else (
        f"The bus user {user.user}", "Routers and gateways")  # fmt: skip
    out.print(
        f"{what} is revoked since {at:%H:%M:%S}.{at_ms % 1000:03} UTC. {by} refuse it as "
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


def _print(record: KeyRecord, common: BrokerOptions) -> None:
    if common.as_json:
        print(json_text(key_form(record)))
    else:
        out.print(view.lines(view.key_lines(record)))


def _print_made(made: MadeKey, common: BrokerOptions, more: str = "") -> None:
    if made.record.bus_user is not None:
        print_made_user(made, common)
        return
    if common.as_json:
        print(json_text(made_form(made.record, made.text, closed_api=made.closed_api)))
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
