"""OpenAI's SDK: tools and structured answers of chat completions, and tools of responses."""

import json
from typing import Annotated, Any, Literal

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam
from pydantic import BaseModel, Field

from tests.kits.clients.openai_chat import HELLO
from tests.kits.clients.openai_tests import OpenAITests
from tests.kits.clients.served import Served

WEATHER: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the weather in Oslo?"}]
WEATHER_TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather of a city.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 12},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
TOOL: Any = {"type": "function", **WEATHER_TOOL["function"]}
UNITS = {"celsius", "fahrenheit"}


class Verdict(BaseModel):
    """An answer with a fixed shape."""

    name: Literal["Ada", "Bo"]
    score: Literal[1, 2, 3]
    tags: Annotated[list[Literal["a", "b"]], Field(max_length=2)]


def arguments_of(answer: ChatCompletion) -> dict[str, Any]:
    """Returns the arguments of the one call of an answer."""
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert call.id
    assert call.function.name == "get_weather"
    arguments: dict[str, Any] = json.loads(call.function.arguments)
    assert set(arguments) == {"city", "unit"}
    assert arguments["unit"] in UNITS
    return arguments


class OpenAIToolTests(OpenAITests):
    """Tools and `parse` of chat completions, with OpenAI's SDK."""

    def test_parse_returns_an_object_of_the_class(self, openai: OpenAI, served: Served) -> None:
        answer = openai.chat.completions.parse(
            model=served.model, messages=HELLO, response_format=Verdict, max_tokens=120, temperature=1, seed=3
        )
        assert isinstance(answer.choices[0].message.parsed, Verdict)

    def test_the_parsing_stream_ends_with_the_object(self, openai: OpenAI, served: Served) -> None:
        with openai.chat.completions.stream(
            model=served.model, messages=HELLO, response_format=Verdict, max_tokens=120, temperature=1, seed=3
        ) as stream:
            for _ in stream:
                pass
            parsed = stream.get_final_completion().choices[0].message.parsed
        whole = openai.chat.completions.parse(
            model=served.model, messages=HELLO, response_format=Verdict, max_tokens=120, temperature=1, seed=3
        )
        assert parsed == whole.choices[0].message.parsed

    @pytest.mark.parametrize(
        "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}]
    )
    def test_a_tool_is_called(self, openai: OpenAI, served: Served, choice: Any) -> None:
        answer = openai.chat.completions.create(
            model=served.model,
            messages=WEATHER,
            tools=[WEATHER_TOOL],
            tool_choice=choice,
            parallel_tool_calls=False,
            temperature=0,
            max_tokens=80,
        )
        arguments_of(answer)

    def test_a_streamed_tool_call_is_the_whole_one(self, openai: OpenAI, served: Served) -> None:
        kept: Any = {
            "model": served.model, "messages": WEATHER, "tools": [WEATHER_TOOL], "tool_choice": "required",
            "temperature": 1, "seed": 9, "max_tokens": 80, "parallel_tool_calls": False,
        }  # fmt: skip
        whole = openai.chat.completions.create(**kept)
        pieces = []
        with openai.chat.completions.stream(**kept) as stream:
            for event in stream:
                if event.type == "tool_calls.function.arguments.delta":
                    pieces.append(event.arguments_delta)
            final = stream.get_final_completion()
        assert whole.choices[0].message.tool_calls
        (call,) = whole.choices[0].message.tool_calls
        assert call.type == "function"
        assert "".join(pieces) == call.function.arguments
        assert final.choices[0].finish_reason == "tool_calls"
        assert arguments_of(whole) == arguments_of(final)

    def test_the_answer_to_a_tools_result_is_text(self, openai: OpenAI, served: Served) -> None:
        call = {
            "id": "call_1",
            "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'},
        }
        messages: Any = [
            *WEATHER,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "Rain, 4 degrees"},
        ]
        answer = openai.chat.completions.create(
            model=served.model,
            messages=messages,
            tools=[WEATHER_TOOL],
            tool_choice="none",
            temperature=0,
            max_tokens=12,
        )
        assert answer.choices[0].message.content
        assert not answer.choices[0].message.tool_calls


class OpenAIResponsesToolTests(OpenAITests):
    """Tools of responses, with OpenAI's SDK."""

    def test_a_tool_is_called_and_its_result_is_taken(self, openai: OpenAI, served: Served) -> None:
        asked = openai.responses.create(
            model=served.model, input="Weather in Oslo?", tools=[TOOL], tool_choice="required", temperature=0
        )
        (call,) = [item for item in asked.output if item.type == "function_call"]
        assert json.loads(call.arguments)["unit"] in UNITS
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain"}
        answer = openai.responses.create(
            model=served.model,
            input=[result],
            previous_response_id=asked.id,
            max_output_tokens=16,
            temperature=0,
        )
        assert answer.previous_response_id == asked.id
        assert answer.output_text

    def test_a_streamed_call_has_its_arguments_in_pieces(self, openai: OpenAI, served: Served) -> None:
        with openai.responses.stream(
            model=served.model, input="Weather in Oslo?", tools=[TOOL], tool_choice="required", temperature=0
        ) as stream:
            pieces = "".join(
                event.delta for event in stream if event.type == "response.function_call_arguments.delta"
            )
            (call,) = [item for item in stream.get_final_response().output if item.type == "function_call"]
        assert json.loads(pieces) == json.loads(call.arguments)
