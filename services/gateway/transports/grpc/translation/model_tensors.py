"""Tells which tensors a model has, as `ModelMetadata` and `ModelConfig` show them. Pure."""

from services.gateway.transports.grpc.protocol.inference_pb2 import (
    ModelConfig,
    ModelConfigResponse,
    ModelInput,
    ModelMetadataResponse,
    ModelOutput,
    ModelTransactionPolicy,
)
from services.gateway.transports.grpc.translation.inference_request import VERSION

PLATFORM = "ryzanstein"
# name: (datatype, its name in a configuration, size, whether every request has it)
_INPUTS = {
    "text_input": ("BYTES", "TYPE_STRING", -1),
    "messages": ("BYTES", "TYPE_STRING", 1),
    "input_ids": ("INT32", "TYPE_INT32", -1),
    "stream": ("BOOL", "TYPE_BOOL", 1),
    "sampling_parameters": ("BYTES", "TYPE_STRING", 1),
    "exclude_input_in_output": ("BOOL", "TYPE_BOOL", 1),
    "max_tokens": ("INT32", "TYPE_INT32", 1),
    "temperature": ("FP32", "TYPE_FP32", 1),
    "top_p": ("FP32", "TYPE_FP32", 1),
    "top_k": ("INT32", "TYPE_INT32", 1),
    "random_seed": ("INT64", "TYPE_INT64", 1),
    "stop_words": ("BYTES", "TYPE_STRING", -1),
    "return_log_probs": ("BOOL", "TYPE_BOOL", 1),
}
_OUTPUTS = {
    "text_output": ("BYTES", "TYPE_STRING", -1),
    "message": ("BYTES", "TYPE_STRING", -1),
    "finish_reason": ("BYTES", "TYPE_STRING", -1),
    "logprobs": ("BYTES", "TYPE_STRING", -1),
    "token_ids": ("BYTES", "TYPE_STRING", -1),
    "prompt_token_ids": ("BYTES", "TYPE_STRING", -1),
    "num_input_tokens": ("UINT32", "TYPE_UINT32", 1),
    "num_output_tokens": ("UINT32", "TYPE_UINT32", 1),
}


def model_metadata(model: str) -> ModelMetadataResponse:
    """The tensors of a model."""
    metadata = ModelMetadataResponse(name=model, versions=[VERSION], platform=PLATFORM)
    for name, (datatype, _, size) in _INPUTS.items():
        metadata.inputs.add(name=name, datatype=datatype, shape=[size])
    for name, (datatype, _, size) in _OUTPUTS.items():
        metadata.outputs.add(name=name, datatype=datatype, shape=[size])
    return metadata


def model_config(model: str) -> ModelConfigResponse:
    """The same as Triton's configuration; a request may have any number of responses."""
    return ModelConfigResponse(
        config=ModelConfig(
            name=model,
            platform=PLATFORM,
            backend=PLATFORM,
            input=[
                ModelInput(name=name, data_type=kind, dims=[size], optional=True)
                for name, (_, kind, size) in _INPUTS.items()
            ],
            output=[
                ModelOutput(name=name, data_type=kind, dims=[size])
                for name, (_, kind, size) in _OUTPUTS.items()
            ],
            model_transaction_policy=ModelTransactionPolicy(decoupled=True),
        )
    )
