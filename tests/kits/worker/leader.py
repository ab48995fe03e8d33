"""A whole leader on any bus with the null engine, and a caller that collects frames."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from services.worker.domain.kv_events.contents import KVContents
from services.worker.leader.adapters.calls import Inspect
from services.worker.leader.context import LeaderContext
from services.worker.leader.drafting.draft_engine import DraftEngine
from services.worker.leader.intake.grammar_options import GrammarOptions
from services.worker.leader.kv_tier.block_ownership import BlockIndex
from services.worker.leader.kv_tier.kv_options import KVOptions
from services.worker.leader.options import LeaderOptions
from services.worker.leader.wiring import LeaderPorts, build_leader
from services.worker.metrics import WorkerMetrics
from services.worker.model_files.model import Model
from services.worker.null.engine import TEXT, NullEngine
from services.worker.null.model import null_model
from services.worker.orchestrator.failure_recovery_manager import RestartPauses
from services.worker.rank_protocol.plan import Engine
from shared import codec, subjects
from shared.bus.api import Bus, Message
from shared.client.calls.blocks_client import BlocksClient
from shared.errors import SessionNotFound, Unavailable
from shared.messages import (
    Adapter,
    AnyFrame,
    ChatMessage,
    Done,
    Failed,
    FrameBatch,
    GenerateRequest,
    Route,
    SessionCommitted,
    SessionRecord,
    Tokens,
    Work,
)
from shared.telemetry.service_registry import ServiceRegistry
from shared.telemetry.spans.facts import SpanSink
from tests.kits.memory_bus import MemoryBroker, MemoryBus
from tests.kits.waiting import PATIENCE_S, until
from tests.kits.worker.loop_carrier import LoopCarrier
from tests.kits.worker.options import record_limits, scheduler_limits


class DictStore:
    """Session records in a dict; with `away` set every call raises `Unavailable`."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], SessionRecord] = {}
        self.deleted: set[tuple[str, str]] = set()
        self.away = False
        self.commits = 0
        self.delay_s = 0.0

    async def get(self, tenant: str, session_id: str, *, timeout_s: float) -> SessionRecord:
        await asyncio.sleep(self.delay_s)
        if self.away:
            raise Unavailable("the store is away")
        record = self.records.get((tenant, session_id))
        if record is None:
            raise SessionNotFound(
                f"no session {session_id}", deleted=(tenant, session_id) in self.deleted or None
            )
        return record

    async def commit(self, records: list[SessionRecord], *, timeout_s: float) -> SessionCommitted:
        await asyncio.sleep(0)
        if self.away:
            raise Unavailable("the store is away")
        self.commits += 1
        stale = []
        for index, record in enumerate(records):
            key = (record.tenant, record.session_id)
            if key in self.records and self.records[key].version >= record.version:
                stale.append(index)
            else:
                self.records[key] = record
        return SessionCommitted(stale=stale)


def null_engine(
    *, blocks: int = 256, delay_s: float = 0.0, context: int = 2048, vocab_size: int = 257
) -> NullEngine:
    return NullEngine(
        tokens=list(TEXT.encode()),
        num_blocks=blocks,
        vocab_size=vocab_size,
        context_length=context,
        step_delay_s=delay_s,
    )


def leader_context(bus: Bus | None = None, clock: Callable[[], float] = time.monotonic) -> LeaderContext:
    """The context for parts of a leader that a test builds itself."""
    metrics = WorkerMetrics(CollectorRegistry())
    return LeaderContext("g0", "i", "demo", bus or MemoryBus(MemoryBroker()), metrics, clock)


