"""The state machine of responses: streamed equals whole, whatever the parts and however they are cut."""

import itertools
import json
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.formats.responses.answer_items import AnswerItems
from services.gateway.formats.responses.events import ResponseEvent, ResponseEvents
from services.gateway.formats.responses.replay import replayed
from shared.errors import Cancelled, GroupLost
from shared.messages import (
    AnswerPart,
    Delta,
    ReasoningPart,
    ResponseRecord,
    TextPart,
    TokenLogprob,
    ToolCallPart,
    Usage,
)

Whole = tuple[str, str]  # kind of a part, and its text


def fields(**more: Any) -> dict[str, Any]:
    return {"id": "resp_x", "status": "in_progress", "output": [], "usage": None, "error": None} | more


def parts_of(answer: Sequence[Whole], cuts: Sequence[int]) -> list[AnswerPart]:
    """The parts of an answer, each cut at some places."""
    parts: list[AnswerPart] = []
    calls = 0
    for kind, text in answer:
        positions = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
        pieces = [text[start:end] for start, end in itertools.pairwise(positions)]
        if kind == "call":
            parts.append(ToolCallPart(index=calls, call_id=f"call_{calls}", name=f"f{calls}"))
            parts += [ToolCallPart(index=calls, arguments=piece) for piece in pieces]
            calls += 1
        else:
            made = TextPart if kind == "text" else ReasoningPart
            parts += [made(text=piece) for piece in pieces]
    return parts


def joined(events: Sequence[ResponseEvent]) -> list[dict[str, Any]]:
    """The items as a client builds them from deltas alone; checks the `done` events on the way."""
    items: list[dict[str, Any]] = []
    for number, event in enumerate(events):
        said = json.loads(event.data)
        assert said["type"] == event.kind
        assert said["sequence_number"] == event.number == number
        if event.kind == "response.output_item.added":
            assert said["output_index"] == len(items)
            items.append(said["item"])
            continue
        if "output_index" not in said:
            continue
        item = items[said["output_index"]]
        assert item is items[-1]
        if event.kind == "response.content_part.added":
            item["content"].append(said["part"])
        elif event.kind == "response.function_call_arguments.delta":
            item["arguments"] += said["delta"]
        elif event.kind.endswith("_text.delta"):
            item["content"][0]["text"] += said["delta"]
            if "logprobs" in item["content"][0]:
                item["content"][0]["logprobs"] += said["logprobs"]
        elif event.kind.endswith("_text.done"):
            assert item["content"][0]["text"] == said["text"]
        elif event.kind == "response.content_part.done":
            assert item["content"][0] == said["part"]
        elif event.kind == "response.function_call_arguments.done":
            assert item["arguments"] == said["arguments"]
        elif event.kind == "response.output_item.done":
            item["status"] = said["item"]["status"]
            assert item == said["item"]
    return items


answers = st.lists(
    st.tuples(st.sampled_from(["text", "reasoning", "call"]), st.text(min_size=1, max_size=40)), max_size=6
)


@settings(max_examples=300, deadline=None)
@given(answers, st.lists(st.integers(0, 40), max_size=8), st.sampled_from(["stop", "length", "tool_calls"]))
def test_the_joined_stream_is_the_whole_object(answer: list[Whole], cuts: list[int], finish: Any) -> None:
    made = []
    for where in ([], cuts):  # all at once, and cut
        events = ResponseEvents(fields())
        parts = parts_of(answer, where)
        said = events.opening()
        for part in parts:
            text = part.text if isinstance(part, TextPart) else ""
            said += events.deltas([Delta(text=text, parts=[part])])
        said += events.deltas([Delta(finish_reason=finish)])
        said += events.finish(Usage(prompt_tokens=3, completion_tokens=2), 7)
        said.append(events.last())
        assert joined(said) == events.whole()["output"]
        assert json.loads(said[-1].data)["response"] == events.whole()
        assert said[-1].kind == ("response.incomplete" if finish == "length" else "response.completed")
        made.append(events.whole())
    assert made[0] == made[1]
    assert "".join(text for kind, text in answer if kind == "text") == "".join(
        item["content"][0]["text"] for item in made[0]["output"] if item["type"] == "message"
    )


@settings(max_examples=100, deadline=None)
@given(answers, st.booleans())
def test_a_replayed_response_is_the_stored_one(answer: list[Whole], cut: bool) -> None:
    events = ResponseEvents(fields())
    events.opening()
    events.deltas([Delta(parts=parts_of(answer, [])), Delta(finish_reason="length" if cut else "stop")])
    events.finish(Usage(), 7)
    record = ResponseRecord(response_id="resp_x", tenant="t", model="m", body=json.dumps(events.whole()))
    again = replayed(record, -1)
    assert joined(again) == events.whole()["output"]
    assert json.loads(again[-1].data)["response"] == events.whole()
    (last,) = replayed(record, 4)
    assert (last.number, last.data) == (5, again[-1].data.replace(b":%d," % again[-1].number, b":5,"))


def test_log_probabilities_stay_with_their_text() -> None:
    items = AnswerItems("x", with_logprobs=True)
    entries = [TokenLogprob(token_id=1, token=token, logprob=-1.0) for token in ("think", "é", "!", " ")]
    said = [
        *items.take(Delta(parts=[ReasoningPart(text="think")], logprobs=entries[:1])),
        *items.take(Delta(logprobs=entries[1:2])),  # half a character
        *items.take(Delta(text="é!", logprobs=entries[2:3])),
        *items.take(Delta(logprobs=entries[3:])),  # a stop string's beginning
        *items.finish(),
    ]
    (delta,) = [more for kind, more in said if kind == "response.output_text.delta"]
    assert [entry["token"] for entry in delta["logprobs"]] == ["é", "!"]
    shown = items.blocks[1]["content"][0]["logprobs"]
    assert [entry["token"] for entry in shown] == ["é", "!", " "]
    assert shown[0] == {"token": "é", "logprob": -1.0, "bytes": [195, 169], "top_logprobs": []}


def test_a_failure_keeps_what_was_said() -> None:
    for error, status in ((GroupLost("g0 is gone"), "failed"), (Cancelled("enough"), "cancelled")):
        events = ResponseEvents(fields())
        events.deltas([Delta(text="Hel")])
        events.fail(error)
        last = events.last()
        said = json.loads(last.data)["response"]
        assert (last.kind, said["status"]) == ("response.failed", status)
        assert said["output"][0]["status"] == "incomplete"
        assert said["output"][0]["content"][0]["text"] == "Hel"
        assert (said["error"] is None) == (status == "cancelled")
