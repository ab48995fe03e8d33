"""Where a service holds its memory: Python's tracemalloc, reported by a log line when SIGUSR1 comes.

It is for a process to which no debugger can be attached, such as one in a container. A setting starts it,
since it makes Python slower; without it nothing is traced, and the signal only logs that.
"""

import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import structlog

MAX_LINES_OF_CODE = 15
_OWN = (
    tracemalloc.__file__,
    __file__,
    "<frozen importlib._bootstrap>",
    "<frozen importlib._bootstrap_external>",
)
_ROOT = str(Path(__file__).resolve().parents[2]) + "/"
log = structlog.get_logger(__name__)


class MemoryTrace:
    """Traces allocations from now on.

    Args:
        frames: How many callers of each allocation are kept; 0: nothing is traced.
    """

    def __init__(self, frames: int) -> None:
        self._before: tracemalloc.Snapshot | None = None
        if frames:
            tracemalloc.start(frames)

    def log_report(self) -> None:
        """Logs what holds most memory; from the second time on, what has grown most since the time before.

        The process does nothing else meanwhile: some tenths of a second.
        """
        if not tracemalloc.is_tracing():
            log.warning("memory is not traced", remedy="set RYZ_MEMORY_TRACE=3 and start the service again")
            return
        held_bytes, _ = tracemalloc.get_traced_memory()
        snapshot = tracemalloc.take_snapshot().filter_traces(
            [tracemalloc.Filter(False, name) for name in _OWN]
        )
        if self._before is None:
            lines = _held(snapshot.statistics("traceback"))
        else:
            lines = _grown(snapshot.compare_to(self._before, "traceback"))
        grown = self._before is not None
        self._before = snapshot
        log.info("memory that has grown" if grown else "memory held", memory_bytes=held_bytes, places=lines)


def _held(found: Iterable[tracemalloc.Statistic]) -> list[str]:
    most = sorted(found, key=lambda one: one.size, reverse=True)[:MAX_LINES_OF_CODE]
    return [f"{one.size} bytes in {one.count}: {_where(one.traceback)}" for one in most]


def _grown(found: Iterable[tracemalloc.StatisticDiff]) -> list[str]:
    most = sorted(found, key=lambda one: one.size_diff, reverse=True)[:MAX_LINES_OF_CODE]
    return [
        f"+{one.size_diff} bytes in {one.count_diff:+}: {_where(one.traceback)}"
        for one in most
        if one.size_diff > 0
    ]


def _where(traceback: tracemalloc.Traceback) -> str:
    """Names the line that allocated and its callers, the innermost first."""
    frames = reversed(list(traceback))
    return " < ".join(f"{frame.filename.removeprefix(_ROOT)}:{frame.lineno}" for frame in frames)
