"""The life of a leader: how its parts start, drain and end. `wiring.py` builds it."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass

import structlog

from services.worker.leader.control_runs import ControlRuns
from services.worker.leader.drafting.draft_engine import DraftEngine
from services.worker.leader.engine_loop import EngineLoop
from services.worker.leader.engine_state import EngineState
from services.worker.leader.fleet.drain import Drain
from services.worker.leader.fleet.group_status import GroupStatus
from services.worker.leader.heartbeats.heartbeats import Heartbeats
from services.worker.leader.intake.grammar_compiler import GrammarCompiler
from services.worker.leader.intake.preparation import Preparation
from services.worker.leader.intake.prompt_tokenizer import PromptTokenizer
from services.worker.leader.intake.waiting_slots import WaitingSlots
from services.worker.leader.kv_room import KVRoom
from services.worker.leader.kv_tier.kv_tier import KVTier
from services.worker.leader.request_table import RequestTable
from services.worker.leader.sessions.records import SessionRecords
from services.worker.leader.sessions.turn_lines import TurnLines
from services.worker.leader.subscriptions import Subscriptions
from services.worker.orchestrator.multi_gpu_orchestrator import MultiGPUOrchestrator
from shared.messages import GuestCard, Load, State
from shared.usage.ledger import UsageLedger

log = structlog.get_logger(__name__)
HOUSEKEEPING_S = 0.5


@dataclass(frozen=True, slots=True)
class LeaderParts:
    """The parts of a leader, as `build_leader` makes them."""

    orchestrator: MultiGPUOrchestrator
    engine: EngineState
    table: RequestTable
    kv_tier: KVTier
    sessions: SessionRecords
    turns: TurnLines
    ledger: UsageLedger
    tokenizer: PromptTokenizer
    grammars: GrammarCompiler
    slots: WaitingSlots
    preparation: Preparation
    heartbeats: Heartbeats
    loop: EngineLoop
    drain: Drain
    status: GroupStatus
    subscriptions: Subscriptions
    controls: ControlRuns
    kv_room: KVRoom
    draft_engine: DraftEngine | None = None


class Leader:
    """One group's leader. Call `start`, later `drain`, and `stop` in any case.

    Args:
        parts: The leader's parts, which run until `stop`.
        flush_timeout_s: For session records to be stored at the end.

    Attributes:
        crashed: Set when one of the leader's tasks has crashed; the process must end.
    """

    def __init__(self, parts: LeaderParts, flush_timeout_s: float) -> None:
        self.parts = parts
        self.crashed = asyncio.Event()
        self._flush_timeout_s = flush_timeout_s
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def state(self) -> State:
        """The group's state, as heartbeats report it."""
        return self.parts.orchestrator.state

    @property
    def drained(self) -> asyncio.Event:
        """Set when a drain is over: the process may end."""
        return self.parts.drain.done

    async def start(self) -> None:
        """Starts the engine and takes work from then on. Raises `EngineFailed` when it does not come up."""
        parts = self.parts
        await parts.heartbeats.start()
        await parts.ledger.start()
        self._spawn(
            parts.ledger.send_forever(),
            parts.heartbeats.describe_forever(),
            parts.table.publisher.send_refused_frames(),
            parts.sessions.writer.write_forever(),
            parts.kv_tier.commit_and_probe(),
        )
        if parts.draft_engine is not None:
            self._spawn(parts.draft_engine.run_forever())
        await parts.subscriptions.subscribe_all()
        await parts.loop.start_engine()  # heartbeats say "ready" from here on, so everything else is
        self._spawn(parts.loop.run_steps(), self._keep_house(), parts.controls.run_forever())
        self._spawn(parts.kv_room.watch_memory())
        await parts.heartbeats.beat()

    async def drain(self, timeout_s: float) -> None:
        """Takes no new work, lets running requests end, and moves those that do not end in time.

        It may take `HAND_OVER_S` longer, to write KV. Called again it joins the drain that is under way.
        """
        await self.parts.drain.drain_group(timeout_s)

    async def stop(self) -> None:
        """Ends everything; what is pending is written first. Requests that run move."""
        parts = self.parts
        await parts.drain.cut_short()
        await parts.subscriptions.unsubscribe_all()
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError, Exception):  # a crash was logged when it happened
                await task
        await parts.preparation.wait_tasks()
        parts.tokenizer.threads.stop_threads()
        parts.grammars.stop_threads()
        await parts.table.publisher.flush_frames()
        await parts.ledger.close()
        writer = parts.sessions.writer
        if not await writer.flush_records(self._flush_timeout_s):
            log.error("session records not stored", number=writer.num_pending)
        parts.orchestrator.stop()
        await parts.heartbeats.stop()
        await parts.engine.engine.stop()
        if parts.draft_engine is not None:
            await parts.draft_engine.stop()

    @property
    def guest(self) -> GuestCard | None:
        """The engine of others that computes; None: an engine of ours."""
        return self.parts.engine.facts.guest

    def load(self) -> Load:
        """Returns how busy the group is now."""
        return self.parts.table.load()

    def detail(self) -> dict[str, object]:
        """Returns what `ryz status` shows of the group."""
        return self.parts.status.detail()

    def kv_names(self, tokens: list[int], tenant: str = "default", adapter: str = "") -> list[bytes]:
        """Returns the names of the blocks that a tenant's tokens fill; `adapter`: its fingerprint."""
        return self.parts.engine.facts.names.of_tokens(tokens, tenant, adapter)

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            self.parts.table.forget_expired()
            self.parts.slots.fail_expired()

    def _spawn(self, *coroutines: Coroutine[None, None, None]) -> None:
        for coroutine in coroutines:
            task = asyncio.create_task(coroutine)
            task.add_done_callback(self._note_crash)
            self._tasks.append(task)

    def _note_crash(self, task: asyncio.Task[None]) -> None:
        """Records the end of a task, none of which ends by itself: the leader cannot go on."""
        if not task.cancelled() and task.exception() is not None:
            log.critical("a task of the leader crashed", exc_info=task.exception())
            self.crashed.set()
