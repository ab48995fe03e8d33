"""Translates whole answers and events of the HTTP routes into responses of the protocol. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from services.gateway.transports.grpc.protocol.inference_pb2 import InferParameter, ModelInferResponse
from services.gateway.transports.grpc.translation.inference_request import VERSION, InferenceCall
from services.gateway.transports.grpc.translation.tensors import OutputTensor, count_tensor, text_tensor

FINAL = "triton_final_response"  # of the last response to a request on a stream
_TEXT_ONLY = frozenset({"role", "content", "refusal"})  # fields of a message that `text_output` says already


_NOTHING = msgspec.Raw(b"null")


class AnswerUsage(msgspec.Struct):
    """The tokens of a call."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class AnswerChoice(msgspec.Struct):
    """One choice, whole or in part, of either route."""

    index: int = 0
    text: str | None = None
    message: dict[str, Any] | None = None
    delta: dict[str, Any] | None = None
    logprobs: msgspec.Raw = _NOTHING
    finish_reason: str | None = None
    token_ids: msgspec.Raw = _NOTHING
    prompt_token_ids: msgspec.Raw = _NOTHING

    @property
    def part(self) -> dict[str, Any]:
        """The message or the part of one; empty on the route of texts."""
        return self.message or self.delta or {}

    @property
    def output(self) -> str:
        """The text."""
        return self.text or self.part.get("content") or ""

    @property
    def has_more(self) -> bool:
        """Returns whether it has more than text, such as calls of tools."""
        part = self.part
        return any(part[name] for name in part.keys() - _TEXT_ONLY) or bool(part.get("refusal"))


class AnswerPart(msgspec.Struct):
    """A whole answer, or the data of one event."""

    choices: list[AnswerChoice] = []
    usage: AnswerUsage | None = None
    session_id: str = ""
    resumed: str = ""
    prompt_token_ids: msgspec.Raw = _NOTHING
    model: str = ""
    error: dict[str, Any] | None = None


class ResponseMaker:
    """Makes the responses to one request.

    Args:
        call: The request.
        parameters: What the gateway tells of it in every response, by the name of the parameter.
    """

    def __init__(self, call: InferenceCall, parameters: Mapping[str, str]) -> None:
        self._call = call
        self._parameters = parameters
        self._session_id = self._resumed = ""
        self._model = call.model
        self._finish_reasons: dict[int, str] = {}
        self._usage = AnswerUsage()

    def whole(self, answer: AnswerPart, last: Mapping[str, str] | None = None) -> ModelInferResponse:
        """The response that has the whole answer.

        Args:
            answer: The body of the route's answer.
            last: More parameters of a response on a stream; None: it is not sent on one.
        """
        self._session_id, self._resumed = answer.session_id, answer.resumed
        self._model = answer.model or self._model
        self._usage = answer.usage or self._usage
        choices = answer.choices
        outputs = [text_tensor("text_output", [choice.output for choice in choices])]
        if self._shows_messages(choices):
            outputs.append(text_tensor("message", [_encode(choice.part) for choice in choices]))
        outputs.append(text_tensor("finish_reason", [choice.finish_reason or "" for choice in choices]))
        outputs += _json_tensor("logprobs", [choice.logprobs for choice in choices])
        outputs += _json_tensor("token_ids", [choice.token_ids for choice in choices])
        outputs += _json_tensor("prompt_token_ids", _prompts(answer))
        return self._response([*outputs, *self._counts()], last)

    def parts(self, event: AnswerPart) -> list[ModelInferResponse]:
        """The responses for an event of a streamed answer; none if it has no text."""
        self._session_id = event.session_id or self._session_id
        self._resumed = event.resumed or self._resumed
        self._model = event.model or self._model
        self._usage = event.usage or self._usage
        found = []
        for choice in event.choices:
            if choice.finish_reason:
                self._finish_reasons[choice.index] = choice.finish_reason
            details = [
                *_json_tensor("logprobs", [choice.logprobs]),
                *_json_tensor("token_ids", [choice.token_ids]),
                *_json_tensor("prompt_token_ids", _prompts(event)),
            ]
            if not (choice.output or choice.has_more or details):
                continue
            outputs = [text_tensor("text_output", [choice.output])]
            if self._shows_messages([choice]):
                outputs.append(text_tensor("message", [_encode(choice.part)]))
            outputs += details
            response = self._response(outputs)
            if choice.index:
                response.parameters["index"].int64_param = choice.index
            found.append(response)
        return found

    def last(self, parameters: Mapping[str, str]) -> ModelInferResponse:
        """The last response of a streamed answer: why each choice ended, the tokens, and no text.

        Args:
            parameters: What is known at the end only.
        """
        reasons = [reason for _, reason in sorted(self._finish_reasons.items())]
        outputs = [text_tensor("text_output", [""]), text_tensor("finish_reason", reasons)]
        return self._response([*outputs, *self._counts()], parameters)

    def _counts(self) -> list[OutputTensor]:
        return [
            count_tensor("num_input_tokens", self._usage.prompt_tokens),
            count_tensor("num_output_tokens", self._usage.completion_tokens),
        ]

    def _shows_messages(self, choices: Sequence[AnswerChoice]) -> bool:
        if not self._call.is_chat:
            return False
        return "message" in self._call.outputs or any(choice.has_more for choice in choices)

    def _response(
        self, outputs: Sequence[OutputTensor], last: Mapping[str, str] | None = None
    ) -> ModelInferResponse:
        """A response; with `last`, parameters of the final one to a request on a stream."""
        call, final = self._call, last is not None
        response = ModelInferResponse(model_name=self._model, model_version=VERSION, id=call.request_id)
        for output in outputs:
            if call.outputs and output.name not in call.outputs:
                continue
            response.outputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
            response.raw_output_contents.append(output.raw)
        if call.stream or final:
            response.parameters[FINAL].bool_param = final
        for name, value in (*self._parameters.items(), *(last or {}).items()):
            response.parameters[name].string_param = value
        if self._session_id:
            response.parameters["session_id"].string_param = self._session_id
        if self._resumed and (final or not call.stream):
            response.parameters["resumed"].string_param = self._resumed
        return response


def failed_response(model: str, request_id: str, parameters: dict[str, str | float]) -> ModelInferResponse:
    """The response beside an error on a stream: which request it was, and what programs may read.

    Args:
        model: The model that was asked for.
        request_id: The caller's id of the request.
        parameters: Parameters about the error.
    """
    response = ModelInferResponse(model_name=model, id=request_id)
    response.parameters[FINAL].bool_param = True
    for name, value in parameters.items():
        response.parameters[name].CopyFrom(
            InferParameter(string_param=value)
            if isinstance(value, str)
            else InferParameter(double_param=value)
        )
    return response


def _json_tensor(name: str, values: Sequence[msgspec.Raw]) -> list[OutputTensor]:
    """A tensor of JSON texts; nothing if none of them is there."""
    texts = [bytes(value) for value in values]
    return [text_tensor(name, texts)] if any(text != b"null" for text in texts) else []


def _prompts(answer: AnswerPart) -> list[msgspec.Raw]:
    """The tokens of the prompts: one for a chat, else one for each choice."""
    of_chat = bytes(answer.prompt_token_ids) != b"null"
    return [answer.prompt_token_ids] if of_chat else [one.prompt_token_ids for one in answer.choices]


def _encode(part: dict[str, Any]) -> bytes:
    return msgspec.json.encode(part)
