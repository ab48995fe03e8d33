"""Who makes a call: keys of the settings, stored keys, anyone while the API is open."""

import hmac
import math
from contextlib import suppress

import pytest

from services.gateway.admission.errors.refusals import HttpRefusal, answer_for
from services.gateway.admission.identity.account_copy import KEEP_S, SURE_S
from services.gateway.admission.identity.guesses import MAX_WRONG
from services.gateway.admission.identity.identities import Identities
from services.gateway.admission.identity.identity import ANYONE, Identity
from shared.accounts.keys import NewKey, new_key
from shared.errors import RateLimited, Unavailable
from shared.messages import KeyRecord
from tests.kits.gateway.identity.identities import Accounts

HERE, THERE = ("192.0.2.1", 5), ("192.0.2.2", 5)
OWN = {"secret-key-1": "acme"}


def bearer(key: NewKey | str) -> bytes:
    return b"Bearer " + (key if isinstance(key, str) else key.text).encode()


def refused(found: Identities, key: NewKey | str, client: object = None) -> tuple[int, str]:
    given = bearer(key) if key else b""
    with pytest.raises(HttpRefusal) as refusal:
        found.find(given, client)  # type: ignore[arg-type]
    return refusal.value.status, refusal.value.code


def other_secret(key: NewKey) -> str:
    """A key with the id of another one."""
    return key.text[:20] + new_key().text[20:]


def test_without_any_key_everyone_is_of_the_default_tenant() -> None:
    found = Accounts().identities()
    assert found.find(b"") is found.find(b"Bearer none") is ANYONE
    assert (ANYONE.tenant, ANYONE.key_id, ANYONE.admin) == ("default", "", False)
    assert found.is_open


def test_a_key_of_the_settings_and_a_stored_one_are_valid_beside_each_other() -> None:
    accounts = Accounts()
    found, key = accounts.identities(OWN), accounts.add_key("birch", models=["m"])
    assert found.find(b"Bearer secret-key-1") == Identity("acme")
    stored = found.find(b"bearer " + key.text.encode())
    assert (stored.tenant, stored.key_id, stored.scopes.models) == ("birch", key.key_id, ["m"])
    for wrong in (new_key(), other_secret(key), "nope", key.text[:-1]):
        assert refused(found, wrong) == (401, "invalid_api_key")
    assert refused(found, "") == (401, "missing_api_key")
    assert found.has_several_tenants


def test_the_first_key_closes_the_api_and_the_last_one_that_goes_does_not_open_it() -> None:
    accounts = Accounts()
    found, admin = accounts.identities(), accounts.add_key("ops", admin=True)
    is_open = [found.is_open]  # an admin key alone does not close the API
    assert found.find(bearer(admin)).admin
    assert not found.has_several_tenants
    key = accounts.add_key("ada")
    is_open.append(found.is_open)  # the rule decides; the service sets it before it stores the first key
    assert is_open == [True, True]
    accounts.require_keys()
    assert not found.is_open
    accounts.revoke(key)
    assert not found.is_open
    assert refused(found, "") == (401, "missing_api_key")
    assert refused(found, key) == (401, "invalid_api_key")


def test_a_key_in_the_form_of_stored_ones_is_refused_if_it_is_none_also_by_an_open_gateway() -> None:
    found = Accounts().identities()
    assert refused(found, new_key()) == (401, "invalid_api_key")


def test_a_request_without_a_valid_key_is_not_to_be_sent_again_as_it_is() -> None:
    found = Accounts().identities(OWN)
    for authorization in (b"", b"Bearer sk-wrong-key"):
        with pytest.raises(HttpRefusal) as refusal:
            found.find(authorization)
        headers = dict(answer_for(refusal.value).headers)
        assert headers[b"www-authenticate"] == b"Bearer"
        assert headers[b"x-should-retry"] == b"false"


