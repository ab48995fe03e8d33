"""`ryz bench overflow`: options, model, stack, store and table of the benchmark of overflowed turns."""

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.engine_plans import model_name
from benchmarks.lib.stack import RunningStack
from benchmarks.stack_plans import OverflowPlan
from cli.bench.inputs import with_model
from cli.bench.own_stack import own_stack, own_store
from cli.bench.report import AsJson, Report, counting_bar, print_line, print_table, reporting
from cli.command_options import with_options
from cli.console import err, fail

_CONTEXT = 4608  # room for the longest session and its answer
_MOST_TOKENS = 4000
_START_S = 600.0


@with_options
def overflow(plan: OverflowPlan, *, as_json: AsJson = False) -> None:
    """Time to first token of a turn that is warm, overflowed with a fetch, or computed again; and the rule.

    Two groups of one stack share a store. Sessions have random tokens of their own, so nothing is found that
    was not put there. Then: what writing blocks behind costs decoding.
    """
    from benchmarks.models.make_model import make_model  # noqa: PLC0415 (keeps `ryz bench --help` quick)
    from benchmarks.models.shapes import SHAPES  # noqa: PLC0415

    plan = with_model(plan)
    with (
        reporting("overflow", _show, as_json=as_json) as report,
        tempfile.TemporaryDirectory(prefix="ryz-bench-") as folder,
    ):
        directory = plan.model or Path(folder) / "model"
        if plan.model is None:
            err.print("making a model", style="dim")
            make_model(directory, replace(SHAPES["110m"], context=_CONTEXT), "fp32", 0)
        report.update(_measure(directory, plan))
        report["model"] = model_name(plan.model, "110m")
        report.update(precision=plan.precision, tp=plan.tensor_parallel)


def _measure(directory: Path, plan: OverflowPlan) -> dict[str, Any]:
    from benchmarks.kv import overflow as bench  # noqa: PLC0415
    from benchmarks.kv import write_behind  # noqa: PLC0415
    from benchmarks.kv.group_client import GroupClient  # noqa: PLC0415
    from services.worker.engine.config.read_config import read_config  # noqa: PLC0415

    config = read_config(directory)
    most = min(_MOST_TOKENS, config.context_length - 64)
    if plan.session_tokens > most:
        fail(f"--session-tokens is at most {most} for this model, got {plan.session_tokens}.", exit_code=2)
    command = {
        "--engine": "torch", "--groups": 2, "--model": directory, "--model-name": "bench",
        "--tensor-parallel": plan.tensor_parallel, "--precision": plan.precision, "--log-level": "warning",
        "--start-timeout": _START_S,
    }  # fmt: skip
    settings = {"RYZ_KV_CACHE_TOKENS": "32768", "RYZ_KV_LOOKUP_TIMEOUT_S": "1", "RYZ_THREADS": "1"}

    async def measure_turns(stack: RunningStack) -> dict[str, Any]:
        client = await GroupClient.connect(stack.nats_urls, "bench")
        try:
            return await bench.measure(client, plan, config.vocab_size, most, progress)
        finally:
            await client.close()

    err.print("starting a stack", style="dim")
    steps = bench.num_steps(plan) + (2 * (plan.repeats + 1) if plan.write_batch else 0)
    with counting_bar(steps) as progress:
        with own_stack(command, settings, timeout_s=_START_S) as stack:
            report = asyncio.run(measure_turns(stack))
        if plan.write_batch:
            with own_store() as url, _host_dir() as host_dir:
                for name, host in (("write_behind", host_dir), ("write_behind_without_host_tier", "")):
                    report[name] = asyncio.run(
                        write_behind.measure(plan, directory, url, progress, host_dir=host)
                    )
    return report


def _show(report: Report) -> None:
    p95, p99 = report["ttft_p95_ms"], report["ttft_p99_ms"]
    rows = [
        {"kind": kind, "p50": value, "p95": p95[kind], "p99": p99[kind]}
        for kind, value in report["ttft_ms"].items()
    ]
    columns = {"KV is": "{kind}", "TTFT p50 ms": "{p50:,.1f}", "p95 ms": "{p95:,.1f}", "p99 ms": "{p99:,.1f}"}
    print_table(f"next turn of a session of {report['session_tokens']} tokens", rows, columns)
    print_line(f"computing takes {report['recompute_over_fetch']} times as long as fetching")
    if report["turns"]:
        share = report["rule_right_share"]
        print_line(
            f"the rule took the faster way in {share:.1%} of {report['turns']} turns: {report['chosen']}"
        )
    for name, tier in (("write_behind", "with"), ("write_behind_without_host_tier", "without")):
        if name in report:
            writing = report[name]
            print_line(
                f"writing behind, {tier} the host tier, costs {writing['cost_share']:.1%} of "
                f"{writing['decode_tokens_per_s']['off']} tok/s at batch {writing['batch']}"
            )


@contextmanager
def _host_dir() -> Iterator[str]:
    """A directory for the host tier; empty where no memory has a file system."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        yield ""
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="ryz-bench-") as folder:
        yield folder
