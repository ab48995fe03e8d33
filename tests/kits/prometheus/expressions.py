"""The PromQL of boards and rules, and the selectors in it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser
import yaml

ROOT = Path(__file__).resolve().parents[3]
BOARDS = ROOT / "deploy" / "grafana"
RULES = ROOT / "deploy" / "prometheus"
WINDOW = "1m"  # in place of Grafana's


class NamedExpression(NamedTuple):
    """An expression, and where it stands.

    Attributes:
        location: File and title.
        expr: PromQL.
        labels: Labels that the legend of a panel names.
    """

    location: str
    expr: str
    labels: tuple[str, ...] = ()


def board_expressions() -> list[NamedExpression]:
    """Return the queries of all panels and variables of all boards, with variables that match everything."""
    return [one for path in sorted(BOARDS.glob("*.json")) for one in _of_board(path)]


def _of_board(path: Path) -> Iterator[NamedExpression]:
    board = json.loads(path.read_text())
    for panel in _panels(board["panels"]):
        for target in panel.get("targets", ()):
            labels = tuple(re.findall(r"{{(\w+)}}", target.get("legendFormat", "")))
            yield NamedExpression(f"{path.stem}: {panel['title']}", filled(target["expr"]), labels)
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]).groups()  # type: ignore[union-attr]
            yield NamedExpression(f"{path.stem}: ${variable['name']}", f'{selector}{{{label}!=""}}')


def _panels(panels: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for panel in panels:
        yield panel
        yield from _panels(panel.get("panels", []))


def filled(expr: str) -> str:
    """Return PromQL without Grafana's variables."""
    expr = expr.replace("$__rate_interval", WINDOW).replace("$__range", WINDOW)
    return re.sub(r"\$\w+", ".*", expr)


def rule_expressions() -> list[NamedExpression]:
    """Return the expressions of all alerts and recording rules."""
    return [
        NamedExpression(f"{path.name}: {rule.get('alert') or rule['record']}", rule["expr"])
        for path, rule in _rules()
    ]


def recorded_names() -> set[str]:
    """Return the names that recording rules give."""
    return {rule["record"] for _, rule in _rules() if "record" in rule}


def _rules() -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in sorted(RULES.glob("*.yaml")):
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from ((path, rule) for rule in group["rules"])


def selectors_of(expr: str) -> set[str]:
    """Return the selectors of series in an expression, without their ranges and offsets."""
    found = set[str]()

    def note(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.MatrixSelector):
            node = node.vector_selector
        if isinstance(node, promql_parser.VectorSelector):
            found.add(re.sub(r" (offset|@) .*", "", str(node)))

    promql_parser.walk(promql_parser.parse(expr), note)
    return found
