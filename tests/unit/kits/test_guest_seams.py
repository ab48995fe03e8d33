"""The check of answers that went on elsewhere: it finds each character that is lost, repeated or garbled."""

from dataclasses import replace

import pytest

from services.worker.null.engine import TEXT
from services.worker.null.model import ByteTokenizer
from tests.kits.guests.recording_proxy import Exchange
from tests.kits.guests.seams import Attempt, Streamed, check_seams

BYTES = ByteTokenizer()
PROMPT = b"user: [x 1] hello\nassistant: "


def attempt(given: str, brought: str) -> Attempt:
    return Attempt(PROMPT + given.encode(), tuple((one.encode(), 1) for one in brought))


def answer(text: str, *, group: str = "first") -> Streamed:
    return Streamed(text, group, "text", (len(PROMPT), len(text)))


def own_text(begin: int, count: int) -> str:
    """What a group of the null engine says from this token of the answer on."""
    start = len(PROMPT) + begin
    return (TEXT * (start // len(TEXT) + 9))[start : start + count]


def test_an_answer_that_goes_on_at_another_server() -> None:
    attempts = [attempt("", "Once upon"), attempt("Once u", "nder"), attempt("Once unde", "r a sky")]
    assert check_seams(answer("Once under a sky"), attempts, BYTES, own="") == 2


@pytest.mark.parametrize(
    "said", ["Once uder", "Once uunder", "Once u?der", "Once unde", "Once underr", "nder"]
)
def test_a_client_that_has_other_text(said: str) -> None:
    attempts = [attempt("", "Once upon"), attempt("Once u", "nder")]
    with pytest.raises(AssertionError):
        check_seams(answer(said), attempts, BYTES, own="")


@pytest.mark.parametrize("given", ["Onc u", "Once uu", "nce u", "Once up on", "Once upon a"])
def test_a_prompt_that_is_no_beginning_of_what_had_come(given: str) -> None:
    attempts = [attempt("", "Once upon"), attempt(given, "nder")]
    with pytest.raises(AssertionError):
        check_seams(answer(f"{given}nder"), attempts, BYTES, own="")


def test_an_answer_that_goes_on_at_an_own_group() -> None:
    attempts = [attempt("", "Once upon")]
    assert check_seams(answer("Once u" + own_text(6, 20)), attempts, BYTES, own="g0") == 1
    for wrong in ("Once u" + own_text(7, 20), "Once u" + own_text(5, 20), "Onc u" + own_text(5, 20)):
        with pytest.raises(AssertionError):
            check_seams(answer(wrong), attempts, BYTES, own="g0")


def test_the_tokens_of_a_server_that_brings_text_are_not_counted() -> None:
    pieces = ((b"Once ", -1), (b"upon", -1))
    attempts = [Attempt(PROMPT, pieces)]
    assert check_seams(answer("Once u" + own_text(6, 20)), attempts, BYTES, own="g0") == 1
    for wrong in ("Once  u" + own_text(6, 20), "nce u" + own_text(6, 20), "Once u?" + own_text(6, 20)):
        with pytest.raises(AssertionError):
            check_seams(answer(wrong), attempts, BYTES, own="g0")


def test_an_attempt_that_brought_nothing_is_no_beginning() -> None:
    whole = replace(answer(own_text(0, 20)), resumed="")
    assert check_seams(whole, [attempt("", "")], BYTES, own="g0") == 0
    elsewhere = replace(answer("Once upon"), resumed="")
    assert check_seams(elsewhere, [attempt("", ""), attempt("", "Once upon")], BYTES, own="") == 0
    begun = [attempt("", ""), attempt("", "Once"), attempt("Once", " upon")]
    assert check_seams(answer("Once upon"), begun, BYTES, own="") == 1


def test_a_second_copy_that_brought_nothing() -> None:
    attempts = [attempt("", "Once upon"), attempt("", ""), attempt("Once u", "nder")]
    assert check_seams(answer("Once under"), attempts, BYTES, own="") == 1
    with pytest.raises(AssertionError):  # a copy that brought something
        check_seams(answer("Once under"), [attempts[0], attempt("", "O"), attempts[2]], BYTES, own="")


def test_a_server_that_ended_by_length_within_a_character_was_asked_again() -> None:
    attempts = [replace(attempt("", "Once up"), ended=True), attempt("Once up", "é")]
    whole, within = replace(answer("Once upé"), resumed=""), replace(answer("Once up\ufffd"), resumed="")
    assert check_seams(whole, attempts, BYTES, own="") == 0
    assert check_seams(within, attempts, BYTES, own="") == 0
    for wrong in ("Once u\ufffd", "Once uup\ufffd", "Once upx"):
        with pytest.raises(AssertionError):
            check_seams(answer(wrong), attempts, BYTES, own="")
    with pytest.raises(AssertionError):  # a group that was lost gives no answer that is cut
        check_seams(within, [attempt("", "Once up"), attempt("Once up", "é")], BYTES, own="")


def test_an_answer_of_an_own_group_alone() -> None:
    assert check_seams(answer(own_text(0, 30), group="g0"), [], BYTES, own="g0") == 0
    for wrong, group in ((own_text(1, 30), "g0"), (own_text(0, 30), "first")):
        with pytest.raises(AssertionError):
            check_seams(answer(wrong, group=group), [], BYTES, own="g0")


def test_an_exchange_that_was_cut_has_the_events_that_are_whole() -> None:
    events = b'data: {"content": "a"}\n\n', b'data: {"content": "b"}\n\ndata: {"con', b'tent": "c"}\n\n'
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events)
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    sent = b'POST /completion HTTP/1.1\r\ncontent-length: 15\r\n\r\n{"prompt": [1]}'
    for size, found in ((0, "abc"), (5, "ab"), (22, "ab"), (40, "a")):
        whole = head + chunks
        exchange = Exchange(bytearray(sent), bytearray(whole[: len(whole) - size]))
        assert "".join(event["content"] for event in exchange.events) == found
        assert exchange.request == {"prompt": [1]}
