"""Checks that files, folders, symbols, sections and decisions named in prose exist.

Prose is every page in Markdown and every docstring. Run as `python -m tools.docs.named_files`; it fails with
one line for each name that does not resolve. A name in backquotes is checked if it looks like a part of this
repository (see `NamedFiles.unresolved`); others, such as the files of a model directory, are left alone.
"""

import ast
import os
import re
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = frozenset({
    ".git", ".venv", ".ryz", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis",
    ".import_linter_cache", "__pycache__", "build", "dist", "node_modules",
})  # fmt: skip
# A name with one of these endings is a file of ours, wherever it is.
OURS = (".py", ".md", ".h", ".cpp", ".lua", ".mjs", ".proto")
# Names that look like ours: files of other projects, an example's file, a field of requests.
FOREIGN = frozenset({
    "README.md", "listen.py", "llama.cpp", "configuration_*.py", "vllm/v1/sample/sampler.py", "tools.format",
})  # fmt: skip
Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
PLACEHOLDER = re.compile(r"[<>{}$~…\"'(),=|]|\.\.\.|\bNNNN\b|\bNAME\b|\bPATH\b|\bDIR\b")
QUOTED = re.compile(r"`+([^`\n]+)`+")
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]\n]*(?:\n[^\]\n]*)?\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
DECISION = re.compile(r"\b[Dd]ecisions? (\d{4})\b")
DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")


class NamedFiles:
    """The files, modules and classes of a source tree, and which names in a text are none of them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files: list[str] = []
        folders: set[str] = set()
        for folder, names, files in os.walk(root):
            names[:] = sorted(set(names) - SKIPPED)
            relative = Path(folder).relative_to(root).as_posix()
            prefix = "" if relative == "." else relative + "/"
            folders.update(prefix + name for name in names)
            self.files += [prefix + name for name in files]
        self.top = {folder for folder in folders if "/" not in folder}
        self.tails = {tail for path in (*self.files, *folders) for tail in _tails(path)}
        self._heads = {tail.partition("/")[0] for folder in folders for tail in _tails(folder)}

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        """The syntax of each Python file, by its path."""
        return {
            path: ast.parse((self.root / path).read_text(), path)
            for path in self.files
            if path.endswith(".py")
        }

    @cached_property
    def _classes(self) -> dict[str, list[ast.ClassDef]]:
        classes: dict[str, list[ast.ClassDef]] = {}
        for tree in self.trees.values():
            for node in _definitions(tree):
                if isinstance(node, ast.ClassDef):
                    classes.setdefault(node.name, []).append(node)
        return classes

    def _has_member(self, name: str, member: str) -> bool:
        """True if a class of this name or a base defines the member; also if a base is a library's."""
        waiting, seen = [name], set[str]()
        while waiting:
            one = waiting.pop().partition("[")[0].rpartition(".")[2]
            if one in seen or one in {"object", "Generic", "Protocol", "ABC"}:
                continue
            seen.add(one)
            nodes = self._classes.get(one, [])
            if not nodes or any(member in _defined(node) for node in nodes):
                return True
            waiting += [ast.unparse(base) for node in nodes for base in node.bases]
        return False

    def unresolved(self, text: str) -> Iterator[str]:
        """Yields the names in backquotes that look like parts of this tree and are none.

        Checked are paths that end like a source file or begin with a folder of the tree, a path with the name
        of a symbol behind two colons, dotted names that begin with a package of the tree, and `Class.member`
        of its classes. A path may leave out its first folders. A `*` matches any letters.

        Args:
            text: Markdown or a docstring.
        """
        for match in QUOTED.finditer(FENCE.sub("", text)):
            words = match[1].split()
            for word in words:
                name = word.strip(".,:;")
                if PLACEHOLDER.search(name) or name.startswith(("/", "-", "http:", "https:")):
                    continue
                if not self._resolves(name, alone=len(words) == 1):
                    yield name

    def _resolves(self, name: str, *, alone: bool) -> bool:
        if name in FOREIGN:
            return True
        path, _, symbol = name.partition("::")
        first, _, rest = path.partition("/")
        if (rest and (first in self.top or path.endswith(OURS) or (alone and path.endswith("/")))) or (
            alone and path.endswith(OURS)
        ):
            if rest and first not in self._heads and not path.endswith(OURS):
                return True  # no folder of ours
            return self._has_path(path.rstrip("/")) and (not symbol or self._has_symbol(path, symbol))
        if DOTTED.fullmatch(name):
            first, *others = name.split(".")
            if first in self.top:
                return self._has_module_name(name)
            if first in self._classes:
                return self._has_member(first, others[0])
        return True

    def _has_path(self, path: str) -> bool:
        if "*" not in path:
            return path in self.tails
        pattern = re.compile(re.escape(path).replace(r"\*", r"[^/]*"))
        return any(pattern.fullmatch(tail) for tail in self.tails)

    def _has_symbol(self, path: str, symbol: str) -> bool:
        names = symbol.split("::")
        return any(
            all(any(getattr(node, "name", "") == name for node in ast.walk(tree)) for name in names)
            for file, tree in self.trees.items()
            if file == path or file.endswith("/" + path)
        )

    def _has_module_name(self, name: str) -> bool:
        parts = name.split(".")
        for length in range(len(parts), 0, -1):
            module = "/".join(parts[:length])
            rest = parts[length:]
            for file in (f"{module}.py", f"{module}/__init__.py"):
                if file in self.trees:
                    return not rest or rest[0] in _defined(self.trees[file])
            if module in self.tails and not rest:
                return True
        return False

    def broken_links(self, page: str, text: str) -> Iterator[str]:
        """Yields the relative links of a page whose file or section does not exist.

        Args:
            page: The page's path in the tree.
            text: Its Markdown.
        """
        for match in LINK.finditer(FENCE.sub("", text)):
            target, _, section = match[1].partition("#")
            if ":" in target or target.startswith("/"):
                continue
            file = self.root / page
            if target:
                file = Path(os.path.normpath(file.parent / target))
            if not file.exists() or (section and not _has_section(file, section)):
                yield match[1]

    def missing_decisions(self, text: str) -> Iterator[str]:
        """Yields the numbers of decisions that a text names and that have no record.

        Args:
            text: Markdown or a docstring.
        """
        for match in DECISION.finditer(text):
            if not any(tail.startswith(f"decisions/{match[1]}-") for tail in self.tails):
                yield match[0]

    def problems(self) -> list[str]:
        """Checks all pages and docstrings; returns a line for each name that does not resolve."""
        found = []
        for path in sorted(self.files):
            if path.endswith(".md"):
                text = (self.root / path).read_text()
                names = [
                    *self.unresolved(text),
                    *self.broken_links(path, text),
                    *self.missing_decisions(text),
                ]
                found += [f"{path}: {name}" for name in names]
        for path, tree in sorted(self.trees.items()):
            for line, text in _docstrings(tree):
                names = [*self.unresolved(text), *self.missing_decisions(text)]
                found += [f"{path}:{line}: {name}" for name in names]
        return found


