"""Rows R1 to R14: distributed inference, the KV cache, routing."""

from collections.abc import Callable
from typing import Any

from tools.docs.targets.evidence import Figure, Held, Missing, Row, row_of

_110M = "engine-110m-2c-epyc-b5904a6a9b98.json"
_1B = "engine-1.1b-2c-epyc-b3327edcb857.json"
_COLLECTIVES = "collectives-2c-epyc-d44e58a10464.json"
_KILLS = "failover-2c-epyc-ad5217475f8a.json"
_FREEZES = "failover-freeze-2c-epyc-ad5217475f8a.json"
_KV = "kv-2c-epyc-28c1e7368ea7.json"
_SESSIONS = "sessions-2c-epyc-28c1e7368ea7.json"
_NO_GPUS = "several GPUs with NCCL"


def _efficiency(precision: str) -> Callable[[Any], float]:
    """Speed of two ranks, in percent of twice that of one."""

    def pick(report: Any) -> float:
        row = next(one for one in report["independent"] if one["precision"] == precision)
        return 50 * float(row["speedup_over_one_rank"])

    return pick


def _times_one(precision: str, batch: int) -> Callable[[Any], float]:
    """Decoded tokens a second at a batch, by those of one sequence."""

    def pick(report: Any) -> float:
        one, many = (row_of(report, precision=precision, tp=1, batch=size) for size in (1, batch))
        return float(many["decode_tokens_per_s"]) / float(one["decode_tokens_per_s"])

    return pick


