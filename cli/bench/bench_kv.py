"""`ryz bench kv`: the options and the table around `benchmarks/kv/kv_cold.py`."""

import json
import sys
from typing import Annotated, Any

import typer
from rich.table import Table

from cli.bench.bench_options import numbers
from cli.console import err, fail, out


def kv(  # noqa: PLR0917 (typer takes options as arguments)
    heads: Annotated[int, typer.Option(min=1, max=256, help="Query heads.")] = 12,
    kv_heads: Annotated[int, typer.Option(min=1, max=256, help="Heads of keys and values.")] = 12,
    head_dim: Annotated[int, typer.Option(min=2, max=256, help="Numbers of a head.")] = 64,
    batch: Annotated[int, typer.Option(min=1, max=256, help="Sequences in a step.")] = 8,
    contexts: Annotated[
        str, typer.Option(help="Tokens of each sequence, one after the other.")
    ] = "512,2048,4096",
    threads: Annotated[int, typer.Option(min=1, max=256, help="Threads that share an op.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, max=10_000, help="Ops measured; the median counts.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Time of an attention op and memory of a token: KV cache in fp32, fp16, and fp8 behind a hot zone.

    One op is that of one layer, for one token of each sequence.
    """
    from benchmarks.kv.kv_cold import run  # noqa: PLC0415 (keeps `ryz --help` quick)
    from benchmarks.lib.machine import ENGINE_PACKAGES, commit, machine  # noqa: PLC0415
    from services.worker.engine.native.build import NoKernels  # noqa: PLC0415

    if heads % kv_heads:
        fail(f"--kv-heads {kv_heads} does not divide --heads {heads}; take a divisor of it.", exit_code=2)
    lengths = numbers("--contexts", contexts, 131_072)
    err.print("measuring", style="dim")
    try:
        report = run(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            batch=batch,
            contexts=lengths,
            threads=threads,
            repeats=repeats,
        )
    except NoKernels as error:
        fail(f"There is nothing to measure: {error}.")
    report |= {"machine": machine(ENGINE_PACKAGES), "commit": commit()}
    if as_json:
        sys.stdout.write(json.dumps(report, indent=1) + "\n")
    else:
        _print(report)


def _print(report: dict[str, Any]) -> None:
    kinds = list(report["rows"][0]["attention_us"])
    table = Table("context", *(f"{kind} us" for kind in kinds), *(f"{kind} bytes/token" for kind in kinds),
                  "less than bf16", title=f"one layer's attention, batch {report['batch']}")  # fmt: skip
    for row in report["rows"]:
        table.add_row(
            f"{row['context']:,}",
            *(f"{row['attention_us'][kind]:,.0f}" for kind in kinds),
            *(f"{row['bytes_per_token'][kind]:,.0f}" for kind in kinds),
            f"{row['less_than_bf16']:.1%}",
        )
    out.print(table)
    out.print(f"compressing one block of one layer takes {report['compress_block_us']} us, once in 16 tokens")
