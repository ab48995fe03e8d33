"""Turns the parts of an answer into fields of chat messages. Pure.

A stream sends what `delta_of` makes of each part; a whole message is those deltas folded together, so both
come from the same translation.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from shared.messages import AnswerPart, ReasoningPart, TextPart


def delta_of(part: AnswerPart) -> dict[str, Any]:
    """The field `delta` of the chunk that brings a part."""
    if isinstance(part, TextPart):
        return {"content": part.text}
    if isinstance(part, ReasoningPart):
        # vLLM's and DeepSeek's word for it
        return {"reasoning": part.text, "reasoning_content": part.text}
    call: dict[str, Any] = {"index": part.index}
    function = {"arguments": part.arguments}
    if part.call_id:
        call |= {"id": part.call_id, "type": "function"}
        function = {"name": part.name, **function}
    return {"tool_calls": [call | {"function": function}]}


def message_of(parts: Sequence[AnswerPart]) -> dict[str, Any]:
    """The whole message of an assistant; its content is null if it only calls tools."""
    if len(parts) == 1 and isinstance(parts[0], TextPart):  # as most are; the same as below
        return {"role": "assistant", "content": parts[0].text, "refusal": None}
    return fold_deltas(delta_of(part) for part in parts)


def fold_deltas(deltas: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The message that the deltas of a choice make together."""
    texts: dict[str, list[str]] = {"content": [], "reasoning": [], "reasoning_content": []}
    calls: dict[int, dict[str, Any]] = {}
    arguments: dict[int, list[str]] = {}
    for delta in deltas:
        for field, pieces in texts.items():
            if field in delta:
                pieces.append(delta[field])
        for piece in delta.get("tool_calls", ()):
            index = piece["index"]
            if "id" in piece:
                calls[index] = {
                    "id": piece["id"],
                    "type": piece["type"],
                    "function": {"name": piece["function"]["name"]},
                }
            arguments.setdefault(index, []).append(piece["function"]["arguments"])
    joined = {field: "".join(pieces) for field, pieces in texts.items()}
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if calls and not joined["content"] else joined["content"],
        "refusal": None,
    }
    message |= {field: joined[field] for field in ("reasoning", "reasoning_content") if joined[field]}
    if calls:
        for index, call in calls.items():
            call["function"]["arguments"] = "".join(arguments[index])
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return message