INFERENCE = (
    Row(
        "R1",
        "Tensor parallelism",
        "95 % of 4 GPUs, two ranks above 85 %; under 50 ms a token; collectives under 10 % of a step",
        (
            *(
                Figure(
                    f"two ranks of one thread, of twice the speed of one, 110 M in {precision}, batch 8, %",
                    _110M,
                    _efficiency(precision),
                    least=85,
                )
                for precision in ("int8", "fp32")
            ),
            Figure(
                "longest p50 of a step of two ranks, 1.1 B in int8, ms",
                _1B,
                lambda report: max(row["step_ms"]["p50"] for row in report["rows"] if row["tp"] == 2),
                most=50,
            ),
            Figure(
                "largest share of collectives in a step of two ranks, 110 M, %",
                _110M,
                lambda report: 100 * max(row["collectives_share"] for row in report["rows"]),
                most=10,
            ),
            Held("1, 2, 3 and 4 ranks give the same tokens", ["unit/engine/test_engine_model.py"]),
            Missing("4 GPUs", _NO_GPUS),
        ),
    ),
    Row(
        "R2",
        "Collectives: NCCL, Gloo, shared memory",
        "10 MB in under 1 ms",
        (
            Figure(
                "all-reduce of 10 MB between two ranks, shared memory, p50, ms",
                _COLLECTIVES,
                lambda report: row_of(report, backend="shm", bytes=10_000_000)["p50_us"] / 1000,
                most=1,
            ),
            Figure(
                "of 8 KiB, us",
                _COLLECTIVES,
                lambda report: row_of(report, backend="shm", bytes=8192)["p50_us"],
            ),
            Figure(
                "of 10 MB by Gloo in the same run, ms",
                _COLLECTIVES,
                lambda report: row_of(report, backend="gloo", bytes=10_000_000)["p50_us"] / 1000,
            ),
            Missing("NCCL", _NO_GPUS),
        ),
    ),
    Row(
        "R3",
        "Each rank reads only its slice of the weights",
        "ready in under 1 s, under 2 GB for each rank",
        (
            Figure(
                "longest load of a rank, 1.1 B in int8, two ranks, s",
                _1B,
                lambda report: max(one["load_s"] for one in report["engines"] if one["tp"] == 2),
                most=1,
            ),
            Figure(
                "the same of 110 M, s",
                _110M,
                lambda report: max(one["load_s"] for one in report["engines"] if one["tp"] == 2),
                most=1,
            ),
            Figure(
                "largest peak of a rank, 1.1 B, GB",
                _1B,
                lambda report: max(max(one["peak_rss_mb"]) for one in report["engines"]) / 1000,
                most=2,
            ),
            Held("a rank reads its slice alone", ["unit/engine/checkpoint"]),
        ),
    ),
    Row(
        "R4",
        "Ranks join, leave and restart under an orchestrator of five parts",
        "no deadlock and no lost answer in 1,000 tokens and more",
        (
            Figure(
                "streams of 128 tokens lost or hung in 100 kills",
                _KILLS,
                lambda report: report["lost"] + report["hung"],
                "{:g}",
                most=0,
            ),
            Figure("of so many streams", _KILLS, lambda report: report["streams"], "{:,.0f}"),
            Held("all states and failures of a group", ["unit/worker/orchestrator"]),
        ),
    ),
    Row(
        "R5",
        "Harness for several ranks and hosts, baselines with P50, P95, P99, regression detection",
        "-",
        (
            Held("two hosts in two network namespaces", ["integration/engine/test_engine_two_hosts.py"]),
            Held("`ryz bench compare` finds what got worse", ["unit/bench/reports/test_bench_compare.py"]),
            Held("P50, P95 and P99 in every bench", ["unit/bench/reports/test_bench_percentiles.py"]),
            Held("`make regress` finds a loss beyond noise", ["unit/bench/reports/test_bench_regress.py"]),
        ),
    ),
    Row(
        "R6",
        "KV cache sharded by heads",
        "exact, without communication in attention",
        (Held("ranks hold their own heads, with the same results", ["unit/engine/test_engine_model.py"]),),
    ),
    Row(
        "R7",
        "KV in fp8 behind a hot zone",
        "40 to 50 % less memory or better, loss under 0.5 %, under 1 ms an attention op",
        (
            Figure(
                "less memory than bf16 at 2,048 tokens, %",
                _KV,
                lambda report: 100 * row_of(report, context=2048)["less_than_bf16"],
                least=40,
            ),
            Figure(
                "attention op at 2,048 tokens, batch 8, one thread, ms",
                _KV,
                lambda report: row_of(report, context=2048)["attention_us"]["fp8"] / 1000,
                most=1,
            ),
            Held("the loss in perplexity is bounded", ["integration/engine/test_engine_int8.py"]),
        ),
    ),
    Row(
        "R8",
        "Dynamic cache allocation by priority",
        "overhead under 2 %",
        (
            Held(
                "preemption, pools that shrink and grow", ["unit/worker/scheduling/test_worker_scheduler.py"]
            ),
            Missing("what preemption and reallocation cost", "a bench of a cache under pressure"),
        ),
    ),
    Row(
        "R9",
        "KV state coherent across ranks, groups and the store",
        "lookup under 1 ms",
        (
            Held(
                "the index and the store agree through faults", ["chaos/test_kv_tier.py", "contract/stores"]
            ),
            Missing(
                "the time of a lookup in a result file",
                "`ryz_kvstate_call_seconds` has it while a stack runs",
            ),
        ),
    ),
    Row(
        "R10",
        "Routing policies, hybrid by default",
        "imbalance under 5 % (sticky under 10 %), a decision under 1 ms",
        (
            Figure(
                "imbalance of work, hybrid, %",
                _SESSIONS,
                lambda report: 100 * row_of(report, policy="hybrid")["imbalance_tokens"],
                most=5,
            ),
            Figure(
                "the same, sticky, %",
                _SESSIONS,
                lambda report: 100 * row_of(report, policy="sticky")["imbalance_tokens"],
                most=10,
            ),
            Figure(
                "a decision, hybrid, p99, ms",
                _SESSIONS,
                lambda report: row_of(report, policy="hybrid")["decision_p99_us"] / 1000,
                most=1,
            ),
        ),
    ),
    Row(
        "R11",
        "Session identity from header, body or key",
        "the same id, the same group, also after a router restart",
        (
            Held(
                "header, body, `prompt_cache_key`, `user`, root, in this order; keys of tenants apart",
                ["unit/gateway/sessions/test_gateway_session_from.py"],
            ),
            Held(
                "the same group after routers were restarted", ["integration/router/test_router_sessions.py"]
            ),
        ),
    ),
    Row(
        "R12",
        "Health checks and failover",
        "recovery under 100 ms, under 1 % false alarms",
        (
            Figure(
                "pause of a stream after kill -9, p50, ms",
                _KILLS,
                lambda report: report["pause_ms"]["p50"],
                most=100,
            ),
            Figure("the same, p99, ms", _KILLS, lambda report: report["pause_ms"]["p99"], most=100),
            Figure(
                "streams moved for no reason in 600 s",
                _FREEZES,
                lambda report: report["without_faults"]["streams_moved"],
                "{:g}",
                most=0,
            ),
        ),
    ),
    Row(
        "R13",
        "Request batching",
        "3 times at batch 4, 5 times at batch 8",
        tuple(
            Figure(
                f"decode at batch {batch}, {precision}, one rank of two threads, times batch 1",
                _110M,
                _times_one(precision, batch),
                least=least,
            )
            for precision in ("int8", "fp32")
            for batch, least in ((4, 3), (8, 5))
        ),
    ),
    Row(
        "R14",
        "Imbalance is monitored",
        "an alert above 15 %",
        (
            Held(
                "`RyzWorkImbalance` fires for it and for nothing else",
                ["unit/deploy/alerts/doors_and_routing_slow.yaml"],
            ),
        ),
    ),
)
