"""Finds every log line that the code can write: event, level, fields, service. It reads the source.

A call counts if it is that of a logger: `log.warning("...")`, `self._log.debug(...)`,
`self._repeated.warning(...)`.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOGGERS = frozenset({"log", "_log", "_repeated"})
METHODS = {"debug": "debug", "info": "info", "warning": "warning", "error": "error", "critical": "critical",
           "exception": "error", "log": "info"}  # fmt: skip
_CALL = re.compile(rf"\.({'|'.join(METHODS)})\(")  # parsing takes a second, and few files have such calls
SERVICES = ("gateway", "router", "worker", "kvstate")
NOT_FIELDS = frozenset({"exc_info"})


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One call of a logger.

    Attributes:
        event: The text; empty: it is no constant.
        level: The level.
        fields: Names of its fields, as far as the call names them.
        expanded: What the call adds with `**`, as the source has it.
        place: The file and the line.
    """

    event: str
    level: str
    fields: tuple[str, ...]
    expanded: tuple[str, ...]
    place: str

    @property
    def service(self) -> str:
        """The service whose code it is; `any` for what they share."""
        parts = self.place.split("/")
        return parts[1] if parts[0] == "services" else "any"


def log_events(root: Path = ROOT) -> list[LogEvent]:
    """Returns all calls of loggers in services and in what they share."""
    found: list[LogEvent] = []
    for folder in ("services", "shared"):
        for path in sorted((root / folder).rglob("*.py")):
            text = path.read_text()
            if _CALL.search(text):
                found += _events_of(ast.parse(text), str(path.relative_to(root)))
    return found


def _events_of(tree: ast.Module, path: str) -> Iterator[LogEvent]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner, method = node.func.value, node.func.attr
        name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
        if name not in LOGGERS or method not in METHODS or not node.args:
            continue
        text = node.args[1 if method == "log" else 0]
        named = tuple(one.arg for one in node.keywords if one.arg and one.arg not in NOT_FIELDS)
        expanded = tuple(ast.unparse(one.value) for one in node.keywords if one.arg is None)
        event = text.value if isinstance(text, ast.Constant) and isinstance(text.value, str) else ""
        yield LogEvent(event, METHODS[method], named, expanded, f"{path}:{node.lineno}")
