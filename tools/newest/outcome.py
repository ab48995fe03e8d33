"""What the tests of a group said, read from pytest's JUnit file. Pure apart from reading it."""

import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

from tools.newest.libraries import GROUPS

SHOWN = 20  # failures; a group's tests end with this many


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """The tests of a group.

    Attributes:
        passed: Their number.
        broken: Names of the others, with the first line of what went wrong.
        stopped: Why pytest came to no end, or found no tests; empty: it came to one.
    """

    passed: int
    broken: tuple[str, ...] = ()
    stopped: str = ""

    @property
    def works(self) -> bool:
        """True if tests ran, and all of them passed."""
        return not self.stopped and not self.broken and self.passed > 0


def read_outcome(report: Path, status: int) -> GroupOutcome:
    """Reads a report.

    Args:
        report: Written by `--junitxml`.
        status: How pytest ended; 0: all passed, 1: some failed.
    """
    if not report.exists():
        return GroupOutcome(0, stopped=f"pytest ended with {status} and wrote no report")
    passed, broken = 0, list[str]()
    for case in ET.parse(report).iter("testcase"):
        failed = next((part for part in case if part.tag in {"failure", "error"}), None)
        if failed is not None:
            said = (failed.get("message") or "").partition("\n")[0]
            broken.append(f"{case.get('classname')}::{case.get('name')}: {said}"[:200])
        elif case.find("skipped") is None:
            passed += 1
    stopped = f"pytest ended with {status}" if status not in {0, 1} else ""
    return GroupOutcome(passed, tuple(broken), stopped)


def describe(name: str, before: dict[str, str], after: dict[str, str], outcome: GroupOutcome) -> str:
    """Returns what is printed of a group.

    Args:
        name: Of the group.
        before: The versions of its libraries that the project is tested with.
        after: Those that were tried.
        outcome: Of its tests.
    """
    versions = ", ".join(
        f"{library} {before[library]}"
        + (f" -> {after[library]}" if after[library] != before[library] else "")
        for library in GROUPS[name].libraries
    )
    is_same = all(after[library] == before[library] for library in GROUPS[name].libraries)
    said = "works" if outcome.works else outcome.stopped or f"{len(outcome.broken)} tests fail"
    lines = [
        f"{name}: {versions}{' (nothing newer)' if is_same else ''}: {said}, {outcome.passed} tests pass"
    ]
    lines += [f"  {one}" for one in outcome.broken]
    if len(outcome.broken) >= SHOWN:
        lines.append("  ... the other tests were not run")
    return "\n".join(lines)
