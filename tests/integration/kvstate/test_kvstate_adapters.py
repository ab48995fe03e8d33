"""The calls about the register of adapters on a real broker and a real Redis."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shared import subjects
from shared.bus.endpoint import Endpoint, call
from shared.bus.nats import NatsBus
from shared.errors import Conflict, InvalidRequest, RateLimited
from shared.messages import (
    Adapter,
    AdapterChanged,
    AdapterDelete,
    AdapterList,
    AdapterPage,
    AdapterPut,
    AdapterStored,
)
from shared.messages.adapters import MAX_PER_BASE
from tests.kits.kvstate.service import own_redis, running
from tests.kits.waiting import PATIENCE_S


def adapter(
    name: str = "fr", content: str = "a", base: str = "demo", source: str = "/adapters/fr"
) -> Adapter:
    return Adapter(
        name=name, base=base, source=source, fingerprint=content * 32, rank=8, num_bytes=1000, created_s=5
    )


async def put(bus: NatsBus, one: Adapter, *, replace: bool = False) -> AdapterStored:
    asked = AdapterPut(adapter=one, replace=replace)
    return await call(bus, subjects.ADAPTER_PUT, asked, AdapterStored, timeout_s=PATIENCE_S)


async def listed(bus: NatsBus) -> list[Adapter]:
    found, cursor = list[Adapter](), ""
    while True:
        page = await call(
            bus, subjects.ADAPTERS, AdapterList(cursor=cursor), AdapterPage, timeout_s=PATIENCE_S
        )
        found += page.adapters
        cursor = page.cursor
        if not cursor:
            return found


@pytest.fixture
async def redis_of_test(tmp_path: Path) -> AsyncIterator[str]:
    async with own_redis(tmp_path) as (server, _):
        yield server.url


async def test_the_register_is_kept_and_its_changes_are_published(
    nats_url: str, redis_of_test: str, nats_bus: NatsBus
) -> None:
    news: asyncio.Queue[AdapterChanged] = asyncio.Queue()
    listener = Endpoint(nats_bus).listener(AdapterChanged, lambda one, _: news.put_nowait(one))
    heard = await nats_bus.subscribe(subjects.ADAPTER_CHANGED, listener)
    await nats_bus.flush()
    async with running(nats_url, redis_of_test):
        stored = await put(nats_bus, adapter())
        assert stored.adapter == adapter()
        assert await news.get() == AdapterChanged(
            base="demo", name="fr", before=0, version=stored.version, put=adapter()
        )
        assert await put(nats_bus, adapter()) == stored
        with pytest.raises(Conflict, match="has an adapter 'fr' with other content"):
            await put(nats_bus, adapter(content="b"))
        replaced = await put(nats_bus, adapter(content="b"), replace=True)
        assert (await news.get()).before == stored.version
    async with running(nats_url, redis_of_test):
        assert await listed(nats_bus) == [adapter(content="b")]
        known = AdapterList(known=replaced.version)
        page = await call(nats_bus, subjects.ADAPTERS, known, AdapterPage, timeout_s=PATIENCE_S)
        assert page == AdapterPage(version=replaced.version)
        asked = AdapterDelete(base="demo", name="fr")
        gone = await call(nats_bus, subjects.ADAPTER_DELETE, asked, AdapterStored, timeout_s=PATIENCE_S)
        assert gone.adapter == adapter(content="b")
        told = await news.get()
        assert (told.version, told.put) == (gone.version, None)
        again = await call(nats_bus, subjects.ADAPTER_DELETE, asked, AdapterStored, timeout_s=PATIENCE_S)
        assert again == AdapterStored(version=gone.version)
        assert await listed(nats_bus) == []
    assert news.empty(), "a call that changes nothing is not published"
    await heard.unsubscribe()


async def test_a_base_with_as_many_adapters_as_it_may_have(
    nats_url: str, redis_of_test: str, nats_bus: NatsBus
) -> None:
    source = "/" + "x" * 4000  # so that the list takes several messages
    adapters = [adapter(f"a{number:04}", source=source) for number in range(MAX_PER_BASE)]
    async with running(nats_url, redis_of_test):
        for one in adapters:
            await put(nats_bus, one)
        with pytest.raises(RateLimited, match="unload one"):
            await put(nats_bus, adapter("more"))
        assert await listed(nats_bus) == adapters


@pytest.mark.parametrize("wrong", ["a b", "a:b", "", "x" * 65, "../a"[:2] + "/x"])
async def test_a_wrong_name_is_refused(nats_url: str, redis_url: str, nats_bus: NatsBus, wrong: str) -> None:
    async with running(nats_url, redis_url):
        with pytest.raises(InvalidRequest, match="name"):
            await put(nats_bus, adapter(wrong))
