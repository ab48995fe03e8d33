"""Ends the requests that may have killed the engine: those that the fatal step computed, and no others.

If there are several, each goes on elsewhere as a suspect, and runs alone there for a while
(`domain/scheduling/crash_trials.py`). A request that was alone in the fatal step, and was in the fatal step
of another engine before, has killed two engines: it fails as poison.
"""

import structlog

from services.worker.leader.request_table import RequestTable
from shared.errors import GroupLost, Poison

log = structlog.get_logger(__name__)


def fail_suspects(table: RequestTable, keys: set[str], why: str) -> None:
    """Fails the requests that were computed when the engine died by a fault of its own.

    Args:
        table: Has the requests.
        keys: Their `request_key`s.
        why: The engine's failure.
    """
    suspects = [one for key in sorted(keys) if (one := table.by_key.get(key)) is not None]
    for generation in suspects:
        request = generation.request
        if len(suspects) == 1 and request.crashes:
            log.error(
                "request is poison",
                **generation.log_ids,
                tenant=request.tenant,
                why=why,
                deaths=request.crashes + 1,
            )
            error: GroupLost | Poison = Poison(
                f"{request.crashes + 1} engines died while they computed request {request.request_id}, the "
                "last one computed nothing else; it is not offered to another group. Do not send it again; "
                "the group's log has the cause",
                reason="engine_failed",
            )
        else:
            error = GroupLost(f"the group's engine failed: {why}", reason="engine_failed", suspect=True)
        table.fail_request(generation, error)
