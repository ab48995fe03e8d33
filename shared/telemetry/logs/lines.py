"""Writes one log line as JSON, within a bound.

Docker's `json-file` driver cuts lines after 16 KiB, and a line that is cut is no JSON any more.
"""

import json
from typing import Any

MAX_LINE_BYTES = 16_000
MAX_TEXT = 2_000  # characters of one field
MAX_ITEMS = 32  # of a list in a field
MAX_FRAMES = 24  # of the stack of an exception
_SHORT_TEXT, _SHORT_FRAMES = 300, 6
_CUT = " ..."


def render_line(_: Any, __: str, event: Any) -> str:
    """Returns the line: the last processor."""
    text = _dump({name: clipped(value) for name, value in event.items()})
    if len(text) <= MAX_LINE_BYTES:
        return text
    short = {name: clipped(value, _SHORT_TEXT) for name, value in event.items() if name != "exception"}
    exception = event.get("exception")
    if isinstance(exception, list):
        short["exception"] = [_shortened(one) for one in exception[:2] if isinstance(one, dict)]
    short["cut"] = True
    text = _dump(short)
    if len(text) <= MAX_LINE_BYTES:
        return text
    few = ("timestamp", "level", "event", "service", "instance", "request_id", "trace_id")
    return _dump({name: clipped(event[name], _SHORT_TEXT) for name in few if name in event} | {"cut": True})


def clipped(value: Any, limit: int = MAX_TEXT) -> Any:
    """Returns a value of a field, with long texts and long lists cut."""
    if isinstance(value, str):
        return value if len(value) <= limit else value[:limit] + _CUT
    if isinstance(value, list | tuple):
        return [clipped(one, limit) for one in value[:MAX_ITEMS]]
    if isinstance(value, dict):
        return {str(name): clipped(one, limit) for name, one in list(value.items())[: 2 * MAX_ITEMS]}
    return value


def _shortened(exception: dict[str, Any]) -> dict[str, Any]:
    """An exception with the frames next to where it was raised."""
    return {
        "exc_type": clipped(str(exception.get("exc_type", "")), _SHORT_TEXT),
        "exc_value": clipped(str(exception.get("exc_value", "")), _SHORT_TEXT),
        "frames": clipped(list(exception.get("frames") or [])[-_SHORT_FRAMES:], _SHORT_TEXT),
    }


def _dump(event: dict[str, Any]) -> str:
    return json.dumps(event, default=str, separators=(", ", ": "))
