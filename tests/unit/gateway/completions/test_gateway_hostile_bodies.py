"""Expensive bodies of 4 MiB: each is read or refused in bounded CPU time, with a short answer."""

import difflib
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.admission.bodies.json_shape import MAX_VALUES, read_json
from services.gateway.admission.errors.refusals import answer_for
from services.gateway.formats.chat.call import chat_call
from services.gateway.formats.chat.schema import MAX_PARTS, ChatCompletionRequest
from services.gateway.formats.fields.body_format import CallOrigin, parse_body
from services.gateway.formats.text.call import completion_call
from services.gateway.formats.text.schema import CompletionRequest
from services.gateway.resources.sessions import exported_file
from services.gateway.resources.sessions.schema import NewSession
from shared.errors import InvalidRequest, RequestTooLarge, RyzError

SIZE = 4 * 2**20
CPU_S = 1.0  # measured: 0.08 s at most, three times that on a busy machine; without bounds up to 15 s
MAX_ANSWER = 1024
ORIGIN = CallOrigin("r-1", "t", {})
CHAT = '{"model":"demo","messages":[{"role":"user","content":"hi"}],'
FILE = '{"format":"ryzanstein.session","format_version":1,"sha256":"0",'


def filled(head: str, item: Callable[[int], str], tail: str) -> str:
    """Returns a body of up to `SIZE` bytes, with as many items as fit between head and tail."""
    items, size = [], len(head) + len(tail)
    for index in range(SIZE):
        text = item(index)
        size += len(text) + 1
        if size > SIZE:
            break
        items.append(text)
    return head + ",".join(items) + tail


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


