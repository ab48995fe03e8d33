"""Stored keys, their scopes, their ends and wrong ones mean the same over every transport."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from services.gateway.admission.identity.guesses import MAX_WRONG
from shared.accounts.keys import NewKey, new_key
from shared.messages import KeyRecord, TenantRecord
from tests.kits.gateway.gateway import WORDS, Gateway, running_gateway
from tests.kits.gateway.identity.account_service import AccountService
from tests.kits.gateway.transports import TRANSPORTS
from tests.kits.servers import free_port
from tests.kits.waiting import PATIENCE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")
each_transport = pytest.mark.parametrize("transport", TRANSPORTS)
ANSWER = "".join(WORDS)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with running_gateway(grpc_port=free_port(), model_aliases="gpt=demo") as running:
        await running.fleet.accounts.require_keys()
        yield running


@asynccontextmanager
async def key_of(gateway: Gateway, tenant: str = "ada", **scopes: object) -> AsyncIterator[NewKey]:
    """A key that the gateway knows, for a while."""
    accounts: AccountService = gateway.fleet.accounts
    key = await accounts.add_key(tenant, **scopes)  # type: ignore[arg-type]
    try:
        yield key
    finally:
        if f"key.{key.key_id}" in accounts:
            await accounts.revoke(key)


async def ask(gateway: Gateway, transport: str, key: NewKey | None, model: str = "demo") -> str:
    """The code of the error, or the answer."""
    found = await TRANSPORTS[transport](gateway, key=key.text if key else "", model=model)
    return found.code or found.text


async def until_told(gateway: Gateway, transport: str, key: NewKey | None, told: str) -> None:
    """Asks until that is the answer, or the code of the error."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if await ask(gateway, transport, key) == told:
                return
            await asyncio.sleep(0.02)


@each_transport
async def test_a_stored_key_reaches_the_leader_with_its_tenant(gateway: Gateway, transport: str) -> None:
    async with key_of(gateway, "ada") as key:
        assert await ask(gateway, transport, key) == ANSWER
        request = gateway.fleet.requests[-1]
        assert (request.tenant, request.key_id, request.weight) == ("ada", key.key_id, 1.0)
        await gateway.fleet.accounts.put(TenantRecord(tenant="ada", weight=2.5))
        assert await ask(gateway, transport, key) == ANSWER
        assert gateway.fleet.requests[-1].weight == 2.5
        await gateway.fleet.accounts.remove("tenant.ada")
        assert await ask(gateway, transport, None) == "missing_api_key"
        assert await ask(gateway, transport, new_key()) == "invalid_api_key"
    await gateway.wait_idle()


@each_transport
async def test_a_key_ends_when_it_is_revoked(gateway: Gateway, transport: str) -> None:
    async with key_of(gateway) as key:
        assert await ask(gateway, transport, key) == ANSWER
        await gateway.fleet.accounts.revoke(key)
        assert await ask(gateway, transport, key) == "invalid_api_key"


@each_transport
async def test_a_key_ends_at_its_time(gateway: Gateway, transport: str) -> None:
    async with key_of(gateway, expires_s=1) as key:
        assert await ask(gateway, transport, key) == "key_expired"


@each_transport
async def test_a_suspended_tenant_is_refused(gateway: Gateway, transport: str) -> None:
    async with key_of(gateway, "eve") as key:
        await gateway.fleet.accounts.suspend("eve")
        assert await ask(gateway, transport, key) == "tenant_suspended"
        await gateway.fleet.accounts.suspend("eve", suspended=False)
        assert await ask(gateway, transport, key) == ANSWER


@each_transport
async def test_a_key_of_some_models_has_no_others_also_by_another_name(
    gateway: Gateway, transport: str
) -> None:
    async with key_of(gateway, models=["demo"]) as key:
        for name in ("demo", "gpt"):
            assert await ask(gateway, transport, key, name) == ANSWER
        assert gateway.fleet.requests[-1].model == "demo"
    async with key_of(gateway, models=["a/b"]) as key:
        for name in ("demo", "gpt", "nothing-like-it"):
            answer = await TRANSPORTS[transport](gateway, key=key.text, model=name)
            assert (answer.code, answer.message) == (
                "model_not_found", f"no group serves model {name!r}; see /v1/models"
            )  # fmt: skip


@each_transport
async def test_a_tenant_of_some_models_has_no_others(gateway: Gateway, transport: str) -> None:
    await gateway.fleet.accounts.put(TenantRecord(tenant="kim", models=["a/b"]))
    async with key_of(gateway, "kim", models=["demo"]) as key:
        assert await ask(gateway, transport, key) == "model_not_found"


