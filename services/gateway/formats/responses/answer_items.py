"""The output items of a response and their events, made from the parts of an answer. Pure."""

from collections.abc import Collection, Iterator
from typing import Any

from services.gateway.formats.fields.answer_blocks import AnswerBlocks, Event
from services.gateway.formats.fields.custom_tools import CustomCalls
from services.gateway.formats.fields.openai_answer import token_fields
from shared.messages import AnswerPart, Delta, TextPart, TokenLogprob, ToolCallPart, TopLogprob

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


class AnswerItems(AnswerBlocks):
    """The items of one answer, which are its `blocks`; see `AnswerBlocks`.

    Args:
        name: Ends the ids of the items; unique for the response.
        with_logprobs: Texts carry the log probabilities of their tokens.
        custom: Names of the request's custom tools.
    """

    def __init__(self, name: str, *, with_logprobs: bool = False, custom: Collection[str] = ()) -> None:
        super().__init__()
        self._name = name
        self._with_logprobs = with_logprobs
        self._custom = CustomCalls(custom)
        self._logprobs: list[dict[str, Any]] = []  # of the open text
        self._early: list[TokenLogprob] = []  # of tokens whose text is still to come

    def take(self, delta: Delta) -> Iterator[Event]:
        """Takes new output; yields its events."""
        parts = delta.parts
        if self._with_logprobs and (not parts or any(isinstance(part, TextPart) for part in parts)):
            self._early += delta.logprobs
        yield from self._take_parts(delta)

    def finish(self, *, cut: bool = False) -> Iterator[Event]:
        """Closes the last item; `cut`: the answer ended inside it. An empty answer has one message."""
        if not self.blocks and not cut:
            self._kind = "message"
            yield from self._open(TextPart(text=""))
        yield from self._close_open("incomplete" if cut else "completed")

    def abandon(self) -> None:
        """Ends the open item as incomplete, without events."""
        for _ in self._close_open("incomplete"):
            pass

    def _read(self, part: AnswerPart) -> tuple[str, str]:
        if isinstance(part, ToolCallPart):
            text = self._custom.input_of(part)
            return ("function_call", part.arguments) if text is None else ("custom_tool_call", text)
        return "message" if isinstance(part, TextPart) else "reasoning", part.text

    def _open(self, part: AnswerPart) -> Iterator[Event]:
        self._logprobs, kind = [], self._kind
        item: dict[str, Any] = {
            "id": f"{_PREFIXES[kind]}_{self._name}_{len(self.blocks)}",
            "type": kind,
            "status": "in_progress",
        }
        if isinstance(part, ToolCallPart):
            item |= {"call_id": part.call_id, "name": part.name, _TEXT_OF[kind]: ""}
        elif kind == "message":
            item |= {"role": "assistant", "content": []}
        else:
            item |= {"summary": [], "content": []}
        self.blocks.append(item)
        yield "response.output_item.added", {"output_index": len(self.blocks) - 1, "item": dict(item)}
        if kind not in _TEXT_OF:
            shown = self._part("")
            yield "response.content_part.added", self._where() | {"content_index": 0, "part": shown}

    def _add(self, piece: str) -> Iterator[Event]:
        where = self._where()
        if self._kind in _TEXT_OF:
            yield _DELTA_OF[self._kind], where | {"delta": piece}
        elif self._kind == "reasoning":
            yield "response.reasoning_text.delta", where | {"content_index": 0, "delta": piece}
        else:
            logprobs = self._take_logprobs()
            more = {"content_index": 0, "delta": piece, "logprobs": logprobs}
            yield "response.output_text.delta", where | more

    def _close(self, text: str, status: str) -> Iterator[Event]:
        item, where = self.blocks[-1], self._where()
        item["status"] = status
        if self._kind in _TEXT_OF:
            field = _TEXT_OF[self._kind]
            item[field] = text
            named = {"name": item["name"]} if self._kind == "function_call" else {}
            yield _DONE_OF[self._kind], where | named | {field: text}
        else:
            if self._kind == "message":
                self._take_logprobs()
            part = self._part(text)
            item["content"] = [part]
            shared = where | {"content_index": 0}
            if self._kind == "message":
                yield "response.output_text.done", shared | {"text": text, "logprobs": self._logprobs}
            else:
                yield "response.reasoning_text.done", shared | {"text": text}
            yield "response.content_part.done", shared | {"part": part}
        yield "response.output_item.done", {"output_index": len(self.blocks) - 1, "item": item}

    def _take_logprobs(self) -> list[dict[str, Any]]:
        """Adds the log probabilities that have come to those of the open text; returns the new ones."""
        found = [_shown(entry) for entry in self._early]
        self._logprobs += found
        self._early = []
        return found

    def _where(self) -> dict[str, Any]:
        return {"item_id": self.blocks[-1]["id"], "output_index": len(self.blocks) - 1}

    def _part(self, text: str) -> dict[str, Any]:
        if self._kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": self._logprobs}


def _shown(entry: TokenLogprob) -> dict[str, Any]:
    """The log probability of a token, as the API has it."""
    return _with_bytes(entry) | {"top_logprobs": [_with_bytes(top) for top in entry.top]}


def _with_bytes(entry: TokenLogprob | TopLogprob) -> dict[str, Any]:
    """The fields of a token; here `bytes` is always a list."""
    fields = token_fields(entry)
    return fields | {"bytes": fields["bytes"] or []}
