"""A group with an in-memory KV store: a null engine that stores and fetches, and the index of block names."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Self

import msgspec

from services.worker.leader.kv_tier.kv_options import KVOptions
from services.worker.leader.leader import Leader
from services.worker.null.engine import TEXT, NullEngine
from services.worker.rank_protocol.engine_info import EngineInfo
from services.worker.rank_protocol.failures import EngineFailed
from services.worker.rank_protocol.kv_messages import FetchBlocks, FetchResult, KVParts, StoreResult
from services.worker.rank_protocol.plan import StepPlan, StepResult
from shared import kv_hash
from shared.errors import Unavailable
from shared.flow.circuit import store_limits
from shared.messages import BlocksCommitted, BlocksFound, HeldBlocks
from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.leader import Kit

Store = dict[bytes, list[int]]  # block name -> tokens of the null engine's block


class StoreEngine(NullEngine):
    """A null engine with a KV store; tests set the faults.

    Attributes:
        error: Error of every store and fetch; empty for none.
        crowded: Whether a failed store is reported as crowded.
        hangs: Whether fetches wait for `release`.
        made_with: The adapters that computed the blocks of the store.
    """

    def __init__(
        self,
        store: Store,
        *,
        num_blocks: int = 64,
        delay_s: float = 0.0,
        made_with: dict[bytes, str] | None = None,
    ) -> None:
        super().__init__(
            tokens=list(TEXT.encode()),
            num_blocks=num_blocks,
            vocab_size=257,
            context_length=1024,
            step_delay_s=delay_s,
        )
        self.store = store
        self.made_with = {} if made_with is None else made_with
        self.error = ""
        self.crowded = False
        self.hangs = False
        self.never_writes = False
        self.refuses = False
        self.corrupt: set[bytes] = set()
        self.orders: list[FetchBlocks] = []
        self.probes = 0
        self._waiting: list[tuple[FetchBlocks, asyncio.Future[FetchResult]]] = []
        self._on_stored: Callable[[StoreResult], None] = lambda _: None
        self._on_failure: Callable[[], None] = lambda: None

    async def start(self) -> EngineInfo:
        return msgspec.structs.replace(await super().start(), kv_parts=KVParts(heads=2, head_bytes=8))

    def submit(self, plan: StepPlan) -> asyncio.Future[StepResult]:
        blocks = self._sequences.blocks
        copies = {copy.name: list(blocks.content[copy.block]) for copy in plan.store}
        self.made_with |= {copy.name: blocks.adapters.get(copy.block, "") for copy in plan.store}
        future = super().submit(plan)
        if copies and not self.never_writes:
            asyncio.get_running_loop().call_soon(self._write, copies)
        return future

    def fetch_blocks(self, order: FetchBlocks) -> asyncio.Future[FetchResult]:  # type: ignore[override]
        if self.refuses:
            raise EngineFailed("rank 1 died")
        future: asyncio.Future[FetchResult] = asyncio.get_running_loop().create_future()
        if order.blocks:
            self.orders.append(order)
        else:
            self.probes += 1
        if self.hangs:
            self._waiting.append((order, future))
        else:
            future.set_result(self._read(order))
        return future

    def release(self) -> None:
        """Answers the waiting fetches."""
        self.hangs = False
        waiting, self._waiting = self._waiting, []
        for order, future in waiting:
            if not future.done():
                future.set_result(self._read(order))

    def die(self) -> None:
        """Reports the loss of a rank between steps."""
        self._end("gone")
        self._on_failure()

    def watch_failures(self, on_failure: Callable[[], None]) -> None:
        self._on_failure = on_failure

    def watch_store(self, on_stored: Callable[[StoreResult], None]) -> None:
        self._on_stored = on_stored

    async def stop(self) -> None:
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(EngineFailed("the engine was stopped"))
                future.exception()
        self._waiting.clear()
        await super().stop()

    def _write(self, copies: Store) -> None:
        names = b"".join(copies)
        if self.error:
            self._on_stored(StoreResult(dropped=names, error=self.error, crowded=self.crowded))
        else:
            self.store.update(copies)
            self._on_stored(StoreResult(names=names, num_bytes=len(names)))

    def _read(self, order: FetchBlocks) -> FetchResult:
        if self.error:
            return FetchResult(fetch_id=order.fetch_id, count=0, error=self.error)
        count = 0
        for block, name in zip(order.blocks, kv_hash.split(order.names), strict=True):
            if name in self.corrupt:
                return FetchResult(fetch_id=order.fetch_id, count=count, corrupt=name)
            if name not in self.store:
                return FetchResult(fetch_id=order.fetch_id, count=count, missing=True)
            self._sequences.blocks.content[block] = list(self.store[name])
            self._sequences.blocks.adapters[block] = self.made_with.get(name, "")
            count += 1
        return FetchResult(fetch_id=order.fetch_id, count=count, num_bytes=16 * count)


class Index:
    """The index of the store, in place of the KV state service.

    Attributes:
        away: Whether every call raises `Unavailable`.
        delay_s: Delay of every `find`.
        answers: Answers to the next commits, in place of true ones.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.away = False
        self.delay_s = 0.0
        self.finds = 0
        self.commits: list[list[HeldBlocks]] = []
        self.answers: list[BlocksCommitted] = []

    @property
    def held(self) -> list[HeldBlocks]:
        """All committed entries."""
        return [one for commit in self.commits for one in commit]

    async def find(
        self, names: Sequence[bytes], *, lease_ms: int, timeout_s: float, parts: int = 0
    ) -> BlocksFound:
        self.finds += 1
        await asyncio.sleep(min(self.delay_s, timeout_s))
        if self.away or self.delay_s > timeout_s:
            raise Unavailable("the index is away")
        count = next((index for index, name in enumerate(names) if name not in self.store), len(names))
        return BlocksFound(count=count)

    async def commit(self, group: str, held: Sequence[HeldBlocks], *, timeout_s: float) -> BlocksCommitted:
        if self.away:
            raise Unavailable("the index is away")
        self.commits.append(list(held))
        if self.answers:
            return self.answers.pop(0)
        named = {name for one in held for name in kv_hash.split(one.names)}
        return BlocksCommitted(stored=len(named & self.store.keys()))


def store_state(leader: Leader) -> dict[str, object]:
    """The part of the leader's status about the KV store."""
    state = leader.detail()["kv_store"]
    assert isinstance(state, dict)
    return state


QUICK = KVOptions(
    kv_fetch="always",
    kv_lookup_timeout_s=0.05,
    kv_fetch_timeout_s=0.1,
    commit_interval_s=0.01,
    circuit=store_limits(probe_s=0.02),
)


class Group(Kit):
    """A kit whose engine has a KV store."""

    def __init__(self, bus: MemoryBus, store: Store | None = None, group: str = "g0", **options: Any) -> None:
        self.blocks: Store = {} if store is None else store
        self.ranks = StoreEngine(self.blocks, **options.pop("engine", {}))
        self.index = Index(self.blocks)
        options.setdefault("kv", QUICK)
        super().__init__(bus, self.ranks, group, index=self.index, **options)

    @property
    def state(self) -> dict[str, object]:
        return store_state(self.leader)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        return self

    def drop(self, names: list[bytes]) -> None:
        """Evicts these blocks from the group."""
        scheduler = self.leader.parts.engine.scheduler
        assert scheduler is not None
        scheduler.blocks.drop(names)

    async def until_held(self, blocks: int) -> None:
        await self.until(lambda: any(len(one.names) == 16 * blocks for one in self.index.held))
