"""The live view in a real browser, before a scripted gateway with groups that tests make up."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from shared import subjects
from shared.codec import encode
from shared.messages import (
    ChatMessage,
    Heartbeat,
    Load,
    ModelCard,
    SessionRecord,
    SessionTurn,
    SessionTurns,
)
from shared.messages.base import DEFAULT_TENANT as TENANT
from tests.kits.gateway.gateway import Gateway, running_gateway
from tests.kits.model_host import state_of
from tests.kits.pages.chromium import BROWSER, OpenPage, chromium, open_page

pytestmark = pytest.mark.skipif(not BROWSER, reason="there is no Chromium; on Debian: apt install chromium")
GROUPS = {"g0": ("demo", 1), "g1": ("demo", 1), "g2": ("a/b", 2)}  # models and ranks
CALLS = 40  # single ones, which are no conversations
SECTIONS = """[...document.querySelectorAll('.model')].map((one) => {
    const groups = [...one.querySelectorAll('h4')].map((name) => name.textContent);
    return [one.dataset.model, ...groups].join(' ');
}).join()"""
LOAD = Load(running=3, max_running=8, max_waiting=64, tokens_per_s=70, total_blocks=400, free_blocks=300)


def beat(group: str, seq: int) -> Heartbeat:
    model, ranks = GROUPS[group]
    card = ModelCard(name=model, context_length=64)
    return Heartbeat(
        group=group,
        instance_id="a",
        seq=seq,
        interval_ms=50,
        state="ready",
        tensor_parallel=ranks,
        model=card,
        load=LOAD,
    )


@asynccontextmanager
async def opened_view(width: int = 1200) -> AsyncIterator[tuple[Gateway, OpenPage]]:
    async with running_gateway() as gateway, chromium() as browser:
        gateway.fleet.offered[:] = [state_of("sleepy", "asleep")]
        names = [f"talk-{number}" for number in range(5)]
        for number, name in enumerate(names):
            said = [ChatMessage(role="user", content=f"Boat {number}")]
            gateway.fleet.sessions.records[TENANT, name] = SessionRecord(
                session_id=name, tenant=TENANT, model="demo", version=1, turns=1, messages=said
            )
        names += [f"s-{number:016x}-{number:016x}" for number in range(CALLS)]
        turns = [SessionTurn(tenant=TENANT, session_id=name, group="g0") for name in names]

        async def tell() -> None:
            seq = 0
            while True:
                seq += 1
                for group in GROUPS:
                    await gateway.fleet.bus.publish(subjects.heartbeat(group), encode(beat(group, seq)))
                await gateway.fleet.bus.publish(subjects.SESSION_TURNS, encode(SessionTurns(turns=turns)))
                await asyncio.sleep(0.05)

        telling = asyncio.create_task(tell())
        try:
            async with open_page(browser, gateway.url + "/cluster", width=width) as opened:
                yield gateway, opened
        finally:
            telling.cancel()


async def test_models_have_their_groups_and_split_ones_their_ranks() -> None:
    async with opened_view() as (_, opened):
        page = opened.page
        await opened.until(f"{SECTIONS} === 'a/b g2,demo g0 g1,sleepy'")
        assert await page.inner_text(".model[data-model=sleepy] .facts") == "asleep: a request wakes it"
        facts = await page.inner_text(".model[data-model=demo] .facts")
        assert facts == "2 of 2 groups ready · 6 running · 140 tokens a second"
        split = page.locator(".model[data-model='a/b'] .ranks")
        assert await split.locator("li").count() == 2
        assert (await split.inner_text()).strip().endswith("Split over 2 ranks")
        assert await page.locator(".model[data-model=demo] .ranks:not([hidden])").count() == 0
        assert opened.wrong == []


async def test_conversations_stand_at_their_groups_by_title_and_single_calls_do_not() -> None:
    async with opened_view() as (_, opened):
        talks = opened.page.locator(".group .talks:not([hidden])")
        await opened.page.wait_for_selector(".talks:has-text('5 conversations')")
        assert await talks.count() == 1
        assert await talks.locator("li").all_inner_texts() == ["Boat 4", "Boat 3", "Boat 2", "and 2 more"]
        assert "s-0000" not in await opened.page.inner_text("main")


@pytest.mark.parametrize("width", [390, 1200])
async def test_charts_have_axes(width: int) -> None:
    async with opened_view(width) as (_, opened):
        page = opened.page
        await opened.until("document.querySelector('.chart.b .ticks.y').textContent === '1050'")
        assert await page.locator(".chart.a .ticks.y span").all_inner_texts() == ["400", "200", "0"]
        assert await page.locator(".chart.a .ticks.x span").all_inner_texts() == [
            "60 s ago",
            "30 s ago",
            "now",
        ]
        label = await page.get_attribute(".chart.b svg", "aria-label")
        assert label == "Requests running over the last minute: now 9, at most 9"
        assert await page.evaluate("document.documentElement.scrollWidth") == width
        assert await opened.serious_faults() == []
