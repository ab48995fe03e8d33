"""Translates a `ModelInferRequest` into a call of the HTTP route that answers it. Pure.

`messages` makes it a turn of a chat; `text_input` or `input_ids` a text to continue. Names of tensors are
those of Triton's backends for vLLM and TensorRT-LLM; see docs/grpc.md.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from services.gateway.transports.grpc.protocol.inference_pb2 import InferParameter, ModelInferRequest
from services.gateway.transports.grpc.translation.field_values import (
    ALIASES,
    IGNORED,
    field_of_tensor,
    json_of,
    loosened,
)
from services.gateway.transports.grpc.translation.tensors import InputTensor, Value, read_tensors
from shared.errors import InvalidRequest, ModelNotFound

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
VERSION = "1"  # of every model
HEADERS = {"idempotency_key": b"idempotency-key", "if_match": b"if-match", "if_none_match": b"if-none-match"}
OUTPUTS = ("text_output", "message", "finish_reason", "logprobs", "num_input_tokens", "num_output_tokens")
_LONGEST_ID = 1024  # every response repeats it
_OWN_FIELDS = ("model", "messages", "prompt", "stream")  # of the body; given by tensors of other names
_UNSUPPORTED = {
    "return_context_logits": "logits are not sent",
    "return_generation_logits": "logits are not sent",
    "return_cumulative_logprob": "use `return_log_probs` and add them up",
    "image": "the models take text",
    "lora_name": "an adapter is asked for as the model `base:name`",
}


@dataclass(frozen=True, slots=True)
class InferenceCall:
    """A request as a call of an HTTP route.

    Attributes:
        model: The model that is asked for.
        request_id: The caller's id of the request, which its answers carry.
        path: The route.
        body: The body of the call.
        stream: The answer comes in pieces.
        outputs: The outputs that are asked for; empty: all that there are.
        timeout_s: The time limit that the request names; 0: none.
        session_id: The session that it names, or empty.
        begins_session: The session is to begin anew with this request.
        ends_session: The session is to be deleted after this request.
        headers: That the request names in parameters.
    """

    model: str
    request_id: str
    path: str
    body: bytes
    stream: bool
    outputs: frozenset[str]
    timeout_s: float = 0.0
    session_id: str = ""
    begins_session: bool = False
    ends_session: bool = False
    headers: Mapping[bytes, bytes] = field(default_factory=dict)

    @property
    def is_chat(self) -> bool:
        """Returns whether it is a turn of a chat."""
        return self.path == CHAT


def read_call(request: ModelInferRequest) -> InferenceCall:
    """Translates a request.

    Raises:
        InvalidRequest: A tensor or parameter is wrong; names it.
        ModelNotFound: It asks for another version than there is.
    """
    check_version(request.model_name, request.model_version)
    if len(request.id) > _LONGEST_ID:
        raise InvalidRequest(
            f"an `id` has at most {_LONGEST_ID} characters, got {len(request.id)}", param="id"
        )
    tensors = read_tensors(request)
    parameters = {name: _value(name, parameter) for name, parameter in request.parameters.items()}
    stream = _flag(tensors.pop("stream", None), default=False)
    fields: dict[str, Any] = {"model": request.model_name, "stream": stream}
    path = CHAT if "messages" in tensors or "messages" in parameters else TEXT
    if path == CHAT:
        fields["messages"] = _messages(tensors, parameters)
    else:
        fields["prompt"] = _prompt(tensors)
        _take_echo(fields, tensors)
    _take_logprobs(fields, tensors, path)
    timeout_us = _number(parameters, "timeout")
    sequence = str(parameters.pop("sequence_id", ""))
    headers = _headers(parameters)
    begins, ends = (bool(parameters.pop(f"sequence_{name}", False)) for name in ("start", "end"))
    _take_fields(fields, tensors, parameters)
    if stream:
        options = fields.get("stream_options")
        fields["stream_options"] = (options if isinstance(options, dict) else {}) | {"include_usage": True}
    session_id = sequence or fields.get("session_id", "")
    if sequence:
        fields["session_id"] = sequence
    return InferenceCall(
        model=request.model_name,
        request_id=request.id,
        path=path,
        body=msgspec.json.encode(fields),
        stream=stream,
        outputs=_asked_outputs(request),
        timeout_s=timeout_us / 1e6,
        session_id=session_id if isinstance(session_id, str) else "",
        begins_session=begins,
        ends_session=ends,
        headers=headers,
    )


def check_version(model: str, version: str) -> None:
    """Raises `ModelNotFound` unless that is the version of every model, or empty."""
    if version not in {"", VERSION}:
        raise ModelNotFound(
            f"the model {model[:128]!r} has the version {VERSION!r} only, got {version[:32]!r}",
            param="model_version",
        )


def _value(name: str, parameter: InferParameter) -> Value:
    kind = parameter.WhichOneof("parameter_choice")
    if kind is None:
        raise InvalidRequest(f"the parameter `{name[:64]}` has no value", param=name[:64])
    value: Value = getattr(parameter, kind)
    return value


def _messages(tensors: dict[str, InputTensor], parameters: dict[str, Value]) -> object:
    tensor, given = tensors.pop("messages", None), parameters.pop("messages", None)
    if (tensor is not None and given is not None) or "text_input" in tensors:
        raise InvalidRequest(
            "give `messages` once, as an input or as a parameter, and no `text_input` beside it",
            param="messages",
        )
    value = given if tensor is None else field_of_tensor("messages", tensor)
    if not isinstance(value, str):
        raise InvalidRequest(
            "`messages` needs a text: a list of messages in JSON, as /v1/chat/completions has it",
            param="messages",
        )
    return json_of("messages", value)


def _prompt(tensors: dict[str, InputTensor]) -> object:
    text, ids = tensors.pop("text_input", None), tensors.pop("input_ids", None)
    if (text is None) == (ids is None):
        raise InvalidRequest(
            "a request needs the input `text_input` (BYTES), or `messages` (BYTES, JSON) for a chat, or "
            "`input_ids`, and only one of them",
            param="text_input",
        )
    if ids is not None:
        return ids.values
    assert text is not None
    if not text.is_text:
        raise InvalidRequest("the input `text_input` needs the datatype BYTES", param="text_input")
    return text.values[0] if len(text.values) == 1 else text.values


def _take_echo(fields: dict[str, Any], tensors: dict[str, InputTensor]) -> None:
    if not _flag(tensors.pop("exclude_input_in_output", None), default=True):
        fields["echo"] = True


def _take_logprobs(fields: dict[str, Any], tensors: dict[str, InputTensor], path: str) -> None:
    names = ("return_log_probs", "return_logprobs")
    asked = [_flag(tensors.pop(name, None), default=False) for name in names]
    if any(asked):
        fields["logprobs"] = True if path == CHAT else 0


def _flag(tensor: InputTensor | None, *, default: bool) -> bool:
    if tensor is None:
        return default
    if len(tensor.values) != 1 or not isinstance(tensor.values[0], bool):
        raise InvalidRequest(f"the input `{tensor.name}` needs one element of BOOL", param=tensor.name)
    return tensor.values[0]


def _headers(parameters: dict[str, Value]) -> dict[bytes, bytes]:
    """Takes parameters that are headers of HTTP: those which metadata could say for a whole stream only."""
    found = {}
    for name, header in HEADERS.items():
        value = parameters.pop(name, None)
        if value is None:
            continue
        text = str(value)
        if isinstance(value, bool) or not text.isprintable():
            raise InvalidRequest(
                f"the parameter `{name}` needs a text, as the header {header.decode()} of HTTP", param=name
            )
        found[header] = text.encode()
    return found


def _number(parameters: dict[str, Value], name: str) -> float:
    value = parameters.pop(name, 0)
    if isinstance(value, bool | str) or not 0 <= value < 2**53:
        raise InvalidRequest(f"the parameter `{name}` needs a number of 0 or more", param=name)
    return float(value)


def _take_fields(
    fields: dict[str, Any], tensors: Mapping[str, InputTensor], parameters: Mapping[str, Value]
) -> None:
    """Adds the fields of `sampling_parameters`, then those of tensors and parameters of their own."""
    rest = dict(tensors)
    sampling = rest.pop("sampling_parameters", None)
    if sampling is not None:
        text = field_of_tensor("sampling_parameters", sampling)
        given = json_of("sampling_parameters", text) if isinstance(text, str) else None
        if not isinstance(given, dict):
            raise InvalidRequest(
                '`sampling_parameters` needs an object in JSON, such as {"max_tokens": 64}',
                param="sampling_parameters",
            )
        for name, value in given.items():
            _add(fields, name, loosened(name, value))
    for name, tensor in rest.items():
        _add(fields, name, field_of_tensor(ALIASES.get(name, name), tensor))
    for name, value in parameters.items():
        _add(fields, name, loosened(ALIASES.get(name, name), value))


def _add(fields: dict[str, Any], name: str, value: object) -> None:
    field = ALIASES.get(name, name)
    if name in _UNSUPPORTED and value not in (False, None, ""):
        raise InvalidRequest(f"`{name}` is not supported: {_UNSUPPORTED[name]}", param=name)
    if field in IGNORED or name in _UNSUPPORTED or (name == "beam_width" and value == 1):
        return
    if isinstance(value, float) and not math.isfinite(value):  # JSON has no such number
        raise InvalidRequest(f"`{name}` needs a finite number, got {value}", param=name)
    if field in _OWN_FIELDS or field in fields:
        raise InvalidRequest(f"`{name[:64]}` cannot be given here, or is given twice", param=name[:64])
    fields[field] = value


def _asked_outputs(request: ModelInferRequest) -> frozenset[str]:
    asked = frozenset(output.name for output in request.outputs)
    unknown = sorted(asked - set(OUTPUTS))
    if unknown:
        raise InvalidRequest(
            f"there is no output `{unknown[0][:64]}`; the outputs are {', '.join(OUTPUTS)}", param="outputs"
        )
    return asked
