"""`python -m benchmarks.regress [--base COMMIT]`: this checkout beside another commit, in turns.

Exit code 1: a figure got worse by more than the margin, and noise does not explain it. 2: it could not be
measured.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.lib.machine import ENGINE_PACKAGES, machine
from benchmarks.lib.measuring import BenchError
from benchmarks.regress.trees import ROOT, base_tree, commit_of, compile_tree
from benchmarks.regress.turns import BenchOfBoth, run_in_turns
from benchmarks.regress.verdict import LEAST_ROUNDS, JudgedFigure, as_rows, judge

_SERVING = frozenset({"requests_per_s", "cpu_ms_per_request", "p50_ms", "ttft_p50_ms", "errors"})
_ENGINE = frozenset({"decode_tokens_per_s", "prefill_tokens_per_s"})
_COLOURS = {"worse": "red", "better": "green", "same": "", "unclear": "yellow"}


def benches(model: str, *, short: bool) -> list[BenchOfBoth]:
    """Return what is measured. The short form's figures are CPU time and rates that load disturbs little."""
    if short:
        quick = ("serving", "--concurrency", "32", "--duration", "2", "--warmup", "0.5")
        return [BenchOfBoth(quick, frozenset({"cpu_ms_per_request"}))]
    serving = ("serving", "--concurrency", "1,32", "--duration", "4")
    engine = ("engine", "--model", model, "--precision", "int8", "--batches", "1,8", "--repeats", "1")
    return [
        BenchOfBoth(serving, _SERVING),
        BenchOfBoth((*serving, "--stream"), _SERVING),
        BenchOfBoth(engine, _ENGINE),
    ]


def measure(given: argparse.Namespace) -> list[JudgedFigure]:
    """Run all benches. Raises `BenchError`."""
    found: list[JudgedFigure] = []
    with base_tree(given.base) as base:
        if given.compiled:
            for tree in (base, ROOT):
                compile_tree(tree)
        for bench in benches(given.model, short=given.short):
            rounds = run_in_turns(
                bench, base, ROOT, rounds=given.rounds, compiled=given.compiled,
                progress=lambda what: print(what, file=sys.stderr, flush=True),
            )  # fmt: skip
            found += judge(rounds.base, rounds.new, given.margin / 100)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.regress", description=__doc__)
    parser.add_argument("--base", default="HEAD~1", help="the commit to compare with; default: %(default)s")
    parser.add_argument(
        "--rounds", type=int, default=12, help=f"runs of each, at least {LEAST_ROUNDS}; default: %(default)s"
    )
    parser.add_argument(
        "--margin",
        type=float,
        default=3.0,
        help="percent by which a figure may get worse; default: %(default)s",
    )
    parser.add_argument("--model", default="smollm2-135m", help="of the engine's bench; default: %(default)s")
    parser.add_argument(
        "--compiled", action="store_true", help="compile the modules of both first, in minutes"
    )
    parser.add_argument(
        "--short", action="store_true", help="CPU time of the serving path alone, in two to four minutes"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file, too")
    given = parser.parse_args(arguments)
    if given.rounds < LEAST_ROUNDS:
        parser.error(f"--rounds {given.rounds}: fewer than {LEAST_ROUNDS} cannot tell a loss from noise")
    try:
        given.base = commit_of(given.base)
        facts = {
            "bench": "regress", "base": given.base, "commit": commit_of("HEAD"), "rounds": given.rounds,
            "margin": given.margin, "compiled": given.compiled, "machine": machine(ENGINE_PACKAGES),
        }  # fmt: skip
        found = measure(given)
    except BenchError as error:
        print(f"The measurement failed: {error}.", file=sys.stderr)
        return 2
    _show(found, given.base)
    if given.json:
        given.json.write_text(json.dumps(facts | {"rows": as_rows(found)}, indent=1) + "\n")
    worse = [f"{one.figure} of {one.row} ({one.ratio:.3f})" for one in found if one.verdict == "worse"]
    if worse:
        print(
            f"Worse than {given.base} by more than {given.margin:g} %: {'; '.join(worse)}.", file=sys.stderr
        )
    return bool(worse)


def _show(found: Sequence[JudgedFigure], base: str) -> None:
    table = Table("row", "figure", base, "now", "ratio, above 1 is worse", "bounds", "verdict")
    for one in found:
        bounds = f"{one.least:.3f} to {one.most:.3f}"
        cells = (
            one.row,
            one.figure,
            f"{one.base:g}",
            f"{one.new:g}",
            f"{one.ratio:.3f}",
            bounds,
            one.verdict,
        )
        table.add_row(*cells, style=_COLOURS[one.verdict])
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
