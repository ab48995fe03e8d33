"""`/v1/sessions` over real HTTP, with scripted services behind the gateway."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import pytest_asyncio

from services.gateway.sessions import session_file
from shared import subjects
from shared.codec import pack_tokens
from shared.errors import RateLimited, Unavailable
from shared.identity import root_hash, session_key
from shared.messages import ChatMessage, ModelCard, SessionCommitted, SessionDeleted, SessionRecord
from tests.kits.gateway.gateway import Gateway, eventually, running_gateway
from tests.kits.gateway.raw_http import raw_connection
from tests.kits.gateway.session_services import SessionServices, with_turn

HELLO = [{"role": "user", "content": "Hello"}]
TENANT = "default"
ODD_IDS = ["a/b", "a/pin", "..", "a%2Fb", "über?x=1#y", "import", "a+b&c", "😀"]


pytestmark = pytest.mark.asyncio(loop_scope="module")
TYPED = {"content-type": "application/json"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_gateway() -> AsyncIterator[Gateway]:
    async with running_gateway() as running:
        await running.fleet.sessions.stop()
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def gateway(shared_gateway: Gateway) -> AsyncIterator[Gateway]:
    """The gateway of this file, with services behind it that nothing is left in."""
    fleet = shared_gateway.fleet
    fleet.sessions, cards = await SessionServices(fleet.bus).start(), fleet.cards
    yield shared_gateway
    await fleet.sessions.stop()
    fleet.cards = cards


@pytest_asyncio.fixture(loop_scope="module")
async def services(gateway: Gateway) -> SessionServices:
    return gateway.fleet.sessions


@pytest_asyncio.fixture(loop_scope="module")
async def http(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=gateway.url, headers=TYPED) as client:
        yield client


def at(session_id: str, more: str = "") -> str:
    name = quote(session_id, safe="")
    return f"/v1/sessions/{name.replace('.', '%2E')}{more}"


def record(session_id: str = "s1", **more: Any) -> SessionRecord:
    given = {
        "tenant": TENANT,
        "model": "demo",
        "version": 4,
        "messages": [ChatMessage(role="user", content="Hi"), ChatMessage(role="assistant", content="Ho")],
        "token_ids": pack_tokens(range(40)),
        "turns": 1,
        "last_group": "g1",
        "created_ms": 1000,
        "updated_ms": 2000,
    }
    return SessionRecord(session_id=session_id, **{**given, **more})


def store(services: SessionServices, *records: SessionRecord) -> None:
    services.records |= {(one.tenant, one.session_id): one for one in records}


def error_of(answer: httpx.Response) -> tuple[int, str, str]:
    """Status, code, message."""
    error = answer.json()["error"]
    assert answer.headers["x-ryz-reason"]
    return answer.status_code, error["code"], error["message"]


async def test_a_session_is_created_listed_shown_and_deleted(
    http: httpx.AsyncClient, services: SessionServices
) -> None:
    body = {"session_id": "s1", "model": "demo", "messages": [{"role": "developer", "content": "Be brief."}]}
    made = await http.post("/v1/sessions", json=body)
    assert made.status_code == 201, made.text
    assert (made.json()["object"], made.json()["session_id"]) == ("session", "s1")
    stored = services.records[TENANT, "s1"]
    assert stored.messages == [ChatMessage(role="system", content="Be brief.")]
    assert (stored.version, stored.turns, stored.tenant) == (1, 0, TENANT)
    assert error_of(await http.post("/v1/sessions", json=body))[:2] == (409, "conflict")
    assert services.records[TENANT, "s1"] == stored

    listed = (await http.get("/v1/sessions")).json()
    assert [one["session_id"] for one in listed["data"]] == ["s1"]
    assert (listed["object"], listed["has_more"], listed["next_cursor"]) == ("list", False, None)

    shown = (await http.get(at("s1"))).json()
    expected = {"tenant": TENANT, "model": "demo", "turns": 0, "num_messages": 1, "tokens": 0, "ttl_s": 600}
    expected |= {"bytes": 4096, "blocks": 2, "byte_seconds": 8192.5, "home": "g0", "pinned_group": None}
    assert {key: shown[key] for key in expected} == expected
    assert 0 <= shown["age_s"] < 60
    assert (shown["groups"], shown["messages"], shown["last_group"]) == ([], None, None)

    gone = await http.delete(at("s1"))
    assert (gone.status_code, gone.content) == (204, b"")
    assert error_of(await http.get(at("s1")))[:2] == (404, "session_not_found")
    assert error_of(await http.delete(at("s1")))[:2] == (404, "session_not_found")


async def test_what_is_left_out_of_a_new_session(gateway: Gateway, http: httpx.AsyncClient) -> None:
    refused = await http.post("/v1/sessions")
    assert error_of(refused)[:2] == (400, "invalid_request")
    assert "'demo', 'a/b'" in refused.json()["error"]["message"]
    gateway.fleet.cards = gateway.fleet.cards[:1]
    made = (await http.post("/v1/sessions")).json()
    assert made["model"] == "demo"
    assert made["session_id"].startswith("s-")


async def test_a_page_goes_on_where_the_last_one_ended(
    http: httpx.AsyncClient, services: SessionServices
) -> None:
    store(services, *(record(f"s{n}", updated_ms=n) for n in range(5)), record("x", tenant="other"))
    seen, cursor = [], ""
    while True:
        page = (await http.get("/v1/sessions", params={"limit": 2, "cursor": cursor})).json()
        seen += [one["session_id"] for one in page["data"]]
        cursor = page["next_cursor"]
        assert page["has_more"] is (cursor is not None)
        if not cursor:
            break
    assert seen == ["s4", "s3", "s2", "s1", "s0"]


async def test_showing_says_where_the_kv_is(http: httpx.AsyncClient, services: SessionServices) -> None:
    store(services, record())
    services.holdings = {"g1": 32}
    services.last[TENANT, "s1"] = "g0"  # moved since its last turn
    async with asyncio.timeout(5):
        shown = (await http.get(at("s1"), params={"messages": "true"})).json()
    assert shown["groups"] == [
        {"group": "g1", "cached_tokens": 32, "tensor_parallel": 2, "kv_format": "fp32"}
    ]
    assert (shown["tokens"], shown["last_group"]) == (40, "g0")
    assert shown["messages"] == [
        {"role": "user", "content": "Hi", "name": None},
        {"role": "assistant", "content": "Ho", "name": None},
    ]


async def test_showing_goes_without_routers_and_leaders(
    http: httpx.AsyncClient, services: SessionServices
) -> None:
    store(services, record())
    await services.leave(subjects.SESSION_ROUTE)
    await services.leave(subjects.KV_HOLDERS)
    shown = (await http.get(at("s1"))).json()
    assert (shown["home"], shown["groups"], shown["last_group"]) == (None, [], "g1")


async def test_a_pin_binds_until_it_is_taken_away(http: httpx.AsyncClient, services: SessionServices) -> None:
    store(services, record())
    pinned = await http.post(at("s1", "/pin"), json={"group": "g1"})
    assert (pinned.status_code, pinned.json()["pinned_group"]) == (200, "g1")
    status, code, message = error_of(await http.post(at("s1", "/pin"), json={"group": "g9"}))
    assert (status, code) == (400, "invalid_request")
    assert "there are g0 (ready), g1 (ready)" in message
    assert services.pins == {(TENANT, "s1"): "g1"}
    for _ in range(2):
        free = await http.delete(at("s1", "/pin"))
        assert (free.status_code, free.json()["pinned_group"]) == (200, None)


async def test_a_session_that_cannot_be_pinned_is_not_created(
    http: httpx.AsyncClient, services: SessionServices
) -> None:
    body = {"session_id": "s1", "model": "demo", "pinned_group": "g9"}
    assert error_of(await http.post("/v1/sessions", json=body))[0] == 400
    services.failing[subjects.SESSION_PIN] = Unavailable("the store is away", reason="session_store")
    answer = await http.post("/v1/sessions", json=body | {"pinned_group": "g0"})
    assert error_of(answer)[:2] == (503, "unavailable")
    assert services.records == {}
    services.failing.clear()
    made = await http.post("/v1/sessions", json=body | {"pinned_group": "g0"})
    assert (made.status_code, made.json()["pinned_group"]) == (201, "g0")


async def test_a_move_warms_the_group(http: httpx.AsyncClient, services: SessionServices) -> None:
    store(services, record())
    moved = await http.post(at("s1", "/move"), json={"group": "g0"})
    assert moved.status_code == 200, moved.text
    assert moved.json() == {
        "object": "session.moved",
        "session_id": "s1",
        "group": "g0",
        "tokens": 40,
        "cached_tokens": 40,
        "fetched_tokens": 40,
    }
    assert (await http.get(at("s1"))).json()["last_group"] == "g0"
    assert error_of(await http.post(at("s1", "/move"), json={"group": "g9"}))[0] == 400
    services.pins[TENANT, "s1"] = "g1"
    status, code, message = error_of(await http.post(at("s1", "/move"), json={"group": "g0"}))
    assert (status, code) == (409, "conflict")
    assert "pinned to 'g1'" in message
    assert len(services.warmed) == 1
    assert (await http.post(at("s1", "/move"), json={"group": "g1"})).status_code == 200
    await services.leave(subjects.warm("g1"))
    away = await http.post(at("s1", "/move"), json={"group": "g1"})
    assert (away.status_code, away.headers["x-ryz-reason"]) == (503, "group_away")


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
    stored, told = services.records[TENANT, "new"], record("new")
    assert (stored.messages, stored.token_ids) == (told.messages, told.token_ids)
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
    described = services._describe

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


@pytest.mark.parametrize("session_id", ODD_IDS)
async def test_any_id_has_a_path(http: httpx.AsyncClient, services: SessionServices, session_id: str) -> None:
    made = await http.post("/v1/sessions", json={"session_id": session_id, "model": "demo"})
    assert made.status_code == 201, made.text
    assert (await http.get(at(session_id))).json()["session_id"] == session_id
    assert (await http.post(at(session_id, "/pin"), json={"group": "g1"})).status_code == 200
    assert services.pins == {(TENANT, session_id): "g1"}
    assert (await http.delete(at(session_id, "/pin"))).status_code == 200
    assert (await http.get(at(session_id, "/export"))).json()["session_id"] == session_id
    assert (await http.delete(at(session_id))).status_code == 204
    assert services.records == {}


@pytest.mark.parametrize("sent", ["a%20b", "%FF", "x" * 129, "%00", "a%C2%9Bb", "a%E2%80%AEb"])
async def test_what_cannot_be_an_id_is_refused(http: httpx.AsyncClient, sent: str) -> None:
    status, code, message = error_of(await http.get(f"/v1/sessions/{sent}"))
    assert (status, code) == (400, "invalid_request")
    assert "1 to 128 printable characters" in message


@pytest.mark.parametrize(
    ("method", "path", "body", "param"),
    [
        ("GET", "/v1/sessions?limit=0", None, "limit"),
        ("GET", "/v1/sessions?limit=1001", None, "limit"),
        ("GET", "/v1/sessions?limit=x", None, "limit"),
        ("GET", "/v1/sessions/s1?messages=maybe", None, "messages"),
        ("POST", "/v1/sessions/import?session_id=a%20b", b"{}", "session_id"),
        ("POST", "/v1/sessions", b'{"session_id": "a b"}', "session_id"),
        ("POST", "/v1/sessions", b'{"session_id": ""}', "session_id"),
        ("POST", "/v1/sessions", b'{"session_id": "a\\u009bb"}', "session_id"),
        ("POST", "/v1/sessions", b'{"session_id": "a\\u202eb"}', "session_id"),
        ("POST", "/v1/sessions/import?session_id=a%E2%81%A6b", b"{}", "session_id"),
        ("POST", "/v1/sessions", b'{"sesion_id": "a"}', "sesion_id"),
        ("POST", "/v1/sessions", b'{"messages": [{"role": "user"}]}', "messages[0].content"),
        ("POST", "/v1/sessions/s1/pin", b"{}", "group"),
        ("POST", "/v1/sessions/s1/move", b'{"group": 1}', "group"),
        ("POST", "/v1/sessions/s1/move", b"[]", None),
    ],
)
async def test_bad_input_is_named(
    http: httpx.AsyncClient, method: str, path: str, body: bytes | None, param: str | None
) -> None:
    answer = await http.request(method, path, content=body)
    assert error_of(answer)[:2] == (400, "invalid_request"), answer.text
    assert answer.json()["error"]["param"] == param


async def test_a_model_that_is_not_served(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/sessions", json={"model": "nope"})
    assert error_of(answer)[:2] == (404, "model_not_found")


async def test_who_is_away_is_said_with_a_time_to_come_back(
    gateway: Gateway, http: httpx.AsyncClient, services: SessionServices
) -> None:
    store(services, record())
    file = (await http.get(at("s1", "/export"))).content
    await services.leave(subjects.SESSION_ROUTE)
    answer = await http.post(at("s1", "/pin"), json={"group": "g1"})
    assert (answer.status_code, answer.headers["x-ryz-reason"]) == (503, "no_router")
    for subject in (subjects.SESSION_GET, subjects.SESSION_DESCRIBE, subjects.SESSION_LIST):
        await services.leave(subject)
    for subject in (subjects.SESSION_PIN, subjects.SESSION_COMMIT, subjects.SESSION_DELETE):
        await services.leave(subject)
    for method, path, body in (
        ("GET", "/v1/sessions", None),
        ("POST", "/v1/sessions", b'{"model": "demo"}'),
        ("GET", at("s1"), None),
        ("GET", at("s1", "/export"), None),
        ("POST", at("s1", "/pin"), b'{"group": "g1"}'),
        ("DELETE", at("s1", "/pin"), None),
        ("POST", at("s1", "/move"), b'{"group": "g1"}'),
        ("POST", "/v1/sessions/import", file),
        ("DELETE", at("s1"), None),
    ):
        answer = await http.request(method, path, content=body)
        assert error_of(answer)[:2] == (503, "unavailable"), path
        assert answer.headers["x-ryz-reason"] == "session_store", path
        assert answer.headers["retry-after"] == "1"
    gateway.broker.stop()
    answer = await http.get(at("s1"))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    gateway.broker.start()


async def test_a_silent_service_is_waited_for_within_the_bound() -> None:
    async with (
        running_gateway(sessions_timeout_s=0.05) as gateway,
        httpx.AsyncClient(base_url=gateway.url, headers=TYPED) as http,
    ):
        await gateway.fleet.sessions.leave(subjects.SESSION_LIST)

        async def silent(_: Any) -> None:
            return

        await gateway.fleet.bus.subscribe(subjects.SESSION_LIST, silent)
        async with asyncio.timeout(5):
            answer = await http.get("/v1/sessions")
        assert (answer.status_code, answer.headers["x-ryz-reason"]) == (503, "session_store")


async def test_tenants_do_not_see_each_other() -> None:
    async with (
        running_gateway(api_keys="key-of-ada:ada,key-of-bob:bob") as gateway,
        httpx.AsyncClient(base_url=gateway.url, headers=TYPED) as http,
    ):
        ada, bob = ({"Authorization": f"Bearer key-of-{name}"} for name in ("ada", "bob"))
        assert (await http.get("/v1/sessions")).status_code == 401
        assert (await http.post("/v1/sessions/import", content=b"x")).status_code == 401
        body = {"session_id": "s1", "model": "demo", "messages": HELLO}
        assert (await http.post("/v1/sessions", json=body, headers=ada)).json()["tenant"] == "ada"
        assert (await http.get("/v1/sessions", headers=bob)).json()["data"] == []
        for method, path, content in (
            ("GET", at("s1"), None),
            ("GET", at("s1", "/export"), None),
            ("POST", at("s1", "/pin"), b'{"group": "g1"}'),
            ("DELETE", at("s1", "/pin"), None),
            ("POST", at("s1", "/move"), b'{"group": "g1"}'),
            ("DELETE", at("s1"), None),
        ):
            answer = await http.request(method, path, content=content, headers=bob)
            assert error_of(answer)[:2] == (404, "session_not_found"), path
        assert (await http.post("/v1/sessions", json=body, headers=bob)).json()["tenant"] == "bob"
        assert (await http.delete(at("s1"), headers=bob)).status_code == 204
        shown = await http.get(at("s1"), params={"messages": "true"}, headers=ada)
        assert shown.json()["messages"][0]["content"] == "Hello"


async def test_limits_hold_here_too() -> None:
    async with (
        running_gateway(max_body_bytes=2000, rate_limit_rps=0.01, rate_limit_burst=2) as gateway,
        httpx.AsyncClient(base_url=gateway.url, headers=TYPED) as http,
    ):
        big = await http.post("/v1/sessions/import", content=b"x" * 300_000)
        assert error_of(big)[:2] == (413, "request_too_large")
        form = await http.post("/v1/sessions", content=b"a=b", headers={"content-type": "text/plain"})
        assert form.status_code == 415
        assert error_of(await http.get("/v1/sessions"))[:2] == (429, "rate_limited")
        counted = gateway.metric("ryz_gateway_requests_total", route="/v1/sessions", status="429")
        assert counted == 1
        assert gateway.metric("ryz_gateway_requests_total", route="other", status="429") == 0


async def test_requests_are_named_and_take_a_place() -> None:
    async with (
        running_gateway(max_concurrent=1) as gateway,
        httpx.AsyncClient(base_url=gateway.url, headers=TYPED) as http,
    ):
        answer = await http.get("/v1/sessions", headers={"x-request-id": "mine"})
        assert (answer.status_code, answer.headers["x-request-id"]) == (200, "mine")
        async with http.stream(
            "POST", "/v1/chat/completions", json={"model": "slow", "messages": HELLO, "stream": True}
        ):
            full = await http.get("/v1/sessions")
            assert error_of(full)[:2] == (503, "overloaded")
            assert full.headers["x-request-id"]
        await gateway.wait_idle()
        assert (await http.get("/v1/sessions")).status_code == 200


async def test_a_bug_is_500_without_its_text(
    http: httpx.AsyncClient, services: SessionServices, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: Any) -> Any:
        return SessionDeleted(session_id="not what was asked for")

    await services.leave(subjects.SESSION_LIST)
    await services.listen(subjects.SESSION_LIST, broken)
    answer = await http.get("/v1/sessions", headers={"x-request-id": "mine"})
    assert error_of(answer)[:2] == (500, "internal")
    assert "cannot be read" not in answer.text


async def test_an_id_that_was_deleted_at_this_moment(
    http: httpx.AsyncClient, services: SessionServices
) -> None:
    def stale(_: Any) -> Any:
        return SessionCommitted(stale=[0])

    await services.leave(subjects.SESSION_COMMIT)
    await services.listen(subjects.SESSION_COMMIT, stale)
    answer = await http.post("/v1/sessions", json={"session_id": "s1", "model": "demo"})
    status, code, message = error_of(answer)
    assert (status, code) == (409, "conflict")
    assert "try again in a second" in message


async def test_a_tenant_at_its_quota_is_told(http: httpx.AsyncClient, services: SessionServices) -> None:
    body = {"model": "demo", "messages": HELLO}
    assert (await http.post("/v1/sessions", json={**body, "session_id": "a"})).status_code == 201
    file = (await http.get(at("a", "/export"))).content
    services.max_sessions = 1
    services.failing[subjects.SESSION_PIN] = RateLimited("too many pins", reason="pin_quota")
    for answer, reason in (
        (await http.post("/v1/sessions", json={**body, "session_id": "b"}), "session_quota"),
        (await http.post("/v1/sessions/import?session_id=c", content=file), "session_quota"),
        (await http.post(at("a", "/pin"), json={"group": "g0"}), "pin_quota"),
    ):
        assert (answer.status_code, answer.headers["x-ryz-reason"]) == (429, reason)
    assert set(services.records) == {(TENANT, "a")}
    assert services.pins == {}


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
    """By the announced length, or as soon as too much has come; nothing of it is parsed."""
    parsed: list[bytes] = []
    monkeypatch.setattr(session_file, "read_session", lambda raw, *_: parsed.append(raw))
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
        async with asyncio.timeout(5):
            file = (await http.get(at("a", "/export"))).content
            answer = await http.post("/v1/sessions/import?session_id=b", content=file)
        assert answer.status_code == 201
        assert not waiting.done()
    finally:
        blocked.set()
        await waiting


async def test_files_of_sessions_are_read_one_at_a_time_and_by_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant with many imports keeps neither other tenants' nor other requests waiting."""
    go_on, order, real = threading.Event(), list[str](), session_file.read_session

    def read(raw: bytes, *more: Any) -> Any:
        order.append(json.loads(raw)["session_id"])
        assert go_on.wait(10)
        return real(raw, *more)

    monkeypatch.setattr(session_file, "read_session", read)
    keys = {"acme": "secret-a", "birch": "secret-b"}
    async with (
        running_gateway(api_keys=",".join(f"{key}:{name}" for name, key in keys.items())) as gateway,
        httpx.AsyncClient(base_url=gateway.url, headers=TYPED, timeout=20) as http,
    ):

        def bring(tenant: str, name: str) -> asyncio.Task[httpx.Response]:
            file = session_file.dump_session(record(name), "f1", 0)
            key = {"authorization": f"Bearer {keys[tenant]}"}
            return asyncio.create_task(http.post("/v1/sessions/import", content=file, headers=key))

        try:
            imports = [bring("acme", f"a{n}") for n in range(8)]
            await eventually(lambda: gateway.running == 8, 5)
            imports.append(bring("birch", "b"))
            await eventually(lambda: gateway.running == 9, 5)
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


