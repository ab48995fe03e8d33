"""Options of a worker group in tests, where a test needs only some of them.

What is fed from settings has no default in the services; here it has values that suit tests: no throttle, no
gathering, no waits.
"""

from typing import Any

from services.worker.domain.scheduling.scheduler import SchedulerLimits
from services.worker.leader.heartbeats.page import HeartbeatProcessOptions
from services.worker.leader.sessions.record_limits import SessionRecordLimits
from services.worker.rank_protocol.kv_messages import KVStoreConfig


def scheduler_limits(
    token_budget: int, max_running: int, max_waiting: int, itl_target_s: float = 0.0, **given: Any
) -> SchedulerLimits:
    """Bounds of a scheduler: no target for the time between tokens and no drafts, unless given."""
    options = {"tenant_share": 1.0, "draft_tokens": 0} | given
    return SchedulerLimits(token_budget, max_running, max_waiting, itl_target_s, **options)


def record_limits(**given: Any) -> SessionRecordLimits:
    """Bounds of session records by which a lookup ends soon and is not repeated."""
    return SessionRecordLimits(**{"lookup_timeout_s": 0.1, "history_wait_s": 0.0} | given)


def kv_store(url: str, **given: Any) -> KVStoreConfig:
    """A store without compression and without a host tier."""
    plain: dict[str, Any] = {
        "compression": "none",
        "host_dir": "",
        "host_bytes": 0,
        "host_owner": "",
        "host_lag_s": 0.0,
    }
    return KVStoreConfig(url=url, **plain | given)


def heartbeat_process(**given: Any) -> HeartbeatProcessOptions:
    """A process that connects without TLS, and logs as services do."""
    bus = {"nats_inbox": "", "nats_ca": "", "nats_cert": "", "nats_key": "", "nats_local": False}
    logs = {"log_level": "info", "log_format": "json", "log_burst": 20}
    return HeartbeatProcessOptions(**{"connect_wait_s": 10.0, **bus, **logs, **given})
