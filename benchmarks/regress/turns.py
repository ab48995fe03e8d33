"""Runs benches of two trees in turns, each in a process of its own, and gathers their figures."""

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.compare.report_figures import Rows, figures_by_row
from benchmarks.lib.measuring import BenchError, Progress
from benchmarks.regress.trees import bench_command, environment

RUN_S = 600.0


@dataclass(frozen=True, slots=True)
class BenchOfBoth:
    """A bench that both trees run.

    Attributes:
        arguments: Of `ryz bench`; the first one is its name.
        judged: Figures that count; others are noise or follow from these.
    """

    arguments: tuple[str, ...]
    judged: frozenset[str]


@dataclass(slots=True)
class Rounds:
    """What each round found, at the base and at the new commit."""

    base: list[Rows] = field(default_factory=list)
    new: list[Rows] = field(default_factory=list)


def run_in_turns(
    bench: BenchOfBoth, base: Path, new: Path, *, rounds: int, compiled: bool, progress: Progress
) -> Rounds:
    """Run a bench so often with each tree. Raises `BenchError` if a run fails."""
    found = Rounds()
    for number in range(rounds):
        sides: list[tuple[str, Path, list[Rows]]] = [("base", base, found.base), ("new", new, found.new)]
        for name, tree, kept in sides if number % 2 == 0 else reversed(sides):
            progress(f"{bench.arguments[0]}, round {number + 1} of {rounds}, {name}")
            kept.append(_figures(bench, tree, compiled=compiled))
    return found


def _figures(bench: BenchOfBoth, tree: Path, *, compiled: bool) -> Rows:
    report = _report(bench.arguments, tree, compiled=compiled)
    rows = figures_by_row(f"the report of {tree}", report)
    judged = {
        row: {figure: value for figure, value in figures.items() if figure in bench.judged}
        for row, figures in rows.items()
    }
    return {f"{bench.arguments[0]}: {row}": figures for row, figures in judged.items() if figures}


def _report(arguments: Sequence[str], tree: Path, *, compiled: bool) -> dict[str, Any]:
    command = bench_command([*arguments])
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment(tree, compiled=compiled), capture_output=True, text=True,
            timeout=RUN_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise BenchError(f"`{' '.join(command)}` in {tree} took more than {RUN_S:g} s") from None
    if done.returncode:
        raise BenchError(
            f"`{' '.join(command)}` in {tree} ended with {done.returncode}: {done.stderr[-2000:]}"
        )
    report = json.loads(done.stdout)
    return {**report}
