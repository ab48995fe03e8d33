"""The board of KV and sessions: what is found where, what moves, what Redis holds and how fast it answers."""

from tools.boards.board import Board, BoardQuery
from tools.boards.promql import quantile, quantiles, rate


def kv() -> Board:
    """Return the board."""
    board = Board(
        "kv", "KV and sessions", "Do sessions find their KV? What moves, what Redis holds, what is evicted."
    )
    _reuse(board)
    _store(board)
    _sessions(board)
    return board


def _reuse(board: Board) -> None:
    board.row("Reuse")
    board.lines(
        "Where prompts' KV came from",
        "`own`: the group's blocks; `fetch`: the store; the rest is computed.",
        "reqps",
        BoardQuery(rate("ryz_worker_kv_sources_total", "source"), "{{source}}"),
        stacked=True,
    )
    board.lines(
        "Found in own blocks",
        "Share of prompt tokens.",
        "percentunit",
        BoardQuery(
            f"{rate('ryz_worker_prefix_cache_hits_total')} "
            f"/ clamp_min({rate('ryz_worker_prefix_cache_queries_total')}, 1e-9)",
            "all groups",
        ),
        top=1,
    )
    board.lines(
        "Fetches by outcome",
        "`given_up`: the store was too slow.",
        "reqps",
        BoardQuery(rate("ryz_worker_kv_fetches_total", "outcome"), "{{outcome}}"),
        stacked=True,
    )
    board.lines("Time of a fetch", "From the store.", "s", *quantiles("ryz_worker_kv_fetch_seconds"))
    board.lines(
        "Bytes moved",
        "By all groups.",
        "Bps",
        BoardQuery(rate("ryz_worker_kv_fetched_bytes_total"), "fetched"),
        BoardQuery(rate("ryz_worker_kv_stored_bytes_total"), "stored"),
    )
    board.lines(
        "Fetch or compute",
        "Rates by which groups decide, tokens a second; 0: not measured yet.",
        "short",
        BoardQuery("max(ryz_worker_kv_fetch_tokens_per_s)", "fetch"),
        BoardQuery("max(ryz_worker_kv_recompute_tokens_per_s)", "compute"),
    )


def _store(board: Board) -> None:
    board.row("Store")
    board.lines(
        "Bytes of blocks",
        "All tenants, and what they may take (0: no limit).",
        "bytes",
        BoardQuery("max(ryz_kvstate_tier_bytes)", "stored"),
        BoardQuery("max(ryz_kvstate_tier_bytes_limit)", "limit"),
    )
    board.lines(
        "Bytes by tenant",
        "The largest ten.",
        "bytes",
        BoardQuery("topk(10, max by (tenant) (ryz_kvstate_tenant_bytes))", "{{tenant}}"),
        stacked=True,
    )
    board.lines(
        "Evicted blocks",
        "A second, by reason.",
        "short",
        BoardQuery(rate("ryz_kvstate_blocks_evicted_total", "reason"), "{{reason}}"),
        stacked=True,
    )
    board.lines(
        "Redis answers",
        "As kvstate sees it; 1 is up.",
        "short",
        BoardQuery("min by (store) (ryz_kvstate_redis_up)", "{{store}}"),
        top=1,
    )
    board.lines(
        "Time of Redis",
        "One exchange, p99, as kvstate sees it.",
        "s",
        BoardQuery(quantile(0.99, "ryz_kvstate_redis_seconds", "store"), "{{store}}"),
    )
    board.lines(
        "Memory of Redis",
        "Used, and the limit (0: none).",
        "bytes",
        BoardQuery("max by (store) (ryz_kvstate_redis_memory_bytes)", "{{store}} used"),
        BoardQuery("max by (store) (ryz_kvstate_redis_memory_limit_bytes)", "{{store}} limit"),
    )


def _sessions(board: Board) -> None:
    board.row("Sessions")
    board.lines(
        "Sessions",
        "In the store, and known to routers.",
        "short",
        BoardQuery("max(ryz_kvstate_sessions)", "stored"),
        BoardQuery("max(ryz_router_sessions)", "known to a router"),
    )
    board.lines(
        "Bytes of sessions",
        "Records in the store.",
        "bytes",
        BoardQuery("max(ryz_kvstate_session_bytes)", "records"),
    )
    board.lines(
        "Commits by outcome",
        "`stored` is the usual one.",
        "reqps",
        BoardQuery(rate("ryz_kvstate_session_commits_total", "outcome"), "{{outcome}}"),
        stacked=True,
    )
    board.lines(
        "Lookups by outcome",
        "Of leaders, for the history of a session.",
        "reqps",
        BoardQuery(rate("ryz_worker_session_lookups_total", "outcome"), "{{outcome}}"),
        stacked=True,
    )
    board.lines(
        "Calls of kvstate",
        "p99 by call.",
        "s",
        BoardQuery(quantile(0.99, "ryz_kvstate_request_seconds", "call"), "{{call}}"),
    )
    board.lines(
        "Moves of sessions",
        "Expected time to have a session's KV on its new group.",
        "s",
        *quantiles("ryz_router_move_seconds"),
    )
