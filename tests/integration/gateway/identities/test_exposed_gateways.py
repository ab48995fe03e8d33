"""A gateway that other machines reach, while no setting asks for keys: only stored keys may let it start."""

import asyncio

import httpx
import pytest

from shared.messages import AccountRules
from tests.kits.gateway.identity.account_service import accounts_on
from tests.kits.gateway.process import gateway_process
from tests.kits.servers import free_port
from tests.kits.waiting import PATIENCE_S

MODELS = "/v1/models"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"http_host": "0.0.0.0"}, "RYZ_HTTP_HOST=0.0.0.0 without API keys"),
        ({"http_published": "0.0.0.0"}, "RYZ_HTTP_PUBLISHED=0.0.0.0 without API keys"),
        ({"grpc_port": "9", "grpc_host": "::"}, "RYZ_GRPC_HOST=:: without API keys"),
    ],
)
async def test_it_does_not_start_where_no_key_is_needed(
    nats_url: str, settings: dict[str, str], named: str
) -> None:
    async with (
        accounts_on(nats_url),
        gateway_process(nats_url=nats_url, http_port=str(free_port()), **settings) as process,
    ):
        async with asyncio.timeout(PATIENCE_S):
            _, log = await process.communicate()
    assert process.returncode == 2
    assert named in log.decode()
    assert "ryz keys create" in log.decode()
    assert "Traceback" not in log.decode()


async def answer_of(http: httpx.AsyncClient, key: str = "") -> tuple[int, str]:
    answer = await http.get(MODELS, headers={"authorization": f"Bearer {key}"} if key else {})
    return answer.status_code, answer.headers.get("x-ryz-reason", "")


async def until_answers(http: httpx.AsyncClient, wanted: tuple[int, str], key: str = "") -> None:
    found: object = None
    async with asyncio.timeout(PATIENCE_S):
        while found != wanted:
            try:
                found = await answer_of(http, key)
            except httpx.TransportError as error:
                found = error
            assert found[0] != 200 if isinstance(found, tuple) else True, "it was open"
            await asyncio.sleep(0.1)


async def test_it_is_closed_until_the_keys_are_read_and_stays_closed_without_one(nats_url: str) -> None:
    port = free_port()
    async with (
        gateway_process(nats_url=nats_url, http_port=str(port), http_host="0.0.0.0", client_wait_s="0.3"),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as http,
    ):
        await until_answers(http, (503, "accounts_away"))
        async with accounts_on(nats_url) as accounts:
            await accounts.require_keys()
            made = await accounts.add_key()
            await until_answers(http, (401, "missing_api_key"))
            assert await answer_of(http, made.text) == (503, "no_responders"), (
                "the key is known, a router is not"
            )
            await accounts.put(AccountRules(keys_required=False))
            await until_answers(http, (401, "missing_api_key"))
            assert "other machines reach this API" in (await http.get(MODELS)).text


async def test_it_starts_with_stored_keys(nats_url: str) -> None:
    port = free_port()
    async with accounts_on(nats_url) as accounts:
        await accounts.require_keys()
        made = await accounts.add_key()
        async with (
            gateway_process(nats_url=nats_url, http_port=str(port), http_host="0.0.0.0", client_wait_s="0.3"),
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as http,
        ):
            await until_answers(http, (401, "missing_api_key"))
            assert await answer_of(http, made.text) == (503, "no_responders")
