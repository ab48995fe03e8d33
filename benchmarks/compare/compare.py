"""Compares two result files of the same bench: which figures got worse, and by how much."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.compare.report_figures import WHOLE, figures_by_row, more_is_better, read_report
from benchmarks.lib.measuring import BenchError

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

    changes: list[FigureChange]
    only_old: list[str]
    only_new: list[str]
    machines: list[str]

    def regressions(self, threshold: float) -> list[FigureChange]:
        """Return what got worse by more than that share."""
        return [change for change in self.changes if change.worse_by > threshold]


def compare_files(old: Path, new: Path) -> Comparison:
    """Read and compare both files. Raises `BenchError` for files of other benches or without a common row."""
    before, after = read_report(old), read_report(new)
    kinds = before.get("bench"), after.get("bench")
    if None not in kinds and kinds[0] != kinds[1]:
        raise BenchError(
            f"{old} is a result of `ryz bench {kinds[0]}` and {new} one of `ryz bench {kinds[1]}`; "
            "take two of the same bench"
        )
    old_rows, new_rows = figures_by_row(str(old), before), figures_by_row(str(new), after)
    named = (old_rows.keys() | new_rows.keys()) - {WHOLE}
    if not (old_rows.keys() & new_rows.keys()) - ({WHOLE} if named else set()):
        raise BenchError(f"{old} and {new} have no row in common; measure the same in both")
    changes = [
        _change(row, figure, was, new_rows[row][figure])
        for row, figures in old_rows.items()
        for figure, was in figures.items()
        if figure in new_rows.get(row, {})
    ]
    return Comparison(
        changes,
        only_old=[name for name in old_rows if name not in new_rows],
        only_new=[name for name in new_rows if name not in old_rows],
        machines=_machines(before["machine"], after["machine"]),
    )


def _change(row: str, figure: str, old: float, new: float) -> FigureChange:
    loss = old - new if more_is_better(figure) else new - old
    if old == 0:  # from no errors to some is infinitely worse
        return FigureChange(row, figure, old, new, math.copysign(math.inf, loss) if loss else 0.0)
    return FigureChange(row, figure, old, new, loss / old)


def _machines(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    names = (name for name in _MACHINE if before.get(name) != after.get(name))
    return [f"{name} {before.get(name)} and {after.get(name)}" for name in names]
