"""The board of the whole fleet: what comes in, what goes out, which groups there are, what is nearly full."""

from tools.boards.board import Board, BoardQuery
from tools.boards.promql import quantile, quantiles, rate


def fleet() -> Board:
    """Return the board."""
    board = Board("fleet", "Fleet", "Is the fleet well? Requests, times, groups, and what is nearly full.")
    board.number(
        "Ready groups",
        "Groups that take requests.",
        "short",
        BoardQuery("sum(max by (model) (ryz_router_ready_groups))"),
    )
    board.number("Requests", "A second.", "reqps", BoardQuery(rate("ryz_slo_requests_total")))
    board.number(
        "Ended well",
        "Share of requests that the service did not fail, over the last 5 minutes.",
        "percentunit",
        BoardQuery(
            "1 - (sum(rate(ryz_slo_requests_total{outcome='failed'}[5m])) or vector(0)) "
            "/ clamp_min(sum(rate(ryz_slo_requests_total{outcome=~'ok|failed'}[5m])), 1e-9)"
        ),
    )
    board.number(
        "Tokens", "Generated, a second.", "short", BoardQuery(rate("ryz_worker_generation_tokens_total"))
    )
    board.number("Open streams", "Of all gateways.", "short", BoardQuery("sum(ryz_gateway_open_streams)"))
    board.number(
        "Targets down", "Services that do not answer scrapes.", "short", BoardQuery("count(up) - sum(up)")
    )
    _requests(board)
    _groups(board)
    _saturation(board)
    _broker(board)
    return board


def _requests(board: Board) -> None:
    board.row("Requests")
    board.lines(
        "Requests by outcome",
        "As callers see them.",
        "reqps",
        BoardQuery(rate("ryz_slo_requests_total", "outcome"), "{{outcome}}"),
        stacked=True,
    )
    board.lines(
        "HTTP answers by status",
        "429: over a limit; 503: nothing could take it.",
        "reqps",
        BoardQuery(rate("ryz_gateway_requests_total", "status"), "{{status}}"),
        stacked=True,
    )
    board.lines(
        "Tokens",
        "Prompt tokens count when a request starts.",
        "short",
        BoardQuery(rate("ryz_worker_generation_tokens_total"), "generated"),
        BoardQuery(rate("ryz_worker_prompt_tokens_total"), "prompt"),
    )
    for title, name, text in (
        ("Time to first token", "time_to_first_token", "Streamed requests, from the caller's point of view."),
        ("Between tokens", "inter_token", "Between deliveries of a stream; pauses of a failover are in it."),
        ("Whole requests", "request", "From a request to its end, if it ended well."),
    ):
        board.lines(title, text, "s", *quantiles(f"ryz_slo_{name}_seconds"))


def _groups(board: Board) -> None:
    board.row("Groups")
    board.lines(
        "Groups by state",
        "As a router sees them.",
        "short",
        BoardQuery("max by (state) (ryz_router_groups)", "{{state}}"),
        stacked=True,
    )
    board.lines(
        "Requests by group",
        "Estimated by a router: running and waiting.",
        "short",
        BoardQuery("sum by (group) (max by (group, kind) (ryz_router_group_requests))", "{{group}}"),
    )
    board.lines(
        "Work imbalance",
        "How much more than the mean the busiest group computes. High while idle.",
        "percentunit",
        BoardQuery("max by (model) (ryz_router_work_imbalance)", "{{model}}"),
    )
    board.lines(
        "Decisions by reason",
        "Why requests went to their groups.",
        "reqps",
        BoardQuery(rate("ryz_router_decisions_total", "reason"), "{{reason}}"),
        stacked=True,
    )
    board.lines("Time of a decision", "In the router.", "s", *quantiles("ryz_router_decision_seconds"))
    board.lines(
        "Tokens by group",
        "Generated, a second.",
        "short",
        BoardQuery(
            "sum by (group) (rate(ryz_worker_generation_tokens_total[$__rate_interval]) "
            "* on (job, instance) group_left (group) ryz_worker_info)",
            "{{group}}",
        ),
    )


def _saturation(board: Board) -> None:
    board.row("Saturation: 1 is full")
    group = " * on (job, instance) group_left (group) ryz_worker_info"
    board.lines(
        "Places of gateways",
        "Requests under way of those that a gateway takes.",
        "percentunit",
        BoardQuery("ryz_gateway_places / ryz_gateway_places_limit", "requests {{instance}}"),
        BoardQuery("ryz_gateway_held_bytes / ryz_gateway_held_bytes_limit", "bodies {{instance}}"),
        BoardQuery("ryz_gateway_connections / ryz_gateway_connections_limit", "connections {{instance}}"),
        top=1,
    )
    board.lines(
        "Queues of groups",
        "Waiting requests of those that the queue holds.",
        "percentunit",
        BoardQuery(
            f"ryz_worker_num_requests_waiting / clamp_min(ryz_worker_max_waiting, 1){group}", "{{group}}"
        ),
        top=1,
    )
    board.lines(
        "KV blocks",
        "Blocks in use. Full: sequences are put back.",
        "percentunit",
        BoardQuery(f"ryz_worker_kv_cache_usage_perc{group}", "{{group}}"),
        top=1,
    )
    board.lines(
        "Engines busy",
        "Share of the time in which steps ran.",
        "percentunit",
        BoardQuery(f"rate(ryz_worker_step_seconds_sum[$__rate_interval]){group}", "{{group}}"),
        top=1,
    )
    board.lines(
        "Event loops",
        "How late timers run, p99: all that waits for the process waits so long.",
        "s",
        BoardQuery(quantile(0.99, "ryz_event_loop_lag_seconds", "job, instance"), "{{job}} {{instance}}"),
    )
    board.lines(
        "Processor",
        "Cores in use by the service's own process (ranks are processes of their own).",
        "short",
        BoardQuery("rate(process_cpu_seconds_total[$__rate_interval])", "{{job}} {{instance}}"),
    )
    board.lines(
        "Memory",
        "Resident, of the service's own process.",
        "bytes",
        BoardQuery("process_resident_memory_bytes", "{{job}} {{instance}}"),
    )


def _broker(board: Board) -> None:
    board.row("Broker")
    board.lines(
        "Connected",
        "1 while the connection is there.",
        "short",
        BoardQuery("min by (job, instance) (ryz_bus_connected)", "{{job}} {{instance}}"),
        top=1,
    )
    board.lines(
        "Messages",
        "Received, a second.",
        "short",
        BoardQuery(rate("ryz_bus_received_total", "job, instance"), "{{job}} {{instance}}"),
    )
    board.lines(
        "Waiting messages",
        "Received and not handled yet.",
        "short",
        BoardQuery("sum by (job, instance) (ryz_bus_pending_messages)", "{{job}} {{instance}}"),
    )
