"""The boards are what Grafana's schema knows, and hold together. Grafana itself is not to be had here."""

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.kits.prometheus.expressions import BOARDS, filled
from tests.kits.prometheus.programs import promtool

FILES = sorted(BOARDS.glob("*.json"))
BUILT_IN = {"__rate_interval", "datasource"}
register_default_plugins()


def panels_of(board: dict[str, Any]) -> list[dict[str, Any]]:
    rows = [panel for panel in board["panels"] if panel["type"] == "row"]
    return [*board["panels"], *(inner for row in rows for inner in row.get("panels", []))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_grafanas_types_keep_every_field(path: Path) -> None:
    board = json.loads(path.read_text())
    again = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(board)))
    assert again == board


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_panels_have_ids_places_and_sources_of_their_own(path: Path) -> None:
    board = json.loads(path.read_text())
    panels = panels_of(board)
    assert len({panel["id"] for panel in panels}) == len(panels) > 10
    shown = [panel for panel in panels if panel["type"] != "row"]
    for panel in shown:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        apart = (
            one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        )  # fmt: skip
        assert apart, (one, other)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_queries_use_variables_that_the_board_has(path: Path) -> None:
    board = json.loads(path.read_text())
    there = {variable["name"] for variable in board["templating"]["list"]} | BUILT_IN
    queries = [target["expr"] for panel in panels_of(board) for target in panel.get("targets", ())]
    used = {name for query in queries for name in re.findall(r"\$\{?(\w+)", query)}
    assert used <= there
    assert there - BUILT_IN <= used


def test_uids_are_unique() -> None:
    uids = [json.loads(path.read_text())["uid"] for path in FILES]
    assert len(set(uids)) == len(FILES) == 5


def test_prometheus_parses_every_query(tmp_path: Path) -> None:
    rules = [
        {"record": f"board:query_{number}", "expr": filled(target["expr"])}
        for number, target in enumerate(
            target
            for path in FILES
            for panel in panels_of(json.loads(path.read_text()))
            for target in panel.get("targets", ())
        )
    ]
    file = tmp_path / "rules.json"  # JSON is YAML
    file.write_text(json.dumps({"groups": [{"name": "boards", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", file)
