"""What `ryz tenants` and `ryz keys` read from their options, and how they show records."""

import time
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from cli.console import CommandError
from cli.keys.first_admin_key import admin_key_words
from cli.keys.key_options import KeyOptions
from cli.stack.state import StateDir
from cli.tenants import view
from cli.tenants.tenant_options import TenantOptions
from cli.tenants.values import LimitOptions, expiry, num_bytes, seconds
from shared.accounts.forms import key_form, keys_form, limits_form, price_form, prices_form, tenant_form
from shared.accounts.register import AccountRegister
from shared.messages import (
    AccountRecord,
    AccountRules,
    AuditEntry,
    KeyRecord,
    Limits,
    PriceRecord,
    Scopes,
    StoredAccount,
    TenantRecord,
)

ACME = TenantRecord(
    tenant="acme",
    limits=Limits(running=3, money_per_day=12_500_000),
    weight=2.0,
    note="the first",
    created_s=90,
)
KEY = KeyRecord(
    key_id="4f7a0m2k9d1c",
    tenant="acme",
    digest=bytes(32),
    label="ci",
    scopes=Scopes(models=["demo"], apis=["chat"], read_only=True),
    limits=Limits(requests_per_minute=60),
    created_s=1_790_000_000,
    expires_s=1_800_000_000,
)
PRICE = PriceRecord(model="demo", prompt=150_000, completion=600_000)


def register() -> AccountRegister:
    made = AccountRegister()
    records: list[AccountRecord] = [ACME, KEY, PRICE, AccountRules(keys_required=True, currency="EUR")]
    made.replace_all([StoredAccount(record=one, revision=n) for n, one in enumerate(records, 1)], 4)
    return made


def shown(what: RenderableType, width: int = 240) -> str:
    console = Console(width=width, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(what)
    return capture.get()


@pytest.mark.parametrize(
    ("text", "meant"), [("30d", 2_592_000), ("12h", 43_200), ("90s", 90), ("2w", 1_209_600), ("5 M", 300)]
)
def test_durations(text: str, meant: int) -> None:
    assert seconds("--overlap", text) == meant


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1.5h", "1y", "9999999999d"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(CommandError, match="--overlap takes a duration") as refused:
        seconds("--overlap", text)
    assert refused.value.exit_code == 2


def test_when_a_key_ends() -> None:
    assert expiry("--expires", "never") == 0
    before = int(time.time())
    assert before + 3600 <= expiry("--expires", "1h") <= time.time() + 3600


@pytest.mark.parametrize(
    ("text", "meant"),
    [("500", 500), ("500MB", 500_000_000), ("2GiB", 2**31), ("1.5 kib", 1536), ("1TB", 10**12)],
)
def test_sizes(text: str, meant: int) -> None:
    assert num_bytes("--kv-bytes", text) == meant


def test_what_is_no_size() -> None:
    with pytest.raises(CommandError, match="bytes such as"):
        num_bytes("--kv-bytes", "much")


def test_limits_that_are_not_given_stay() -> None:
    given = LimitOptions(tokens_per_day=5, money_per_day=0.000001, kv_bytes="1KiB", running=0)
    assert given.applied_to(ACME.limits) == Limits(tokens_per_day=5, money_per_day=1, kv_bytes=1024)
    assert LimitOptions().applied_to(ACME.limits) == ACME.limits


def test_every_limit_has_an_option_and_a_form() -> None:
    assert (
        set(LimitOptions.__dataclass_fields__) == set(Limits.__struct_fields__) == set(limits_form(Limits()))
    )


def test_what_is_not_given_of_a_tenant_stays() -> None:
    assert TenantOptions().applied_to(ACME) == ACME
    changed = TenantOptions(model=["a", "b"], weight=3.0, note="").applied_to(ACME)
    assert (changed.models, changed.weight, changed.note, changed.limits) == (
        ["a", "b"],
        3.0,
        "",
        ACME.limits,
    )
    assert TenantOptions(any_model=True).applied_to(changed).models == []


def test_what_is_not_given_of_a_key_stays() -> None:
    assert KeyOptions().applied_to(KEY) == KEY
    changed = KeyOptions(any_model=True, read_only=False, expires="never").applied_to(KEY)
    assert changed.scopes == Scopes(apis=["chat"])
    assert (changed.expires_s, changed.label) == (0, "ci")
    with pytest.raises(CommandError, match="'images' is none of chat"):
        KeyOptions(api=["images"]).applied_to(KEY)


def test_forms_have_no_digest() -> None:
    form = key_form(KEY)
    assert form["prefix"] == "sk-ryz-4f7a0m2k9d1c"
    assert form["scopes"] == {"models": ["demo"], "apis": ["chat"], "admin": False, "read_only": True}
    assert "digest" not in form
    assert tenant_form(ACME)["limits"]["money_per_day"] == 12.5
    assert price_form(PRICE) == {"model": "demo", "prompt": 0.15, "cached": 0.0, "completion": 0.6}
    assert keys_form(register())["keys"] == [form]
    assert keys_form(register(), "other")["keys"] == []
    assert prices_form(register())["currency"] == "EUR"


def test_tables() -> None:
    tenants = shown(view.tenant_listing(register()))
    assert "acme" in tenants
    assert "running 3, money per day 12.5" in tenants
    keys = shown(view.key_listing([KEY], now_s=1_799_999_999))
    assert "sk-ryz-4f7a0m2k9d1c" in keys
    assert "reading; models demo; apis chat" in keys
    assert "expires 2027-01-15 08:00" in keys
    assert "expired" in shown(view.key_listing([KEY], now_s=1_800_000_000))
    assert "EUR for a million tokens" in shown(view.price_listing([PRICE], "EUR"))
    entry = AuditEntry(number=7, at_ms=90_000, actor="local", action="put", subject="tenant.acme")
    assert "1970-01-01 00:01:30  local" in shown(view.entry_listing([entry]))
    for listing in (tenants, keys):
        assert max(map(len, listing.splitlines())) < 150, "no wider than what is in it"


def test_lines() -> None:
    lines = shown(view.lines(view.tenant_lines(ACME, [KEY])))
    assert "sk-ryz-4f7a0m2k9d1c" in lines
    assert "as the settings say" in lines
    assert "everything, as admin" in shown(
        view.lines(view.key_lines(KeyRecord(key_id="0" * 12, digest=bytes(32), scopes=Scopes(admin=True))))
    )


def test_the_first_admin_key_is_printed_where_nothing_keeps_it(tmp_path: Path) -> None:
    path = StateDir(tmp_path).path
    assert "sk-ryz-x" in admin_key_words(path, "sk-ryz-x", shown=True)
    assert "sk-ryz-x" not in admin_key_words(path, "sk-ryz-x", shown=False)
    assert str(path / "admin.key") in admin_key_words(path, "sk-ryz-x", shown=False)
