"""The board of failures: what broke, what the fleet did about it, and what callers noticed."""

from tools.boards.board import Board, BoardQuery
from tools.boards.promql import quantiles, rate


def failures() -> Board:
    """Return the board."""
    board = Board(
        "failures", "Failures", "What broke, what the fleet did about it, and what callers noticed of it."
    )
    _seen(board)
    _groups(board)
    _transport(board)
    return board


def _seen(board: Board) -> None:
    board.row("What callers notice")
    board.lines(
        "Failed requests",
        "By the service's fault.",
        "reqps",
        BoardQuery(rate("ryz_slo_requests_total{outcome!='ok'}", "outcome"), "{{outcome}}"),
        stacked=True,
    )
    board.lines(
        "Streams that ended with an error",
        "By code.",
        "reqps",
        BoardQuery(rate("ryz_gateway_failed_streams_total", "code"), "{{code}}"),
        stacked=True,
    )
    board.lines(
        "Pauses of failovers",
        "From the last frame of a lost group to the first tokens of another one.",
        "s",
        *quantiles("ryz_client_stream_pause_seconds"),
    )
    board.lines(
        "Refusals of routers",
        "By code and reason.",
        "reqps",
        BoardQuery(rate("ryz_router_refusals_total", "code, reason"), "{{code}} {{reason}}"),
        stacked=True,
    )
    board.lines(
        "Streams left and resumed",
        "A second.",
        "reqps",
        BoardQuery(rate("ryz_gateway_attached_streams_total"), "resumed"),
        BoardQuery(rate("ryz_gateway_expired_streams_total"), "not resumed in time"),
        BoardQuery(rate("ryz_gateway_cancelled_total"), "caller left"),
    )
    board.lines(
        "Slow readers",
        "Answers cut off because they were not read.",
        "reqps",
        BoardQuery(rate("ryz_gateway_slow_readers_total"), "answers"),
    )


def _groups(board: Board) -> None:
    board.row("Groups")
    board.lines(
        "Lost groups",
        "Increase over 5 minutes, by reason and group.",
        "short",
        BoardQuery(
            "max by (reason, group) (increase(ryz_router_groups_lost_total[5m]))", "{{group}} {{reason}}"
        ),
    )
    board.lines(
        "Engine failures",
        "Increase over 5 minutes, by kind.",
        "short",
        BoardQuery(
            "sum by (group, kind) (increase(ryz_worker_engine_failures_total[5m]) "
            "* on (job, instance) group_left (group) ryz_worker_info)",
            "{{group}} {{kind}}",
        ),
    )
    board.lines(
        "Requests that moved",
        "Groups lost to their requests, and requests that went on elsewhere.",
        "reqps",
        BoardQuery(rate("ryz_client_lost_total"), "lost"),
        BoardQuery(rate("ryz_client_resumed_total"), "resumed"),
        BoardQuery(rate("ryz_client_refused_total"), "refused meanwhile"),
    )
    board.lines(
        "Running steps",
        "How long the step that runs now has taken: grows while a rank hangs.",
        "s",
        BoardQuery(
            "max by (instance, rank) (ryz_worker_rank_running_step_seconds)", "{{instance}} rank {{rank}}"
        ),
    )
    board.lines(
        "Events of routers",
        "Deaf routers, breakers, rivals, ...",
        "short",
        BoardQuery(rate("ryz_router_events_total", "event"), "{{event}}"),
    )
    board.lines(
        "Sequences without a token",
        "A second.",
        "short",
        BoardQuery(rate("ryz_worker_failed_sequences_total"), "sequences"),
    )


def _transport(board: Board) -> None:
    board.row("Broker, stores, logs")
    board.lines(
        "Broker connections",
        "Lost and made again, increase over 5 minutes.",
        "short",
        BoardQuery(
            "sum by (job, instance) (increase(ryz_bus_disconnects_total[5m]))", "lost {{job}} {{instance}}"
        ),
        BoardQuery(
            "sum by (job, instance) (increase(ryz_bus_reconnects_total[5m]))", "back {{job}} {{instance}}"
        ),
    )
    board.lines(
        "Dropped messages",
        "This service was too slow.",
        "short",
        BoardQuery(rate("ryz_bus_dropped_total", "job, instance"), "{{job}} {{instance}}"),
    )
    board.lines(
        "Frames",
        "Gaps, questions for missing frames, repeated publishes.",
        "short",
        BoardQuery(rate("ryz_client_gaps_total"), "gaps"),
        BoardQuery(rate("ryz_client_resends_total"), "resends"),
        BoardQuery(rate("ryz_client_republished_total"), "republished"),
        BoardQuery(rate("ryz_worker_unsent_frames_total"), "unsent"),
    )
    board.lines(
        "Stores",
        "1 while they answer.",
        "short",
        BoardQuery("min by (store) (ryz_kvstate_redis_up)", "Redis, {{store}}"),
        BoardQuery("min(ryz_worker_kv_store_up)", "KV store, as groups see it"),
        BoardQuery("min(ryz_kvstate_store_writable)", "sessions can be written"),
        top=1,
    )
    board.lines(
        "KV that was not used",
        "Damaged blocks, blocks not written, commits that failed.",
        "short",
        BoardQuery(rate("ryz_worker_kv_corrupt_blocks_total"), "damaged"),
        BoardQuery(rate("ryz_worker_kv_dropped_blocks_total"), "not written"),
        BoardQuery(rate("ryz_worker_kv_commits_failed_total"), "not told"),
    )
    board.lines(
        "Log lines",
        "Of level warning and above, a second.",
        "short",
        BoardQuery(
            rate("ryz_log_lines_total{level=~'warning|error|critical'}", "job, level"), "{{job}} {{level}}"
        ),
        BoardQuery(rate("ryz_log_suppressed_total", "job"), "left out {{job}}"),
    )