@each_transport
async def test_a_key_of_other_apis_is_refused(gateway: Gateway, transport: str) -> None:
    async with key_of(gateway, apis=["embeddings", "sessions"]) as key:
        answer = await TRANSPORTS[transport](gateway, key=key.text)
        assert answer.code == "api_not_allowed"
        assert "'chat'; it may use: embeddings, sessions" in answer.message
    async with key_of(gateway, apis=["chat"]) as key:
        assert await ask(gateway, transport, key) == ANSWER


@each_transport
async def test_a_key_that_may_read_generates_nothing(gateway: Gateway, transport: str) -> None:
    async with key_of(gateway, read_only=True) as key:
        assert await ask(gateway, transport, key) == "read_only_key"


@each_transport
async def test_an_admin_key_is_valid_for_the_rest(gateway: Gateway, transport: str) -> None:
    async with key_of(gateway, admin=True) as key:
        assert await ask(gateway, transport, key) == ANSWER


@each_transport
@pytest.mark.parametrize("by", ["removal", "expiry", "suspension"])
async def test_answers_under_way_end_with_their_key_if_that_is_asked_for(
    gateway: Gateway, transport: str, by: str
) -> None:
    accounts = gateway.fleet.accounts
    async with key_of(gateway, "zoe") as key, key_of(gateway, "moe") as other:
        gateway.fleet.requests.clear()
        asked = [asyncio.create_task(ask(gateway, transport, one, "stuck")) for one in (key, other)]
        await gateway.fleet.wait_requests(2)
        mine = next(one for one in gateway.fleet.requests if one.key_id == key.key_id)
        if by == "removal":
            await accounts.revoke(key, end_streams=True)
        elif by == "expiry":
            record = KeyRecord(key_id=key.key_id, tenant="zoe", digest=key.digest, expires_s=1)
            await accounts.put(record, end_streams=True)
        else:
            await accounts.suspend("zoe", end_streams=True)
        assert await asked[0] == ("tenant_suspended" if by == "suspension" else "key_revoked")
        await gateway.fleet.cancel_of(mine.request_id).wait()
        assert not asked[1].done(), "answers of other keys go on"
        await accounts.revoke(other, end_streams=True)
        assert await asked[1] == "key_revoked"
    await accounts.suspend("zoe", suspended=False)
    await gateway.wait_idle()


@each_transport
async def test_without_end_streams_answers_under_way_go_on(gateway: Gateway, transport: str) -> None:
    async with key_of(gateway) as key:
        gateway.fleet.requests.clear()
        asked = asyncio.create_task(TRANSPORTS[transport](gateway, key=key.text, model="waits"))
        await gateway.fleet.wait_requests(1)
        await gateway.fleet.accounts.revoke(key)
        await until_told(gateway, "http", key, "invalid_api_key")
        gateway.fleet.go_on.set()
        assert (await asked).text == ANSWER
        gateway.fleet.go_on.clear()


@each_transport
async def test_an_address_that_guesses_is_slowed(transport: str) -> None:
    async with running_gateway(grpc_port=free_port(), api_keys="secret-key-of-ada:ada") as gateway:
        asked, code = 0, ""  # the limit gives one back each three seconds
        while code != "rate_limited":
            found = await TRANSPORTS[transport](gateway, key=new_key().text)
            code, asked = found.code, asked + found.asked
            assert code in {"invalid_api_key", "rate_limited"}
        found = await TRANSPORTS[transport](gateway, key="secret-key-of-ada")
        assert found.code == "rate_limited"
        assert "from this address were not known" in found.message
        wrong, slowed = (
            gateway.metric("ryz_gateway_refused_keys_total", reason=reason)
            for reason in ("invalid_api_key", "slowed")
        )
        assert wrong >= MAX_WRONG
        assert slowed >= 2
        assert wrong + slowed == asked + found.asked


@each_transport
async def test_a_gateway_that_has_read_no_accounts_serves_keys_of_its_settings_only(transport: str) -> None:
    async with running_gateway(
        grpc_port=free_port(), api_keys="secret-key-of-ada:ada", accounts_away=True
    ) as gateway:
        known = await TRANSPORTS[transport](gateway, key="secret-key-of-ada")
        assert known.text == ANSWER
        assert await ask(gateway, transport, new_key()) == "unavailable"
        assert await ask(gateway, transport, None) == "missing_api_key"
    async with running_gateway(grpc_port=free_port(), accounts_away=True) as gateway:
        assert await ask(gateway, transport, None) == "unavailable"
        gateway.fleet.accounts.away = False
        await until_told(gateway, transport, None, ANSWER)
