"""The cases of the Open Responses compliance suite, in our own words, on `/v1/responses`.

The published suite (openresponses.org) sends small requests and checks the response object and the order of
stream events; the cases here ask the same of this gateway, over HTTP and over a WebSocket. Tools are required
rather than left to the model, since a small one may answer in text.
"""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai.types.responses import Response

from tests.kits.clients.openai_tools import TOOL
from tests.kits.clients.served import KEY, Served

RESOURCE = {
    "id", "object", "created_at", "completed_at", "status", "incomplete_details", "model",
    "previous_response_id", "instructions", "output", "error", "tools", "tool_choice", "truncation",
    "parallel_tool_calls", "text", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs",
    "temperature", "reasoning", "usage", "max_output_tokens", "max_tool_calls", "store", "background",
    "service_tier", "metadata", "safety_identifier", "prompt_cache_key",
}  # fmt: skip
ENDS = {"completed", "incomplete"}
PIXEL = "data:image/png;base64,iVBORw0KGgo="


def message(text: str, role: str = "user") -> dict[str, Any]:
    """Returns an input item with a plain text."""
    return {"type": "message", "role": role, "content": text}


def checked(raw: Any) -> Response:
    """Returns a response object that has every field of the specification, each of the right type."""
    assert set(raw) >= RESOURCE, RESOURCE - set(raw)
    assert raw["object"] == "response"
    assert raw["output"]
    usage = raw["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert {item["status"] for item in raw["output"] if item["type"] != "reasoning"} <= ENDS
    return Response.model_validate(raw)


def check_events(events: list[dict[str, Any]]) -> Response:
    """Checks numbers, order and nesting of a stream's events; returns the response of the last one."""
    kinds = [event["type"] for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] in {"response.completed", "response.incomplete"}
    texts: dict[tuple[int, int], str] = {}
    for event in events:
        if event["type"] == "response.output_text.delta":
            key = event["output_index"], event["content_index"]
            texts[key] = texts.get(key, "") + event["delta"]
        elif event["type"] == "response.output_text.done":
            assert texts.get((event["output_index"], event["content_index"]), "") == event["text"]
    added = [event["output_index"] for event in events if event["type"] == "response.output_item.added"]
    done = [event["output_index"] for event in events if event["type"] == "response.output_item.done"]
    assert added == done == list(range(len(events[-1]["response"]["output"])))
    return checked(events[-1]["response"])


class OpenResponsesRequests:
    """Requests to `/v1/responses`, and the checks of every answer."""

    @pytest.fixture
    def http(self, served: Served) -> Iterator[httpx.Client]:
        with httpx.Client(
            base_url=served.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=60
        ) as http:
            yield http

    def create(self, http: httpx.Client, served: Served, asked: Any, **more: Any) -> Response:
        body = {"model": served.model, "input": asked, "max_output_tokens": 24, "temperature": 0, **more}
        answer = http.post("/v1/responses", json=body)
        assert answer.status_code == 200, answer.text
        return checked(answer.json())

    def stream(self, http: httpx.Client, served: Served, asked: Any, **more: Any) -> list[dict[str, Any]]:
        body = {"model": served.model, "input": asked, "max_output_tokens": 24, "temperature": 0, **more}
        events = []
        with http.stream("POST", "/v1/responses", json={**body, "stream": True}) as answer:
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/event-stream")
            name = ""
            for line in answer.iter_lines():
                if line.startswith("event: "):
                    name = line[7:]
                elif line.startswith("data: ") and line != "data: [DONE]":
                    events.append(json.loads(line[6:]))
                    assert events[-1]["type"] == name
        return events


class OpenResponsesCases(OpenResponsesRequests):
    """Cases over HTTP."""

    def test_01_a_basic_text_response(self, http: httpx.Client, served: Served) -> None:
        answer = self.create(http, served, [message("Greet me in three words.")], max_output_tokens=64)
        assert answer.status == "completed"
        assert answer.output_text

    def test_02_a_streamed_response(self, http: httpx.Client, served: Served) -> None:
        events = self.stream(http, served, [message("Count to five.")], max_output_tokens=64)
        kinds = [event["type"] for event in events]
        for kind in ("output_item.added", "content_part.added", "output_text.delta", "output_text.done"):
            assert f"response.{kind}" in kinds
        assert kinds.index("response.content_part.done") < kinds.index("response.output_item.done")
        assert check_events(events).output_text

    def test_03_a_system_message(self, http: httpx.Client, served: Served) -> None:
        asked = [message("Talk like a sailor.", "system"), message("Say hello.")]
        assert self.create(http, served, asked).output_text

    def test_06_an_image_is_refused_by_name(self, http: httpx.Client, served: Served) -> None:
        content = [
            {"type": "input_text", "text": "What is this?"},
            {"type": "input_image", "image_url": PIXEL},
        ]
        body = {"model": served.model, "input": [{"type": "message", "role": "user", "content": content}]}
        answer = http.post("/v1/responses", json=body)
        assert answer.status_code == 400
        assert "image" in answer.json()["error"]["message"]

    def test_07_a_conversation_in_the_input(self, http: httpx.Client, served: Served) -> None:
        asked = [message("My name is Ada."), message("Hello Ada!", "assistant"), message("What is my name?")]
        assert self.create(http, served, asked).output_text

    def test_08_a_string_is_a_user_message(self, http: httpx.Client, served: Served) -> None:
        plain = self.create(http, served, "Say hello.")
        assert plain.output_text == self.create(http, served, [message("Say hello.")]).output_text

    def test_09_a_chain_by_previous_response_id(self, http: httpx.Client, served: Served) -> None:
        first = self.create(http, served, "My name is Ada.")
        second = self.create(http, served, "What is my name?", previous_response_id=first.id)
        assert second.previous_response_id == first.id
        assert second.usage is not None
        assert first.usage is not None
        assert second.usage.input_tokens > first.usage.input_tokens + 5

    def test_10_an_unknown_previous_response(self, http: httpx.Client, served: Served) -> None:
        body = {"model": served.model, "input": "Hello.", "previous_response_id": "resp_doesnotexist"}
        answer = http.post("/v1/responses", json=body)
        assert answer.status_code in {400, 404}
        assert answer.json()["error"]["param"] == "previous_response_id"

    def test_11_the_result_of_a_tool(self, http: httpx.Client, served: Served) -> None:
        asked = [
            message("Weather in Oslo?"),
            {"type": "function_call", "call_id": "c1", "name": TOOL["name"], "arguments": '{"city":"Oslo"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "Rain, 4 degrees"},
        ]
        assert self.create(http, served, asked, tools=[TOOL], tool_choice="none").output_text

    def test_12_a_schema(self, http: httpx.Client, served: Served) -> None:
        schema = {
            "type": "object",
            "properties": {"n": {"enum": [1, 2]}},
            "required": ["n"],
            "additionalProperties": False,
        }
        form = {"format": {"type": "json_schema", "name": "number", "schema": schema, "strict": True}}
        assert json.loads(self.create(http, served, "One or two?", text=form).output_text)["n"] in {1, 2}

    def test_13_what_was_asked_is_reported(self, http: httpx.Client, served: Served) -> None:
        answer = self.create(
            http, served, "Hello.", instructions="Be brief.", metadata={"a": "b"}, top_p=0.5, store=False
        )
        assert (answer.instructions, answer.metadata, answer.top_p) == ("Be brief.", {"a": "b"}, 0.5)
        assert answer.max_output_tokens == 24
        assert http.get(f"/v1/responses/{answer.id}").status_code == 404

    def test_14_a_cut_answer_is_incomplete(self, http: httpx.Client, served: Served) -> None:
        answer = self.create(http, served, "Tell a long story about a fox.", max_output_tokens=3)
        assert answer.status == "incomplete"
        assert answer.incomplete_details is not None
        assert answer.incomplete_details.reason == "max_output_tokens"
        check_events(self.stream(http, served, "Tell a long story about a fox.", max_output_tokens=3))

    def test_15_an_unknown_model(self, http: httpx.Client) -> None:
        answer = http.post("/v1/responses", json={"model": "nope", "input": "Hello."})
        assert answer.status_code == 404
        assert "nope" in answer.json()["error"]["message"]
