"""The alert rules name metrics that the services have."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from services.gateway.metrics import GatewayMetrics
from services.router.metrics import RouterMetrics
from shared.bus.delivery import BusStats
from shared.client.generation.commands import GenerationStats

ROOT = Path(__file__).resolve().parents[3]
SUFFIXES = r"(_bucket|_total|_sum|_count)$"


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((ROOT / "deploy" / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def known() -> str:
    """Returns all source text in which metrics are named, with prefixes filled in."""
    files = [*(ROOT / "services").rglob("*.py"), ROOT / "shared" / "telemetry" / "metrics.py"]
    text = "".join(path.read_text() for path in files)
    text += "".join(f" ryz_bus_{field.name}" for field in fields(BusStats))
    text += "".join(f" ryz_client_{field.name}" for field in fields(GenerationStats))
    text = re.sub(r'[(]"(num_requests_running)"', r"ryz_worker_\1", text)
    text = re.sub(r'PREFIX \+ "(\w+)"', r"ryz_worker_\1", text)
    text = re.sub(r'counter\(\s*"(\w+)"', r"ryz_worker_\1", text)
    return re.sub(r'\("(blocks|bytes|bytes_limit|holders|leases|full|up)",', r"ryz_kvstate_tier_\1", text)


def test_every_rule_names_metrics_that_there_are() -> None:
    text = known()
    found = rules()
    assert len(found) >= 18
    assert len({rule["alert"] for rule in found}) == len(found)
    for rule in found:
        names = re.findall(r"\bryz_\w+", rule["expr"])
        assert names
        for name in names:
            assert re.search(rf"\b{re.sub(SUFFIXES, '', name)}\b|\b{name}\b", text), name
        assert {"summary", "remedy"} <= rule["annotations"].keys()


@pytest.mark.parametrize(
    "name", ["ryz_router_events_total", "ryz_router_groups_lost_total", "ryz_gateway_failed_streams_total"]
)
def test_counters_with_labels_that_rules_ask_for_begin_at_0(name: str) -> None:
    registry = CollectorRegistry()
    RouterMetrics(registry, "hybrid")
    GatewayMetrics(registry)
    there = [sample for family in registry.collect() for sample in family.samples if sample.name == name]
    expressions = " ".join(rule["expr"] for rule in rules())
    asked = re.findall(rf'{name}{{\w+="(\w+)"}}', expressions)
    assert asked or "by (reason)" in expressions
    assert set(asked) <= {value for sample in there for value in sample.labels.values()}
    assert there
    assert all(sample.value == 0 for sample in there)
