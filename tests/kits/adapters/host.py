"""Adapters without files: a register in memory that answers the calls of routers and gateways."""

import time

from services.kvstate.adapters.calls import AdapterCalls
from shared import subjects
from shared.bus import Bus, Message
from shared.bus.endpoint import Endpoint
from shared.errors import InvalidRequest, ModelNotFound, RyzError
from shared.messages import (
    Adapter,
    AdapterDelete,
    AdapterList,
    AdapterManaged,
    AdapterPage,
    AdapterPut,
    AdapterStored,
    LoadAdapterCall,
    UnloadAdapterCall,
)
from shared.messages.base import Wire
from tests.kits.kvstate.memory_adapters import MemoryAdapterStore


class AdapterHost:
    """The KV state service and a router in one, as far as adapters are concerned.

    Attributes:
        bases: Models that have adapters.
        fails: Why files cannot be used; empty: they can.
        asked: The calls, in order.
    """

    def __init__(self, bus: Bus, *bases: str) -> None:
        self.bus = bus
        self.bases = set(bases)
        self.fails: RyzError | None = None
        self.asked: list[LoadAdapterCall | UnloadAdapterCall] = []
        self.content = "a"
        self._calls = {one.name: one for one in AdapterCalls(bus, MemoryAdapterStore(time.time)).calls()}

    async def start(self) -> "AdapterHost":
        """Subscribes."""
        endpoint = Endpoint(self.bus)
        await self.bus.subscribe(subjects.ADAPTERS, endpoint.handler(AdapterList, self._list))
        await self.bus.subscribe(subjects.LOAD_ADAPTER, endpoint.handler(LoadAdapterCall, self._load))
        await self.bus.subscribe(subjects.UNLOAD_ADAPTER, endpoint.handler(UnloadAdapterCall, self._unload))
        return self

    async def put(self, base: str, name: str, content: str = "a", source: str = "/adapters/x") -> Adapter:
        """Puts an adapter into the register as a router does."""
        adapter = Adapter(
            name=name,
            base=base,
            source=source,
            fingerprint=content * 32,
            rank=8,
            num_bytes=1000,
            created_s=11,
        )
        await self._calls["put_adapter"].answer(AdapterPut(adapter=adapter, replace=True))
        return adapter

    async def _list(self, query: AdapterList, _: Message) -> Wire:
        page = await self._calls["adapters"].answer(query)
        assert isinstance(page, AdapterPage)
        return page

    async def _load(self, asked: LoadAdapterCall, _: Message) -> AdapterManaged:
        self.asked.append(asked)
        if asked.base not in self.bases:
            raise ModelNotFound(f"no group serves model {asked.base!r}", param="model")
        if self.fails is not None:
            raise self.fails
        if not asked.source.startswith("/"):
            raise InvalidRequest(f"{asked.source} is no directory", param="source")
        adapter = Adapter(
            name=asked.name, base=asked.base, source=asked.source, fingerprint=self.content * 32, rank=8,
            num_bytes=1000, tenant=asked.tenant, created_s=11,
        )  # fmt: skip
        put = AdapterPut(adapter=adapter, replace=asked.replace)
        stored = await self._calls["put_adapter"].answer(put)
        assert isinstance(stored, AdapterStored)
        return AdapterManaged(adapter=stored.adapter or adapter)

    async def _unload(self, asked: UnloadAdapterCall, _: Message) -> AdapterManaged:
        self.asked.append(asked)
        gone = await self._calls["delete_adapter"].answer(AdapterDelete(base=asked.base, name=asked.name))
        assert isinstance(gone, AdapterStored)
        if gone.adapter is None:
            raise ModelNotFound(f"model {asked.base!r} has no adapter {asked.name!r}", param="name")
        return AdapterManaged(adapter=gone.adapter)
