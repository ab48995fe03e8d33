"""`make newest`: which versions it tries, what it says of the tests, and the bounds that it is about."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools.newest.libraries import GROUPS, wanted_versions
from tools.newest.outcome import SHOWN, GroupOutcome, describe, read_outcome

ROOT = Path(__file__).resolve().parents[3]
EXTENDED = ("nats-py", "uvicorn", "httptools", "websockets", "uvloop", "opentelemetry-sdk")
REPORT = """<?xml version="1.0"?><testsuites><testsuite>
<testcase classname="tests.unit.a" name="test_one"/>
<testcase classname="tests.unit.a" name="test_two[x]">
<failure message="TypeError: no `flow`&#10;more">at</failure></testcase>
<testcase classname="tests.unit.b" name="test_three"><error message="failed on setup">at</error></testcase>
<testcase classname="tests.unit.b" name="test_four"><skipped message="no disk"/></testcase>
</testsuite></testsuites>"""


def test_without_names_the_newest_of_all_are_tried() -> None:
    assert wanted_versions([]) == {name: list(group.libraries) for name, group in GROUPS.items()}


def test_named_versions_are_tried_with_the_tests_of_their_group() -> None:
    wanted = wanted_versions(["uvicorn==0.53.0", "nats-py", "uvloop<0.23"])
    assert wanted == {"http": ["uvicorn==0.53.0", "uvloop<0.23"], "bus": ["nats-py"]}
    with pytest.raises(ValueError, match=r"'torch' is none of nats-py, uvicorn"):
        wanted_versions(["torch==2"])


def test_what_fails_is_named(tmp_path: Path) -> None:
    report = tmp_path / "http.xml"
    report.write_text(REPORT)
    outcome = read_outcome(report, 1)
    assert outcome == GroupOutcome(
        1,
        (
            "tests.unit.a::test_two[x]: TypeError: no `flow`",
            "tests.unit.b::test_three: failed on setup",
        ),
    )
    assert not outcome.works
    before = dict.fromkeys(GROUPS["http"].libraries, "1.0")
    said = describe("http", before, before | {"uvicorn": "2.0"}, outcome).splitlines()
    assert said[0].startswith("http: uvicorn 1.0 -> 2.0, httptools 1.0, ")
    assert said[0].endswith(": 2 tests fail, 1 tests pass")
    assert said[1:] == [f"  {one}" for one in outcome.broken]


def test_tests_that_did_not_run_are_no_success(tmp_path: Path) -> None:
    report = tmp_path / "bus.xml"
    assert read_outcome(report, 4).stopped == "pytest ended with 4 and wrote no report"
    report.write_text("<testsuites><testsuite/></testsuites>")
    assert not read_outcome(report, 0).works
    assert read_outcome(report, 2).stopped == "pytest ended with 2"
    report.write_text(REPORT.replace("failure", "skipped").replace("error", "skipped"))
    assert read_outcome(report, 0).works


def test_that_tests_were_left_out_and_nothing_is_newer_is_said() -> None:
    versions = {"nats-py": "2.16.0"}
    said = describe("bus", versions, versions, GroupOutcome(3, ("x",) * SHOWN))
    assert said.splitlines()[0] == "bus: nats-py 2.16.0 (nothing newer): 20 tests fail, 3 tests pass"
    assert said.endswith("\n  x\n  ... the other tests were not run")


@pytest.mark.parametrize("path", [path for group in GROUPS.values() for path in group.tests])
def test_the_tests_of_a_group_are_there(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("library", EXTENDED)
def test_what_our_code_extends_has_an_upper_bound_that_the_tested_version_is_within(library: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (bound,) = (one for one in map(Requirement, project["dependencies"]) if one.name == library)
    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
    )
    assert any(part.operator == "<" for part in bound.specifier), f"{library} has no upper bound"
    assert pins[library] in bound.specifier
    assert any(library in group.libraries for group in GROUPS.values())
