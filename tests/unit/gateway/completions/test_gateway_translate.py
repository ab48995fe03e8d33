"""OpenAI's bodies become `GenerateRequest`s, or errors that name the field."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from services.gateway.admission.errors.refusals import invalid_body
from services.gateway.formats.chat.schema import ChatCompletionRequest
from services.gateway.formats.chat.translation import chat_request
from services.gateway.formats.fields.sampling import Origin
from services.gateway.formats.text.call import completion_requests
from shared.codec import decode, encode, pack_tokens
from shared.errors import InvalidRequest
from shared.messages import ChatMessage, GenerateRequest, Sampling, SessionRef
from tests.kits.gateway.completion_bodies import chat, completion, judged, origin


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
        seed_given=True,
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
    assert chat_request(chat(), origin()).sampling == Sampling(seed=77, seed_given=False)


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
    assert seeds[0] == seed  # the first prompt has the seed of the call
    assert len(set(seeds)) == 128
    assert all(decode(encode(request), GenerateRequest) == request for request in requests)  # in range


def test_a_seed_that_was_asked_for_holds_for_all_prompts() -> None:
    body = completion(prompt=["Once"] * 3, seed=5)
    requests = completion_requests(body, origin(), ["r0", "r1", "r2"])
    assert [request.sampling.seed for request in requests] == [5, 5, 5]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (chat(modalities=["audio"]), "modalities"),
        (chat(audio={"voice": "x"}), "audio"),
        (chat(functions=[{}]), "functions"),
        (chat(function_call="auto"), "function_call"),
        (chat(chat_template="x"), "chat_template"),
        (chat(messages=[{"role": "user", "content": "", "audio": {"id": "a"}}]), "messages[0].audio"),
        (chat(echo=True), "echo"),
        (completion(suffix="end"), "suffix"),
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(body: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        judged(body)
    assert caught.value.data["param"] == param


def test_neutral_values_pass_and_are_not_unknown() -> None:
    body = chat(
        tools=[],
        tool_choice="none",
        response_format={"type": "text"},
        audio=None,
        store=True,
        metadata={"a": "b"},
    )
    assert judged(body) == ([], [])
    assert judged(completion(echo=False, suffix=None)) == ([], [])


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


FIELDS = [*ChatCompletionRequest.model_fields]


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
        judged(body)
        request = chat_request(body, origin())
    except InvalidRequest as refusal:
        param = refusal.data.get("param")
    else:
        param = "none at fault"
        assert decode(encode(request), GenerateRequest) == request
    assert param
