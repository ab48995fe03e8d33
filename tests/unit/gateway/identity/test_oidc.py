"""Tokens of an identity provider, with one on this machine."""

import asyncio
import base64
import hmac
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import jwt
import pytest

from services.gateway.admission.errors.refusals import HttpRefusal
from services.gateway.admission.identity.identities import Identities
from services.gateway.admission.identity.oidc_claims import parse_claims
from services.gateway.admission.identity.oidc_keys import (
    AGAIN_S,
    KEEP_S,
    SigningKeys,
    check_issuer,
    fetch_keys,
    read_keys,
)
from services.gateway.admission.identity.oidc_tokens import MAX_BYTES, OidcTokens
from shared.errors import Unavailable
from tests.kits.gateway.identity.identities import Accounts
from tests.kits.gateway.identity.oidc_issuer import AUDIENCE, Issuer
from tests.kits.waiting import until

CLAIMS = "tenant=tenant"


class Provider:
    """An issuer with a gateway's view of it, and the time."""

    def __init__(self, issuer: Issuer, claims: str = CLAIMS) -> None:
        self.issuer = issuer
        self.now_s = 0.0
        self.accounts = Accounts(epoch_s=time.time())
        self.keys = SigningKeys(issuer.url, fetch_keys, lambda: self.now_s)
        tokens = OidcTokens(issuer.url, AUDIENCE, parse_claims(claims), self.keys)
        self.identities: Identities = self.accounts.identities(tokens=tokens)

    def find(self, token: str) -> Any:
        return self.identities.find(f"Bearer {token}".encode())

    def refused(self, token: str, why: str = "") -> tuple[int, str]:
        with pytest.raises(HttpRefusal, match=why or None) as refusal:
            self.find(token)
        return refusal.value.status, refusal.value.code


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as running:
        running.add_key("k1")
        yield running


@pytest.fixture
async def provider(issuer: Issuer) -> Provider:
    made = Provider(issuer)
    await made.keys.refresh()
    return made


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
async def test_a_token_names_its_tenant(issuer: Issuer, algorithm: str) -> None:
    issuer.add_key("k2", algorithm)
    provider = Provider(issuer)
    await provider.keys.refresh()
    token = issuer.token("k2")
    found = provider.find(token)
    assert (found.tenant, found.key, found.admin) == ("ada", None, False)
    assert provider.find(token) is found, "it is checked once"
    assert not provider.identities.is_open
    with pytest.raises(HttpRefusal, match="send your API key"):
        provider.identities.find(b"")


async def test_stored_keys_are_valid_beside_tokens(provider: Provider) -> None:
    key = provider.accounts.add_key("birch")
    assert provider.find(key.text).tenant == "birch"
    provider.accounts.suspend("ada")
    assert provider.refused(provider.issuer.token("k1")) == (403, "tenant_suspended")


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"aud": "other"}, "for another audience"),
        ({"aud": None}, "claims are wrong"),
        ({"iss": "http://127.0.0.1:1"}, "of another issuer"),
        ({"iss": None}, "claims are wrong"),
        ({"exp": None}, "claims are wrong"),
        ({"nbf": time.time() + 10**7}, "not valid yet"),
    ],
)
async def test_wrong_claims_are_refused(provider: Provider, claims: dict[str, Any], why: str) -> None:
    assert provider.refused(provider.issuer.token("k1", **claims), why) == (401, "invalid_token")


async def test_a_token_ends_half_a_minute_after_its_time(provider: Provider) -> None:
    now_s = time.time()
    assert provider.find(provider.issuer.token("k1", exp=now_s - 20, nbf=now_s + 20)).tenant == "ada"
    assert provider.refused(provider.issuer.token("k1", exp=now_s - 40)) == (401, "key_expired")
    token = provider.issuer.token("k1", exp=now_s + 10)
    held = provider.find(token)
    provider.accounts.epoch_s = now_s + 45
    assert provider.refused(token) == (401, "key_expired")
    with pytest.raises(HttpRefusal, match="has expired"):
        provider.identities.renewed(held)


def _base64(part: dict[str, Any]) -> bytes:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")


