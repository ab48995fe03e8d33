"""`/v1/sessions` over real HTTP, with scripted services behind the gateway."""

import asyncio
import json

import httpx
import pytest

from shared import subjects
from shared.errors import Unavailable
from shared.identity import root_hash, session_key
from shared.messages import ChatMessage, SessionRecord
from tests.kits.gateway.gateway import Gateway, running_gateway
from tests.kits.gateway.session_records import TENANT, at, error_of, record, store
from tests.kits.gateway.session_services import SessionServices
from tests.kits.waiting import PATIENCE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")


HELLO = [{"role": "user", "content": "Hello"}]


ODD_IDS = ["a/b", "a/pin", "..", "a%2Fb", "über?x=1#y", "import", "a+b&c", "😀"]


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
    services.last[TENANT, "s1"] = "g0"  # the session has moved since its last turn
    async with asyncio.timeout(PATIENCE_S):
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
        headers = [answer.headers.get(f"x-ryz-{name}") for name in ("group", "route", "kv")]
        assert headers == ["g0", "overflow", "fetch"]
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


async def test_a_list_may_leave_out_single_calls_and_has_titles(
    http: httpx.AsyncClient, services: SessionServices
) -> None:
    made = "s-0123456789abcdef-0123456789abcdef"
    for session_id, turns, said in ((made, 1, "Once"), ("tea", 1, "My cat"), ("empty", 0, "")):
        messages = [ChatMessage(role="user", content=said)] if said else []
        services.records[TENANT, session_id] = SessionRecord(
            session_id=session_id, tenant=TENANT, model="demo", version=1, turns=turns, messages=messages
        )
    all_of_them = (await http.get("/v1/sessions")).json()["data"]
    assert {one["session_id"]: one["title"] for one in all_of_them} == {
        made: "Once", "tea": "My cat", "empty": None
    }  # fmt: skip
    begun = (await http.get("/v1/sessions?spare=false")).json()["data"]
    assert {one["session_id"] for one in begun} == {"tea", "empty"}
    assert error_of(await http.get("/v1/sessions?spare=perhaps"))[:2] == (400, "invalid_request")
