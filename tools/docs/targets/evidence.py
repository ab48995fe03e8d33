"""What stands behind a row: figures from result files, tests, and what was not measured."""

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "benchmarks" / "results"
# the command that makes each family of files; longer beginnings first
COMMANDS = {
    "adapters-": "ryz bench adapters --json",
    "guest-": "ryz bench guest --json",
    "chaos-fuzz-": "make chaos FIGURES=FILE",
    "chaos-storm-": "make chaos FIGURES=FILE",
    "collectives-": "ryz bench collectives --json",
    "engine-": "ryz bench engine --json",
    "failover-freeze-": "ryz bench failover --freeze --kills 15 --calm 600 --json",
    "failover-structured-": "ryz bench failover --structured --kills 300 --json",
    "failover-": "ryz bench failover --kills 100 --json",
    "kv-": "ryz bench kv --json",
    "mixed-": "ryz bench mixed --json",
    "overflow-": "ryz bench overflow --json",
    "quality-": "ryz bench quality --json",
    "serving-": "ryz bench serving --json",
    "sessions-": "ryz bench sessions --json",
    "speculation-": "ryz bench speculation --json",
}


class Shown(NamedTuple):
    """One line of evidence.

    Attributes:
        measured: What was measured, with its figure.
        where: The processor.
        when: The commit.
        how: The command, or the test.
        verdict: `met`, `missed by ...`, `held by a test`, `no target`, or `not measured`.
    """

    measured: str
    where: str
    when: str
    how: str
    verdict: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a result file.

    Attributes:
        what: What it is.
        file: The file in benchmarks/results.
        pick: Finds it in the file's content.
        form: How it is shown, with `{}` for the number.
        most: The target's upper bound; None: there is none.
        least: The target's lower bound; None: there is none.
    """

    what: str
    file: str
    pick: Callable[[Any], float]
    form: str = "{:.3g}"
    most: float | None = None
    least: float | None = None

    def show(self) -> Shown:
        """Returns the line.

        Raises:
            SystemExit: The file is not there, or has no such figure.
        """
        report = read_report(self.file)
        try:
            value = self.pick(report)
        except (KeyError, IndexError, StopIteration, TypeError, ValueError) as error:
            raise SystemExit(
                f"benchmarks/results/{self.file} has no figure for {self.what!r}: {error!r}"
            ) from error
        # `make chaos` writes a file of parts with a commit each
        facts = report.get("machine", {})
        commit = report.get("commit") or next(
            (one["commit"] for one in report.values() if isinstance(one, Mapping) and "commit" in one), "-"
        )
        where = (
            f"{facts['usable_cores']} cores, {facts['cpu']}{_kernels(report)}"
            if facts
            else "2 cores, AMD EPYC"
        )
        command = next(how for prefix, how in COMMANDS.items() if self.file.startswith(prefix))
        link = f"[{self.form.format(value)}](../benchmarks/results/{self.file})"
        return Shown(f"{self.what}: {link}", where, f"{commit[:8]}", f"`{command}`", self._verdict(value))

    def _verdict(self, value: float) -> str:
        if self.most is not None and value > self.most:
            return f"missed by {_share(value - self.most, self.most)}"
        if self.least is not None and value < self.least:
            return f"missed by {_share(self.least - value, self.least)}"
        return "no target" if self.most is None and self.least is None else "met"


@dataclass(frozen=True, slots=True)
class Held:
    """What tests hold: they fail if it is not so.

    Attributes:
        what: What they hold.
        tests: Paths of files or folders below tests/.
    """

    what: str
    tests: Sequence[str]

    def show(self) -> Shown:
        """Returns the line; fails with the name of a test that is not there."""
        for one in self.tests:
            if not (ROOT / "tests" / one).exists():
                raise SystemExit(f"tests/{one} does not exist, which holds {self.what!r}")
        names = ", ".join(f"`tests/{one}`" for one in self.tests)
        return Shown(self.what, "any machine", "each run", names, "held by tests")


@dataclass(frozen=True, slots=True)
class Missing:
    """What was not measured.

    Attributes:
        what: What it is.
        needs: What would be needed.
    """

    what: str
    needs: str

    def show(self) -> Shown:
        """Returns the line."""
        return Shown(self.what, "-", "-", self.needs, "not measured")


@dataclass(frozen=True, slots=True)
class Constant:
    """A number that the source declares, such as a bound that `make` holds.

    Attributes:
        what: What it is.
        file: The file that declares it.
        name: Its name there.
        least: The target's lower bound.
    """

    what: str
    file: str
    name: str
    least: float

    def show(self) -> Shown:
        """Returns the line."""
        value = _declared(self.file, self.name)
        verdict = "met" if value >= self.least else f"missed by {_share(self.least - value, self.least)}"
        return Shown(
            f"{self.what}: {value:g}", "any machine", "each run", f"`{self.name}` in `{self.file}`", verdict
        )


Evidence = Figure | Held | Missing | Constant


@dataclass(frozen=True, slots=True)
class Row:
    """A requirement.

    Attributes:
        no: Its number, for good.
        requirement: In some words.
        target: The figure that was asked for.
        evidence: What there is.
    """

    no: str
    requirement: str
    target: str
    evidence: Sequence[Evidence]


def row_of(report: Any, **wanted: object) -> Any:
    """Returns the first of a report's rows that has these values."""
    return next(
        row for row in report["rows"] if all(row.get(name) == value for name, value in wanted.items())
    )


def _kernels(report: Any) -> str:
    """The instruction sets of our kernels, as far as the file says."""
    text = json.dumps([report.get("kernels"), report.get("engines"), report.get("rows")])
    return "".join(f", {one}" for one in ("avx2", "avxvnni", "avx512") if one in text)


def _share(by: float, target: float) -> str:
    return f"{100 * by / target:.0f} %" if target else f"{by:g}"


@cache
def read_report(file: str) -> Any:
    """Returns the content of a result file; ends the process with its name if it is not there."""
    path = RESULTS / file
    if not path.exists():
        raise SystemExit(f"benchmarks/results/{file} does not exist, which tools/docs/targets names")
    return json.loads(path.read_text(encoding="utf-8"))


def _declared(file: str, name: str) -> float:
    """The number in `NAME ?= 90` of a Makefile, or in `NAME = 90` of a module."""
    for line in (ROOT / file).read_text(encoding="utf-8").splitlines():
        key, separator, value = line.partition("=")
        if separator and key.rstrip(" ?:") == name:
            return float(ast.literal_eval(value.partition("#")[0].strip()))
    raise SystemExit(f"{file} declares no {name}")
