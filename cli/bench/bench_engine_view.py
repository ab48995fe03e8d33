"""Shows the report of `ryz bench engine` to a person: tables of rates, of a step's parts and of the peers."""

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from cli.console import out


def show(report: dict[str, Any]) -> None:
    """Prints everything but what only a program wants."""
    rows = report["rows"]
    key = ["", "tp", "batch"]
    table = _table(rows[0]["model"], [*key, "prefill tok/s", "decode tok/s", "step ms", "bandwidth"])
    split = _table("a decode step, ms on rank 0", [*key, *rows[0]["parts"]])
    peers = _table("in turns with ours", ["peer", *key, "prefill tok/s", "we", "decode tok/s", "we"])
    http = _table(
        "through HTTP, a stream for each sequence",
        [*key, "decode tok/s", "of the engine's", "TTFT ms", "ITL ms", "p99"],
    )
    used = _table(
        "CPU ms per token through HTTP", [*key, *rows[0].get("http", {}).get("cpu_ms_per_token", [])]
    )
    for row in rows:
        names = [row["precision"], str(row["tp"]), str(row["batch"])]
        rates = [f"{row[f'{kind}_tokens_per_s']:,.0f}" for kind in ("prefill", "decode")]
        table.add_row(*names, *rates, f"{row['step_ms']['p50']:.2f}", f"{row['bandwidth_share']:.0%}")
        split.add_row(*names, *(f"{value:.3f}" for value in row["parts"].values()))
        for name, peer in row["peers"].items():
            peers.add_row(name, *names, *_peer(peer))
        if "http" in row:
            http.add_row(*names, *_http(row["http"]))
            used.add_row(*names, *(f"{value:.3f}" for value in row["http"]["cpu_ms_per_token"].values()))
    for one in (table, split, *(some for some in (peers, http, used) if some.row_count)):
        out.print(one)
    for one in report.get("independent", []):
        _line(_independent(one))
    for one in report["engines"]:
        memory = ", ".join(f"{value:,.0f}" for value in one["peak_rss_mb"])
        kernels = f", kernels {one['kernels']}" if one["kernels"] else ""
        _line(
            f"{one['precision']}, tp {one['tp']}: ready after {one['start_s']} s, ranks loaded "
            f"in {one['load_s']} s, "
            f"{memory} MiB per rank at most{kernels}"
        )
    facts, bandwidth = report["machine"], rows[0]["bandwidth_gb_per_s"]
    _line(
        f"{facts['cpu']}, {facts['usable_cores']} cores, {facts['memory_gib']} GiB, reads {bandwidth} GB/s, "
        f"load {facts['load_average_1m']}, commit {report['commit']}"
    )


def _table(title: str, columns: list[str]) -> Table:
    """One that is narrow enough for a terminal of 80 columns."""
    return Table(*columns, title=title, box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)


def _peer(peer: dict[str, Any]) -> list[str]:
    if "note" in peer:
        return ["-", "", "-", ""]
    rates = [f"{peer[f'{kind}_tokens_per_s']:,.0f}" for kind in ("prefill", "decode")]
    times = [f"x{peer[f'{kind}_speedup']:.2f}" for kind in ("prefill", "decode")]
    return [rates[0], times[0], rates[1], times[1]]


def _http(figures: dict[str, Any]) -> list[str]:
    times = [f"{figures[name]:.2f}" for name in ("ttft_p50_ms", "itl_p50_ms", "itl_p99_ms")]
    return [f"{figures['decode_tokens_per_s']:,.0f}", f"{figures['share_of_engine']:.0%}", *times]


def _independent(one: dict[str, Any]) -> str:
    rates = one["decode_tokens_per_s"]
    return (
        f"{one['precision']}, {one['tp']} ranks on one thread each, batch {one['batch']}: "
        f"as a group {rates['group']} tok/s, x{one['speedup_over_one_rank']} of one rank alone "
        f"({rates['one_rank_alone']}), {one['share_of_independent_ranks']:.0%} of independent ranks "
        f"side by side ({rates['independent_ranks_together']}); "
        f"collectives {one['collectives_share']:.1%} of a step"
    )


def _line(text: str) -> None:
    out.print(text, markup=False, soft_wrap=True)
