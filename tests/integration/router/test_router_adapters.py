"""Adapters at real routers, with the register in a real Redis, and leaders that read no files."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from services.kvstate.adapters.redis_adapters import RedisAdapterStore
from services.kvstate.adapters.store import RegisterEntry
from services.kvstate.redis.link import RedisLink
from shared import subjects
from shared.bus.endpoint import call
from shared.bus.nats import NatsBus
from shared.client import AdaptersClient
from shared.codec import encode
from shared.errors import Conflict, InvalidRequest, ModelNotFound, Unavailable
from shared.lifecycle import Service
from shared.messages import (
    Accepted,
    Adapter,
    AdapterInspected,
    AdapterManaged,
    Failed,
    ListedAdapter,
    ListModels,
    LoadAdapterCall,
    ModelList,
    ResumePoint,
    UnloadAdapterCall,
)
from tests.kits.kvstate.service import own_redis, running
from tests.kits.router.agent import HostAgent
from tests.kits.router.hosts import GIB, offer
from tests.kits.router.live import Caller, Leader, router, until_known
from tests.kits.waiting import PATIENCE_S, until

A, B = "a" * 32, "b" * 32


@dataclass(frozen=True, slots=True)
class Fleet:
    """Two leaders of a model, a caller and a store; `router` and `kvstate` run services for them."""

    url: str
    bus: NatsBus
    store: str
    model: str
    caller: Caller
    leaders: list[Leader]

    @asynccontextmanager
    async def kvstate(self) -> AsyncIterator[Service]:
        async with running(self.url, self.store) as service:
            yield service

    @asynccontextmanager
    async def router(self, **more: object) -> AsyncIterator[Service]:
        """A router that has heard the leaders."""
        async with router(self.url, **more) as service:
            await until_known(service, *self.leaders)
            yield service

    async def accepted(self, model: str = "", **more: Any) -> Adapter | None:
        """The adapter with which a leader got a request."""
        request = self.caller.request(model=model or self.model, **more)
        assert isinstance(await self.caller.ask(request), Accepted)
        (adapter,) = [
            work.adapter
            for leader in self.leaders
            for work, _ in leader.taken
            if request.request_id.encode() in work.request
        ]
        return adapter


@pytest.fixture
async def fleet(
    request: pytest.FixtureRequest, nats_bus: NatsBus, model_name: str, caller: Caller, tmp_path: Path
) -> AsyncIterator[Fleet]:
    url, leaders = request.getfixturevalue("nats_url"), list[Leader]()
    async with own_redis(tmp_path) as (server, _):
        for number in range(2):
            leaders.append(Leader(nats_bus, f"{model_name}-g{number}", model_name))
            await leaders[-1].start()
        yield Fleet(url, nats_bus, server.url, model_name, caller, leaders)
        for leader in leaders:
            await leader.stop()


def known(*routers: Service) -> list[int]:
    """How many adapters each router knows; -1: it has not read the register."""
    rows = [service.status().detail["adapters"] for service in routers]
    return [row["known"] if row["current"] else -1 for row in rows]


async def load(fleet: Fleet, base: str = "", *, replace: bool = False) -> Adapter:
    asked = LoadAdapterCall(base=base or fleet.model, name="fr", source="/adapters/fr", replace=replace)
    return (await call(fleet.bus, subjects.LOAD_ADAPTER, asked, AdapterManaged, timeout_s=PATIENCE_S)).adapter


async def unload(fleet: Fleet) -> Adapter:
    asked = UnloadAdapterCall(base=fleet.model, name="fr")
    return (
        await call(fleet.bus, subjects.UNLOAD_ADAPTER, asked, AdapterManaged, timeout_s=PATIENCE_S)
    ).adapter


async def failure(fleet: Fleet, model: str, **more: Any) -> Failed:
    return await fleet.caller.failure(fleet.caller.request(model=model, **more))


def point(fingerprint: str) -> ResumePoint:
    return ResumePoint(token_ids=[b"\0" * 8], next_seq=3, fingerprint=fingerprint)


async def test_an_adapter_from_its_loading_to_its_end(fleet: Fleet) -> None:
    model = f"{fleet.model}:fr"
    async with fleet.kvstate(), fleet.router() as one, fleet.router() as other:
        await until(lambda: known(one, other) == [0, 0])
        refused = await failure(fleet, model)
        assert (refused.code, refused.data["param"]) == ("model_not_found", "model")
        assert refused.message == f"model {fleet.model!r} has no adapter 'fr'; it has none"

        loaded = await load(fleet)
        assert (loaded.model, loaded.fingerprint, loaded.rank) == (model, A, 8)
        (question,) = [one for leader in fleet.leaders for one in leader.inspected]
        assert (question.model, question.source) == (fleet.model, "/adapters/fr")
        await until(lambda: known(one, other) == [1, 1])
        assert [await fleet.accepted(model) for _ in range(4)] == [loaded] * 4, "by either router"
        assert await fleet.accepted() is None

        query = ListModels(adapters_of=fleet.model)
        listed = await call(fleet.bus, subjects.MODELS, query, ModelList, timeout_s=PATIENCE_S)
        assert listed.adapters == [
            ListedAdapter(
                name="fr", source="fr", fingerprint=A, rank=8, num_bytes=1000, created_s=loaded.created_s
            )
        ]

        assert await unload(fleet) == loaded
        await until(lambda: known(one, other) == [0, 0])
        assert (await failure(fleet, model)).code == "model_not_found"
        with pytest.raises(ModelNotFound, match="has no adapter 'fr'"):
            await unload(fleet)


async def test_the_group_that_has_it_gets_its_requests(fleet: Fleet) -> None:
    fleet.leaders[1].adapters = [A]
    async with fleet.kvstate(), fleet.router() as service:
        await load(fleet)
        await until(lambda: service.status().detail["groups"][1]["adapters"] == 1 and known(service) == [1])
        for _ in range(10):
            await fleet.accepted(f"{fleet.model}:fr")
        assert [len(leader.taken) for leader in fleet.leaders] == [0, 10]


async def test_other_content_under_the_name(fleet: Fleet) -> None:
    model = f"{fleet.model}:fr"
    async with fleet.kvstate(), fleet.router() as service:
        await until(lambda: known(service) == [0])
        first = await load(fleet)
        assert await load(fleet) == first, "the same again is done already"
        for leader in fleet.leaders:
            leader.inspection = AdapterInspected(fingerprint=B, rank=8, num_bytes=1000)
        with pytest.raises(Conflict, match="has an adapter 'fr' with other content"):
            await load(fleet)
        second = await load(fleet, replace=True)
        assert second.fingerprint == B
        assert await fleet.accepted(model) == second
        # an answer that the first one began goes on with it, and not with the second
        assert await fleet.accepted(model, attempt=1, resume=point(f"w+{A}/fp16")) == first
        never = await failure(fleet, model, attempt=1, resume=point(f"w+{'c' * 32}/fp16"))
        assert (never.code, never.data["reason"]) == ("unavailable", "adapter_changed")


async def test_what_cannot_be_loaded(fleet: Fleet) -> None:
    async with fleet.kvstate(), fleet.router():
        with pytest.raises(ModelNotFound, match=r"no group serves model 'other'; models that are served: "):
            await load(fleet, "other")
        for leader in fleet.leaders:
            leader.inspection = InvalidRequest("/adapters/fr has no adapter_config.json", param="source")
        with pytest.raises(InvalidRequest, match=r"has no adapter_config\.json"):
            await load(fleet)
        for leader in fleet.leaders:
            await leader.deafen()
        with pytest.raises(Unavailable, match="is there to read the adapter"):
            await load(fleet)


async def test_a_name_that_a_model_has(fleet: Fleet) -> None:
    taken = Leader(fleet.bus, f"{fleet.model}-fr", f"{fleet.model}:fr")
    async with fleet.kvstate(), fleet.router() as service:
        await load(fleet)
        await until(lambda: known(service) == [1])
        await taken.start()
        await until_known(service, taken)
        fleet.leaders.append(taken)
        assert await fleet.accepted(f"{fleet.model}:fr") is None
        assert len(taken.taken) == 1
        with pytest.raises(Conflict, match="a model is served under the name"):
            await load(fleet)


async def test_a_router_that_has_not_read_the_register_says_so(fleet: Fleet) -> None:
    model = f"{fleet.model}:fr"
    async with fleet.kvstate(), fleet.router():
        await load(fleet)
    async with fleet.router() as service:
        refused = await failure(fleet, model)
        assert (refused.code, refused.data["reason"]) == ("unavailable", "adapters_unknown")
        assert refused.data["retry_after_s"] > 0
        assert await fleet.accepted() is None
        with pytest.raises(Unavailable, match="no KV state service is running"):
            await load(fleet)
        async with fleet.kvstate():
            await until(lambda: known(service) == [1])
            assert await fleet.accepted(model) is not None
        assert await fleet.accepted(model) is not None, "what was read stands while the service is away"


async def test_a_change_whose_news_was_lost_is_found_by_comparing(fleet: Fleet) -> None:
    link = RedisLink(
        fleet.store, timeout_s=PATIENCE_S, max_connections=1, name="store", reason="session_store"
    )
    adapter = Adapter(name="fr", base=fleet.model, source="/x", fingerprint=A, rank=8, num_bytes=10)
    silent = RegisterEntry(fleet.model, "fr", A, A, encode(adapter))
    async with fleet.kvstate(), fleet.router(adapters_refresh_s=0.05) as service:
        await until(lambda: known(service) == [0])
        await RedisAdapterStore(link).put(silent, replace=False)
        await until(lambda: known(service) == [1])
        assert await fleet.accepted(f"{fleet.model}:fr") == adapter
    await link.close()


async def test_what_a_host_has_read_counts_while_no_group_of_the_base_runs(fleet: Fleet) -> None:
    """So the adapters of a models file are known before their base is loaded, which stays asleep."""
    asleep = f"{fleet.model}-asleep"
    agent = HostAgent(fleet.bus, fleet.model, [offer(asleep)], budget_bytes=8 * GIB)
    await agent.start()
    read = AdapterInspected(fingerprint=B, rank=4, num_bytes=10)
    async with fleet.kvstate(), fleet.router() as service:
        await until(lambda: len(service.status().detail["models"]) > 0)
        client = AdaptersClient(fleet.bus)
        loaded = await client.load_adapter(asleep, "fr", "/x", found=read, wait_s=PATIENCE_S)
        assert (loaded.fingerprint, loaded.rank, loaded.num_bytes) == (B, 4, 10)
        assert agent.started() == []
        awake = await client.load_adapter(fleet.model, "fr", "/x", found=read, wait_s=PATIENCE_S)
        assert awake.fingerprint == A, "a leader reads the files itself"
        await until(lambda: known(service) == [2])
        refused = await failure(fleet, f"{asleep}:fr")
        assert refused.data["reason"] == "waking", "the request loads the base"
    await agent.stop()


async def test_an_adapter_wakes_its_base(fleet: Fleet) -> None:
    """By being loaded, and by a request."""
    loaded, asked = f"{fleet.model}-loaded", f"{fleet.model}-asked"
    agent = HostAgent(fleet.bus, fleet.model, [offer(loaded), offer(asked)], budget_bytes=8 * GIB)
    link = RedisLink(
        fleet.store, timeout_s=PATIENCE_S, max_connections=1, name="store", reason="session_store"
    )
    adapter = Adapter(name="fr", base=asked, source="/x", fingerprint=A, rank=8, num_bytes=10)
    await RedisAdapterStore(link).put(RegisterEntry(asked, "fr", A, A, encode(adapter)), replace=False)
    await agent.start()
    async with fleet.kvstate(), fleet.router() as service:
        await until(lambda: known(service) == [1] and len(service.status().detail["models"]) > 0)
        await AdaptersClient(fleet.bus).load_adapter(loaded, "fr", "/adapters/fr", wait_s=PATIENCE_S)
        assert [one.model for one in agent.started()] == [loaded]
        refused = await failure(fleet, f"{asked}:fr")
        assert (refused.code, refused.data["reason"]) == ("unavailable", "waking")
        assert f"model {asked!r}" in refused.message
        await until(lambda: asked in {leader.model for leader in agent.leaders.values()})
        (leader,) = [one for one in agent.leaders.values() if one.model == asked]
        fleet.leaders.append(leader)
        await until_known(service, leader)
        assert await fleet.accepted(f"{asked}:fr") == adapter
    await agent.stop()
    await link.close()
