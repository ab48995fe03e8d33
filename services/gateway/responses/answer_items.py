"""The state machine that makes output items and their events from the parts of an answer. Pure.

Whatever the borders between parts, the items at the end are the same, and they are what the events say when
they are joined. One item is open at a time; a part of another kind, or of another call, closes it.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from services.gateway.completions.logprob_forms import token_fields
from services.gateway.field_policy.custom_tools import CustomCalls
from shared.messages import AnswerPart, Delta, ReasoningPart, TextPart, TokenLogprob, ToolCallPart, TopLogprob

Event = tuple[str, dict[str, Any]]  # its type and its fields, without the number
_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}
_DELTA_OF = {
    "function_call": "response.function_call_arguments.delta",
    "custom_tool_call": "response.custom_tool_call_input.delta",
}
_DONE_OF = {
    "function_call": "response.function_call_arguments.done",
    "custom_tool_call": "response.custom_tool_call_input.done",
}
_TEXT_OF = {"function_call": "arguments", "custom_tool_call": "input"}


class AnswerItems:
    """The items of one answer.

    Args:
        name: Ends the ids of the items; unique for the response.
        with_logprobs: Texts carry the log probabilities of their tokens.
        custom: Names of the request's custom tools.

    Attributes:
        items: The items so far, the open one at the end.
    """

    def __init__(self, name: str, *, with_logprobs: bool = False, custom: Collection[str] = ()) -> None:
        self.items: list[dict[str, Any]] = []
        self._name = name
        self._with_logprobs = with_logprobs
        self._custom = CustomCalls(custom)
        self._kind = ""  # of the open item; empty: none is open
        self._call = -1  # its index, if it is a call
        self._pieces: list[str] = []
        self._logprobs: list[dict[str, Any]] = []  # of the open text
        self._early: list[TokenLogprob] = []  # of tokens whose text is still to come

    def take(self, delta: Delta) -> Iterator[Event]:
        """Takes new output; yields its events."""
        parts: Sequence[AnswerPart] = delta.parts or ([TextPart(text=delta.text)] if delta.text else [])
        if self._with_logprobs and (not parts or any(isinstance(part, TextPart) for part in parts)):
            self._early += delta.logprobs
        for part in parts:
            if isinstance(part, ToolCallPart):
                yield from self._take_call(part)
            elif part.text:
                yield from self._take_text(part)

    def finish(self, *, cut: bool = False) -> Iterator[Event]:
        """Closes the last item; `cut`: the answer ended inside it. An empty answer has one message."""
        if not self.items and not cut:
            yield from self._open("message")
        yield from self._close("incomplete" if cut else "completed")

    def abandon(self) -> None:
        """Ends the open item as incomplete, without events."""
        for _ in self._close("incomplete"):
            pass

    def _take_text(self, part: TextPart | ReasoningPart) -> Iterator[Event]:
        kind = "message" if isinstance(part, TextPart) else "reasoning"
        if self._kind != kind:
            yield from self._close("completed")
            yield from self._open(kind)
        self._pieces.append(part.text)
        where = self._where() | {"content_index": 0}
        if kind == "reasoning":
            yield "response.reasoning_text.delta", where | {"delta": part.text}
            return
        logprobs = [_shown(entry) for entry in self._early]
        self._logprobs += logprobs
        self._early = []
        yield "response.output_text.delta", where | {"delta": part.text, "logprobs": logprobs}

    def _take_call(self, part: ToolCallPart) -> Iterator[Event]:
        text = self._custom.input_of(part)
        kind = "function_call" if text is None else "custom_tool_call"
        if self._kind != kind or self._call != part.index:
            yield from self._close("completed")
            self._call = part.index
            yield from self._open(kind, call_id=part.call_id, name=part.name)
        piece = part.arguments if text is None else text
        if piece:
            self._pieces.append(piece)
            yield _DELTA_OF[kind], self._where() | {"delta": piece}

    def _where(self) -> dict[str, Any]:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}

    def _open(self, kind: str, *, call_id: str = "", name: str = "") -> Iterator[Event]:
        self._kind, self._pieces, self._logprobs = kind, [], []
        item: dict[str, Any] = {
            "id": f"{_PREFIXES[kind]}_{self._name}_{len(self.items)}",
            "type": kind,
            "status": "in_progress",
        }
        if kind in _TEXT_OF:
            item |= {"call_id": call_id, "name": name, _TEXT_OF[kind]: ""}
        elif kind == "message":
            item |= {"role": "assistant", "content": []}
        else:
            item |= {"summary": [], "content": []}
        self.items.append(item)
        yield "response.output_item.added", {"output_index": len(self.items) - 1, "item": dict(item)}
        if kind not in _TEXT_OF:
            part = self._part("")
            yield "response.content_part.added", self._where() | {"content_index": 0, "part": part}

    def _part(self, text: str) -> dict[str, Any]:
        if self._kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": self._logprobs}

    def _close(self, status: str) -> Iterator[Event]:
        if not self._kind:
            return
        text, item, where = "".join(self._pieces), self.items[-1], self._where()
        item["status"] = status
        if self._kind in _TEXT_OF:
            field = _TEXT_OF[self._kind]
            item[field] = text
            named = {"name": item["name"]} if self._kind == "function_call" else {}
            yield _DONE_OF[self._kind], where | named | {field: text}
        else:
            if self._kind == "message":
                self._logprobs += [_shown(entry) for entry in self._early]
                self._early = []
            part = self._part(text)
            item["content"] = [part]
            place = where | {"content_index": 0}
            if self._kind == "message":
                yield "response.output_text.done", place | {"text": text, "logprobs": self._logprobs}
            else:
                yield "response.reasoning_text.done", place | {"text": text}
            yield "response.content_part.done", place | {"part": part}
        yield "response.output_item.done", {"output_index": len(self.items) - 1, "item": item}
        self._kind, self._call = "", -1


def _shown(entry: TokenLogprob) -> dict[str, Any]:
    """The log probability of a token, as the API has it."""
    return _with_bytes(entry) | {"top_logprobs": [_with_bytes(top) for top in entry.top]}


def _with_bytes(entry: TokenLogprob | TopLogprob) -> dict[str, Any]:
    """The fields of a token; here `bytes` is always a list."""
    fields = token_fields(entry)
    return fields | {"bytes": fields["bytes"] or []}
