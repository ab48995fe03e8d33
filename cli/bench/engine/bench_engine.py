"""`ryz bench engine`: options, checks and remarks of the engine benchmark."""

import asyncio
from typing import Any

from benchmarks.plans import EnginePlan
from cli.bench.bench_inputs import require_context, require_model, require_peers, with_model
from cli.bench.bench_report import AsJson, counting_bar, reporting, warn
from cli.bench.engine.bench_engine_view import show
from cli.bench.own_stack import own_stack
from cli.command_options import with_options
from cli.console import fail


@with_options
def engine(plan: EnginePlan, *, as_json: AsJson = False) -> None:
    """Tokens a second of the whole engine (scheduler and ranks), and where a step's time goes.

    Greedy, past every end of sequence, with random prompts, so nothing comes from the prefix cache. Decoding
    is counted while all sequences of the batch decode. Peers compute the same weights on as many threads,
    each in its own process and Python environment; the best of its types counts.

    Examples:
        ryz bench engine --model smollm2-135m --peer llama.cpp --peer vllm --peer-envs ./peers
        ryz bench engine --model smollm2-135m --peer llama.cpp:Q4_0,Q4_K_M --quality 2048
    """
    from benchmarks.engine.engine import measure, num_steps  # noqa: PLC0415 (keeps `ryz bench --help` quick)

    plan = with_model(plan)
    if plan.device == "cuda":
        _require_gpu_plan(plan)
    require_peers(plan.peers, plan.peer_envs, device=plan.device)
    config = require_model(plan.model, plan.tp)
    require_context(config, f"--prompt {plan.prompt} and --tokens {plan.tokens}", plan.prompt + plan.tokens)
    with (
        reporting(show, as_json=as_json) as report,
        counting_bar(num_steps(plan)) as progress,
    ):
        report.update(asyncio.run(measure(plan, own_stack, progress)))
    for text in remarks(report["rows"]):
        warn(text)


def _require_gpu_plan(plan: EnginePlan) -> None:
    for precision in plan.precision:
        if precision not in {"fp32", "bf16"}:
            fail(f"--device cuda computes in fp32 and bf16, and --precision names {precision}.", exit_code=2)
    if plan.http or plan.independent or plan.quality:
        fail("--http, --independent and --quality measure on CPUs only.", exit_code=2)


def remarks(rows: list[dict[str, Any]]) -> list[str]:
    """Return why peers did not run, and signs of other load on the machine."""
    notes = {
        f"{name}: {peer['note']}" for row in rows for name, peer in row["peers"].items() if "note" in peer
    }
    disturbed = [str(row["batch"]) for row in rows if row["bandwidth_share"] > 1]
    if disturbed:
        notes.add(
            f"At batch {', '.join(disturbed)} more was read than the memory gave: something else ran while "
            "its bandwidth was measured; measure again on a quiet machine."
        )
    return sorted(notes)
