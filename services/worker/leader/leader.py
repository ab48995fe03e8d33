"""The leader put together: its parts, its subscriptions, its tasks, and how it starts, drains and ends.

Everything it needs from outside (buses, engine, model, session store) is given to it; `__main__.py` makes
them. Tests make it with an in-memory bus and the null engine.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress

import structlog
from prometheus_client import CollectorRegistry

from services.worker.domain.generation.request import Generation
from services.worker.domain.generation.resend_budget import ResendBudget
from services.worker.domain.generation.retransmit_buffer import RetransmitBuffer
from services.worker.leader.bad_messages import BadMessages
from services.worker.leader.calls.attach_calls import AttachCalls, check_reply_to
from services.worker.leader.calls.kv_calls import MAX_ASKED, MAX_WARMS, KVCalls, check_token_ids
from services.worker.leader.calls.request_calls import RequestCalls
from services.worker.leader.engine_loop import EngineLoop
from services.worker.leader.fleet.drain import Drain
from services.worker.leader.fleet.fence import Fence
from services.worker.leader.fleet.group_description import GroupDescription
from services.worker.leader.fleet.heartbeat import HeartbeatCarrier, Heartbeats
from services.worker.leader.frame_publisher import FramePublisher
from services.worker.leader.intake.prompt_tokenizer import PromptTokenizer
from services.worker.leader.intake.sequence_builder import SequenceBuilder
from services.worker.leader.intake.work_intake import Intake
from services.worker.leader.kv_tier.block_ownership import BlockIndex
from services.worker.leader.kv_tier.kv_tier import KVTier
from services.worker.leader.options import LeaderOptions
from services.worker.leader.request_table import RequestTable
from services.worker.leader.sessions.delivery_tracker import DeliveryTracker
from services.worker.leader.sessions.peer_sessions import PeerSessionClient
from services.worker.leader.sessions.session_commits import RecordStore
from services.worker.leader.sessions.session_records import SessionRecords
from services.worker.leader.sessions.turn_end import TurnFinisher
from services.worker.leader.sessions.turn_lines import TurnLines
from services.worker.metrics import LoadCollector, RatesCollector, WorkerMetrics
from services.worker.model_dir import Model
from services.worker.orchestrator.failure_recovery_manager import FailureRecoveryManager
from services.worker.orchestrator.multi_gpu_orchestrator import MultiGPUOrchestrator
from services.worker.rank_protocol.plan import Engine
from shared import subjects
from shared.bus.api import Bus, Subscription
from shared.bus.endpoint import Endpoint
from shared.client.calls.blocks_client import BlocksClient
from shared.errors import RyzError, Unavailable
from shared.messages import (
    Attach,
    Cancel,
    Delivered,
    DrainGroup,
    GroupDown,
    Heartbeat,
    HoldersQuery,
    Load,
    Resend,
    SessionGet,
    SessionGone,
    State,
    WarmSession,
)

log = structlog.get_logger(__name__)
HOUSEKEEPING_S = 0.5
MAX_WARMING = 8  # sessions that are fetched at once because somebody asked for it


class Leader:
    """One group's leader. Call `start`, later `drain`, and `stop` in any case.

    outside: where the calls of services outside are read; answers to them go out on `bus`. On a connection of
    its own, a flood that has the broker cut it reaches nothing else.
    """

    def __init__(
        self,
        options: LeaderOptions,
        *,
        bus: Bus,
        outside: Bus,
        carrier: HeartbeatCarrier,
        engine: Engine,
        model: Model,
        store: RecordStore,
        index: BlockIndex | None = None,
        registry: CollectorRegistry,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._bus = bus
        self._outside = outside
        self._engine = engine
        self._model = model
        self._clock = clock
        self.crashed = asyncio.Event()
        metrics = WorkerMetrics(registry)
        registry.register(LoadCollector(self))
        self._bad_messages = BadMessages(metrics)
        self._endpoint = Endpoint(bus, self._bad_messages.report)
        outbox = RetransmitBuffer(retention_s=options.retention_s, max_bytes=options.retention_bytes)
        self._publisher = FramePublisher(
            options.group, options.instance_id, bus=bus, outbox=outbox, metrics=metrics, clock=clock
        )
        self._generations = RequestTable(outbox, self._publisher, metrics, clock)
        self._heartbeats = Heartbeats(
            carrier, options.heartbeat_interval_s, options.heartbeat_stale_s, self._heartbeat
        )
        self._kv_tier = KVTier(
            options.group,
            options.kv,
            engine=engine,
            index=index or BlocksClient(bus),
            metrics=metrics,
            clock=clock,
            token_budget=options.steps.token_budget,
            work=self._generations.work.set,
        )
        registry.register(RatesCollector(self._kv_tier))
        self._turns = TurnLines(options.turns)
        self._generations.on_end = self._ended
        self._group = MultiGPUOrchestrator(engine, FailureRecoveryManager(options.back_off))
        self._loop = EngineLoop(
            engine,
            self._group,
            generations=self._generations,
            limits=options.steps,
            kv_tier=self._kv_tier,
            prefix_sharing=options.prefix_sharing,
            metrics=metrics,
            context_length=model.context_length,
            announce=self._heartbeats.beat,
            stream_interval_s=options.stream_interval_s,
        )
        self._sessions = SessionRecords(
            store,
            options.sessions,
            metrics,
            lambda: bus.max_payload,
            PeerSessionClient(bus, options.sessions.lookup_timeout_s),
        )
        self._description = GroupDescription(
            options,
            model,
            engine=engine,
            group=self._group,
            loop=self._loop,
            generations=self._generations,
            kv_tier=self._kv_tier,
            sessions=self._sessions,
        )
        self._kv_calls = KVCalls(
            options.group,
            model=model.name,
            tensor_parallel=options.tensor_parallel,
            bus=bus,
            generations=self._generations,
            tier=self._kv_tier,
            sessions=self._sessions,
            refuse=self._refusal,
        )
        self._drain = Drain(
            options.group,
            options.instance_id,
            generations=self._generations,
            kv_tier=self._kv_tier,
            sessions=self._sessions,
            on_begin=self._group.drain,
            announce=self._heartbeats.beat,
            timeout_s=options.drain_timeout_s,
        )
        self._sessions.on_turns = self._kv_calls.tell_turns
        self._deliveries = DeliveryTracker()
        finisher = TurnFinisher(
            options.group,
            model.name,
            generations=self._generations,
            sessions=self._sessions,
            deliveries=self._deliveries,
            commit_wait_s=options.commit_wait_s,
        )
        self._generations.on_all_tokens = finisher.finish
        self._tokenizing = PromptTokenizer(
            model, metrics, lambda: self._loop.room.context_length, options.tokenize_timeout_s
        )
        self._intake = Intake(
            options.group,
            generations=self._generations,
            preparer=SequenceBuilder(
                model, self._sessions, self._deliveries, self._tokenizing, lambda: self._loop.room
            ),
            endpoint=self._endpoint,
            kv_tier=self._kv_tier,
            turns=self._turns,
            metrics=metrics,
            refuse=self._refusal,
            limits=options.intake,
            instance_id=options.instance_id,
        )
        self._control = RequestCalls(
            self._generations,
            bus.max_payload // 2,
            instance_id=options.instance_id,
            metrics=metrics,
            budget=ResendBudget(options.outside_resend_bytes_s),
        )
        self._fence = Fence(options.group, options.instance_id, self._generations)
        self._attaching = AttachCalls(
            options.group,
            options.instance_id,
            generations=self._generations,
            metrics=metrics,
            max_payload=bus.max_payload,
        )
        self._subscriptions: list[Subscription] = []
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def state(self) -> State:
        """What heartbeats say."""
        return self._group.state

    @property
    def failure(self) -> str:
        """Why the state is "recovering" or "failed"."""
        return self._group.failure

    @property
    def drained(self) -> asyncio.Event:
        """Set when a drain is over, whoever asked for it: the process may end."""
        return self._drain.done

    async def start(self) -> None:
        """Starts the engine and takes work from then on. Raises `EngineFailed` when it does not come up."""
        await self._heartbeats.start()
        self._spawn(self._heartbeats.run(), self._publisher.run(), self._sessions.run(), self._kv_tier.run())
        group, bus = self._options.group, self._bus
        handler, own_inbox = self._endpoint.handler, self._bad_messages.without_foreign_inboxes
        cancel = own_inbox(handler(Cancel, self._control.cancel))
        resend = own_inbox(handler(Resend, self._control.resend))
        down = Endpoint(bus, self._fence.report_bad).handler(
            GroupDown, self._fence.on_group_down, answers_bad=False
        )
        for subject, handle in (
            (subjects.work(group), self._intake.on_work),
            (subjects.cancel(group), cancel),
            (subjects.CANCEL_ALL, cancel),
            (subjects.resend(group), resend),
            (subjects.ATTACH, handler(Attach, self._attaching.attach, check=check_reply_to)),
            (subjects.delivered(group), handler(Delivered, self._deliveries.on_delivered)),
            (subjects.peer(group), handler(SessionGet, self._kv_calls.find_record)),
            (subjects.SESSION_GONE, handler(SessionGone, self._kv_calls.forget_session)),
            (subjects.drain(group), handler(DrainGroup, self._drain.on_drain)),
            (subjects.GROUP_DOWN, down),
        ):
            self._subscriptions.append(await bus.subscribe(subject, handle))
        for subject, handle in (
            (subjects.cancel(group, subjects.ANY_CALLER), cancel),
            (subjects.cancel_all(subjects.ANY_CALLER), cancel),
            (subjects.resend(group, subjects.ANY_CALLER), resend),
        ):
            self._subscriptions.append(
                await self._outside.subscribe(subject, handle, max_per_s=self._options.outside_calls_s)
            )
        self._subscriptions.append(
            await bus.subscribe(
                subjects.KV_HOLDERS,
                handler(HoldersQuery, self._kv_calls.find_cached, check=check_token_ids),
                max_pending=MAX_ASKED,
            )
        )
        self._subscriptions.append(
            await bus.subscribe(
                subjects.warm(group),
                handler(WarmSession, self._kv_calls.warm_session),
                max_concurrent=MAX_WARMING,
                max_pending=MAX_WARMS,
            )
        )
        await self._loop.start()  # heartbeats say "ready" from here on, so everything else is
        self._spawn(self._loop.run(), self._keep_house())
        await self._heartbeats.beat()

    async def drain(self, timeout_s: float) -> None:
        """Takes no new work, lets running generations end, and moves those that do not end in time.

        It may take `HAND_OVER_S` longer, to write KV. Called again it joins the drain that is under way.
        """
        await self._drain.run(timeout_s)

    async def stop(self) -> None:
        """Ends everything; what is pending is written first. Requests that run move."""
        await self._drain.stop()
        for subscription in self._subscriptions:
            await subscription.unsubscribe()
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError, Exception):  # a crash was logged when it happened
                await task
        await self._intake.close()
        self._tokenizing.close()
        await self._publisher.flush()
        if not await self._sessions.flush(self._options.sessions.commit_timeout_s):
            log.error("session records not stored", number=self._sessions.num_pending)
        self._group.stop()
        await self._heartbeats.stop()
        await self._engine.stop()

    def load(self) -> Load:
        """How busy the group is now."""
        return self._generations.load()

    def detail(self) -> dict[str, object]:
        """What `ryz status` shows of the group."""
        return self._description.detail()

    def kv_names(self, tokens: list[int], tenant: str = "default") -> list[bytes]:
        """The names of the blocks that a tenant's tokens fill; of no use while there is no store."""
        return self._kv_tier.names.of_tokens(tokens, tenant)

    def _ended(self, generation: Generation) -> None:
        self._kv_tier.end(generation)
        self._turns.leave(generation)

    def _refusal(self) -> RyzError | None:
        """Why no work is taken now; None: it is."""
        if self._drain.active:
            return self._drain.refusal()
        if self._group.state != "ready":
            return Unavailable(
                f"the engine of group {self._options.group} is not ready",
                reason=f"engine_{self._group.state}",
                retry_after_s=self._options.intake.retry_after_s,
            )
        return None

    def _heartbeat(self) -> Heartbeat:
        return self._description.heartbeat(self._intake.taken)

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            self._generations.expire()
            self._intake.places.expire()

    def _spawn(self, *coroutines: Coroutine[None, None, None]) -> None:
        for coroutine in coroutines:
            task = asyncio.create_task(coroutine)
            task.add_done_callback(self._note_crash)
            self._tasks.append(task)

    def _note_crash(self, task: asyncio.Task[None]) -> None:
        """None of the tasks ends by itself; if one does, the leader cannot go on."""
        if not task.cancelled() and task.exception() is not None:
            log.critical("a task of the leader crashed", exc_info=task.exception())
            self.crashed.set()
