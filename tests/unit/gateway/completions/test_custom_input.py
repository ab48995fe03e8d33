"""The input of a custom tool is the same text however its arguments are cut into pieces."""

import json
import random

import pytest

from services.gateway.formats.fields.custom_tools import CustomInput, arguments_of

TEXTS = [
    "",
    "plain",
    'quotes " and \\ and \n\t\r\x00 controls',
    "a line\nof a patch\n*** End Patch",
    "é ☃ 𝄞 \ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
    "\\u0041 stays",
    '"}',
]
ESCAPED = json.dumps({"input": '𝄞é"\\\n/'}).replace("/", "\\/")


def pieces_of(text: str, draw: random.Random) -> list[str]:
    cuts = sorted(draw.sample(range(1, len(text)), k=min(len(text) - 1, draw.randrange(1, 9))))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@pytest.mark.parametrize("text", TEXTS)
def test_any_cut_of_the_arguments_gives_the_text(text: str) -> None:
    draw = random.Random(7)
    for arguments in (arguments_of(text), json.dumps({"input": text}), json.dumps({"input": text}, indent=2)):
        for _ in range(200):
            reader = CustomInput()
            assert "".join(reader.feed(piece) for piece in pieces_of(arguments, draw)) == text


def test_each_character_of_an_escape_may_come_alone() -> None:
    reader = CustomInput()
    assert "".join(map(reader.feed, ESCAPED)) == '𝄞é"\\\n/'


def test_text_comes_before_the_end_and_a_cut_call_keeps_what_it_has() -> None:
    reader = CustomInput()
    assert [reader.feed(piece) for piece in ('{"inp', 'ut": "ab', "c\\", "nd")] == ["", "ab", "c", "\nd"]


@pytest.mark.parametrize("arguments", ['{"text": "x"}', "[1]", '{"input": 3}', "free text"])
def test_other_arguments_are_given_as_they_are(arguments: str) -> None:
    reader = CustomInput()
    assert "".join(map(reader.feed, arguments)) == arguments
