"""What tenants get of a busy group, as it is shown over HTTP, on the page of tenants, and by the command."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.kits.e2e.stack import Stack, ryz
from tests.kits.pages.chromium import BROWSER, chromium, open_page
from tests.kits.waiting import until

KEYS = "key-of-acme:acme,key-of-lab:lab"
CLIENTS = 6  # of each tenant, for 4 running slots


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    env = {
        "RYZ_API_KEYS": KEYS, "RYZ_ADMIN_KEYS": "adm-11111111", "RYZ_MAX_RUNNING": "4",
        "RYZ_NULL_STEP_DELAY_MS": "10", "RYZ_TOKEN_BUDGET": "64", "RYZ_MAX_RUNNING_PER_TENANT": "1",
    }  # fmt: skip
    with Stack(tmp_path_factory.mktemp("shares"), "--engine", "null", "--groups", "1", env=env) as started:
        started.await_ready()
        assert ryz("tenants", "create", "acme", "--weight", "3", cwd=started.folder).returncode == 0
        yield started
        assert started.end() == 0


@asynccontextmanager
async def flooded(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    """Both tenants always have more requests than run; the client is an operator's."""

    async def ask(http: httpx.AsyncClient, tenant: str) -> None:
        body = {"model": "demo", "max_tokens": 40, "ignore_eos": True, "prompt": f"Hello from {tenant}"}
        while True:
            answer = await http.post(
                "/v1/completions", json=body, headers={"authorization": f"Bearer key-of-{tenant}"}
            )
            assert answer.status_code == 200, answer.text

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=stack.state.url, timeout=30, limits=limits) as http:
        asking = [asyncio.create_task(ask(http, name)) for name in ("acme", "lab") for _ in range(CLIENTS)]
        try:
            http.headers["authorization"] = "Bearer adm-11111111"
            yield http
        finally:
            for task in asking:
                task.cancel()
            ended = await asyncio.gather(*asking, return_exceptions=True)
            assert all(isinstance(one, asyncio.CancelledError) for one in ended), ended


async def parties(http: httpx.AsyncClient) -> dict[str, dict[str, Any]]:
    answer = await http.get("/v1/manage/shares")
    assert answer.status_code == 200, answer.text
    (group,) = answer.json()["groups"]
    return {one["party"]: one | {"of_group": group["tokens_per_s"]} for one in group["parties"]}


async def test_shares_follow_weights_over_http(stack: Stack) -> None:
    async with flooded(stack) as http:

        async def is_settled() -> bool:
            found = await parties(http)
            return found.keys() == {"acme", "lab"} and all(
                one["tokens_per_s"] and one["share"] is not None and abs(one["share"] - one["due"]) < 0.2
                for one in found.values()
            )

        await until(is_settled)
        found = await parties(http)
        assert (found["acme"]["due"], found["lab"]["due"], found["acme"]["weight"]) == (0.75, 0.25, 3.0)
        assert sum(one["share"] for one in found.values()) == pytest.approx(1, abs=0.001)
        assert sum(one["running"] for one in found.values()) <= 4
        assert sum(one["running"] + one["waiting"] for one in found.values()) <= 2 * CLIENTS
        both = sum(one["tokens_per_s"] for one in found.values())
        assert both == pytest.approx(found["acme"]["of_group"], rel=0.01)

        for key, status in (("key-of-acme", 401), ("adm-22222222", 401)):
            wrong = await http.get("/v1/manage/shares", headers={"authorization": f"Bearer {key}"})
            assert wrong.status_code == status, "shares name all tenants"


async def test_the_command_shows_a_table_and_json(stack: Stack) -> None:
    async with flooded(stack):
        await asyncio.sleep(0.5)
        shown = await asyncio.to_thread(ryz, "tenants", "shares", cwd=stack.folder)
        assert shown.returncode == 0, shown.stderr
        for word in ("acme", "lab", "75%", "25%", "tokens/s", "g0"):
            assert word in shown.stdout
        told = await asyncio.to_thread(ryz, "tenants", "shares", "--json", cwd=stack.folder)
        (group,) = json.loads(told.stdout)["groups"]
        assert {one["party"] for one in group["parties"]} == {"acme", "lab"}
        assert group["tokens_per_s"] > 0
    refused = await asyncio.to_thread(ryz, "tenants", "shares", "--json", "--watch", cwd=stack.folder)
    assert refused.returncode == 2


@pytest.mark.skipif(not BROWSER, reason="there is no Chromium; on Debian: apt install chromium")
@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark")])
async def test_the_page_follows_the_shares(stack: Stack, width: int, theme: str) -> None:
    url = f"{stack.state.url}/admin"
    async with chromium() as browser, open_page(browser, url, width=width, theme=theme) as opened:
        page = opened.page
        async with flooded(stack) as http:
            await parties(http)
            await page.wait_for_selector("#key-form:not([hidden])")
            await page.fill("#key", "adm-11111111")
            await page.press("#key", "Enter")
            acme = page.locator("#shares tr", has_text="acme")
            await acme.wait_for()
            cells = acme.locator("td")
            assert "weight 3" in await cells.nth(0).inner_text()

            async def shows_both() -> bool:
                rate = (await cells.nth(3).inner_text()).replace(",", "").strip("0")
                return await cells.nth(2).inner_text() == "75\u00a0%" and rate.isdigit()

            await until(shows_both)  # a look at a moment without the other party's requests shows 100 %
            assert await page.inner_text("#busy") == "1 of 1 group is busy"
            assert await page.evaluate("document.documentElement.scrollWidth") <= width
            assert await opened.serious_faults() == []
        await page.wait_for_selector("#no-shares:not([hidden])")
        assert await page.locator("#shares tr").count() == 0, "it follows without a reload"
        assert opened.wrong == []
