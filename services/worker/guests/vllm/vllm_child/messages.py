"""The messages between the leader and the process of vLLM's environment: a length, then MessagePack.

Both sides import this file, so it needs msgspec only, which vLLM depends on as well.
"""

import asyncio
from typing import Any, Literal

import msgspec

LENGTH_BYTES = 4
MAX_FRAME_BYTES = 2**28


class StartEngine(msgspec.Struct, frozen=True, tag=True):
    """The first message: the model's directory, and the engine arguments of `vllm serve`."""

    model: str
    arguments: list[str]


class OpenSequence(msgspec.Struct, frozen=True, tag=True):
    """A sequence.

    Attributes:
        sampling: The fields of vLLM's `SamplingParams`.
        salt: Sequences with different ones share nothing of the prefix cache.
        grammar: That vLLM is to follow, as Lark for llguidance; empty: none.
    """

    seq_id: int
    token_ids: list[int]
    sampling: dict[str, Any]
    salt: str
    grammar: str = ""


class CloseSequence(msgspec.Struct, frozen=True, tag=True):
    """The sequence is over, whatever it is doing."""

    seq_id: int


class Ping(msgspec.Struct, frozen=True, tag=True):
    """Answered with the same message when vLLM's engine has answered, between two of its steps."""

    number: int


class EngineReady(msgspec.Struct, frozen=True, tag=True):
    """What vLLM says of itself once it can generate.

    Attributes:
        computed_as: Type of weights and quantization, such as `bfloat16` or `bfloat16 fp8`.
        speculative: It guesses tokens, and then takes neither `min_p` nor `logit_bias`.
        grammars: It follows grammars in Lark for llguidance.
        block_tokens: Tokens of a block of its KV cache.
        kv_events: ZMQ address at which it publishes events of its KV cache; empty: it does not.
    """

    version: str
    context_length: int
    vocab_size: int
    max_running: int
    kv_tokens: int
    block_tokens: int
    computed_as: str
    speculative: bool
    kv_events: str
    grammars: bool = False


class EngineEnded(msgspec.Struct, frozen=True, tag=True):
    """The engine did not start, or is gone; the last message.

    Attributes:
        refused: Another start with these arguments would end in the same way.
    """

    reason: str
    refused: bool = False


class SequencePart(msgspec.Struct, frozen=True, array_like=True):
    """Tokens of a sequence; with log probabilities, and the likeliest tokens, if the request asked for them.

    Attributes:
        finished: Why it brings no more; empty: it goes on.
        error: Why it cannot go on; the sequence is over.
        cached_tokens: Of its tokens, how many the prefix cache had.
    """

    seq_id: int
    token_ids: list[int] = []
    logprobs: list[float] = []
    alternatives: list[list[tuple[int, float]]] = []
    finished: Literal["", "stop", "length"] = ""
    error: str = ""
    cached_tokens: int = 0


class Generated(msgspec.Struct, frozen=True, tag=True):
    """What came in one iteration of the child's event loop."""

    parts: list[SequencePart]


FromLeader = StartEngine | OpenSequence | CloseSequence | Ping
FromChild = EngineReady | EngineEnded | Generated | Ping


def frame_of(message: FromLeader | FromChild) -> bytes:
    """Return a message as a frame."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """Return the body of the next frame; None if the other side is gone.

    Raises:
        ValueError: What comes is no frame.
    """
    try:
        size = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
        if size > MAX_FRAME_BYTES:
            raise ValueError(f"a frame of {size} bytes is over the limit of {MAX_FRAME_BYTES}")
        return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
