"""Models that hosts offer, at the gateway: listed with their states, waited for, and managed by operators."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from tritonclient.utils import InferenceServerException

from shared.client.calls import models_client
from tests.kits.gateway.gateway import Gateway, running_gateway
from tests.kits.gateway.grpc_client import triton_client
from tests.kits.model_host import ModelHost, state_of
from tests.kits.servers import free_port
from tests.kits.waiting import PATIENCE_S

MANAGE = "/v1/manage/models"
ADMIN = {"Authorization": "Bearer adm-11111111"}


@asynccontextmanager
async def hosting(**settings: Any) -> AsyncIterator[tuple[Gateway, ModelHost, httpx.AsyncClient]]:
    """A gateway whose fleet serves `demo`, with a host that offers it and two others."""
    async with (
        running_gateway(**settings) as gateway,
        httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE_S) as http,
    ):
        gateway.fleet.offered[:] = [
            state_of("demo", "ready", pinned=True),
            state_of("second", "asleep", aliases=["two"], load_s=1.5, priority=3, waiting=2),
            state_of("lost", "failed", why="no such file", retry_s=20.0),
        ]
        yield gateway, await ModelHost(gateway.fleet.bus, gateway.fleet.offered).start(), http


async def test_offered_models_are_listed_with_their_states() -> None:
    async with hosting() as (_, _, http):
        listed = (await http.get("/v1/models")).json()["data"]
        assert [(one["id"], one.get("status", {}).get("phase")) for one in listed] == [
            ("demo", "ready"), ("a/b", None), ("lost", "failed"), ("second", "asleep")
        ]  # fmt: skip
        assert (listed[0]["fingerprint"], listed[0]["status"]["pinned"]) == ("f1", True)
        assert listed[0]["created"] == 7, "its group, which is younger, does not make it another model"
        second = (await http.get("/v1/models/second")).json()
        assert second == listed[3] == (await http.get("/v1/models/two")).json()
        assert list(second)[:2] == ["id", "object"]
        assert (second["aliases"], second["max_model_len"], second["created"]) == (["two"], 512, 7)
        assert second["status"] == {
            "phase": "asleep",
            "why": "",
            "groups": {"ready": 0, "all": 0, "most": 2},
            "waiting": 2, "load_s": 1.5, "retry_s": 0.0, "pinned": False, "priority": 3,
        }  # fmt: skip
        assert (await http.get("/v1/models/lost")).json()["status"]["why"] == "no such file"
        missing = await http.get("/v1/models/none")
        assert missing.status_code == 404
        assert "demo, a/b, second, lost" in missing.json()["error"]["message"]


async def test_without_hosts_nothing_is_added() -> None:
    async with running_gateway() as gateway, httpx.AsyncClient(base_url=gateway.url) as http:
        assert all("status" not in one for one in (await http.get("/v1/models")).json()["data"])
        answer = await http.post(f"{MANAGE}/demo/load")
        assert (answer.status_code, answer.headers["x-ryz-reason"]) == (503, "no_host")
        assert "ryz up --models" in answer.json()["error"]["message"]
        assert (await http.get(MANAGE)).json() == {"object": "list", "data": []}


async def test_questions_about_tokens_do_not_wait_for_a_model_that_is_asleep() -> None:
    async with hosting(wait_s=2 * PATIENCE_S) as (_, _, http):
        body: dict[str, Any] = {"model": "second", "prompt": "Hello"}
        counted = {"model": "second", "messages": [{"role": "user", "content": "Hello"}]}
        async with asyncio.timeout(PATIENCE_S):
            for path, asked in (("/tokenize", body), ("/v1/messages/count_tokens", counted)):
                answer = await http.post(path, json=asked)
                assert (answer.status_code, answer.headers["x-ryz-reason"]) == (503, "waking"), path
                assert answer.headers["retry-after"] == "2"
            failed = await http.post("/tokenize", json=body | {"model": "lost"})
        assert (failed.status_code, failed.headers["x-ryz-reason"]) == (503, "model_failed")
        assert failed.headers["retry-after"] == "20"


async def test_a_model_that_an_operator_unloaded_names_no_time_to_come_back() -> None:
    async with hosting() as (_, host, http):
        host.set_phase("second", "absent", why="unload")
        answer = await http.post("/tokenize", json={"model": "second", "prompt": "Hello"})
        assert (answer.status_code, answer.headers["x-ryz-reason"]) == (503, "model_unloaded")
        assert "retry-after" not in answer.headers
        assert answer.headers["x-should-retry"] == "false"
        assert "ryz models load second" in answer.json()["error"]["message"]


async def test_grpc_tells_which_models_are_ready() -> None:
    async with hosting(grpc_port=free_port()) as (gateway, _, _), triton_client(gateway) as client:
        assert await client.is_model_ready("demo")
        assert not await client.is_model_ready("second")
        assert (await client.get_model_metadata("second")).name == "second"
        index = {one.name: one for one in (await client.get_model_repository_index()).models}
        assert (index["demo"].state, index["second"].state) == ("READY", "UNAVAILABLE")
        assert index["second"].reason == "asleep"
        with pytest.raises(InferenceServerException, match="no group serves model 'none'"):
            await client.get_model_metadata("none")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_stream_shows_on_request_what_it_waits_for(path: str) -> None:
    chat = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9, "stream": True}
    wanted = {"X-Ryz-Progress": "true"}
    async with hosting() as (gateway, _, http):
        gateway.fleet.waking = 20  # about 1.3 s
        shown = await http.post(path, json=chat, headers=wanted)
        assert shown.status_code == 200
        lines = [line for line in shown.text.splitlines() if line]
        comments = [line for line in lines if line.startswith(":")]
        assert set(comments) == {": waiting: model 'demo' is loading"}
        assert len(comments) in {1, 2}
        assert lines[: len(comments)] == comments
        usual = (await http.post(path, json=chat)).text
        assert len(lines) - len(comments) == len([line for line in usual.splitlines() if line])

        gateway.fleet.waking = 20
        assert ": waiting" not in (await http.post(path, json=chat)).text
        gateway.fleet.waking = 1_000_000
        limit = {"X-Request-Timeout": "2.6"}
        late = await http.post(path, json=chat, headers=wanted | limit)
        assert late.status_code == 200
        assert "is loading; retry in 1.000 s (waited" in late.text.splitlines()[-2]
        assert (await http.post(path, json=chat, headers=limit)).status_code == 503
        gateway.fleet.waking = 0
        wrong = await http.post(path, json=chat, headers={"X-Ryz-Progress": "yes"})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "x-ryz-progress")


async def test_a_caller_that_leaves_while_it_is_shown_progress_ends_its_request() -> None:
    chat = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    async with hosting() as (gateway, _, http):
        gateway.fleet.waking = 1_000_000
        async with http.stream(
            "POST", "/v1/chat/completions", json=chat, headers={"X-Ryz-Progress": "true"}
        ) as answer:
            async for line in answer.aiter_lines():
                assert line == ": waiting: model 'demo' is loading"
                break
        await gateway.wait_idle()
        assert gateway.metric("ryz_client_waiting_requests") == 0


async def test_an_operator_loads_scales_and_unloads() -> None:
    async with hosting() as (gateway, host, http):
        listed = (await http.get(MANAGE)).json()["data"]
        assert [one["id"] for one in listed] == ["demo", "lost", "second"]
        assert listed[2]["memory"] == {"charged_bytes": 0, "first_bytes": 300 * 2**20}

        told = await http.post(f"{MANAGE}/two/load")
        assert (told.status_code, told.json()["id"], told.json()["status"]["phase"]) == (
            202,
            "second",
            "asleep",
        )
        met = await http.post(f"{MANAGE}/second/load?wait=10")
        assert (met.status_code, met.json()["status"]["phase"]) == (200, "ready")
        scaled = await http.post(f"{MANAGE}/second/scale?wait=10", json={"groups": 2})
        assert scaled.json()["status"]["groups"] == {"ready": 2, "all": 2, "most": 2}
        refused = await http.post(f"{MANAGE}/second/scale", json={"groups": 3})
        assert (refused.status_code, refused.headers["x-ryz-reason"]) == (409, "refused_by_host")
        assert "has room for 2 groups" in refused.json()["error"]["message"]
        for action in ("sleep", "unload"):
            gone = await http.post(f"{MANAGE}/second/{action}?wait=10")
            assert (gone.status_code, gone.json()["status"]["groups"]["all"]) == (200, 0)
        assert [wish.action for wish in host.wishes] == ["load", "load", "scale", "scale", "sleep", "unload"]
        assert gateway.running == 0


async def test_an_operator_adds_and_removes_a_model() -> None:
    async with hosting() as (_, host, http):
        fields = {"source": "hf:acme/small", "groups": 2, "sampling": {"temperature": 0.0}}
        added = await http.put(f"{MANAGE}/acme/small", json=fields)
        assert (added.status_code, added.json()) == (
            202,
            {"id": "acme/small", "object": "model", "host": "h1"},
        )
        assert host.added == [fields | {"name": "acme/small"}]
        assert (await http.get("/v1/models/acme/small")).json()["status"]["phase"] == "asleep"
        again = await http.put(f"{MANAGE}/acme/small", json=fields)
        assert (again.status_code, again.headers["x-ryz-reason"]) == (409, "refused_by_host")
        removed = await http.delete(f"{MANAGE}/acme/small")
        assert (removed.status_code, removed.json()["id"]) == (202, "acme/small")
        assert (await http.get("/v1/models/acme/small")).status_code == 404
        assert (await http.delete(f"{MANAGE}/acme/small")).status_code == 404
        mistakes: tuple[tuple[dict[str, Any], str], ...] = (
            ({}, "source"),
            ({"source": 1}, "source"),
            ({"source": "/no/such/model"}, "source"),
            ({"source": "demo", "grups": 2}, "grups"),
        )
        for wrong, param in mistakes:
            answer = await http.put(f"{MANAGE}/more", json=wrong)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
            assert f"`{param}`" in answer.json()["error"]["message"]
        for call in (http.put, http.delete):
            waits = await call(f"{MANAGE}/demo?wait=5")
            assert (waits.status_code, waits.json()["error"]["param"]) == (400, "wait")
        long = await http.put(f"{MANAGE}/more", json={"source": "x" * 20_000})
        assert long.status_code == 413
        assert [wish.action for wish in host.wishes] == ["remove"]


async def test_a_model_is_added_to_the_hosts_that_have_it() -> None:
    """One host lacks the files: the others suffice, and it is named. All lack them: the 400 names all."""
    lacks = "`source`: there is no file or directory /models/small"
    async with hosting() as (gateway, _, http):
        gateway.fleet.hosts[:] = ["h1", "h2"]
        other = await ModelHost(gateway.fleet.bus, [], name="h2", lacks=lacks).start()
        added = await http.put(f"{MANAGE}/small", json={"source": "/work"})
        assert (added.status_code, added.json()) == (
            202,
            {
                "id": "small", "object": "model", "host": "h1", "hosts": ["h1"],
                "left_out": [{"host": "h2", "message": lacks}],
            },
        )  # fmt: skip
        other.lacks = ""
        later = await http.put(f"{MANAGE}/small", json={"source": "/work"})
        assert (later.status_code, later.json()["hosts"]) == (202, ["h2"]), "the files were copied meanwhile"
        assert "there is a model 'small' already" in later.json()["left_out"][0]["message"]
    async with hosting() as (gateway, host, http):
        gateway.fleet.hosts[:] = ["h1", "h2", "h3"]
        host.lacks = lacks
        for name, why in (("h2", lacks), ("h3", "`source`: /models/small holds no model")):
            await ModelHost(gateway.fleet.bus, [], name=name, lacks=why).start()
        refused = await http.put(f"{MANAGE}/small", json={"source": "/work"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "source")
        assert refused.json()["error"]["message"] == (
            f"hosts h1, h2: {lacks}; host h3: `source`: /models/small holds no model"
        )


async def test_a_host_that_is_silent_does_not_keep_a_model_from_being_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(models_client, "HOST_S", 10 * PATIENCE_S)
    async with hosting() as (gateway, _, http):
        gateway.fleet.hosts[:] = ["h1", "frozen"]
        async with asyncio.timeout(PATIENCE_S):
            added = await http.put(f"{MANAGE}/small", json={"source": "demo"})
        assert (added.status_code, added.json()["host"]) == (202, "h1")


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("none/load", None, 404, "model"),
        ("second/load?wait=601", None, 400, "wait"),
        ("second/load?wait=soon", None, 400, "wait"),
        ("second/scale", {"groups": 65}, 400, "groups"),
        ("second/scale", {}, 400, "groups"),
        ("second/scale", {"groups": 1, "more": 1}, 400, "more"),
    ],
)
async def test_a_wrong_call_is_refused(
    path: str, body: Mapping[str, int] | None, status: int, param: str
) -> None:
    async with hosting() as (_, host, http):
        answer = await http.post(f"{MANAGE}/{path}", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
        if status == 404:
            assert "demo, lost, second" in answer.json()["error"]["message"]
        assert not host.wishes


async def test_a_wait_that_is_too_short_and_a_load_that_fails() -> None:
    async with hosting() as (_, host, http):
        host.load_s = 60.0
        late = await http.post(f"{MANAGE}/second/load?wait=0.3")
        assert (late.status_code, late.json()["status"]["phase"]) == (504, "loading")
        assert "'second' is loading" in late.json()["error"]["message"]
        host.load_s, host.fails = 0.05, "the file is damaged"
        failed = await http.post(f"{MANAGE}/second/load?wait=30")
        assert (failed.status_code, failed.headers["x-ryz-reason"]) == (503, "model_failed")
        assert failed.json()["status"]["why"] == "the file is damaged"
        for task in host.tasks:
            task.cancel()


async def test_a_host_that_says_nothing_is_reported() -> None:
    async with running_gateway() as gateway, httpx.AsyncClient(base_url=gateway.url, timeout=30) as http:
        gateway.fleet.offered.append(state_of("second", "asleep"))
        await ModelHost(gateway.fleet.bus, []).start()  # it offers nothing any more
        answer = await http.post(f"{MANAGE}/second/wake")
        assert (answer.status_code, answer.headers["x-ryz-reason"]) == (503, "no_host")
        assert "no host answered for model 'second'" in answer.json()["error"]["message"]


async def test_only_operators_may() -> None:
    page = {"Origin": "https://chat.example", "Sec-Fetch-Site": "cross-site"}
    async with hosting(http_allowed_origins="https://chat.example") as (_, host, http):
        assert (await http.get("/v1/models", headers=page)).status_code == 200
        for headers, code in (
            (page, "origin_not_allowed"),
            ({"X-Forwarded-For": "1.2.3.4"}, "admin_key_required"),
        ):
            for method, path in (("POST", f"{MANAGE}/second/load"), ("GET", MANAGE)):
                answer = await http.request(method, path, headers=headers)
                assert (answer.status_code, answer.json()["error"]["code"]) == (403, code)
        assert not host.wishes
    async with hosting(admin_keys="adm-11111111", api_keys="sk-test-12345:a") as (_, host, http):
        tenant = {"Authorization": "Bearer sk-test-12345"}
        for headers in ({}, tenant):
            answer = await http.post(f"{MANAGE}/second/load", headers=headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert not host.wishes
        assert (await http.post(f"{MANAGE}/second/load", headers=ADMIN)).status_code == 202
        assert (await http.get("/v1/models", headers=ADMIN)).status_code == 401


async def test_operators_have_a_rate_too() -> None:
    limits: dict[str, Any] = {"rate_limit_rps": 0.01, "rate_limit_burst": 2, "admin_keys": "adm-11111111"}
    async with hosting(**limits) as (_, _, http):
        statuses = [(await http.get(MANAGE, headers=ADMIN)).status_code for _ in range(3)]
        assert statuses == [200, 200, 429]


async def test_the_routes_are_documented() -> None:
    async with hosting() as (_, _, http):
        paths = (await http.get("/openapi.json")).json()["paths"]
        assert {path for path in paths if path.startswith(MANAGE)} == {
            MANAGE, f"{MANAGE}/{{model}}",
            *(f"{MANAGE}/{{model}}/{name}" for name in ("load", "wake", "sleep", "unload", "scale")),
        }  # fmt: skip
        body = paths[f"{MANAGE}/{{model}}/scale"]["post"]["requestBody"]
        assert body["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/ScaleBody"}
        document = (await http.get("/openapi.json")).json()["components"]["schemas"]
        assert {"ScaleBody", "AddedModelBody"} <= set(document)
        wrong = await http.post(f"{MANAGE}/second/restart")
        assert wrong.status_code == 405
