"""Reads the figures of a bench's report, by row, and whether more of each is better.

It knows no bench: fields that name what was measured identify a row, and a figure's name says by its unit
whether more is better. Figures whose names say nothing are left out.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.lib.measuring import BenchError

# numbers that identify a row, beside its texts
_IDENTIFY = {
    "adapters", "batch", "bytes", "concurrency", "context", "groups", "prompt", "rank", "ranks", "target_ms",
    "threads", "tokens", "tp",
}  # fmt: skip
# what is no figure of ours, or no figure at all
_LEFT_OUT = {"bandwidth_gb_per_s", "endings", "faults", "interval_s", "machine", "peers", "rows"}
_MORE = (
    "_per_s",
    "availability",
    "hit_rate",
    "prefix_hits",
    "ratio",
    "share_of_engine",
    "bandwidth_share",
    "top1",
)
_LESS = (
    "_ms", "_us", "_s", "_mb", "_ms_per_request", "_ms_per_token", "collectives_share", "errors", "failed",
    "hung", "imbalance_busy", "imbalance_requests", "imbalance_tokens", "kl", "lost", "not_as_asked",
    "perplexity", "refused", "unequal",
)  # fmt: skip
WHOLE = "whole"  # the row of figures that stand beside the rows
Rows = dict[str, dict[str, float]]  # figures by name, by the name of the row


def read_report(path: Path) -> dict[str, Any]:
    """Read a report. Raises `BenchError` for what is none."""
    try:
        report = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise BenchError(f"{path} does not exist; write one with `ryz bench ... --json > FILE`") from None
    except (OSError, ValueError) as error:
        raise BenchError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(report, dict) or "machine" not in report:
        raise BenchError(
            f"{path} is no result of `ryz bench ... --json`: it does not say which machine it is of"
        )
    return {**report}


def figures_by_row(name: str, report: Mapping[str, Any]) -> Rows:
    """Return all figures of a report whose direction is known.

    Args:
        name: What the report is called in errors.
    """
    found: Rows = {}
    rows = report.get("rows")
    for row in rows if isinstance(rows, list) else ():
        if not isinstance(row, dict):
            raise BenchError(f"{name} has a row that is no object")
        row_name = (
            ", ".join(f"{key} {value}" for key, value in row.items() if _identifies(key, value)) or "row"
        )
        if row_name in found:
            raise BenchError(f"{name} has two rows of {row_name}; keep one")
        found[row_name] = {key: value for key, value in _numbers(row) if key not in _IDENTIFY}
    if whole := dict(_numbers(report)):
        found[WHOLE] = whole
    if not any(found.values()):
        raise BenchError(f"{name} has no figure that can be compared")
    return found


def more_is_better(figure: str) -> bool | None:
    """Return whether more of a figure is better; None if its name does not say."""
    # of `pause_ms.p99` and `cpu_ms_per_token.gateway` the unit stands in the outer name
    for name in reversed(figure.split(".")):
        for better, ends in ((True, _MORE), (False, _LESS)):  # `_per_s` ends with `_s`
            if any(name == end or name.endswith(end if end[0] == "_" else f"_{end}") for end in ends):
                return better
    return None


def _identifies(key: str, value: object) -> bool:
    return isinstance(value, str | bool) or (key in _IDENTIFY and isinstance(value, int | float))


def _numbers(values: Mapping[str, Any], outer: str = "") -> Iterator[tuple[str, float]]:
    for key, value in values.items():
        name = f"{outer}{key}"
        if key in _LEFT_OUT:
            continue
        if isinstance(value, Mapping):
            inner = dict(_numbers(value, f"{name}."))
            if key.startswith("cpu_ms_per_") and inner:
                yield name, sum(inner.values())
            else:
                yield from inner.items()
        elif key == "peak_rss_mb" and isinstance(value, list):
            yield name, float(max(value))
        elif (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and more_is_better(name) is not None
        ):
            yield name, float(value)
