"""Tensors are read by datatype and shape, and whatever is wrong with them is named."""

import struct

import pytest

from services.gateway.transports.grpc.protocol.inference_pb2 import ModelInferRequest
from services.gateway.transports.grpc.translation.tensors import MAX_INPUTS, read_tensors, text_tensor
from shared.errors import InvalidRequest


def raw(datatype: str, data: bytes, shape: list[int]) -> ModelInferRequest:
    request = ModelInferRequest(model_name="demo", raw_input_contents=[data])
    request.inputs.add(name="x", datatype=datatype, shape=shape)
    return request


def read(request: ModelInferRequest) -> list[bool | int | float | str]:
    return read_tensors(request)["x"].values


@pytest.mark.parametrize(
    ("datatype", "data", "values"),
    [
        ("BOOL", b"\1\0", [True, False]),
        ("INT8", b"\xff\1", [-1, 1]),
        ("INT32", struct.pack("<2i", -5, 7), [-5, 7]),
        ("UINT64", struct.pack("<2Q", 2**64 - 1, 0), [2**64 - 1, 0]),
        ("FP16", struct.pack("<2e", 0.7, 1.5), [0.7, 1.5]),
        ("FP32", struct.pack("<2f", 0.7, 1e-7), [0.7, 1e-7]),
        ("FP64", struct.pack("<2d", 0.7, 1 / 3), [0.7, 1 / 3]),
        ("BYTES", b"\2\0\0\0\xc3\xa4\0\0\0\0", ["ä", ""]),
    ],
)
def test_raw_elements(datatype: str, data: bytes, values: list[object]) -> None:
    assert read(raw(datatype, data, [2])) == values
    assert read(raw(datatype, data, [1, 2])) == values


def test_typed_elements() -> None:
    request = ModelInferRequest(model_name="demo")
    tensor = request.inputs.add(name="x", datatype="FP32", shape=[2])
    tensor.contents.fp32_contents.extend([0.1, 2])
    assert read(request) == [0.1, 2]
    tensor.datatype = "INT32"
    with pytest.raises(InvalidRequest, match="so 2 elements, got 0"):
        read(request)


@pytest.mark.parametrize(
    ("datatype", "data", "shape", "problem"),
    [
        ("INT32", b"\0" * 7, [2], "8 bytes of INT32, got 7"),
        ("FP64", b"", [2**30, 2**30], "bytes of FP64, got 0"),
        ("BYTES", b"\5\0\0\0abc", [1], "element of 5 bytes, of which 3"),
        ("BYTES", b"\5\0", [1], "within the length"),
        ("BYTES", b"\1\0\0\0\xff", [1], "UTF-8"),
        ("BYTES", b"\1\0\0\0a", [2], "so 2 elements, got 1"),
        ("COMPLEX", b"", [1], "'COMPLEX'; known are BYTES, BOOL"),
        ("BOOL", b"\1", [-1], "sizes of 0 or more"),
        ("BOOL", b"\1", [1] * 9, "at most 8 sizes"),
    ],
)
def test_what_is_wrong_is_reported(datatype: str, data: bytes, shape: list[int], problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem) as caught:
        read(raw(datatype, data, shape))
    assert caught.value.data["param"] == "x"


def test_inputs_are_counted() -> None:
    many = ModelInferRequest(model_name="demo")
    for index in range(MAX_INPUTS + 1):
        many.inputs.add(name=str(index), datatype="BOOL", shape=[0])
    with pytest.raises(InvalidRequest, match="at most 64"):
        read_tensors(many)
    twice = ModelInferRequest(model_name="demo")
    for _ in range(2):
        twice.inputs.add(name="x", datatype="BOOL", shape=[0])
    with pytest.raises(InvalidRequest, match="twice"):
        read_tensors(twice)
    unequal = ModelInferRequest(model_name="demo", raw_input_contents=[b"", b""])
    unequal.inputs.add(name="x", datatype="BOOL", shape=[0])
    with pytest.raises(InvalidRequest, match="for each input: 1, got 2"):
        read_tensors(unequal)


def test_texts_are_written_behind_their_lengths() -> None:
    tensor = text_tensor("text_output", ["ä", b"\xff"])
    assert (tensor.shape, tensor.raw) == ((2,), b"\2\0\0\0\xc3\xa4\1\0\0\0\xff")
