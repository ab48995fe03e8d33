"""Usage at a gateway: what reaches the ledger, and the routes that show sums. The leader is a whole one."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from services.gateway.admission.caller import BackgroundCall
from services.gateway.answering.intake.new_calls import in_background
from shared import codec, subjects
from shared.bus import Message
from shared.messages import GenerateRequest, UsagePage, UsageQuery, UsageSum
from tests.kits.gateway.gateway import Gateway, running_gateway
from tests.kits.gateway.with_leader import gateway_with_leader
from tests.kits.memory_bus import MemoryBus
from tests.kits.tenants.ledger import MemoryLedger
from tests.kits.waiting import until
from tests.kits.worker.leader import null_engine

SUMS = [
    UsageSum(day="2026-11-01", tenant="acme", model="demo", requests=2, prompt_tokens=10, money=5),
    UsageSum(day="2026-11-02", tenant="acme", model="demo", requests=1, prompt_tokens=4, money=2),
    UsageSum(day="2026-11-02", tenant="other", model="=1+1", requests=1, completion_tokens=7),
]
CHAT = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 6}


@contextlib.asynccontextmanager
async def ledger_of(gateway: Gateway) -> AsyncIterator[MemoryLedger]:
    bus = MemoryBus(gateway.broker)
    ledger = MemoryLedger(bus)
    await ledger.start()
    yield ledger
    await bus.close()


async def test_answers_are_in_the_ledger_with_what_they_say_of_themselves() -> None:
    async with (
        gateway_with_leader() as gateway,
        ledger_of(gateway) as ledger,
        httpx.AsyncClient(base_url=gateway.url, timeout=30) as http,
    ):
        said = (await http.post("/v1/chat/completions", json=CHAT)).json()["usage"]
        several = await http.post(
            "/v1/completions", json={"model": "demo", "prompt": ["a", "b"], "max_tokens": 3}
        )
        embedded = await http.post("/v1/embeddings", json={"model": "demo", "input": "Hello"})
        await until(lambda: len(ledger.records) == 4)
        first, *prompts, last = ledger.records
        assert (first.prompt_tokens, first.completion_tokens) == (said["prompt_tokens"], 6)
        assert (
            sum(one.completion_tokens for one in prompts) == several.json()["usage"]["completion_tokens"] == 6
        )
        assert last.embedded_tokens == embedded.json()["usage"]["prompt_tokens"]
        assert len({one.request_id for one in ledger.records}) == 4


async def test_a_repeated_call_counts_once() -> None:
    async with (
        gateway_with_leader() as gateway,
        ledger_of(gateway) as ledger,
        httpx.AsyncClient(base_url=gateway.url, timeout=30, headers={"Idempotency-Key": "k"}) as http,
    ):
        for _ in range(3):
            assert (await http.post("/v1/chat/completions", json=CHAT)).status_code == 200
        await until(lambda: bool(ledger.records))
        assert len({one.request_id for one in ledger.records}) == 1


async def test_a_cut_stream_has_the_leaders_counts() -> None:
    async with (
        gateway_with_leader(leader={"engine": null_engine(delay_s=0.005)}) as gateway,
        ledger_of(gateway) as ledger,
        httpx.AsyncClient(base_url=gateway.url, timeout=30) as http,
    ):
        body = CHAT | {"max_tokens": 1000, "stream": True}
        async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: ") and '"content":' in line:
                    break
        await until(lambda: len(ledger.records) == 2)
        seen, whole = sorted(ledger.records, key=lambda one: one.completion_tokens)
        assert seen.request_id == whole.request_id
        assert seen.prompt_tokens == whole.prompt_tokens > 0


def test_a_line_of_a_batch_has_one_id_however_often_it_runs() -> None:
    requests = [GenerateRequest(request_id=name, model="demo", prompt="a") for name in ("r-1", "r-2")]
    runs = [in_background(requests, BackgroundCall("batch_req_1")) for _ in range(2)]
    assert [[one.usage_id for one in run] for run in runs] == [["batch_req_1", "batch_req_1-1"]] * 2


async def sums_behind(gateway: Gateway, asked: list[UsageQuery]) -> None:
    """A service that has `SUMS`, one on each page."""
    bus = gateway.fleet.bus

    async def answer(message: Message) -> None:
        query = codec.decode(message.data, UsageQuery)
        asked.append(query)
        found = [one for one in SUMS if not query.tenant or one.tenant == query.tenant]
        at = int(query.cursor or 0)
        cursor = str(at + 1) if at + 1 < len(found) else ""
        page = UsagePage(sums=found[at : at + 1], currency="EUR", cursor=cursor)
        await bus.publish(message.reply, codec.encode(page))

    await bus.subscribe(subjects.USAGE, answer)


async def test_a_tenant_sees_its_own_and_an_operator_all() -> None:
    keys: dict[str, Any] = {"api_keys": "key-of-acme:acme", "admin_keys": "adm-11111111"}
    asked: list[UsageQuery] = []
    async with (
        running_gateway(**keys) as gateway,
        httpx.AsyncClient(base_url=gateway.url, timeout=30) as http,
    ):
        await sums_behind(gateway, asked)

        async def get(path: str, key: str, **query: Any) -> httpx.Response:
            return await http.get(path, params=query, headers={"Authorization": f"Bearer {key}"})

        own = (await get("/v1/usage", "key-of-acme", by="model", tenant="other")).json()
        assert own["currency"] == "EUR"
        assert [(one["model"], one["requests"], one["money"]) for one in own["data"]] == [("demo", 3, 7)]
        assert {query.tenant for query in asked} == {"acme"}
        everything = (await get("/v1/manage/usage", "adm-11111111", by="tenant,day")).json()["data"]
        assert [(one["day"], one["tenant"]) for one in everything] == [
            ("2026-11-01", "acme"), ("2026-11-02", "acme"), ("2026-11-02", "other")
        ]  # fmt: skip
        csv = await get("/v1/manage/usage", "adm-11111111", by="model", format="csv")
        assert csv.headers["content-type"] == "text/csv; charset=utf-8"
        lines = csv.text.splitlines()
        assert lines[0].startswith("model,requests,prompt_tokens")
        assert [line.split(",")[0] for line in lines[1:]] == ["'=1+1", "demo"]
        assert (await get("/v1/manage/usage", "key-of-acme")).status_code in {401, 403}
        assert (await get("/v1/usage", "none")).status_code == 401
        for wrong in ({"by": "colour"}, {"since": "today"}, {"format": "xml"}, {"colour": "red"}):
            refused = await get("/v1/usage", "key-of-acme", **wrong)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, next(iter(wrong)))


async def test_without_the_service_the_sums_are_unavailable() -> None:
    async with running_gateway() as gateway, httpx.AsyncClient(base_url=gateway.url, timeout=30) as http:
        assert (await http.get("/v1/usage")).status_code == 503
        await asyncio.sleep(0)


@pytest.mark.parametrize("by", ["", ","])
async def test_an_empty_grouping_is_refused(by: str) -> None:
    async with running_gateway() as gateway, httpx.AsyncClient(base_url=gateway.url, timeout=30) as http:
        assert (await http.get("/v1/usage", params={"by": by})).status_code == 400
