"""Blocks of text that clients change with every request, and that are left out of prompts. Pure.

A prompt is found in the KV cache up to the first token that differs, so such a block at the beginning would
end the reuse of everything after it, and no model needs it.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from services.gateway.answering.left_out import LeftOut
from shared.messages import ChatMessage, GenerateRequest


class ChangingBlock(NamedTuple):
    """A kind of block.

    Attributes:
        name: For callers and the log.
        pattern: Matches the whole block, with the line's end after it, in a system message.
        mark: A text that each such block has; messages without it are not searched.
        why: What changes in it.
    """

    name: str
    pattern: re.Pattern[str]
    mark: str
    why: str


# Only what the pattern describes in full is left out: text of the user's that follows it stays.
CHANGING_BLOCKS = (
    ChangingBlock(
        "x-anthropic-billing-header",
        re.compile(
            r"^x-anthropic-billing-header:(?:[ \t]*[a-z_]{1,32}=[^;\s]{0,128};)+[ \t]*\n?", re.MULTILINE
        ),
        "x-anthropic-billing-header:",
        "Claude Code's first system block: `cch` is a checksum of the request",
    ),
)


def without_changing_blocks(messages: Sequence[ChatMessage]) -> tuple[list[ChatMessage], list[LeftOut]]:
    """The messages without such blocks, and an entry for each block that was left out.

    A system message that has nothing else goes as a whole.
    """
    kept: list[ChatMessage] = []
    left_out: list[LeftOut] = []
    for index, message in enumerate(messages):
        content = message.content
        if message.role in ("system", "developer"):
            for block in CHANGING_BLOCKS:
                if block.mark not in content:
                    continue
                content, count = block.pattern.subn("", content)
                if count:
                    left_out.append(LeftOut(f"system block {index}", "block", block.name))
        if content == message.content:
            kept.append(message)
        elif content:
            kept.append(msgspec.structs.replace(message, content=content))
    return (kept, left_out) if kept else (list(messages), [])


def request_without_blocks(
    request: GenerateRequest, wanted: bool = True
) -> tuple[GenerateRequest, list[LeftOut]]:
    """A request without such blocks, made before its session is: sessions are found by how they begin.

    Args:
        request: As the body asks for it.
        wanted: The operator has not switched it off.
    """
    if not wanted or not request.messages:
        return request, []
    messages, left_out = without_changing_blocks(request.messages)
    return (msgspec.structs.replace(request, messages=messages) if left_out else request), left_out
