"""The log lines that the services of a stack have written so far."""

import json
from typing import Any

from shared.telemetry.logs.schema import problems_of
from tests.kits.e2e.stack import Stack
from tests.kits.waiting import wait_for


def lines_of(stack: Stack, request_id: str) -> list[dict[str, Any]]:
    """The log lines of one request in all services."""
    found = []
    for path in stack.state_dir.logs.glob("*.log"):
        for text in path.read_text().splitlines():
            line = json.loads(text) if text.startswith('{"') else {}
            if str(line.get("request_id", "")).startswith(request_id):
                found.append(line)
    return found


def wait_for_lines(stack: Stack, request_id: str, event: str) -> list[dict[str, Any]]:
    """The same, once there is a line with this event."""
    wait_for(lambda: any(one["event"] == event for one in lines_of(stack, request_id)), f"the line {event}")
    return lines_of(stack, request_id)


def check_lines(stack: Stack) -> tuple[set[str], dict[str, list[str]]]:
    """Returns the events that services have logged so far, and the lines that do not follow the schema."""
    events, wrong = set[str](), dict[str, list[str]]()
    for path in stack.state_dir.logs.glob("*.log"):
        if path.stem.startswith(("nats", "redis", "supervisor")):
            continue  # formats of their own
        for text in path.read_text().splitlines():
            line = json.loads(text)
            if "event" not in line and "parent_id" in line:
                continue  # a span of the console exporter
            events.add(line["event"])
            if problems := problems_of(line):
                wrong[text] = problems
    return events, wrong
