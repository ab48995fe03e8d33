"""Compares two result files of the same bench: which figures got worse, and by how much.

It knows which fields identify a row, and for each figure whether more of it is better.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.lib.measuring import BenchError

# the fields that identify a row of a bench
_KEYS: dict[str, tuple[str, ...]] = {
    "engine": ("model", "precision", "tp", "threads", "batch", "prompt", "tokens"),
    "serving": ("concurrency", "transport"),
    "collectives": ("backend", "ranks", "bytes"),
    "quality": ("model", "precision"),
}
# whether more of a figure is better; a dot leads into an object of the row. The first one names the bench.
_FIGURES: dict[str, dict[str, bool]] = {
    "engine": {
        "decode_tokens_per_s": True, "prefill_tokens_per_s": True, "http.decode_tokens_per_s": True,
        "http.share_of_engine": True, "http.ttft_p50_ms": False, "http.itl_p99_ms": False,
    },
    "serving": {
        "requests_per_s": True, "p50_ms": False, "p99_ms": False, "ttft_p50_ms": False, "errors": False,
    },
    "collectives": {"p50_us": False, "p99_us": False},
    "quality": {"kl": False, "top1": True, "perplexity": False, "chats.kl": False, "chats.top1": True},
}  # fmt: skip
# figures of the whole file, all of which are better when they are less: their row, and how parts are joined
_WHOLE: dict[str, tuple[str, Callable[[Any], float]]] = {
    "load_s": ("start", float),
    "peak_rss_mb": ("start", max),
    "cpu_ms_per_request": ("all services", lambda used: sum(used.values())),
}
_MACHINE = ("cpu", "cores", "usable_cores", "memory_gib", "kernel", "python")
_Rows = dict[str, dict[str, float]]  # figures by name, by the name of the row


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
    if not old_rows.keys() & new_rows.keys():
        raise BenchError(
            f"{old} and {new} have no row in common; measure the same {', '.join(_KEYS[kind])} in both"
        )
    only_old = [name for name in old_rows if name not in new_rows]
    only_new = [name for name in new_rows if name not in old_rows]
    old_rows |= _whole(before)
    new_rows |= _whole(after)
    changes = [
        _change(row, figure, was, new_rows[row][figure], _FIGURES[kind].get(figure, False))
        for row, figures in old_rows.items()
        for figure, was in figures.items()
        if figure in new_rows.get(row, {})
    ]
    return Comparison(kind, changes, only_old, only_new, _machines(before, after))


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
    for kind, keys in _KEYS.items():
        if {keys[0], next(iter(_FIGURES[kind]))} <= report["rows"][0].keys():
            return kind
    raise BenchError(f"{path} is of no bench that is known: {', '.join(_KEYS)}")


def _rows(kind: str, path: Path, report: dict[str, Any]) -> _Rows:
    rows: _Rows = {}
    for row in report["rows"]:
        name = ", ".join(f"{key} {row[key]}" for key in _KEYS[kind] if key in row)
        if name in rows:
            raise BenchError(f"{path} has two rows of {name}; keep one")
        found = {figure: _figure(row, figure) for figure in _FIGURES[kind]}
        rows[name] = {figure: value for figure, value in found.items() if isinstance(value, int | float)}
    return rows


def _figure(row: dict[str, Any], figure: str) -> Any:
    *objects, name = figure.split(".")
    for key in objects:
        row = row.get(key) or {}
    return row.get(name)


def _whole(report: dict[str, Any]) -> _Rows:
    rows: _Rows = {}
    for figure, (row, join) in _WHOLE.items():
        if report.get(figure):
            rows.setdefault(row, {})[figure] = join(report[figure])
    return rows


def _change(row: str, figure: str, old: float, new: float, more_is_better: bool) -> FigureChange:
    loss = old - new if more_is_better else new - old
    if old == 0:  # from no errors to some is infinitely worse
        return FigureChange(row, figure, old, new, math.copysign(math.inf, loss) if loss else 0.0)
    return FigureChange(row, figure, old, new, loss / old)


def _machines(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    before, after = old.get("machine"), new.get("machine")
    if not isinstance(before, dict) or not isinstance(after, dict):
        return ["a file does not say which machine it is of"]
    names = (name for name in _MACHINE if before.get(name) != after.get(name))
    return [f"{name} {before.get(name)} and {after.get(name)}" for name in names]
