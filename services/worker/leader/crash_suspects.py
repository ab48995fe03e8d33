"""Which requests an engine's death is laid to: those that the fatal step computed, and no others.

Of several each goes on elsewhere as a suspect, where it runs alone for a while (`domain/trials.py`). One that
was alone in the fatal step, and was in one before on another engine, has killed two: it is failed as poison.
"""

import structlog

from services.worker.leader.request_table import RequestTable
from shared.errors import GroupLost, Poison

log = structlog.get_logger(__name__)


def fail_suspects(generations: RequestTable, request_ids: set[str], why: str) -> None:
    """Ends the requests with these ids, which were computed when the engine died by a fault of its own."""
    suspects = [one for name in sorted(request_ids) if (one := generations.by_id.get(name)) is not None]
    for generation in suspects:
        request = generation.request
        if len(suspects) == 1 and request.crashes:
            log.error(
                "request is poison", request_id=request.request_id, tenant=request.tenant, why=why,
                deaths=request.crashes + 1,
            )  # fmt: skip
            error: GroupLost | Poison = Poison(
                f"{request.crashes + 1} engines died while they computed request {request.request_id}, the "
                "last one computed nothing else; it is not offered to another group. Do not send it again; "
                "the group's log has the cause",
                reason="engine_failed",
            )
        else:
            error = GroupLost(f"the group's engine failed: {why}", reason="engine_failed", suspect=True)
        generations.fail(generation, error)
