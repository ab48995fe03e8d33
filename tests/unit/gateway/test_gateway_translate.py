"""OpenAI's bodies become `GenerateRequest`s, or errors that name the field."""

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from services.gateway.completions.completion_schema import ChatCompletionRequest, CompletionRequest
from services.gateway.completions.request_translation import (
    Origin,
    chat_request,
    completion_requests,
    refuse_unsupported,
)
from services.gateway.http.errors import invalid_body
from shared.codec import decode, encode, pack_tokens
from shared.errors import InvalidRequest
from shared.messages import ChatMessage, GenerateRequest, Sampling, SessionRef

HELLO = [{"role": "user", "content": "Hello"}]


def chat(**fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate({"model": "demo", "messages": HELLO} | fields)


def completion(**fields: Any) -> CompletionRequest:
    return CompletionRequest.model_validate({"model": "demo", "prompt": "Once"} | fields)


def origin(session: SessionRef | None = None) -> Origin:
    return Origin(request_id="r1", tenant="acme", seed=77, session=session)


def refused(make: Any, /, **fields: Any) -> InvalidRequest:
    with pytest.raises(ValidationError) as caught:
        make(**fields)
    return invalid_body(caught.value)


def test_every_sampling_option_reaches_the_engine() -> None:
    body = chat(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        repetition_penalty=1.1,
        presence_penalty=-0.5,
        frequency_penalty=0.25,
        logit_bias={"12": -100, "7": 1.5},
        seed=5,
        n=3,
        stop=["\n", "END"],
        max_completion_tokens=9,
        logprobs=True,
        top_logprobs=4,
        ignore_eos=True,
        stream=True,
    )
    request = chat_request(body, origin(SessionRef(session_id="s1")))
    assert request.sampling == Sampling(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        repetition_penalty=1.1,
        presence_penalty=-0.5,
        frequency_penalty=0.25,
        logit_bias={12: -100.0, 7: 1.5},
        seed=5,
        n=3,
        max_tokens=9,
        stop=["\n", "END"],
        ignore_eos=True,
        logprobs=4,
    )
    assert (request.delivery, request.tenant, request.request_id) == ("stream", "acme", "r1")
    assert request.session == SessionRef(session_id="s1")


def test_an_absent_or_null_option_is_the_default() -> None:
    nulls = dict.fromkeys(
        (
            "temperature",
            "top_p",
            "top_k",
            "n",
            "stop",
            "max_tokens",
            "seed",
            "logit_bias",
            "stream",
            "logprobs",
        )
    )
    assert chat_request(chat(**nulls), origin()) == chat_request(chat(), origin())
    assert chat_request(chat(), origin()).sampling == Sampling(seed=77)


def test_completions_default_to_sixteen_tokens_as_openai_does() -> None:
    (request,) = completion_requests(completion(), origin(), ["r1"])
    assert request.sampling.max_tokens == 16
    assert (request.prompt, request.messages) == ("Once", None)


def test_content_parts_are_joined_and_developer_is_system() -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    body = chat(
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": parts, "name": "u"},
        ]
    )
    assert chat_request(body, origin()).messages == [
        ChatMessage(role="system", content="Be brief."),
        ChatMessage(role="user", content="Hello", name="u"),
    ]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", [("a", None)]),
        (["a"], [("a", None)]),
        ([1, 2], [(None, pack_tokens([1, 2]))]),
        ([[1, 2], "b"], [(None, pack_tokens([1, 2])), ("b", None)]),
    ],
)
def test_prompts_take_every_form_of_openai(prompt: Any, expected: list[Any]) -> None:
    body = completion(prompt=prompt)
    requests = completion_requests(body, origin(), [f"r{i}" for i in range(len(expected))])
    assert [(request.prompt, request.prompt_token_ids) for request in requests] == expected


