"""Tests use what the code offers in public; the accesses to private names that are left are counted."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[2]
# Accesses that are left; lower it with each one that goes.
MOST = 13
# Public in spite of their underscore by the documentation of Python; the last one by that of anthropic.
DOCUMENTED = {"_asdict", "_exit", "_fields", "_fields_", "_make", "_replace", "_request_id"}
BY_NAME = {"delattr", "getattr", "hasattr", "setattr"}  # as functions, or as methods of pytest's monkeypatch
OWN = {"self", "cls", "super"}
# What a file has that accesses any; others need not be parsed.
SIGNS = re.compile(
    r"""(?<!self)(?<!cls)\._[a-zA-Z]|["']_[a-zA-Z]|^ *from .* import (?:\([^)]*|.*)\b_[a-zA-Z]""",
    re.MULTILINE,
)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in DOCUMENTED


def is_own(node: ast.expr) -> bool:
    """True if an object reads its own attribute, or that of its base class."""
    called = node.func if isinstance(node, ast.Call) else node
    return isinstance(called, ast.Name) and called.id in OWN


def named_by(node: ast.AST) -> list[str]:
    """The names that an expression or an import takes from another object."""
    if isinstance(node, ast.Attribute) and not is_own(node.value):
        return [node.attr]
    if isinstance(node, ast.ImportFrom):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.Call):
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        texts = [argument.value for argument in node.args[:2] if isinstance(argument, ast.Constant)]
        return [str(text).rpartition(".")[2] for text in texts if name in BY_NAME]
    return []


def accesses(where: str, text: str) -> Iterator[str]:
    if not SIGNS.search(text):
        return
    for node in ast.walk(ast.parse(text)):
        yield from (f"{where}:{node.lineno}: {name}" for name in named_by(node) if is_private(name))  # type: ignore[attr-defined]


def test_few_private_names_are_used() -> None:
    found = [
        access
        for path in sorted(TESTS.rglob("*.py"))
        for access in accesses(str(path.relative_to(TESTS)), path.read_text())
    ]
    assert len(found) <= MOST, "\n".join(found)


def test_each_kind_of_access_is_found() -> None:
    code = """
from services.part import _rule, rule
import services.part as part

made._table[3] += 1
made.parts._held.clear()
getattr(made, "_state")
monkeypatch.setattr(part, "_LIMIT_S", 0.1)
monkeypatch.setattr("services.part._LIMIT_S", 0.1)

class Own(Base):
    def _draw(self):
        super()._draw()
        self._drawn = record._replace(name="_x")
        log(self, "_y")
"""
    assert sorted(accesses("x.py", code)) == [
        "x.py:2: _rule",
        "x.py:5: _table",
        "x.py:6: _held",
        "x.py:7: _state",
        "x.py:8: _LIMIT_S",
        "x.py:9: _LIMIT_S",
    ]
