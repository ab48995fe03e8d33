"""Answers the calls that tell about the server and its models."""

from services.gateway.admission.identity.identity import Identity, check_scopes
from services.gateway.served_models import ServedModel
from services.gateway.transports.grpc.protocol import inference_pb2 as pb
from services.gateway.transports.grpc.serving.call_metadata import headers_of, peer_address
from services.gateway.transports.grpc.serving.context import Context
from services.gateway.transports.grpc.serving.parts import GrpcParts
from services.gateway.transports.grpc.translation.inference_request import VERSION, check_version
from services.gateway.transports.grpc.translation.model_tensors import model_config, model_metadata
from shared.errors import RyzError

_MODELS = "/v1/models"  # the route of the same, for the places of keys
_EXTENSIONS = ("model_configuration", "model_repository(index)", "sequence", "statistics")


class ServerCalls:
    """Answers calls without inference.

    Args:
        parts: What all calls share.
    """

    def __init__(self, parts: GrpcParts) -> None:
        self._parts = parts

    async def server_live(self, request: pb.ServerLiveRequest, context: Context) -> pb.ServerLiveResponse:
        """The process answers."""
        return pb.ServerLiveResponse(live=True)

    async def server_ready(self, request: pb.ServerReadyRequest, context: Context) -> pb.ServerReadyResponse:
        """A group can take requests, as `/ready` says it."""
        return pb.ServerReadyResponse(ready=await self.is_ready())

    async def server_metadata(
        self, request: pb.ServerMetadataRequest, context: Context
    ) -> pb.ServerMetadataResponse:
        """Name and version."""
        return pb.ServerMetadataResponse(
            name="ryzanstein", version=self._parts.version, extensions=_EXTENSIONS
        )

    async def model_ready(self, request: pb.ModelReadyRequest, context: Context) -> pb.ModelReadyResponse:
        """A group of that model can take requests."""
        check_version(request.name, request.version)
        identity = self._identity_of(context)
        try:
            found = await self._parts.needs.models.find(request.name, identity)
        except RyzError as error:
            if error.data.get("reason") != "no_group" and error.code != "model_not_found":
                raise
            return pb.ModelReadyResponse(ready=False)
        return pb.ModelReadyResponse(ready=found.ready)

    async def model_metadata(
        self, request: pb.ModelMetadataRequest, context: Context
    ) -> pb.ModelMetadataResponse:
        """The tensors of a model."""
        await self._check_model(request.name, request.version, context)
        return model_metadata(request.name)

    async def model_config(self, request: pb.ModelConfigRequest, context: Context) -> pb.ModelConfigResponse:
        """The tensors of a model, in the form of Triton's configuration."""
        await self._check_model(request.name, request.version, context)
        return model_config(request.name)

    async def model_statistics(
        self, request: pb.ModelStatisticsRequest, context: Context
    ) -> pb.ModelStatisticsResponse:
        """What this door has answered."""
        if request.name:
            await self._check_model(request.name, request.version, context)
        else:
            hidden = await self._hidden_from(self._identity_of(context))
            found = [one for one in self._parts.counts.statistics("") if one.name not in hidden]
            return pb.ModelStatisticsResponse(model_stats=found)
        return pb.ModelStatisticsResponse(model_stats=self._parts.counts.statistics(request.name))

    async def repository_index(
        self, request: pb.RepositoryIndexRequest, context: Context
    ) -> pb.RepositoryIndexResponse:
        """The models that groups serve, which are ready, and those that hosts offer besides."""
        served = await self._parts.needs.models.list_for(self._identity_of(context))
        return pb.RepositoryIndexResponse(models=[_index_entry(one) for one in served])

    async def is_ready(self) -> bool:
        """Returns whether a group can take requests."""
        if self._parts.draining.is_set():
            return False
        return not (await self._parts.needs.readiness()).reason

    async def _check_model(self, name: str, version: str, context: Context) -> None:
        """Raises unless a group serves the model or a host offers it."""
        check_version(name, version)
        await self._parts.needs.models.find(name, self._identity_of(context))

    async def _hidden_from(self, identity: Identity) -> set[str]:
        """The models that the caller may not use."""
        models = self._parts.needs.models
        seen = {one.card.name for one in await models.list_for(identity)}
        return {one.card.name for one in await models.list_all()} - seen

    def _identity_of(self, context: Context) -> Identity:
        """Who makes the call; refuses a key that is not valid, or not for questions about models."""
        headers = headers_of(context.invocation_metadata() or (), single=False)
        identities = self._parts.needs.context.admission.identities
        identity = identities.of_headers(headers, _MODELS, peer_address(context.peer()))
        check_scopes(identity, _MODELS, "GET")
        return identity


def _index_entry(model: ServedModel) -> pb.RepositoryIndexResponse.ModelIndex:
    state = "READY" if model.ready else "UNAVAILABLE"
    reason = "" if model.ready or model.state is None else model.state.phase
    return pb.RepositoryIndexResponse.ModelIndex(
        name=model.card.name, version=VERSION, state=state, reason=reason
    )
