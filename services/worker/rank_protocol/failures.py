"""What can go wrong with a group's engine, as data: which kind of failure, of which rank, in one sentence.

`orchestrator/health_monitor.py` finds failures, `orchestrator/failure_recovery_manager.py` has a rule for
each kind. What callers are told of them is the leader's business.
"""

from typing import Literal, NamedTuple

FailureKind = Literal[
    "rank_died",  # its process ended, or closed a socket
    "rank_hung",  # it makes no progress in a step
    "step_late",  # ranks make progress, but not enough for the step's time limit
    "rank_failed",  # it told of an error
    "memory",  # it had no memory, or took far more than it should
    "start_failed",  # the ranks were not ready in time, or could not be started
    "refused",  # another start with this model and these settings would end the same
    "leader_bug",  # an error in the leader's own loop
]


class Failure(NamedTuple):
    """One failure.

    rank: whose it is; -1: the group's. fault: what was computed may have caused it (a crash, an exception,
    memory that ran out), and nothing from outside (a signal, a machine that stood still). step_ids: the steps
    that were under way.
    """

    kind: FailureKind
    reason: str
    rank: int = -1
    fault: bool = False
    step_ids: tuple[int, ...] = ()
