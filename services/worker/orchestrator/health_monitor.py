"""Says what is wrong with which rank of a group, from what can be seen of them.

That are the ends of their sockets and processes, what they report, their progress in a step, which they show
in shared memory, and their memory. It does nothing about it: a `Failure` goes to who asked.
"""

from collections.abc import Mapping, Sequence

from services.worker.orchestrator.process_group_manager import RankProcess
from services.worker.orchestrator.step_limit import StepLimit
from services.worker.rank_protocol.failures import Failure, FailureKind
from services.worker.rank_protocol.plan import StepPlan
from services.worker.rank_protocol.progress_page import RankProgress, read_progress
from services.worker.rank_protocol.rank_messages import RankFailed

INTERVAL_S = 0.1
_MEMORY_INTERVAL_S = 1.0
# At most, from the end of a socket to its process's exit code. Linux tells the code at once, except 0; other
# kernels do when the process has ended, and a rank that closes its socket itself ends a moment later.
_EXIT_WAIT_S = 0.05
# What a check may add to the time that is counted, in intervals: when the leader itself stood still, or the
# whole machine, the time in between says nothing about the ranks.
_MOST_INTERVALS = 2.0
KILLED = "killed by "
_CRASHES = {"SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS"}
_RUN_STATES = {
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "D": "waiting for a disk or a driver",
    "R": "running",
    "S": "sleeping",
    "Z": "ended",
}


class HealthMonitor:
    """Of the ranks of one start.

    Call `begin_step` when a step begins after none ran, `step_done` after each, and `find_failure` every `interval_s` in
    between.

    Args:
        ranks: All of them; those of other hosts are not watched in a step.
        limit: How long a step may take.
        stall_s: How long nothing may happen in one.
        progress: Page of the ranks' counts; None: there is none.
        memory_limits: Resident bytes of a rank at most, by its number.
    """

    def __init__(
        self,
        ranks: Sequence[RankProcess],
        limit: StepLimit,
        *,
        stall_s: float = 0.0,
        progress: Sequence[int] | None = None,
        memory_limits: Mapping[int, int] | None = None,
    ) -> None:
        self._ranks = list(ranks)
        self._limit = limit
        self._stall_s = stall_s
        self._progress = progress if stall_s else None
        self._memory_limits = memory_limits or {}
        self.interval_s = min(INTERVAL_S, limit.base_s / 10, stall_s / 5 or INTERVAL_S)
        self._checked_at = self._memory_due = 0.0
        self._step_s = self._still_s = 0.0  # of the step that runs, and without any progress
        self._seen: list[RankProgress] = []

    def begin_step(self, now: float) -> None:
        """A step begins."""
        self._checked_at, self._step_s, self._still_s = now, 0.0, 0.0

    def step_done(self, plan: StepPlan, compute_s: float) -> None:
        """A step is done, and the next one, if there is one, has begun."""
        self._limit.record_step(plan, compute_s)
        self._step_s = 0.0

    def find_failure(self, now: float, plan: StepPlan, sent: int) -> Failure | None:
        """What is wrong while that step runs, the oldest of those that are not done; `sent`: steps so far."""
        passed = min(now - self._checked_at, _MOST_INTERVALS * self.interval_s)
        self._checked_at = now
        self._step_s += passed
        limit_s = self._limit.limit_s(plan)
        if self._step_s > limit_s:
            return Failure("step_late", f"step {plan.step_id} was not done within {limit_s:g} s")
        return self._stalled(passed, plan, sent) or self._runaway(now)

    def failure_of_end(self, rank: RankProcess, reason: str, pid: int) -> Failure:
        """A rank's socket has ended. reason: why; empty: its process tells."""
        reason = reason or rank.describe_end(_EXIT_WAIT_S)
        where = f" on {rank.host}" if rank.host else ""
        fault = is_own_fault(reason) and not self._ended_from_outside()
        text = f"rank {rank.rank} (pid {pid}{where}) is gone: {reason}"
        return Failure("rank_died", text, rank.rank, fault)

    def failure_of_report(self, rank: RankProcess, told: RankFailed, *, serving: bool) -> Failure:
        """A rank said why it ends. serving: it was ready before."""
        message = f"rank {rank.rank}: {told.message}" if serving else told.message
        kind: FailureKind = "rank_failed" if serving else "start_failed"
        if told.refused or told.memory:
            kind = "refused" if told.refused else "memory"
        # a rank whose neighbour was killed may complain first
        fault = serving and (told.bug or told.memory) and not self._ended_from_outside()
        return Failure(kind, message, rank.rank, fault)

    def _ended_from_outside(self) -> bool:
        """Whether any rank has ended by a signal that it did not cause itself."""
        ends = (rank.describe_end() for rank in self._ranks)
        return any(end.startswith(KILLED) and not is_own_fault(end) for end in ends)

    def _stalled(self, passed: float, plan: StepPlan, sent: int) -> Failure | None:
        if self._progress is None:
            return None
        seen = [read_progress(self._progress, rank.rank) for rank in self._ranks]
        if seen != self._seen:
            self._seen, self._still_s = seen, 0.0
            return None
        self._still_s += passed
        if self._still_s <= self._stall_s + self._limit.token_time_s(plan):
            return None
        busy = [(one.beats, rank) for one, rank in zip(seen, self._ranks, strict=True) if one.done < sent]
        if not busy:
            return None  # they are through; what is missing is on its way here
        fewest = min(beats for beats, _ in busy)
        behind = [rank for beats, rank in busy if beats == fewest]
        # those that wait for another have come as far as that one when it stands just before their meeting
        rank = next((one for one in behind if one.run_state() in {"T", "t", "D"}), behind[0])
        doing = _RUN_STATES.get(rank.run_state(), "in an unknown state")
        return Failure(
            "rank_hung",
            f"rank {rank.rank} (pid {rank.pid}) made no progress in step {plan.step_id} for "
            f"{self._still_s:.1f} s; it is {doing}",
            rank.rank,
        )

    def _runaway(self, now: float) -> Failure | None:
        if now < self._memory_due:
            return None
        self._memory_due = now + _MEMORY_INTERVAL_S
        for rank in self._ranks:
            limit = self._memory_limits.get(rank.rank, 0)
            if limit and (taken := rank.memory_bytes()) > limit:
                return Failure(
                    "memory",
                    f"rank {rank.rank} (pid {rank.pid}) takes {taken / 2**20:.0f} MiB of memory, and "
                    f"{limit / 2**20:.0f} are its limit (RYZ_RANK_MEMORY_GROWTH_MB)",
                    rank.rank,
                    fault=True,
                )
        return None


def is_own_fault(end: str) -> bool:
    """Whether a process that ended like that, as `describe_end` has it, was ended by what it computed."""
    return end.removeprefix(KILLED) in _CRASHES or (end.startswith("exit code") and end != "exit code 0")
