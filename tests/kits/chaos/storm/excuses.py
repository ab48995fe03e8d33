"""Endings of a storm's visits that are allowed, and those that only a fault excuses."""

from tests.kits.chaos.storm.storm_faults import Faults

OF_THEIR_OWN = {
    ("flood", "rate_limited"),
    ("hurried", "deadline_exceeded"),
    ("hurried", "failed deadline_exceeded"),
}
OF_CONNECTIONS = {"lost", "cut short", "unreached"}
# Endings that a fault excuses. Before any text: no group took the request. After text ("failed"): no group
# continued it before its deadline. OF_RETURNING: a stream may be lost with its gateway and its group.
OF_TROUBLE = {"unavailable", "model_not_found", "group_lost", "deadline_exceeded", "failed deadline_exceeded"}
OF_RETURNING = {"stream_not_found", "stream_gone", "failed group_lost", "late"}


def problem(kind: str, ending: str, began: float, faults: Faults | None, *, moved: bool) -> str:
    """Decides whether an ending is allowed; only a fault active since `began` excuses a failure.

    Args:
        kind: Kind of client.
        ending: How the visit ended.
        began: When the visit began.
        faults: Faults of the run.
        moved: Whether a group was declared lost since then; a moved stream keeps only what follows the move.

    Returns:
        The reason why the ending is a problem; empty if it is allowed.
    """

    def during(*parts: str, how: str = "") -> bool:
        return faults is not None and bool(faults.during(began, *parts, kind=how))

    reason = "never"
    if ending in {"done", "left", "overloaded"} or (kind, ending) in OF_THEIR_OWN:
        reason = ""
    elif ending in OF_CONNECTIONS:
        reason = "" if during("gateway", how="kill") else "its gateway was not killed"
    elif kind == "returner" and ending in OF_RETURNING:
        reason = "" if moved or during() else "there was no fault"
    elif ending in OF_TROUBLE:
        reason = "" if during() else "there was no fault"
    elif ending == "forgotten":
        kept = during("redis", "kvstate", "nats")
        reason = "" if kept else "nothing had happened to what keeps sessions"
    return reason
