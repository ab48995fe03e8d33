"""docs/targets.md: every row is there, figures come from files, and a miss is said with its size."""

import json
from pathlib import Path

import pytest

from tools.docs.targets import evidence
from tools.docs.targets.evidence import Constant, Figure, Held, Missing, Row, Shown
from tools.docs.targets.page import PAGE, ROWS, render, state_of

NUMBERS = [f"R{n}" for n in range(1, 32)] + [f"X{n}" for n in range(1, 15)]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(evidence, "RESULTS", tmp_path)
    report = {"value": 12.5, "machine": {"usable_cores": 2, "cpu": "a processor"}, "commit": "0123456789ab"}
    (tmp_path / "kv-test.json").write_text(json.dumps(report | {"kernels": "avx2"}))
    return tmp_path


def figure(*, most: float | None = None, least: float | None = None) -> Figure:
    return Figure("a figure, ms", "kv-test.json", lambda report: report["value"], most=most, least=least)


def test_every_requirement_has_a_row_with_evidence() -> None:
    assert [row.no for row in ROWS] == NUMBERS
    assert all(row.evidence for row in ROWS)


def test_the_page_is_what_the_files_say() -> None:
    assert PAGE.read_text() == render()


@pytest.mark.parametrize(
    ("bounds", "verdict"),
    [
        ({"most": 12.5}, "met"),
        ({"most": 10.0}, "missed by 25 %"),
        ({"least": 25.0}, "missed by 50 %"),
        ({"least": 1.0}, "met"),
        ({"most": 0.0}, "missed by 12.5"),
        ({}, "no target"),
    ],
)
def test_a_figure_is_judged_by_its_target(results: Path, bounds: dict[str, float], verdict: str) -> None:
    evidence.read_report.cache_clear()
    shown = figure(**bounds).show()
    assert shown.verdict == verdict
    assert "[12.5](../benchmarks/results/kv-test.json)" in shown.measured
    assert (shown.where, shown.when) == ("2 cores, a processor, avx2", "01234567")
    assert shown.how == "`ryz bench kv --json`"


def test_what_is_not_there_ends_the_generator_with_its_name(results: Path) -> None:
    with pytest.raises(SystemExit, match=r"kv-none.json does not exist"):
        Figure("x", "kv-none.json", lambda report: report["value"]).show()
    with pytest.raises(SystemExit, match=r"kv-test.json has no figure for 'x'"):
        Figure("x", "kv-test.json", lambda report: report["nothing"]).show()
    with pytest.raises(SystemExit, match=r"tests/unit/no_such_test.py does not exist"):
        Held("x", ["unit/no_such_test.py"]).show()
    with pytest.raises(SystemExit, match=r"Makefile declares no NOTHING"):
        Constant("x", "Makefile", "NOTHING", 1).show()


def test_a_row_is_met_only_if_nothing_of_it_is_missed_or_unknown() -> None:
    def lines(*verdicts: str) -> list[Shown]:
        return [Shown("", "", "", "", verdict) for verdict in verdicts]

    assert state_of(lines("met", "held by tests", "no target")) == "met"
    assert state_of(lines("met", "not measured")) == "in part"
    assert state_of(lines("missed by 3 %", "not measured", "missed by 20 %", "met")) == "missed by 20 %"
    text = render((Row("R1", "a thing", "-", [Missing("a figure", "a machine")]),))
    assert "1 rows: 0 met, 1 in part, 0 missed." in text
    assert "| a figure | - | - | a machine | not measured |" in text