CHATS: dict[str, Callable[[], str]] = {
    "unknown fields": lambda: filled(CHAT, lambda i: f'"temperaturf{i:06d}":1', "}"),
    "unknown fields of few letters": lambda: filled(CHAT, lambda i: f'"{i:x}":1', "}"),
    "one field many times": lambda: filled(CHAT, lambda i: '"temperatur":1', "}"),
    "a long field": lambda: CHAT + f'"{"a" * (SIZE - 100)}":1}}',
    "biases": lambda: filled(CHAT + '"logit_bias":{', lambda i: f'"{i}":1', "}}"),
    "a list of biases": lambda: filled(CHAT + '"logit_bias":[', lambda i: "1", "]}"),
    "stops": lambda: filled(CHAT + '"stop":[', lambda i: '"a"', "]}"),
    "stops of all kinds": lambda: filled(CHAT + '"stop":["a",', lambda i: "1", "]}"),
    "messages": lambda: filled('{"model":"m","messages":[', lambda i: '{"role":"user","content":""}', "]}"),
    "wrong messages": lambda: filled('{"model":"m","messages":[', lambda i: '{"role":"x","name":1}', "]}"),
    "4000 wrong messages": lambda: (
        '{"model":"m","messages":['
        + ",".join(["{" + ",".join(f'"{j}":0' for j in range(60)) + "}"] * 4000)
        + "]}"
    ),
    "a message of many fields": lambda: filled(
        '{"model":"m","messages":[{"role":"user","content":"x",', lambda i: f'"f{i}":0', "}]}"
    ),
    "content of many parts": lambda: filled(
        '{"model":"m","messages":[{"role":"user","content":[', lambda i: '{"type":"text","text":""}', "]}]}"
    ),
    "a part of a huge kind": lambda: filled(
        '{"model":"m","messages":[{"role":"user","content":[{"type":[', lambda i: "{}", "]}]}]}"
    ),
    "tools": lambda: filled(CHAT + '"tools":[', lambda i: "{}", "]}"),
    "a response format": lambda: filled(CHAT + '"response_format":{', lambda i: f'"{i}":1', "}}"),
    "stream options": lambda: filled(CHAT + '"stream_options":{', lambda i: f'"f{i}":1', "}}"),
    "empty lists": lambda: filled(CHAT + '"x":[', lambda i: "[]", "]}"),
    "deep": lambda: CHAT + f'"x":{nested(2_000_000)}}}',
    "deep many times": lambda: filled(CHAT + '"x":[', lambda i: nested(190), "]}"),
    "long floats": lambda: filled(CHAT + '"x":[', lambda i: "1.7976931348623157e308", "]}"),
    "one long float": lambda: CHAT + f'"temperature":0.{"1" * (SIZE - 100)}}}',
    "long numbers": lambda: filled(CHAT + '"x":[', lambda i: "9" * 4200, "]}"),
    "one long number": lambda: CHAT + f'"seed":{"9" * (SIZE - 100)}}}',
    "a number of 4300 digits": lambda: CHAT + f'"seed":{"9" * 4300}}}',
    "NaN before much": lambda: filled(CHAT + '"temperature":NaN,"x":[', lambda i: f'{{"a":{i}}}', "]}"),
    "not closed": lambda: filled(CHAT + '"x":[', lambda i: "{}", "]"),
    "escapes": lambda: CHAT[:-4] + "\\u0041" * (SIZE // 6 - 20) + '"}]}',
    "escaped quotes": lambda: CHAT[:-4] + '\\",[{\\\\' * (SIZE // 7 - 20) + '"}]}',
    "half surrogates": lambda: CHAT[:-4] + "\\ud83d" * (SIZE // 6 - 20) + '"}]}',
    "a long role": lambda: f'{{"model":"m","messages":[{{"role":"{"a" * (SIZE - 100)}"}}]}}',
    "a long model": lambda: f'{{"model":"{"a" * (SIZE - 100)}","messages":[]}}',
    "a long session": lambda: CHAT + f'"session_id":"{"a" * (SIZE - 100)}"}}',
    "blanks": lambda: CHAT + " " * (SIZE - 100) + '"n":1}',
}
COMPLETIONS: dict[str, Callable[[], str]] = {
    "prompts": lambda: filled('{"model":"m","prompt":[', lambda i: '"a"', "]}"),
    "token ids": lambda: filled('{"model":"m","prompt":[', lambda i: "1", "]}"),
    "token ids and a string": lambda: filled('{"model":"m","prompt":[', lambda i: "100000", ',"a"]}'),
    "prompts of one token": lambda: filled('{"model":"m","prompt":[', lambda i: "[1]", "]}"),
    "empty prompts": lambda: filled('{"model":"m","prompt":[', lambda i: "[]", "]}"),
    "unknown fields": lambda: filled('{"model":"m","prompt":"a",', lambda i: f'"top_x{i}":1', "}"),
}
SESSIONS: dict[str, Callable[[], str]] = {
    "unknown fields": lambda: filled("{", lambda i: f'"f{i}":1', "}"),
    "a long unknown field": lambda: f'{{"{"a" * (SIZE - 10)}":1}}',
    "wrong messages": lambda: filled('{"messages":[', lambda i: '{"role":"x","content":1}', "]}"),
}
FILES: dict[str, Callable[[], str]] = {
    "lists": lambda: filled(FILE + '"x":[', lambda i: "[]", "]}"),
    "floats": lambda: filled(FILE + '"token_ids":[', lambda i: "1.5e300", "]}"),
    "keys": lambda: filled(FILE + '"token_ids":{', lambda i: f'"{i}":0', "}}"),
    "a huge version": lambda: filled(
        '{"format":"ryzanstein.session","format_version":[', lambda i: "[]", "]}"
    ),
}


def chat(raw: bytes) -> object:
    return chat_call(parse_body(raw, ChatCompletionRequest), ORIGIN)


def completion(raw: bytes) -> object:
    return completion_call(parse_body(raw, CompletionRequest), ORIGIN, max_prompts=100)


def session(raw: bytes) -> object:
    return parse_body(raw, NewSession)


def answer_to(read: Callable[[bytes], object], raw: bytes) -> bytes:
    """Returns the body of the refusal, or empty bytes if the body was read."""
    try:
        read(raw)
    except RyzError as error:
        return answer_for(error).body
    return b""


def cpu_s(read: Callable[[bytes], object], raw: bytes) -> float:
    """Returns the CPU time in seconds that reading the body takes."""
    began_s = time.process_time()
    answer_to(read, raw)
    return time.process_time() - began_s


@pytest.mark.parametrize(
    ("read", "make"),
    [
        pytest.param(read, make, id=f"{read.__name__}: {name}")
        for read, bodies in (
            (chat, CHATS), (completion, COMPLETIONS), (session, SESSIONS), (exported_file.read_session, FILES)
        )
        for name, make in bodies.items()
    ],
)  # fmt: skip
def test_the_time_and_the_answer_are_bounded(
    read: Callable[[bytes], object], make: Callable[[], str]
) -> None:
    raw = make().encode()
    assert len(raw) <= SIZE
    assert len(answer_to(read, raw)) < MAX_ANSWER
    assert any(cpu_s(read, raw) < CPU_S for _ in range(3))  # other processes on the cores add time


def test_only_a_few_unknown_fields_are_looked_at_for_slips(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def matches(word: str, *_: Any, **__: Any) -> list[str]:
        asked.append(word)
        return []

    monkeypatch.setattr(difflib, "get_close_matches", matches)
    extra = {f"temperatur{index}": 1 for index in range(200)}
    raw = json.dumps(extra | {"model": "m", "messages": [{"role": "user", "content": "x"}]}).encode()
    call = chat_call(parse_body(raw, ChatCompletionRequest), ORIGIN)
    assert len(call.unknown_fields) == 200
    assert len(asked) == 16


def test_a_bias_or_a_prompt_too_many_is_refused_by_name() -> None:
    biases = {str(index): 1 for index in range(1025)}
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "logit_bias": biases}
    with pytest.raises(InvalidRequest, match="`logit_bias` must have at most 1024 tokens, got 1025"):
        chat(json.dumps(body).encode())
    with pytest.raises(InvalidRequest, match="at most 999 prompts, got 1000"):
        completion(json.dumps({"model": "m", "prompt": ["a"] * 1000}).encode())


def test_a_long_prompt_of_token_ids_or_of_text_is_read() -> None:
    ids = list(range(131_072))
    assert completion(json.dumps({"model": "m", "prompt": ids}).encode())
    text = '{"a": [1, 2], "b\\": {}},' * 60_000
    assert completion(json.dumps({"model": "m", "prompt": text}).encode())


def test_values_are_counted_outside_of_strings_only() -> None:
    assert read_json(b'["\\",[{", "\\\\", 1]', max_values=8) == ['",[{', "\\", 1]
    with pytest.raises(RequestTooLarge) as caught:
        read_json(b'["\\\\", [1, [2]]]', max_values=4)
    assert caught.value.data["reason"] == "body_values"


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.none()
        | st.integers()
        | st.text(alphabet='",[{\\}]:ab')
        | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='"\\,a'), inner),
        max_leaves=30,
    )
)
def test_a_value_is_read_exactly_if_it_fits(value: Any) -> None:
    def values(of: Any) -> int:
        children = list(of.values()) if isinstance(of, dict) else of if isinstance(of, list) else []
        container = isinstance(of, list | dict)
        return container + max(0, len(children) - 1) + sum(map(values, children))

    raw, count = json.dumps(value).encode(), values(value)
    room = max(1, count, raw.replace(b"\\\\", b"").replace(b'\\"', b"").count(b'"'))
    assert read_json(raw, max_values=room) == value
    if count > 1:
        with pytest.raises(RequestTooLarge):
            read_json(raw, max_values=count - 1)


