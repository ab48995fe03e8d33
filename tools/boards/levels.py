"""The board of tenants and service levels: who gets what, and how much of the error budget goes."""

from tools.boards.board import Board, BoardQuery, BoardVariable
from tools.boards.promql import quantile

CHOSEN = 'model=~"$model", tenant=~"$tenant", priority=~"$priority"'
_REQUESTS = "ryz_slo_requests_total"


def levels() -> Board:
    """Return the board."""
    board = Board(
        "levels",
        "Tenants and service levels",
        "What do callers get? Times, errors and use by model, tenant and priority. Tenants beyond the first "
        "few are shown as `other`.",
        [
            BoardVariable("model", "Model", _REQUESTS),
            BoardVariable("tenant", "Tenant", _REQUESTS),
            BoardVariable("priority", "Priority", _REQUESTS),
        ],
    )
    _numbers(board)
    for by in ("tenant", "model", "priority"):
        _times(board, by)
    _use(board)
    return board


def _good(bound: str, histogram: str, window: str) -> str:
    inside = f'sum(rate({histogram}_bucket{{{CHOSEN}, le="{bound}"}}[{window}]))'
    return f"{inside} / clamp_min(sum(rate({histogram}_count{{{CHOSEN}}}[{window}])), 1e-9)"


def _numbers(board: Board) -> None:
    failed = f"(sum(rate({_REQUESTS}{{{CHOSEN}, outcome='failed'}}[1h])) or vector(0))"
    counted = f"clamp_min(sum(rate({_REQUESTS}{{{CHOSEN}, outcome=~'ok|failed'}}[1h])), 1e-9)"
    for title, text, unit, expr in (
        (
            "Failed",
            "Share of requests that the service failed, last hour.",
            "percentunit",
            f"{failed} / {counted}",
        ),
        (
            "Under 30 ms per token",
            "Share of deliveries of streams, last hour.",
            "percentunit",
            _good("0.03", "ryz_slo_inter_token_seconds", "1h"),
        ),
        (
            "Under 50 ms per token",
            "Share of deliveries of streams, last hour.",
            "percentunit",
            _good("0.05", "ryz_slo_inter_token_seconds", "1h"),
        ),
        (
            "First token in 0.5 s",
            "Share of streamed requests, last hour.",
            "percentunit",
            _good("0.5", "ryz_slo_time_to_first_token_seconds", "1h"),
        ),
    ):
        board.number(title, text, unit, BoardQuery(expr))


def _times(board: Board, by: str) -> None:
    board.row(f"By {by}")
    for title, name, text in (
        ("Time to first token", "time_to_first_token", "p99, streamed requests."),
        ("Between tokens", "inter_token", "p99 of the pauses of streams, failovers included."),
        ("Whole requests", "request", "p99, requests that ended well."),
    ):
        query = BoardQuery(quantile(0.99, f"ryz_slo_{name}_seconds", by, CHOSEN), f"{{{{{by}}}}}")
        board.lines(f"{title} by {by}", text, "s", query)


def _use(board: Board) -> None:
    board.row("Use and errors")
    board.lines(
        "Requests by tenant",
        "",
        "reqps",
        BoardQuery(f"sum by (tenant) (rate({_REQUESTS}{{{CHOSEN}}}[$__rate_interval]))", "{{tenant}}"),
        stacked=True,
    )
    board.lines(
        "Outcomes",
        "`refused`: the request was wrong or over a limit.",
        "reqps",
        BoardQuery(f"sum by (outcome) (rate({_REQUESTS}{{{CHOSEN}}}[$__rate_interval]))", "{{outcome}}"),
        stacked=True,
    )
    board.lines(
        "Tokens by kind",
        "A second, all tenants.",
        "short",
        BoardQuery(
            "sum by (gen_ai_token_type) (rate(gen_ai_client_token_usage_sum[$__rate_interval]))",
            "{{gen_ai_token_type}}",
        ),
    )
    board.lines(
        "KV kept by tenant",
        "Bytes in the store.",
        "bytes",
        BoardQuery("max by (tenant) (ryz_kvstate_tenant_bytes)", "{{tenant}}"),
    )
    board.lines(
        "Errors by type",
        "OpenTelemetry's `error.type`; without a name: no error.",
        "reqps",
        BoardQuery(
            "sum by (error_type) (rate(gen_ai_client_operation_duration_seconds_count[$__rate_interval]))",
            "{{error_type}}",
        ),
    )
    board.lines(
        "Tenants near a quota",
        "Of sessions or of their bytes.",
        "short",
        BoardQuery("max(ryz_kvstate_tenants_nearly_full)", "tenants"),
    )
