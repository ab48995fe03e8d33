"""Makes the group's part of `ryz status`."""

import time
from collections.abc import Mapping

import msgspec

from services.worker.domain.scheduling.background import is_background
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.guests.abilities import can_do
from services.worker.leader.context import LeaderContext
from services.worker.leader.drafting.draft_engine import DraftEngine
from services.worker.leader.engine_state import EngineState
from services.worker.leader.kv_tier.kv_tier import KVTier
from services.worker.leader.request_table import RequestTable
from services.worker.leader.sessions.records import SessionRecords
from services.worker.orchestrator.devices.faults import faults_of
from services.worker.orchestrator.multi_gpu_orchestrator import MultiGPUOrchestrator
from services.worker.rank_protocol.step_times import by_kind
from services.worker.telemetry.vllm_metrics import value_of
from shared.accounts.live_shares import GroupParties, PartyCounts

RECORDS_LATE_S = 5.0  # session records that wait for longer mean that their store is away
MAX_SHARES = 16  # of parties, the largest first
MAX_PARTIES = 16  # with their credit and what waits, those with the most requests first


class GroupStatus:
    """Reads the parts of the leader when it is asked."""

    def __init__(
        self,
        context: LeaderContext,
        orchestrator: MultiGPUOrchestrator,
        engine: EngineState,
        table: RequestTable,
        kv_tier: KVTier,
        *,
        sessions: SessionRecords,
        draft_engine: DraftEngine | None = None,
    ) -> None:
        self._context = context
        self._orchestrator = orchestrator
        self._engine = engine
        self._table = table
        self._kv_tier = kv_tier
        self._sessions = sessions
        self._draft_engine = draft_engine

    def detail(self) -> dict[str, object]:
        """Returns the group's state, load and caches."""
        table, sessions, engine = self._table, self._sessions, self._engine
        load, scheduler = table.load(), engine.scheduler
        return {
            "group": self._context.group,
            "model": self._context.model,
            "fingerprint": engine.info.fingerprint if engine.info else "",
            "state": self._orchestrator.state,
            "failure": self._orchestrator.failure,
            "degraded": self.degraded(),
            "running": load.running,
            "waiting": load.waiting,
            "max_running": load.max_running,
            "max_waiting": load.max_waiting,
            "queued_tokens": load.queued_tokens,
            "computed_tokens": engine.num_tokens,
            "first_token_s": self._context.metrics.first_token.counts(),
            "inter_token_s": self._context.metrics.inter_token.counts(),
            "free_blocks": load.free_blocks,
            "total_blocks": load.total_blocks,
            "requests": len(table.by_key),
            "retained_bytes": table.buffer.num_bytes,
            "cached_blocks": scheduler.blocks.num_cached if scheduler else 0,
            "kv_store": self._kv_tier.describe(),
            "adapters": self._adapters(),
            "guest": self._guest(),
            "party_shares": self._party_shares(),
            "parties": party_detail(scheduler),
            "speculation": self._speculation(),
            "sessions_cached": sessions.num_cached,
            "sessions_pending": sessions.writer.num_pending,
            "ranks": [{**row, **self._times_of(row)} for row in engine.engine.status()],
        }

    def _times_of(self, row: Mapping[str, object]) -> dict[str, object]:
        """Returns what a rank has spent its time on, in seconds since its leader began."""
        log, rank = self._engine.step_log, row.get("rank")
        if not isinstance(rank, int) or rank >= log.world:
            return {}
        totals, running = log.totals(rank), None if log.times is None else log.times.read_running(rank)
        age_s = max(0, time.monotonic_ns() - running.since_ns) / 1e9 if running else 0.0
        seconds = {kind: round(spent_ns / 1e9, 6) for kind, spent_ns in by_kind(totals).items()}
        return {
            "steps_done": totals.steps,
            "step_s": round(totals.step_ns / 1e9, 6),
            "running_step_s": round(age_s, 3),
            "seconds": seconds,
        }

    def _guest(self) -> dict[str, object]:
        """Returns the engine of others that computes, with what it can and lacks; nothing if it is ours."""
        guest = self._engine.facts.guest
        if guest is None:
            return {}
        return {"name": guest.name, "can": can_do(guest), "lacks": guest.lacks}

    def _party_shares(self) -> list[float]:
        """Returns the part of each party in what was computed since it came; nothing of a lone one."""
        scheduler = self._engine.scheduler
        return [round(share, 3) for share in scheduler.queues.fair.shares()[:MAX_SHARES]] if scheduler else []

    def _adapters(self) -> dict[str, object]:
        """Returns what is in the pool of adapters; nothing if the engine computes without."""
        scheduler = self._engine.scheduler
        if scheduler is None or not self._engine.facts.adapter_bytes:
            return {}
        queue = scheduler.queues.adapters
        return {
            "loaded": len(queue.pool.residents),
            "bytes": queue.pool.num_bytes,
            "most_bytes": queue.pool.most_bytes,
            "evicted": queue.pool.num_evicted,
            "waiting": queue.num_held,
        }

    def _speculation(self) -> dict[str, object]:
        """Returns what came of drafts since the leader began."""
        counts, scheduler = self._context.metrics.speculation, self._engine.scheduler
        return {
            "on": bool(scheduler and scheduler.speculation.most),
            "draft_tokens": int(value_of(counts.draft_tokens)),
            "accepted_tokens": int(value_of(counts.accepted_tokens)),
            **self._draft_model(),
        }

    def _draft_model(self) -> dict[str, object]:
        """Returns what there is of a draft model, and what came of its guesses."""
        draft, counts = self._draft_engine, self._context.metrics.speculation
        if draft is None:
            return {}
        return {
            "model": draft.name,
            "model_up": draft.up.is_set(),
            "model_failure": draft.failure,
            "model_draft_tokens": int(value_of(counts.model_draft_tokens)),
            "model_accepted_tokens": int(value_of(counts.model_accepted_tokens)),
        }

    def degraded(self) -> list[str]:
        """Returns the stores that are away and the faults of ranks' devices; see docs/operations.md."""
        stores = {
            "kv_store": self._kv_tier.away,
            "session_store": self._sessions.writer.pending_s > RECORDS_LATE_S,
        }
        faults = {fault for row in self._engine.engine.status() for fault in faults_of(row)}
        return [*(name for name, missing in stores.items() if missing), *sorted(faults)]