async def test_the_api_document_has_the_session_routes(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    paths = {path for path in document["paths"] if path.startswith("/v1/sessions")}
    one = "/v1/sessions/{session_id}"
    assert paths == {
        "/v1/sessions", "/v1/sessions/import", one, f"{one}/pin", f"{one}/move", f"{one}/export"
    }  # fmt: skip
    schemas = document["components"]["schemas"]
    assert {"NewSession", "ToGroup", "SessionObject", "SessionDetail", "SessionListing"} <= set(schemas)
    assert "422" not in json.dumps(document["paths"]["/v1/sessions"])


async def test_a_completion_says_why_it_went_where_it_went(gateway: Gateway, http: httpx.AsyncClient) -> None:
    for stream in (False, True):
        body = {"model": "demo", "messages": HELLO, "stream": stream}
        gateway.fleet.decided = ("overflow", "fetch")
        answer = await http.post("/v1/chat/completions", json=body)
        told = [answer.headers.get(f"x-ryz-{name}") for name in ("group", "route", "kv")]
        assert told == ["g0", "overflow", "fetch"]
        gateway.fleet.decided = ("", "")
        answer = await http.post("/v1/chat/completions", json=body)
        assert answer.headers.keys() & {"x-ryz-route", "x-ryz-kv"} == set()
    usage = (await http.post("/v1/chat/completions", json=body | {"stream": False})).json()["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 1, "fetched_tokens": 0}


async def test_gateways_with_one_key_make_ids_of_one_root() -> None:
    body = {"model": "demo", "messages": HELLO}
    roots: dict[str, set[str]] = {"one key for both, 1": set(), "another key, alone": set(), "": set()}
    for key in (*roots, *roots):
        async with (
            running_gateway(session_key=key) as gateway,
            httpx.AsyncClient(base_url=gateway.url) as http,
        ):
            created = (await http.post("/v1/sessions", json=body)).json()["session_id"]
            answered = (await http.post("/v1/chat/completions", json=body)).headers["x-session-id"]
            roots[key] |= {session_key(created), session_key(answered)}
    assert [len(found) for found in roots.values()] == [1, 1, 1]
    assert len(set.union(*roots.values())) == 3
    assert roots[""] == {root_hash(TENANT, "", "Hello")}
