"""The methods of the inference service with their handlers, and the services beside it."""

from typing import Any

import grpc
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import SERVICE_NAME as REFLECTION
from grpc_reflection.v1alpha.reflection_pb2_grpc import add_ServerReflectionServicer_to_server

from services.gateway.transports.grpc.protocol import inference_pb2 as pb
from services.gateway.transports.grpc.protocol.message_classes import POOL
from services.gateway.transports.grpc.serving.call_failures import unimplemented
from services.gateway.transports.grpc.serving.calls import CallWrapper, Unary
from services.gateway.transports.grpc.serving.context import Context
from services.gateway.transports.grpc.serving.health_service import HEALTH, HealthService
from services.gateway.transports.grpc.serving.key_check import Handler
from services.gateway.transports.grpc.serving.open_calls import Reflection
from services.gateway.transports.grpc.serving.parts import GrpcParts
from services.gateway.transports.grpc.serving.server_calls import ServerCalls
from services.gateway.transports.grpc.serving.single_inference import SingleInference
from services.gateway.transports.grpc.serving.stream_inference import StreamInference

INFERENCE = "inference.GRPCInferenceService"
_OPEN = frozenset({"ServerLive", "ServerReady", "ServerMetadata"})  # they need no key
# methods of Triton that cannot mean anything here, and what to do in their place
ELSEWHERE = {
    "RepositoryModelLoad": "models are chosen where worker groups are started: `ryz up --model`",
    "RepositoryModelUnload": "models are chosen where worker groups are started: `ryz up --model`",
    **dict.fromkeys(
        [
            f"{kind}SharedMemory{what}"
            for kind in ("System", "Cuda")
            for what in ("Status", "Register", "Unregister")
        ],
        "send tensors in the request: there is no shared memory between clients and the gateway",
    ),
    "TraceSetting": "traces follow the metadata `traceparent`; see docs/operations.md",
    "LogSettings": "the level of the log is set by RYZ_LOG_LEVEL",
}


def needs_key(method: str) -> bool:
    """Returns whether a method, as `/service/method`, is for callers with a key."""
    service, _, name = method.removeprefix("/").partition("/")
    return service == INFERENCE and name not in _OPEN


def add_services(server: grpc.aio.Server, parts: GrpcParts) -> None:
    """Adds the inference service, health checks and reflection."""
    frame, calls = CallWrapper(parts.metrics, parts.calls), ServerCalls(parts)
    single = SingleInference(parts)
    unary: dict[str, tuple[Unary, type[Message]]] = {
        "ServerLive": (calls.server_live, pb.ServerLiveRequest),
        "ServerReady": (calls.server_ready, pb.ServerReadyRequest),
        "ServerMetadata": (calls.server_metadata, pb.ServerMetadataRequest),
        "ModelReady": (calls.model_ready, pb.ModelReadyRequest),
        "ModelMetadata": (calls.model_metadata, pb.ModelMetadataRequest),
        "ModelConfig": (calls.model_config, pb.ModelConfigRequest),
        "ModelStatistics": (calls.model_statistics, pb.ModelStatisticsRequest),
        "RepositoryIndex": (calls.repository_index, pb.RepositoryIndexRequest),
        "ModelInfer": (single.infer, pb.ModelInferRequest),
    }
    for method, remedy in ELSEWHERE.items():
        unary[method] = (_refusing(method, remedy), Empty)
    # messages are parsed by the frame, which answers a broken one
    handlers: dict[str, Handler] = {
        method: grpc.stream_stream_rpc_method_handler(
            frame.unary(method, handle, kind), response_serializer=_serialized
        )
        for method, (handle, kind) in unary.items()
    }
    handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
        frame.stream("ModelStreamInfer", StreamInference(parts, single).infer, pb.ModelInferRequest),
        response_serializer=_serialized,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(INFERENCE, handlers),))
    health = HealthService(frozenset({INFERENCE}), calls.is_ready, parts.draining, parts.calls)
    add_HealthServicer_to_server(health, server)
    for file in (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
        POOL.AddSerializedFile(file.serialized_pb)  # type: ignore[no-untyped-call]
    services = Reflection(parts.calls, (INFERENCE, HEALTH, REFLECTION), pool=POOL)
    add_ServerReflectionServicer_to_server(services, server)  # type: ignore[no-untyped-call]


def _serialized(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def _refusing(method: str, remedy: str) -> Unary:
    async def refuse(request: Empty, context: Context) -> Empty:
        raise unimplemented(f"{method} is not served: {remedy}")

    return refuse
