"""Answers in all known forms give the parts that they mean, however their text is cut."""

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.domain.answers.parted_answer import PartedAnswer
from services.worker.text.answers.known_formats import BY_NAME, TOOL_FORMATS
from services.worker.text.answers.parser import AnswerParser, fixed_texts
from services.worker.text.answers.tool_format import REASONING, AnswerFormat
from shared.messages import ReasoningPart, TextPart, ToolCallPart
from tests.kits.answers.written_answers import ANSWERS, HARD, SCHEMAS, Written
from tests.kits.chaos.scale import scaled

SPLITS = int(os.environ.get("RYZ_TEST_SPLITS", scaled("5", "15")))
_MARKS = {
    "mistral": "[THINK]",
    "mistral_v11": "[THINK]",
    "command_r": "<|START_THINKING|>",
    "seed_oss": "<seed:think>",
}
FORMS = {
    known.name: AnswerFormat(
        tools=known,
        reasoning=next(marks for marks in REASONING if marks.opens == _MARKS.get(known.name, "<think>")),
    )
    for known in TOOL_FORMATS
}
Joined = list[tuple[str, ...]]


def joined(form: str, pieces: list[str], **options: Any) -> Joined:
    """Returns the parts of an answer that comes in pieces, neighbours of one kind joined."""
    parser = AnswerParser(FORMS[form], SCHEMAS, "id{}".format, **options)
    found: Joined = []
    for part in [part for piece in pieces for part in parser.feed(piece)] + parser.finish():
        if isinstance(part, ToolCallPart):
            if part.name:
                found.append(("call", part.name, part.call_id, ""))
            assert found[-1][0] == "call"
            assert found[-1][2] == f"id{part.index}"
            found[-1] = (*found[-1][:3], found[-1][3] + part.arguments)
        else:
            kind = "text" if isinstance(part, TextPart) else "reasoning"
            assert isinstance(part, TextPart | ReasoningPart)
            assert part.text
            if found and found[-1][0] == kind:
                found[-1] = (kind, found[-1][1] + part.text)
            else:
                found.append((kind, part.text))
    return found


def cut(text: str, indices: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(position % (len(text) + 1) for position in indices)})
    return [text[begin:end] for begin, end in pairwise(edges)]


@pytest.mark.parametrize("written", ANSWERS, ids=lambda written: written.form)
def test_an_answer_has_the_parts_that_it_means(written: Written) -> None:
    parts = joined(written.form, [written.answer])
    calls = [(part[1], json.loads(part[3])) for part in parts if part[0] == "call"]
    assert calls == list(written.calls)
    assert "".join(part[1] for part in parts if part[0] == "text") == written.text
    assert "".join(part[1] for part in parts if part[0] == "reasoning") == written.reasoning


@pytest.mark.parametrize("written", ANSWERS, ids=lambda written: written.form)
def test_one_character_at_a_time_gives_the_same_parts(written: Written) -> None:
    assert joined(written.form, list(written.answer)) == joined(written.form, [written.answer])


@pytest.mark.parametrize("written", ANSWERS, ids=lambda written: written.form)
def test_a_cut_call_leaves_no_markup_as_text(written: Written) -> None:
    """But for the beginning of an opening mark, which nothing tells from text, and calls without a mark."""
    tools = FORMS[written.form].tools
    assert tools is not None
    marks = fixed_texts(FORMS[written.form])
    for end in range(len(written.answer)):
        begun = written.answer[:end]
        bare = any(not syntax.opens for syntax in tools.calls) and begun.lstrip()[:1] in {"{", "["}
        parser = AnswerParser(FORMS[written.form], SCHEMAS, str)
        parts = parser.feed(begun) + parser.finish(cut=True)
        text = "".join(part.text for part in parts if isinstance(part, TextPart))
        if not bare:
            halves = [text.removesuffix(mark[:size]) for mark in marks for size in range(len(mark))]
            assert any(written.text.startswith(half.rstrip()) for half in [text, *halves]), (begun, text)
        answer = PartedAnswer(AnswerParser(FORMS[written.form], SCHEMAS, str), only_calls=True)
        if not written.text:
            assert answer.read(begun, "length", None)[0] == ""


def test_every_form_has_an_answer_and_texts_that_none_other_of_it_holds() -> None:
    assert {written.form for written in ANSWERS} == set(BY_NAME)
    assert len(BY_NAME) >= 12
    for form in FORMS.values():
        assert form.tools is not None
        openings = [text for syntax in form.tools.calls for text in syntax.opens]
        assert not [(one, two) for one in openings for two in openings if one != two and one in two]


def test_the_documentation_names_every_form() -> None:
    text = (Path(__file__).parents[4] / "docs" / "tools.md").read_text()
    assert not [name for name in BY_NAME if f"| `{name}` | {BY_NAME[name].models} |" not in text]


