"""Event ids: their form, and that a stream which resumes at any id sends exactly the rest."""

from collections.abc import Callable

import pytest

from services.gateway.answering.call import FrameFormat
from services.gateway.answering.envelope import envelope_of
from services.gateway.answering.events.ports import EventWriter, StreamEvent
from services.gateway.answering.resumption.event_ids import (
    NOTHING_YET,
    UNNUMBERED,
    EventId,
    parse_event_id,
    what_follows,
)
from services.gateway.answering.resumption.resume_token import (
    VERSION,
    AnswerKind,
    ResumeToken,
    answer_id,
    read_token,
    request_id_of,
)
from services.gateway.formats.chat.format import ChatFormat
from services.gateway.formats.text.format import CompletionFormat
from services.gateway.settings import GatewaySettings
from shared.errors import InvalidRequest
from shared.messages import Delta, GenerateRequest, Sampling, SessionRef, TokenLogprob, Usage
from tests.kits.gateway.written_events import numbered, sse

LOGPROB = TokenLogprob(token_id=1, token="é\n\n", logprob=-0.5)


def request(kind: AnswerKind, n: int, logprobs: int = -1) -> GenerateRequest:
    return GenerateRequest(
        request_id="mine-r-1",
        model="demo",
        prompt="Hello",
        sampling=Sampling(n=n, logprobs=logprobs),
        session=SessionRef(session_id="s-1") if kind == "chat" else None,
    )


SETTINGS = GatewaySettings()
FORMATS: dict[AnswerKind, FrameFormat] = {
    "chat": ChatFormat(SETTINGS, b""),
    "completion": CompletionFormat(SETTINGS),
}


def writer_of(note: ResumeToken, asked: GenerateRequest) -> EventWriter:
    return FORMATS[note.kind].writer(envelope_of(note, asked), note, [asked])


def deltas(n: int) -> list[list[Delta]]:
    """Returns frames with one event, with several, with none, and with ends."""
    words = [[Delta(choice=c, text=f'"{c}"\n\n', logprobs=[LOGPROB]) for c in range(n)]]
    words += [[Delta(choice=0, text="only the first")], [Delta(choice=0, text="")]]
    words += [[Delta(choice=c, text=f"end {c}", finish_reason="stop") for c in range(n)]]
    return words


def stream(writer: EventWriter, n: int, first_seq: int = 0, last: EventId = NOTHING_YET) -> bytes:
    """Returns the bytes that a gateway sends if its frames start at `first_seq`, after the event `last`."""
    frames = [] if first_seq else [(0, writer.opening())]
    for seq, frame in enumerate(deltas(n), start=1):
        if seq >= first_seq:
            frames.append((seq, writer.deltas(frame)))
    frames.append((len(deltas(n)) + 1, writer.closing([Usage(prompt_tokens=3, completion_tokens=5)])))
    return numbered(*((seq, what_follows(made, seq, last)) for seq, made in frames))


def events(data: bytes) -> list[tuple[str, bytes]]:
    found = []
    for event in data.split(b"\n\n")[:-1]:
        name, value = event.split(b"\n", 1)
        assert name.startswith(b"id: ")
        assert value.startswith(b"data: ")
        found.append((name[4:].decode(), value))
    return found


@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize(("kind", "n", "logprobs"), [("chat", 1, -1), ("chat", 3, 2), ("completion", 2, 1)])
def test_what_follows_any_event_is_the_rest(kind: AnswerKind, n: int, logprobs: int, usage: bool) -> None:
    note, asked = ResumeToken(VERSION, kind, 1_700_000_000, usage), request(kind, n, logprobs)
    whole = events(stream(writer_of(note, asked), n))
    assert len({name for name, _ in whole}) == len(whole)
    assert whole[-1] == (f"{len(deltas(n)) + 1}.0", b"data: [DONE]")
    for index, (name, _) in enumerate(whole):
        last = parse_event_id(name)
        assert events(stream(writer_of(note, asked), n, last=last)) == whole[index + 1 :]
        assert FORMATS[kind].needs_start(asked) == (kind == "completion" and logprobs >= 0)
        if last.seq and not FORMATS[kind].needs_start(asked):
            later = last.seq + 1 if not last.left else last.seq
            assert not last.needs_from(later)
            resumed = stream(writer_of(note, asked), n, later, last)
            assert events(resumed) == whole[index + 1 :]
    assert events(stream(writer_of(note, asked), n)) == whole


def test_ids_count_down_within_a_frame() -> None:
    parts: list[StreamEvent] = [(b"", b"a"), (b"", b"b"), (b"kind", b"c")]
    data = numbered((7, parts))
    assert data == b"id: 7.2\ndata: a\n\nid: 7.1\ndata: b\n\nid: 7.0\nevent: kind\ndata: c\n\n"
    assert numbered((7, parts[:1])) == b"id: 7.0\ndata: a\n\n"
    assert numbered((UNNUMBERED, [*parts, (b"ping", b"")])) == sse([*parts, (b"ping", b"")])
    assert sse(parts, [(b"ping", b"")]) == b"data: a\n\ndata: b\n\nevent: kind\ndata: c\n\n: ping\n\n"
    assert numbered((7, [])) == b""
    assert what_follows(parts, 7, EventId(7, 1)) == parts[2:]
    assert what_follows(parts, 7, EventId(7, 99)) == parts
    assert what_follows(parts, 7, EventId(8)) == []
    assert what_follows(parts, 7, EventId(6, 5)) == parts


def test_an_id_says_whether_earlier_frames_are_needed() -> None:
    assert not NOTHING_YET.needs_from(0)
    assert NOTHING_YET.needs_from(1)
    assert not EventId(4, 0).needs_from(5)
    assert EventId(4, 1).needs_from(5)
    assert EventId(3, 0).needs_from(5)
    assert not EventId(5, 1).needs_from(5)


@pytest.mark.parametrize(
    "text", ["x", "1.", ".1", "1.2.3", "-1", "1e3", "9" * 10, "1.9999999", "\u0661", " 1"]
)
def test_an_id_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_event_id(text)
    assert caught.value.data["param"] == "Last-Event-ID"


def test_ids_are_read() -> None:
    assert parse_event_id("") == NOTHING_YET
    assert parse_event_id("17") == EventId(17)
    assert parse_event_id("17.3") == EventId(17, 3)


@pytest.mark.parametrize(
    "data", [b"", b"nonsense", b"\x90", ResumeToken(VERSION + 1, "chat", 1, False).encode(), b"\x91\x01"]
)
def test_a_note_that_is_not_ours_is_none(data: bytes) -> None:
    assert read_token(data) is None


def test_a_note_is_small_and_may_grow() -> None:
    note = ResumeToken(VERSION, "completion", 1_700_000_000, True, 15.0, "mine")
    assert read_token(note.encode()) == note
    assert len(note.encode()) < 40
    longer = b"\x98" + note.encode()[1:] + b"\xc0"  # from a gateway version with one more field
    assert read_token(longer) == note


@pytest.mark.parametrize("read", [lambda text: text, lambda text: answer_id("chat", text)])
def test_a_stream_may_be_named_by_its_answer(read: Callable[[str], str]) -> None:
    assert request_id_of(read("r-1")) == "r-1"
    assert request_id_of("cmpl-r-1") == "r-1"


def test_a_token_of_a_format_that_this_gateway_does_not_know_can_be_read() -> None:
    note = ResumeToken(VERSION, "another", 1, False)
    assert read_token(note.encode()) == note
