"""Checks that docs/troubleshooting.md explains each error code, and each reason that a caller can get.

Codes are those of `shared.errors`; reasons are found where errors and refusals are made.
Run as `python -m tools.docs.manual.messages`; it fails with one line for each that the page lacks.
"""

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from shared.errors import FAMILY

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "troubleshooting.md"
SOURCES = ("shared", "services")
# calls whose second argument is a reason
REFUSALS = frozenset({"HttpRefusal", "Refusal", "Fault"})
# calls that make a refusal later, of a reason that they are given
LATER = frozenset({"quota"})
INSIDE = {
    "address_in_use": "ends a start, with the address in the message",
    "start_failed": "the same",
    "not_started": "a mistake of a program that uses the client",
    "timeout": "the bus; callers get the reason of what did not answer",
    "no_responders": "the same",
    "no_stream": "the broker's answer to a service",
    "jetstream": "the same",
    "wrong_last_message": "the same",
    "exporter_missing": "the start of tracing, in the log",
    "wrong_exporter_setting": "the same",
}


def reasons(trees: Iterable[ast.Module]) -> set[str]:
    """Returns the reasons of errors and refusals that modules make.

    Args:
        trees: Their syntax. A constant's name stands for its text, in whichever of them it is.
    """
    nodes = [node for tree in trees for node in ast.walk(tree)]
    texts = {
        target.id: node.value.value
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id.isupper() and isinstance(node.value.value, str)
    }
    makers = _error_classes(nodes) | REFUSALS | LATER
    found = set()
    for node in nodes:
        if isinstance(node, ast.Call) and _last_name(node.func) in makers:
            found |= set(_given(node, texts))
    return found


def _given(call: ast.Call, texts: dict[str, str]) -> Iterator[str]:
    values = [keyword.value for keyword in call.keywords if keyword.arg == "reason"]
    if _last_name(call.func) in REFUSALS:
        values += call.args[1:2]
    for value in values:
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.value
        elif isinstance(value, ast.Name) and value.id in texts:
            yield texts[value.id]


def _error_classes(nodes: list[ast.AST]) -> set[str]:
    names = {kind.__name__ for kind in FAMILY.values()}
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    before = 0
    while len(names) > before:
        before = len(names)
        names |= {one.name for one in classes if any(_last_name(base) in names for base in one.bases)}
    return names


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def missing(page: str, wanted: Iterable[str]) -> list[str]:
    """Returns the words that a page does not have in backquotes."""
    return sorted(word for word in wanted if f"`{word}`" not in page)


def main() -> None:
    """Check the page.

    Raises:
        SystemExit: A code or a reason is not explained there; the message has a line for each.
    """
    trees = (ast.parse(path.read_text()) for name in SOURCES for path in (ROOT / name).rglob("*.py"))
    wanted = (reasons(trees) | set(FAMILY)) - set(INSIDE)
    if lacking := missing(PAGE.read_text(encoding="utf-8"), wanted):
        sys.exit("\n".join(f"docs/troubleshooting.md does not explain `{word}`" for word in lacking))


if __name__ == "__main__":
    main()
