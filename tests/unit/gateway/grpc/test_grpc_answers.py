"""Answers of HTTP routes become responses: outputs that are asked for, log probabilities, errors."""

import msgspec

from services.gateway.transports.grpc.protocol.inference_pb2 import ModelInferResponse
from services.gateway.transports.grpc.translation.inference_answer import AnswerPart, ResponseMaker
from services.gateway.transports.grpc.translation.inference_request import CHAT, TEXT, InferenceCall

WHOLE = b"""{"choices": [
  {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "logprobs": {"content": []},
   "finish_reason": "stop"},
  {"index": 1, "message": {"role": "assistant", "content": null, "refusal": "No."},
   "finish_reason": "length"}],
  "usage": {"prompt_tokens": 3, "completion_tokens": 70000}, "session_id": "s"}"""
PART = b'{"choices": [{"index": 1, "text": "a", "logprobs": {"tokens": ["a"]}, "finish_reason": "length"}]}'


def call(path: str, *outputs: str, stream: bool = False) -> InferenceCall:
    return InferenceCall("demo", "7", path, b"", stream, frozenset(outputs))


def part(data: bytes) -> AnswerPart:
    return msgspec.json.decode(data, type=AnswerPart)


def outputs(response: ModelInferResponse) -> dict[str, bytes]:
    names = [output.name for output in response.outputs]
    return dict(zip(names, response.raw_output_contents, strict=True))


def test_all_outputs_or_those_that_are_asked_for() -> None:
    response = ResponseMaker(call(CHAT), {"request_id": "r"}).whole(part(WHOLE))
    found = outputs(response)
    assert list(found) == [
        "text_output",
        "message",
        "finish_reason",
        "logprobs",
        "num_input_tokens",
        "num_output_tokens",
    ]
    assert found["text_output"] == b"\2\0\0\0Hi\0\0\0\0"
    assert b'"refusal":"No."' in found["message"]
    assert found["finish_reason"] == b"\4\0\0\0stop\6\0\0\0length"
    assert found["logprobs"] == b'\x0f\0\0\0{"content": []}\4\0\0\0null'
    assert found["num_output_tokens"] == (70000).to_bytes(4, "little")
    assert {name: value.string_param for name, value in response.parameters.items()} == {
        "request_id": "r",
        "session_id": "s",
    }
    few = ResponseMaker(call(CHAT, "num_input_tokens", "text_output"), {}).whole(part(WHOLE))
    assert list(outputs(few)) == ["text_output", "num_input_tokens"]
    asked = ResponseMaker(call(CHAT, "message"), {}).whole(part(b'{"choices":[{"message":{"content":"x"}}]}'))
    assert outputs(asked) == {"message": b'\x0f\0\0\0{"content":"x"}'}


def test_a_piece_has_its_log_probabilities_and_its_position() -> None:
    maker = ResponseMaker(call(TEXT, stream=True), {})
    (response,) = maker.parts(part(PART))
    assert outputs(response)["logprobs"] == b'\x11\0\0\0{"tokens": ["a"]}'
    assert response.parameters["index"].int64_param == 1
    assert not response.parameters["triton_final_response"].bool_param
    assert outputs(maker.last({}))["finish_reason"] == b"\6\0\0\0length"


def test_an_answer_of_several_engines_says_so_at_its_end() -> None:
    whole = ResponseMaker(call(TEXT), {}).whole(part(b'{"choices": [{"text": "a"}], "resumed": "text"}'))
    assert whole.parameters["resumed"].string_param == "text"
    maker = ResponseMaker(call(TEXT, stream=True), {})
    (piece,) = maker.parts(part(b'{"choices": [{"text": "a", "finish_reason": "stop"}], "resumed": "text"}'))
    assert "resumed" not in piece.parameters
    assert maker.last({}).parameters["resumed"].string_param == "text"
    assert "resumed" not in ResponseMaker(call(TEXT, stream=True), {}).last({}).parameters
