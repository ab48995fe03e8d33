"""Joins the parts of answers that come one after another."""

from collections.abc import Iterable

from shared.messages.answer_parts import AnswerPart, ReasoningPart, TextPart, ToolCallPart


def join_parts(parts: Iterable[AnswerPart]) -> list[AnswerPart]:
    """Returns parts with neighbours of one kind, or of one call, made one."""
    groups: list[tuple[AnswerPart, list[str]]] = []
    for part in parts:
        if groups and _goes_on(groups[-1][0], part):
            groups[-1][1].append(_piece(part))
        else:
            groups.append((part, [_piece(part)]))
    return [first if len(pieces) == 1 else _with(first, "".join(pieces)) for first, pieces in groups]


def _goes_on(first: AnswerPart, part: AnswerPart) -> bool:
    if isinstance(first, ToolCallPart):
        return isinstance(part, ToolCallPart) and part.index == first.index and not part.name
    return type(first) is type(part)


def _piece(part: AnswerPart) -> str:
    return part.arguments if isinstance(part, ToolCallPart) else part.text


def _with(first: AnswerPart, text: str) -> AnswerPart:
    if isinstance(first, ToolCallPart):
        return ToolCallPart(index=first.index, call_id=first.call_id, name=first.name, arguments=text)
    return TextPart(text=text) if isinstance(first, TextPart) else ReasoningPart(text=text)
