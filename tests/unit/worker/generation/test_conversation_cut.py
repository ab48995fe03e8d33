"""A conversation that is too long loses its oldest turns, in steps, and begins at the same place for long."""

from itertools import pairwise

from services.worker.domain.generation.conversation_cut import first_that_fits, shorter_conversations
from shared.messages import ChatMessage, ToolCall

SYSTEM = ChatMessage(role="system", content="s")


def turns(count: int) -> list[ChatMessage]:
    made = [SYSTEM]
    for number in range(count):
        made.append(ChatMessage(role="user", content=f"q{number}".ljust(50)))
        made.append(ChatMessage(role="assistant", content=f"a{number}".ljust(50)))
    return [*made, ChatMessage(role="user", content="last")]


def size(messages: list[ChatMessage]) -> int:
    return sum(len(message.content) for message in messages)


def test_whole_turns_go_and_what_must_stay_stays() -> None:
    found = shorter_conversations(turns(6), 100)
    assert found[0] == turns(6)
    assert all(part[0] == SYSTEM and part[1].role == "user" for part in found)
    assert found[-1] == [SYSTEM, ChatMessage(role="user", content="last")]
    assert [size(part) for part in found] == sorted((size(part) for part in found), reverse=True)
    assert len(found) == 7


def test_the_beginning_stays_the_same_while_a_conversation_grows() -> None:
    beginnings = []
    for count in range(1, 60):
        part = first_that_fits(shorter_conversations(turns(count), 500), lambda one: size(one) <= 1500)
        assert size(part) <= 1500
        beginnings.append(part[1].content)
    changes = sum(a != b for a, b in pairwise(beginnings))
    assert 5 <= changes <= 10  # 45 turns are dropped in the end


def test_rounds_of_calls_after_the_question_go_with_their_results() -> None:
    question = ChatMessage(role="user", content="do it")
    rounds = []
    for number in range(5):
        call = ToolCall(call_id=f"c{number}", name="f", arguments="x" * 90)
        rounds += [
            ChatMessage(role="assistant", content="", tool_calls=[call]),
            ChatMessage(role="tool", content="y" * 100, tool_call_id=f"c{number}"),
        ]
    found = shorter_conversations([SYSTEM, question, *rounds], 150)
    assert found[-1] == [SYSTEM, question, *rounds[-2:]]
    assert all(part[:2] == [SYSTEM, question] and part[2].role == "assistant" for part in found)


def test_what_does_not_fit_at_all_is_left_to_the_check_of_lengths() -> None:
    assert first_that_fits([3, 2, 1], lambda _: False) == 1
    assert first_that_fits([3], lambda _: False) == 3
    assert first_that_fits([4, 3, 2, 1], lambda number: number <= 2) == 2
