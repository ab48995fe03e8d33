"""Writes the report of a soak: figures as JSON, a page in Markdown, and its plots as SVG."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.soak.charts import line_chart
from benchmarks.soak.faults import SoakFault
from benchmarks.soak.figures import by_minute
from benchmarks.soak.load import Ending
from benchmarks.soak.samples import Sample

_MIB = 2**20


def write_report(
    directory: Path,
    report: dict[str, Any],
    endings: Sequence[Ending],
    faults: Sequence[SoakFault],
    samples: Sequence[Sample],
) -> None:
    """Writes the figures, a page, `faults.jsonl` and the plots; the directory is made.

    Args:
        report: The figures, with `seconds`, `machine` and `commit`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    lines = (json.dumps(asdict(one)) for one in faults)
    (directory / "faults.jsonl").write_text("".join(f"{line}\n" for line in lines))
    for name, chart in _plots(report["seconds"], endings, faults, samples).items():
        (directory / f"{name}.svg").write_text(chart)
    (directory / "report.md").write_text(_page(report, faults))


def _plots(
    seconds: float, endings: Sequence[Ending], faults: Sequence[SoakFault], samples: Sequence[Sample]
) -> dict[str, str]:
    until, marks = seconds / 60, [one.at_s / 60 for one in faults]
    minutes = by_minute(seconds, endings)
    answered = [(row["minute"], 100 * (1 - row["failed"] / row["requests"])) for row in minutes]
    times = {name: [(row["minute"], row[f"{name}_s"]) for row in minutes] for name in ("p50", "p99")}
    memory: dict[str, list[tuple[float, float]]] = {}
    for one in samples:
        memory.setdefault(one.service, []).append((one.at_s / 60, one.memory_bytes / _MIB))
    repairs = {"repair": [(one.at_s / 60, one.repaired_s) for one in faults if one.repaired_s >= 0]}
    return {
        "availability": line_chart(
            "Requests answered, % of each minute; faults are fine lines", {"answered": answered},
            unit="%", until=until, marks=marks, least=min([99.0, *(value for _, value in answered)]),
        ),
        "times": line_chart(
            "Seconds of whole answers, by minute", times, unit="s", until=until, marks=marks
        ),
        "memory": line_chart("Memory of services, MiB (PSS)", memory, unit="MiB", until=until, marks=marks),
        "repairs": line_chart(
            "Seconds from a fault until all was ready", repairs, unit="s", until=until
        ),
    }  # fmt: skip


def _page(report: dict[str, Any], faults: Sequence[SoakFault]) -> str:
    availability = report["availability"]
    mtbf = f"{report['mtbf_s']:,.0f} s" if report["mtbf_s"] else "no incident"
    mttr = f"{report['mttr_s']:.2f} s" if report["mttr_s"] is not None else "no fault"
    rows = [
        ("hours", f"{report['hours']:g}"),
        ("requests, of which clients left", f"{report['requests']:,}, {report['left_by_clients']:,}"),
        ("availability", f"{availability:.4%}" if availability is not None else "no request"),
        ("failed requests, incidents", f"{report['failed']:,}, {report['incidents']}"),
        ("MTBF", mtbf),
        ("faults, not repaired", f"{report['faults']}, {report['not_repaired']}"),
        ("MTTR; p50, p99", f"{mttr}; {report['repair_s']['p50']:.2f} s, {report['repair_s']['p99']:.2f} s"),
    ]
    machine = report["machine"]
    parts = [
        "# Soak",
        f"{machine['usable_cores']} cores of {machine['cpu']}, commit {report['commit']}, "
        f"load {machine['load_average_1m']} before; {report['command']}.",
        _table(("", ""), rows),
        "![availability](availability.svg)\n\n![times](times.svg)\n\n![memory](memory.svg)\n\n"
        "![repairs](repairs.svg)",
        "## Errors",
        _table(("error", "requests"), report["errors"].items()) if report["errors"] else "None.",
        "## Faults",
        _table(("fault", "times"), report["faults_by_part"].items()) if faults else "None.",
        "## What grew",
        "Memory in MiB an hour, of the longest life of each service after its first ten minutes; `-`: no "
        "life was long enough.",
        _table(
            ("service", "starts", "MiB", "MiB/h", "files", "files grown", "threads grown"),
            (
                (
                    name, one["starts"], one["memory_mib"],
                    "-" if one["memory_mib_per_hour"] is None else one["memory_mib_per_hour"],
                    one["files"], one["files_grown"], one["threads_grown"],
                )
                for name, one in report["leaks"].items()
            ),
        ),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _table(header: Sequence[str], rows: Any) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
