"""Answers that several engines wrote say so in every format, and others do not."""

import json

import pytest

from services.gateway.answering.envelope import Envelope
from services.gateway.answering.events.ports import EventWriter
from services.gateway.formats.anthropic.events import MessageEventWriter, whole_message
from services.gateway.formats.chat.answer import ChatChunkWriter, chat_body
from services.gateway.formats.text.answer import CompletionChunkWriter
from shared.client import Choice, Completion
from shared.messages import Delta, SessionOutcome, Usage

ENVELOPE = Envelope(answer_id="chatcmpl-r1", created_s=1, model="demo")
SESSION = SessionOutcome(state="new", turns=1)


def last_of(writer: EventWriter, session: SessionOutcome | None = None) -> dict[str, object]:
    """The last event of a stream with such a fact."""
    events = [json.loads(data) for _, data in writer.closing([Usage()], session, "text") if data[:1] == b"{"]
    (found,) = [event for event in events if "resumed" in event]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("usage", [False, True])
def test_the_last_chunk_says_it(*, usage: bool) -> None:
    chat = ChatChunkWriter(ENVELOPE, n=1, usage=usage, logprobs=False)
    text = CompletionChunkWriter(ENVELOPE, prompts=1, n=1, usage=usage, logprobs=False)
    writers: list[EventWriter] = [chat, text]
    for writer in writers:
        last = last_of(writer, SESSION)
        assert last["resumed"] == "text"
        assert last["session"]
        assert ("usage" in last) is usage
        assert last_of(writer)["resumed"] == "text"
        assert b"resumed" not in b"".join(data for _, data in writer.closing([Usage()], SESSION))


def test_a_message_says_it_in_its_delta_and_its_body() -> None:
    assert last_of(MessageEventWriter(ENVELOPE, show_thinking=False, shown_id="r"))["type"] == "message_delta"
    whole = whole_message(ENVELOPE, Delta(text="x"), Usage(), show_thinking=False, resumed="text")
    assert json.loads(whole)["resumed"] == "text"
    assert b"resumed" not in whole_message(ENVELOPE, Delta(text="x"), Usage(), show_thinking=False)


def test_a_whole_answer_says_it() -> None:
    def body(resumed: str) -> dict[str, object]:
        part = Completion("r1", "", "g0", [Choice(0, "x", finish_reason="stop")], Usage(), None, resumed)  # type: ignore[arg-type]
        found = json.loads(chat_body(ENVELOPE, [part], logprobs=False))
        assert isinstance(found, dict)
        return found

    assert body("text")["resumed"] == "text"
    assert "resumed" not in body("")
