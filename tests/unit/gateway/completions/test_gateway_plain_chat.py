"""Bodies that are read straight into a call make the call that the models of bodies make of them."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.gateway.admission.request_headers import RawHeaders
from services.gateway.answering.call import Call
from services.gateway.answering.intake.new_calls import IdempotentCall
from services.gateway.formats.chat.call import chat_call, plain_chat_call
from services.gateway.formats.chat.schema import ChatCompletionRequest
from services.gateway.formats.fields.body_format import CallOrigin, parse_body
from shared.codec import encode
from shared.errors import InvalidRequest

HELLO = [{"role": "user", "content": "Hello"}]
ONCE = IdempotentCall("0" * 32, "1" * 32)  # seed and session follow from it


def same(raw: bytes, headers: RawHeaders | None = None, once: IdempotentCall | None = ONCE) -> bool:
    """Whether the body is taken as a plain one; then both ways must make the same of it."""
    origin = CallOrigin("r1", "acme", headers or {}, once, b"secret")
    plain = outcome(lambda: plain_chat_call(raw, origin))
    if plain is None:
        return False
    usual = outcome(lambda: chat_call(parse_body(raw, ChatCompletionRequest), origin))
    assert plain == usual
    if isinstance(plain, Call) and isinstance(usual, Call):
        assert list(map(encode, plain.requests)) == list(map(encode, usual.requests))
    return True


def outcome(make: Callable[[], Call | None]) -> object:
    """The call, or the text and the data of the refusal."""
    try:
        return make()
    except InvalidRequest as error:
        return error.message, error.data


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "demo", "messages": HELLO} | fields).encode()


NAMES = st.sampled_from(["", "demo", "a/b:1", "a b", "demo\n", "\x7f", "é", "\u202ex", "m" * 128, "m" * 129])
NUMBERS = st.one_of(
    st.sampled_from([-1, 0, 1, 2, 16, 17, 2**31 - 1, 2**31, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1]),
    st.sampled_from([-0.0, 0.0, 0.5, 1.0, 2.0, 2.0001, 1e-400, 1e300, -2.0, 10.0]),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
)
TEXTS = st.one_of(st.text(max_size=6), st.sampled_from(["x" * 256, "x" * 257, "\x00"]))
ANY = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS, st.lists(TEXTS, max_size=17), st.just({}))
MESSAGES = st.one_of(
    st.lists(
        st.fixed_dictionaries(
            {
                "role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "x"]),
                "content": st.one_of(TEXTS, st.none(), st.just([{"type": "text", "text": "Hi"}])),
            },
            optional={"name": ANY, "refusal": ANY, "tool_calls": ANY, "tool_call_id": ANY, "foo": ANY},
        ),
        max_size=4,
    ),
    ANY,
)
OPTIONS = st.one_of(
    ANY, st.fixed_dictionaries({}, optional={"include_usage": ANY, "include_event_ids": ANY, "foo": ANY})
)
OTHERS = dict.fromkeys(
    [
        *("echo", "foo", "frequency_penalty", "ignore_eos", "logprobs", "max_completion_tokens"),
        *("max_tokens", "min_p", "n", "presence_penalty", "repetition_penalty", "response_format", "seed"),
        *("session_id", "session_must_exist", "stop", "stream", "strem", "temperature", "tools", "top_k"),
        *("prompt_cache_key", "top_p", "user"),
    ],
    ANY,
)
BODIES = st.fixed_dictionaries(
    {}, optional={"model": NAMES, "messages": MESSAGES, "stream_options": OPTIONS, **OTHERS}
)
ONE_FIELD = st.sampled_from(sorted(OTHERS)).flatmap(lambda name: st.fixed_dictionaries({name: OTHERS[name]}))
HEADERS = st.dictionaries(
    st.sampled_from(b"x-session-id x-session-mode if-match x-session-must-exist x-stream-grace".split()),
    st.sampled_from([*b"my-cat append true 3 * s-0000000000000000-0000000000000000".split(), b"a b", b""]),
)


@given(BODIES, HEADERS)
def test_any_body_makes_the_same_call(fields: dict[str, Any], headers: RawHeaders) -> None:
    same(json.dumps({"model": "demo", "messages": HELLO} | fields).encode(), headers)


@given(ONE_FIELD, MESSAGES, HEADERS)
@example({"n": 16}, HELLO, {})
def test_one_more_field_makes_the_same_call(
    field: dict[str, Any], messages: Any, headers: RawHeaders
) -> None:
    same(body(**field), headers)
    same(
        json.dumps({"model": "demo", "messages": messages} | field, ensure_ascii=False).encode(
            errors="replace"
        )
    )


@given(st.integers(0, 200), st.binary(max_size=3))
def test_broken_json_makes_the_same_call(index: int, broken: bytes) -> None:
    raw = body(temperature=0.5, stop=["a", "\u00e9"], n=2, stream=True, max_tokens=5)
    same(raw[:index] + broken + raw[index + len(broken) :])
    same(raw[:index] + broken + raw[index:])


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_tokens": 16, "temperature": 0, "ignore_eos": True},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"temperature": 1, "top_p": 0.9, "top_k": -1, "n": 3, "seed": -5, "stop": "END", "user": "me"},
        {"prompt_cache_key": "k"},
        {"max_completion_tokens": 7, "max_tokens": 9, "stop": ["a", "b"], "presence_penalty": -0.5},
        {"temperature": None, "stream": None, "stop": None, "session_id": "my-cat"},
        {
            "messages": [
                {"role": "developer", "content": "Be kind."},
                {"role": "user", "content": "Hi", "name": "Ann"},
                {"role": "assistant", "content": ""},
                {"role": "user", "content": "Go on."},
            ]
        },
    ],
)
def test_common_bodies_are_plain(fields: dict[str, Any]) -> None:
    assert same(body(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"response_format": {"type": "text"}},
        {"logprobs": True},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
        {"foo": 1},
        {"temperature": 3},
        {"model": "a b"},
        {"stream_options": {"include_usage": True}},
    ],
)
def test_what_is_not_plain_is_left_to_the_models_of_bodies(fields: dict[str, Any]) -> None:
    assert not same(body(**fields))


def test_a_call_without_a_key_draws_its_seed_and_makes_its_session() -> None:
    origin = CallOrigin("r1", "acme", {}, None, b"secret")
    first, second = plain_chat_call(body(), origin), plain_chat_call(body(), origin)
    assert first is not None
    assert second is not None
    assert first.requests[0].sampling.seed != second.requests[0].sampling.seed
    assert first.session_id != second.session_id
    usual = chat_call(parse_body(body(), ChatCompletionRequest), origin)
    assert first.session_id[:18] == usual.session_id[:18]
