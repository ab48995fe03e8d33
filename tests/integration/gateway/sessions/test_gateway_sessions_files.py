"""Export and import of sessions over real HTTP: round trips, limits, and fairness between tenants."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from services.gateway.resources.sessions import exported_file
from shared import subjects
from shared.codec import pack_tokens
from shared.messages import ModelCard
from tests.kits.gateway.gateway import Gateway, running_gateway
from tests.kits.gateway.raw_http import raw_connection
from tests.kits.gateway.session_records import TENANT, TYPED, at, error_of, record, store
from tests.kits.gateway.session_services import SessionServices, with_turn
from tests.kits.waiting import PATIENCE_S, until

pytestmark = pytest.mark.asyncio(loop_scope="module")


HELLO = [{"role": "user", "content": "Hello"}]


async def test_an_exported_session_goes_on_under_another_name(
    gateway: Gateway, http: httpx.AsyncClient, services: SessionServices
) -> None:
    store(services, record("tea/with ü"))
    file = await http.get(at("tea/with ü".replace(" ", "%20")))
    assert file.status_code == 404
    store(services, record("tea/ü"))
    file = await http.get(at("tea/ü", "/export"))
    assert file.headers["content-type"] == "application/json"
    assert file.headers["content-disposition"] == 'attachment; filename="tea_.session.json"'
    assert file.json()["model_fingerprint"] == "f1"

    exists = await http.post("/v1/sessions/import", content=file.content)
    assert error_of(exists)[:2] == (409, "conflict")
    renamed = await http.post("/v1/sessions/import", params={"session_id": "new"}, content=file.content)
    assert renamed.status_code == 201, renamed.text
    stored, expected = services.records[TENANT, "new"], record("new")
    assert (stored.messages, stored.token_ids) == (expected.messages, expected.token_ids)
    assert (stored.version, stored.last_group, stored.turns) == (1, "", 1)
    assert stored.created_ms > 2000

    replaced = await http.post("/v1/sessions/import", params={"replace": "true"}, content=file.content)
    assert replaced.status_code == 201, replaced.text
    assert services.records[TENANT, "tea/ü"].version == 5
    fresh = {"replace": "true", "session_id": "fresh"}
    assert (await http.post("/v1/sessions/import", params=fresh, content=file.content)).status_code == 201
    assert services.records[TENANT, "fresh"].version == 1


async def test_a_turn_that_ends_during_a_replacement_wins(
    http: httpx.AsyncClient, services: SessionServices
) -> None:
    store(services, record())
    file = await http.get(at("s1", "/export"))
    described = services.describe

    def then_a_turn(message: Any) -> Any:
        answer = described(message)
        store(services, with_turn(services.records[TENANT, "s1"]))
        return answer

    await services.leave(subjects.SESSION_DESCRIBE)
    await services.listen(subjects.SESSION_DESCRIBE, then_a_turn)
    answer = await http.post("/v1/sessions/import", params={"replace": "true"}, content=file.content)
    assert error_of(answer)[:2] == (409, "conflict")
    assert services.records[TENANT, "s1"].turns == 2


async def test_a_file_that_does_not_fit_changes_nothing(
    gateway: Gateway, http: httpx.AsyncClient, services: SessionServices
) -> None:
    store(services, record())
    raw = (await http.get(at("s1", "/export"))).content
    services.records.clear()

    async def refused(content: bytes) -> tuple[int, str]:
        answer = await http.post("/v1/sessions/import", content=content)
        return error_of(answer)[0], answer.headers["x-ryz-reason"]

    assert await refused(raw[: len(raw) // 2]) == (400, "file_cut")
    assert await refused(raw.replace(b"Ho", b"Hu")) == (400, "file_altered")
    assert await refused(raw.replace(b'"format_version":1', b'"format_version":2')) == (400, "file_version")
    assert await refused(b"{}") == (400, "file_format")
    gateway.fleet.cards = [ModelCard(name="demo", context_length=8, fingerprint="f2")]
    answer = await http.post("/v1/sessions/import", content=raw)
    status, code, message = error_of(answer)
    assert (status, code, answer.headers["x-ryz-reason"]) == (409, "conflict", "other_model")
    assert "fingerprint f1" in message
    assert "'demo' (fingerprint f2)" in message
    gateway.fleet.cards = [ModelCard(name="demo", context_length=39, fingerprint="f1")]
    assert await refused(raw) == (413, "session_tokens")
    gateway.fleet.cards = [ModelCard(name="demo", context_length=40, fingerprint="f1")]
    services.max_record_bytes = 100
    assert await refused(raw) == (413, "session_size")
    assert services.records == {}
    services.max_record_bytes = 100_000
    assert (await http.post("/v1/sessions/import", content=raw)).status_code == 201


async def test_a_session_that_fits_http_but_not_the_broker() -> None:
    async with (
        running_gateway(max_payload=4096) as gateway,
        httpx.AsyncClient(base_url=gateway.url, headers=TYPED) as http,
    ):
        long = [{"role": "user", "content": "x" * 5000}]
        answer = await http.post("/v1/sessions", json={"model": "demo", "messages": long})
        assert (answer.status_code, answer.headers["x-ryz-reason"]) == (413, "session_size")
        assert "RYZ_SESSION_MAX_BYTES" in error_of(answer)[2]
        assert gateway.fleet.sessions.records == {}


@pytest.mark.parametrize("path", ["/v1/sessions", "/v1/sessions/import", "/v1/sessions/a/pin"])
@pytest.mark.parametrize("framing", ["Content-Length: 3000000", "Transfer-Encoding: chunked"])
async def test_what_no_store_would_take_is_refused_before_it_is_read(
    path: str, framing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused by the declared length, or as soon as the limit is exceeded; nothing is parsed."""
    parsed: list[bytes] = []
    monkeypatch.setattr(exported_file, "read_session", lambda raw, *_: parsed.append(raw))
    async with running_gateway(session_max_bytes=2048) as gateway, raw_connection(gateway.port) as connection:
        await connection.send(
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\n".encode()
            + f"Content-Type: application/json\r\n{framing}\r\n\r\n".encode()
        )
        if framing.endswith("chunked"):
            await connection.send(b"4000\r\n" + b" " * 0x4000 + b"\r\n")
        answer = await connection.answer(4)
        assert (answer.status, answer.headers["x-ryz-reason"]) == (413, "session_size")
        assert "RYZ_SESSION_MAX_BYTES" in answer.error["message"]
    assert parsed == []