def test_a_key_ends_at_its_time() -> None:
    accounts = Accounts()
    found, key = accounts.identities(), accounts.add_key(expires_s=1_000_100)
    held = found.find(bearer(key))
    accounts.epoch_s = 1_000_100.0
    assert refused(found, key) == (401, "key_expired")
    with pytest.raises(HttpRefusal, match="expired"):
        found.renewed(held)


@pytest.mark.parametrize("own", [True, False])
def test_a_suspended_tenant_is_refused_whatever_the_key(own: bool) -> None:
    accounts = Accounts()
    found, key = accounts.identities(OWN), accounts.add_key("acme")
    accounts.suspend("acme")
    assert refused(found, "secret-key-1" if own else key) == (403, "tenant_suspended")
    with pytest.raises(HttpRefusal, match="'acme' is suspended"):
        found.named("acme")


def test_a_connection_that_stays_open_is_refused_once_its_key_is_gone() -> None:
    accounts = Accounts()
    found, key = accounts.identities(), accounts.add_key("ada")
    held = found.find(bearer(key))
    assert found.renewed(held) == held
    accounts.put(KeyRecord(key_id=key.key_id, tenant="ada", digest=bytes(32)))  # another key of that id
    with pytest.raises(HttpRefusal) as refusal:
        found.renewed(held)
    assert (refusal.value.status, refusal.value.code) == (401, "key_revoked")
    accounts.revoke(key)
    with pytest.raises(HttpRefusal, match="was revoked"):
        found.renewed(held)


def test_a_connection_without_a_key_is_refused_once_keys_are_required() -> None:
    accounts = Accounts()
    found = accounts.identities()
    assert found.renewed(ANYONE) is ANYONE
    accounts.require_keys()
    with pytest.raises(HttpRefusal, match="needs a key now"):
        found.renewed(ANYONE)


def test_scopes_of_a_key_that_changes_hold_at_once_for_open_connections_and_batches() -> None:
    accounts = Accounts()
    found, key = accounts.identities(), accounts.add_key("ada")
    held = found.find(bearer(key))
    record = accounts.register.key(key.key_id)
    assert record is not None
    limited = KeyRecord(
        key_id=key.key_id, tenant="ada", digest=record.digest, scopes=record.scopes.__class__(read_only=True)
    )
    accounts.put(limited)
    assert found.renewed(held).scopes.read_only
    assert found.of_key(key.key_id, "ada", record.scopes).scopes.read_only


class TestAway:
    def test_a_gateway_that_has_read_nothing_is_not_open(self) -> None:
        accounts = Accounts(read_at=-math.inf)
        accounts.register.is_current = False
        found = accounts.identities()
        assert (found.is_open, found.is_known) == (False, False)
        for given in (b"", b"Bearer none", bearer(new_key())):
            with pytest.raises(Unavailable) as away:
                found.find(given)
            assert (away.value.data["reason"], away.value.retry_after_s) == ("accounts_away", 5.0)

    def test_keys_of_its_settings_are_valid_meanwhile_and_others_are_not_unknown(self) -> None:
        accounts = Accounts(read_at=-math.inf)
        accounts.register.is_current = False
        found = accounts.identities(OWN)
        assert found.find(b"Bearer secret-key-1").tenant == "acme"
        assert refused(found, "") == (401, "missing_api_key")
        assert refused(found, "wrong-key") == (401, "invalid_api_key")
        with pytest.raises(Unavailable, match="does not answer"):
            found.find(bearer(new_key()))

    def test_what_is_known_goes_on_for_an_hour_and_nothing_new_is_let_in(self) -> None:
        accounts = Accounts()
        found, key = accounts.identities(OWN), accounts.add_key()
        for age_s in (SURE_S, KEEP_S):
            accounts.now_s = age_s
            assert found.find(bearer(key)).key_id == key.key_id
        with pytest.raises(Unavailable):
            found.find(bearer(new_key()))  # it may have been made since
        held = found.find(bearer(key))
        accounts.now_s = KEEP_S + 1
        with pytest.raises(Unavailable):
            found.find(bearer(key))
        with pytest.raises(Unavailable):
            found.renewed(held)
        assert found.find(b"Bearer secret-key-1").tenant == "acme"

    def test_an_open_gateway_stays_open(self) -> None:
        accounts = Accounts()
        accounts.now_s = 10 * KEEP_S
        assert accounts.identities().find(b"") is ANYONE

    def test_news_that_were_missed_make_a_missing_key_uncertain(self) -> None:
        accounts = Accounts()
        found, key = accounts.identities(OWN), accounts.add_key()
        accounts.register.is_current = False
        assert found.find(bearer(key)).key_id == key.key_id
        with pytest.raises(Unavailable):
            found.find(bearer(new_key()))


