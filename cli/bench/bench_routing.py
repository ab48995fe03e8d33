"""`ryz bench routing`: the options and the tables around `benchmarks/routing/routing.py`."""

import json
import sys
from typing import Annotated, Any, get_args

import typer
from rich.table import Table

from cli.bench.bench_options import choice, numbers
from cli.bench.bench_progress import counting_bar
from cli.console import out

_MOST_GROUPS = 1000


def routing(  # noqa: PLR0917 (typer takes options as arguments)
    policies: Annotated[
        str, typer.Option(help="Policies to compare, with commas between them.")
    ] = "hybrid,sticky,round_robin,least_loaded",
    sessions: Annotated[int, typer.Option(min=1, max=100_000, help="Sessions that ask.")] = 64,
    zipf: Annotated[float, typer.Option(min=0.0, max=4.0, help="How unevenly they ask; 0: evenly.")] = 1.1,
    groups: Annotated[int, typer.Option(min=1, max=64, help="Worker groups, modelled.")] = 4,
    load: Annotated[
        float, typer.Option(min=0.01, max=2.0, help="Share of all groups' time that is asked for.")
    ] = 0.7,
    duration: Annotated[float, typer.Option(min=10.0, max=3600.0, help="Seconds of virtual time.")] = 300.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the requests; the same ones for every policy.")] = 1,
    store: Annotated[bool, typer.Option("--store/--no-store", help="Groups have the KV store.")] = True,
    sizes: Annotated[str, typer.Option(help="Fleets to time decisions in, as numbers of groups.")] = "4,64",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """How evenly each policy spreads work, what it costs in KV that is not at hand, and how fast it decides.

    The router's own code runs against modelled groups in virtual time. Decisions are timed in real time.
    """
    from benchmarks.lib.machine import commit, machine  # noqa: PLC0415 (keeps `ryz --help` quick)
    from benchmarks.routing.routing import Traffic, run  # noqa: PLC0415
    from benchmarks.routing.routing_model import Shape  # noqa: PLC0415
    from benchmarks.routing.routing_time import decision_times  # noqa: PLC0415
    from services.router.domain.policies import PolicyName  # noqa: PLC0415

    names = [choice("--policies", name, get_args(PolicyName)) for name in policies.split(",")]
    fleets = numbers("--sizes", sizes, _MOST_GROUPS)
    traffic = Traffic(sessions=sessions, zipf=zipf, groups=groups, load=load, duration_s=duration, seed=seed)
    rows = []
    with counting_bar(len(names) + 1) as progress:
        for name in names:
            progress(f"routing with {name}")
            rows.append(run(traffic, name, Shape(store=store)))
        progress("timing decisions")
        times = decision_times(fleets)
    report = {"rows": rows, "decisions": times, "machine": machine(), "commit": commit()}
    if as_json:
        sys.stdout.write(json.dumps(report, indent=1) + "\n")
    else:
        _print(rows, times)


def _print(rows: list[dict[str, Any]], times: list[dict[str, Any]]) -> None:
    spread = Table(
        "policy", "tokens", "busy time", "requests", "hit rate", "fetched", "TTFT p50 ms", "p99 ms", "use",
        title="excess of the busiest group over its share, and what it costs",
    )  # fmt: skip
    for row in rows:
        spread.add_row(
            row["policy"],
            *(f"{row[f'imbalance_{kind}']:.1%}" for kind in ("tokens", "busy", "requests")),
            *(f"{row[name]:.1%}" for name in ("hit_rate", "fetched_rate")),
            *(f"{row[name]:,.1f}" for name in ("ttft_p50_ms", "ttft_p99_ms")),
            f"{row['use']:.0%}",
        )
    out.print(spread)
    table = Table("groups", "choose p50 us", "p99 us", "decide p50 us", "p99 us", title="decisions")
    for row in times:
        table.add_row(*(f"{value:,}" for value in row.values()))
    out.print(table)
