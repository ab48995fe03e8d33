"""For whom a request counts: the tenant of its key or, without keys, the address."""

from typing import Any

import pytest

from services.gateway.admission.auth import parse_keys
from services.gateway.admission.parties import ADDRESS_SHARE, UNSHARED, Parties
from services.gateway.settings import GatewaySettings
from shared.errors import Overloaded, RateLimited
from tests.kits.gateway.identity.identities import Accounts, identities

ONE, OTHER = ("192.0.2.1", 5), ("192.0.2.2", 5)


def parties(keys: str = "", **settings: Any) -> Parties:
    return Parties(identities(parse_keys(keys)), GatewaySettings.model_validate(settings))


def test_without_keys_an_address_is_a_party() -> None:
    found = parties()
    assert (
        found.party_of("default", ONE) == found.party_of("default", ("192.0.2.1", 9)) == "address 192.0.2.1"
    )
    assert found.party_of("default", OTHER) != found.party_of("default", ONE)
    assert found.share == ADDRESS_SHARE
    assert found.party_of("default", ("::ffff:192.0.2.1", 5)) == found.party_of("default", ONE)
    # one network of IPv6 is one client: it has as many addresses as it likes
    assert found.party_of("default", ("2001:db8::1", 5)) == found.party_of("default", ("2001:db8::2", 5))
    assert found.party_of("default", ("2001:db8:0:1::1", 5)) != found.party_of("default", ("2001:db8::1", 5))


def test_with_keys_the_tenant_is_the_party() -> None:
    several, alone = parties("secret-a:acme,secret-b:birch", tenant_share=0.25), parties("secret-a:acme")
    assert several.party_of("acme", ONE) == several.party_of("acme", OTHER) == "acme"
    assert (several.share, alone.share) == (0.25, 1.0)
    assert several.address_party(ONE) == "address 192.0.2.1"  # before a key has come


@pytest.mark.parametrize("client", [None, ("", 0), ("10.0.0.7", 1), ("::ffff:10.0.0.7", 1)])
def test_callers_of_a_trusted_proxy_and_those_without_an_address_have_no_share(client: Any) -> None:
    found = parties(http_trusted_proxies="10.0.0.0/8")
    assert found.party_of("default", client) == UNSHARED
    quota = found.quota(16, what="requests under way", reason="gateway_concurrency")
    quota.take_units(UNSHARED, 16)
    with pytest.raises(Overloaded):
        quota.take_units(UNSHARED)


def test_a_refusal_names_the_address_and_the_setting_for_proxies() -> None:
    found = parties()
    quota = found.quota(16, what="requests under way", reason="gateway_concurrency")
    party = found.party_of("default", ONE)
    quota.take_units(party, 14)
    with pytest.raises(RateLimited, match=r"'address 192.0.2.1' has 14 .* 14 of its 16 \(RYZ_HTTP_TRUSTED"):
        quota.take_units(party)
    quota.take_units(found.party_of("default", OTHER), 2)


def test_shares_follow_the_keys_while_the_gateway_runs() -> None:
    accounts = Accounts()
    found = Parties(accounts.identities(), GatewaySettings(tenant_share=0.25))
    quota = found.quota(16, what="requests under way", reason="gateway_concurrency")
    bodies = found.body_quota()

    def shares(tenant: str) -> tuple[str, float, int, int]:
        return found.party_of(tenant, ONE), found.share, quota.party_limit, bodies.party_limit

    assert shares("default") == ("address 192.0.2.1", ADDRESS_SHARE, 14, 256)
    accounts.require_keys()  # the service does it with the first key
    key = accounts.add_key("ada")
    assert shares("ada") == ("ada", 1.0, 16, 1024)
    accounts.add_key("bob")
    assert shares("ada") == ("ada", 0.25, 4, 256)
    accounts.revoke(key)
    assert shares("bob") == ("bob", 1.0, 16, 1024)


def test_what_was_taken_for_an_address_is_given_back_for_it_after_keys_came() -> None:
    accounts = Accounts()
    found = Parties(accounts.identities(), GatewaySettings())
    quota = found.quota(16, what="requests under way", reason="gateway_concurrency")
    party = found.party_of("default", ONE)
    quota.take_units(party, 14)
    accounts.require_keys()
    accounts.add_key("ada")
    accounts.add_key("bob")
    assert found.party_of("ada", ONE) == "ada"
    quota.free_units(party, 14)
    assert (quota.taken, quota.held_by(party)) == (0, 0)
