"""One line of a log: its time, its level, and whether it is asked for. Pure.

Services write JSON, nats-server and Redis formats of their own. A line without a time, such as those of a
fatal signal, has the time of the line before it.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

LEVELS = ("debug", "info", "warning", "error", "critical")
_IDS = ("request_id", "shown_id", "trace_id", "session_id", "response_id")
_OURS = frozenset({"service", "instance"})  # the same in each line of a file
_NATS = re.compile(r"\[\d+\] (\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d+) \[(\w{3})\] (.*)")
_REDIS = re.compile(r"\d+:\w (\d\d \w{3} \d{4} \d\d:\d\d:\d\d\.\d+) ([.\-*#]) (.*)")
_SUPERVISOR = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00) (.*)")
_TROUBLE = re.compile(r" died | did not end | cannot be written ")  # in the supervisor's lines
_NATS_LEVELS = {
    "DBG": "debug",
    "TRC": "debug",
    "INF": "info",
    "WRN": "warning",
    "ERR": "error",
    "FTL": "error",
}
_REDIS_LEVELS = {".": "debug", "-": "info", "*": "info", "#": "warning"}


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line.

    Attributes:
        time_s: Seconds since 1970.
        service: The name of the file that it stands in, without its ending.
        level: One of `LEVELS`.
        raw: The line as it was written.
        is_span: It is a span of `RYZ_TRACE_EXPORT=console`.
    """

    time_s: float
    service: str
    level: str
    event: str
    raw: str
    fields: dict[str, Any] = field(default_factory=dict)
    is_span: bool = False

    def has_id(self, wanted: str) -> bool:
        """Returns whether one of its ids is this one, or begins with it as those of requests do."""
        if any(str(self.fields.get(name, "")).startswith(wanted) for name in _IDS):
            return True
        return wanted in self.raw and not self.fields  # of another program: ids stand in the text

    def is_of_rank(self, rank: int) -> bool:
        """Returns whether a rank of this number wrote it, or its leader wrote it about such a rank."""
        return self.fields.get("rank") == rank

    def is_of_group(self, group: str) -> bool:
        """Returns whether the group's leader or a rank wrote it, or another service about this group."""
        process = f"worker-{group}"
        if self.service == process or group in (self.fields.get("group"), self.fields.get("lost_group")):
            return True
        # the supervisor and the broker write text
        return not self.fields and re.search(rf"\b{re.escape(process)}\b(?!-)", self.event) is not None

    def shown_fields(self) -> Iterator[tuple[str, str]]:
        """Gives the fields as text, without those that are the same in each line of its file."""
        for name, value in self.fields.items():
            if name not in _OURS and not (name == "group" and self.service == f"worker-{value}"):
                yield name, value if isinstance(value, str) else json.dumps(value)

    def reaches(self, level: str) -> bool:
        """Returns whether it is of this level or a higher one."""
        return LEVELS.index(self.level) >= LEVELS.index(level)


def plain(raw: str) -> str:
    """Returns a line as text for people: level, event and fields of one of ours, others as they are."""
    line = parse_line(raw, "", 0.0)
    if not line.fields:
        return raw
    return " ".join(
        (f"{line.level}: {line.event}", *(f"{name}={text}" for name, text in line.shown_fields()))
    )


def parse_line(raw: str, service: str, before_s: float) -> LogLine:
    """Reads one line.

    Args:
        raw: The line without its end.
        service: The service that wrote it.
        before_s: The time of the line before it; lines of one file do not go back in time.
    """
    if raw.startswith("{"):
        try:
            found = json.loads(raw)
        except ValueError:
            found = None
        if isinstance(found, dict):
            return _ours(found, raw, service, before_s)
    for pattern, form, levels in (
        (_NATS, "%Y/%m/%d %H:%M:%S.%f", _NATS_LEVELS),
        (_REDIS, "%d %b %Y %H:%M:%S.%f", _REDIS_LEVELS),
    ):
        match = pattern.fullmatch(raw)
        if match is not None:
            time_s = _local(match[1], form, before_s)
            return LogLine(max(time_s, before_s), service, levels.get(match[2], "info"), match[3], raw)
    match = _SUPERVISOR.fullmatch(raw)
    if match is not None:
        time_s, level = (
            datetime.fromisoformat(match[1]).timestamp(),
            "warning" if _TROUBLE.search(raw) else "info",
        )
        return LogLine(max(time_s, before_s), service, level, match[2], raw)
    return LogLine(before_s, service, "info", raw, raw)


def _ours(found: dict[str, Any], raw: str, service: str, before_s: float) -> LogLine:
    is_span = "event" not in found and isinstance(found.get("context"), dict)
    if is_span:
        found = _span(found)
    level = str(found.pop("level", "info"))
    event = str(found.pop("event", ""))
    try:
        time_s = datetime.fromisoformat(str(found.pop("timestamp", ""))).timestamp()
    except ValueError:
        time_s = before_s
    level = level if level in LEVELS else "info"
    return LogLine(max(time_s, before_s), service, level, event, raw, fields=found, is_span=is_span)


def _span(found: dict[str, Any]) -> dict[str, Any]:
    """A span of `RYZ_TRACE_EXPORT=console` as the fields of a line, at the time of its end."""
    attributes = found.get("attributes")
    try:
        begin, end = (datetime.fromisoformat(str(found.get(side))) for side in ("start_time", "end_time"))
        spent: dict[str, Any] = {"duration_ms": round((end - begin).total_seconds() * 1000, 3)}
    except ValueError:
        spent = {}
    return {
        "timestamp": found.get("end_time"),
        "level": "debug",
        "event": f"span {found.get('name', '')}",
        **spent,
        "trace_id": str(found["context"].get("trace_id", "")).removeprefix("0x"),
        **{name: value for name, value in (attributes or {}).items() if name not in {"event", "level"}},
    }


def _local(text: str, form: str, before_s: float) -> float:
    try:
        return datetime.strptime(text, form).timestamp()  # both write the machine's local time
    except ValueError:
        return before_s
