"""Failures of a group's engine, as data (the kind, the rank, and one sentence) and as exceptions.

`orchestrator/health_monitor.py` finds them, `orchestrator/failure_recovery_manager.py` has a rule for each
kind, and the leader reports them to callers.
"""

from typing import Literal, NamedTuple

FailureKind = Literal[
    "rank_died",  # its process ended, or closed a socket
    "rank_hung",  # it makes no progress in a step
    "step_late",  # the ranks make progress, but exceed the step's time limit
    "rank_failed",  # it reported an error
    "memory",  # it ran out of memory, or exceeded its limit
    "device_error",  # its GPU has memory errors that ECC could not correct
    "device_lost",  # the driver has lost its GPU
    "start_failed",  # the ranks were not ready in time, or could not be started
    "refused",  # another start with this model and these settings would fail the same way
    "guest_lost",  # an engine of others is gone, or cannot be reached
    "leader_bug",  # an error in the leader's own loop
]


class Failure(NamedTuple):
    """One failure.

    Attributes:
        kind: What failed.
        reason: One sentence.
        rank: The rank that failed; -1: the group.
        fault: The computation may have caused it (crash, exception, no memory), not something outside
            (signal, stalled machine).
        step_ids: The steps that were running.
        outside: A signal from outside ended a process, which says nothing of how long the next start lives.
    """

    kind: FailureKind
    reason: str
    rank: int = -1
    fault: bool = False
    step_ids: tuple[int, ...] = ()
    outside: bool = False


class EngineFailed(Exception):
    """The engine is gone or broken, and all running sequences with it. The text says what failed and why.

    Attributes:
        failure: The same as data.
    """

    def __init__(
        self,
        reason: str,
        kind: FailureKind = "rank_failed",
        rank: int = -1,
        *,
        fault: bool = False,
        step_ids: tuple[int, ...] = (),
    ) -> None:
        super().__init__(reason)
        self.failure = Failure(kind, reason, rank, fault, step_ids)


class EngineRefused(EngineFailed):
    """The engine cannot serve this model with these settings; another start would fail the same way."""

    def __init__(self, reason: str, rank: int = -1) -> None:
        super().__init__(reason, "refused", rank)


def engine_error(failure: Failure) -> EngineFailed:
    """Return the exception that callers get for a failure."""
    refused = failure.kind == "refused"
    error = EngineRefused(failure.reason) if refused else EngineFailed(failure.reason)
    error.failure = failure
    return error