def party_detail(scheduler: Scheduler | None) -> object:
    """Returns `GroupParties` as plain values; None while the engine is down."""
    if scheduler is None:
        return None
    fair = scheduler.queues.fair
    found: dict[tuple[str, bool], list[Sequence]] = {}
    running: dict[tuple[str, bool], int] = {}
    for queue, runs in ((scheduler.running, 1), (scheduler.waiting, 0)):
        for sequence in queue:
            key = sequence.party, is_background(sequence)
            found.setdefault(key, []).append(sequence)
            running[key] = running.get(key, 0) + runs
    largest = sorted(found, key=lambda key: (-len(found[key]), key))
    rows = []
    for party, background in largest[:MAX_PARTIES]:
        sequences = found[party, background]
        deficits = fair.of(sequences[0])
        rows.append(
            PartyCounts(
                party=party,
                running=running[party, background],
                waiting=len(sequences) - running[party, background],
                weight=deficits.weight(party),
                credit=round(deficits.credit(party) * deficits.weight(party), 1),
                charged=round(deficits.charged(party), 1),
                background=background,
            )
        )
    parties = GroupParties(
        quantum=float(scheduler.limits.token_budget),
        decode_tokens=round(scheduler.throttle.pace.decode_tokens(len(scheduler.running)), 3),
        rows=rows,
        others=max(0, len(largest) - MAX_PARTIES),
    )
    return msgspec.to_builtins(parties)
