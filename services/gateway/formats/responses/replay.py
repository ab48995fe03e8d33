"""The events of a response that has ended, made from its record. Pure.

The texts come in one piece each. A client that had some of the events already gets the last one only, which
has the whole response.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from services.gateway.formats.fields.custom_tools import arguments_of
from services.gateway.formats.responses.events import ResponseEvent, ResponseEvents
from services.gateway.formats.responses.input_items import CALLS
from shared.messages import AnswerPart, Delta, ReasoningPart, ResponseRecord, TextPart, ToolCallPart, Usage


def replayed(record: ResponseRecord, after: int) -> list[ResponseEvent]:
    """The events after number `after`; -1: from the beginning."""
    whole: dict[str, Any] = msgspec.json.decode(record.body)
    kind = whole["status"] if whole["status"] in {"completed", "incomplete"} else "failed"
    custom = {item["name"] for item in whole["output"] if item["type"] == "custom_tool_call"}
    begun = whole | {"status": "in_progress", "output": [], "usage": None}
    events = ResponseEvents(begun, custom=custom)
    made: list[ResponseEvent] = []
    if after < 0:
        cut = Delta(finish_reason="length" if kind == "incomplete" else "stop")
        deltas = [*_deltas(whole["output"]), cut]
        made = [*events.opening(), *events.deltas(deltas), *events.finish(Usage(), 0)]
    number = made[-1].number + 1 if made else after + 1
    fields = {"type": f"response.{kind}", "sequence_number": number, "response": whole}
    return [*made, ResponseEvent(f"response.{kind}", number, msgspec.json.encode(fields))]


def _deltas(items: Iterable[dict[str, Any]]) -> Iterator[Delta]:
    for index, item in enumerate(items):
        part: AnswerPart
        if item["type"] in CALLS:
            custom = item["type"] == "custom_tool_call"
            arguments = arguments_of(item["input"]) if custom else item["arguments"]
            part = ToolCallPart(index=index, call_id=item["call_id"], name=item["name"], arguments=arguments)
        else:
            text = "".join(one["text"] for one in item["content"])
            part = TextPart(text=text) if item["type"] == "message" else ReasoningPart(text=text)
        yield Delta(parts=[part])
