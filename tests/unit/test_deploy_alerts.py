"""The alert rules name metrics that the services have."""

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = r"(_bucket|_total|_sum|_count)$"


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((ROOT / "deploy" / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def known() -> str:
    """All source text in which metrics are named, the prefixes filled in."""
    text = "".join(path.read_text() for path in (ROOT / "services").rglob("*metrics.py"))
    text = re.sub(r'PREFIX \+ "(\w+)"', r"ryz_worker_\1", text)
    text = re.sub(r'counter\("(\w+)"', r"ryz_worker_\1", text)
    return re.sub(r'\("(blocks|bytes|bytes_limit|holders|leases|full|up)",', r"ryz_kvstate_tier_\1", text)


def test_every_rule_names_metrics_that_there_are() -> None:
    text = known()
    found = rules()
    assert len(found) >= 6
    for rule in found:
        names = re.findall(r"\bryz_\w+", rule["expr"])
        assert names
        for name in names:
            assert re.search(rf"\b{re.sub(SUFFIXES, '', name)}\b|\b{name}\b", text), name
        assert {"summary", "remedy"} <= rule["annotations"].keys()
