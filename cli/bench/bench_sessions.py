"""`ryz bench sessions`: the options, a stack for each policy, and the tables of what was found."""

import asyncio
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.table import Table

from cli.bench.bench_options import choice
from cli.bench.bench_progress import counting_bar
from cli.console import fail, out

_START_S = 120.0
_PHASES = 4  # what progress tells of each policy
# more processes than cores: what waits for a core must not be taken for what is away
_SETTINGS = {"RYZ_THREADS": "1", "RYZ_SESSION_LOOKUP_TIMEOUT_S": "5", "RYZ_KV_LOOKUP_TIMEOUT_S": "1"}


def sessions(  # noqa: PLR0917 (typer takes options as arguments)
    policies: Annotated[
        str, typer.Option(help="Policies to compare, with commas between them.")
    ] = "hybrid,sticky,round_robin",
    sessions: Annotated[int, typer.Option(min=1, max=100_000, help="Sessions that ask.")] = 64,
    zipf: Annotated[float, typer.Option(min=0.0, max=4.0, help="How unevenly they ask; 0: evenly.")] = 1.1,
    groups: Annotated[int, typer.Option(min=1, max=16, help="Worker groups of one rank each.")] = 4,
    clients: Annotated[int, typer.Option(min=1, max=1024, help="Turns that are under way at once.")] = 16,
    model: Annotated[
        Path | None, typer.Option(help="Model directory with a chat template; left out: the demo model.")
    ] = None,
    duration: Annotated[float, typer.Option(min=1.0, help="Measured seconds of each policy.")] = 60.0,
    warmup: Annotated[float, typer.Option(min=0.0, help="Seconds before that.")] = 20.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the turns; the same ones for every policy.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """How evenly each policy spreads the work of real groups, and how much of the sessions' KV it finds.

    Starts a whole stack for each policy and talks to it in sessions, a few of which have most of the turns.
    """
    from benchmarks.lib.machine import ENGINE_PACKAGES, commit, machine  # noqa: PLC0415 (keeps `--help` quick)
    from benchmarks.sessions.session_metrics import MetricsMissing  # noqa: PLC0415
    from benchmarks.sessions.session_traffic import Traffic  # noqa: PLC0415
    from benchmarks.sessions.sessions import BenchFailed  # noqa: PLC0415
    from services.router.domain.policies import PolicyName  # noqa: PLC0415

    names = [choice("--policies", name, get_args(PolicyName)) for name in policies.split(",")]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: what was started is ended
    facts = {"machine": machine(ENGINE_PACKAGES), "commit": commit()}
    options: dict[str, Any] = {
        "--groups": groups, "--tensor-parallel": 1, "--log-level": "warning", "--start-timeout": _START_S,
    }  # fmt: skip
    options |= {"--model": model} if model is not None else {}
    traffic = Traffic(sessions=sessions, zipf=zipf, seed=seed)
    plan = {"traffic": traffic, "clients": clients, "warmup_s": warmup, "duration_s": duration}
    rows = []
    with counting_bar(_PHASES * len(names)) as progress:
        for name in names:
            try:
                rows.append(_measure(name, options, plan, progress))
            except (BenchFailed, MetricsMissing) as error:
                fail(f"The measurement of {name} failed: {error}.")
    asked = {"sessions": sessions, "zipf": zipf, "groups": groups, "clients": clients, "seed": seed}
    report = {"rows": rows, **asked, "model": model.name if model else "demo", **facts}
    if as_json:
        sys.stdout.write(json.dumps(report, indent=1) + "\n")
    else:
        _print(rows)


def _measure(
    policy: str, options: dict[str, Any], plan: dict[str, Any], progress: Callable[[str], None]
) -> dict[str, Any]:
    from benchmarks.lib.stack import started  # noqa: PLC0415
    from benchmarks.sessions.session_figures import row  # noqa: PLC0415
    from benchmarks.sessions.sessions import Plan, measure  # noqa: PLC0415

    words = [str(part) for option in ({"--policy": policy} | options).items() for part in option]
    progress(f"{policy}: starting a stack")
    with started(words, _SETTINGS, timeout_s=_START_S) as stack:
        measured = measure(
            Plan(stack.url, stack.model, stack.pids, **plan), lambda what: progress(f"{policy}: {what}")
        )
        return row(policy, asyncio.run(measured))


def _print(rows: list[dict[str, Any]]) -> None:
    spread = Table("policy", "tokens", "busy time", "turns", title="busiest group over its share")
    found = Table("policy", "hit rate", "fetched", "TTFT p50 ms", "p99 ms", "turns/s", "errors", title="KV")
    decided = Table("policy", "p50 us", "p99 us", "reasons", title="decisions")
    for row in rows:
        name = row["policy"]
        spread.add_row(name, *(f"{row[f'imbalance_{kind}']:.1%}" for kind in ("tokens", "busy", "requests")))
        found.add_row(
            name,
            *(f"{row[key]:.1%}" for key in ("hit_rate", "fetched_rate")),
            *(f"{row[key]:,.1f}" for key in ("ttft_p50_ms", "ttft_p99_ms", "turns_per_s")),
            str(row["errors"]),
        )
        reasons = ", ".join(f"{reason} {share:.1%}" for reason, share in row["reasons"].items())
        decided.add_row(name, f"{row['decision_p50_us']:,}", f"{row['decision_p99_us']:,}", reasons)
    for table in (spread, found, decided):
        out.print(table)
