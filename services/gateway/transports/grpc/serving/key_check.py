"""Refuses calls without a valid key before their messages are read, so that strangers cost no memory.

The route that a call leads to checks the key again: it decides the tenant.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import grpc

from services.gateway.admission.errors.refusals import HttpRefusal
from services.gateway.admission.identity.identities import Identities
from services.gateway.transports.grpc.serving.call_failures import failure_of
from services.gateway.transports.grpc.serving.call_metadata import headers_of, peer_address
from services.gateway.transports.grpc.serving.context import Context
from services.gateway.transports.grpc.serving.metrics import GrpcMetrics
from shared.errors import RyzError

# a text: the class takes arguments in its types only
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class KeyCheck(grpc.aio.ServerInterceptor):
    """Stands before the handlers.

    Args:
        identities: Find who makes a call.
        metrics: Counts what is refused.
        needs_key: Whether a method, as `/service/method`, is for callers with a key.
    """

    def __init__(
        self, identities: Identities, metrics: GrpcMetrics, needs_key: Callable[[str], bool]
    ) -> None:
        self._identities = identities
        self._metrics = metrics
        self._needs_key = needs_key

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable["Handler | None"]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        """Returns the method's handler, or one that refuses the call."""
        if self._needs_key(handler_call_details.method):
            metadata = handler_call_details.invocation_metadata or ()
            try:
                given = headers_of(metadata, single=True).get(b"authorization", b"")
                self._identities.find(given)
            except (HttpRefusal, RyzError) as refusal:
                return self._refusing(handler_call_details.method, refusal)
        return await continuation(handler_call_details)

    def _refusing(self, method: str, refusal: HttpRefusal | RyzError) -> Handler:
        async def refuse(requests: AsyncIterator[bytes], context: Context) -> None:
            failure = failure_of(self._counted(refusal, context))
            self._metrics.count_call(method.rpartition("/")[2], failure.status.name, 0.0)
            await context.abort(failure.status, failure.message, tuple(failure.trailing))

        # a handler of streams reads a message only when it asks for one
        return grpc.stream_stream_rpc_method_handler(refuse)

    def _counted(self, refusal: HttpRefusal | RyzError, context: Context) -> HttpRefusal | RyzError:
        """The refusal once more, now that the caller's address is known: wrong keys count for it."""
        if not isinstance(refusal, HttpRefusal):
            return refusal
        given = headers_of(context.invocation_metadata() or (), single=True).get(b"authorization", b"")
        try:
            self._identities.find(given, peer_address(context.peer()))
        except (HttpRefusal, RyzError) as counted:
            return counted
        return refusal
