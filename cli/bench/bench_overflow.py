"""`ryz bench overflow`: the options, the stack, the bar and the table around `benchmarks/kv/overflow.py`."""

import asyncio
import json
import signal
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.table import Table

from cli.bench.bench_options import choice
from cli.bench.bench_progress import counting_bar
from cli.console import err, fail, out

_CONTEXT = 4608  # room for the longest session and its answer
_START_S = 600.0


def overflow(  # noqa: PLR0917 (typer takes options as arguments)
    model: Annotated[
        Path | None, typer.Option(help="Model directory; left out: one of 110M random weights is made.")
    ] = None,
    quantize: Annotated[str, typer.Option(help="none or int8.")] = "int8",
    tensor_parallel: Annotated[int, typer.Option(min=1, max=64, help="Ranks of each group.")] = 2,
    session_tokens: Annotated[int, typer.Option(min=64, help="Tokens of the timed sessions.")] = 2000,
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="Timed turns of each kind.")] = 12,
    turns: Annotated[
        int, typer.Option(min=0, max=10_000, help="Turns of mixed lengths, for the rule.")
    ] = 200,
    write_batch: Annotated[
        int, typer.Option(min=0, max=256, help="Sequences that decode with and without writing; 0: none.")
    ] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Time to first token of a turn that is warm, overflowed with a fetch, or computed again; and the rule.

    Two groups of one stack share a store. Sessions have random tokens of their own, so nothing is found that
    was not put there. Then: what writing blocks behind costs decoding.
    """
    from benchmarks.engine.driver import DriveError  # noqa: PLC0415 (keeps `ryz --help` quick)
    from benchmarks.kv.group_client import TurnError  # noqa: PLC0415
    from benchmarks.lib.machine import ENGINE_PACKAGES, commit, machine  # noqa: PLC0415
    from benchmarks.models.make_model import make_model  # noqa: PLC0415
    from benchmarks.models.shapes import SHAPES  # noqa: PLC0415
    from services.worker.engine.checkpoint.model_config import ModelError, read_config  # noqa: PLC0415
    from services.worker.rank_protocol.plan import EngineFailed  # noqa: PLC0415
    from services.worker.rank_protocol.rank_messages import Quantize  # noqa: PLC0415
    from shared.errors import RyzError  # noqa: PLC0415

    choice("--quantize", quantize, get_args(Quantize))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: what was started is ended
    facts = {"machine": machine(ENGINE_PACKAGES), "commit": commit()}
    with tempfile.TemporaryDirectory(prefix="ryz-bench-") as folder:
        directory = model or Path(folder) / "model"
        if model is None:
            from dataclasses import replace  # noqa: PLC0415

            err.print("making a model", style="dim")
            make_model(directory, replace(SHAPES["110m"], context=_CONTEXT), "fp32", 0)
        try:
            config = read_config(directory)
            most = min(4000, config.context_length - 64)
            if session_tokens > most:
                fail(f"--session-tokens is at most {most} for this model, got {session_tokens}.", exit_code=2)
            report = _measure(
                directory, quantize, tensor_parallel, (session_tokens, repeats, turns, most, write_batch)
            )
        except (TurnError, ModelError, EngineFailed, DriveError) as error:
            fail(f"The measurement failed: {error}.")
        except RyzError as error:
            fail(f"The measurement failed: {error.message}.")
    report |= {"model": model.name if model else "110m", "quantize": quantize, "tp": tensor_parallel, **facts}
    if as_json:
        sys.stdout.write(json.dumps(report, indent=1) + "\n")
    else:
        _print(report)


def _measure(directory: Path, quantize: str, world: int, sizes: tuple[int, ...]) -> dict[str, Any]:
    from benchmarks.kv import overflow as bench  # noqa: PLC0415
    from benchmarks.kv import write_behind  # noqa: PLC0415
    from benchmarks.kv.group_client import GroupClient  # noqa: PLC0415
    from benchmarks.lib.stack import RunningStack, started  # noqa: PLC0415
    from services.worker.engine.checkpoint.model_config import read_config  # noqa: PLC0415

    session_tokens, repeats, turns, most, write_batch = sizes
    plan = bench.Plan(
        vocab=read_config(directory).vocab_size,
        session_tokens=session_tokens,
        repeats=repeats,
        turns=turns,
        most=most,
    )
    options = {
        "--engine": "torch", "--groups": 2, "--model": directory, "--model-name": "bench",
        "--tensor-parallel": world, "--quantize": quantize, "--log-level": "warning",
        "--start-timeout": _START_S,
    }  # fmt: skip
    settings = {"RYZ_KV_CACHE_TOKENS": "32768", "RYZ_KV_LOOKUP_TIMEOUT_S": "1", "RYZ_THREADS": "1"}
    words = [str(part) for option in options.items() for part in option]

    async def run(stack: RunningStack) -> dict[str, Any]:
        client = await GroupClient.connect(stack.nats_urls, "bench", bench.HOME)
        try:
            return await bench.measure(client, plan, progress)
        finally:
            await client.close()

    err.print("starting a stack", style="dim")
    with counting_bar(plan.num_steps + (repeats + 1 if write_batch else 0)) as progress:
        with started(words, settings, timeout_s=_START_S) as stack:
            report = asyncio.run(run(stack))
        if write_batch:
            report["write_behind"] = asyncio.run(
                write_behind.measure(
                    directory,
                    quantize,  # type: ignore[arg-type]
                    tensor_parallel=world,
                    batch=write_batch,
                    repeats=repeats,
                    progress=progress,
                )
            )
    return report


def _print(report: dict[str, Any]) -> None:
    table = Table(
        "KV is", "TTFT p50 ms", "p99 ms", title=f"next turn of a session of {report['session_tokens']} tokens"
    )
    for kind, value in report["ttft_ms"].items():
        table.add_row(kind, f"{value:,.1f}", f"{report['ttft_p99_ms'][kind]:,.1f}")
    out.print(table)
    out.print(f"computing takes {report['recompute_over_fetch']} times as long as fetching")
    if report["turns"]:
        share = report["rule_right_share"]
        out.print(
            f"the rule took the faster way in {share:.1%} of {report['turns']} turns: {report['chosen']}"
        )
    if "write_behind" in report:
        writing = report["write_behind"]
        out.print(
            f"writing behind costs {writing['cost_share']:.1%} of "
            f"{writing['decode_tokens_per_s']['off']} tok/s at batch {writing['batch']}"
        )
