"""Finds the modules that the client's public module needs, and what they import from elsewhere. Pure AST."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = "shared"


@dataclass(slots=True)
class ModuleClosure:
    """What was found.

    Attributes:
        files: The file of each module of `shared`.
        outside: The modules of `shared` that import each package which is neither ours nor Python's.
    """

    files: dict[str, Path] = field(default_factory=dict)
    outside: dict[str, set[str]] = field(default_factory=dict)


def find_closure(root: Path, first: Path) -> ModuleClosure:
    """Returns everything that a file imports from `shared`, directly or not; `root` has `shared/`."""
    found = ModuleClosure()
    waiting = list(imported_modules(first.read_text()))
    while waiting:
        name = waiting.pop()
        top = name.partition(".")[0]
        path = module_file(root, name)
        if top != SOURCE or path is None or name in found.files:
            continue
        found.files[name] = path
        waiting += [name.rpartition(".")[0]] if "." in name else []
        for other in imported_modules(path.read_text()):
            package = other.partition(".")[0]
            if package == SOURCE:
                waiting.append(other)
            elif package not in sys.stdlib_module_names:
                found.outside.setdefault(package, set()).add(name)
    return found


def module_file(root: Path, name: str) -> Path | None:
    """Returns the file of a module; None if there is no such module."""
    base = root.joinpath(*name.split("."))
    for path in (base / "__init__.py", base.with_suffix(".py")):
        if path.is_file():
            return path
    return None


def imported_modules(source: str) -> Iterator[str]:
    """Yields the names after `import`, and those that `from ... import` may mean."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
