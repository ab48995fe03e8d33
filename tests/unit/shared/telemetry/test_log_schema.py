"""Every call of a logger in the source, and the check of written lines, follow the schema of log lines."""

import pytest

from shared.telemetry.logs.schema import FIELDS, MAX_EVENT, problems_of
from tools.docs.logs import LogEvent, log_events

EVENTS = log_events()
# what calls add with `**`; tests of whole stacks see these fields
EXPANDED = {"_ids(stream)", "generation.log_ids", "rank", "figures", "fields"}
LINE = {
    "timestamp": "2026-11-23T06:00:00.123456Z",
    "level": "info",
    "event": "ready",
    "service": "router",
    "instance": "i1",
}


def test_there_are_calls_to_check() -> None:
    assert len(EVENTS) > 120
    assert {"gateway", "router", "worker", "kvstate", "any"} == {one.service for one in EVENTS}


@pytest.mark.parametrize("one", EVENTS, ids=lambda one: one.location)
def test_a_call_has_a_fixed_event_and_fields_of_the_schema(one: LogEvent) -> None:
    through = one.location.startswith("shared/telemetry/")  # passes on what others say
    assert one.event or through, "what varies belongs into other fields"
    assert len(one.event) <= MAX_EVENT
    assert set(one.fields) - FIELDS.keys() == set(), "add it to shared/telemetry/logs/schema.py"
    assert set(one.expanded) <= EXPANDED


def test_a_line_of_the_schema_has_no_problems() -> None:
    assert problems_of(LINE) == []
    more = {
        "after_s": 1,
        "rank": 0,
        "tls": False,
        "left_out": ["a"],
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
    }
    assert problems_of(LINE | more) == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"instance": ""}, "no field 'instance'"),
        ({"colour": "red"}, "'colour' is not in the schema"),
        ({"rank": "0"}, "'rank' is no whole number, but str"),
        ({"rank": True}, "'rank' is no whole number, but bool"),
        ({"tls": 1}, "'tls' is no true or false, but int"),
        ({"left_out": [1]}, "'left_out' is no texts"),
        ({"exception": ["text"]}, "'exception' is no stacks"),
        ({"timestamp": "23/Nov/2026"}, "not in ISO 8601"),
        ({"level": "notice"}, "no level 'notice'"),
        ({"service": "demo"}, "no service 'demo'"),
        ({"trace_id": "0af7"}, "no id of a trace"),
        ({"event": "x" * (MAX_EVENT + 1)}, "too long"),
    ],
)
def test_what_is_wrong_with_a_line_is_said(changes: dict[str, object], says: str) -> None:
    (problem,) = problems_of(LINE | changes)
    assert says in problem
