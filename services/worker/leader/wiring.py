"""Builds a leader: every part once, each handed to those that need it.

The order follows the data: what is shared, the engine's state, KV tier and sessions, the requests, what
describes them, and last what drives and calls them.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from services.worker.domain.blocks.transfer_costs import TransferCostModel
from services.worker.domain.generation.retransmit_buffer import RetransmitBuffer
from services.worker.domain.generation.stream_pace import StreamPace
from services.worker.domain.kv_events.contents import KVContents
from services.worker.forking.early_fork import EarlyFork
from services.worker.leader.adapters.calls import AdapterInspectionCall, Inspect
from services.worker.leader.adapters.loads import AdapterLoads
from services.worker.leader.bad_messages import BadMessages
from services.worker.leader.calls.attach_calls import AttachCalls
from services.worker.leader.calls.holders_calls import HoldersCalls
from services.worker.leader.calls.request_calls import RequestCalls
from services.worker.leader.calls.session_calls import LeaderSessionCalls
from services.worker.leader.calls.token_calls import TokenCalls
from services.worker.leader.context import LeaderContext
from services.worker.leader.control_runs import ControlRuns
from services.worker.leader.drafting.draft_engine import DraftEngine
from services.worker.leader.drafting.draft_rounds import DraftRounds
from services.worker.leader.engine_loop import EngineLoop
from services.worker.leader.engine_state import EngineState
from services.worker.leader.engine_supervisor import EngineSupervisor
from services.worker.leader.fleet.drain import Drain, DrainCalls
from services.worker.leader.fleet.fence import Fence
from services.worker.leader.fleet.group_description import GroupDescription
from services.worker.leader.fleet.group_status import GroupStatus
from services.worker.leader.fleet.work_gate import WorkGate
from services.worker.leader.frame_publisher import FramePublisher
from services.worker.leader.heartbeats.heartbeats import HeartbeatCarrier, Heartbeats
from services.worker.leader.intake.grammar_compiler import GrammarCompiler
from services.worker.leader.intake.intake import Intake
from services.worker.leader.intake.preparation import Preparation
from services.worker.leader.intake.prompt_tokenizer import PromptTokenizer
from services.worker.leader.intake.sequence_builder import SequenceBuilder
from services.worker.leader.intake.waiting_slots import WaitingSlots
from services.worker.leader.kv_events.engine_contents import EngineContents
from services.worker.leader.kv_events.publisher import KVEventCalls, KVEventPublisher
from services.worker.leader.kv_room import KVLimitCalls, KVRoom
from services.worker.leader.kv_tier.block_ownership import BlockIndex
from services.worker.leader.kv_tier.kv_tier import KVTier
from services.worker.leader.leader import Leader, LeaderParts
from services.worker.leader.options import LeaderOptions
from services.worker.leader.profiling.profile_calls import ProfileCalls
from services.worker.leader.profiling.profiler import Profiler, RankTracer
from services.worker.leader.profiling.watched_bus import BusWatch, WatchedBus
from services.worker.leader.request_table import EndOfRequest, RequestTable
from services.worker.leader.sessions.commits import RecordStore
from services.worker.leader.sessions.delivery_tracker import DeliveryTracker
from services.worker.leader.sessions.peer_turns import PeerSessionClient, PeerTurns
from services.worker.leader.sessions.records import SessionRecords
from services.worker.leader.sessions.turn_announcer import TurnAnnouncer
from services.worker.leader.sessions.turn_end import TurnFinisher
from services.worker.leader.sessions.turn_lines import TurnLines
from services.worker.leader.sessions.turn_start import TurnStarter
from services.worker.leader.subscriptions import LeaderCalls, Subscriptions
from services.worker.leader.token_output import TokenOutput
from services.worker.leader.usage.request_usage import RequestUsage
from services.worker.leader.usage.running_reports import RunningReports
from services.worker.metrics import PREFIX, LoadCollector, RatesCollector, WorkerMetrics
from services.worker.model_files.model import Model
from services.worker.orchestrator.failure_recovery_manager import FailureRecoveryManager
from services.worker.orchestrator.multi_gpu_orchestrator import MultiGPUOrchestrator
from services.worker.rank_protocol.plan import Engine
from services.worker.telemetry.adapter_metrics import AdapterCollector
from services.worker.telemetry.rank_metrics import RankCollector
from services.worker.telemetry.vllm_metrics import VllmCollector, vllm_histograms
from shared.bus.api import Bus
from shared.bus.endpoint import Endpoint
from shared.flow.retry_budgets import ResendBudget
from shared.kv_hash import BLOCK_TOKENS
from shared.telemetry.spans.facts import SpanSink
from shared.telemetry.timelines import Timelines
from shared.usage.ledger import UsageLedger
from shared.usage.metrics import LedgerCollector


@dataclass(frozen=True, slots=True)
class LeaderPorts:
    """The adapters that a leader works with.

    Attributes:
        outside: Where the calls of services outside are read; answers to them go out on `bus`. If the broker
            cuts this connection because of a flood, the other one stays.
        index: Keeps the KV blocks' index.
        clock: Returns monotonic seconds.
        timelines: Keeps when requests passed the parts of the leader.
        tracer: Records the ranks for profiles; None if the engine cannot.
        spans: Takes the spans of recorded requests; None: none are recorded.
        draft_engine: Computes the draft model; None without one.
        trials: The trial process of grammars, if it was forked already.
        inspect: Reads the files of an adapter; None if the engine computes without.
        kv_contents: The KV cache whose changes are published; None: that of `engine`.
    """

    bus: Bus
    outside: Bus
    carrier: HeartbeatCarrier
    engine: Engine
    model: Model
    store: RecordStore
    index: BlockIndex
    registry: CollectorRegistry
    clock: Callable[[], float] = field(default=time.monotonic)
    timelines: Timelines = field(default_factory=lambda: Timelines(0))
    tracer: RankTracer | None = None
    spans: SpanSink | None = None
    draft_engine: DraftEngine | None = None
    trials: EarlyFork | None = None
    inspect: Inspect | None = None
    kv_contents: KVContents | None = None


def build_leader(options: LeaderOptions, ports: LeaderPorts) -> Leader:
    """Returns a leader that is ready to start."""
    watch, model, metrics = BusWatch(), ports.model, WorkerMetrics(ports.registry)
    bus, outside = WatchedBus(ports.bus, watch), WatchedBus(ports.outside, watch)
    context = LeaderContext(
        options.group,
        options.instance_id,
        model.name,
        bus,
        metrics,
        ports.clock,
        ports.timelines,
        ports.spans,
        model.tenants,
    )
    bad_messages = BadMessages(metrics)
    endpoint = Endpoint(bus, bad_messages.report)
    orchestrator = MultiGPUOrchestrator(ports.engine, FailureRecoveryManager(options.back_off))
    gate = WorkGate(options.group, orchestrator, options.intake.retry_after_s)
    engine = EngineState(
        ports.engine,
        options.steps,
        options.prefix_sharing,
        model.context_length,
        TransferCostModel(options.steps.token_budget, options.kv.kv_fetch),
        adapter_bytes=options.adapter_bytes,
        clock=ports.clock,
    )
    kv_tier = KVTier(context, options.kv, engine, ports.index)

    announcer = TurnAnnouncer(options.group, bus)
    peers = PeerSessionClient(bus, options.sessions.lookup_timeout_s)
    sessions = SessionRecords(
        ports.store, options.sessions, metrics, lambda: bus.max_payload, peers, announcer=announcer
    )
    turns, deliveries = TurnLines(options.turns), DeliveryTracker()
    peer_turns = PeerTurns(bus, options.group, turns, deliveries, options.sessions.lookup_timeout_s)
    finisher = TurnFinisher(context, sessions, deliveries, options.session_done_wait_s)

    buffer = RetransmitBuffer(retention_s=options.retention_s, max_bytes=options.retention_bytes)
    ledger = UsageLedger(bus)
    usage = RequestUsage(model.name, ports.clock, ledger.put)
    running = RunningReports(context)
    end = EndOfRequest(finisher, kv_tier.ownership, turns, usage, running)
    table = RequestTable(context, engine, FramePublisher(context, buffer, ledger.flush), end)
    tokenizer = PromptTokenizer(
        model,
        metrics,
        lambda: engine.facts.context_length,
        options.tokenize_timeout_s,
        vocab_size=lambda: engine.facts.vocab_size,
        can_force=lambda: engine.facts.guest is None,
    )
    grammars = GrammarCompiler(model, engine, options.grammars, metrics, ports.trials)
    builder = SequenceBuilder(model, engine, tokenizer, grammars)
    preparation = Preparation(
        context,
        table,
        TurnStarter(turns, sessions, peer_turns),
        tokenizer,
        builder,
        kv_tier=kv_tier,
    )
    slots = WaitingSlots(context, gate, table, options.intake.retry_after_s)
    intake = Intake(
        context,
        endpoint,
        table,
        slots,
        preparation,
        running=running,
        max_request_s=options.intake.max_request_s,
        sampling=lambda: engine.facts.defaults(model.sampling),
    )

    description = GroupDescription(options, model, orchestrator, engine, table, kv_tier=kv_tier)
    heartbeats = Heartbeats(
        ports.carrier, options.heartbeat_interval_s, options.heartbeat_stale_s, description.heartbeat
    )
    supervisor = EngineSupervisor(context, orchestrator, engine, table, kv_tier, announce=heartbeats.beat)
    pace = StreamPace(options.stream_interval_ms / 1000, options.interval_per_stream_s)
    output = TokenOutput(context, engine, table, pace)
    drafting = ports.draft_engine
    drafts = None if drafting is None else DraftRounds(drafting, ports.clock)
    adapters = AdapterLoads(context, engine, table)
    loop = EngineLoop(
        context, engine, supervisor, table, kv_tier, output=output, adapters=adapters, drafts=drafts
    )
    drain = Drain(context, orchestrator, table, kv_tier, sessions, announce=heartbeats.beat)

    kv_room = KVRoom(engine)
    kv_events = KVEventPublisher(context, ports.kv_contents or EngineContents(engine))
    calls = LeaderCalls(
        intake=intake,
        requests=RequestCalls(context, table, ResendBudget(options.outside_resend_bytes_s)),
        attach=AttachCalls(context, table),
        sessions=LeaderSessionCalls(
            context, engine, kv_tier, sessions, gate, announcer=announcer, peer_turns=peer_turns
        ),
        holders=HoldersCalls(context, engine, options.tensor_parallel),
        drain=DrainCalls(context, drain, table, options.drain_timeout_s),
        kv_limit=KVLimitCalls(options.group, kv_room),
        kv_events=KVEventCalls(kv_events),
        fence=Fence(context, table),
        deliveries=deliveries,
        tokens=TokenCalls(context, engine, builder, tokenizer, model.tokenizer),
        profiles=ProfileCalls(context, Profiler(context, engine, watch, ports.tracer)),
        adapters=AdapterInspectionCall(context, engine, ports.inspect),
    )
    metrics.name_group(options.group, model.name)
    _register(
        ports.registry,
        LoadCollector(table),
        LedgerCollector(PREFIX, ledger),
        VllmCollector(table, metrics, model.name, BLOCK_TOKENS),
        *vllm_histograms(metrics, model.name),
        *metrics.requests_ended.operations.views(model.name),
        RatesCollector(kv_tier),
        RankCollector(engine.step_log, ports.engine.status),
        AdapterCollector(lambda: engine.scheduler),
    )
    parts = LeaderParts(
        orchestrator=orchestrator,
        engine=engine,
        table=table,
        kv_tier=kv_tier,
        sessions=sessions,
        turns=turns,
        ledger=ledger,
        running=running,
        tokenizer=tokenizer,
        grammars=grammars,
        slots=slots,
        preparation=preparation,
        heartbeats=heartbeats,
        loop=loop,
        drain=drain,
        controls=ControlRuns(context, engine, table, preparation, model),
        kv_room=kv_room,
        kv_events=kv_events,
        status=GroupStatus(
            context, orchestrator, engine, table, kv_tier, sessions=sessions, draft_engine=drafting
        ),
        subscriptions=Subscriptions(
            context, endpoint, bad_messages, calls, outside, outside_calls_s=options.outside_calls_s
        ),
        draft_engine=drafting,
    )
    return Leader(parts, options.sessions.commit_timeout_s)


def _register(registry: CollectorRegistry, *collectors: Collector) -> None:
    for collector in collectors:
        registry.register(collector)
