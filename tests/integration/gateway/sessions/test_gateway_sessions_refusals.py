"""Refusals of `/v1/sessions` over real HTTP: bad input, limits, tenants, unavailable services."""

import asyncio
from typing import Any

import httpx
import pytest

from shared import subjects
from shared.errors import RateLimited
from shared.messages import SessionCommitted, SessionDeleted
from tests.kits.gateway.gateway import Gateway, running_gateway
from tests.kits.gateway.session_records import TENANT, TYPED, at, error_of, record, store
from tests.kits.gateway.session_services import SessionServices
from tests.kits.waiting import PATIENCE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")


HELLO = [{"role": "user", "content": "Hello"}]


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
    answer = await http.get(at("s1"), timeout=20)  # the broker is waited for, within the call's time limit
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
        async with asyncio.timeout(PATIENCE_S):
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


async def test_requests_are_named_and_take_a_slot() -> None:
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
