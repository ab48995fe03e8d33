"""Renames the package in the imports of a module, and leaves everything else as it is. Pure.

So the distribution does not collide with a package of its user that is called `shared`.
"""

import ast
import re

from tools.client_package.module_closure import SOURCE

PACKAGE = "ryzanstein_client"
LOGS = "standard_logs"
_FROM = re.compile(rf"from\s+{SOURCE}\b")
_NAMED = re.compile(rf"\b{SOURCE}(?=\.[a-z_]+)")


def rewrite_imports(source: str, where: str) -> str:
    """Returns the source with imports of `shared` from the package, and of structlog from its stand-in.

    Args:
        where: Its name, for errors.

    Raises:
        ValueError: It imports in a way that cannot be renamed in place, or names a module in a string.
    """
    lines = source.splitlines(keepends=True)
    tree = ast.parse(source)
    docstrings = {id(text) for node in ast.walk(tree) if (text := _docstring(node)) is not None}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and _is_ours(node.module or ""):
            lines[node.lineno - 1] = _FROM.sub(f"from {PACKAGE}", lines[node.lineno - 1], count=1)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if _is_ours(alias.name):
                    raise ValueError(f"{where}:{node.lineno}: write `from {SOURCE}... import ...`")
                if alias.name == "structlog":
                    line = lines[node.lineno - 1]
                    lines[node.lineno - 1] = line.replace(
                        "import structlog", f"from {PACKAGE} import {LOGS} as structlog"
                    )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _NAMED.search(node.value):
            if id(node) not in docstrings:
                raise ValueError(f"{where}:{node.lineno}: a string names a module of `{SOURCE}`")
            last = node.end_lineno or node.lineno
            for number in range(node.lineno - 1, last):
                lines[number] = _NAMED.sub(PACKAGE, lines[number])
    return "".join(lines)


def _is_ours(module: str) -> bool:
    return module == SOURCE or module.startswith(f"{SOURCE}.")


def _docstring(node: ast.AST) -> ast.expr | None:
    """The docstring of a node, or what stands where attributes have theirs."""
    return node.value if isinstance(node, ast.Expr) else None
