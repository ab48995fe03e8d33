"""Writes docs/targets.md. Run as `python -m tools.docs.targets.page`; `--check` fails if it has changed."""

from collections import Counter

from tools.docs.compatibility import table
from tools.docs.pages import write_page
from tools.docs.targets.beyond import BEYOND
from tools.docs.targets.evidence import ROOT, Row, Shown
from tools.docs.targets.inference import INFERENCE
from tools.docs.targets.serving import SERVING

PAGE = ROOT / "docs" / "targets.md"
ROWS = (*INFERENCE, *SERVING, *BEYOND)
_HEAD = """# Targets

What the project was asked to reach, and what was measured. This page is made by
`python -m tools.docs.targets.page`: figures come from the files in
[benchmarks/results](../benchmarks/results), never from memory. A row is *met* if every figure with a target
meets it and tests hold the rest; *in part* if something of it was not measured; else it says by how much the
worst figure misses. Which processor a figure comes from stands beside it: figures of different machines are
not to be compared. "Not measured" says what would be needed; the machines at hand had two cores and no GPU.

"""


def state_of(lines: list[Shown]) -> str:
    """Returns what a row comes to: `met`, `in part` or the verdict of what misses most."""
    missed = [line.verdict for line in lines if line.verdict.startswith("missed")]
    if missed:
        return max(missed, key=_size)
    return "in part" if any(line.verdict == "not measured" for line in lines) else "met"


def _size(verdict: str) -> float:
    return float(verdict.removeprefix("missed by ").removesuffix(" %"))


def render(rows: tuple[Row, ...] = ROWS) -> str:
    """Renders the page."""
    shown = {row.no: [one.show() for one in row.evidence] for row in rows}
    states = {no: state_of(lines) for no, lines in shown.items()}
    counts = Counter("missed" if state.startswith("missed") else state for state in states.values())
    summary = (
        f"{len(rows)} rows: {counts['met']} met, {counts['in part']} in part, {counts['missed']} missed.\n\n"
    )
    overview = [
        [f"[{row.no}](#{row.no.lower()})", row.requirement, row.target, states[row.no]] for row in rows
    ]
    parts = [_HEAD + summary + table(("no", "requirement", "target", "state"), overview)]
    for row in rows:
        lines = [list(line) for line in shown[row.no]]
        parts.append(
            f"\n## {row.no}\n\n{row.requirement}. Target: {row.target}.\n\n"
            + table(("measured", "where", "commit", "by", "state"), lines)
        )
    return "".join(parts)


def main() -> None:
    """Writes the page, or with `--check` fails when it is out of date."""
    write_page(PAGE, render())


if __name__ == "__main__":
    main()