def _tails(path: str) -> Iterator[str]:
    parts = path.split("/")
    return ("/".join(parts[start:]) for start in range(len(parts)))


def _defined(node: ast.Module | ast.ClassDef) -> set[str]:
    """Returns the names that a module or class defines or imports, attributes of `self` included."""
    names: set[str] = set()
    for child in ast.walk(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(child.name)
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            names.add(child.id)
        elif isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store):
            names.add(child.attr)
        elif isinstance(child, ast.Import | ast.ImportFrom):
            names.update((alias.asname or alias.name).partition(".")[0] for alias in child.names)
        elif isinstance(child, ast.Constant) and isinstance(child.value, str) and child.value.isidentifier():
            names.add(child.value)  # __slots__, __all__
    return names


def _definitions(node: Definition) -> Iterator[Definition]:
    """Yields a module, class or function and those in its body."""
    yield node
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _definitions(child)


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in _definitions(tree):
        text = ast.get_docstring(node, clean=False)
        if text is not None:
            yield node.body[0].lineno, text


def _has_section(page: Path, section: str) -> bool:
    return page.suffix != ".md" or section in _sections(page.read_text())


def _sections(text: str) -> set[str]:
    """Returns the anchors that GitHub makes of a page's headings."""
    anchors: set[str] = set()
    for match in HEADING.finditer(FENCE.sub("", text)):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match[1]).replace("`", "").lower()
        anchor = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
        count = 0
        name = anchor
        while name in anchors:
            count += 1
            name = f"{anchor}-{count}"
        anchors.add(name)
    return anchors


def main() -> None:
    """Check the repository.

    Raises:
        SystemExit: A name does not resolve; the message has a line for each.
    """
    found = NamedFiles(ROOT).problems()
    if found:
        sys.exit("\n".join((*found, "these names do not exist: mend the prose, or the name")))


if __name__ == "__main__":
    main()
