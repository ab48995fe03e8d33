"""The pages' files over HTTP: types, tags, the security policy, and who may see the cluster."""

import asyncio
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from services.gateway.pages.cluster_events import MAX_VIEWERS
from shared import subjects
from shared.codec import encode
from shared.messages import GroupDown, SessionTurn, SessionTurns
from tests.kits.gateway.gateway import Gateway, running_gateway
from tests.kits.waiting import PATIENCE_S, until
from tools.pages.vendored import VENDOR, read_table, wrong_files

pytestmark = pytest.mark.asyncio(loop_scope="module")
KEYS = {"ada": "secret-key-of-ada", "bob": "secret-key-of-bob"}
HTML = {"Accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with running_gateway(api_keys=",".join(f"{key}:{name}" for name, key in KEYS.items())) as running:
        yield running


async def test_browsers_get_the_chat_and_others_the_index(http: httpx.AsyncClient) -> None:
    page = await http.get("/", headers=HTML)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "unsafe" not in page.headers["content-security-policy"]
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for accept in ("*/*", "application/json", "text/html;q=0"):
        index = await http.get("/", headers={"Accept": accept})
        assert index.json()["name"] == "ryzanstein"
        assert index.headers["vary"] == page.headers["vary"] == "accept"


async def test_pages_have_no_inline_script_or_style_and_name_files_that_exist(
    http: httpx.AsyncClient,
) -> None:
    for path in ("/", "/cluster", "/admin"):
        text = (await http.get(path, headers=HTML)).text
        assert "<style" not in text
        assert " style=" not in text
        assert not re.search(r"<[^>]* on[a-z]+=", text)
        for part in text.split('src="')[1:] + text.split('href="/pages')[1:]:
            name = part.split('"')[0]
            name = name if name.startswith("/pages") else f"/pages{name}"
            assert (await http.head(name)).status_code == 200, name
        assert all("></script>" in part for part in text.split("<script")[1:])


async def test_a_file_that_the_browser_has_is_not_sent_again(http: httpx.AsyncClient) -> None:
    first = await http.get("/pages/js/chat.js")
    assert first.headers["content-type"] == "text/javascript; charset=utf-8"
    again = await http.get("/pages/js/chat.js", headers={"If-None-Match": f"W/{first.headers['etag']}"})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    for path in ("/pages/", "/pages/../static_files.py", "/pages/js/none.js", "/pages/%2e%2e/assembly.py"):
        assert (await http.get(path)).status_code == 404


async def test_pages_can_be_switched_off() -> None:
    async with running_gateway(pages=False) as closed, httpx.AsyncClient(base_url=closed.url) as http:
        assert (await http.get("/", headers=HTML)).json()["name"] == "ryzanstein"
        assert (await http.get("/cluster", headers=HTML)).status_code == 404
        assert (await http.get("/cluster/events")).status_code == 404


async def test_a_page_of_another_site_gets_no_events() -> None:
    async with running_gateway() as opened, httpx.AsyncClient(base_url=opened.url) as http:
        answer = await http.get("/cluster/events", headers={"Origin": "https://else.example"})
        assert answer.status_code == 403


async def first_events(http: httpx.AsyncClient, tenant: str, until: str) -> str:
    headers = {"Authorization": f"Bearer {KEYS[tenant]}"}
    async with http.stream("GET", "/cluster/events", headers=headers) as answer, asyncio.timeout(PATIENCE_S):
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        async for line in answer.aiter_lines():
            if until in line:
                return line
    raise AssertionError("the events ended")


async def test_events_need_a_key_and_show_the_sessions_of_its_tenant_only(
    gateway: Gateway, http: httpx.AsyncClient
) -> None:
    assert (await http.get("/cluster/events")).status_code == 401

    async def tell() -> None:
        down = GroupDown(group="g7", instance_id="i", reason="silent")
        await gateway.fleet.bus.publish(subjects.GROUP_DOWN, encode(down))
        turns = [SessionTurn(tenant=name, session_id=f"tea-of-{name}", group="g0") for name in KEYS]
        while True:
            await gateway.fleet.bus.publish(subjects.SESSION_TURNS, encode(SessionTurns(turns=turns)))
            await asyncio.sleep(0.05)

    telling = asyncio.create_task(tell())
    try:
        seen = await first_events(http, "ada", "tea-of-")
    finally:
        telling.cancel()
    state = json.loads(seen.removeprefix("data: "))
    assert [session["session_id"] for session in state["sessions"]] == ["tea-of-ada"]
    assert [(one["kind"], one["group"]) for one in state["incidents"]] == [("lost", "g7")]
    assert "bob" not in seen


async def test_viewers_are_bounded_and_leave_nothing_behind(
    gateway: Gateway, http: httpx.AsyncClient
) -> None:
    share = gateway.service.settings.tenant_share  # type: ignore[attr-defined]
    streams = []
    headers = {"Authorization": f"Bearer {KEYS['bob']}"}
    async with httpx.AsyncClient(base_url=gateway.url, limits=httpx.Limits(max_connections=200)) as many:
        for _ in range(round(MAX_VIEWERS * share)):
            request = many.build_request("GET", "/cluster/events", headers=headers)
            streams.append(await many.send(request, stream=True))
        refused = await many.get("/cluster/events", headers=headers)
        assert (refused.status_code, refused.headers["x-ryz-reason"]) == (429, "tenant_viewers")
        for stream in streams:
            await stream.aclose()
    assert gateway.running == 0
    await until(lambda: not gateway.fleet.tasks)
    assert await first_events(http, "bob", "groups")


async def test_vendored_files_are_those_that_were_recorded() -> None:
    table = read_table()
    assert {entry["file"] for entry in table} | {"vendored.json"} == {
        str(path.relative_to(VENDOR)) for path in VENDOR.rglob("*") if path.is_file()
    }
    for entry in table:
        assert hashlib.sha256((VENDOR / entry["file"]).read_bytes()).hexdigest() == entry["sha256"]
    with_license = {entry["package"] for entry in table if "LICENSE" in entry["file"]}
    assert with_license == {entry["package"] for entry in table}


async def test_vendored_files_are_those_of_the_npm_packages() -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    try:
        assert await asyncio.to_thread(wrong_files, write=False) == []
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        pytest.skip("npm reaches no registry")
