"""The options of a leader, which `__main__.py` makes from the settings."""

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Interval

from services.worker.domain.adapters.pool_bytes import POOL_BYTES
from services.worker.domain.blocks.names import PrefixSharing
from services.worker.domain.generation.stream_pace import PER_STREAM_S
from services.worker.domain.scheduling.scheduler import SchedulerLimits
from services.worker.leader.intake.grammar_options import GrammarOptions
from services.worker.leader.intake.intake import IntakeLimits
from services.worker.leader.kv_tier.kv_options import KVOptions
from services.worker.leader.sessions.record_limits import SessionRecordLimits
from services.worker.leader.sessions.turn_lines import TurnLimits
from services.worker.orchestrator.failure_recovery_manager import RestartPauses
from shared.setting_types import From1MiB, UpToTenMinutes, ZeroToHour, ZeroToTenSeconds


@dataclass(frozen=True, kw_only=True)
class LeaderSettings:
    """What operators choose. `WorkerSettings` inherits the fields, so each is also a setting `RYZ_<NAME>`."""

    weight: Annotated[float, Interval(gt=0, le=1000)] = 1.0
    """The group's share of the sessions."""
    tokenize_timeout_s: UpToTenMinutes = 10.0
    """CPU time for the chat template and the tokenizer on one long prompt; also the longest wait for a
    thread."""
    prefix_sharing: PrefixSharing = "tenant"
    """Requests that share the KV of equal prefixes: those of one tenant, all, or none."""
    heartbeat_interval_ms: Annotated[int, Interval(ge=5, le=60_000)] = 25
    """Time between heartbeats; routers wait for three."""
    stream_interval_ms: Annotated[float, Interval(ge=0, le=1000)] = 8.0
    """The longest time for which the tokens of streams are gathered. A single stream gets each token at once;
    each further one adds 0.25 ms, up to this bound. 0: one piece per step."""
    retention_s: ZeroToHour = 30.0
    """How long an ended request's frames are kept for resending."""
    retention_bytes: From1MiB = 64 * 2**20
    """Bytes of frames and prompts that are kept; beyond it the tenant with the most loses its oldest."""
    session_done_wait_s: ZeroToTenSeconds = 0.1
    """How long `Done` waits for the record of a session to be stored."""
    adapter_bytes: From1MiB = POOL_BYTES
    """Memory of a group for adapters, on all of its ranks together; it is taken as adapters are asked for.
    Beyond it those that nothing uses make room."""


@dataclass(frozen=True, kw_only=True)
class LeaderOptions(LeaderSettings):
    """Options of one leader: settings of its own and of others, and constants.

    Attributes:
        group: The group's name.
        instance_id: This process.
        tensor_parallel: Number of ranks.
        drain_timeout_s: How long running requests may take when it stops.
        steps: Bounds of the scheduler.
        kv: Of the KV tier.
        grammars: Of the compiler of grammars.
        sessions: Of the records.
        heartbeat_stale_s: How long the event loop may stand still, beyond the time in which it had no core,
            before heartbeats report that it hangs. Less would give a group up for one long pause, more would
            delay the move of its requests.
        outside_resend_bytes_s: Bytes of frames per second that are resent to each bus user outside.
        outside_calls_s: Cancels per second that the group takes from all bus users outside, and as many
            resend requests; the broker drops the others.
        interval_per_stream_s: See `StreamPace`.
        intake: Of new requests.
        turns: Of turns of one session.
        back_off: Pauses before a failed engine is started again.
    """

    group: str
    instance_id: str
    tensor_parallel: int
    drain_timeout_s: float
    steps: SchedulerLimits
    kv: KVOptions
    grammars: GrammarOptions
    sessions: SessionRecordLimits
    heartbeat_stale_s: float = 1.0
    outside_resend_bytes_s: int = 2**20
    outside_calls_s: int = 500
    interval_per_stream_s: float = PER_STREAM_S
    intake: IntakeLimits = field(default_factory=IntakeLimits)
    turns: TurnLimits = field(default_factory=TurnLimits)
    back_off: RestartPauses = field(default_factory=RestartPauses)

    @property
    def heartbeat_interval_s(self) -> float:
        """Seconds between heartbeats."""
        return self.heartbeat_interval_ms / 1000
