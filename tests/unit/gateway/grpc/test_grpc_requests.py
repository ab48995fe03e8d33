"""Requests become calls of HTTP routes, by names that people know; what cannot be done is told."""

import json
import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.transports.grpc.protocol.inference_pb2 import ModelInferRequest
from services.gateway.transports.grpc.serving.call_metadata import (
    add_request_headers,
    headers_of,
    peer_address,
)
from services.gateway.transports.grpc.translation.inference_request import (
    CHAT,
    TEXT,
    InferenceCall,
    read_call,
)
from shared.errors import InvalidRequest, ModelNotFound

CONTENTS = {str: "bytes_contents", bool: "bool_contents", int: "int64_contents", float: "fp64_contents"}
TYPES = {str: "BYTES", bool: "BOOL", int: "INT64", float: "FP64"}


def request(parameters: dict[str, Any] | None = None, **inputs: Any) -> ModelInferRequest:
    made = ModelInferRequest(model_name="demo", id="7")
    for name, elements in inputs.items():
        values = elements if isinstance(elements, list) else [elements]
        kind = type(values[0])
        tensor = made.inputs.add(name=name, datatype=TYPES[kind], shape=[len(values)])
        data = [value.encode() if kind is str else value for value in values]
        getattr(tensor.contents, CONTENTS[kind]).extend(data)
    for name, value in (parameters or {}).items():
        field = {str: "string_param", bool: "bool_param", int: "int64_param", float: "double_param"}[
            type(value)
        ]
        setattr(made.parameters[name], field, value)
    return made


def body(call: InferenceCall) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call.body)
    return found


def test_a_text_with_the_parameters_of_vllm() -> None:
    sampling = json.dumps({"temperature": "0.5", "max_tokens": "9", "ignore_eos": "True", "stop": "END"})
    call = read_call(request(text_input="Hi", sampling_parameters=sampling, exclude_input_in_output=False))
    assert call.path == TEXT
    assert not call.stream
    assert body(call) == {
        "model": "demo",
        "stream": False,
        "prompt": "Hi",
        "echo": True,
        "temperature": 0.5,
        "max_tokens": 9,
        "ignore_eos": True,
        "stop": ["END"],
    }


def test_a_text_with_the_tensors_of_tensorrt_llm() -> None:
    call = read_call(
        request(
            text_input="Hi",
            stream=True,
            max_tokens=5,
            random_seed=3,
            stop_words=["a", "b"],
            beam_width=1,
            return_log_probs=True,
            end_id=2,
        )
    )
    assert body(call) == {
        "model": "demo",
        "stream": True,
        "prompt": "Hi",
        "max_tokens": 5,
        "seed": 3,
        "stop": ["a", "b"],
        "logprobs": 0,
        "stream_options": {"include_usage": True},
    }


def test_a_chat_by_parameters() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    given = {"messages": json.dumps(messages), "tools": json.dumps(tools), "tool_choice": "auto", "seed": 4}
    call = read_call(request(given, return_logprobs=True))
    assert call.path == CHAT
    assert body(call) == {
        "model": "demo",
        "stream": False,
        "messages": messages,
        "tools": tools,
        "tool_choice": "auto",
        "seed": 4,
        "logprobs": True,
    }


def test_several_texts_and_tokens() -> None:
    assert body(read_call(request(text_input=["a", "b"])))["prompt"] == ["a", "b"]
    assert body(read_call(request(input_ids=[4, 5])))["prompt"] == [4, 5]


