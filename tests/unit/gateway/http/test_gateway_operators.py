"""Who may manage models: holders of a key for operators, or without such keys callers on this machine."""

from collections.abc import Callable
from pathlib import Path

import pytest

from services.gateway.admission.auth import parse_admin_keys
from services.gateway.admission.caller import Caller
from services.gateway.admission.errors.refusals import HttpRefusal
from services.gateway.admission.operators import OPERATORS, Operators
from services.gateway.settings import GatewaySettings
from shared.errors import Unavailable
from tests.kits.gateway.identity.identities import Accounts

PATH = "/v1/manage/models"
LOCAL = ("127.0.0.1", 5000)


class Nowhere:
    """A connection and a delivery of a caller in a test."""

    gone = False
    on_gone: Callable[[], None] | None = None
    unsent = 0
    waits_since = 0.0
    started = False


def caller(headers: dict[str, str] | None = None, client: tuple[str, int] | None = LOCAL) -> Caller:
    given = {name.replace("_", "-").encode(): value.encode() for name, value in (headers or {}).items()}
    return Caller(PATH, given, Nowhere(), Nowhere(), [], "r", "r", client=client)


def operators(
    admin_keys: str = "",
    *,
    api_keys: dict[str, str] | None = None,
    proxies: str = "",
    accounts: Accounts | None = None,
) -> Operators:
    settings = GatewaySettings(http_trusted_proxies=proxies)
    return Operators(parse_admin_keys(admin_keys), (accounts or Accounts()).identities(api_keys), settings)


def refused(found: Operators, who: Caller) -> tuple[int, str]:
    with pytest.raises(HttpRefusal) as refusal:
        found.tenant_of(who)
    assert "RYZ_ADMIN_KEYS" in refusal.value.message
    return refusal.value.status, refusal.value.code


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
def test_callers_on_this_machine_need_no_key(address: str) -> None:
    assert operators().tenant_of(caller(client=(address, 1))) == "default"


@pytest.mark.parametrize("address", ["10.0.0.7", "::ffff:10.0.0.7", "fd00::7", "", "testclient"])
def test_others_need_one(address: str) -> None:
    assert refused(operators(), caller(client=(address, 1))) == (403, "admin_key_required")
    assert refused(operators(), caller(client=None)) == (403, "admin_key_required")


@pytest.mark.parametrize("name", ["x_forwarded_for", "forwarded", "via", "x_real_ip", "x_forwarded_host"])
def test_a_proxy_on_this_machine_is_not_its_user(name: str) -> None:
    assert refused(operators(), caller({name: "127.0.0.1"})) == (403, "admin_key_required")


def test_a_trusted_proxy_is_not_a_user_either() -> None:
    assert refused(operators(proxies="127.0.0.1"), caller()) == (403, "admin_key_required")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://chat.example", "sec_fetch_site": "cross-site", "host": "127.0.0.1:8000"},
        {"origin": "null", "host": "127.0.0.1:8000"},
        {"sec_fetch_site": "same-site", "host": "127.0.0.1:8000"},
    ],
)
def test_a_page_of_another_site_in_a_browser_here_may_not(headers: dict[str, str]) -> None:
    assert refused(operators(), caller(headers)) == (403, "origin_not_allowed")


def test_our_own_page_may() -> None:
    own = {"origin": "http://127.0.0.1:8000", "sec_fetch_site": "same-origin", "host": "127.0.0.1:8000"}
    assert operators().tenant_of(caller(own)) == "default"


def test_where_the_api_has_keys_a_caller_here_brings_one() -> None:
    found = operators(api_keys={"sk-tenant-1": "acme"})
    assert found.tenant_of(caller({"authorization": "Bearer sk-tenant-1"})) == "acme"
    with pytest.raises(HttpRefusal) as refusal:
        found.tenant_of(caller())
    assert refusal.value.status == 401


def test_a_key_for_operators_is_needed_from_everywhere_once_there_are_any() -> None:
    found = operators("adm-11111111, adm-22222222", api_keys={"sk-tenant-1": "acme"})
    for key in ("adm-11111111", "adm-22222222"):
        assert found.tenant_of(caller({"authorization": f"Bearer {key}"}, ("10.0.0.7", 1))) == OPERATORS
    wrong: list[dict[str, str]] = [{}, {"authorization": "Bearer sk-tenant-1"}, {"x_api_key": "adm-11111111"}]
    for headers in wrong:
        assert refused(found, caller(headers)) == (401, "admin_key_required")


def test_keys_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("adm-11111111\n\nadm-22222222\n")
    assert parse_admin_keys(f"@{file}") == {"adm-11111111", "adm-22222222"}
    file.write_text("adm-11111111\nshort\n")
    with pytest.raises(ValueError, match=r"keys, key 2 needs at least 8") as wrong:
        parse_admin_keys(f"@{file}")
    assert "short" not in str(wrong.value)
    file.write_text("\n")
    with pytest.raises(ValueError, match="has no key"):
        parse_admin_keys(f"@{file}")
    with pytest.raises(ValueError, match="cannot be read"):
        parse_admin_keys(f"@{tmp_path}/none")


def bearer(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


def test_a_stored_admin_key_manages_from_anywhere() -> None:
    accounts = Accounts()
    admin, key = accounts.add_key("ops", admin=True), accounts.add_key("ada")
    for admin_keys in ("", "adm-11111111"):
        found = operators(admin_keys, accounts=accounts)
        who = caller(bearer(admin.text), ("10.0.0.7", 1))
        assert (found.tenant_of(who), who.key_id) == ("ops", admin.key_id)
        with pytest.raises(HttpRefusal, match="use an admin key") as refusal:
            found.tenant_of(caller(bearer(key.text)))
        assert (refusal.value.status, refusal.value.code) == (403, "admin_key_required")
    accounts.revoke(admin)
    with pytest.raises(HttpRefusal, match="not known"):
        operators(accounts=accounts).tenant_of(caller(bearer(admin.text)))


def test_where_keys_are_required_a_caller_here_needs_an_admin_key() -> None:
    accounts = Accounts()
    found = operators(accounts=accounts)
    assert found.tenant_of(caller()) == "default"
    accounts.require_keys()
    assert refused(found, caller()) == (401, "admin_key_required")
    assert found.tenant_of(caller(bearer(accounts.add_key("ops", admin=True).text))) == "ops"


def test_a_caller_here_waits_until_it_is_known_whether_keys_are_required() -> None:
    accounts = Accounts(read_at=float("-inf"))
    with pytest.raises(Unavailable, match="does not answer"):
        operators(accounts=accounts).tenant_of(caller())
