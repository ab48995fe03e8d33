"""Reads the input tensors of a request and writes the output tensors of an answer. Pure."""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from services.gateway.transports.grpc.protocol.inference_pb2 import InferTensorContents, ModelInferRequest
from shared.errors import InvalidRequest

MAX_INPUTS = 64
_MAX_RANK = 8
_LENGTH = struct.Struct("<I")
# datatype: (struct's letter, the field of `InferTensorContents`)
_NUMBERS = {
    "BOOL": ("?", "bool_contents"),
    "INT8": ("b", "int_contents"),
    "INT16": ("h", "int_contents"),
    "INT32": ("i", "int_contents"),
    "INT64": ("q", "int64_contents"),
    "UINT8": ("B", "uint_contents"),
    "UINT16": ("H", "uint_contents"),
    "UINT32": ("I", "uint_contents"),
    "UINT64": ("Q", "uint64_contents"),
    "FP16": ("e", ""),
    "FP32": ("f", "fp32_contents"),
    "FP64": ("d", "fp64_contents"),
}
_SHORT_FLOATS = {"FP16": "e", "FP32": "f"}
Value = bool | int | float | str


@dataclass(frozen=True, slots=True)
class InputTensor:
    """One input; texts are decoded.

    Attributes:
        values: Its elements in row-major order.
        is_text: Its datatype is BYTES.
    """

    name: str
    values: list[Value]
    is_text: bool


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """One output; `raw` has its elements as `raw_output_contents` has them."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: bytes


def read_tensors(request: ModelInferRequest) -> dict[str, InputTensor]:
    """The inputs of a request by their names.

    Raises:
        InvalidRequest: An input is not what its datatype and shape say; names it.
    """
    raw = request.raw_input_contents
    if len(request.inputs) > MAX_INPUTS:
        raise InvalidRequest(f"a request has at most {MAX_INPUTS} inputs, got {len(request.inputs)}")
    if raw and len(raw) != len(request.inputs):
        raise InvalidRequest(
            f"`raw_input_contents` needs an entry for each input: {len(request.inputs)}, got {len(raw)}"
        )
    found: dict[str, InputTensor] = {}
    for index, tensor in enumerate(request.inputs):
        if tensor.name in found:
            raise _wrong(tensor.name, "is there twice")
        count = _count(tensor.name, tensor.shape)
        if raw:
            values = _from_raw(tensor.name, tensor.datatype, raw[index], count)
        else:
            values = _from_contents(tensor.name, tensor.datatype, tensor.contents)
        if len(values) != count:
            raise _wrong(
                tensor.name, f"has the shape {list(tensor.shape)}, so {count} elements, got {len(values)}"
            )
        found[tensor.name] = InputTensor(tensor.name, values, tensor.datatype == "BYTES")
    return found


def text_tensor(name: str, texts: Sequence[str | bytes]) -> OutputTensor:
    """An output of datatype BYTES with one element for each text."""
    raw = bytearray()
    for text in texts:
        data = text.encode() if isinstance(text, str) else text
        raw += _LENGTH.pack(len(data))
        raw += data
    return OutputTensor(name, "BYTES", (len(texts),), bytes(raw))


def count_tensor(name: str, value: int) -> OutputTensor:
    """An output of datatype UINT32 with one element."""
    return OutputTensor(name, "UINT32", (1,), _LENGTH.pack(value))


def _count(name: str, shape: Sequence[int]) -> int:
    if len(shape) > _MAX_RANK or any(not 0 <= size < 2**31 for size in shape):
        raise _wrong(name, f"needs a shape of at most {_MAX_RANK} sizes of 0 or more")
    return math.prod(shape)


def _from_raw(name: str, datatype: str, raw: bytes, count: int) -> list[Value]:
    if datatype == "BYTES":
        return _texts(name, _split(name, raw))
    letter, _ = _kind(name, datatype)
    size = struct.calcsize(letter)
    if len(raw) != count * size:  # before memory is taken for a shape that no bytes stand behind
        raise _wrong(name, f"needs {count * size} bytes of {datatype}, got {len(raw)}")
    return _numbers(datatype, struct.unpack(f"<{count}{letter}", raw))


def _from_contents(name: str, datatype: str, contents: InferTensorContents) -> list[Value]:
    if datatype == "BYTES":
        return _texts(name, contents.bytes_contents)
    _, field = _kind(name, datatype)
    if not field:
        raise _wrong(name, f"of {datatype} needs `raw_input_contents`")
    return _numbers(datatype, getattr(contents, field))


def _kind(name: str, datatype: str) -> tuple[str, str]:
    try:
        return _NUMBERS[datatype]
    except KeyError:
        known = ", ".join(["BYTES", *_NUMBERS])
        raise _wrong(name, f"has the datatype {datatype[:32]!r}; known are {known}") from None


def _split(name: str, raw: bytes) -> list[bytes]:
    parts, position = [], 0
    while position < len(raw):
        if position + 4 > len(raw):
            raise _wrong(name, "ends within the length of an element")
        (length,) = _LENGTH.unpack_from(raw, position)
        position += 4
        if position + length > len(raw):
            raise _wrong(name, f"has an element of {length} bytes, of which {len(raw) - position} are there")
        parts.append(raw[position : position + length])
        position += length
    return parts


def _texts(name: str, parts: Sequence[bytes]) -> list[Value]:
    try:
        return [part.decode() for part in parts]
    except UnicodeDecodeError:
        raise _wrong(name, "needs text in UTF-8") from None


def _numbers(datatype: str, values: Sequence[bool | int | float]) -> list[Value]:
    letter = _SHORT_FLOATS.get(datatype)
    if letter is None:
        return list(values)
    return [_shortest(letter, value) for value in values]


def _shortest(letter: str, value: float) -> float:
    """The shortest decimal that is the same number in a short format.

    0.7 sent as FP32 is meant as 0.7 and not as 0.699999988: the same request by HTTP gets the same answer.
    """
    if math.isfinite(value):
        for digits in range(1, 9):
            short = float(f"{value:.{digits}g}")
            try:
                same: float = struct.unpack(f"<{letter}", struct.pack(f"<{letter}", short))[0]
            except OverflowError:
                continue
            if same == value:
                return short
    return value


def _wrong(name: str, problem: str) -> InvalidRequest:
    shown = name[:64]
    return InvalidRequest(f"the input `{shown}` {problem}", param=shown)
