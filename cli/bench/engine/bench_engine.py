"""`ryz bench engine`: options, checks and remarks of the engine benchmark."""

import asyncio
from collections.abc import Iterator
from typing import Any

from rich.box import SIMPLE_HEAD

from benchmarks.engine_plans import EnginePlan
from cli.bench.inputs import require_context, require_model, require_peers, with_model
from cli.bench.own_stack import own_stack
from cli.bench.report import AsJson, Report, counting_bar, print_line, print_table, reporting, warn
from cli.command_options import with_options
from cli.console import fail

# narrow enough for a terminal of 80 columns
_NARROW: dict[str, Any] = {"box": SIMPLE_HEAD, "pad_edge": False, "collapse_padding": True}
_KEY = {"": "{precision}", "tp": "{tp}", "batch": "{batch}"}
_RATES = {
    "prefill tok/s": "{prefill_tokens_per_s:,.0f}", "decode tok/s": "{decode_tokens_per_s:,.0f}",
    "step ms": "{step_ms[p50]:.2f}", "bandwidth": "{bandwidth_share:.0%}",
}  # fmt: skip
_HTTP = {
    "decode tok/s": "{decode_tokens_per_s:,.0f}", "of the engine's": "{share_of_engine:.0%}",
    "TTFT ms": "{ttft_p50_ms:.2f}", "ITL ms": "{itl_p50_ms:.2f}", "p99": "{itl_p99_ms:.2f}",
}  # fmt: skip
_QUALITY = {
    "": "{who}", "perplexity": "{perplexity_change:+.2%}", "KL": "{kl:.5f}", "top-1": "{top1:.1%}",
    "places": "{places:,}",
}  # fmt: skip


def show(report: Report) -> None:
    """Print the report's tables and lines."""
    rows = report["rows"]
    print_table(rows[0]["model"], rows, _KEY | _RATES, **_NARROW)
    parts = {name: f"{{parts[{name}]:.3f}}" for name in rows[0]["parts"]}
    print_table("a decode step, ms on rank 0", rows, _KEY | parts, **_NARROW)
    peers = [row | _peer_cells(peer) | {"peer": name} for row in rows for name, peer in row["peers"].items()]
    judged = [row | {"who": who} | found for row in rows for who, found in _qualities(row)]
    columns = {"peer": "{peer}", **_KEY}
    columns |= {
        "prefill tok/s": "{prefill}",
        "we": "{prefill_x}",
        "decode tok/s": "{decode}",
        "we ": "{decode_x}",
    }
    print_table("in turns with ours", peers, columns, **_NARROW)
    once = list({one["who"]: one for one in judged}.values())
    print_table("the same weights against fp32", once, _QUALITY, **_NARROW)
    http = [row | row["http"] for row in rows if "http" in row]
    print_table("through HTTP, a stream for each sequence", http, _KEY | _HTTP, **_NARROW)
    if http:
        used = {name: f"{{cpu_ms_per_token[{name}]:.3f}}" for name in http[0]["cpu_ms_per_token"]}
        print_table("CPU ms per token through HTTP", http, _KEY | used, **_NARROW)
    for one in report.get("independent", []):
        rates = one["decode_tokens_per_s"]
        print_line(
            f"{one['precision']}, {one['tp']} ranks on one thread each, batch {one['batch']}: "
            f"as a group {rates['group']} tok/s, x{one['speedup_over_one_rank']} of one rank alone "
            f"({rates['one_rank_alone']}), {one['share_of_independent_ranks']:.0%} of independent ranks "
            f"side by side ({rates['independent_ranks_together']}); "
            f"collectives {one['collectives_share']:.1%} of a step"
        )
    for one in report["engines"]:
        memory = ", ".join(f"{value:,.0f}" for value in one["peak_rss_mb"])
        kernels = f", kernels {one['kernels']}" if one["kernels"] else ""
        print_line(
            f"{one['precision']}, tp {one['tp']}: ready after {one['start_s']} s, ranks loaded "
            f"in {one['load_s']} s, {memory} MiB per rank at most{kernels}"
        )
    facts, bandwidth = report["machine"], rows[0]["bandwidth_gb_per_s"]
    print_line(
        f"{facts['cpu']}, {facts['usable_cores']} cores, {facts['memory_gib']} GiB, reads {bandwidth} GB/s, "
        f"load {facts['load_average_1m']}, commit {report['commit']}"
    )


def _peer_cells(peer: dict[str, Any]) -> dict[str, str]:
    """Return a peer's rates with their types, and our multiples of them; dashes for one that did not run."""
    cells: dict[str, str] = {}
    for rate in ("prefill", "decode"):
        value = peer[f"{rate}_tokens_per_s"]
        if value is None:
            cells |= {rate: "-", f"{rate}_x": ""}
        else:
            cells[rate] = f"{value:,.0f} {peer.get(f'{rate}_type', '')}".rstrip()
            cells[f"{rate}_x"] = f"x{peer[f'{rate}_speedup']:.2f}"
    return cells


def _qualities(row: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield who has which quality: ours, then each type of a peer."""
    if "quality" in row:
        yield row["precision"], row["quality"]
    for name, peer in row["peers"].items():
        for kind, figures in peer.get("types", {}).items():
            if "quality" in figures:
                yield f"{name} {kind}", figures["quality"]


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
        reporting("engine", show, as_json=as_json) as report,
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
