"""The constants of a worker group that were settings. Each stands beside its reason, in the part that has it.

Leader and ranks get them as defaults of their options, which tests replace.
"""

from collections.abc import Mapping
from types import MappingProxyType

from services.worker.domain.speculation.speculation import DRAFT_TOKENS
from services.worker.leader.drafting.draft_rounds import POOL_TOKENS
from services.worker.leader.fleet.name_claim import CLAIM_WAIT_S
from services.worker.leader.intake.grammar_options import GrammarOptions
from services.worker.leader.intake.intake import IntakeLimits
from services.worker.leader.kv_tier.kv_options import KVOptions
from services.worker.leader.options import LeaderOptions
from services.worker.leader.sessions.record_limits import SessionRecordLimits
from services.worker.leader.sessions.turn_lines import TurnLimits
from services.worker.null.model import CONTEXT_LENGTH
from services.worker.orchestrator.failure_recovery_manager import RestartPauses
from services.worker.rank_protocol.kv_messages import KVStoreConfig
from shared.gone_settings import RenamedTo


def constant_settings() -> Mapping[str, object]:
    """Return the values of constants that were settings, by their variables; also what was renamed."""
    grammars, intake, turns = GrammarOptions(), IntakeLimits(), TurnLimits()
    kv, records = KVOptions(), SessionRecordLimits()
    store = KVStoreConfig(url="", compression="none", host_dir="", host_bytes=0, host_owner="")
    return MappingProxyType(
        {
            "RYZ_CLAIM_WAIT_MS": 1000 * CLAIM_WAIT_S,
            "RYZ_SPECULATION_TOKENS": DRAFT_TOKENS,
            "RYZ_DRAFT_CACHE_TOKENS": POOL_TOKENS,
            "RYZ_GRAMMAR_CACHE": grammars.cached,
            "RYZ_GRAMMAR_BYTES": grammars.limits.definition_bytes,
            "RYZ_RESTART_PAUSE_MS": 1000 * RestartPauses().first_s,
            "RYZ_NULL_CONTEXT_LENGTH": CONTEXT_LENGTH,
            "RYZ_HEARTBEAT_STALE_S": LeaderOptions.heartbeat_stale_s,
            "RYZ_MAX_REQUEST_S": intake.max_request_s,
            "RYZ_OUTSIDE_RESEND_BYTES_S": LeaderOptions.outside_resend_bytes_s,
            "RYZ_OUTSIDE_CALLS_S": LeaderOptions.outside_calls_s,
            "RYZ_OVERLOAD_RETRY_S": intake.retry_after_s,
            "RYZ_KV_COMMIT_INTERVAL_S": kv.commit_interval_s,
            "RYZ_KV_STORE_TIMEOUT_S": store.timeout_s,
            "RYZ_KV_STORE_QUEUE_BYTES": store.queue_bytes,
            "RYZ_KV_STORE_TTL_S": store.ttl_s,
            "RYZ_KV_HOST_LAG_S": store.host_lag_s,
            "RYZ_SESSION_LOOKUP_TIMEOUT_S": records.lookup_timeout_s,
            "RYZ_SESSION_HISTORY_WAIT_S": records.history_wait_s,
            "RYZ_SESSION_COMMIT_TIMEOUT_S": records.commit_timeout_s,
            "RYZ_SESSION_MAX_TURNS": turns.max_waiting,
            "RYZ_SESSION_TURN_WAIT_S": turns.wait_s,
            "RYZ_SESSION_COPY_S": records.copy_s,
            "RYZ_SESSION_MAX_PENDING": records.max_pending,
            "RYZ_QUANTIZE": RenamedTo("RYZ_PRECISION"),
            "RYZ_STEP_TARGET_MS": RenamedTo("RYZ_ITL_TARGET_MS"),
        }
    )
