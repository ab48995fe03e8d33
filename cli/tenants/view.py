"""Shows tenants, keys, prices and the audit log to people."""

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from rich.table import Table
from rich.text import Text

from shared.accounts.forms import PRICES, limits_form, price_form
from shared.accounts.keys import shown_prefix
from shared.accounts.register import AccountRegister
from shared.messages import AuditEntry, BusUserTerms, KeyRecord, Limits, PriceRecord, TenantRecord


def table(*columns: str, right: Iterable[str] = ()) -> Table:
    """Return an empty table as those of other commands."""
    made = Table(box=None, padding=(0, 2, 0, 0))
    numbers = set(right)
    for name in columns:
        side = "right" if name in numbers else "left"
        made.add_column(name, justify=side, header_style="dim", overflow="fold")  # type: ignore[arg-type]
    return made


def tenant_listing(register: AccountRegister) -> Table:
    """Return a table with a row for each tenant."""
    keys = [key.tenant for key in register.keys_of()]
    made = table("tenant", "keys", "weight", "state", "limits", "note", right=("keys", "weight"))
    for one in register.tenants():
        cells = (
            one.tenant,
            str(keys.count(one.tenant)),
            f"{one.weight:g}",
            "suspended" if one.suspended else "active",
            limit_words(one.limits),
            one.note,
        )
        made.add_row(*map(Text, cells))
    return made


def key_listing(keys: Sequence[KeyRecord], now_s: float | None = None) -> Table:
    """Return a table with a row for each key."""
    now_s = time.time() if now_s is None else now_s
    made = table("key", "kind", "tenant", "label", "may use", "limits", "made", "ends")
    for one in keys:
        cells = (
            shown_prefix(one.key_id),
            kind_words(one),
            one.tenant,
            one.label,
            scope_words(one),
            limit_words(one.limits),
            when(one.created_s),
            expiry_words(one.expires_s, now_s),
        )
        made.add_row(*map(Text, cells))
    return made


def price_listing(prices: Sequence[PriceRecord], currency: str) -> Table:
    """Return a table with a row for each price."""
    per = f"{currency} for a million tokens".strip()
    made = table("model", *PRICES, "", right=PRICES)
    for one in prices:
        form = price_form(one)
        made.add_row(Text(one.model), *(f"{form[name]:g}" for name in PRICES), Text(per))
    return made


def entry_listing(entries: Sequence[AuditEntry]) -> Table:
    """Return a table with a row for each entry."""
    made = table("number", "time", "who", "what", "of", "since", right=("number",))
    for one in entries:
        at = f"{datetime.fromtimestamp(one.at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
        made.add_row(*map(Text, (str(one.number), at, one.actor, one.action, one.subject, one.detail)))
    return made


def tenant_lines(record: TenantRecord, keys: Sequence[KeyRecord]) -> list[tuple[str, str]]:
    """Return what is known of a tenant."""
    return [
        ("tenant", record.tenant),
        ("state", "suspended" if record.suspended else "active"),
        ("weight", f"{record.weight:g}"),
        ("models", ", ".join(record.models) or "all"),
        ("limits", limit_words(record.limits)),
        ("time zone", record.time_zone),
        ("sessions kept", _days(record.session_days)),
        ("responses kept", _days(record.response_days)),
        ("files kept", _days(record.file_days, "as they came")),
        ("batches kept", _days(record.batch_days)),
        ("usage kept", _days(record.usage_days)),
        ("records of requests kept", _days(record.record_days)),
        ("note", record.note or "-"),
        ("made", when(record.created_s)),
        ("keys", ", ".join(shown_prefix(key.key_id) for key in keys) or "none"),
    ]


def key_lines(record: KeyRecord, now_s: float | None = None) -> list[tuple[str, str]]:
    """Return what is known of a key."""
    return [
        ("key", shown_prefix(record.key_id)),
        ("kind", kind_words(record)),
        ("tenant", record.tenant),
        ("label", record.label or "-"),
        ("may use", scope_words(record)),
        ("limits", limit_words(record.limits)),
        ("made", when(record.created_s)),
        ("ends", expiry_words(record.expires_s, time.time() if now_s is None else now_s)),
    ]


def lines(pairs: Sequence[tuple[str, str]]) -> Table:
    """Return names and values in two columns."""
    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(style="dim")
    made.add_column(overflow="fold")
    for name, value in pairs:
        made.add_row(Text(name), Text(value))
    return made


def limit_words(limits: Limits) -> str:
    """Return the limits that there are."""
    found = [f"{name.replace('_', ' ')} {value:g}" if isinstance(value, float) else
             f"{name.replace('_', ' ')} {value}"
             for name, value in limits_form(limits).items() if value]  # fmt: skip
    return ", ".join(found) or "none"


def kind_words(record: KeyRecord) -> str:
    """Return whether it is a key, or which bus user."""
    user = record.bus_user
    if user is None:
        return "key"
    return f"bus user {user.user}{', suspended' if user.suspended else ''}"


def scope_words(record: KeyRecord) -> str:
    """Return what a key may be used for."""
    if record.bus_user is not None:
        return _bus_words(record.bus_user)
    scopes = record.scopes
    if scopes.admin:
        return "everything, as admin" if not scopes.read_only else "reading everything, as admin"
    parts = ["reading"] if scopes.read_only else []
    if scopes.models:
        parts.append(f"models {', '.join(scopes.models)}")
    if scopes.apis:
        parts.append(f"apis {', '.join(scopes.apis)}")
    return "; ".join(parts) or "all that its tenant may"


def when(at_s: float) -> str:
    """Return a time, in UTC."""
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M}" if at_s else "-"


def expiry_words(expires_s: int, now_s: float) -> str:
    """Return when a key ends."""
    if not expires_s:
        return "never"
    return f"{'expired' if expires_s <= now_s else 'expires'} {when(expires_s)}"


def _bus_words(terms: BusUserTerms) -> str:
    limits = [
        f"{name} {limit:g}"
        for name, limit in (("max-rps", terms.max_rps), ("max-priority", terms.max_priority))
        if limit is not None
    ]
    return ", ".join(["the bus", *limits])


def _days(days: int, otherwise: str = "as the settings say") -> str:
    return f"{days} days" if days else otherwise
