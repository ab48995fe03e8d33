"""Compares two result files of the same bench: which figures got worse, and by how much.

It knows which fields identify a row, and for each figure whether more of it is better.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from benchmarks.lib.measuring import BenchError

# the fields that identify a row of a bench
_KINDS: dict[str, tuple[str, ...]] = {
    "engine": ("model", "precision", "tp", "threads", "batch", "prompt", "tokens"),
    "serving": ("concurrency",),
    "collectives": ("backend", "ranks", "bytes"),
    "quality": ("model", "precision"),
}
_MARKS = {
    "engine": "decode_tokens_per_s",
    "serving": "requests_per_s",
    "collectives": "times_of_copy",
    "quality": "kl",
}
# whether more of a figure is better; a dot leads into an object of the row
_FIGURES: dict[str, dict[str, bool]] = {
    "engine": {
        "prefill_tokens_per_s": True, "decode_tokens_per_s": True, "http.decode_tokens_per_s": True,
        "http.share_of_engine": True, "http.ttft_p50_ms": False, "http.itl_p99_ms": False,
    },
    "serving": {
        "requests_per_s": True, "p50_ms": False, "p99_ms": False, "ttft_p50_ms": False, "errors": False,
    },
    "collectives": {"p50_us": False, "p99_us": False},
    "quality": {
        "perplexity": False, "kl": False, "top1": True, "chats.kl": False, "chats.top1": True,
    },
}  # fmt: skip
_MACHINE = ("cpu", "cores", "usable_cores", "memory_gib", "kernel", "python")


@dataclass(frozen=True, slots=True)
class FigureChange:
    """One figure in both files. `worse_by` is the loss as a share of the old value, negative for a gain."""

    row: str
    figure: str
    old: float
    new: float
    worse_by: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """All figures that both files have, the rows that only one has, and how the machines differ."""

    kind: str
    changes: list[FigureChange]
    only_old: list[str]
    only_new: list[str]
    machines: list[str]

    def regressions(self, threshold: float) -> list[FigureChange]:
        """Return what got worse by more than that share."""
        return [change for change in self.changes if change.worse_by > threshold]


def compare_files(old: Path, new: Path) -> Comparison:
    """Read and compare both files. Raises `BenchError` for files of other kinds or without a common row."""
    before, after = _read(old), _read(new)
    kind, other = _kind(old, before), _kind(new, after)
    if kind != other:
        raise BenchError(
            f"{old} is a result of `ryz bench {kind}` and {new} one of `ryz bench {other}`; "
            "take two of the same bench"
        )
    old_rows, new_rows = _rows(kind, old, before), _rows(kind, new, after)
    common = [name for name in old_rows if name in new_rows]
    if not common:
        raise BenchError(
            f"{old} and {new} have no row in common; measure the same {', '.join(_KINDS[kind])} in both"
        )
    changes = [
        change for name in common for change in _changes(name, _FIGURES[kind], old_rows[name], new_rows[name])
    ]
    return Comparison(
        kind=kind,
        changes=changes + list(_others(before, after)),
        only_old=[name for name in old_rows if name not in new_rows],
        only_new=[name for name in new_rows if name not in old_rows],
        machines=_machines(before, after),
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        report = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise BenchError(f"{path} does not exist; write one with `ryz bench ... --json > FILE`") from None
    except (OSError, ValueError) as error:
        raise BenchError(f"{path} cannot be read as JSON: {error}") from error
    rows = report.get("rows") if isinstance(report, dict) else None
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise BenchError(f"{path} has no `rows`; it is no result of `ryz bench ... --json`")
    return {**report}


def _kind(path: Path, report: dict[str, Any]) -> str:
    for kind, mark in _MARKS.items():
        if mark in report["rows"][0]:
            return kind
    raise BenchError(f"{path} is of no bench that is known: {', '.join(_KINDS)}")


def _rows(kind: str, path: Path, report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for row in report["rows"]:
        name = ", ".join(f"{key} {row[key]}" for key in _KINDS[kind] if key in row)
        if name in rows:
            raise BenchError(f"{path} has two rows of {name}; keep one")
        rows[name] = row
    return rows


def _changes(
    name: str, figures: dict[str, bool], old: dict[str, Any], new: dict[str, Any]
) -> Iterator[FigureChange]:
    for figure, more_is_better in figures.items():
        before, after = _figure(old, figure), _figure(new, figure)
        if _number(before) and _number(after):
            yield _change(name, figure, before, after, more_is_better)


def _figure(row: dict[str, Any], figure: str) -> object:
    found: object = row
    for part in figure.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _change(name: str, figure: str, before: float, after: float, more_is_better: bool) -> FigureChange:
    loss = before - after if more_is_better else after - before
    if before == 0:  # from no errors to some is infinitely worse
        return FigureChange(name, figure, before, after, math.copysign(math.inf, loss) if loss else 0.0)
    return FigureChange(name, figure, before, after, loss / before)


def _others(old: dict[str, Any], new: dict[str, Any]) -> Iterator[FigureChange]:
    """Yield changes of figures of the whole file: start, memory, CPU per request."""
    yield from _changes("start", {"load_s": False}, old, new)
    peaks = [report.get("peak_rss_mb") for report in (old, new)]
    if all(isinstance(peak, list) and peak and all(map(_number, peak)) for peak in peaks):
        before, after = (max(peak) for peak in peaks if peak)
        yield _change("start", "peak_rss_mb", before, after, more_is_better=False)
    cpus = [report.get("cpu_ms_per_request") for report in (old, new)]
    if all(isinstance(cpu, dict) and cpu for cpu in cpus):
        before, after = (sum(cpu.values()) for cpu in cpus if cpu)
        yield _change("all services", "cpu_ms_per_request", before, after, more_is_better=False)


def _machines(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    before, after = old.get("machine"), new.get("machine")
    if not isinstance(before, dict) or not isinstance(after, dict):
        return ["a file does not say which machine it is of"]
    return [
        f"{name} {before.get(name)} and {after.get(name)}"
        for name in _MACHINE
        if before.get(name) != after.get(name)
    ]


def _number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