def test_the_default_bound_takes_every_body_that_was_read_before_it_was_there() -> None:
    assert MAX_VALUES > 131_072  # the longest context among models that are served


def test_the_parts_of_a_message_have_a_bound() -> None:
    part = {"type": "text", "text": "a"}

    def chat(parts: int) -> bytes:
        content = [part] * parts
        return json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode()

    messages = parse_body(chat(MAX_PARTS), ChatCompletionRequest).messages
    assert messages is not None
    assert messages[0].content == "a" * MAX_PARTS
    with pytest.raises(InvalidRequest, match=r"`messages\[0\].content` must have at most 4096 text parts"):
        parse_body(chat(MAX_PARTS + 1), ChatCompletionRequest)


@pytest.mark.parametrize("ids", [[], [True], [1.0], ["1", 1], [1, -1], [2**32], [2**70], [[2**32]]])
def test_what_is_no_list_of_token_ids(ids: list[Any]) -> None:
    with pytest.raises(InvalidRequest, match="`prompt`"):
        parse_body(json.dumps({"model": "m", "prompt": ids}).encode(), CompletionRequest)


def test_token_ids_up_to_their_largest() -> None:
    body = parse_body(json.dumps({"model": "m", "prompt": [0, 2**32 - 1]}).encode(), CompletionRequest)
    assert body.prompt == [[0, 2**32 - 1]]
