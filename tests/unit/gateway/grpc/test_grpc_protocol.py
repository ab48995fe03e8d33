"""The messages are those of the published protocol, as Triton's client has them, and made from the source."""

from typing import Any

import pytest
from tritonclient.grpc import model_config_pb2, service_pb2

from services.gateway.transports.grpc.protocol import inference_pb2
from tools.protobuf import made

FILE = inference_pb2.ModelInferRequest.DESCRIPTOR.file
NAMES = sorted(FILE.message_types_by_name)


def published(name: str) -> Any:
    found = service_pb2.DESCRIPTOR.message_types_by_name.get(name)
    return found or model_config_pb2.DESCRIPTOR.message_types_by_name[name]


def same(ours: Any, theirs: Any) -> None:
    fields = {field.name: field for field in theirs.fields}
    for field in ours.fields:
        other = fields[field.name]
        assert (field.number, field.type, field.is_repeated) == (
            other.number,
            other.type,
            other.is_repeated,
        ), field.full_name
        assert (field.containing_oneof is None) == (other.containing_oneof is None)
        if field.message_type:
            assert field.message_type.full_name == other.message_type.full_name
    nested = {kind.name: kind for kind in theirs.nested_types}
    for kind in ours.nested_types:
        same(kind, nested[kind.name])


@pytest.mark.parametrize("name", NAMES)
def test_a_message_has_the_published_fields(name: str) -> None:
    same(FILE.message_types_by_name[name], published(name))


def test_methods_and_enumerations_are_the_published_ones() -> None:
    theirs = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
    ours = FILE.services_by_name["GRPCInferenceService"].methods_by_name
    assert len(ours) == 10
    for name, method in ours.items():
        other = theirs[name]
        assert method.input_type.full_name == other.input_type.full_name
        assert method.output_type.full_name == other.output_type.full_name
        assert (method.client_streaming, method.server_streaming) == (
            other.client_streaming,
            other.server_streaming,
        )
    numbers = model_config_pb2.DataType.DESCRIPTOR.values_by_name
    for name, value in FILE.enum_types_by_name["DataType"].values_by_name.items():
        assert value.number == numbers[name].number


def test_the_modules_are_those_of_the_source() -> None:
    for path, text in made().items():
        assert path.read_text() == text, f"{path.name}: run `python -m tools.protobuf`"
