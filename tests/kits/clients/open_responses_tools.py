"""The cases of Open Responses in which a tool is called; see `open_responses.py`."""

import json

import httpx

from tests.kits.clients.open_responses import OpenResponsesRequests, check_events, message
from tests.kits.clients.openai_tools import TOOL
from tests.kits.clients.served import Served


class OpenResponsesToolCases(OpenResponsesRequests):
    """Cases of tool calls over HTTP."""

    def test_04_a_tool_call(self, http: httpx.Client, served: Served) -> None:
        answer = self.create(
            http,
            served,
            [message("Weather in Oslo?")],
            tools=[TOOL],
            tool_choice="required",
            max_output_tokens=80,
        )
        (call,) = [item for item in answer.output if item.type == "function_call"]
        assert call.name == TOOL["name"]
        assert isinstance(json.loads(call.arguments), dict)

    def test_05_a_streamed_tool_call(self, http: httpx.Client, served: Served) -> None:
        events = self.stream(
            http,
            served,
            [message("Weather in Oslo?")],
            tools=[TOOL],
            tool_choice="required",
            max_output_tokens=80,
        )
        kinds = [event["type"] for event in events]
        assert any(
            e["type"] == "response.output_item.added" and e["item"]["type"] == "function_call" for e in events
        )
        assert any(
            e["type"] == "response.output_item.done" and e["item"]["type"] == "function_call" for e in events
        )
        pieces = "".join(e["delta"] for e in events if e["type"] == "response.function_call_arguments.delta")
        (done,) = [e for e in events if e["type"] == "response.function_call_arguments.done"]
        assert pieces == done["arguments"]
        assert kinds.count("response.function_call_arguments.delta") > 1
        check_events(events)
