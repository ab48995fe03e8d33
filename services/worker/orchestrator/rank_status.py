"""The rows of a group's ranks for `ryz status`, metrics and pages."""

from collections.abc import Callable, Mapping, Sequence

from services.worker.orchestrator.process_group_manager import RankProcess
from services.worker.rank_protocol.engine_info import RankInfo
from services.worker.rank_protocol.rank_messages import RankReady


def status_rows(
    ranks: Sequence[RankProcess],
    ready: Mapping[int, RankReady],
    *,
    failed: bool,
    steps: int,
    faults: Callable[[int], list[str]],
) -> list[dict[str, object]]:
    """Return the rows.

    Args:
        ready: The messages of the ranks that are ready, by rank.
        failed: The engine has failed.
        steps: Steps sent so far.
        faults: Returns what is wrong with the device of a rank.
    """
    return [
        {**_row(rank, ready.get(rank.rank), failed=failed, steps=steps), "faults": faults(rank.rank)}
        for rank in ranks
    ]


def _row(process: RankProcess, ready: RankReady | None, *, failed: bool, steps: int) -> dict[str, object]:
    rank = process.rank
    none = RankInfo(rank=rank, pid=process.pid, load_s=0.0, loaded_bytes=0, peak_rss_bytes=0)
    info = ready.info if ready else none
    return {
        "rank": rank,
        "pid": info.pid,
        "host": process.host,
        "state": "failed" if failed else "ready" if ready else "starting",
        "steps": steps,
        "memory_bytes": process.memory_bytes(),
        "loaded_bytes": info.loaded_bytes,
        "load_s": round(info.load_s, 3),
        "kernels": info.kernels,
        "why_plain": info.why_plain,
        "numa_node": info.numa_node,
        "kv_cache_bytes": ready.kv_cache_bytes if ready else 0,
    }
