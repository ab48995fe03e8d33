"""Every alert has a runbook, a row of faults if it tells of a cause, and unit tests that promtool runs."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kits.alerts.alert_faults import RANKS, SERVICES
from tests.kits.prometheus.programs import promtool

ROOT = Path(__file__).resolve().parents[3]
RULES = sorted((ROOT / "deploy" / "prometheus").glob("*.yaml"))
CASES = sorted((Path(__file__).parent / "alerts").glob("*.yaml"))
FIRES = re.compile(r'alertname="(\w+)"')


def rules() -> list[dict[str, Any]]:
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def unit_tests() -> list[dict[str, Any]]:
    return [test for path in CASES for test in yaml.safe_load(path.read_text())["tests"]]


def test_promtool_takes_the_rules() -> None:
    promtool("check", "rules", *RULES)


@pytest.mark.parametrize("cases", CASES, ids=lambda path: path.stem)
def test_alerts_fire_and_do_not_fire_as_their_series_say(cases: Path) -> None:
    promtool("test", "rules", cases)


def test_every_alert_has_series_on_which_it_fires_and_others_on_which_it_does_not() -> None:
    fires, silent = set[str](), set[str]()
    for test in unit_tests():
        name = test["name"].partition(" ")[0]
        (expected,) = test["promql_expr_test"]
        firing = {FIRES.findall(sample["labels"])[0] for sample in expected["exp_samples"]}
        (fires if name in firing else silent).add(name)
        assert (" does not fire: " in test["name"]) != (name in firing), test["name"]
    assert fires == silent == set(alerts())


def test_an_alert_has_one_rule_and_says_what_is_wrong_and_what_to_do() -> None:
    named = [rule["alert"] for rule in rules() if "alert" in rule]
    assert len(named) == len(set(named)) >= 30
    for rule in alerts().values():
        assert {"summary", "remedy", "runbook_url"} == rule["annotations"].keys()
        assert rule["labels"]["severity"] in {"warning", "critical"}


def test_every_runbook_is_a_section_of_the_operations_page() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    sections = {title.lower() for title in re.findall(r"^#+ (Ryz\w+)$", page, re.MULTILINE)}
    for name, rule in alerts().items():
        assert rule["annotations"]["runbook_url"] == f"docs/operations.md#{name.lower()}"
    assert sections == {name.lower() for name in alerts()}


def test_each_fault_of_the_failure_table_has_its_alert() -> None:
    """The page of figures has the times of these rows, measured on a real stack."""
    page = (ROOT / "docs" / "performance.md").read_text()
    for case in (*SERVICES, *RANKS):
        assert case.alert in alerts()
        assert re.search(rf"^\| {re.escape(case.row)} \| `{case.alert}` \| [\d.]+ \|", page, re.MULTILINE), (
            case
        )
    causes = {name for name, rule in alerts().items() if rule["labels"].get("cause")}
    assert causes <= {case.alert for case in (*SERVICES, *RANKS)}
