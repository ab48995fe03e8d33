"""Twelve conversations as clients send them, and the texts that the prompt of each must have."""

import json
from dataclasses import dataclass, field

from shared.messages import ChatMessage, ToolCall, ToolDefinition

SCHEMA = json.dumps({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})
TOOLS = (
    ToolDefinition(name="get_weather", description="Tells the weather of a city.", parameters=SCHEMA),
    ToolDefinition(name="get_time", description="Tells the local time.", parameters=SCHEMA),
)
ASKED = ChatMessage(role="user", content="What is the weather in Oslo?")
RESULT = ChatMessage(role="tool", content='{"sky": "snow", "degrees": -4}', tool_call_id="call_oslo_1")
OTHER_RESULT = ChatMessage(role="tool", content="It is 14:05 there.", tool_call_id="call_oslo_2")
THANKS = ChatMessage(role="user", content="Thank you! And how do I dress?")


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation.

    Attributes:
        wanted: Texts that must be in the prompt, as they are or as JSON.
        generation_prompt: The prompt ends with the beginning of an answer.
    """

    messages: list[ChatMessage]
    wanted: list[str]
    tools: tuple[ToolDefinition, ...] = ()
    generation_prompt: bool = field(default=True)


def _says(role: str, text: str, **fields: object) -> ChatMessage:
    return ChatMessage(role=role, content=text, **fields)  # type: ignore[arg-type]


def _calls(text: str = "", *, both: bool = False, reasoning: str = "") -> ChatMessage:
    calls = [ToolCall(call_id="call_oslo_1", name="get_weather", arguments='{"city": "Lillehammer"}')]
    if both:
        calls.append(ToolCall(call_id="call_oslo_2", name="get_time", arguments='{"city": "Tromsø"}'))
    return ChatMessage(role="assistant", content=text, tool_calls=calls, reasoning=reasoning)


_ANSWER = _says("assistant", "It snows, at -4 degrees.")
_CALL = ["get_weather", "Lillehammer", RESULT.content]
CONVERSATIONS = {
    "user": Conversation([_says("user", "  Hello there, <b>you</b>!\n")], ["Hello there, <b>you</b>!"]),
    "system": Conversation(
        [_says("system", "Answer in rhymes."), _says("user", "What is rain?")],
        ["Answer in rhymes.", "What is rain?"],
    ),
    "developer": Conversation(
        [_says("developer", "Answer in one word."), _says("user", "What is dew?")],
        ["Answer in one word.", "What is dew?"],
    ),
    "turns": Conversation(
        [_says("user", "I am Ada."), _says("assistant", "Nice to meet you."), _says("user", "Who am I?")],
        ["I am Ada.", "Nice to meet you.", "Who am I?"],
    ),
    "parts": Conversation(  # what the gateway makes of several parts of text
        [_says("user", "Compare these.\nFirst: a 'quoted' text.\nSecond: {\"json\": [1, 2]}")],
        ["Compare these.", "First: a 'quoted' text.", 'Second: {"json": [1, 2]}'],
    ),
    "later system": Conversation(
        [ASKED, _ANSWER, _says("system", "From now on, speak Norwegian."), THANKS],
        [ASKED.content, _ANSWER.content, "From now on, speak Norwegian.", THANKS.content],
    ),
    "tools": Conversation([ASKED], [ASKED.content, "get_weather", "get_time"], TOOLS),
    "call without text": Conversation([ASKED, _calls(), RESULT], [ASKED.content, *_CALL, "get_time"], TOOLS),
    "call beside text": Conversation(
        [ASKED, _calls("Let me look outside."), RESULT, _ANSWER, THANKS],
        [ASKED.content, "Let me look outside.", *_CALL, _ANSWER.content, THANKS.content],
        TOOLS,
    ),
    "two calls": Conversation(
        [ASKED, _calls(both=True), RESULT, OTHER_RESULT, _ANSWER, THANKS],
        [ASKED.content, *_CALL, "get_time", "Tromsø", OTHER_RESULT.content, _ANSWER.content, THANKS.content],
        TOOLS,
    ),
    "reasoning": Conversation(
        [
            ASKED, _calls(reasoning="The tool knows the weather."), RESULT,
            _says("assistant", "It snows.", reasoning="Minus four is cold."), THANKS,
        ],
        [ASKED.content, *_CALL, "It snows.", THANKS.content],
        TOOLS,
    ),
    "prefill": Conversation(
        [_says("user", "Name three colours."), _says("assistant", "Red, green and")],
        ["Name three colours.", "Red, green and"],
        generation_prompt=False,
    ),
}  # fmt: skip
