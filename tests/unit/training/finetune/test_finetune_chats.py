"""Chats are read in both forms; what is no chat is refused with file, line and reason."""

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.finetune.chats import MOST_LINE_BYTES, parse_chat, read_chats
from training.finetune.errors import BadChats, FinetuneError

ASKED = {"role": "user", "content": "Who?"}
TOLD = {"role": "assistant", "content": "Ada."}


def line(*turns: Any, **more: Any) -> bytes:
    return json.dumps({"messages": turns, **more}).encode()


def shared(*turns: tuple[Any, Any]) -> bytes:
    return json.dumps({"conversations": [{"from": one, "value": text} for one, text in turns]}).encode()


def test_both_forms_give_the_same_chat() -> None:
    one = parse_chat(line({"role": "system", "content": "Be short."}, ASKED, TOLD), 7)
    other = parse_chat(shared(("system", "Be short."), ("human", "Who?"), ("gpt", "Ada.")), 7)
    assert one == other
    assert [message.role for message in one.messages] == ["system", "user", "assistant"]
    assert (one.line, one.trained) == (7, frozenset({2}))


def test_answers_of_weight_0_are_not_learned() -> None:
    chat = parse_chat(line(ASKED, {**TOLD, "weight": 0}, ASKED, {**TOLD, "weight": 1}), 1)
    assert chat.trained == {3}


def test_parts_of_text_are_joined() -> None:
    parts = [{"type": "text", "text": "Who "}, {"type": "text", "text": "is it?"}]
    assert parse_chat(line({"role": "user", "content": parts}, TOLD), 1).messages[0].content == "Who is it?"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"{", "no JSON: Expecting property name"),
        (b'{"messages": [\xff]}', "no UTF-8 at byte 15"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[]", "no JSON object"),
        (b"{}", 'either "messages" (OpenAI) or "conversations" (ShareGPT)'),
        (b'{"messages": [], "conversations": []}', "a chat has either"),
        (b'{"messages": []}', '"messages" is no list of messages'),
        (b'{"messages": {"role": "user"}}', '"messages" is no list of messages'),
        (line("hello"), "messages[0] is no JSON object"),
        (line({"role": "robot", "content": "x"}), "messages[0].role is 'robot'; it must be one of"),
        (line({"content": "x"}), "messages[0].role is missing"),
        (line({"role": ["user"], "content": "x"}), "messages[0].role is ['user']"),
        (line({"role": "user", "content": 5}, TOLD), "messages[0].content is no text"),
        (line({"role": "user", "content": [{"type": "image_url"}]}, TOLD), "parts that are no text"),
        (line(ASKED, {"role": "assistant", "content": " \n"}), "messages[1].content is empty"),
        (line(ASKED, {"role": "assistant", "content": None}), "messages[1].content is no text"),
        (line(ASKED, {**TOLD, "tool_calls": [{}]}), "messages[1].tool_calls cannot be trained"),
        (line(ASKED, {**TOLD, "weight": 0.5}), "messages[1].weight is 0.5; it must be 0 or 1"),
        (line(ASKED, {**TOLD, "weight": 0}), "no assistant's message to learn"),
        (line(ASKED), "no assistant's message to learn"),
        (line(TOLD), "messages[0] is an answer, and the message before it is not the user's"),
        (line(ASKED, ASKED, TOLD), "messages[1] and the one before are both of the user; join them"),
        (line(ASKED, {"role": "system", "content": "x"}, TOLD), "only the first message may be one"),
        (line(ASKED, TOLD, tools=[{}]), '"tools" cannot be trained'),
        (line({"role": "user", "content": "\ud800"}, TOLD), "half a surrogate pair"),
        (shared(("bot", "x")), "conversations[0].from is 'bot'; it must be one of system, human"),
        (shared(("human", 3), ("gpt", "x")), "conversations[0].value is no text"),
    ],
)
def test_what_is_no_chat_is_refused(text: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        parse_chat(text, 1)


@given(st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.sampled_from(["user", "assistant"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["messages", "conversations", "role", "content", "from", "value", "weight"]), inner
    ),
))  # fmt: skip
def test_any_json_is_a_chat_or_refused(value: Any) -> None:
    with suppress(ValueError):
        assert parse_chat(json.dumps(value).encode(), 1).trained


def test_a_file_names_its_bad_lines(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    good = line(ASKED, TOLD)
    path.write_bytes(b"\n".join([good, b"", b"{", good, *[line(ASKED)] * 6]))
    with pytest.raises(BadChats) as refused:
        read_chats(path)
    lines = str(refused.value).splitlines()
    assert lines[0].startswith(f"{path}:3: no JSON")
    assert lines[1] == f"{path}:5: no assistant's message to learn"
    assert len(lines) == 6
    assert lines[-1] == "and 2 more lines"


def test_empty_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_bytes(b"\n" + line(ASKED, TOLD) + b"\r\n \n" + line(ASKED, TOLD))
    chats, sha = read_chats(path)
    assert [chat.line for chat in chats] == [2, 4]
    path.write_bytes(path.read_bytes() + b"\n")
    assert read_chats(path)[1] != sha


def test_files_that_hold_nothing_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    with pytest.raises(FinetuneError, match="No such file"):
        read_chats(path)
    with pytest.raises(FinetuneError, match="cannot be read"):
        read_chats(tmp_path)
    path.write_bytes(b"\n\n")
    with pytest.raises(FinetuneError, match="has no chats"):
        read_chats(path)
    path.write_bytes(b" " * (MOST_LINE_BYTES + 1))
    with pytest.raises(BadChats, match=":1: longer than 16 MiB"):
        read_chats(path)