async def test_a_client_that_asks_first_is_not_told_to_send_too_much() -> None:
    async with running_gateway(session_max_bytes=2048) as gateway, raw_connection(gateway.port) as connection:
        await connection.send(
            b"POST /v1/sessions/import HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 3000000\r\nExpect: 100-continue\r\n\r\n"
        )
        assert (await connection.answer()).status == 413


async def test_the_largest_session_comes_in_however_its_file_is_laid_out() -> None:
    tokens = pack_tokens(range(100_000, 130_000))
    async with (
        running_gateway(session_max_bytes=len(tokens) + 1000, max_payload=2**20) as gateway,
        httpx.AsyncClient(base_url=gateway.url, headers=TYPED) as http,
    ):
        services = gateway.fleet.sessions
        services.max_record_bytes = 2**20
        gateway.fleet.cards = [ModelCard(name="demo", context_length=30_000, fingerprint="f1")]
        services.records[TENANT, "a"] = record("a", token_ids=tokens)
        file = (await http.get(at("a", "/export"))).content
        for name, content in (("b", file), ("c", json.dumps(json.loads(file), indent=1).encode())):
            answer = await http.post(f"/v1/sessions/import?session_id={name}", content=content)
            assert answer.status_code == 201, answer.text
            assert services.records[TENANT, name].token_ids == tokens


async def test_files_of_sessions_take_no_thread_from_others(
    gateway: Gateway, services: SessionServices, http: httpx.AsyncClient
) -> None:
    services.records[TENANT, "a"] = record("a")
    blocked, loop = threading.Event(), asyncio.get_running_loop()
    others = ThreadPoolExecutor(1)
    loop.set_default_executor(others)
    try:
        waiting = loop.run_in_executor(None, blocked.wait)
        async with asyncio.timeout(PATIENCE_S):
            file = (await http.get(at("a", "/export"))).content
            answer = await http.post("/v1/sessions/import?session_id=b", content=file)
        assert answer.status_code == 201
        assert not waiting.done()
    finally:
        blocked.set()
        await waiting


async def test_files_of_sessions_are_read_one_at_a_time_tenant_by_tenant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many imports of one tenant delay neither other tenants nor other requests."""
    go_on, order, real = threading.Event(), list[str](), exported_file.read_session

    def read(raw: bytes, *more: Any) -> Any:
        order.append(json.loads(raw)["session_id"])
        assert go_on.wait(10)
        return real(raw, *more)

    monkeypatch.setattr(exported_file, "read_session", read)
    keys = {"acme": "secret-a", "birch": "secret-b"}
    async with (
        running_gateway(api_keys=",".join(f"{key}:{name}" for name, key in keys.items())) as gateway,
        httpx.AsyncClient(base_url=gateway.url, headers=TYPED, timeout=20) as http,
    ):

        def bring(tenant: str, name: str) -> asyncio.Task[httpx.Response]:
            file = exported_file.dump_session(record(name), "f1", 0)
            key = {"authorization": f"Bearer {keys[tenant]}"}
            return asyncio.create_task(http.post("/v1/sessions/import", content=file, headers=key))

        try:
            imports = [bring("acme", f"a{n}") for n in range(8)]
            await until(lambda: gateway.running == 8)
            imports.append(bring("birch", "b"))
            await until(lambda: gateway.running == 9)
            assert len(order) == 1, "only one is in hand"
            chat = await http.post(
                "/v1/chat/completions",
                json={"model": "demo", "messages": HELLO},
                headers={"authorization": "Bearer secret-b"},
            )
            assert chat.status_code == 200
        finally:
            go_on.set()
        assert {answer.status_code for answer in await asyncio.gather(*imports)} == {201}
        assert order[1] == "b", "the next one is another tenant's"
