"""Blocks that change with each request leave the prompt, and the text beside them stays as it is."""

import pytest

from services.gateway.formats.fields.changing_blocks import CHANGING_BLOCKS, without_changing_blocks
from shared.messages import ChatMessage

BILLING = "x-anthropic-billing-header: cc_version=2.1.37.3a1; cc_entrypoint=cli; cch={};"
YOU = "You are Claude Code, Anthropic's official CLI for Claude."


def system(content: str) -> list[ChatMessage]:
    return [ChatMessage(role="system", content=content), ChatMessage(role="user", content="Hi")]


@pytest.mark.parametrize("cch", ["00000", "f3a91", "abcdef12"])
def test_the_prompt_is_the_same_whatever_the_checksum(cch: str) -> None:
    block = BILLING.format(cch)
    for text in (f"{block}\n{YOU}", f"{block}{YOU}"):
        messages, left_out = without_changing_blocks(system(text))
        assert messages == system(YOU)
        assert [(part.kind, part.why) for part in left_out] == [("block", "x-anthropic-billing-header")]
    assert without_changing_blocks(system(block))[0] == system("")[1:]


@pytest.mark.parametrize(
    "text",
    [
        YOU,
        "Explain x-anthropic-billing-header: cc_version=1; please",
        "x-anthropic-billing-header: is a header",
    ],
)
def test_other_text_stays(text: str) -> None:
    assert without_changing_blocks(system(text)) == (system(text), [])


def test_what_a_user_says_stays() -> None:
    said = [ChatMessage(role="user", content=BILLING.format("1"))]
    assert without_changing_blocks(said) == (said, [])
    alone = [ChatMessage(role="system", content=BILLING.format("1"))]
    assert without_changing_blocks(alone) == (alone, [])


def test_each_row_says_why() -> None:
    assert all(block.why and block.pattern.pattern and block.mark for block in CHANGING_BLOCKS)
