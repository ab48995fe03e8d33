"""Rows R15 to R31: interfaces, observability, optimisation, the ecosystem."""

from tools.docs.targets.evidence import Constant, Figure, Held, Missing, Row, row_of

_KILLS = "failover-2c-epyc-ad5217475f8a.json"
_SERVING = "serving-2c-epyc-22d00cbe1d7e.json"
_INT8 = "quality-smollm2-135m-2c-epyc-0ee4c48b60fd.json"
_CODES = "quality-smollm2-135m-codes-2c-xeon-51b53e28fc27.json"
_GEMMA = "quality-gemma3-270m-codes-2c-xeon-51b53e28fc27.json"
_SOAK = "`make soak HOURS=2` on a machine with nothing else to do"

SERVING = (
    Row(
        "R15",
        "REST, compatible with OpenAI, with limits and a request log",
        "-",
        (
            Held(
                "official clients, every field and refusal",
                ["integration/gateway/http/test_openai_sdk.py", "contract/corpus"],
            ),
        ),
    ),
    Row(
        "R16",
        "Token streaming over WebSockets",
        "-",
        (Held("many requests on one socket, resumed after it was torn", ["integration/gateway/realtime"]),),
    ),
    Row(
        "R17",
        "gRPC with streaming",
        "-",
        (Held("the Open Inference Protocol", ["integration/gateway/grpc"]),),
    ),
    Row(
        "R18",
        "A NATS API with documented subjects",
        "-",
        (
            Held("golden bytes of every message", ["contract/test_golden.py"]),
            Held("the page lists what the code has", ["integration/bus/test_bus_accounts.py"]),
        ),
    ),
    Row(
        "R19",
        "Metrics of every service and rank, dashboards, alert rules",
        "-",
        (Held("rules and boards name metrics that exist", ["unit/deploy/test_deploy_alerts.py"]),),
    ),
    Row(
        "R20",
        "One trace over all services and ranks, logs with rank and request, profilers, a worked guide",
        "-",
        (
            Held("a rank's lines have its rank and group", ["integration/engine/test_engine_rank_log.py"]),
            Held("`ryz logs --group --rank`", ["unit/cli/test_cli_logs.py"]),
            Held("`ryz profile` names the slowest rank of each step", ["unit/cli/test_cli_profile.py"]),
        ),
    ),
    Row(
        "R21",
        "Breakers, retries, degradation",
        "under 0.1 % errors",
        (
            Figure(
                "unequal, lost or hung streams in 100 kills, of all, %",
                _KILLS,
                lambda report: (
                    100 * (report["unequal"] + report["lost"] + report["hung"]) / report["streams"]
                ),
                most=0.1,
            ),
            Missing("the error rate over hours of mixed faults", _SOAK),
        ),
    ),
    Row(
        "R22",
        "Each failure is detected and repaired",
        "99.9 % available, MTTR under 5 minutes",
        (
            Figure(
                "until a group serves again after kill -9, p99, s",
                _KILLS,
                lambda report: report["back_s"]["p99"],
                most=300,
            ),
            Held("loss, heat and memory errors of GPUs, slow ranks", ["unit/worker/orchestrator/devices"]),
            Missing("availability over hours", _SOAK),
        ),
    ),
    Row(
        "R23",
        "INT8 weights",
        "accuracy loss under 1 %",
        (
            Figure(
                "perplexity of SmolLM2 in int8 against fp32, %",
                _INT8,
                lambda report: 100 * row_of(report, precision="int8")["perplexity_change"],
                most=1,
            ),
            Figure(
                "next token not as in fp32, %",
                _INT8,
                lambda report: 100 * (1 - row_of(report, precision="int8")["top1"]),
            ),
        ),
    ),
    Row(
        "R24",
        "GPTQ and AWQ, the better one per layer; ternary",
        "accuracy loss under 2 %",
        (
            Figure(
                "perplexity of SmolLM2 from Q4_1 as codes against fp32 of the same weights, %",
                _CODES,
                lambda report: 100 * report["rows"][0]["perplexity_change"],
                most=2,
            ),
            Figure(
                "the same of Gemma 3 270M from Q4_K_M, %",
                _GEMMA,
                lambda report: 100 * report["rows"][0]["perplexity_change"],
                most=2,
            ),
            Held("`ryz quantize` chooses for each group of linears", ["unit/training/test_quantize.py"]),
            Missing(
                "`ryz quantize` at 4.6 bits on held-out text; ternary", "a result file of `ryz bench quality`"
            ),
        ),
    ),
    Row(
        "R25",
        "Fair shares, priorities, quotas of tenants",
        "-",
        (
            Held("shares by the time that is used", ["unit/worker/fairness"]),
            Held("limits over all gateways and routers", ["unit/shared/limits"]),
        ),
    ),
    Row(
        "R26",
        "Sparse attention for 32K contexts",
        "a token at 32K in under 200 ms",
        (
            Held("policies of attention equal their oracle", ["unit/engine/test_engine_page_policy.py"]),
            Missing("a token at 32K in a result file", "`ryz bench context --json` on a quiet machine"),
        ),
    ),
    Row(
        "R27",
        "A loader for 20 models and more, GGUF and SafeTensors",
        "logits equal the reference",
        (
            Held("every family against transformers", ["unit/engine/families"]),
            Held("converters", ["integration/models"]),
        ),
    ),
    Row(
        "R28",
        "QLoRA fine-tuning on a CPU",
        "the adapter is served",
        (Held("trained, stopped, resumed, served", ["integration/training/test_finetune_command.py"]),),
    ),
    Row(
        "R29",
        "Several models at once, loaded and unloaded while they serve",
        "interference under 10 %",
        (
            Held("models come and go under load", ["chaos/test_models_come_and_go.py"]),
            Held("reserved cores stay free of others", ["e2e/starts/test_reserved_cores.py"]),
            Missing("interference in a result file", "four cores, so that two models have two each"),
        ),
    ),
    Row(
        "R30",
        "Service levels",
        "P50 under 30 ms and P99 under 50 ms a token, 1,000 requests/s",
        (
            Figure(
                "requests/s at 32 in flight, null engine",
                _SERVING,
                lambda report: row_of(report, concurrency=32)["requests_per_s"],
                "{:,.0f}",
                least=1000,
            ),
            Figure(
                "p50 of a whole answer of 16 tokens, ms",
                _SERVING,
                lambda report: row_of(report, concurrency=32)["p50_ms"],
                most=30,
            ),
            Figure(
                "p99 of it, ms", _SERVING, lambda report: row_of(report, concurrency=32)["p99_ms"], most=50
            ),
        ),
    ),
    Row(
        "R31",
        "Tests, API docs, a security review",
        "coverage above 90 %, 95 % of the public surface",
        (
            Constant("coverage that `make test` demands, %", "Makefile", "COVERAGE_FLOOR", 90),
            Held(
                "pages, errors and settings are made from the code",
                ["unit/tools/test_named_files.py", "unit/security"],
            ),
            Missing(
                "the share of the public surface with API docs",
                "ruff's pydocstyle rules hold it for each function",
            ),
        ),
    ),
)
