"""Finds failures of a group's ranks.

Signals: closed sockets, exit codes, reports of ranks, step progress in shared memory, the kernel's counts of
the ranks' threads, resident memory. It takes no action: the caller gets a `Failure`.

The clocks of a step count only time that the rank that is behind could use (`time_limits.py`).
"""

from collections.abc import Callable, Mapping, Sequence

from services.worker.orchestrator.process_group_manager import RankProcess
from services.worker.orchestrator.process_readings import CpuCounts, ProcessReading
from services.worker.orchestrator.time_limits import StepLimit, shared_usable_s, unstarved_s
from services.worker.rank_protocol.failures import Failure, FailureKind
from services.worker.rank_protocol.plan import StepPlan
from services.worker.rank_protocol.progress_page import RankProgress, read_progress
from services.worker.rank_protocol.rank_messages import RankFailed
from services.worker.rank_protocol.run_config import STRETCH
from shared.host.oom_kills import oom_kills

INTERVAL_S = 0.1
_MEMORY_INTERVAL_S = 1.0
# Longest wait from the end of a socket to its process's exit code. Linux reports the code at once, except 0;
# other kernels report it when the process has ended, shortly after it closed its socket.
_EXIT_WAIT_S = 0.05
_CALM_S = 1.0  # of a step that makes progress, before the kernel's counts are read for it
_WORTH_TELLING_S = 0.5  # of waits for a core or a disk
KILLED = "killed by "
_CRASHES = {"SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS"}
# order in which ranks with as few beats are suspected; one that waits for another one sleeps
_SUSPECTS = {"T": 0, "t": 0, "D": 1, "R": 2}
_RUN_STATES = {
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "D": "waiting for a disk or a driver",
    "R": "running",
    "S": "sleeping",
    "Z": "ended",
}