async def test_none_and_shared_secrets_are_refused(provider: Provider) -> None:
    claims = provider.issuer.claims()
    unsigned = jwt.encode(claims, "", "none", headers={"kid": "k1"})
    # the public key, which everyone has, taken for the secret of a signature
    signed = b".".join(_base64(part) for part in ({"alg": "HS256", "kid": "k1"}, claims))
    signature = hmac.digest(provider.issuer.public_text("k1"), signed, "sha256")
    shared = (signed + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()
    for token in (unsigned, shared):
        assert provider.refused(token, "signed by none of RS256, ES256, EdDSA") == (401, "invalid_token")


async def test_a_key_is_used_with_its_own_algorithm_only(issuer: Issuer, provider: Provider) -> None:
    issuer.add_key("rsa", "RS256", shown=False)
    forged = issuer.token("rsa", headers={"kid": "k1"})  # the id of a key of another kind
    assert provider.refused(forged, "no such key") == (401, "invalid_token")
    issuer.add_key("own", "ES256", shown=False)
    forged = issuer.token("own", headers={"kid": "k1"})
    assert provider.refused(forged, "signature or its claims") == (401, "invalid_token")


async def test_what_is_no_token_is_refused(provider: Provider) -> None:
    token = provider.issuer.token("k1")
    head, claims, signature = token.split(".")
    other = base64.urlsafe_b64encode(json.dumps(provider.issuer.claims(tenant="eve")).encode())
    for wrong in (
        f"{head}.{other.decode().rstrip('=')}.{signature}",
        f"{head}.{claims}.",
        f"x.{claims}.{signature}",
        jwt.encode(provider.issuer.claims(), b"s" * 64, "HS512"),
        f"{head}.{'A' * MAX_BYTES}.{signature}",
    ):
        assert provider.refused(wrong) == (401, "invalid_token")
    assert provider.refused("a.b") == (401, "invalid_api_key")


async def test_a_new_key_of_the_issuer_is_fetched_at_most_once_a_minute(provider: Provider) -> None:
    issuer = provider.issuer
    issuer.add_key("k2")
    issuer.remove_key("k1")
    old, new = issuer.token("k1"), issuer.token("k2")
    assert provider.find(old).tenant == "ada"
    assert provider.refused(new, "no such key")[0] == 401, "the keys were fetched a moment ago"
    provider.now_s = AGAIN_S + 1
    with pytest.raises(Unavailable) as waits:
        provider.find(new)
    assert (waits.value.data["reason"], waits.value.retry_after_s) == ("oidc_keys", 1.0)
    keeping = asyncio.create_task(provider.keys.keep())
    await until(lambda: issuer.fetched == 2 and provider.keys.version == 2)
    assert provider.find(new).tenant == "ada"
    assert provider.refused(old, "no such key")[0] == 401, "also one that was valid before"
    keeping.cancel()


async def test_while_the_issuer_is_away_its_keys_are_valid_for_an_hour(provider: Provider) -> None:
    issuer, token = provider.issuer, provider.issuer.token("k1")
    issuer.away = True
    provider.now_s = KEEP_S
    await provider.keys.refresh()
    assert provider.find(token).tenant == "ada"
    provider.now_s = KEEP_S + 1
    with pytest.raises(Unavailable, match="cannot be fetched"):
        provider.find(issuer.token("k1", jti="another"))
    issuer.away = False
    await provider.keys.refresh()
    assert provider.find(token).tenant == "ada"


async def test_an_issuer_that_was_away_at_the_start_is_asked_again(issuer: Issuer) -> None:
    issuer.away = True
    provider = Provider(issuer)
    await provider.keys.refresh()
    with pytest.raises(Unavailable) as away:
        provider.find(issuer.token("k1"))
    assert away.value.data["reason"] == "oidc_away"
    issuer.away, provider.now_s = False, AGAIN_S
    keeping = asyncio.create_task(provider.keys.keep())
    await until(lambda: provider.keys.version == 1)
    assert provider.find(issuer.token("k1")).tenant == "ada"
    keeping.cancel()


async def test_fetching_keys_does_not_hold_up_the_loop() -> None:
    release = threading.Event()

    def slow(_: str) -> dict[str, Any]:
        assert release.wait(20)
        return {}

    keys = SigningKeys("http://127.0.0.1:1", slow)
    fetching = asyncio.create_task(keys.refresh())
    for _ in range(5):
        await asyncio.sleep(0.001)
    assert not fetching.done()
    release.set()
    await fetching


def test_claims_become_scopes() -> None:
    names = parse_claims(
        "tenant=org, models=llm.models, apis=apis, admin=groups:admins, read_only=role:reader"
    )
    claims = {"org": "ada", "llm": {"models": ["m", "n"]}, "apis": "chat tokens other", "groups": ["admins"]}
    scopes = names.scopes_of(claims)
    assert names.tenant_of(claims) == "ada"
    assert (scopes.models, scopes.apis, scopes.admin, scopes.read_only) == (
        ["m", "n"], ["chat", "tokens"], True, False
    )  # fmt: skip
    assert names.scopes_of(claims | {"role": "reader", "groups": []}).read_only
    without: list[dict[str, Any]] = [{"llm": {}}, {"apis": "other"}, {"apis": []}, {"llm": {"models": [1]}}]
    for wrong in without:
        with pytest.raises(HttpRefusal) as refusal:
            names.scopes_of(claims | wrong)
        assert (refusal.value.status, refusal.value.code) == (403, "token_claims")
    for tenant in ("", "a b", 7, None):
        with pytest.raises(HttpRefusal, match="'org'"):
            names.tenant_of({"org": tenant})


@pytest.mark.parametrize("text", ["tenants=a", "models", "admin=groups", "admin=:x", "=x"])
def test_wrong_settings_of_claims(text: str) -> None:
    with pytest.raises(ValueError, match="entry 1"):
        parse_claims(text)


@pytest.mark.parametrize("issuer", ["http://id.example", "ftp://127.0.0.1", "id.example", "https://", ""])
def test_an_issuer_is_asked_by_https(issuer: str) -> None:
    with pytest.raises(ValueError, match="https"):
        check_issuer(issuer)


def test_keys_of_a_kind_that_is_not_used_are_left_out(issuer: Issuer) -> None:
    good = issuer.jwks()["keys"][0]
    others = [
        good | {"kid": "enc", "use": "enc"},
        good | {"kid": "es384", "alg": "ES384"},
        {"kid": "hs", "kty": "oct", "k": "c2VjcmV0"},
        good | {"kid": 7},
        {**good, "kid": "broken", "x": "??"},
        "text",
    ]
    assert set(read_keys({"keys": [good, *others]})) == {"k1"}