class Kit:
    """A leader and a caller, as an async context manager; exit fails if a task crashed or logged an error."""

    def __init__(
        self,
        bus: Bus,
        engine: Engine | None = None,
        group: str = "g0",
        model: Model | None = None,
        index: BlockIndex | None = None,
        *,
        instance_id: str = "i",
        outside: Bus | None = None,
        store: DictStore | None = None,
        spans: SpanSink | None = None,
        draft_engine: DraftEngine | None = None,
        inspect: Inspect | None = None,
        kv_contents: KVContents | None = None,
        **options: Any,
    ) -> None:
        self.bus = bus
        self.outside = outside or bus
        self.group = group
        self.instance_id = instance_id
        self.engine = engine or null_engine()
        self.store = store or DictStore()
        self.registry = ServiceRegistry()
        options.setdefault("steps", scheduler_limits(256, 64, 64))
        options.setdefault("stream_interval_ms", 0.0)  # tokens come as they are computed
        options.setdefault("kv", KVOptions())
        options.setdefault("grammars", GrammarOptions())
        options.setdefault("sessions", record_limits())
        options.setdefault("back_off", RestartPauses(first_s=0.02))
        # a busy machine can pause this process for seconds, which a leader would log as an error
        options.setdefault("heartbeat_stale_s", PATIENCE_S)
        leader_options = LeaderOptions(
            group=group, instance_id=instance_id, tensor_parallel=1, drain_timeout_s=5.0, **options
        )
        ports = LeaderPorts(
            bus=bus,
            outside=self.outside,
            carrier=LoopCarrier(bus, leader_options.heartbeat_interval_s, leader_options.heartbeat_stale_s),
            engine=self.engine,
            model=model or null_model("demo", 2048),
            store=self.store,
            index=index or BlocksClient(bus),
            registry=self.registry,
            spans=spans,
            draft_engine=draft_engine,
            inspect=inspect,
            kv_contents=kv_contents,
        )
        self.leader = build_leader(leader_options, ports)
        self.frames: defaultdict[str, list[AnyFrame]] = defaultdict(list)
        self.batches: list[int] = []
        self.expected_errors: set[str] = set()
        self._stack = ExitStack()
        self.inbox = bus.new_inbox() + ".f"
        self.arrived = asyncio.Event()

    async def __aenter__(self) -> "Kit":
        self.logs = self._stack.enter_context(capture_logs())
        await self.bus.subscribe(self.inbox, self._on_frames)
        await self.leader.start()
        await self.bus.flush()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leader.stop()
        self._stack.close()
        assert not self.leader.crashed.is_set()
        errors = [entry for entry in self.logs if entry["log_level"] in ("error", "critical")]
        assert [entry for entry in errors if entry["event"] not in self.expected_errors] == []

    async def _on_frames(self, message: Message) -> None:
        batch = codec.decode(message.data, FrameBatch)
        assert batch.group == self.group
        self.batches.append(len(batch.frames))
        for frame in batch.frames:
            frames = self.frames[frame.request_id]
            if frames and frame.attempt > frames[0].attempt:
                frames.clear()
            if not frames or frame.attempt == frames[0].attempt:
                frames.append(frame)
        self.arrived.set()

    async def ask(
        self,
        request: GenerateRequest,
        headers: dict[str, str] | None = None,
        adapter: Adapter | None = None,
        *,
        outside: bool = False,
        counted_by: str = "",
    ) -> None:
        work = Work(
            request=codec.encode(request),
            route=Route(group=self.group, reason="test"),
            reply_to=self.inbox,
            adapter=adapter,
            outside=outside,
            counted_by=counted_by,
        )
        await self.bus.publish(subjects.work(self.group), codec.encode(work), headers=headers)

    async def end_of(self, request_id: str, timeout_s: float = PATIENCE_S) -> list[AnyFrame]:
        """Waits for the last frame and returns all frames; checks that their numbers have no gap."""
        async with asyncio.timeout(timeout_s):
            while not any(isinstance(frame, Done | Failed) for frame in self.frames[request_id]):
                self.arrived.clear()
                await self.arrived.wait()
        frames = self.frames[request_id]
        assert [frame.seq for frame in frames] == list(range(frames[0].seq, frames[0].seq + len(frames)))
        assert sum(isinstance(frame, Done | Failed) for frame in frames) == 1
        return frames

    async def run(
        self,
        request: GenerateRequest,
        headers: dict[str, str] | None = None,
        adapter: Adapter | None = None,
    ) -> list[AnyFrame]:
        await self.ask(request, headers, adapter)
        return await self.end_of(request.request_id)

    async def failure(
        self,
        request: GenerateRequest,
        headers: dict[str, str] | None = None,
        adapter: Adapter | None = None,
    ) -> Failed:
        last = (await self.run(request, headers, adapter))[-1]
        assert isinstance(last, Failed)
        return last

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the series that have these labels, among others."""
        samples = [one for family in self.registry.collect() for one in family.samples]
        return sum(
            one.value
            for one in samples
            if one.name == f"ryz_worker_{name}" and labels.items() <= one.labels.items()
        )

    async def all_free(self, timeout_s: float = PATIENCE_S) -> None:
        """Waits until the leader and the engine hold no request, block or queue place."""

        def free() -> bool:
            load, held = self.leader.load(), getattr(self.engine, "held_blocks", 0)
            return (load.running, load.waiting, held) == (0, 0, 0) and load.free_blocks == load.total_blocks

        await self.until(free, timeout_s)

    async def until(self, condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        """Waits for a condition."""
        await until(condition, timeout_s)


def chat(request_id: str, text: str = "hello", **fields: Any) -> GenerateRequest:
    sampling = {"max_tokens": 16, **fields.pop("sampling", {})}
    raw = {"request_id": request_id, "model": "demo", "sampling": sampling, **fields}
    if not raw.keys() & {"prompt", "prompt_token_ids", "messages"}:
        raw["messages"] = [ChatMessage(role="user", content=text)]
    return codec.convert(raw, GenerateRequest)


def text_of(frames: Sequence[AnyFrame], choice: int = 0) -> str:
    deltas = [delta for frame in frames if isinstance(frame, Tokens) for delta in frame.deltas]
    return "".join(delta.text for delta in deltas if delta.choice == choice)


def tokens_of(frames: Sequence[AnyFrame], choice: int = 0) -> list[int]:
    deltas = [delta for frame in frames if isinstance(frame, Tokens) for delta in frame.deltas]
    return [token for d in deltas if d.choice == choice for token in codec.unpack_tokens(d.token_ids)]


def finish_of(frames: Sequence[AnyFrame], choice: int = 0) -> str | None:
    deltas = [delta for frame in frames if isinstance(frame, Tokens) for delta in frame.deltas]
    reasons = [delta.finish_reason for delta in deltas if delta.choice == choice and delta.finish_reason]
    assert len(reasons) <= 1
    return reasons[0] if reasons else None
