"""What all calls of gRPC share."""

import asyncio
import time
from dataclasses import dataclass, field

from services.gateway.settings import GatewaySettings
from services.gateway.transports.grpc.needs import GrpcNeeds
from services.gateway.transports.grpc.protocol.inference_pb2 import ModelStatistics
from services.gateway.transports.grpc.serving.metrics import GrpcMetrics
from services.gateway.transports.grpc.serving.open_calls import OpenCalls
from services.gateway.transports.grpc.translation.inference_request import VERSION

_MAX_MODELS = 1024


class ModelCounts:
    """Counts the requests of each model, for `ModelStatistics`."""

    def __init__(self) -> None:
        self._models: dict[str, ModelStatistics] = {}

    def count(self, model: str, seconds: float, *, good: bool) -> None:
        """Counts a request of a model that is served."""
        found = self._models.get(model)
        if found is None:
            if len(self._models) >= _MAX_MODELS:
                return
            found = self._models[model] = ModelStatistics(name=model, version=VERSION)
        found.last_inference = time.time_ns() // 1_000_000
        found.inference_count += good
        found.execution_count += good
        kind = found.inference_stats.success if good else found.inference_stats.fail
        kind.count += 1
        kind.ns += round(seconds * 1e9)

    def statistics(self, model: str) -> list[ModelStatistics]:
        """The counts of one model, or with an empty name of all."""
        if model:
            return [self._models.get(model) or ModelStatistics(name=model, version=VERSION)]
        return list(self._models.values())


@dataclass(frozen=True, slots=True)
class GrpcParts:
    """The parts.

    Attributes:
        needs: Parts of the gateway.
        version: Of the software.
        calls: Places of open calls.
        draining: Set when the gateway takes no more requests.
    """

    needs: GrpcNeeds
    settings: GatewaySettings
    metrics: GrpcMetrics
    version: str
    calls: OpenCalls
    counts: ModelCounts = field(default_factory=ModelCounts)
    draining: asyncio.Event = field(default_factory=asyncio.Event)