class TestGuesses:
    def test_an_address_with_many_wrong_keys_waits_also_with_a_right_one(self) -> None:
        accounts = Accounts()
        found, key = accounts.identities(OWN), accounts.add_key()
        for number in range(MAX_WRONG):
            assert refused(found, f"wrong-key-{number}", HERE)[1] == "invalid_api_key"
        for given in (b"Bearer secret-key-1", bearer(key), b"Bearer wrong-key"):
            with pytest.raises(RateLimited) as slowed:
                found.find(given, HERE)
            assert slowed.value.data["reason"] == "key_guesses"
            assert 0 < (slowed.value.retry_after_s or 0) <= 3.0
        assert found.find(b"Bearer secret-key-1", THERE).tenant == "acme"
        accounts.now_s = 3.0
        assert found.find(b"Bearer secret-key-1", HERE).tenant == "acme"
        assert accounts.refused == ["invalid_api_key"] * MAX_WRONG + ["slowed"] * 3

    def test_a_key_that_was_valid_from_there_before_goes_on(self) -> None:
        accounts = Accounts()
        found, key = accounts.identities(OWN), accounts.add_key()
        found.find(bearer(key), HERE)
        for number in range(MAX_WRONG):
            refused(found, f"wrong-key-{number}", HERE)
        assert found.find(bearer(key), HERE).key_id == key.key_id
        with pytest.raises(RateLimited):
            found.find(b"Bearer secret-key-1", HERE)
        accounts.revoke(key)
        assert refused(found, key, HERE) == (401, "invalid_api_key")
        with pytest.raises(RateLimited):
            found.find(bearer(key), HERE)

    def test_a_missing_key_an_expired_one_and_a_second_check_are_no_guesses(self) -> None:
        accounts = Accounts()
        found, key = accounts.identities(OWN), accounts.add_key(expires_s=1)
        for _ in range(2 * MAX_WRONG):
            assert refused(found, "", HERE)[1] == "missing_api_key"
            assert refused(found, key, HERE)[1] == "key_expired"
            assert refused(found, "wrong-key")[1] == "invalid_api_key"
        assert found.find(b"Bearer secret-key-1", HERE).tenant == "acme"

    def test_callers_that_cannot_be_told_apart_are_counted_and_not_slowed(self) -> None:
        accounts = Accounts()
        found = accounts.identities(OWN)
        for _ in range(2 * MAX_WRONG):
            refused(found, "wrong-key", ("", 0))
        assert found.find(b"Bearer secret-key-1", ("", 0)).tenant == "acme"
        assert len(accounts.refused) == 2 * MAX_WRONG


@pytest.mark.parametrize("kind", ["right", "wrong secret", "unknown id"])
def test_digests_are_compared_in_constant_time_and_as_often_for_an_unknown_id(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts = Accounts()
    found, key = accounts.identities(), accounts.add_key()
    given = {"right": key.text, "wrong secret": other_secret(key), "unknown id": new_key().text}[kind]
    compared: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def compare(known: bytes, sent: bytes) -> bool:
        compared.append((known, sent))
        return real(known, sent)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    with suppress(HttpRefusal):
        found.find(bearer(given))
    assert [(len(known), len(sent)) for known, sent in compared] == [(32, 32)]