def test_a_sequence_is_a_session() -> None:
    given = {"sequence_id": 12, "sequence_start": True, "sequence_end": True, "timeout": 2_500_000}
    call = read_call(request(given, messages='[{"role":"user","content":"Hi"}]'))
    assert (call.session_id, call.begins_session, call.ends_session, call.timeout_s) == (
        "12",
        True,
        True,
        2.5,
    )
    assert body(call)["session_id"] == "12"
    headers: dict[bytes, bytes] = {}
    add_request_headers(headers, call, 1.25)
    assert headers == {
        b"x-request-timeout": b"1.250000",
        b"x-request-id": b"7",
        b"x-session-mode": b"replace",
    }
    assert read_call(request({"session_id": "s"}, text_input="Hi")).session_id == "s"


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (request(), "needs the input `text_input`"),
        (request(text_input="a", input_ids=[1]), "only one of them"),
        (request(text_input="a", messages="[]"), "no `text_input` beside it"),
        (request(text_input=4), "datatype BYTES"),
        (request(messages="[{"), "`messages` needs JSON"),
        (request(messages=3), "`messages` needs a text"),
        (request(text_input="a", sampling_parameters="[1]"), "needs an object"),
        (request(text_input="a", sampling_parameters='{"stream":true}'), "`stream` cannot be given here"),
        (
            request({"seed": 1}, text_input="a", random_seed=2),
            "`seed` cannot be given here, or is given twice",
        ),
        (request(text_input="a", temperature=[0.1, 0.2]), "`temperature` needs one element"),
        (request(text_input="a", stream=1), "`stream` needs one element of BOOL"),
        (request(text_input="a", return_context_logits=True), "logits are not sent"),
        (request(text_input="a", temperature=math.nan), "`temperature` needs a finite number"),
        (request({"top_p": math.inf}, text_input="a"), "`top_p` needs a finite number"),
        (request({"timeout": "x"}, text_input="a"), "`timeout` needs a number"),
        (request({"logit_bias": "{"}, text_input="a"), "`logit_bias` needs JSON"),
    ],
)
def test_what_is_wrong_is_reported(made: ModelInferRequest, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        read_call(made)


def test_versions_outputs_and_empty_parameters() -> None:
    made = request(text_input="a")
    made.model_version = "2"
    with pytest.raises(ModelNotFound, match="version '1' only"):
        read_call(made)
    made.model_version = "1"
    made.outputs.add(name="text_output")
    assert read_call(made).outputs == {"text_output"}
    made.outputs.add(name="logits")
    with pytest.raises(InvalidRequest, match="no output `logits`"):
        read_call(made)
    empty = request(text_input="a")
    empty.parameters["x"].SetInParent()
    with pytest.raises(InvalidRequest, match="`x` has no value"):
        read_call(empty)


names = st.sampled_from(
    ["text_input", "messages", "stream", "sampling_parameters", "max_tokens", "stop_words", "seed", "x", ""]
)
shapes = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3), max_size=4)
raws = st.binary(max_size=24) | st.text(max_size=8).map(
    lambda text: len(text.encode()).to_bytes(4, "little") + text.encode()
)
tensors = st.tuples(names, st.sampled_from(["BYTES", "BOOL", "INT32", "FP32", "UINT64", "?"]), shapes, raws)
values = st.one_of(
    st.text(max_size=8), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.just("[1, {}]")
)


@settings(max_examples=300, deadline=None)
@given(st.lists(tensors, max_size=4), st.dictionaries(names, values, max_size=3), st.booleans())
def test_any_message_is_read_or_refused(
    inputs: list[tuple[str, str, list[int], bytes]], parameters: dict[str, Any], raw: bool
) -> None:
    made = request(parameters)
    for name, datatype, shape, data in inputs:
        tensor = made.inputs.add(name=name, datatype=datatype, shape=shape)
        if raw:
            made.raw_input_contents.append(data)
        else:
            tensor.contents.bytes_contents.append(data)
    with suppress(InvalidRequest, ModelNotFound):
        json.loads(read_call(made).body)


def test_a_request_has_headers_of_its_own() -> None:
    made = request({"idempotency_key": "k1", "if_match": 3, "if_none_match": "*"})
    texts = made.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    texts.contents.bytes_contents.append(b"Once")
    call = read_call(made)
    assert json.loads(call.body).keys() == {"model", "prompt", "stream"}
    headers = headers_of([("idempotency-key", "of the stream")], single=False)
    add_request_headers(headers, call, None)
    assert headers.pop(b"x-request-id")
    assert headers == {b"idempotency-key": b"k1", b"if-match": b"3", b"if-none-match": b"*"}
    for wrong in (True, "two\nlines"):
        made.parameters["if_match"].CopyFrom(request({"if_match": wrong}).parameters["if_match"])
        with pytest.raises(InvalidRequest, match="if_match"):
            read_call(made)


def test_of_several_time_limits_the_earliest_counts() -> None:
    made = request({"timeout": 2_000_000})
    texts = made.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    texts.contents.bytes_contents.append(b"Once")
    for limit, remaining_s, expected in (("3", 4.0, b"2.000000"), ("1", 4.0, b"1"), ("soon", 4.0, b"soon")):
        headers = headers_of([("x-request-timeout", limit)], single=False)
        add_request_headers(headers, read_call(made), remaining_s)
        assert headers[b"x-request-timeout"] == expected


def test_metadata_and_peers() -> None:
    metadata = [("authorization", "Bearer k"), ("user-agent", "x"), ("idempotency-key", "i")]
    named = [("x-request-id", "mine")]  # requests of a stream have ids of their own
    told = {b"authorization": b"Bearer k", b"idempotency-key": b"i"}
    assert headers_of(metadata + named, single=False) == told
    assert headers_of(metadata + named, single=True) == told | {b"x-request-id": b"mine"}
    assert peer_address("ipv4:127.0.0.1:4000") == ("127.0.0.1", 4000)
    assert peer_address("ipv6:%5B::1%5D:4000") == ("::1", 4000)
    assert peer_address("unix:/tmp/x") is None
