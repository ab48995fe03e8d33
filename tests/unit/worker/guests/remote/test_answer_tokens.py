"""What a stream brings becomes tokens, or is found to be wrong."""

import pytest

from services.worker.guests.port import FinishedBy
from services.worker.guests.remote.tokens.answer_tokens import AnswerTokens
from services.worker.guests.remote.tokens.text_tokens import TextTokens
from services.worker.guests.remote.wire.dialect import Piece, TokenLogprob
from services.worker.guests.remote.wire.server_error import ServerError
from services.worker.null.model import END, ByteTokenizer
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.plan import Alternative
from tests.kits.guests.guest_runs import guest_sequence

TEXTS = TextTokens(ByteTokenizer())


def answer(
    *, max_tokens: int = 100, prompt_tokens: int = -1, texts: TextTokens | None = TEXTS, **sampling: object
) -> AnswerTokens:
    sequence = guest_sequence(
        [1, 2],
        max_tokens=max_tokens,
        eos_ids=[END],
        sampling=EngineSampling(temperature=0.0, **sampling),  # type: ignore[arg-type]
    )
    return AnswerTokens(sequence, texts=texts, vocab_size=257, prompt_tokens=prompt_tokens)


def take(tokens: AnswerTokens, *pieces: Piece) -> tuple[list[int], list[FinishedBy]]:
    ids, ends = list[int](), list[FinishedBy]()
    for piece in pieces:
        sampled, finished = tokens.take(piece)
        ids += [one.token_id for one in sampled]
        ends.append(finished)
    return ids, ends


def test_a_stop_appends_the_end_token() -> None:
    pieces = [Piece(text="a"), Piece(text="é"), Piece(finished="stop")]
    assert take(answer(), *pieces) == ([*"aé".encode(), END], ["", "", "stop"])


def test_an_end_token_that_came_is_not_appended_again() -> None:
    assert take(answer(), Piece(token_ids=[97, END], finished="stop")) == ([97, END], ["stop"])


def test_tokens_behind_an_end_token_are_left_out() -> None:
    assert take(answer(), Piece(token_ids=[97, END, 98])) == ([97, END], ["stop"])


def test_ignored_ends_go_on() -> None:
    tokens = answer(ignore_eos=True)
    assert take(tokens, Piece(token_ids=[END, 98])) == ([END, 98], [""])
    with pytest.raises(ServerError, match="wants to be ignored"):
        tokens.take(Piece(finished="stop"))


def test_no_more_tokens_than_were_asked_for() -> None:
    assert take(answer(max_tokens=3), Piece(text="abcdef")) == (list(b"abc"), ["length"])
    assert take(answer(max_tokens=1), Piece(token_ids=[END], finished="stop")) == ([END], ["stop"])


@pytest.mark.parametrize(
    ("pieces", "says"),
    [
        ([Piece(token_ids=[1], counted=1), Piece(token_ids=[1], counted=1)], "came twice"),
        ([Piece(token_ids=[1], counted=1), Piece(token_ids=[2], counted=3)], "were lost"),
        ([Piece(token_ids=[1], counted=1), Piece(token_ids=[], counted=2)], "were lost"),
        ([Piece(text="a", counted=1), Piece(text="a", counted=1)], "came twice"),
        ([Piece(text="a", token_ids=[97], text_rules=True, counted=2)], "were lost"),
        ([Piece(token_ids=[257])], "vocabulary"),
        ([Piece(token_ids=[-1])], "vocabulary"),
        ([Piece(token_ids=[1], prompt_tokens=9)], "read 9 tokens of a prompt that has 2"),
    ],
)
def test_what_cannot_follow_is_an_error(pieces: list[Piece], says: str) -> None:
    with pytest.raises(ServerError, match=says):
        take(answer(prompt_tokens=2), *pieces)


def test_ids_that_were_left_out_are_made_of_the_text() -> None:
    one, whole = Piece(text="a", token_ids=[97], text_rules=True, counted=1), "\U0001f642".encode()
    split = Piece(text="\U0001f642", token_ids=[whole[-1]], text_rules=True, counted=5)
    end = Piece(token_ids=[], text_rules=True, counted=6, finished="stop")
    assert take(answer(), one, split, end) == ([97, *whole, END], ["", "", "stop"])


def test_ids_that_are_all_there_are_right_where_their_text_is_no_character() -> None:
    """An answer that goes on within a character begins with bytes that the server cannot show."""
    rest = "é".encode()[1:]
    piece = Piece(text="\ufffd", token_ids=[*rest], text_rules=True, counted=1)
    assert take(answer(), piece) == ([*rest], [""])
    hidden = Piece(text="\ufffd!", token_ids=[33], text_rules=True, counted=2)
    with pytest.raises(ServerError, match="no character"):
        take(answer(), hidden)


def test_text_needs_a_vocabulary_of_bytes() -> None:
    tokens = answer(texts=None)
    assert take(tokens, Piece(token_ids=[5], text="x")) == ([5], [""])
    with pytest.raises(ServerError, match="token ids were asked for"):
        tokens.take(Piece(text="x"))


def test_logprobs_belong_to_their_tokens() -> None:
    top = [Alternative(97, -0.5), Alternative(98, -1.0), Alternative(99, -2.0)]
    known = [TokenLogprob(token_id=97, logprob=-0.5, top=top)]
    (sampled,), _ = answer(logprobs=2).take(Piece(token_ids=[97], logprobs=known))
    assert (sampled.logprob, sampled.top) == (-0.5, top[:2])
    for piece in (Piece(token_ids=[97]), Piece(token_ids=[98], logprobs=known)):
        with pytest.raises(ServerError, match="log probability"):
            answer(logprobs=2).take(piece)
