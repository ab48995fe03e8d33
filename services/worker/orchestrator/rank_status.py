"""The row about one rank in a leader's status."""

from services.worker.orchestrator.process_group_manager import RankProcess
from services.worker.rank_protocol.plan import RankInfo
from services.worker.rank_protocol.rank_messages import RankReady


def row(process: RankProcess, ready: RankReady | None, *, failed: bool, steps: int) -> dict[str, object]:
    """Return the row of a rank; `ready`: its message when it was ready, None: it is not yet."""
    rank = process.rank
    info = (
        ready.info
        if ready
        else RankInfo(rank=rank, pid=process.pid, load_s=0.0, loaded_bytes=0, peak_rss_bytes=0)
    )
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
        "kv_cache_bytes": ready.kv_cache_bytes if ready else 0,
    }
