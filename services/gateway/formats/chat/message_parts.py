"""Turns the parts of an answer into fields of chat messages. Pure.

A stream sends what `delta_of` makes of each part; a whole message is those deltas folded together, so both
come from the same translation.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from services.gateway.formats.fields.custom_tools import CustomCalls
from shared.messages import AnswerPart, ReasoningPart, TextPart


def delta_of(part: AnswerPart, custom: CustomCalls | None = None, choice: int = 0) -> dict[str, Any]:
    """The field `delta` of the chunk that brings a part.

    Args:
        part: Of an answer.
        custom: Knows calls of custom tools by their earlier parts; None: the request has no such tools.
        choice: The answer's choice.
    """
    if isinstance(part, TextPart):
        return {"content": part.text}
    if isinstance(part, ReasoningPart):
        # vLLM's and DeepSeek's word for it
        return {"reasoning": part.text, "reasoning_content": part.text}
    call: dict[str, Any] = {"index": part.index}
    text = custom.input_of(part, choice) if custom else None
    if text is not None:
        called = {"input": text}
        if part.call_id:
            call |= {"id": part.call_id, "type": "custom"}
            called = {"name": part.name, **called}
        return {"tool_calls": [call | {"custom": called}]}
    function = {"arguments": part.arguments}
    if part.call_id:
        call |= {"id": part.call_id, "type": "function"}
        function = {"name": part.name, **function}
    return {"tool_calls": [call | {"function": function}]}


def message_of(parts: Sequence[AnswerPart], custom: Collection[str] = ()) -> dict[str, Any]:
    """The whole message of an assistant; its content is null if it only calls tools.

    Args:
        parts: The whole answer.
        custom: Names of the request's custom tools.
    """
    if len(parts) == 1 and isinstance(parts[0], TextPart):  # as most are; the same as below
        return {"role": "assistant", "content": parts[0].text, "refusal": None}
    calls = CustomCalls(custom)
    return fold_deltas(delta_of(part, calls) for part in parts)


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
                kind = piece["type"]
                calls[index] = {"id": piece["id"], "type": kind, kind: {"name": piece[kind]["name"]}}
            text = piece["custom"]["input"] if "custom" in piece else piece["function"]["arguments"]
            arguments.setdefault(index, []).append(text)
    joined = {field: "".join(pieces) for field, pieces in texts.items()}
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if calls and not joined["content"] else joined["content"],
        "refusal": None,
    }
    message |= {field: joined[field] for field in ("reasoning", "reasoning_content") if joined[field]}
    if calls:
        for index, call in calls.items():
            field = "input" if call["type"] == "custom" else "arguments"
            call[call["type"]][field] = "".join(arguments[index])
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return message
