"""Errors about wrong and misspelt fields: the names of the fields and the messages."""

import re
from typing import Any

import pytest

from services.gateway.formats.chat.schema import ChatCompletionRequest
from shared.errors import InvalidRequest
from tests.kits.gateway.completion_bodies import HELLO, chat, completion, judged, refused


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 1.5}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": [1]}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": {"1": float("nan")}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"seed": 2**64}, "seed"),
        ({"model": ""}, "model"),
        ({"model": "a b"}, "model"),
        ({"model": 3}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        (
            {"messages": [*HELLO, {"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[1].content[0].type",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        ({"top_logprobs": 21}, "top_logprobs"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str) -> None:
    error = refused(chat, **fields)
    assert error.data["param"] == param
    assert f"`{param}`" in error.message
    assert not re.search("Input should|(List|String) should|after validation|valid integer", error.message)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": []}, "`messages` must have at least one message"),
        ({"messages": HELLO * 4097}, "`messages` must have at most 4096 messages, got 4097"),
        ({"messages": "hi"}, "`messages` must be a list, got 'hi'"),
        ({"messages": [3]}, "`messages[0]` must be an object, got 3"),
        (
            {"messages": [{"role": "robot", "content": "x"}]},
            "`messages[0].role` must be 'system', 'developer', 'user', 'assistant' or 'tool', got 'robot'",
        ),
        ({"messages": [{"role": "user"}]}, "`messages[0].content` is required"),
        (
            {"messages": [{"role": "user", "content": "x", "name": "n" * 300}]},
            "`messages[0].name` must have at most 256 characters",
        ),
        ({"model": ""}, "`model` must not be empty, got ''"),
        (
            {"model": "a b"},
            "`model` must not have spaces, control characters or marks of text direction, got 'a b'",
        ),
        (
            {"model": "a\u202eb"},
            "`model` must not have spaces, control characters or marks of text direction, got 'a\\u202eb'",
        ),
        ({"model": 3}, "`model` must be a string, got 3"),
        ({"temperature": "warm"}, "`temperature` must be a number, got 'warm'"),
        ({"temperature": 2.5}, "`temperature` must be at most 2, got 2.5"),
        ({"temperature": float("nan")}, "`temperature` must be a finite number, got nan"),
        ({"top_p": 0}, "`top_p` must be greater than 0, got 0"),
        ({"n": "2"}, "`n` must be a whole number, got '2'"),
        ({"seed": -(2**64)}, "`seed` must be at least -9223372036854775808, got -18446744073709551616"),
        ({"n": 0}, "`n` must be at least 1, got 0"),
        ({"max_tokens": 1.5}, "`max_tokens` must be a whole number, got 1.5"),
        ({"max_tokens": 2**40}, "`max_tokens` must be at most 2147483647, got 1099511627776"),
        ({"seed": 2**64}, "`seed` must be less than 9223372036854775808, got 18446744073709551616"),
        ({"stream": "yes"}, "`stream` must be true or false, got 'yes'"),
        ({"stream_options": 3}, "`stream_options` must be an object, got 3"),
        ({"stop": [1]}, "`stop` must be a string or a list of strings"),
    ],
)
def test_what_is_wrong_is_said_in_plain_words(fields: dict[str, Any], message: str) -> None:
    assert refused(chat, **fields).message == message


@pytest.mark.parametrize("body", [[1], None, 3, "x"])
def test_a_body_that_is_no_object_is_said_in_plain_words(body: Any) -> None:
    assert refused(ChatCompletionRequest.model_validate, obj=body).message.startswith(
        "the body must be an object"
    )


@pytest.mark.parametrize(
    ("make", "field", "meant"),
    [
        (chat, "max_token", "max_tokens"),
        (chat, "temprature", "temperature"),
        (chat, "max_completion_token", "max_completion_tokens"),
        (chat, "response_fromat", "response_format"),
        (completion, "frequency_penality", "frequency_penalty"),
        (completion, "best_off", "best_of"),
    ],
)
def test_a_misspelt_field_is_refused_with_the_one_that_was_meant(make: Any, field: str, meant: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        judged(make(**{field: 1}))
    assert caught.value.message == f"unknown field `{field}`: did you mean `{meant}`?"
    assert caught.value.data["param"] == field


@pytest.mark.parametrize("field", ["whatever", "x" * 100_000])
def test_an_unknown_field_that_is_like_none_of_ours_is_counted(field: str) -> None:
    assert judged(chat(**{field: 1})) == ([field[:64]], [])


def test_a_missing_field_and_a_wrong_body_are_named() -> None:
    error = refused(ChatCompletionRequest.model_validate, obj={"messages": HELLO})
    assert (error.message, error.data["param"]) == ("`model` is required", "model")
    assert "param" not in refused(ChatCompletionRequest.model_validate, obj=[1]).data
    assert refused(completion, prompt=[]).data["param"] == "prompt"
    assert refused(completion, prompt=[1, "a"]).data["param"] == "prompt"
    assert refused(completion, prompt=[-1]).data["param"] == "prompt"


@pytest.mark.parametrize(
    "fault", [{}, {"top_logprobs": 2}, {"temperature": 9}, {"n": 0}, {"max_tokens": "many"}, {"stop": 7}]
)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("messages", HELLO),
        ("messages", "hi"),
        ("continue_final_message", True),
        ("chat_template_kwargs", {"a": 1}),
        ("reasoning_effort", "low"),
    ],
)
def test_what_does_not_go_with_a_prompt_of_ids_is_named_first(
    fault: dict[str, Any], name: str, value: object
) -> None:
    error = refused(chat, **{"messages": None, "prompt_token_ids": [5], name: value} | fault)
    assert error.data["param"] == name
    assert error.message == (
        f"`{name}` is for messages, and `prompt_token_ids` is the whole prompt: leave one out"
    )
