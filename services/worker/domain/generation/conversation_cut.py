"""Chooses the beginning of a conversation that is too long for the context (`truncation: "auto"`). Pure.

The oldest turns go first; leading system messages and the last message of the user stay. What goes is rounded
up to whole steps of characters, so that the following turns begin at the same message and find their KV.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from shared.messages import ChatMessage

T = TypeVar("T")


def shorter_conversations(messages: Sequence[ChatMessage], step_chars: int) -> list[list[ChatMessage]]:
    """The conversations that may be tried, the longest first; the first is the whole one.

    A call and its results stay together.

    Args:
        messages: The whole conversation.
        step_chars: Characters that a step drops at least.
    """
    head = 0
    while head < len(messages) and messages[head].role in ("system", "developer"):
        head += 1
    users = [index for index in range(head, len(messages)) if messages[index].role == "user"]
    last = users[-1] if users else head
    # later than the user's last message, rounds of calls and their results may go
    rounds = [index for index in range(last + 1, len(messages)) if messages[index].role == "assistant"]
    question = list(messages[last : last + 1]) if users else []
    ends = {*users[-1:], *rounds[-1:]}  # the shortest that there are
    found, dropped, due, at = [list(messages)], 0, step_chars, head
    for position in [*users, *rounds]:
        dropped += sum(_size(message) for message in messages[at:position])
        at = position
        if position == head or (position == last + 1 and question):
            continue
        if dropped >= due or position in ends:
            kept = question if position > last else []
            found.append([*messages[:head], *kept, *messages[position:]])
            due = (dropped // step_chars + 1) * step_chars
    return found


def first_that_fits(choices: Sequence[T], fits: Callable[[T], bool]) -> T:
    """The first of several choices that fits, found by halving; the last one if none does.

    Args:
        choices: One that comes after another needs no more room than that.
        fits: Called for few of them.
    """
    low, high = 0, len(choices) - 1
    while low < high:
        middle = (low + high) // 2
        if fits(choices[middle]):
            high = middle
        else:
            low = middle + 1
    return choices[low]


def _size(message: ChatMessage) -> int:
    calls = sum(len(call.arguments) + len(call.name) for call in message.tool_calls)
    return len(message.content) + len(message.reasoning) + calls
