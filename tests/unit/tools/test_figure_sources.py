"""Each section of docs/performance.md says what makes its figures again: a command, a test, a result file."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "performance.md"
HEADING = re.compile(r"^(?=#{2,3} )", re.MULTILINE)
RESULT = re.compile(r"benchmarks/results/([\w.-]+\.json)")
COMMAND = re.compile(r"`[^`]*?(?:ryz bench|ryz [a-z]+ |python -m|pytest|make) ?[^`]*`")
TEST = re.compile(r"`(?:[\w/]*/)?(test_\w+)(?:\.py)?`")
FIGURE = re.compile(
    r"\d+(?:[.,]\d+)* ?(?:%|ms|us|µs|ns|s\b|MB|MiB|GB|GOP|GFLOP|requests|tokens|tok/s)|\| *x?\d"
)


def sections(text: str) -> Iterator[tuple[str, str]]:
    """The heading and the text of each section, without those below it."""
    for part in HEADING.split(text)[1:]:
        heading, _, body = part.partition("\n")
        yield heading.lstrip("# "), body


def known_tests() -> set[str]:
    """Names of the files and functions of tests."""
    found = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        found |= {path.stem, *re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)}
    return found


def sources(body: str, tests: set[str]) -> list[str]:
    """What makes the figures of a section again."""
    files = [name for name in RESULT.findall(body) if (ROOT / "benchmarks" / "results" / name).exists()]
    return [*files, *COMMAND.findall(body), *(name for name in TEST.findall(body) if name in tests)]


TESTS = known_tests()


@pytest.mark.parametrize(("heading", "body"), list(sections(PAGE.read_text())), ids=lambda one: one[:40])
def test_a_section_with_figures_names_what_makes_them_again(heading: str, body: str) -> None:
    if FIGURE.search(body):
        assert sources(body, TESTS), f"{heading}: name its result file, command or test, or drop its figures"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("It took 7 ms (`timeit`, 2,000 rounds).", 0),
        ("It took 7 ms ([result](../benchmarks/results/no-such-file.json), `test_that_is_not_there`).", 0),
        ("It took 7 ms (`ryz bench serving --json`).", 1),
        ("It took 7 ms (`tests/unit/tools/test_figure_sources.py`).", 1),
    ],
)
def test_the_rule_finds_what_has_no_source(body: str, found: int) -> None:
    assert FIGURE.search(body)
    assert len(sources(body, TESTS)) == found
