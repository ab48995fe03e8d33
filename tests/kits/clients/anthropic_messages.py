"""Anthropic's SDK: messages, streams, tools, counts and errors."""

from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import Anthropic, AuthenticationError, BadRequestError, NotFoundError

from tests.kits.clients.openai_tools import UNITS
from tests.kits.clients.served import KEY, Served

HELLO: Any = [{"role": "user", "content": "Hello, my name is Ada."}]
ANY = {"type": "any", "disable_parallel_tool_use": True}
TOOL: Any = {
    "name": "get_weather",
    "description": "Tells the weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 12},
            "unit": {"type": "string", "enum": sorted(UNITS)},
        },
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
}


def prompt_tokens(usage: Any) -> int:
    """The three counts of input, which add up to the prompt."""
    total: int = usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens
    return total


class AnthropicTests:
    """Tests with Anthropic's SDK."""

    @pytest.fixture
    def anthropic(self, served: Served) -> Iterator[Anthropic]:
        with Anthropic(base_url=served.url, api_key=KEY, max_retries=0, timeout=60) as client:
            yield client


class AnthropicMessagesTests(AnthropicTests):
    """`messages` of Anthropic's SDK."""

    def test_a_streamed_message_is_the_whole_one(self, anthropic: Anthropic, served: Served) -> None:
        kept: Any = {
            "model": served.model, "messages": HELLO, "system": "Be brief.", "max_tokens": 24,
            "extra_body": {"temperature": 0},
        }  # fmt: skip
        whole = anthropic.messages.create(**kept)
        with anthropic.messages.stream(**kept) as stream:
            pieces = "".join(stream.text_stream)
            final = stream.get_final_message()
        (text,) = whole.content
        assert text.type == "text"
        assert pieces == text.text != ""
        assert [block.to_dict()["text"] for block in final.content] == [text.text]
        assert final.stop_reason == whole.stop_reason
        assert prompt_tokens(final.usage) == prompt_tokens(whole.usage)
        assert final.usage.output_tokens == whole.usage.output_tokens

    def test_the_result_of_a_tool_is_taken(self, anthropic: Anthropic, served: Served) -> None:
        messages: Any = [
            *HELLO,
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Oslo"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Rain"},
            ]},
        ]  # fmt: skip
        answer = anthropic.messages.create(model=served.model, messages=messages, max_tokens=12, tools=[TOOL])
        assert answer.content

    def test_tokens_are_counted_as_they_are_billed(self, anthropic: Anthropic, served: Served) -> None:
        counted = anthropic.messages.count_tokens(model=served.model, messages=HELLO)
        made = anthropic.messages.create(model=served.model, messages=HELLO, max_tokens=1)
        assert counted.input_tokens == prompt_tokens(made.usage) > 0

    def test_stop_sequences_are_named(self, anthropic: Anthropic, served: Served) -> None:
        kept: Any = {"model": served.model, "messages": HELLO, "extra_body": {"temperature": 0}}
        (block,) = anthropic.messages.create(**kept, max_tokens=12).content
        assert block.type == "text"
        stop = block.text[4:7]
        cut = anthropic.messages.create(**kept, max_tokens=12, stop_sequences=[stop])
        assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)

    def test_errors_have_the_sdks_classes(self, anthropic: Anthropic, served: Served) -> None:
        with pytest.raises(NotFoundError):
            anthropic.messages.create(model="nope", messages=HELLO, max_tokens=4)
        with pytest.raises(BadRequestError, match="max_tokens"):
            anthropic.messages.create(model=served.model, messages=HELLO, max_tokens=-1)
        with pytest.raises(AuthenticationError):
            Anthropic(base_url=served.url, api_key="wrong", max_retries=0).messages.create(
                model=served.model, messages=HELLO, max_tokens=4
            )


class AnthropicToolTests(AnthropicTests):
    """Tools of Anthropic's SDK."""

    @pytest.mark.parametrize("choice", [ANY, {"type": "tool", "name": "get_weather"}])
    def test_a_tool_is_called_the_same_in_a_stream(
        self, anthropic: Anthropic, served: Served, choice: Any
    ) -> None:
        kept: Any = {
            "model": served.model, "messages": HELLO, "max_tokens": 80, "extra_body": {"temperature": 0},
            "tools": [TOOL], "tool_choice": choice,
        }  # fmt: skip
        whole = anthropic.messages.create(**kept)
        with anthropic.messages.stream(**kept) as stream:
            final = stream.get_final_message()
        assert whole.stop_reason == final.stop_reason == "tool_use"
        (call,) = [block for block in whole.content if block.type == "tool_use"]
        (streamed,) = [block for block in final.content if block.type == "tool_use"]
        assert call.input == streamed.input
        assert call.input["unit"] in UNITS