class HealthMonitor:
    """Watches the ranks of one start of the engine.

    Call `begin_watch` when steps begin after none ran, `begin_step` and `step_done` for each step, and
    `find_failure` every `interval_s` while steps run.

    Args:
        ranks: All ranks; those of other hosts are not watched in a step.
        limit: Time limit of a step.
        stall_s: Counted time without any progress after which a step counts as hung; 0: not watched.
        progress: Page of the ranks' counts; None: there is none.
        memory_limits: Most resident bytes of each rank, by its number.
        threads: Threads with which each rank computes.
        count_oom: Returns how often the kernel has killed a process for want of memory.

    Attributes:
        silent_s: Seconds without any progress, those that count against no rank included.
    """

    def __init__(
        self,
        ranks: Sequence[RankProcess],
        limit: StepLimit,
        *,
        stall_s: float = 0.0,
        progress: Sequence[int] | None = None,
        memory_limits: Mapping[int, int] | None = None,
        threads: int = 1,
        count_oom: Callable[[], int] = oom_kills,
    ) -> None:
        self._ranks = list(ranks)
        self._local = [rank for rank in ranks if not rank.host]
        self._threads = threads
        self._limit = limit
        self._stall_s = stall_s
        self._progress = progress if stall_s else None
        self._memory_limits = memory_limits or {}
        self._count_oom = count_oom
        self._oom_before = count_oom()
        self.interval_s = min(INTERVAL_S, limit.base_s / 10, stall_s / 5 or INTERVAL_S)
        self._calm_s = min(_CALM_S, limit.base_s / 10)
        self._checked_at = self._memory_due = 0.0
        # of the running step: counted time, and all time; without progress: counted time, and all time
        self._step_s = self._running_s = self._still_s = self.silent_s = 0.0
        self._seen: list[RankProgress] = []
        self._counts: dict[int, ProcessReading | None] = {}  # by rank, at the last check
        self._cpu_at_begin: list[CpuCounts] | None = None

    def begin_watch(self, now: float) -> None:
        """Note that steps run, after none ran."""
        self._checked_at = now
        self._step_s = self._running_s = self._still_s = self.silent_s = 0.0
        self._counts = {}

    def begin_step(self, plan: StepPlan) -> None:
        """Note that no step before this one is left."""
        self._step_s = self._running_s = 0.0
        self._cpu_at_begin = self._read_cpu() if self._limit.measures(plan) else None

    def step_done(self, plan: StepPlan, compute_s: float) -> None:
        """Note that a step is done."""
        if self._cpu_at_begin is not None:
            compute_s = unstarved_s(compute_s, self._cpu_at_begin, self._read_cpu())
            self._limit.record_step(plan, compute_s)

    def find_failure(self, now: float, plan: StepPlan, sent: int) -> Failure | None:
        """Return what is wrong while steps run, or None.

        Args:
            plan: The oldest step that is not done.
            sent: Number of steps sent so far.
        """
        # in a longer gap the leader or the whole machine stood still, which says nothing about the ranks
        passed_s = min(now - self._checked_at, self.interval_s)
        self._checked_at = now
        has_progress, behind = self._check_steps(sent)
        counted_s = self._count(behind, passed_s, calm=has_progress and self._step_s < self._calm_s)
        self._step_s += counted_s
        self._running_s += passed_s
        self._still_s = 0.0 if has_progress else self._still_s + counted_s
        self.silent_s = 0.0 if has_progress else self.silent_s + max(passed_s, counted_s)
        limit_s = self._limit.limit_s(plan)
        # with a page, the bound on time without progress is enough; it ends no step that makes progress
        starved = self._progress is None and self._running_s > STRETCH * limit_s
        if starved or self._step_s > limit_s:
            late = f"step {plan.step_id} was not done within {limit_s:g} s"
            if self._progress is None or not behind:
                return Failure("step_late", late)
            suspect = self._suspect(behind)
            named = f"rank {suspect.rank} (pid {suspect.pid}) is behind; it is {self._doing(suspect)}"
            return Failure("step_late", f"{late}: {named}", suspect.rank)
        return self._stalled(behind, plan) or self._runaway(now)

    def failure_of_end(self, rank: RankProcess, reason: str, pid: int) -> Failure:
        """Return the failure of a rank whose socket has ended.

        Args:
            reason: Why it ended; empty: taken from its process.
        """
        reason = reason or rank.describe_end(_EXIT_WAIT_S)
        where = f" on {rank.host}" if rank.host else ""
        outside = self._ended_from_outside()
        text = f"rank {rank.rank} (pid {pid}{where}) is gone: {reason}"
        if outside and self._count_oom() > self._oom_before:
            return Failure(
                "memory", f"{text}, while the kernel ended processes for want of memory", rank.rank
            )
        return Failure("rank_died", text, rank.rank, is_own_fault(reason) and not outside, outside=outside)

    def failure_of_report(self, rank: RankProcess, report: RankFailed, *, serving: bool) -> Failure:
        """Return the failure that a rank has reported; `serving`: it was ready before."""
        message = f"rank {rank.rank}: {report.message}" if serving else report.message
        kind: FailureKind = "rank_failed" if serving else "start_failed"
        if report.refused or report.memory:
            kind = "refused" if report.refused else "memory"
        # a rank whose neighbour was killed may report an error first
        outside = self._ended_from_outside()
        fault = serving and (report.bug or report.memory) and not outside
        return Failure(kind, message, rank.rank, fault, outside=outside)

    def _ended_from_outside(self) -> bool:
        """Return True if any rank has ended by a signal that it did not cause itself."""
        ends = (rank.describe_end() for rank in self._ranks)
        return any(end.startswith(KILLED) and not is_own_fault(end) for end in ends)

    def _check_steps(self, sent: int) -> tuple[bool, list[RankProcess]]:
        """Return whether there was progress since the last check, and the ranks that the others wait for."""
        if self._progress is None:
            return self._step_s < self._calm_s, self._local
        seen = [read_progress(self._progress, rank.rank) for rank in self._ranks]
        has_progress, self._seen = seen != self._seen, seen
        busy = [(one.beats, rank) for one, rank in zip(seen, self._ranks, strict=True) if one.done < sent]
        if not busy:  # all are done; the result is on the way, unless rank 0 was stopped before it sent it
            stopped = [rank for rank in self._local if rank.rank == 0 and _is_stopped(rank)]
            return has_progress or not stopped, stopped
        fewest = min(beats for beats, _ in busy)
        # ranks that wait for another one show the same count if that one stopped just before their all-reduce
        return has_progress, [rank for beats, rank in busy if beats == fewest]

    def _count(self, behind: list[RankProcess], passed_s: float, *, calm: bool) -> float:
        """Return how much of the time since the last check counts against the ranks that are behind."""
        if calm:
            self._counts = {}
            return passed_s
        before, self._counts = self._counts, {rank.rank: rank.read_counts() for rank in behind}
        return shared_usable_s([(before.get(rank), now) for rank, now in self._counts.items()], passed_s)

    def _stalled(self, behind: list[RankProcess], plan: StepPlan) -> Failure | None:
        limit_s = self._stall_s + self._limit.token_time_s(plan)
        if self._progress is None or max(self._still_s, self.silent_s / STRETCH) <= limit_s:
            return None
        rank = self._suspect(behind)
        excused_s = self.silent_s - self._still_s
        waits = (
            f", of which {excused_s:.1f} s do not count, since it waited for a core or a disk"
            if excused_s > _WORTH_TELLING_S
            else ""
        )
        return Failure(
            "rank_hung",
            f"rank {rank.rank} (pid {rank.pid}) made no progress in step {plan.step_id} for "
            f"{self.silent_s:.1f} s{waits}; it is {self._doing(rank)}",
            rank.rank,
        )

    def _suspect(self, behind: list[RankProcess]) -> RankProcess:
        """Return the rank that most likely holds up the others."""
        return min(behind, key=lambda one: _SUSPECTS.get(self._state(one), len(_SUSPECTS)))

    def _doing(self, rank: RankProcess) -> str:
        return _RUN_STATES.get(self._state(rank), "in an unknown state")

    def _state(self, rank: RankProcess) -> str:
        counts = self._counts.get(rank.rank)
        return counts.state if counts else ""

    def _read_cpu(self) -> list[CpuCounts]:
        return [rank.read_cpu(self._threads) for rank in self._local]

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


def _is_stopped(rank: RankProcess) -> bool:
    counts = rank.read_counts()
    return counts is not None and counts.is_stopped


def is_own_fault(end: str) -> bool:
    """Return True if a process whose end is described so (`describe_end`) was ended by what it computed."""
    return end.removeprefix(KILLED) in _CRASHES or (end.startswith("exit code") and end != "exit code 0")