@pytest.mark.parametrize("seed", [0, 77, 2**63 - 1])
def test_equal_prompts_of_a_call_have_seeds_of_their_own(seed: int) -> None:
    body = completion(prompt=["Once"] * 128)
    call = Origin(request_id="r1", tenant="acme", seed=seed, session=None)
    requests = completion_requests(body, call, [f"r{i}" for i in range(128)])
    seeds = [request.sampling.seed for request in requests]
    assert seeds[0] == seed  # one prompt is seeded as it ever was
    assert len(set(seeds)) == 128
    assert all(decode(encode(request), GenerateRequest) == request for request in requests)  # in range


def test_a_seed_that_was_asked_for_holds_for_all_prompts() -> None:
    body = completion(prompt=["Once"] * 3, seed=5)
    requests = completion_requests(body, origin(), ["r0", "r1", "r2"])
    assert [request.sampling.seed for request in requests] == [5, 5, 5]


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
        refuse_unsupported(make(**{field: 1}))
    assert caught.value.message == f"unknown field `{field}`: did you mean `{meant}`?"
    assert caught.value.data["param"] == field


@pytest.mark.parametrize(
    "field", ["metadata", "store", "service_tier", "parallel_tool_calls", "whatever", "x" * 100_000]
)
def test_an_unknown_field_that_is_like_none_of_ours_is_counted(field: str) -> None:
    assert refuse_unsupported(chat(**{field: 1})) == 1


def test_a_missing_field_and_a_wrong_body_are_named() -> None:
    error = refused(ChatCompletionRequest.model_validate, obj={"messages": HELLO})
    assert (error.message, error.data["param"]) == ("`model` is required", "model")
    assert "param" not in refused(ChatCompletionRequest.model_validate, obj=[1]).data
    assert refused(completion, prompt=[]).data["param"] == "prompt"
    assert refused(completion, prompt=[1, "a"]).data["param"] == "prompt"
    assert refused(completion, prompt=[-1]).data["param"] == "prompt"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (chat(tools=[{"type": "function"}]), "tools"),
        (chat(tool_choice="auto"), "tool_choice"),
        (chat(response_format={"type": "json_object"}), "response_format"),
        (chat(modalities=["audio"]), "modalities"),
        (chat(audio={"voice": "x"}), "audio"),
        (chat(functions=[{}]), "functions"),
        (chat(messages=[{"role": "assistant", "content": "", "tool_calls": [{}]}]), "messages[0].tool_calls"),
        (completion(echo=True), "echo"),
        (completion(suffix="end"), "suffix"),
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(body: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        refuse_unsupported(body)
    assert caught.value.data["param"] == param


def test_neutral_values_pass_and_unknown_fields_are_counted() -> None:
    body = chat(
        tools=[],
        tool_choice="none",
        response_format={"type": "text"},
        audio=None,
        store=True,
        metadata={"a": "b"},
    )
    assert refuse_unsupported(body) == 2
    assert refuse_unsupported(completion(echo=False, suffix=None)) == 0


@pytest.mark.parametrize(
    ("body", "param"), [(chat(top_logprobs=2), "top_logprobs"), (chat(stream_options={}), "stream_options")]
)
def test_options_that_need_another(body: ChatCompletionRequest, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat_request(body, origin())
    assert caught.value.data["param"] == param


def test_best_of_and_a_session_with_several_prompts_are_refused() -> None:
    for body, session, param in (
        (completion(best_of=2), None, "best_of"),
        (completion(prompt=["a", "b"]), SessionRef(session_id="s"), "prompt"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            completion_requests(body, origin(session), ["r"] * len(body.prompt))
        assert caught.value.data["param"] == param


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = [*ChatCompletionRequest.model_fields, "tools", "response_format"]


@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4))
def test_any_json_gives_a_request_that_the_wire_takes_or_an_error_of_the_family(
    fields: dict[str, Any],
) -> None:
    try:
        body = chat(**fields)
    except ValidationError as error:
        message = invalid_body(error).message
        assert message
        msgspec.json.encode(message)
        return
    try:
        refuse_unsupported(body)
        request = chat_request(body, origin())
    except InvalidRequest as refusal:
        param = refusal.data.get("param")
    else:
        param = "none at fault"
        assert decode(encode(request), GenerateRequest) == request
    assert param
