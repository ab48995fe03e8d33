"""Translates an embedding request into generations, and their results into OpenAI's answer. Pure."""

import base64
from collections.abc import Sequence

import msgspec

from services.gateway.formats.embeddings.schema import EmbeddingRequest
from shared.client import Embedding
from shared.codec import pack_tokens
from shared.errors import FAMILY, InvalidRequest, RyzError
from shared.messages import EmbeddingOptions, GenerateRequest

_FIELDS = {"prompt": "", "prompt_token_ids": ""}  # of the protocol, which are one input here


def check_inputs(body: EmbeddingRequest, most: int) -> None:
    """Raises `InvalidRequest` for a body with too many inputs."""
    if len(body.input) > most:
        raise InvalidRequest(f"`input` may have {most} inputs, got {len(body.input)}", param="input")


def embedding_requests(body: EmbeddingRequest, request_id: str, tenant: str) -> list[GenerateRequest]:
    """One generation for each input, in their order."""
    options = EmbeddingOptions(
        pooling=body.pooling or "last",
        normalize=body.normalize is not False,
        dimensions=body.dimensions or 0,
    )
    several = len(body.input) > 1
    return [
        GenerateRequest(
            request_id=f"{request_id}-{index:x}" if several else request_id,
            model=body.model,
            prompt=one if isinstance(one, str) else None,
            prompt_token_ids=None if isinstance(one, str) else pack_tokens(one),
            tenant=tenant,
            delivery="whole",
            embedding=options,
            truncate_prompt_tokens=body.truncate_prompt_tokens or 0,
        )
        for index, one in enumerate(body.input)
    ]


def error_of_input(error: RyzError, index: int, several: bool) -> RyzError:
    """The error of one input under the names that the caller knows."""
    param = error.data.get("param")
    name = f"input[{index}]" if several else "input"
    if param not in _FIELDS:
        return error
    return FAMILY[error.code](f"`{name}`: {error.message}", **{**error.data, "param": name})


def embedding_answer(model: str, found: Sequence[Embedding], *, packed: bool) -> bytes:
    """The answer, encoded.

    Args:
        model: As the caller named it.
        found: One for each input, in their order.
        packed: As base64 of 32-bit little-endian floats, else as numbers.
    """
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": base64.b64encode(one.packed).decode() if packed else one.vector,
        }
        for index, one in enumerate(found)
    ]
    prompt = sum(one.usage.prompt_tokens for one in found)
    usage = {"prompt_tokens": prompt, "total_tokens": prompt}
    return msgspec.json.encode({"object": "list", "data": data, "model": model, "usage": usage})