@st.composite
def _mixed(draw: st.DrawFn) -> tuple[str, str]:
    """An answer of one form, cut off, repeated, or mixed with parts of its syntax."""
    form = draw(st.sampled_from(sorted(BY_NAME)))
    answers = [written.answer for written in ANSWERS if written.form == form]
    texts = sorted(fixed_texts(FORMS[form]))
    pieces = st.one_of(
        st.sampled_from(answers),
        st.sampled_from(answers).flatmap(lambda text: st.integers(0, len(text)).map(lambda end: text[:end])),
        st.sampled_from(answers).flatmap(lambda text: st.integers(0, len(text)).map(lambda at: text[at:])),
        st.sampled_from([*texts, "\n", " ", "{", "}", "[", "]", '"', "'", ",", "x", "\\", "now(", "é日"]),
        st.text(max_size=12),
    )
    return form, "".join(draw(st.lists(pieces, min_size=1, max_size=6)))


@settings(max_examples=SPLITS * len(BY_NAME), deadline=None)
@given(_mixed(), st.lists(st.integers(0, 10**6), max_size=40), st.booleans(), st.integers(1, 3))
def test_the_parts_do_not_depend_on_how_the_text_is_cut(
    mixed: tuple[str, str], indices: list[int], in_reasoning: bool, max_calls: int
) -> None:
    form, text = mixed
    options = {"in_reasoning": in_reasoning, "max_calls": max_calls}
    whole = joined(form, [text], **options)
    assert joined(form, cut(text, indices), **options) == whole
    assert joined(form, list(text), **options) == whole


@pytest.mark.parametrize("written", [a for a in ANSWERS if a.calls], ids=lambda written: written.form)
def test_an_answer_that_is_cut_keeps_all_that_was_written(written: Written) -> None:
    whole = [part for part in joined(written.form, [written.answer]) if part[0] == "call"]
    for end in range(len(written.answer)):
        calls = [part for part in joined(written.form, [written.answer[:end]]) if part[0] == "call"]
        for ours, theirs in zip(calls, whole, strict=False):
            assert theirs[:3] == ours[:3]
            assert theirs[3].startswith(_without_half_mark(written.form, ours[3], theirs[3]))
    assert calls[0][3]


@pytest.mark.parametrize("written", [a for a in ANSWERS if a.calls], ids=lambda written: written.form)
def test_half_a_closing_mark_behind_a_call_is_no_text(written: Written) -> None:
    form = FORMS[written.form].tools
    assert form is not None
    closing = [text for one in form.calls for text in (*one.closes, *one.after_arguments) if len(text) > 1]
    opening = [text for one in form.calls for text in one.opens]
    for end in range(len(written.answer)):
        parts = joined(written.form, [written.answer[:end]])
        assert joined(written.form, list(written.answer[:end])) == parts
        shown = "".join(part[1] for part in parts if part[0] == "text")
        same = max(num for num in range(len(shown) + 1) if written.text.startswith(shown[:num]))
        more = shown[same:].strip()
        if more and not any(text.startswith(more) for text in opening):
            assert not [text for text in closing if text.startswith(more)], written.answer[:end]


def _without_half_mark(form: str, ours: str, theirs: str) -> str:
    """Leaves out the half of a closing text that ends a cut argument: it may have been meant as text."""
    halves = {text[:end] for text in fixed_texts(FORMS[form]) for end in range(1, len(text))}
    halves |= {line + half for half in ("", *halves) for line in ("\\n", "\n")}
    return next(
        (ours.removesuffix(half) for half in halves if theirs.startswith(ours.removesuffix(half))), ours
    )


@pytest.mark.parametrize("written", [a for a in ANSWERS if not a.calls], ids=lambda written: written.form)
def test_text_that_is_no_call_stays_as_it_was_written(written: Written) -> None:
    for end in range(len(written.answer)):
        assert joined(written.form, [written.answer[:end]]) in ([], [("text", written.answer[:end])])


def test_arguments_of_ten_kilobytes_come_in_pieces() -> None:
    long = HARD * 300
    answer = "<tool_call>" + json.dumps({"name": "f", "arguments": {"a": long}}) + "</tool_call>"
    parser = AnswerParser(FORMS["hermes"], SCHEMAS, str)
    parts = [part for piece in cut(answer, list(range(0, len(answer), 7))) for part in parser.feed(piece)]
    arguments = [part.arguments for part in parts if isinstance(part, ToolCallPart)]
    assert json.loads("".join(arguments)) == {"a": long}
    assert len(arguments) > 1000


def test_an_answer_that_begins_in_reasoning_is_reasoning_up_to_its_mark() -> None:
    assert joined("hermes", ["so it is\n</think>\n\n", "Yes"], in_reasoning=True) == [
        ("reasoning", "so it is"),
        ("text", "Yes"),
    ]


def test_no_more_calls_than_allowed() -> None:
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    assert joined("hermes", [call + call], max_calls=1) == [("call", "now", "id0", "{}"), ("text", call)]
