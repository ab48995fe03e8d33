"""The names and the values of fields that requests may give, as the HTTP bodies have them. Pure.

Names that users of Triton's backends for TensorRT-LLM and vLLM know are translated; every other name is one
of the HTTP body, and the route says what is wrong with it.
"""

import msgspec

from services.gateway.transports.grpc.translation.tensors import InputTensor
from shared.errors import InvalidRequest

# Triton's TensorRT-LLM backend calls them so
ALIASES = {
    "len_penalty": "length_penalty",
    "min_length": "min_tokens",
    "num_return_sequences": "n",
    "random_seed": "seed",
    "request_output_len": "max_tokens",
    "runtime_top_k": "top_k",
    "runtime_top_p": "top_p",
    "stop_words": "stop",
}
# they ask for what is always in the answer, or change nothing here
IGNORED = frozenset(
    {
        "binary_data_output",
        "end_id",
        "pad_id",
        "return_finish_reason",
        "return_num_input_tokens",
        "return_num_output_tokens",
        "triton_enable_empty_final_response",
    }
)
_LISTS = frozenset({"bad_words", "guided_choice", "stop", "stop_token_ids"})
_JSON = frozenset(
    {
        "allowed_token_ids",
        "chat_template_kwargs",
        "guided_json",
        "json_schema",
        "logit_bias",
        "metadata",
        "response_format",
        "stream_options",
        "structured_outputs",
        "tool_choice",
        "tools",
    }
)
_PLAIN = frozenset({"tool_choice", "guided_json", "json_schema"})  # a text that is no JSON is meant as it is
_NUMBERS_AND_FLAGS = frozenset(
    {
        "add_generation_prompt",
        "best_of",
        "continue_final_message",
        "echo",
        "frequency_penalty",
        "ignore_eos",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "min_p",
        "min_tokens",
        "n",
        "presence_penalty",
        "priority",
        "prompt_logprobs",
        "repetition_penalty",
        "return_token_ids",
        "seed",
        "temperature",
        "top_k",
        "top_logprobs",
        "top_p",
        "truncate_prompt_tokens",
    }
)
_FLAGS = {"true": True, "false": False}


def json_of(name: str, text: str) -> object:
    """The value that a text in JSON stands for.

    Raises:
        InvalidRequest: It is not JSON; names the tensor or the parameter.
    """
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"`{name}` needs JSON: {str(error)[:200]}", param=name) from None


def field_of_tensor(field: str, tensor: InputTensor) -> object:
    """The value of a body's field that a tensor stands for.

    Args:
        field: The name in the body.
        tensor: Has the name that the caller knows.

    Raises:
        InvalidRequest: It has another number of elements than the field takes.
    """
    if field in _LISTS:
        return tensor.values
    if len(tensor.values) != 1:
        raise InvalidRequest(
            f"the input `{tensor.name}` needs one element, got {len(tensor.values)}", param=tensor.name
        )
    return loosened(field, tensor.values[0])


def loosened(field: str, value: object) -> object:
    """The value of a body's field that a single value stands for.

    Examples of vLLM's backend give numbers as texts, and a tensor or parameter cannot hold an object.
    """
    if not isinstance(value, str):
        return value
    if field in _NUMBERS_AND_FLAGS:
        return _number_or_flag(value)
    if field in _JSON:
        try:
            return json_of(field, value)
        except InvalidRequest:
            if field not in _PLAIN:
                raise
    return [value] if field in _LISTS else value


def _number_or_flag(text: str) -> object:
    flag = _FLAGS.get(text.strip().lower())
    if flag is not None:
        return flag
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text  # the route says what the field needs
