"""Failures of a group's engine as data: the kind, the rank, and one sentence.

`orchestrator/health_monitor.py` finds them, `orchestrator/failure_recovery_manager.py` has a rule for each
kind, and the leader tells callers.
"""

from typing import Literal, NamedTuple

FailureKind = Literal[
    "rank_died",  # its process ended, or closed a socket
    "rank_hung",  # it makes no progress in a step
    "step_late",  # the ranks make progress, but exceed the step's time limit
    "rank_failed",  # it reported an error
    "memory",  # it ran out of memory, or exceeded its limit
    "start_failed",  # the ranks were not ready in time, or could not be started
    "refused",  # another start with this model and these settings would fail the same way
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
