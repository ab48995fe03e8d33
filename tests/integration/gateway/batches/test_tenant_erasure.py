"""`POST /v1/manage/tenants/{tenant}/erase`: batches, files, sessions and responses go, with a receipt."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
from typer.testing import CliRunner

from cli.tenants.erase import erase as erase_command
from shared import subjects
from shared.bus.endpoint import call
from shared.errors import Unavailable
from shared.messages import AuditPage, AuditQuery, SessionCommit, SessionCommitted, UsagePage, UsageQuery
from shared.messages.tenants.accounts import ERASED_TENANTS
from tests.kits.gateway.batch_stack import BatchGateway, batch_gateway, chat_lines, null_leader
from tests.kits.kvstate.service import own_redis, record, running
from tests.kits.servers import NatsServer
from tests.kits.waiting import PATIENCE_S, until

KEYS = "acme-1234:acme,other-123:other"
TENANTS = ("acme", "other", ERASED_TENANTS)
ADMIN = {"Authorization": "Bearer adm-11111111"}


@pytest.fixture
async def stack(broker: NatsServer, tmp_path: Path) -> AsyncIterator[tuple[BatchGateway, BatchGateway]]:
    """Two gateways with the same files, a leader, and a KV state service."""
    files = tmp_path / "files"
    settings: dict[str, Any] = {"api_keys": KEYS, "admin_keys": "adm-11111111"}
    async with (
        own_redis(tmp_path) as (redis, _),
        running(broker.url, redis.url),
        null_leader(broker.url),
        batch_gateway(broker.url, files, **settings) as first,
        batch_gateway(broker.url, files, **settings | {"instance_id": "gw2"}) as second,
    ):
        yield first, second


async def run_batch(gateway: BatchGateway, key: str, count: int, *, wait: bool = True) -> str:
    client = gateway.client(key)
    file = await client.files.create(file=("in.jsonl", chat_lines(count)), purpose="batch")
    batch = await client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )

    async def ended() -> bool:
        return bool((await client.batches.retrieve(batch.id)).status == "completed")

    if wait:
        await until(ended)
    return str(batch.id)


async def erase(gateway: BatchGateway, tenant: str, query: str = "", **headers: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as http:
        path = f"/v1/manage/tenants/{tenant}/erase{query}"
        return await http.post(path, **{"headers": ADMIN} | headers)


async def test_a_tenant_is_erased_with_a_receipt(stack: tuple[BatchGateway, BatchGateway]) -> None:
    first, second = stack
    await run_batch(first, "acme-1234", 6)
    other = await run_batch(first, "other-123", 2)
    await run_batch(first, "acme-1234", 400, wait=False)  # it has not ended when the erasure begins
    commit = SessionCommit(records=[record("acme", "s1"), record("other", "s2")])
    await call(first.bus, subjects.SESSION_COMMIT, commit, SessionCommitted, timeout_s=PATIENCE_S)
    assert len((await second.client("acme-1234").batches.list()).data) == 2

    async def requests_of(tenant: str) -> int:
        try:
            usage = await call(first.bus, subjects.USAGE, UsageQuery(), UsagePage, timeout_s=PATIENCE_S)
        except Unavailable:
            return 0  # its streams are being made
        return sum(one.requests for one in usage.sums if one.tenant == tenant)

    async with asyncio.timeout(PATIENCE_S):  # until usage is added up
        while await requests_of("acme") < 6 or await requests_of("other") < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    receipt = (await erase(first, "acme")).json()
    assert receipt["complete"], receipt
    assert (receipt["object"], receipt["tenant"], receipt["batches"]) == ("tenant.erasure", "acme", 2)
    assert receipt["files"] >= 3, "two inputs, and the output of the first batch"
    assert receipt["sessions"] == 1
    usage = await call(first.bus, subjects.USAGE, UsageQuery(), UsagePage, timeout_s=PATIENCE_S)
    requests = {name: sum(one.requests for one in usage.sums if one.tenant == name) for name in TENANTS}
    assert requests["acme"] == 0
    assert requests["other"] == 2
    assert requests[ERASED_TENANTS] >= 6, "those of the batch that ran, and of the other what had begun"
    assert receipt["usage_sums"] == 1
    assert receipt["usage_records"] >= 6
    for gateway in (first, second):
        client = gateway.client("acme-1234")
        assert (await client.batches.list()).data == []
        assert (await client.files.list()).data == []
        kept = gateway.client("other-123")
        assert [batch.id for batch in (await kept.batches.list()).data] == [other]
        assert len((await kept.files.list()).data) == 2
    again = (await erase(second, "acme")).json()
    nothing = ("batches", "files", "sessions", "usage_sums", "usage_records")
    assert (again["complete"], [again[name] for name in nothing]) == (True, [0] * 5)


async def test_what_is_refused(stack: tuple[BatchGateway, BatchGateway]) -> None:
    gateway, _ = stack
    assert (await erase(gateway, "acme", headers={"Authorization": "Bearer acme-1234"})).status_code == 401
    wrong = await erase(gateway, "a.b")
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "tenant")
    for query in ("?within=0", "?within=x", "?within=nan", "?within=601"):
        assert (await erase(gateway, "acme", query)).json()["error"]["param"] == "within", query


async def test_without_the_kv_state_service_nothing_is_erased(broker: NatsServer, tmp_path: Path) -> None:
    async with (
        null_leader(broker.url),
        batch_gateway(broker.url, tmp_path / "files", admin_keys="adm-11111111") as gateway,
    ):
        await gateway.client().files.create(file=("a", b"x"), purpose="user_data")
        answer = await asyncio.wait_for(erase(gateway, "default"), 60)
        assert answer.status_code == 503, answer.text
        assert len((await gateway.client().files.list()).data) == 1, "it does not stand in the audit log"


async def test_the_command_prints_the_receipt(stack: tuple[BatchGateway, BatchGateway]) -> None:
    gateway, _ = stack
    await run_batch(gateway, "acme-1234", 3)
    app = typer.Typer()
    app.command("erase")(erase_command)

    async def ryz(*args: str) -> tuple[int, str]:
        options = ["--url", gateway.url, "--api-key", "adm-11111111"]
        done: Any = await asyncio.to_thread(CliRunner().invoke, app, [*args, *options])
        return done.exit_code, done.output + (str(done.exception) if done.exception else "")

    code, text = await ryz("acme")
    assert code != 0
    assert "--yes" in text
    assert len((await gateway.client("acme-1234").batches.list()).data) == 1
    code, text = await ryz("acme", "--yes", "--json")
    assert code == 0, text
    receipt = json.loads(text)
    assert (receipt["complete"], receipt["batches"], receipt["files"]) == (True, 1, 2)
    code, text = await ryz("acme", "--yes")
    assert (code, text.startswith("Tenant acme: erased 0 sessions")) == (0, True)


async def test_it_is_in_the_audit_log_once(stack: tuple[BatchGateway, BatchGateway]) -> None:
    gateway, _ = stack
    assert (await erase(gateway, "acme")).json()["complete"]
    page = await call(gateway.bus, subjects.AUDIT, AuditQuery(), AuditPage, timeout_s=PATIENCE_S)
    assert [(one.actor, one.action, one.subject) for one in page.entries] == [
        ("admin", "erase", "tenant.acme")
    ]
