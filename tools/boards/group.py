"""The board of one group and its ranks: queue, steps, KV, and which rank the others wait for."""

from tools.boards.board import Board, BoardQuery, BoardVariable
from tools.boards.promql import of_group, quantile


def group() -> Board:
    """Return the board."""
    board = Board(
        "group",
        "Group and ranks",
        "Why is this group slow? Its queue, its steps, and what each rank spends its time on.",
        [BoardVariable("group", "Group", "ryz_worker_info")],
    )
    _requests(board)
    _steps(board)
    _ranks(board)
    return board


def _per_group(share: float, histogram: str) -> BoardQuery:
    inner = quantile(share, histogram, "job, instance")
    return BoardQuery(of_group(inner), f"{{{{group}}}} p{share * 100:g}")


def _requests(board: Board) -> None:
    board.row("Requests")
    board.lines(
        "Running and waiting",
        "",
        "short",
        BoardQuery(of_group("ryz_worker_num_requests_running"), "{{group}} running"),
        BoardQuery(of_group("ryz_worker_num_requests_waiting"), "{{group}} waiting"),
    )
    board.lines(
        "Time in queue",
        "From a request's arrival to its first step.",
        "s",
        _per_group(0.5, "vllm:request_queue_time_seconds"),
        _per_group(0.99, "vllm:request_queue_time_seconds"),
    )
    board.lines(
        "Prefill",
        "From the first step to the first token.",
        "s",
        _per_group(0.5, "vllm:request_prefill_time_seconds"),
        _per_group(0.99, "vllm:request_prefill_time_seconds"),
    )
    board.lines(
        "Time to first token",
        "In the group.",
        "s",
        _per_group(0.5, "ryz_worker_time_to_first_token_seconds"),
        _per_group(0.99, "ryz_worker_time_to_first_token_seconds"),
    )
    board.lines(
        "Between tokens",
        "In the group.",
        "s",
        _per_group(0.5, "ryz_worker_inter_token_latency_seconds"),
        _per_group(0.99, "ryz_worker_inter_token_latency_seconds"),
    )
    board.lines(
        "How requests end",
        "",
        "reqps",
        BoardQuery(of_group("rate(ryz_worker_requests_total[$__rate_interval])"), "{{group}} {{outcome}}"),
    )


def _steps(board: Board) -> None:
    board.row("Engine")
    board.lines(
        "Step time",
        "One engine step.",
        "s",
        _per_group(0.5, "ryz_worker_step_seconds"),
        _per_group(0.99, "ryz_worker_step_seconds"),
    )
    board.lines(
        "Busy",
        "Share of the time in which steps ran.",
        "percentunit",
        BoardQuery(of_group("rate(ryz_worker_step_seconds_sum[$__rate_interval])"), "{{group}}"),
        top=1,
    )
    board.lines(
        "Tokens",
        "A second.",
        "short",
        BoardQuery(
            of_group("rate(ryz_worker_generation_tokens_total[$__rate_interval])"), "{{group}} generated"
        ),
        BoardQuery(of_group("rate(ryz_worker_prompt_tokens_total[$__rate_interval])"), "{{group}} prompt"),
    )
    board.lines(
        "KV blocks",
        "In use; sequences are put back when none is free.",
        "percentunit",
        BoardQuery(of_group("ryz_worker_kv_cache_usage_perc"), "{{group}}"),
        top=1,
    )
    board.lines(
        "Put back",
        "Sequences that lost their blocks to others, a second.",
        "short",
        BoardQuery(of_group("rate(ryz_worker_num_preemptions_total[$__rate_interval])"), "{{group}}"),
    )
    board.lines(
        "Prefix cache",
        "Share of prompt tokens found in the group's blocks.",
        "percentunit",
        BoardQuery(
            of_group(
                "rate(ryz_worker_prefix_cache_hits_total[$__rate_interval]) "
                "/ clamp_min(rate(ryz_worker_prefix_cache_queries_total[$__rate_interval]), 1e-9)"
            ),
            "{{group}}",
        ),
        top=1,
    )
    board.lines(
        "Drafts that were right",
        "Share of the guessed tokens (RYZ_SPECULATION).",
        "percentunit",
        BoardQuery(
            of_group(
                "rate(ryz_worker_spec_decode_num_accepted_tokens_total[$__rate_interval]) "
                "/ clamp_min(rate(ryz_worker_spec_decode_num_draft_tokens_total[$__rate_interval]), 1e-9)"
            ),
            "{{group}}",
        ),
        top=1,
    )


def _ranks(board: Board) -> None:
    board.row("Ranks")
    board.lines(
        "What ranks spend time on",
        "Sums to 1 for each rank. The slow rank waits least in collectives.",
        "percentunit",
        BoardQuery(
            of_group("rate(ryz_worker_rank_seconds_total[$__rate_interval])"),
            "{{group}} rank {{rank}} {{kind}}",
        ),
    )
    board.lines(
        "Waiting for others",
        "Time in collectives by rank: what it lacks of the others' time, it is slower.",
        "percentunit",
        BoardQuery(
            of_group("rate(ryz_worker_rank_seconds_total{kind='collectives'}[$__rate_interval])"),
            "{{group}} rank {{rank}}",
        ),
    )
    board.lines(
        "Step by rank",
        "p99.",
        "s",
        BoardQuery(
            of_group(quantile(0.99, "ryz_worker_rank_step_seconds", "job, instance, rank")),
            "{{group}} rank {{rank}}",
        ),
    )
    board.lines(
        "Memory by rank",
        "Resident, shared memory included.",
        "bytes",
        BoardQuery(of_group("ryz_worker_rank_memory_bytes"), "{{group}} rank {{rank}}"),
    )
    board.lines(
        "Running step",
        "How long the step that runs now has taken: grows while a rank hangs.",
        "s",
        BoardQuery(of_group("ryz_worker_rank_running_step_seconds"), "{{group}} rank {{rank}}"),
    )
    board.lines(
        "Engine failures",
        "Starts after a failure, a second, by kind.",
        "short",
        BoardQuery(
            of_group("rate(ryz_worker_engine_failures_total[$__rate_interval])"), "{{group}} {{kind}}"
        ),
    )
