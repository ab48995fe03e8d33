"""Prompts for servers that take text only."""

import pytest

from services.worker.guests.remote.tokens.prompt_text import PromptText
from services.worker.guests.remote.wire.server_error import ServerError
from services.worker.null.model import ByteTokenizer
from services.worker.text.tokenizer import read_tokenizer
from tests.conftest import DEMO

TOKENIZER = read_tokenizer(DEMO / "tokenizer.json")
SPECIAL = sorted(TOKENIZER.special_texts)[0]


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def test_tokens_are_spelled() -> None:
    prompt = f"{SPECIAL}user Grüße\n"
    assert PromptText(TOKENIZER, None).text(ids(prompt)) == prompt


def test_tokens_that_the_tokenizer_would_not_choose_are_spelled() -> None:
    one_by_one = [token_id for letter in "hello" for token_id in ids(letter)]
    assert one_by_one != ids("hello")
    assert PromptText(TOKENIZER, None).text(one_by_one) == "hello"


def test_what_the_server_adds_is_left_out() -> None:
    (begins,) = ids(SPECIAL)
    spelled = PromptText(TOKENIZER, begins)
    assert spelled.text([begins, *ids("hello")]) == "hello"
    with pytest.raises(ServerError, match="first token"):
        spelled.text(ids("hello"))


def test_a_prompt_that_ends_within_a_character_is_refused() -> None:
    with pytest.raises(ServerError, match="within a character"):
        PromptText(ByteTokenizer(), None).text(list("é".encode())[:1])


def test_no_text_of_a_user_becomes_a_control_token() -> None:
    as_text = TOKENIZER.without({SPECIAL}).encode(SPECIAL, add_special_tokens=False)
    assert as_text != ids(SPECIAL)
    with pytest.raises(ServerError, match="control token"):
        PromptText(TOKENIZER, None).text(as_text)
