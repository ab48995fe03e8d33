"""The options of a leader, which `__main__.py` makes from the settings."""

from dataclasses import dataclass, field

from services.worker.domain.blocks.block_names import PrefixSharing
from services.worker.domain.generation.stream_pace import PER_STREAM_S
from services.worker.domain.scheduling.scheduler import SchedulerLimits
from services.worker.leader.intake.grammar_options import GrammarOptions
from services.worker.leader.intake.intake import IntakeLimits
from services.worker.leader.kv_tier.kv_options import KVOptions
from services.worker.leader.sessions.record_limits import SessionRecordLimits
from services.worker.leader.sessions.turn_lines import TurnLimits
from services.worker.orchestrator.failure_recovery_manager import RestartPauses


@dataclass(frozen=True, slots=True)
class LeaderOptions:
    """Options of one leader; times in seconds."""

    group: str
    instance_id: str
    steps: SchedulerLimits
    tensor_parallel: int = 1
    weight: float = 1.0
    heartbeat_interval_s: float = 0.025
    heartbeat_stale_s: float = 1.0
    drain_timeout_s: float = 5.0
    retention_s: float = 30.0
    retention_bytes: int = 64 * 2**20
    outside_resend_bytes_s: int = 2**20
    outside_calls_s: int = 500
    commit_wait_s: float = 0.1
    tokenize_timeout_s: float = 10.0
    stream_interval_s: float = 0.0
    interval_per_stream_s: float = PER_STREAM_S
    prefix_sharing: PrefixSharing = "tenant"
    kv: KVOptions = field(default_factory=KVOptions)
    grammars: GrammarOptions = field(default_factory=GrammarOptions)
    intake: IntakeLimits = field(default_factory=IntakeLimits)
    sessions: SessionRecordLimits = field(default_factory=SessionRecordLimits)
    turns: TurnLimits = field(default_factory=TurnLimits)
    back_off: RestartPauses = field(default_factory=RestartPauses)
